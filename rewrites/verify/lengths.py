"""The lengths at which programs are checked, beside the sentences that they are judged by: the lengths that are timed,
one token, one less and one more than every border of a kernel's tiles or of a group of rows, and the longest length
that may occur, alone and behind another sentence.

Batches are made of the tokens of the sentences that a certificate holds, so their lengths determine them."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, pairwise, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.host.threads import limit, numbers_of_threads, on_threads, threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.term import Operator
from opmatrix.files.certified import MAX_INPUT_ROWS
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.recorded import Recorded, least_limits
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.scheme import GROUP_ROWS
from rewrites.verify.failure import VerificationError, name
from rewrites.verify.programs import ROUNDING, Errors, Meant, Outputs, allowed_rounding, launched, run_groups, step_kind
from rewrites.verify.routed import run_beside

MAX_LENGTH = 4096  # tokens of a sentence, unless the workload has longer ones
SAMPLED = 1024  # rows from which only some rows of a step are checked
TAIL = 8  # consecutive numbers of rows, for rests of tiles
DRAWN, MULTIPLES = 64, 8  # drawn rows beside borders; multiples of a border, at most
TIMED_LENGTHS = 8  # lengths of a workload's sentences, at most
ORACLE_WORK = 5e10  # multiplications of the oracle for a batch, about
ROW_WORK = 5e8  # multiplications of a step whose rows are all checked
RUN_WORK = 1e11  # multiplications of a whole run on very many rows
MAX_ROWS = MAX_INPUT_ROWS // 2  # rows of single sentences, together
GROUP_COUNT, LONG_COUNT = 3, 3  # groups of a batch of many short sentences; long sentences
MEMORY = 2**30  # bytes that a run of a length not timed may take
Near = dict[str, float]  # sentences, rows and relative error of a batch
Lengths = tuple[tuple[int, ...], ...]  # the lengths of the sentences of each batch


def lengths_of(programs: Sequence[Program], timed: Iterable[Batch], positions: int | None = None) -> Lengths:
    """Return the lengths of the batches on which these programs are checked, given the batches that are timed and the
    number of `positions` that sentences may have. Empty if batches cannot be made: of relations, inputs, or a
    session's caches."""
    timed = [*timed]
    if any(program.inputs or program.state or program.schedule.elsewhere for program in programs):
        return ()
    if any(batch.alone for batch in timed):
        return ()
    lengths = sorted({int(n) for batch in timed for n in np.diff(batch.starts)})
    lengths = [lengths[i] for i in {*np.linspace(0, len(lengths) - 1, TIMED_LENGTHS).astype(int).tolist()}]
    longest = find_longest(programs, max(lengths), positions)
    near = {n for border in (*borders(programs), GROUP_ROWS) for n in (border - 1, border, border + 1)}
    wanted = dict.fromkeys(n for n in (longest, longest - 1, 1, *reversed(lengths), *sorted(near)) if 1 <= n <= longest)
    singles = sorted(n for n, rows in zip(wanted, accumulate(wanted), strict=True) if rows <= MAX_ROWS)
    short, several = cycle([n for n in singles if 2 * n <= GROUP_ROWS]), list[int]()
    while sum(several) <= GROUP_COUNT * GROUP_ROWS:
        several.append(next(short))
    batches = [*((n,) for n in singles), tuple(several)]
    batches.append((longest,) * LONG_COUNT if LONG_COUNT * longest <= MAX_LENGTH else (1, longest))
    return tuple(batch for batch in batches if len(batch) == 1 or fits(programs, batch))


def find_longest(programs: Sequence[Program], timed: int, positions: int | None) -> int:
    """Return the longest sentence: all positions, but no more than MAX_LENGTH and the longest timed one; less if a run
    would need too much memory, or a step cannot be read in some rows alone."""
    limits = [positions, *(least_limits(program.schedule.calls).get("positions") for program in programs)]
    longest = min([max(timed, MAX_LENGTH), MAX_ROWS // 2, *(most for most in limits if most is not None)])
    kernels = [call.kernel for program in programs for call in program.schedule.calls]
    if any(kernel.row_mixing and kernel.restrict is None for kernel in kernels):
        longest = min(longest, max(timed, SAMPLED))
    while longest > timed and not fits(programs, (longest,)):
        longest = max(timed, longest // 2)
    return longest


def fits(programs: Iterable[Program], lengths: Sequence[int]) -> bool:
    """True if the programs need no more memory than MEMORY on sentences of these lengths."""
    batch = Batch([np.zeros(length, int) for length in lengths])
    return all(program.peak_bytes(batch) <= MEMORY for program in programs)


def borders(programs: Iterable[Program]) -> set[int]:
    """Return the numbers of rows, or of tokens of a sentence, at which some kernel takes another path."""
    return {
        border for program in programs for call in program.schedule.calls for border in call.kernel.borders(call.bound)
    }


def batches_at(lengths: Sequence[Sequence[int]], sentences: Batch) -> list[Batch]:
    """Make batches of these lengths, from the tokens of these sentences repeated."""

    def made(each: Sequence[int]) -> Batch:
        """Make a batch of these lengths, filled with the tokens again and again."""
        cuts = np.cumsum(each)[:-1]
        return Batch(
            np.split(np.resize(sentences.tokens, sum(each)), cuts),
            np.split(np.resize(sentences.kinds, sum(each)), cuts),
        )

    return [made(batch_lengths) for batch_lengths in lengths]


@dataclass
class Steps:
    """The steps that were checked, whichever program has them: the kernel, the forms of its operands, its attributes,
    and the batch. Every step is checked on single sentences of the lengths in `all`, and of those at a border of its
    own kernel; on several sentences together if a row depends on others. A step that works row by row is evaluated in
    float64 once, on the longest sentence, and its rows are repeated to reach the numbers of rows of the other batches.
    """

    lengths: Lengths
    all: frozenset[int]
    seen: set[Hashable] = field(default_factory=set)
    nearest: float = 0.0
    run: set[bytes] = field(default_factory=set)

    def takes_whole(self, program: Program, batch: Batch, fresh: set[int]) -> bool:
        """Return True once for each batch of very many rows: one program runs on it as a whole, if its whole run is
        checked there and is of at most RUN_WORK; the others have only their `fresh` steps and what these read."""
        whole = self.runs(batch, fresh) and batch.rows * multiplications(program) <= RUN_WORK
        first = whole and batch.starts.tobytes() not in self.run
        if first:
            self.run.add(batch.starts.tobytes())
        return first

    @classmethod
    def at(cls, lengths: Lengths, programs: Sequence[Program], timed: Iterable[Batch] = ()) -> "Steps":
        """Create it for these programs. The lengths in `all` are one token, the timed lengths, the two longest, and
        every length that is at no border."""
        alone = [batch[0] for batch in lengths if len(batch) == 1]
        near = {border + more for border in (*borders(programs), GROUP_ROWS) for more in (-1, 0, 1)}
        return cls(
            lengths,
            frozenset(
                {1, *alone[-2:], *({*alone} - near), *(int(n) for batch in timed for n in np.diff(batch.starts))}
            ),
        )

    def fresh(self, program: Program, batch: Batch) -> set[int]:
        """Return the steps of a program that are to be checked on this batch and were not yet, each kind once."""
        asked = [(at, call) for at, call in enumerate(calls(program)) if self.asks(call, batch)]
        kinds = {kind_of(call, batch): at for at, call in reversed(asked)}
        return {at for kind, at in kinds.items() if kind not in self.seen}

    def asks(self, call: Call, batch: Batch) -> bool:
        """True if the step is to be checked on this batch."""
        if call.kernel.view or call.kernel.by_rows:
            return len(batch) == 1 and batch.rows == max(map(max, self.lengths))
        return len(batch) > 1 or self.counts(call, batch.rows)

    def runs(self, batch: Batch, fresh: set[int]) -> bool:
        """True if the whole run of a program is checked on this batch; on very many rows only if it has `fresh` steps
        there."""
        shorter = (longest := max(map(max, self.lengths))) - 1  # for the rows that tiles leave over, not for runs
        several = len(batch) > 1 and (LONG_COUNT * longest <= MAX_LENGTH or np.diff(batch.starts).max() < longest)
        return bool(fresh or batch.rows < SAMPLED) and (several or batch.rows in self.all - {shorter})

    def counts(self, call: Call, length: int) -> bool:
        """True if a sentence of this length is to be checked for the step."""
        return length in self.all or any(abs(length - border) < 2 for border in call.kernel.borders(call.bound))

    def noted(self, program: Program, batch: Batch) -> None:
        """Record that the program's steps have been checked on this batch."""
        self.seen |= {kind_of(call, batch) for call in calls(program)}

    def look(self, shown: str, call: Call, arguments: dict[str, Any], found: np.ndarray, batch: Batch) -> None:
        """Check a step on its own operands, on telling ones, and on other numbers of rows. Raises VerificationError."""
        some, whole = rows_looked_at(call, batch), len(batch) > 1 or batch.rows in self.all
        meant = Meant.of(call, arguments, batch, None if whole and reads_all(call, batch) else some)
        shares = [meant.compared(shown, found, batch.rows)]
        compare_threads(shown, call, arguments, found, batch.rows)
        if call.kernel.row_mixing and call.kernel.declares_telling:
            operands = call.kernel.telling(call.kernel.record(**arguments), np.random.default_rng(0))
            for more in takewhile(lambda each: "batch" not in each, operands):
                out = launched(call, told := arguments | more, found.shape)
                shares.append(Meant.of(call, told, batch, some).compared(shown, out, batch.rows))
        if call.kernel.by_rows and call.by_tokens:
            together = {
                sum(batch_lengths)
                for batch_lengths in self.lengths
                if batch_lengths[1:] and batch_lengths != (1, batch.rows)
            }
            for count in together | {n for n, *more in self.lengths if not more and self.counts(call, n)}:
                at = np.arange(count) % batch.rows
                repeated = arguments | {name: np.ascontiguousarray(arguments[name][at]) for name in call.values}
                out = launched(call, repeated, (count, *found.shape[1:]))
                shares.append(meant.repeated(count, batch.rows).compared(shown, out, count))
        if len(batch) == 1 and batch.rows == max(map(max, self.lengths)):
            shares += tails(shown, call, arguments, meant, batch)
        self.nearest = max(self.nearest, *shares)


def compare_threads(shown: str, call: Call, arguments: dict[str, Any], found: np.ndarray, rows: int) -> None:
    """Check that a step has the same bits on every number of threads; with very many rows on one, two and all. Raises
    VerificationError."""
    if call.kernel.view or (rows >= SAMPLED and not call.kernel.launches):
        return
    every = numbers_of_threads()
    for count in every if rows < SAMPLED else sorted({1, min(2, every[-1]), every[-1]}):
        with on_threads(count):
            out = launched(call, arguments, found.shape)
        if not np.array_equal(out, found, equal_nan=True):
            raise VerificationError(3, shown, f"on {count} threads it has other bits", rows=rows)


def tails(shown: str, call: Call, arguments: dict[str, Any], meant: Meant, batch: Batch) -> Iterator[float]:
    """Check a step on some consecutive numbers of rows, as many rows as are soon computed: on the last rows of a
    sentence if the kernel works row by row, else on its first rows. Yields shares of the bound. Raises
    VerificationError."""
    if not call.by_tokens or call.kernel.restrict is None or call.kernel.view:
        return
    weight, alone = getattr(call.bound, "weight", None), call.kernel.by_rows
    top = min(batch.rows, SAMPLED, int(ROW_WORK // (1 if weight is None else math.prod(weight.shape))))
    for count in range(max(1, top - TAIL + 1), top + 1):
        rows = slice(batch.rows - count, None) if alone else slice(count)
        operands = arguments | {name: arguments[name][rows] for name in call.values}
        part, some = Batch([batch.tokens[rows]], [batch.kinds[rows]]), np.arange(max(0, count - TAIL), count)
        if call.kernel.batched:
            operands["batch"] = part
        last = meant.last(count, batch.rows) if alone else Meant.of(call, operands, part, some)
        yield last.compared(shown, launched(call, operands, call.shape.at(part.extents())), count)


def calls(program: Program) -> list[Call]:
    """Return the calls of a program's steps, without its inputs."""
    return program.schedule.calls[program.schedule.first :]


def kind_of(call: Call, batch: Batch) -> Hashable:
    """Return a key of a step on a batch, without its numbers."""
    return batch.starts.tobytes(), step_kind(call)


def verify_lengths(program: Program, batches: Sequence[Batch], steps: Steps) -> dict[str, float]:
    """Check on each batch the steps that were not yet checked against the meaning of their kernels, within their
    bounds: some rows of many, and telling operands too. On lengths in `all` compare the whole run, as a user runs it,
    with its steps to the bit. On very many rows one program of at most RUN_WORK runs as a whole; the others without
    layers equal to earlier ones. Raises VerificationError."""
    for batch in batches:
        fresh, looked = steps.fresh(program, batch), program
        if fresh and batch.rows >= SAMPLED and not steps.takes_whole(program, batch, fresh):
            looked = shortened(program, fresh)
            fresh = steps.fresh(looked, batch)
        segments, first = looked.schedule.segments, looked.schedule.first
        called = {at - first for segment in segments if not isinstance(segment, Recorded) for at in segment.steps}
        # unrecorded steps take the whole batch, recorded ones groups of it: so they are checked separately
        apart = len(batch) > 1 and len(segments) > 1
        if whole := (fresh & called if apart else set()):
            walk(looked, batch, whole, steps, until=max(whole) + 1)
        for part in batch.pieces(GROUP_ROWS) if apart else [batch]:
            if steps.runs(batch, fresh):
                compare_run(looked, part, fresh, steps)
            elif fresh:
                walk(looked, part, fresh, steps, until=max(fresh) + 1)
        steps.noted(program, batch)
    return {"batches": len(batches), "nearest": steps.nearest}


def shortened(program: Program, asked: set[int]) -> Program:
    """Return the program without stretches of steps that are not in `asked`. If only the last value of a stretch is
    read behind it, and an earlier value has its shape, the earlier value replaces it. So one of several equal layers
    is left."""
    bound, steps = calls(program), program.steps
    at = {step.output: i for i, step in enumerate(steps)}
    last = [*range(len(steps))]
    for i, step in enumerate(steps):
        for operand in step.operands.values():
            if operand in at:
                last[at[operand]] = i
    for output in program.outputs.values():
        last[at[output]] = len(steps)
    left, instead, here = list[Step](), dict[str, str](), 0
    while here < len(steps):
        step = steps[here]
        operands = {operand: instead.get(value, value) for operand, value in step.operands.items()}
        left.append(Step(step.kernel, operands, step.attributes, step.output))
        end = end_of_stretch(here, bound, last, asked)
        if end > here:
            instead[steps[end].output] = step.output
        here = end + 1
    outputs = {output: instead.get(value, value) for output, value in program.outputs.items()}
    read = {value for step in left for value in step.operands.values()}
    constants = {value: constant for value, constant in program.constants.items() if value in read}
    meta = {"model": name(program)}
    return Program(left, constants, outputs, meta, inputs=program.inputs)


def end_of_stretch(begin: int, bound: Sequence[Call], last: Sequence[int], asked: set[int]) -> int:
    """Return the last step whose value can be replaced by that of step `begin`, so that all steps between are left
    out; `begin` if there is none."""
    end, read = begin, 0
    for at in range(begin + 1, len(bound)):
        if at in asked:
            break
        if read <= at and bound[at].shape == bound[begin].shape and not bound[begin].kernel.view:
            end = at
        read = max(read, last[at])
    return end


def compare_run(program: Program, batch: Batch, fresh: set[int], steps: Steps) -> None:
    """Walk the steps, group by group if all of them are recorded, and compare a whole run with them. An unrecorded
    step takes the whole batch, whose rows may depend on one another. Raises VerificationError."""
    workers, last = threads(), []
    parts = run_groups(program, batch, workers)
    for part in parts:
        with limit(workers if len(parts) == 1 else 1):
            last.append(walk(program, part, fresh, steps))
    if not np.array_equal(program.run(batch), np.concatenate(last), equal_nan=True):
        raise VerificationError(
            3, name(program), "its run differs from its steps", rows=batch.rows, sentences=len(batch)
        )


def stated_at(program: Program, lengths: Lengths, timed: Iterable[Batch]) -> Lengths:
    """Return the lengths of single sentences for which errors are reported: one token, the timed lengths, and the
    longest that the float64 oracle reads soon enough."""
    most = max(1, ORACLE_WORK // multiplications(program))
    within = [batch for batch in lengths if len(batch) == 1 and batch[0] <= most]
    told = {1, *(int(n) for batch in timed for n in np.diff(batch.starts)), max(within)[0]}
    return tuple(batch for batch in within if batch[0] in told)


def multiplications(program: Program) -> int:
    """Return the numbers of a program's matrices, which a row multiplies about once; 1 at least."""
    shapes = (constant.shape for constant in program.constants.values() if len(constant.shape) == 2)
    return max(1, sum(math.prod(shape) for shape in shapes))


def errors_at(
    programs: Sequence[tuple[Program, bool]], model: Operator, batches: Sequence[Batch], wanted: Outputs
) -> list[list[Near]]:
    """Return the errors of each program against the model's outputs `wanted`, batch by batch. Each program is paired
    with whether it is exact. `relative` compares both routed by themselves, `along` on the routes that the program
    took."""

    def near(program: Program, exact: bool, batch: Batch, rows: NDArray[np.floating]) -> Near:
        """Compare a program with the model on one batch, both by itself and along the program's routes."""
        beside = run_beside(program, model, [batch], [rows], exact=exact)
        free, along = (Errors.of(beside.found, wanted).relative for wanted in (beside.alone, beside.wanted))
        return {"sentences": len(batch), "rows": batch.rows, "relative": free, "along": along}

    return [[near(*program, *pair) for pair in zip(batches, wanted, strict=True)] for program in programs]


def verify_rounding(
    program: Program, found: Sequence[Near], imported: Sequence[Near], model: Operator, batches: Sequence[Batch]
) -> None:
    """Compare an exact program's rounding, batch by batch, with that of the import. Raises VerificationError."""
    for mine, theirs, batch in zip(found, imported, batches, strict=True):
        off, base = mine["along"], theirs["along"]
        if not off <= allowed_rounding(off, base, model, [batch]):
            raise VerificationError(
                3,
                name(program),
                "it rounds more than the imported program",
                relative=off,
                imported=base,
                times=ROUNDING,
                sentences=len(batch),
                rows=batch.rows,
            )


def walk(program: Program, batch: Batch, fresh: set[int], steps: Steps, until: int | None = None) -> np.ndarray:
    """Return the output of a program run step by step, up to step `until` if that is set; fresh steps are checked."""
    last: NDArray[np.float32] | None = None
    for at, (call, arguments, result) in enumerate(program.schedule.walk(batch, until=until)):
        if at in fresh:
            steps.look(program.steps[at].show(program.constants), call, arguments, result, batch)
        if program.steps[at].output == program.output:
            last = result
    return np.asarray(last)


def reads_all(call: Call, batch: Batch) -> bool:
    """True if all rows of a step's result are checked: if there are few, or if the kernel works row by row and that
    does not take too long."""
    weight = getattr(call.bound, "weight", None)
    work = batch.rows * (1 if weight is None else math.prod(weight.shape))
    return batch.rows < SAMPLED or not (call.kernel.row_mixing or work > ROW_WORK)


def rows_looked_at(call: Call, batch: Batch) -> NDArray[np.int64]:
    """Return some rows of a step's result: the first and the last TAIL of each sentence, both sides of its borders, and
    drawn ones."""
    rows = {*np.random.default_rng(batch.rows).integers(0, batch.rows, DRAWN).tolist()}
    for low, high in pairwise(batch.starts.tolist()):
        rows |= {*range(low, min(high, low + TAIL)), *range(max(low, high - TAIL), high)}
        for border in call.kernel.borders(call.bound):
            times = np.unique(np.linspace(1, max(1, (high - low - 1) // border), MULTIPLES).astype(int))
            rows |= {at for n in times for at in (low + n * border - 1, low + n * border) if at < high}
    return np.array(sorted(rows), np.int64)


def describe_lengths(lengths: Sequence[Sequence[int]]) -> str:
    """Describe the range of lengths, from the shortest to the longest sentence."""
    every = [n for batch in lengths for n in batch]
    return f"sentences of {min(every)} to {max(every)} tokens"


def format_errors(found: Sequence[Mapping[str, object]]) -> str:
    """Format errors, batch by batch, as words."""

    def named(one: Mapping[str, object]) -> str:
        """Name a batch by its sentences and tokens."""
        rows = f"{one.get('rows')} token{'s' * (one.get('rows') != 1)}"
        return rows if one.get("sentences") == 1 else f"{one.get('sentences')} sentences of {rows}"

    return ", ".join(f"{one.get('relative'):.2g} on {named(one)}" for one in found)
