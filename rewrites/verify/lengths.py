"""The lengths at which programs are looked at, beside the sentences that they are judged by: what is timed, one token,
one less and one more than whatever crosses a tile of a kernel or a group of rows, and the longest that is ever given,
alone and behind another one.

Batches are made of the tokens of the sentences that a certificate holds, so that their lengths say all of them."""
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

MAX_LENGTH = 4096                                           # tokens of a sentence, unless the workload has longer ones
SAMPLED = 1024                                              # rows from which steps are looked at in some of them
TAIL = 8                                                    # numbers of rows one after another: what tiles leave over
DRAWN, MULTIPLES = 64, 8                                    # rows beside borders; of a border's multiples those at most
TIMED_LENGTHS = 8                                           # of a workload's sentences
ORACLE_WORK = 5e10                                                 # multiplications of the oracle for a batch, about
ROW_WORK = 4e9                                              # multiplications of a step of which all rows are looked at
MAX_ROWS = MAX_INPUT_ROWS // 2                              # of sentences alone, of which a certificate says all
GROUP_COUNT, LONG_COUNT = 3, 3                              # groups of a batch of many; long sentences of one of few
MEMORY = 2 ** 30                                            # bytes that a run may need beyond what is timed
Near = dict[str, float]                                     # how many sentences and rows, and how far off their output
Lengths = tuple[tuple[int, ...], ...]                       # of each batch those of its sentences


def lengths_of(programs: Sequence[Program], timed: Iterable[Batch], positions: int | None = None) -> Lengths:
    """The lengths of the batches that these programs are looked at, where these batches are timed and sentences have no
    more positions than those. None where batches cannot be made: of relations, inputs, a session's caches."""
    timed = [*timed]
    if any(program.inputs or program.state or program.schedule.elsewhere for program in programs): return ()
    if any(batch.alone for batch in timed): return ()
    own = sorted({int(n) for batch in timed for n in np.diff(batch.starts)})
    own = [own[i] for i in {*np.linspace(0, len(own) - 1, TIMED_LENGTHS).astype(int).tolist()}]
    longest = find_longest(programs, max(own), positions)
    near = {n for border in (*borders(programs), GROUP_ROWS) for n in (border - 1, border, border + 1)}
    wanted = dict.fromkeys(n for n in (longest, longest - 1, 1, *reversed(own), *sorted(near)) if 1 <= n <= longest)
    singles = sorted(n for n, rows in zip(wanted, accumulate(wanted), strict=True) if rows <= MAX_ROWS)
    short, several = cycle([n for n in singles if 2 * n <= GROUP_ROWS]), list[int]()
    while sum(several) <= GROUP_COUNT * GROUP_ROWS: several.append(next(short))
    found = [*((n,) for n in singles), tuple(several)]
    found.append((longest,) * LONG_COUNT if LONG_COUNT * longest <= MAX_LENGTH else (1, longest))
    return tuple(each for each in found if len(each) == 1 or fits(programs, each))


def find_longest(programs: Sequence[Program], timed: int, positions: int | None) -> int:
    """The longest sentence: all positions, at most MAX_LENGTH or as long as those timed; less where a run would need
    too much memory, or a step cannot be read in some rows alone."""
    limits = [positions, *(least_limits(program.schedule.calls).get("positions") for program in programs)]
    longest = min([max(timed, MAX_LENGTH), MAX_ROWS // 2, *(each for each in limits if each is not None)])
    kernels = [call.kernel for program in programs for call in program.schedule.calls]
    if any(each.row_mixing and each.restrict is None for each in kernels):
        longest = min(longest, max(timed, SAMPLED))
    while longest > timed and not fits(programs, (longest,)): longest = max(timed, longest // 2)
    return longest


def fits(programs: Iterable[Program], lengths: Sequence[int]) -> bool:
    """Tell whether programs need no more memory than is allowed on sentences of these lengths."""
    batch = Batch([np.zeros(length, int) for length in lengths])
    return all(program.peak_bytes(batch) <= MEMORY for program in programs)


def borders(programs: Iterable[Program]) -> set[int]:
    """Rows, or tokens of a sentence, at which some kernel takes another path."""
    return {border for program in programs for call in program.schedule.calls
            for border in call.kernel.borders(call.bound)}


def batches_at(lengths: Sequence[Sequence[int]], sentences: Batch) -> list[Batch]:
    """Batches of these lengths, of the tokens of these sentences again and again."""
    def made(each: Sequence[int]) -> Batch:
        cuts = np.cumsum(each)[:-1]
        return Batch(np.split(np.resize(sentences.tokens, sum(each)), cuts),
                     np.split(np.resize(sentences.kinds, sum(each)), cuts))
    return [made(each) for each in lengths]


@dataclass
class Steps:
    """The steps that were looked at, whichever program has them: a kernel, what its operands are, its attributes, and
    the batch. Every step is looked at on single sentences of the lengths that count for `all`, and of those that cross
    a border of its own kernel; several together, where a row depends on others. Where each stands for itself, what it
    means is asked once, on the longest sentence, and its rows are multiplied as many at a time as anywhere."""

    lengths: Lengths
    all: frozenset[int]
    seen: set[Hashable] = field(default_factory=set)
    nearest: float = 0.0
    run: set[bytes] = field(default_factory=set)

    def first_run(self, batch: Batch) -> bool:
        """True once for a batch: of very many rows one program runs as a whole, of the others what is fresh."""
        first = batch.starts.tobytes() not in self.run
        self.run.add(batch.starts.tobytes())
        return first

    @classmethod
    def at(cls, lengths: Lengths, programs: Sequence[Program], timed: Iterable[Batch] = ()) -> "Steps":
        """For these programs: what counts for all is one token, what is timed, the two longest, and whatever else
        crosses no border."""
        alone = [each[0] for each in lengths if len(each) == 1]
        near = {border + more for border in (*borders(programs), GROUP_ROWS) for more in (-1, 0, 1)}
        return cls(lengths, frozenset({1, *alone[-2:], *({*alone} - near),
                                       *(int(n) for batch in timed for n in np.diff(batch.starts))}))

    def fresh(self, program: Program, batch: Batch) -> set[int]:
        """The steps of a program that are to be looked at on this batch and were not, each kind once."""
        asked = [(at, call) for at, call in enumerate(calls(program)) if self.asks(call, batch)]
        kinds = {kind_of(call, batch): at for at, call in reversed(asked)}
        return {at for kind, at in kinds.items() if kind not in self.seen}

    def asks(self, call: Call, batch: Batch) -> bool:
        """Whether such a step is to be looked at there."""
        if call.kernel.view or call.kernel.by_rows: return len(batch) == 1 and batch.rows == max(map(max, self.lengths))
        return len(batch) > 1 or self.counts(call, batch.rows)

    def runs(self, batch: Batch, fresh: set[int]) -> bool:
        """Whether a program's run is looked at on this batch, where these steps are: on very many rows only there."""
        shorter = (longest := max(map(max, self.lengths))) - 1               # than that: for what steps leave over
        several = len(batch) > 1 and (LONG_COUNT * longest <= MAX_LENGTH or np.diff(batch.starts).max() < longest)
        return bool(fresh or batch.rows < SAMPLED) and (several or batch.rows in self.all - {shorter})

    def counts(self, call: Call, length: int) -> bool:
        """Whether a sentence of this length tells something of such a step."""
        return length in self.all or any(abs(length - border) < 2 for border in call.kernel.borders(call.bound))

    def noted(self, program: Program, batch: Batch) -> None:
        """They were looked at."""
        self.seen |= {kind_of(call, batch) for call in calls(program)}

    def look(self, shown: str, call: Call, arguments: dict[str, Any], found: np.ndarray, batch: Batch) -> None:
        """At a step, on its own operands, on telling ones, and on other numbers of rows. Raises VerificationError."""
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
            together = {sum(each) for each in self.lengths if each[1:] and each != (1, batch.rows)}
            for count in together | {n for n, *more in self.lengths if not more and self.counts(call, n)}:
                at = np.arange(count) % batch.rows
                own = arguments | {name: np.ascontiguousarray(arguments[name][at]) for name in call.values}
                out = launched(call, own, (count, *found.shape[1:]))
                shares.append(meant.repeated(count, batch.rows).compared(shown, out, count))
        if len(batch) == 1 and batch.rows == max(map(max, self.lengths)):
            shares += tails(shown, call, arguments, meant, batch)
        self.nearest = max(self.nearest, *shares)


def compare_threads(shown: str, call: Call, arguments: dict[str, Any], found: np.ndarray, rows: int) -> None:
    """A step on every number of threads, of very many rows on two and on all: the same bits. Raises
    VerificationError."""
    if call.kernel.view or (rows >= SAMPLED and not call.kernel.launches): return
    every = numbers_of_threads()
    for count in every if rows < SAMPLED else sorted({1, min(2, every[-1]), every[-1]}):
        with on_threads(count): out = launched(call, arguments, found.shape)
        if not np.array_equal(out, found, equal_nan=True):
            raise VerificationError(3, shown, f"on {count} threads it has other bits", rows=rows)


def tails(shown: str, call: Call, arguments: dict[str, Any], meant: Meant, batch: Batch) -> Iterator[float]:
    """At the last rows of a step on some numbers of rows one after another, as many as are soon computed: of the last
    rows of a sentence where each stands for itself, of its beginning elsewhere. Raises VerificationError."""
    if not call.by_tokens or call.kernel.restrict is None or call.kernel.view: return
    weight, alone = getattr(call.bound, "weight", None), call.kernel.by_rows
    top = min(batch.rows, SAMPLED, int(ROW_WORK // (1 if weight is None else math.prod(weight.shape))))
    for count in range(max(1, top - TAIL + 1), top + 1):
        rows = slice(batch.rows - count, None) if alone else slice(count)
        own = arguments | {name: arguments[name][rows] for name in call.values}
        part, some = Batch([batch.tokens[rows]], [batch.kinds[rows]]), np.arange(max(0, count - TAIL), count)
        if call.kernel.batched: own["batch"] = part
        last = meant.last(count, batch.rows) if alone else Meant.of(call, own, part, some)
        yield last.compared(shown, launched(call, own, call.shape.at(part.extents())), count)


def calls(program: Program) -> list[Call]:
    """The calls of a program's steps, without what enters."""
    return program.schedule.calls[program.schedule.first:]


def kind_of(call: Call, batch: Batch) -> Hashable:
    """What a step is there, whatever its numbers are."""
    return batch.starts.tobytes(), step_kind(call)


def verify_lengths(program: Program, batches: Sequence[Batch], steps: Steps) -> dict[str, float]:
    """On each batch those steps that nobody looked at against what their kernels mean, within their bounds: of many
    rows some, and on operands that tell more; and on those that count for all the whole run, as it is for whoever uses
    it, against its steps to the bit. Of very many rows one program runs as a whole; others without the layers that
    say nothing more. Raises VerificationError."""
    for batch in batches:
        fresh, looked = steps.fresh(program, batch), program
        if fresh and batch.rows >= SAMPLED and not steps.first_run(batch):
            looked = shortened(program, fresh)
            fresh = steps.fresh(looked, batch)
        segments, first = looked.schedule.segments, looked.schedule.first
        called = {at - first for each in segments if not isinstance(each, Recorded) for at in each.steps}
        # what is called between recordings is of the whole batch, and they are of groups: these are taken one by one
        apart = len(batch) > 1 and len(segments) > 1
        if whole := (fresh & called if apart else set()): walk(looked, batch, whole, steps, until=max(whole) + 1)
        for part in batch.pieces(GROUP_ROWS) if apart else [batch]:
            if steps.runs(batch, fresh): compare_run(looked, part, fresh, steps)
            elif fresh: walk(looked, part, fresh, steps, until=max(fresh) + 1)
        steps.noted(program, batch)
    return {"batches": len(batches), "nearest": steps.nearest}


def shortened(program: Program, asked: set[int]) -> Program:
    """The program without stretches of steps none of which is asked for: where one value of a stretch alone is read
    behind it, and an earlier one has its shape, that one stands for it. Of equal layers one is left."""
    bound, steps = calls(program), program.steps
    at = {step.output: i for i, step in enumerate(steps)}
    last = [*range(len(steps))]
    for i, step in enumerate(steps):
        for operand in step.operands.values():
            if operand in at: last[at[operand]] = i
    for output in program.outputs.values(): last[at[output]] = len(steps)
    kept, instead, here = list[Step](), dict[str, str](), 0
    while here < len(steps):
        step = steps[here]
        operands = {operand: instead.get(value, value) for operand, value in step.operands.items()}
        kept.append(Step(step.kernel, operands, step.attributes, step.output))
        end = end_of_stretch(here, bound, last, asked)
        if end > here: instead[steps[end].output] = step.output
        here = end + 1
    outputs = {output: instead.get(value, value) for output, value in program.outputs.items()}
    read = {value for step in kept for value in step.operands.values()}
    constants = {value: each for value, each in program.constants.items() if value in read}
    meta = {"model": name(program)}
    return Program(kept, constants, outputs, meta, inputs=program.inputs)


def end_of_stretch(begin: int, bound: Sequence[Call], last: Sequence[int], asked: set[int]) -> int:
    """The last step behind one whose value that one's may stand for, so that all between are left out; itself where
    there is none."""
    end, read = begin, 0
    for at in range(begin + 1, len(bound)):
        if at in asked: break
        if read <= at and bound[at].shape == bound[begin].shape and not bound[begin].kernel.view: end = at
        read = max(read, last[at])
    return end


def compare_run(program: Program, batch: Batch, fresh: set[int], steps: Steps) -> None:
    """The steps, group by group where all of them are recorded, and then a whole run against them: what is called
    between recordings is of the whole batch, whose rows may see one another. Raises VerificationError."""
    workers, last = threads(), []
    parts = run_groups(program, batch, workers)
    for part in parts:
        with limit(workers if len(parts) == 1 else 1): last.append(walk(program, part, fresh, steps))
    if not np.array_equal(program.run(batch), np.concatenate(last), equal_nan=True):
        raise VerificationError(3, name(program), "its run is not what its steps give", rows=batch.rows,
                                sentences=len(batch))


def stated_at(program: Program, lengths: Lengths, timed: Iterable[Batch]) -> Lengths:
    """The lengths of single sentences among these that errors are told of: one token, what is timed, the longest that
    the float64 oracle reads soon enough."""
    numbers = (constant.shape for constant in program.constants.values() if len(constant.shape) == 2)
    most = max(1, ORACLE_WORK // max(1, sum(inputs * outputs for inputs, outputs in numbers)))
    within = [each for each in lengths if len(each) == 1 and each[0] <= most]
    told = {1, *(int(n) for batch in timed for n in np.diff(batch.starts)), max(within)[0]}
    return tuple(each for each in within if each[0] in told)


def errors_at(programs: Sequence[tuple[Program, bool]], model: Operator, batches: Sequence[Batch],
              wanted: Outputs) -> list[list[Near]]:
    """Compare each program with the model's outputs `wanted`, batch by batch; with whether it is exact:
    `relative` as both run, and `along` the routes that the program took."""
    def near(program: Program, exact: bool, batch: Batch, rows: NDArray[np.floating]) -> Near:
        beside = run_beside(program, model, [batch], [rows], exact=exact)
        free, along = (Errors.of(beside.found, wanted).relative for wanted in (beside.alone, beside.wanted))
        return {"sentences": len(batch), "rows": batch.rows, "relative": free, "along": along}
    return [[near(*each, *given) for given in zip(batches, wanted, strict=True)] for each in programs]


def verify_rounding(program: Program, found: Sequence[Near], imported: Sequence[Near], model: Operator,
                    batches: Sequence[Batch]) -> None:
    """An exact program's rounding, batch by batch, against that of the imported one. Raises VerificationError."""
    for mine, theirs, batch in zip(found, imported, batches, strict=True):
        off, base = mine["along"], theirs["along"]
        if not off <= allowed_rounding(off, base, model, [batch]):
            raise VerificationError(3, name(program), "it rounds more than the imported program", relative=off,
                                    imported=base, times=ROUNDING, sentences=len(batch), rows=batch.rows)


def walk(program: Program, batch: Batch, fresh: set[int], steps: Steps, until: int | None = None) -> np.ndarray:
    """The output of a program step by step, or of so many steps; fresh ones are looked at."""
    last: NDArray[np.float32] | None = None
    for at, (call, arguments, found) in enumerate(program.schedule.walk(batch, until=until)):
        if at in fresh: steps.look(program.steps[at].show(program.constants), call, arguments, found, batch)
        if program.steps[at].output == program.output: last = found
    return np.asarray(last)


def reads_all(call: Call, batch: Batch) -> bool:
    """Whether all rows of a step's result are looked at: of few, and of many where each stands for itself and that does
    not take too long."""
    weight = getattr(call.bound, "weight", None)
    work = batch.rows * (1 if weight is None else math.prod(weight.shape))
    return batch.rows < SAMPLED or not (call.kernel.row_mixing or work > ROW_WORK)


def rows_looked_at(call: Call, batch: Batch) -> NDArray[np.int64]:
    """Some rows of a step's result: of each sentence the first, the last ones, and both sides of its borders, and drawn
    ones."""
    rows = {*np.random.default_rng(batch.rows).integers(0, batch.rows, DRAWN).tolist()}
    for low, high in pairwise(batch.starts.tolist()):
        rows |= {low, *range(max(low, high - TAIL), high)}
        for border in call.kernel.borders(call.bound):
            times = np.unique(np.linspace(1, max(1, (high - low - 1) // border), MULTIPLES).astype(int))
            rows |= {at for n in times for at in (low + n * border - 1, low + n * border) if at < high}
    return np.array(sorted(rows), np.int64)


def describe_lengths(lengths: Sequence[Sequence[int]]) -> str:
    """From the shortest to the longest sentence."""
    every = [n for each in lengths for n in each]
    return f"sentences of {min(every)} to {max(every)} tokens"


def format_errors(found: Sequence[Mapping[str, object]]) -> str:
    """Errors, batch by batch, as words."""
    def named(one: Mapping[str, object]) -> str:
        rows = f"{one.get('rows')} token{'s' * (one.get('rows') != 1)}"
        return rows if one.get("sentences") == 1 else f"{one.get('sentences')} sentences of {rows}"
    return ", ".join(f"{one.get('relative'):.2g} on {named(one)}" for one in found)
