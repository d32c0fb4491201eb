"""The training of a student: AdamW towards the outputs of the model, a rate that warms up and falls by a cosine, the
best state by held-out error, and a file that a later run goes on from."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import cos, inf, isfinite, pi
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from formats.core.errors import InputError
from formats.disk.files import reason, shown
from formats.host.threads import threads
from opmatrix.display.tables import few_digits
from opmatrix.exports.program_graph import TYPE_IDS
from opmatrix.exports.runtimes import pad_rows
from opmatrix.inference.scores.text_pairs import TokenRow
from rewrites.approximate.students.training_text import TrainingText, group_rows
from rewrites.workload.phases import Tell

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

    TensorPair = tuple[torch.Tensor, torch.Tensor]

WARMED = 0.05  # share of the run in which the rate rises
FIRST_RATE = 0.02  # share of the rate that the first step takes
BETAS, DECAY = (0.9, 0.98), 0.01
LARGEST_NORM = 1.0  # gradients are scaled down to this norm
LOOKS = 20  # times in a run that the held-out error is measured, besides the first and the last
PRUNED_FROM, PRUNED_TO = 0.05, 0.7  # shares of the run between which entries are pruned
PRUNINGS = 50  # times that entries are pruned in between
FILE_KIND = "opmatrix student 1"


@dataclass(frozen=True)
class TrainingPlan:
    """The length of a training, minutes or steps; the tokens of a step; the largest rate; the share of the entries of
    matrices that are 0 at its end; the seed of the order of texts."""

    minutes: float = 15.0
    steps: int | None = None
    batch: int = 1024
    rate: float = 2e-4
    sparsity: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raise InputError for a number that no training has."""
        limits = {
            "--minutes": (self.minutes, isfinite(self.minutes) and self.minutes >= 0, "a number from 0 on"),
            "--steps": (self.steps, self.steps is None or self.steps >= 0, "a number from 0 on"),
            "--batch": (self.batch, self.batch >= 1, "tokens, 1 or more"),
            "--rate": (self.rate, isfinite(self.rate) and self.rate > 0, "a number above 0"),
            "--sparsity": (self.sparsity, 0 <= self.sparsity < 1, "a share from 0 to below 1"),
        }
        for option, (value, holds, wanted) in limits.items():
            if not holds:
                raise InputError(f"{option} {value}: give {wanted}")

    def done(self, progress: "TrainingState") -> float:
        """Return the share of the training that is done, from 0 to 1."""
        if self.steps is not None:
            return min(1.0, progress.step / self.steps) if self.steps else 1.0
        return min(1.0, progress.seconds / (60 * self.minutes)) if self.minutes else 1.0

    def rate_at(self, done: float) -> float:
        """Return the rate where a share of the training is done: a linear warm-up, then half a cosine."""
        return self.rate * min(1.0, FIRST_RATE + done / WARMED) * (1 + cos(pi * done)) / 2

    def sparsity_at(self, done: float) -> float:
        """Return the share of entries that are 0: s (1 - (1 - t)³) over the span of pruning (Zhu and Gupta 2017, eq. 1,
        from sparsity 0)."""
        t = min(1.0, max(0.0, (done - PRUNED_FROM) / (PRUNED_TO - PRUNED_FROM)))
        return self.sparsity * (1 - (1 - t) ** 3)


@dataclass
class TrainingState:
    """The steps that were taken, the seconds and the CPU seconds of this process for them, the held-out error of the
    first and of the best state."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    first: float = inf
    best: float = inf
    best_step: int = 0


class Objective(NamedTuple):
    """The distance of a student from the model: of embeddings and scores the squared norm of the difference over that
    of the model's, of logits the Kullback-Leibler divergence of a token, in nats."""

    divergence: bool

    def sums(self, student: "torch.Tensor", model: "torch.Tensor", mask: "torch.Tensor") -> "TensorPair":
        """Return the summed distance of a batch, and the sum that it is relative to."""
        if not self.divergence:
            return (student - model).square().sum(), model.square().sum()
        from torch.nn.functional import kl_div, log_softmax

        rows = mask.bool()
        learnt, wanted = (log_softmax(logits[rows], -1) for logits in (student, model))
        return kl_div(learnt, wanted, reduction="sum", log_target=True), mask.sum()

    def stated(self, sums: Sequence[tuple[float, float]]) -> float:
        """Return the error of batches together: relative, or nats a token."""
        off, size = map(sum, zip(*sums, strict=True))
        return off / size if self.divergence else (off / size) ** 0.5


@dataclass
class Lesson:
    """A student and the model that it learns from, as modules of torch, with the text."""

    student: "GraphModule"
    model: "GraphModule"
    text: TrainingText
    objective: Objective
    kinds: tuple[bool, bool] = field(init=False)
    known: "dict[int, torch.Tensor]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = [{node.target for node in module.graph.nodes if node.op == "placeholder"} for module in self.modules]
        self.kinds = TYPE_IDS in places[0], TYPE_IDS in places[1]

    @property
    def modules(self) -> "tuple[GraphModule, GraphModule]":
        """The student and the model."""
        return self.student, self.model

    def sums(self, rows: Sequence[TokenRow], wanted: "torch.Tensor | None" = None) -> "TensorPair":
        """Return the summed distance of the student's outputs for a batch, and the sum that it is relative to.
        `wanted`: the model's outputs, if they are known."""
        inputs = padded_rows(rows)
        wanted = self.ask_model(inputs) if wanted is None else wanted
        return self.objective.sums(self.student(*inputs[: 2 + self.kinds[0]]), wanted, inputs[1])

    def ask_model(self, inputs: "Sequence[torch.Tensor]") -> "torch.Tensor":
        """Return the model's outputs."""
        import torch

        with torch.no_grad():
            outputs: torch.Tensor = self.model(*inputs[: 2 + self.kinds[1]])
        return outputs

    def held_out(self, tokens: int) -> float:
        """Return the error on the texts that choose. The model's embeddings of them are kept; logits are too many."""
        import torch

        sums = list[tuple[float, float]]()
        for at, rows in enumerate(group_rows(sorted(self.text.choose, key=lambda row: len(row[0])), tokens)):
            wanted = self.known.get(at)
            wanted = self.ask_model(padded_rows(rows)) if wanted is None else wanted
            if not self.objective.divergence:
                self.known[at] = wanted
            with torch.no_grad():
                off, size = self.sums(rows, wanted)
            sums.append((float(off), float(size)))
        return self.objective.stated(sums)


def padded_rows(rows: Sequence[TokenRow]) -> "list[torch.Tensor]":
    """Return ids, mask and types of texts, (texts, longest) each, padded behind."""
    import torch

    ids, mask = pad_rows([row for row, _ in rows])
    types, _ = pad_rows([kinds for _, kinds in rows])
    return [torch.from_numpy(array) for array in (ids, mask, types)]


class Trainer:
    """A student under training: its state, the best numbers, the optimiser and the entries that were pruned."""

    def __init__(self, lesson: Lesson, plan: TrainingPlan) -> None:
        import torch

        self.lesson, self.plan, self.state = lesson, plan, TrainingState()
        self.weights = dict(lesson.student.named_parameters())
        self.best = copy_numbers(self.weights)
        self.masks = dict[str, torch.Tensor]()
        matrices = [weight for weight in self.weights.values() if weight.ndim > 1]
        others = [weight for weight in self.weights.values() if weight.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW([group for group in groups if group["params"]], plan.rate, BETAS, fused=True)
        self.next_pruning, self.pruned = PRUNED_FROM, not plan.sparsity

    def look(self) -> None:
        """Measure the held-out error, and keep the numbers if it is the smallest since pruning ended."""
        error, state = self.lesson.held_out(self.plan.batch), self.state
        state.first = error if state.step == 0 else state.first
        if error < state.best or not self.pruned:
            state.best, state.best_step, self.best = error, state.step, copy_numbers(self.weights)

    def prune(self, done: float) -> None:
        """Choose the smallest entries of each matrix, but those of tables, as far as the schedule is."""
        if self.pruned or done < self.next_pruning:
            return
        self.next_pruning = done + (PRUNED_TO - PRUNED_FROM) / PRUNINGS
        share = self.plan.sparsity_at(done)
        for name in prunable_weights(self.lesson.student):
            size = self.weights[name].detach().abs()
            if count := int(share * size.numel()):
                self.masks[name] = size > size.flatten().kthvalue(count).values
        if done >= PRUNED_TO:
            self.pruned, self.state.best = True, inf

    def step(self, rows: Sequence[TokenRow]) -> None:
        """Take one step on a batch. Raises InputError for a gradient that is not finite."""
        import torch

        done = self.plan.done(self.state)
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate_at(done)
        self.optimiser.zero_grad()
        off, size = self.lesson.sums(rows)
        torch.autograd.backward(off / size)
        norm = float(torch.nn.utils.clip_grad_norm_(self.weights.values(), LARGEST_NORM))
        if not isfinite(norm):
            raise InputError(
                f"--rate {self.plan.rate:g}: the gradient of step {self.state.step} is {norm}: give a smaller rate"
            )
        self.optimiser.step()
        self.prune(done)
        with torch.no_grad():
            for name, mask in self.masks.items():
                self.weights[name].mul_(mask)
        self.state.step += 1

    # ---- the file that a later run goes on from

    def tensors(self) -> "dict[str, torch.Tensor]":
        """Return the numbers of the student, of its best state, of the optimiser, and the masks, by name."""
        held = {f"student.{name}": weight.detach() for name, weight in self.weights.items()}
        held |= {f"best.{name}": numbers for name, numbers in self.best.items()}
        held |= {f"mask.{name}": mask for name, mask in self.masks.items()}
        for name, weight in self.weights.items():
            held |= {f"{key}.{name}": each for key, each in self.optimiser.state[weight].items()}
        return held

    def save(self, file: Path, lesson: str) -> None:
        """Write the state beside a file, then rename. `lesson` describes what is learnt. Raises InputError where the
        file cannot be written."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        entries = {"kind": FILE_KIND, "lesson": lesson, "pruned": self.pruned, **vars(self.state)}
        part = file.with_name(f".{file.name}.part")
        try:
            save_file(
                {name: tensor.contiguous() for name, tensor in self.tensors().items()},
                part,
                {"entries": json.dumps(entries)},
            )
            os.replace(part, file)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            fault = reason(error) if isinstance(error, OSError) else f"{error!s:.100}"
            raise InputError(f"{shown(file)}: not writable: {fault}") from error

    def resume(self, file: Path, lesson: str) -> None:
        """Go on from a file. Raises InputError for one that is damaged or of another training."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "pt") as opened:
                entries = dict(json.loads((opened.metadata() or {})["entries"]))
                held = {name: opened.get_tensor(name) for name in opened.keys()}
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"{shown(file)}: no file of a training ({error!s:.80}): remove it to begin anew"
            ) from error
        if (entries.pop("kind", ""), entries.pop("lesson", "")) != (FILE_KIND, lesson):
            raise InputError(f"{shown(file)}: it is of another training: give its model, text and shares, or remove it")
        try:
            self.load(held, entries)
        except (KeyError, RuntimeError, TypeError) as error:
            raise InputError(f"{shown(file)}: it lacks a part ({error!s:.80}): remove it to begin anew") from error

    def load(self, held: "Mapping[str, torch.Tensor]", entries: dict[str, float]) -> None:
        """Take the numbers and the counts of a file."""
        import torch

        self.pruned = bool(entries.pop("pruned"))
        self.state = TrainingState(**entries)  # type: ignore[arg-type]
        self.masks = {name.removeprefix("mask."): each for name, each in held.items() if name.startswith("mask.")}
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(held[f"student.{name}"])
                self.best[name].copy_(held[f"best.{name}"])
                if f"exp_avg.{name}" in held:
                    # a fused step takes moments to lie in memory as their weight does, and a file may differ
                    moments = {key: torch.empty_like(weight) for key in ("exp_avg", "exp_avg_sq")}
                    moments = {key: each.copy_(held[f"{key}.{name}"]) for key, each in moments.items()}
                    self.optimiser.state[weight] = {"step": held[f"step.{name}"], **moments}


def copy_numbers(weights: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return a copy of the numbers of weights."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


def prunable_weights(module: "GraphModule") -> list[str]:
    """Return the matrices of a module that are no tables."""
    import torch

    tables = {
        operand.target
        for node in module.graph.nodes
        if node.target is torch.nn.functional.embedding
        for operand in node.all_input_nodes
    }
    return [name for name, weight in module.named_parameters() if weight.ndim == 2 and name not in tables]


@contextmanager
def stopping() -> "Iterator[threading.Event]":
    """Give an event that SIGTERM or an interrupt from the keyboard sets, once; a second one acts as usual. Outside the
    main thread no signal is heard."""
    asked, before = threading.Event(), dict[int, object]()

    def stop(number: int, frame: object) -> None:
        """Ask for the end, and hand the next signal to whom it went before."""
        asked.set()
        signal.signal(number, before[number])  # type: ignore[arg-type]

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, stop)
        yield asked
    finally:
        for heard, handler in before.items():
            signal.signal(heard, handler)  # type: ignore[arg-type]


def train(trainer: Trainer, file: Path | None, lesson: str, progress: Tell) -> TrainingState:
    """Train until the plan ends or a signal asks for it, and put the best numbers into the student. The state is
    written to a file whenever the held-out error is measured, and first read from it if it is there. Raises InputError
    for a file that does not fit or cannot be written."""
    import torch

    plan, text = trainer.plan, trainer.lesson.text
    before = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        if file is not None and file.exists():
            trainer.resume(file, lesson)
        else:
            trainer.look()
        save = None if file is None else lambda: trainer.save(file, lesson)
        run_steps(trainer, text.batches(plan.seed, plan.batch), save, progress)
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        for name, weight in trainer.weights.items():
            weight.copy_(trainer.best[name])
    return trainer.state


def run_steps(
    trainer: Trainer, batches: Iterator[list[TokenRow]], save: Callable[[], None] | None, progress: Tell
) -> None:
    """Take the steps of a plan, with looks in between."""
    plan, state = trainer.plan, trainer.state
    for _ in range(state.step):
        next(batches)
    look_at = plan.done(state) + 1 / LOOKS
    with stopping() as asked:
        while (done := plan.done(state)) < 1 and not asked.is_set():
            began, cpu = time.perf_counter(), time.process_time()
            trainer.step(next(batches))
            if done >= look_at or asked.is_set():
                look_and_save(trainer, save)
                look_at = done + 1 / LOOKS
            state.seconds += time.perf_counter() - began
            state.cpu_seconds += time.process_time() - cpu
            errors = f"off by {few_digits(state.best)}, {few_digits(state.first)} at first"
            progress(f"{100 * done:.0f} %, step {state.step}, {errors}")
    look_and_save(trainer, save)


def look_and_save(trainer: Trainer, save: Callable[[], None] | None) -> None:
    """Measure the held-out error, and write the state."""
    trainer.look()
    if save is not None:
        save()
