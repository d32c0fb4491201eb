"""The work of `profile`: the seconds of a saved program by kind of step, as measured inside runs, beside the predicted
ones."""

from pathlib import Path
from statistics import median

import numpy as np

from formats.core.errors import InputError
from formats.host.quiet import Watch, warn_busy
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import ms, table
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from opmatrix.runtime.scheme import Running
from rewrites.lowering.price import Prices
from rewrites.report.by_operator import OPERATOR_FIGURES, measure_operators
from rewrites.workload.resolve import calibrated

HEADER = ["", "steps", "ms predicted", "measured", "share"]


def profile(
    directory: Path, sentences: int = 1, tokens: int = 128, rounds: int = 15, own: Path | None = None
) -> tuple[str, dict[str, object]]:
    """Return the table, and its figures, for sentences of drawn tokens. Raises InputError for a directory that is no
    program, and for a program whose inputs cannot be drawn."""
    program = Program.load(directory, laws=own)
    batch, watch = drawn(program, sentences, tokens), Watch()
    profiled = program.profile(batch, rounds)
    whole, machine = median(profiled.runs), calibrated(lambda *_: None)
    prices = Prices(Running.of(machine, batch.starts, program.stored_bytes), program.extents(batch))
    *steps, beside = measure_operators(program, profiled, prices)
    run = "a run", 0, beside[2] + sum(row[2] for row in steps), whole
    rows = [*steps, beside, run]
    lines = [[what, str(count or ""), ms(ahead), ms(seen), f"{seen / whole:.0%}"] for what, count, ahead, seen in rows]
    noise = warn_busy(watch.seen(), "measured times are too long", machine.marks)
    figures = [dict(zip(OPERATOR_FIGURES, row, strict=True)) for row in rows]
    text = "\n".join(
        [f"{directory}: {sentences} x {tokens} tokens, medians of {rounds} runs", *noise, table(lines, HEADER)]
    )
    return text, {"program": str(directory), "sentences": sentences, "tokens": tokens, "steps": figures}


def drawn(program: Program, sentences: int, tokens: int) -> Batch:
    """Draw sentences of tokens from the whole vocabulary."""
    limits = least_limits(program.schedule.calls)
    if program.inputs or "tokens" not in limits:
        raise InputError("profile: this program has matrix inputs, which cannot be drawn: call Program.profile(batch)")
    if tokens > (most := limits.get("positions", tokens)):
        raise InputError(f"--tokens {tokens}: the model has {most} positions")
    return Batch(np.random.default_rng(0).integers(0, limits["tokens"], (sentences, tokens)).tolist())
