"""Where the seconds of a saved program go: every kind of step, as measured inside runs, beside what its price says."""
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


def profile(directory: Path, sentences: int = 1, tokens: int = 128, rounds: int = 15,
            own: Path | None = None) -> tuple[str, dict[str, object]]:
    """The table, and its figures, for so many sentences of so many drawn tokens. Raises InputError for what is no
    program, or one whose inputs nobody can draw."""
    program = Program.load(directory, laws=own)
    batch, watch = drawn(program, sentences, tokens), Watch()
    found = program.profile(batch, rounds)
    whole, machine = median(found.runs), calibrated(lambda *_: None)
    prices = Prices(Running.of(machine, batch.starts, program.stored_bytes), program.extents(batch))
    *steps, beside = measure_operators(program, found, prices)
    run = "a run", 0, beside[2] + sum(row[2] for row in steps), whole
    rows = [*steps, beside, run]
    lines = [[what, str(count or ""), ms(ahead), ms(seen), f"{seen / whole:.0%}"] for what, count, ahead, seen in rows]
    noise = warn_busy(watch.seen(), "measured times are too long", machine.marks)
    figures = [dict(zip(OPERATOR_FIGURES, row, strict=True)) for row in rows]
    said = "\n".join([f"{directory}: {sentences} x {tokens} tokens, medians of {rounds} runs", *noise,
                      table(lines, HEADER)])
    return said, {"program": str(directory), "sentences": sentences, "tokens": tokens, "steps": figures}


def drawn(program: Program, sentences: int, tokens: int) -> Batch:
    """Sentences of tokens that are drawn from the whole vocabulary."""
    limits = least_limits(program.schedule.calls)
    if program.inputs or "tokens" not in limits:
        raise InputError("profile: this program reads matrices, and nobody draws these: give Program.profile yours")
    if tokens > (most := limits.get("positions", tokens)):
        raise InputError(f"--tokens {tokens}: the model has {most} positions")
    return Batch(np.random.default_rng(0).integers(0, limits["tokens"], (sentences, tokens)).tolist())
