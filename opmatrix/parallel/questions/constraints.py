"""The constraints of a plan, or of a stated layout: what each costs, from a search with that one relaxed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

from opmatrix.display.tables import table
from opmatrix.parallel.questions.fewest_devices import fastest_on
from opmatrix.parallel.questions.layouts import FixedChoices
from opmatrix.parallel.search.legal_sizes import LIFTED_FIELDS
from opmatrix.parallel.search.plan_text import GIGA, in_percent
from opmatrix.parallel.search.plans import PlanChoice, scale_links, scale_memory, scale_products
from opmatrix.parallel.search.stage_times import run_stages
from opmatrix.parallel.search.strategy_search import FormPrograms, PlanQuestion, compile_forms

MORE_MEMORY = 0.1  # share of a device's memory that is added
UNBOUNDED = 1e18  # bytes that any strategy fits; infinitely many would admit forms that do not apply
TWICE = 2  # factor of bandwidths, rates and the batch
LEAST_SAVED = 5e-4  # share of a step, from which on a constraint binds
FEWEST_ROUNDS = 2  # micro-batches for each stage, until a pipeline holds the most
PARTS_NAMED = 3


class RelaxedConstraint(NamedTuple):
    """One constraint, relaxed by a stated step."""

    kind: str  # memory, sizes, links, device, batch, or restrictions that were asked for
    step: str  # the change in words
    question: PlanQuestion  # the question with that one change
    batches: int = 1  # batches of the unchanged question in one of its steps
    reuses: bool = True  # the formulas are those of the unchanged question


class RelaxedStep(NamedTuple):
    """The fastest strategy with one constraint relaxed, and the seconds that it saves a batch."""

    kind: str
    step: str
    choice: PlanChoice | None  # None where no strategy fits
    seconds: float  # of the unchanged batch
    saved: float  # seconds less than those of the layout


class StageMemory(NamedTuple):
    """The memory of the fullest device: its stage and its parts."""

    stage: int  # the first is 1
    stages: int
    reported: float  # bytes by the driver
    room: float
    parts: dict[str, float]  # bytes that are allocated, the most first

    def __str__(self) -> str:
        named = [f"{size / GIGA:.1f} GB {name}" for name, size in [*self.parts.items()][:PARTS_NAMED] if size]
        where = f"stage {self.stage} of {self.stages} is the fullest" if self.stages > 1 else "one stage"
        return (
            f"{self.reported / GIGA:.1f} of {self.room / GIGA:.1f} GB "
            f"({in_percent(self.reported, self.room)} %); {where}: {', '.join(named)}"
        )


class PlanConstraints(NamedTuple):
    """The constraints of a layout, those that save the most first."""

    choice: PlanChoice
    memory: StageMemory
    steps: tuple[RelaxedStep, ...]

    @property
    def binding(self) -> list[RelaxedStep]:
        """The constraints whose relaxation saves seconds."""
        return [step for step in self.steps if step.saved > LEAST_SAVED * self.choice.seconds]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"which constraint binds {self.choice}:",
                f"  {self.choice.seconds:.4g} s a step; {self.memory}",
                f"  {self.verdict}",
                "",
                self.steps_table(),
            ]
        )

    @property
    def verdict(self) -> str:
        """The constraint of each kind that saves the most, in a line."""
        firsts: dict[str, RelaxedStep] = {}
        for step in self.binding:
            firsts.setdefault(step.kind, step)
        if not firsts:
            return "nothing binds: no relaxation saves time"
        return "binding: " + ", ".join(
            f"{kind} ({step.step}: {in_percent(step.saved, self.choice.seconds)} % less)"
            for kind, step in firsts.items()
        )

    def steps_table(self) -> str:
        """Return the table of relaxations: seconds of the same batch, those saved, and the strategy that is chosen."""
        rows = [[step.kind, step.step, *self.saved_cells(step), self.chosen_cell(step)] for step in self.steps]
        return table(rows, ["constraint", "with", "s a batch", "saved s", "saved %", "then the fastest is"], (0, 1, 5))

    def saved_cells(self, step: RelaxedStep) -> list[str]:
        """Return the seconds of a relaxed step, and those that are saved."""
        if step.choice is None:
            return ["", "", ""]
        return [f"{step.seconds:.4g}", f"{step.saved:.3g}", in_percent(step.saved, self.choice.seconds)]

    def chosen_cell(self, step: RelaxedStep) -> str:
        """Return the strategy that is the fastest with a relaxation."""
        if step.choice is None:
            return "no strategy fits"
        return "the same" if str(step.choice) == str(self.choice) else str(step.choice)

    def figures(self) -> dict[str, object]:
        """Return the constraints as JSON."""
        return {
            "strategy": str(self.choice),
            "seconds": self.choice.seconds,
            "memory": self.memory._asdict(),
            "binding": list(dict.fromkeys(step.kind for step in self.binding)),
            "relaxed": [
                {
                    "constraint": step.kind,
                    "with": step.step,
                    "strategy": None if step.choice is None else str(step.choice),
                    "seconds": None if step.choice is None else step.seconds,
                    "saved seconds": None if step.choice is None else step.saved,
                }
                for step in self.steps
            ],
        }


def find_constraints(question: PlanQuestion, choice: PlanChoice, fixed: FixedChoices | None = None) -> PlanConstraints:
    """Return the constraints of a strategy of a question; `fixed`: sizes and choices of a layout that is stated, which
    are constraints, too. Each search has one change; the seconds of twice the batch are halved."""
    asked = replace(question, fixed=tuple((fixed or {}).items()))
    programs = compile_forms(asked, asked.forms)
    steps = [relax(relaxation, choice.seconds, programs) for relaxation in relaxations(asked)]
    steps.sort(key=lambda step: -step.saved)
    return PlanConstraints(choice, fullest_stage(choice, question.room), tuple(steps))


def relax(relaxation: RelaxedConstraint, seconds: float, programs: FormPrograms) -> RelaxedStep:
    """Search with one constraint relaxed, beside the seconds of a layout."""
    choice = fastest_on(relaxation.question, programs if relaxation.reuses else None)
    took = inf if choice is None else choice.seconds / relaxation.batches
    return RelaxedStep(relaxation.kind, relaxation.step, choice, took, seconds - took)


def relaxations(question: PlanQuestion) -> Iterator[RelaxedConstraint]:
    """Yield each constraint of a question, relaxed: memory, sizes that the model divides into, links by level, the
    device, the batch, and the restrictions that were asked for."""
    yield from memory_relaxations(question)
    for name in LIFTED_FIELDS:
        yield RelaxedConstraint("sizes", f"{name} that any ranks divide", replace(question, lifted=(name,)))
    yield from machine_relaxations(question)
    yield RelaxedConstraint("batch", "twice the batch", replace(question, batch=TWICE * question.batch), TWICE, False)
    yield from asked_relaxations(question)


def memory_relaxations(question: PlanQuestion) -> Iterator[RelaxedConstraint]:
    """Yield more memory of a device."""
    steps = {
        "the memory of one more device, shared": question.room * (1 + 1 / question.devices),
        f"{100 * MORE_MEMORY:.0f} % more memory": question.room * (1 + MORE_MEMORY),
        "memory without a limit": UNBOUNDED,
    }
    for step, room in steps.items():
        yield RelaxedConstraint("memory", step, replace(question, room=room))


def machine_relaxations(question: PlanQuestion) -> Iterator[RelaxedConstraint]:
    """Yield twice the bandwidth of each level of links and of memory, and twice the rate of products."""
    changes = {
        f"twice the bandwidth of {link.name}": ("links", partial(scale_links, bandwidth=TWICE, first=at, last=at + 1))
        for at, link in enumerate(question.machine.links)
    }
    changes["twice the bandwidth of memory"] = "device", partial(scale_memory, by=TWICE)
    changes["twice the rate of products"] = "device", partial(scale_products, by=TWICE)
    for step, (kind, change) in changes.items():
        yield RelaxedConstraint(kind, step, replace(question, machine=change(question.machine)), reuses=False)


def asked_relaxations(question: PlanQuestion) -> Iterator[RelaxedConstraint]:
    """Yield the question without one of the restrictions that were asked for, and a stated layout without each of its
    sizes and choices."""
    asked = partial(RelaxedConstraint, reuses=False)
    if question.max_tp is not None:
        yield asked("--max-tp", f"tp beyond {question.max_tp}", replace(question, max_tp=None))
    if question.schedule is not None:
        yield asked("--schedule", f"other schedules than {question.schedule}", replace(question, schedule=None))
    if question.no_ring:
        yield asked("--no-ring", "keys round a ring", replace(question, no_ring=False))
    if question.stack is not None:
        step = f"choices that {question.stack.title} lacks"
        yield asked("--stack", step, replace(question, any_form=True))
    if len(question.fixed) > 1:
        yield asked("layout", "any layout", replace(question, fixed=()))
    for name, number in question.fixed:
        others = tuple(pair for pair in question.fixed if pair[0] != name)
        yield asked("layout", f"{name.replace('_', '-')} other than {number}", replace(question, fixed=others))


def fullest_stage(choice: PlanChoice, room: float) -> StageMemory:
    """Return the memory of the fullest stage: by simulation the stage, by formula the parts."""
    sizes = choice.sizes
    parts = {name: float(size) for name, size in choice.prediction.memory.items()}
    largest = dict(sorted(parts.items(), key=lambda part: -part[1]))
    stages = sizes["pp"]
    stage = 1
    if stages > 1 and "caches" not in parts:  # a forward pass saves nothing that stages differ in
        peaks = run_stages(choice, micro_batches=FEWEST_ROUNDS * stages).ran.peaks
        stage = 1 + max(range(stages), key=peaks.__getitem__)
    return StageMemory(stage, stages, choice.bytes, room, largest)
