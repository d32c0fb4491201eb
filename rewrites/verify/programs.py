"""Level 3: programs. An exact one equals the float64 oracle where no number is rounded, rounds hardly more than the
import where all are, and each of its steps stays within its bound. An approximate one keeps the error stated for it."""
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import settled
from formats.core.epilogue import UNIT
from formats.core.stage import SMALLEST, spread_beyond
from formats.host.threads import limit, numbers_of_threads, on_threads
from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.batch import Batch, Fields
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.algebra.term import Operator
from opmatrix.runtime.codegen.infinite import infinite_batches
from opmatrix.runtime.declarations.meanings import bound, widen_arguments
from opmatrix.runtime.declarations.operands import number_of
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.recorded import Recorded
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.scheme import GROUP_ROWS, Group, make_groups
from rewrites.lowering.lower import Method, Stored
from rewrites.search.emit import Emitter, Spread
from rewrites.search.search import Structure
from rewrites.verify.differences import ratio
from rewrites.verify.failure import VerificationError, name
from rewrites.verify.nudged import moved, row_scales
from rewrites.verify.routed import Reference, describe_routing, explain_flips, run_beside

EQUAL = 1e-10                                               # relative, between two float64 readings of one model
ROUNDING = 4.0                                              # how many times as much as the import a program may round
TOLD_WORK = 4e9                                             # multiplications of a step on telling operands, at most
TOLD_SEED = 0
Outputs = Sequence[NDArray[np.floating]]


class KernelVerified(TypedDict):
    """Largest share of its bound that a kernel's error takes, and of its output that the bound is, both in the
    Frobenius norm."""
    nearest: float
    allowed: float


class StepsVerified(TypedDict):
    """Number of steps, the one that comes nearest to its bound on any operands, and how near; and each kernel."""
    count: int
    nearest: float
    step: str
    kernels: dict[str, KernelVerified]


@dataclass(frozen=True)
class Errors:
    """How far outputs are from those wanted: of all rows together the Frobenius norm of the difference over that of the
    output, the largest such ratio of a single row, and how many rows there were."""

    relative: float
    worst_row: float
    rows: int

    @classmethod
    def of(cls, found: Outputs, wanted: Outputs, least: NDArray[np.float64] | float = 0.0) -> "Errors":
        """The errors of outputs of the same batches; infinite where one alone is no number. Rows are taken to be no
        smaller than `least`; what is as wanted is off by nothing, zeros too."""
        have, want = np.concatenate(list(found)).astype(np.float64), np.concatenate(list(wanted))
        off, size = (np.linalg.norm(each, axis=1) for each in settled(have, want))
        size = np.maximum(size, least)
        if not np.isfinite(off).all():
            return cls(np.inf, np.inf, len(off))
        return cls(float(ratio(np.linalg.norm(off), np.linalg.norm(size))), float(ratio(off, size).max()), len(off))


def oracle(model: Operator, batches: Sequence[Batch]) -> list[NDArray[np.floating]]:
    """What the model gives in float64, without any kernel."""
    return [dense(model, batch) for batch in batches]


@dataclass(frozen=True, eq=False)
class Unrounded(Mapping[str, NDArray[np.floating]]):
    """The constants of a program in float64, evaluated from the model's own whenever one is asked for: all of them
    would be twice the model."""

    structure: Structure
    emitter: Emitter

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        part, what = self.emitter.origins[name]
        if isinstance(what, Data): return what.array
        if isinstance(what, Stored): return self.structure.lowering(part).matrix(what.weight, what.layout)
        assert isinstance(what, Spread)
        return self.structure.lowering(part).vector(what.constant, self.emitter.constants[name].shape[0])

    def __iter__(self) -> Iterator[str]: return iter(self.emitter.origins)
    def __len__(self) -> int: return len(self.emitter.origins)


def unrounded(structure: Structure, emitter: Emitter) -> Unrounded:
    """The constants of a program before they were rounded: by name, weights as matrices."""
    return Unrounded(structure, emitter)


def reading(program: Program, structure: Structure, emitter: Emitter) -> Hashable:
    """What a program is where no number is rounded: programs that are equal so, whatever their weights are stored by,
    give the same."""
    stand = {name: (part, what._replace(method=Method()) if isinstance(what, Stored) else what)
             for name, (part, what) in emitter.origins.items()}
    return structure.route, tuple(
        (step.kernel, tuple((operand, stand.get(name, name)) for operand, name in step.operands.items()),
         tuple(step.attributes.items()), step.output) for step in program.steps)


def verify_exact(program: Program, model: Operator, batches: Sequence[Batch], imported: Program,
                 constants: Mapping[str, NDArray[np.floating]], wanted: Outputs | None = None,
                 told: set[Hashable] | None = None) -> dict[str, object]:
    """An exact program against the model, on batches: in float64 with `constants` unrounded, in float32 beside the
    imported program, and step by step. `wanted` is the oracle's output where it is at hand. Raises VerificationError,
    which says what differs; returns what was found."""
    wanted = oracle(model, batches) if wanted is None else wanted
    exact = verify_structure(program, batches, constants, wanted, model)
    own, others = (run_beside(each, model, batches, wanted, exact=True) for each in (program, imported))
    mine, theirs = (Errors.of(each.found, each.wanted) for each in (own, others))
    if not mine.relative <= allowed_rounding(mine.relative, theirs.relative, model, batches):
        raise VerificationError(3, name(program), "it rounds more than the imported program", relative=mine.relative,
                                imported=theirs.relative, times=ROUNDING)
    return {"float64": exact, "float32": asdict(mine), "imported": asdict(theirs),
            "steps": verify_steps(program, batches, told), **describe_routing(own.flips, mine.relative)}


def allowed_rounding(mine: float, imported: float, model: Operator, batches: Sequence[Batch]) -> float:
    """How far an exact program that is off by `mine` may be, relative: ROUNDING times as much as the imported one, or
    as what rounding each number of the model once does, its result among them: an import may happen to be nearer."""
    if mine <= ROUNDING * imported: return ROUNDING * imported
    sizes = [np.linalg.norm(wanted) for wanted in oracle(model, batches)]
    return ROUNDING * max(imported, float(ratio(np.linalg.norm(moved(model, batches, UNIT)), np.linalg.norm(sizes))))


def verify_structure(program: Program, batches: Sequence[Batch], constants: Mapping[str, NDArray[np.floating]],
                     wanted: Outputs, model: Operator | None = None) -> dict[str, float]:
    """The steps of any program, exact or not, on constants as they were before anything was rounded, left out or
    fitted, in float64: they are the model. With the model, a row that is less than the numbers that it is computed from
    is compared beside these. Raises VerificationError; returns how far they are from it."""
    def run(program: Program, batch: Batch) -> NDArray[np.floating]:
        return program.exact(batch, constants, rounded=False)
    if model is None: outputs: Outputs = [run(program, batch) for batch in batches]
    else: outputs, wanted, *_ = run_beside(program, model, batches, wanted, exact=True, run=run, unit=EQUAL)
    found = Errors.of(outputs, wanted)
    if not found.worst_row <= EQUAL and model is not None:
        found = Errors.of(outputs, wanted, row_scales(model, batches, EQUAL))
    if not found.worst_row <= EQUAL:
        raise VerificationError(3, name(program), "read in float64 it is not the model", relative=found.relative,
                                worst_row=found.worst_row, allowed=EQUAL)
    return asdict(found)


def verify_outputs(program: Program, outputs: Mapping[str, Operator], batches: Sequence[Batch],
                   constants: Mapping[str, NDArray[np.floating]]) -> dict[str, float]:
    """How far a program read in float64 is from every output of a model, and from every next value of its state, by
    name. Raises VerificationError, which names it."""
    worst = dict.fromkeys(outputs, 0.0)
    for batch in batches:
        found, taken = noted(partial(program.exact_all, batch, constants, rounded=False))
        for output, term in outputs.items():
            wanted, routes, flips = Reference(partial(dense, term, batch)).beside(taken)
            explain_flips(name(program), term, batch, routes, flips, EQUAL)
            rows = wanted.swapaxes(0, 1) if wanted.ndim == 3 else wanted
            pair = (each.reshape(len(rows), -1) for each in (found[output], rows))
            apart, size = map(np.linalg.norm, settled(*pair))
            off = ratio(apart, size)
            if not off <= EQUAL: off = ratio(apart, max(size, np.linalg.norm(row_scales(term, [batch], EQUAL))))
            if not off <= EQUAL:
                raise VerificationError(3, name(program), f"its output {output} read in float64 is not the model's",
                                        relative=float(off),
                                        allowed=EQUAL)
            worst[output] = max(worst[output], float(off))
    return worst


def verify_approximate(program: Program, model: Operator, batches: Sequence[Batch], stated: float,
                       wanted: Outputs | None = None) -> dict[str, object]:
    """An approximate program on held-out batches: the change of its whole output, with the rows that it routes
    otherwise, is at most the stated one, and every step stays within its bound for the numbers that are stored. Raises
    VerificationError."""
    own = run_beside(program, model, batches, wanted, exact=False)
    found, along = Errors.of(own.found, own.alone), Errors.of(own.found, own.wanted)
    if not found.relative <= stated:
        raise VerificationError(3, name(program), "its output changes by more than was stated", relative=found.relative,
                                worst_row=found.worst_row, rows=found.rows, stated=stated)
    return {"float32": asdict(found), "stated": stated, "steps": verify_steps(program, batches),
            **describe_routing(own.flips, along.relative)}


ProductsSeen = dict[Hashable, KernelVerified]                    # steps with weights, on the rows of a batch


def verify_steps(program: Program, batches: Sequence[Batch], told: set[Hashable] | None = None,
                 products: ProductsSeen | None = None) -> StepsVerified:
    """Each kernel against its float64 meaning on the same operands, and on telling ones, within its bound; and the run,
    which launches the same kernels from a recording, to the bit, at each number of threads: of groups of rows, as some
    kernels sum in another order for other numbers of rows. Inputs that may be infinite are so in one batch more.
    Several programs may share what need not be looked at again: `told`, the kinds of steps that met telling operands;
    `products`, steps with weights that they all hold. Raises VerificationError for the first step that is not within
    its bound."""
    nearest, at, kernels = 0.0, "", dict[str, KernelVerified]()
    told = set() if told is None else told
    told_batches = [*batches, *infinite_batches(program, batches)]
    for batch in (piece for given in told_batches for piece in given.pieces(GROUP_ROWS)):
        for step, (call, arguments, found) in zip(program.steps, program.schedule.walk(batch), strict=True):
            if step.output == program.output: last = found
            same = None if products is None else weighed(step, program, batch)
            looked = None if products is None or same is None else products.get(same)
            if looked is None: looked = look_at_step(step.show(program.constants), call, arguments, found, batch, told)
            if products is not None and same is not None: products[same] = looked
            nearest, at = max((nearest, at), (looked["nearest"], step.output))
            known = kernels.get(step.kernel, looked)
            kernels[step.kernel] = KernelVerified(nearest=max(known["nearest"], looked["nearest"]),
                                                  allowed=max(known["allowed"], looked["allowed"]))
        with limit(1): whole = program.schedule.run(batch)[0]
        if not np.array_equal(last, whole, equal_nan=True):
            raise VerificationError(3, name(program), "its run is not what its steps give", rows=batch.rows)
        for count in numbers_of_threads()[1:]: compare_bits(program, batch, count)
    return {"count": len(program.steps), "nearest": nearest, "step": at, "kernels": kernels}


def look_at_step(shown: str, call: Call, arguments: Mapping[str, object], given: NDArray[np.floating], batch: Batch,
                 told: set[Hashable]) -> KernelVerified:
    """Measure the share of its bound that a step's error takes, and how loose the bound is: on the operands of a run,
    and, once a kind, on telling ones. Raises VerificationError where it is not within its bound."""
    meant = Meant.of(call, arguments, batch, None)
    share = meant.compared(shown, given, batch.rows)
    if (kind := step_kind(call)) not in told and number_of(call.shape) is np.float32 and not call.kernel.view:
        told.add(kind)
        share = max(share, tell_step(shown, call, arguments, given.shape, batch))
    return KernelVerified(nearest=share, allowed=meant.looseness)


def step_kind(call: Call) -> Hashable:
    """A step's kernel, attributes and the forms of its operands, whatever their numbers are."""
    operands = tuple((name, described(value)) for name, value in vars(call.bound).items())
    return call.kernel.name, operands, tuple(sorted(call.values)), str(call.shape)


def described(value: object) -> Hashable:
    """An operand or an attribute: of a constant its form."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"): return tuple(map(described, value))
    if isinstance(value, Format | Stacked): return value.name, value.shape, tuple(value.remembered.items())
    return (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else repr(value)


def launched(call: Call, arguments: Mapping[str, object], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The result of a kernel for these arguments; an entry that it does not write is no number."""
    out = np.full(shape, np.nan, np.float32)
    call.kernel.function(out, **arguments)
    return out


def tell_step(shown: str, call: Call, arguments: Mapping[str, object], shape: tuple[int, ...], batch: Batch) -> float:
    """A step on the telling operands of its kernel, and on each row of the first of them alone where rows stand for
    themselves. Returns how much of its bound it takes at most. Raises VerificationError where that is more than all of
    it."""
    share, operands = 0.0, call.kernel.telling(call.kernel.record(**arguments), np.random.default_rng(TOLD_SEED))
    for at, more in enumerate(operands):
        if call.kernel.by_rows: more = {**thin_rows(call, more)}
        told, where = {**arguments, **more}, more.get("batch", batch)
        assert isinstance(where, Fields)
        with np.errstate(all="ignore"):
            meant = Meant.of(call, told, where, None)
            share = max(share, meant.compared(shown, launched(call, told, meant.numbers.shape), where.rows))
            if call.kernel.by_rows and at == 0: share = max(share, tell_rows(shown, call, told, meant))
    return share


def thin_rows(call: Call, operands: Mapping[str, object]) -> Mapping[str, object]:
    """Operands of as many rows, evenly chosen, as are soon multiplied by a step's weight."""
    work = math.prod(getattr(getattr(call.bound, "weight", None), "shape", ()))
    rows = {name: each for name, each in operands.items() if name in call.values and isinstance(each, np.ndarray)}
    every = max(1, math.ceil(work * max(map(len, rows.values()), default=0) / TOLD_WORK))
    return {**operands, **{name: np.ascontiguousarray(each[::every]) for name, each in rows.items()}}


def tell_rows(shown: str, call: Call, told: Mapping[str, object], meant: "Meant") -> float:
    """A step of which each row stands for itself on each row alone, of all of which this is meant."""
    def alone(row: int) -> float:
        some = {name: np.asarray(told[name])[row:row + 1] for name in call.values}
        wanted = Meant(meant.numbers[row:row + 1], meant.allowed[row:row + 1], None)
        return wanted.compared(shown, launched(call, {**told, **some}, wanted.numbers.shape), 1)
    return max((alone(row) for row in range(len(meant.numbers))), default=0.0)


def weighed(step: Step, program: Program, batch: Batch) -> Hashable:
    """A step with weights, whatever rows enter it, for programs that hold the same; None where it has none."""
    constants = {operand: program.constants.get(value) for operand, value in step.operands.items()}
    if not any(isinstance(each, Format | Stacked) for each in constants.values()): return None
    held = tuple((operand, None if each is None else id(each)) for operand, each in sorted(constants.items()))
    return step.kernel, held, tuple(sorted(step.attributes.items())), batch.starts.tobytes()


def run_groups(program: Program, batch: Batch, workers: int) -> list[Batch]:
    """The batches that a run on so many workers takes one by one: groups of sentences where all steps are recorded,
    with their rows of inputs; else the whole, whose rows may see one another."""
    schedule = program.schedule
    if not all(isinstance(each, Recorded) for each in schedule.segments): return [batch]
    groups = make_groups(batch.starts, workers, reading=schedule.reading)
    return [batch] if len(groups) < 2 else [cut_batch(batch, program, group) for group in groups]


def cut_batch(batch: Batch, program: Program, group: Group) -> Batch:
    """The sentences of a group, with their rows of what enters a program and of the numbers that its fields are."""
    part = batch.sentences(group.first, group.last)
    spaces = {port.name: port.space for port in program.schedule.ports}
    rows = {"T": slice(group.low, group.high), "S": slice(group.first, group.last)}
    for entering, matrix in batch.inputs.items():
        part.inputs[entering] = np.asarray(matrix)[rows.get(spaces.get(entering, "T"), slice(None))]
    return part


def compare_bits(program: Program, batch: Batch, workers: int) -> None:
    """A whole run on so many threads against its steps on one, group by group where all of them are recorded: some
    kernels sum in another order for other numbers of rows, none for other threads. Raises VerificationError."""
    parts = run_groups(program, batch, workers)
    last = list[NDArray[np.float32]]()
    for part in parts:
        with on_threads(1):
            for step, (_, _, found) in zip(program.steps, program.schedule.walk(part), strict=True):
                if step.output == program.output: given = found
        last.append(given)
    with on_threads(workers): whole = program.schedule.run(batch)[0]
    if not np.array_equal(np.concatenate(last), whole, equal_nan=True):
        raise VerificationError(3, name(program), f"its run on {workers} threads has other bits than its steps on one",
                                rows=batch.rows)


class Meant(NamedTuple):
    """What a step's kernel means, in float64, how far it may be from that, and of which rows: of all (None)."""

    numbers: NDArray[np.float64]
    allowed: NDArray[np.float64]
    rows: NDArray[np.int64] | None

    @classmethod
    def of(cls, call: Call, arguments: Mapping[str, object], batch: Fields, rows: NDArray[np.int64] | None) -> "Meant":
        """What a call's kernel means, for these rows alone where its result has a row for each token and can be read
        so."""
        chosen: tuple[Mapping[str, object], Fields] | None = None
        if rows is not None and call.kernel.restrict and call.by_tokens:
            chosen = call.kernel.restrict(arguments, [*call.values], batch, rows)
        if chosen: arguments, batch = chosen
        exact = widen_arguments(call.kernel, arguments, batch)
        numbers = call.kernel.reference(exact)
        allowed = spread_beyond(numbers, bound(call.kernel, arguments, exact) + SMALLEST)
        return cls(numbers, np.broadcast_to(allowed, numbers.shape), rows if chosen else None)

    def compared(self, shown: str, found: NDArray[np.floating], rows: int) -> float:
        """Share of its bound that the error of a step on so many rows takes; an infinite bound allows any number,
        and none. Raises VerificationError."""
        own = found if self.rows is None else found[self.rows]
        off = abs(settled(own, self.numbers)[0])
        if not (right := (off == 0) | (off <= self.allowed) | np.isinf(self.allowed)).all():
            worst = np.unravel_index(np.argmax(np.where(right, -1.0, np.nan_to_num(off - self.allowed, nan=np.inf))),
                                     off.shape)
            at = worst if self.rows is None else (self.rows[worst[0]], *worst[1:])
            raise VerificationError(3, shown, "it is not what its kernel means", off=off[worst],
                                    allowed=self.allowed[worst], entry=[int(i) for i in at], rows=rows)
        said = (self.allowed > 0) & np.isfinite(self.allowed)
        return float((off[said] / self.allowed[said]).max(initial=0.0))

    @property
    def looseness(self) -> float:
        """The bound over the numbers, both in the Frobenius norm, where both are finite."""
        finite = np.isfinite(self.numbers) & np.isfinite(self.allowed)
        return float(ratio(np.linalg.norm(self.allowed[finite]), np.linalg.norm(self.numbers[finite])))

    def repeated(self, rows: int, of: int) -> "Meant":
        """What a step on so many rows means that repeats the rows of this one, of so many."""
        at = np.arange(rows) % of
        if self.rows is None: return Meant(self.numbers[at], self.allowed[at], None)
        here, there = np.nonzero(at[:, None] == self.rows[None])
        return Meant(self.numbers[there], self.allowed[there], here)

    def last(self, rows: int, of: int) -> "Meant":
        """What a step on the last so many rows of this one, of so many, means."""
        if self.rows is None: return Meant(self.numbers[-rows:], self.allowed[-rows:], None)
        there = self.rows >= of - rows
        return Meant(self.numbers[there], self.allowed[there], self.rows[there] - (of - rows))
