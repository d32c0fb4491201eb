"""Exported files beside their program: the checks of `opmatrix verify FILE`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import shown
from formats.host.threads import threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Numeric
from opmatrix.exports.cached_graph import ExportedCache, find_caches, read_cached
from opmatrix.exports.exported_files import CACHES, read_origin
from opmatrix.exports.program_graph import ProgramGraph, read_program
from opmatrix.exports.runtimes import RUNTIMES, Run, Runtime, make_feed, pad_rows, runtime_of
from opmatrix.files.loading import list_points
from opmatrix.inference.text import sentences
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import least_limits
from rewrites.metrics.check_table import CLAIMED, Check, judged

TEXTS_COMPARED = 12  # texts of a comparison, one token among them
LONGEST_DRAWN = 64  # tokens of a text of a program without a tokenizer
FLOAT32_ERROR = 1e-5  # largest relative difference of an export in float32
STEPPED = 8  # tokens behind a prompt that a comparison of an export with caches steps over
ROUNDINGS = 3.0  # times that an export with rounded rows may differ as the program's own float32 run does


UNROUNDED, BY_PROGRAM, BY_RUNTIME = "float32", "program", "runtime"  # who rounds rows of an export


class ComparedExport(NamedTuple):
    """Relative differences of an export on ragged texts: from the program, the largest allowed; and of texts alone from
    the same texts in a batch, with the number that differ beyond float32."""

    error: float
    allowed: float
    alone: float
    moved: int
    texts: int

    @property
    def agrees(self) -> bool:
        """True if the export computes the program, texts alone as in a batch."""
        return self.error <= self.allowed and self.alone <= self.allowed


def ragged_rows(program: Program) -> list[list[int]]:
    """Return token ids of texts of many lengths: shipped sentences, or drawn ids for a program without a tokenizer."""
    limits = least_limits(program.schedule.calls)
    if program.meta.get("tokenizer"):
        texts = sentences()[:: len(sentences()) // (TEXTS_COMPARED - 1)][: TEXTS_COMPARED - 1]
        rows = [row.tolist() for row in np.split(*split_of(program.tokenizer.encode(texts)))]
    else:
        rng, most = np.random.default_rng(0), min(LONGEST_DRAWN, limits.get("positions", LONGEST_DRAWN))
        lengths = rng.integers(1, most + 1, TEXTS_COMPARED - 1)
        rows = [rng.integers(0, limits["tokens"], length).tolist() for length in lengths]
    return [*rows, rows[0][:1]]


def split_of(batch: Batch) -> tuple[Numeric, Numeric]:
    """Return the tokens of a batch, and the places where its sentences after the first begin."""
    return batch.tokens, batch.starts[1:-1]


def run_rows(run: Run, inputs: list[str], rows: list[list[int]]) -> list[Numeric]:
    """Return the output of an export for each text, without padding."""
    ids, mask = pad_rows(rows)
    output = run(make_feed(inputs, ids, mask))[0]
    by_token = output.ndim > 2
    return [each[: len(row)] if by_token else each[None] for each, row in zip(output, rows, strict=True)]


def step_rows(run: Run, inputs: list[str], rows: list[list[int]], caches: Sequence[ExportedCache]) -> list[Numeric]:
    """Return the output of an export with caches for each text: of a prompt, padded before it, then token by token over
    the caches that it left. A text that has ended is followed by padding."""
    prompts = [row[: max(1, len(row) - STEPPED)] for row in rows]
    longest = max(map(len, prompts))
    valid = np.zeros((len(rows), longest + STEPPED), bool)
    for row, prompt, filled in zip(rows, prompts, valid, strict=True):
        begins = longest - len(prompt)
        filled[begins : begins + len(row)] = True
    ids = np.zeros(valid.shape, np.int64)
    ids[valid] = np.concatenate(rows)
    held = {cache.past: cache.zeros(len(rows)) for cache in caches}
    parts, begun = list[Numeric](), 0
    for end in range(longest, longest + STEPPED + 1):
        mask = valid[:, :end].astype(np.int64)
        output, *present = run(make_feed(inputs, ids[:, begun:end], mask, held))
        held = {cache.past: rows for cache, rows in zip(caches, present, strict=True)}
        parts.append(output)
        begun = end
    if parts[0].ndim > 2:
        return [rows[filled] for rows, filled in zip(np.concatenate(parts, 1), valid, strict=True)]
    stepped = valid[:, longest:].sum(1)  # an output of one row a text: the row behind its last token
    return [parts[count][at : at + 1] for at, count in enumerate(stepped)]


def rounding_of(read: ProgramGraph) -> str:
    """Return who rounds rows of an export: nobody, the export as its program does, or, for weights that are stored as
    whole numbers, perhaps the runtime too."""
    return BY_RUNTIME if read.stored else BY_PROGRAM if read.multiplied else UNROUNDED


def compare_export(
    run: Run, program: Program, inputs: list[str], rounding: str, caches: Sequence[ExportedCache] = ()
) -> ComparedExport:
    """Compare an export with its program. Without rounded rows it is the program's numbers in float32. With rows that
    are rounded as in the program it may differ from the program's meaning as float32 does that rounds a level to its
    neighbour: by some times what the program's own run differs. Where the runtime rounds, it may differ from the
    nearer of the program's two meanings, with its rounding and without, by no more than these from one another."""
    rows = ragged_rows(program)

    def compute(rows: list[list[int]]) -> list[Numeric]:
        """Return the outputs of texts, over caches where the export has them."""
        return step_rows(run, inputs, rows, caches) if caches else run_rows(run, inputs, rows)

    together = compute(rows)
    alone = [compute([row])[0] for row in rows]
    wanted = program.exact(rows, rounded=rounding == BY_PROGRAM)
    allowed = FLOAT32_ERROR
    if rounding == BY_PROGRAM:
        allowed = max(allowed, ROUNDINGS * relative_norm(program.run(rows), wanted))
    outputs = np.concatenate(together)
    error = relative_norm(outputs, wanted)
    if rounding == BY_RUNTIME:
        rounded = program.exact(rows)
        error, allowed = min(error, relative_norm(outputs, rounded)), max(allowed, relative_norm(rounded, wanted))
    apart = [relative_norm(one, other) for one, other in zip(alone, together, strict=True)]
    moved = sum(each > FLOAT32_ERROR for each in apart)
    return ComparedExport(error, allowed, max(apart), moved, len(rows))


def relative_norm(computed: Numeric, wanted: Numeric) -> float:
    """Return the norm of a difference, relative to that of the wanted numbers; infinite for other shapes."""
    if computed.shape != wanted.shape or not np.isfinite(computed).all():
        return float("inf")
    return float(np.linalg.norm(computed - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))


def of_export(file: Path, place: Path | None, own: Path | None) -> list[Check]:
    """Return the checks of an exported file and its program, which is in a directory or in its front. Raises InputError
    for a file that cannot be read, without a directory, and without a runtime that can run the file."""
    origin = read_origin(file)
    if place is None:
        raise InputError(f"{shown(file)}: give its program: --program DIR, the directory that it was exported from")
    program = program_of(origin.get("program"), place, own)
    recorded = str(origin.get("program"))
    if program is None:
        return [judged("program", f"{shown(place)} and its front hold other ones", recorded, False)]
    runtime = runtime_for(file, origin)
    rounding = origin.get("rows", UNROUNDED)
    if rounding not in (UNROUNDED, BY_PROGRAM, BY_RUNTIME):
        return [judged("rows", f"{rounding!r:.40}", f"{UNROUNDED}, {BY_PROGRAM} or {BY_RUNTIME}", False)]
    over_caches = origin.get(CACHES) is True
    inputs = list((read_cached if over_caches else read_program)(program).inputs)
    caches = [*find_caches(program).values()] if over_caches else []
    compared = compare_export(runtime.open(file, threads()), program, inputs, str(rounding), caches)
    here, there = f"{runtime.name} {runtime.version}", str(origin.get("runtime", ""))
    timed = Check("runtime", here, f"timed in {there}" if there else "not timed", CLAIMED)
    return [judged("program", recorded, "its digest", True), timed, *describe_compared(compared)]


def describe_compared(compared: ComparedExport) -> list[Check]:
    """Return the checks of a comparison."""
    moved = f", {compared.moved} of them beyond {FLOAT32_ERROR:g}: levels at a tie" if compared.moved else ""
    return [
        judged(
            "outputs",
            f"{compared.texts} texts off by {compared.error:.2g}",
            f"{compared.allowed:.2g}",
            compared.error <= compared.allowed,
        ),
        judged(
            "alone",
            f"texts alone and in a batch differ by {compared.alone:.2g} at most{moved}",
            f"{compared.allowed:.2g}",
            compared.alone <= compared.allowed,
        ),
    ]


def program_of(digest: object, place: Path, own: Path | None) -> Program | None:
    """Return the program with a digest: that of a directory, or one of its front. None if none has it. Raises
    InputError for a directory without a program."""
    for directory in (place, *list_points(place).values()):
        program = Program.load(directory, laws=own)
        if program.hash == digest:
            return program
    return None


def runtime_for(file: Path, origin: dict[str, object]) -> Runtime:
    """Return the runtime that a file was timed in, or else the first that runs such files."""
    named = str(origin.get("runtime", "")).partition(" ")[0]
    fitting = [runtime.name for runtime in RUNTIMES.values() if runtime.ending == file.suffix]
    return runtime_of(named if named in fitting else fitting[0])
