"""Attention of a step over caches of latent rows, beside the same over keys and values of every head: one layer of
DeepSeek-V2-Lite's widths, random weights, without experts."""

from collections.abc import Iterator, Sequence
from math import prod
from statistics import median, quantiles
from typing import Any

from lib.command import Figure, cell, say, tabled

import numpy as np

from formats.host.host import uncached
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.models import with_head
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.phased import Generation
from rewrites.opened import Opened
from rewrites.workload.workload import draw_workload

WORDS, HELD = 512, 16  # HELD: rows of a cache beside the context
COLUMNS = "form", "row_numbers", "attention_ms", "low", "high", "step_ms", "low", "high"
LITE = dict(  # config.json of DeepSeek-V2-Lite, one layer, a narrow unit in place of the experts
    model_type="deepseek_v2",
    vocab_size=WORDS,
    hidden_size=2048,
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=16,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=2,
    num_experts_per_tok=1,
    n_shared_experts=1,
    moe_intermediate_size=8,
    first_k_dense_replace=1,
    rms_norm_eps=1e-6,
)
ABSORBING = "absorb_beside", "keys_hold_values"
OF_CACHES = "append", "attention_cached"


def layer_of(context: int) -> Operator:
    """The model, of weights that keep the size of rows."""
    rng = np.random.default_rng(0)

    def at(name: str, *shape: int) -> Data:
        gain = 1.0 if "norm" in name else 0.0
        return Data(rng.normal(gain, shape[-1] ** -0.5, shape).astype(np.float32), name)

    return with_head(LITE | dict(max_position_embeddings=context + HELD), at)


def form_of(program: Program) -> str:
    """The form of a program, by the numbers of a row of its caches."""
    numbers = numbers_of(program)
    return {576: "absorbed", 16 * 320: "expanded"}.get(numbers, f"caches of {numbers}")


def numbers_of(program: Program) -> int:
    """The numbers of a row of all caches."""
    decoder = program if program.state else program.decoder
    return sum(port.heads * port.columns for port in decoder.inputs if port.name in decoder.state)


class ByReads:
    """A machine by which attention over caches takes as long as it multiplies and reads, all else as long as it
    multiplies: it tells the forms apart on a busy machine, too."""

    def seconds(self, kernel: str, **sizes: float) -> float:
        if kernel == "attention_cached":
            return sizes["S2"] * sizes["d"] * (sizes["h"] / 5e10 + sizes["g"] / sizes["T"] / 1e9)
        return 1e-6 + prod(sizes.get(name, 1) for name in ("T", "n", "p", "h")) / 5e10


def find_program(operator: Operator, machine: Any, asked: Generation, without: Sequence[str] = ()) -> Program:
    """What a search finds for a request, without some laws."""
    laws = [law for law in EXACT_LAWS if law.name not in without]
    return Opened(operator, draw_workload(asked, operator), machine, laws, {}).structure(laws).program({})[0]


OTHERS = np.ones(uncached() // 4, np.float32)  # as large as what leaves no cache as it was


def read_others() -> None:
    """Read as much as other layers would have, so that caches come from memory."""
    OTHERS.sum()


class Stepping:
    """A program in a session behind some rows; the seconds of a step, and of its attention: caches, scores, values."""

    def __init__(self, program: Program, ids: Sequence[int]) -> None:
        self.program, self.context = program.decoder, len(ids)
        self.session = self.program.start(len(ids) + HELD)
        self.sequence = self.session.join()
        self.logits = self.session.step({self.sequence: ids[:-1]})[-1:]
        self.token = ids[-1:]
        self.attention, self.whole = list[float](), list[float]()

    def step(self) -> None:
        """Take the last token once more, and keep the seconds."""
        self.logits = self.session.step({self.sequence: self.token})
        read_others()
        batch, _ = self.session.kept[0]
        taken = self.program.schedule.timed(batch)
        calls = self.program.schedule.calls
        self.attention.append(sum(each for at, each in taken.items() if calls[at].kernel.name in OF_CACHES))
        self.whole.append(sum(taken.values()))
        self.session.rewind(self.sequence, self.context - 1)


def latent_steps(context: int, rounds: int, path: Any) -> Iterator[Figure]:
    """Print and write the table of both forms, and yield what it comes to."""
    operator, steps = layer_of(context), Generation(8, 2 * (context - 8))  # of this mean context
    ids = np.random.default_rng(0).integers(0, WORDS, context).tolist()
    forms = {
        form_of(program): Stepping(program, ids)
        for without in ((), ABSORBING)
        for program in [find_program(operator, ByReads(), steps, without)]
    }
    for turn in range(rounds + 1):
        for each in [*forms.values()][:: 1 - 2 * (turn % 2)]:
            each.step()
    absorbed, expanded = forms["absorbed"], forms["expanded"]
    off = abs(absorbed.logits - expanded.logits).max() / abs(expanded.logits).max()
    yield Figure("attention of a step, absorbed over expanded", ratio(absorbed, expanded), "x", most=0.35)
    yield Figure("logits of the absorbed form off those of the expanded", float(off), "", most=1e-4)
    table = [COLUMNS, *(row_of(name, each) for name, each in forms.items())]
    for line in table:
        print(" ".join(cell(each, 12) for each in line), flush=True)
    tabled(path, table)
    machine = this_machine()
    for asked, wanted in ((steps, "absorbed"), (Generation(context, 1), "expanded")):
        chosen = form_of(find_program(operator, machine, asked))
        say(f"chosen for {asked.said}: {chosen}")
        yield Figure(f"{asked}: the search finds the {wanted} form", float(chosen == wanted), "", least=1)


def row_of(name: str, each: "Stepping") -> tuple[object, ...]:
    """The row of a form: its caches, milliseconds of attention and of all kernels."""
    times = [1e3 * part for taken in (each.attention[1:], each.whole[1:]) for part in spread_of(taken)]
    return (name, numbers_of(each.program), *times)


def ratio(ours: Stepping, other: Stepping) -> float:
    """The median of the attention of one over that of the other."""
    return median(ours.attention[1:]) / median(other.attention[1:])


def spread_of(taken: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles."""
    low, middle, high = quantiles(taken)
    return middle, low, high
