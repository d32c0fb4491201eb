"""Level 3: programs. An exact program equals the float64 oracle where no number is rounded, and in float32 rounds
hardly more than the imported program; each of its steps stays within its bound. An approximate program keeps its
stated error."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple, NoReturn, TypedDict

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
from opmatrix.algebra.oracles import dense, dense_each
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
from rewrites.verify.nudged import NudgedSums, moved, row_scales
from rewrites.verify.routed import Reference, describe_routing, explain_flips, run_beside

EQUAL = 1e-10  # relative difference of two float64 readings of one model
ROUNDING = 4.0  # most rounding of a program over that of the import
TOLD_WORK = 4e9  # most multiplications of a step on telling operands
TOLD_SEED = 0
Outputs = Sequence[NDArray[np.floating]]


class KernelVerified(TypedDict):
    """The largest share of its bound that a kernel's error takes (`nearest`), and the bound relative to the kernel's
    output (`allowed`), both in the Frobenius norm."""

    nearest: float
    allowed: float


class StepsVerified(TypedDict):
    """The number of steps, the step that comes nearest to its bound on any operands, the share of the bound it takes,
    and the result for each kernel."""

    count: int
    nearest: float
    step: str
    kernels: dict[str, KernelVerified]


@dataclass(frozen=True)
class Errors:
    """The distance of outputs from the wanted ones: the Frobenius norm of the difference over that of the output for
    all rows together, the largest such ratio of a single row, and the number of rows."""

    relative: float
    worst_row: float
    rows: int

    @classmethod
    def of(cls, found: Outputs, wanted: Outputs, least: NDArray[np.float64] | float = 0.0) -> "Errors":
        """Return the errors of outputs of the same batches; infinite if any difference is NaN or infinite. The norm of
        a row is taken as `least` if it is smaller. A row equal to the wanted one has error 0, even if it is zero."""
        have, want = np.concatenate(list(found)).astype(np.float64), np.concatenate(list(wanted))
        off, size = (np.linalg.norm(values, axis=1) for values in settled(have, want))
        size = np.maximum(size, least)
        if not np.isfinite(off).all():
            return cls(np.inf, np.inf, len(off))
        return cls(float(ratio(np.linalg.norm(off), np.linalg.norm(size))), float(ratio(off, size).max()), len(off))


def oracle(model: Operator, batches: Sequence[Batch]) -> list[NDArray[np.floating]]:
    """Return the outputs of the model in float64, without any kernel."""
    return dense_each(model, batches)


@dataclass(frozen=True, eq=False)
class Unrounded(Mapping[str, NDArray[np.floating]]):
    """The constants of a program in float64, each evaluated from the model's weights when it is read: all of them
    together would take twice the model's memory."""

    structure: Structure
    emitter: Emitter

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        part, what = self.emitter.origins[name]
        if isinstance(what, Data):
            return what.array
        if isinstance(what, Stored):
            return self.structure.lowering(part).matrix(what.weight, what.layout)
        assert isinstance(what, Spread)
        return self.structure.lowering(part).vector(what.constant, self.emitter.constants[name].shape[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self.emitter.origins)

    def __len__(self) -> int:
        return len(self.emitter.origins)


def unrounded(structure: Structure, emitter: Emitter) -> Unrounded:
    """Return the constants of a program before they were rounded: by name, weights as matrices."""
    return Unrounded(structure, emitter)


def reading(program: Program, structure: Structure, emitter: Emitter) -> Hashable:
    """Return a key of the program without rounding: programs with equal keys give the same output, however their
    weights are stored."""
    stand = {
        name: (part, what._replace(method=Method()) if isinstance(what, Stored) else what)
        for name, (part, what) in emitter.origins.items()
    }
    return structure.route, tuple(
        (
            step.kernel,
            tuple((operand, stand.get(name, name)) for operand, name in step.operands.items()),
            tuple(step.attributes.items()),
            step.output,
        )
        for step in program.steps
    )


def verify_exact(
    program: Program,
    model: Operator,
    batches: Sequence[Batch],
    imported: Program,
    constants: Mapping[str, NDArray[np.floating]],
    wanted: Outputs | None = None,
    told: set[Hashable] | None = None,
) -> dict[str, object]:
    """Verify an exact program against the model on batches: in float64 with `constants` unrounded, in float32 beside
    the imported program, and step by step. `wanted` is the oracle's output if it is at hand. Returns the measured
    errors. Raises VerificationError, which names the difference."""
    wanted = oracle(model, batches) if wanted is None else wanted
    exact = verify_structure(program, batches, constants, wanted, model)
    ours, others = (run_beside(candidate, model, batches, wanted, exact=True) for candidate in (program, imported))
    mine, theirs = (Errors.of(side.found, side.wanted) for side in (ours, others))
    if not mine.relative <= allowed_rounding(mine.relative, theirs.relative, model, batches):
        raise VerificationError(
            3,
            name(program),
            "it rounds more than the imported program",
            relative=mine.relative,
            imported=theirs.relative,
            times=ROUNDING,
        )
    return {
        "float64": exact,
        "float32": asdict(mine),
        "imported": asdict(theirs),
        "steps": verify_steps(program, batches, told),
        **describe_routing(ours.flips, mine.relative),
    }


def allowed_rounding(mine: float, imported: float, model: Operator, batches: Sequence[Batch]) -> float:
    """Return the largest relative error allowed for an exact program with error `mine`. It is ROUNDING times the error
    of the imported program, or, if that is larger, ROUNDING times the effect of rounding each number of the model and
    each partial sum of its products with weights once: an import may happen to be nearer."""
    if mine <= ROUNDING * imported:
        return ROUNDING * imported
    sizes = [np.linalg.norm(wanted) for wanted in oracle(model, batches)]
    rounding = np.linalg.norm(moved(model, batches, UNIT, NudgedSums))
    return ROUNDING * max(imported, float(ratio(rounding, np.linalg.norm(sizes))))


def verify_structure(
    program: Program,
    batches: Sequence[Batch],
    constants: Mapping[str, NDArray[np.floating]],
    wanted: Outputs,
    model: Operator | None = None,
) -> dict[str, float]:
    """Verify that the steps of any program, exact or not, compute the model in float64 on constants as they were
    before any was rounded, pruned or fitted. If `model` is passed, a row smaller than the numbers that it is computed
    from is compared relative to these. Returns the errors. Raises VerificationError."""

    def run(program: Program, batch: Batch) -> NDArray[np.floating]:
        """Run a program in float64, on constants before rounding."""
        return program.exact(batch, constants, rounded=False)

    if model is None:
        outputs: Outputs = [run(program, batch) for batch in batches]
    else:
        outputs, wanted, *_ = run_beside(program, model, batches, wanted, exact=True, run=run, unit=EQUAL)
    errors = Errors.of(outputs, wanted)
    if not errors.worst_row <= EQUAL and model is not None:
        errors = Errors.of(outputs, wanted, row_scales(model, batches, EQUAL))
    if not errors.worst_row <= EQUAL:
        raise VerificationError(
            3,
            name(program),
            "evaluated in float64 it differs from the model",
            relative=errors.relative,
            worst_row=errors.worst_row,
            allowed=EQUAL,
        )
    return asdict(errors)


def verify_outputs(
    program: Program,
    outputs: Mapping[str, Operator],
    batches: Sequence[Batch],
    constants: Mapping[str, NDArray[np.floating]],
) -> dict[str, float]:
    """Return the relative error of a program read in float64 for every output of a model, and for every next value of
    its state, by name. Raises VerificationError, which names the output."""
    worst = dict.fromkeys(outputs, 0.0)
    for batch in batches:
        arrays, taken = noted(partial(program.exact_all, batch, constants, rounded=False))
        for output, term in outputs.items():
            wanted, routes, flips = Reference(partial(dense, term, batch)).beside(taken)
            explain_flips(name(program), term, batch, routes, flips, EQUAL)
            rows = wanted.swapaxes(0, 1) if wanted.ndim == 3 else wanted
            pair = (array.reshape(len(rows), -1) for array in (arrays[output], rows))
            apart, size = map(np.linalg.norm, settled(*pair))
            off = ratio(apart, size)
            if not off <= EQUAL:
                off = ratio(apart, max(size, np.linalg.norm(row_scales(term, [batch], EQUAL))))
            if not off <= EQUAL:
                raise VerificationError(
                    3,
                    name(program),
                    f"its output {output}, evaluated in float64, differs from the model's",
                    relative=float(off),
                    allowed=EQUAL,
                )
            worst[output] = max(worst[output], float(off))
    return worst


def verify_approximate(
    program: Program, model: Operator, batches: Sequence[Batch], stated: float, wanted: Outputs | None = None
) -> dict[str, object]:
    """Verify an approximate program on held-out batches: the change of its whole output, rows that it routes otherwise
    included, is at most `stated`, and every step stays within its bound for the stored numbers. Raises
    VerificationError."""
    ours = run_beside(program, model, batches, wanted, exact=False)
    errors, along = Errors.of(ours.found, ours.alone), Errors.of(ours.found, ours.wanted)
    if not errors.relative <= stated:
        raise VerificationError(
            3,
            name(program),
            "its error is above the stated one",
            relative=errors.relative,
            worst_row=errors.worst_row,
            rows=errors.rows,
            stated=stated,
        )
    return {
        "float32": asdict(errors),
        "stated": stated,
        "steps": verify_steps(program, batches),
        **describe_routing(ours.flips, along.relative),
    }


ProductsSeen = dict[Hashable, KernelVerified]  # steps with weights, on the rows of a batch


def verify_steps(
    program: Program, batches: Sequence[Batch], told: set[Hashable] | None = None, products: ProductsSeen | None = None
) -> StepsVerified:
    """Verify each kernel against its float64 meaning on the same operands, and on telling ones, within its bound.
    Verify that the run, which launches the same kernels from a recording, has the same bits at each number of threads;
    it is compared by groups of rows, as some kernels sum in another order for other numbers of rows. Inputs that may
    be infinite are infinite in one further batch. Several programs may share results: `told`, the kinds of steps that
    were checked on telling operands; `products`, steps with weights that all of them hold. Raises VerificationError
    for the first step that is not within its bound."""
    nearest, at, kernels = 0.0, "", dict[str, KernelVerified]()
    told = set() if told is None else told
    told_batches = [*batches, *infinite_batches(program, batches)]
    for batch in (piece for told_batch in told_batches for piece in told_batch.pieces(GROUP_ROWS)):
        for step, (call, arguments, result) in zip(program.steps, program.schedule.walk(batch), strict=True):
            if step.output == program.output:
                last = result
            same = None if products is None else weighed(step, program, batch)
            looked = None if products is None or same is None else products.get(same)
            if looked is None:
                looked = look_at_step(step.show(program.constants), call, arguments, result, batch, told)
            if products is not None and same is not None:
                products[same] = looked
            nearest, at = max((nearest, at), (looked["nearest"], step.output))
            known = kernels.get(step.kernel, looked)
            kernels[step.kernel] = KernelVerified(
                nearest=max(known["nearest"], looked["nearest"]), allowed=max(known["allowed"], looked["allowed"])
            )
        with limit(1):
            whole = program.schedule.run(batch)[0]
        if not np.array_equal(last, whole, equal_nan=True):
            raise VerificationError(3, name(program), "its run differs from its steps", rows=batch.rows)
        for count in numbers_of_threads()[1:]:
            compare_bits(program, batch, count)
    return {"count": len(program.steps), "nearest": nearest, "step": at, "kernels": kernels}


def look_at_step(
    shown: str,
    call: Call,
    arguments: Mapping[str, object],
    given: NDArray[np.floating],
    batch: Batch,
    told: set[Hashable],
) -> KernelVerified:
    """Measure the share of its bound that a step's error takes, and how loose the bound is: on the operands of a run
    and, once for each kind of step, on telling operands. Raises VerificationError if the error is not within the
    bound."""
    meant = Meant.of(call, arguments, batch, None)
    share = meant.compared(shown, given, batch.rows)
    if (kind := step_kind(call)) not in told and number_of(call.shape) is np.float32 and not call.kernel.view:
        told.add(kind)
        share = max(share, tell_step(shown, call, arguments, given.shape, batch))
    return KernelVerified(nearest=share, allowed=meant.looseness)


def step_kind(call: Call) -> Hashable:
    """Return a step's kernel, attributes and the forms of its operands, without their numbers."""
    operands = tuple((name, described(value)) for name, value in vars(call.bound).items())
    return call.kernel.name, operands, tuple(sorted(call.values)), str(call.shape)


def described(value: object) -> Hashable:
    """Return a hashable description of an operand or an attribute; of a constant only its form."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(described, value))
    if isinstance(value, Format | Stacked):
        return value.name, value.shape, tuple(value.remembered.items())
    return (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else repr(value)


def launched(call: Call, arguments: Mapping[str, object], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the result of a kernel for these arguments; entries that it does not write are NaN."""
    out = np.full(shape, np.nan, np.float32)
    call.kernel.function(out, **arguments)
    return out


def tell_step(shown: str, call: Call, arguments: Mapping[str, object], shape: tuple[int, ...], batch: Batch) -> float:
    """Check a step on the telling operands of its kernel and, if the kernel works row by row, on each row of the first
    of them alone. Returns the largest share of its bound that the error takes. Raises VerificationError if that is
    more than 1."""
    share, operands = 0.0, call.kernel.telling(call.kernel.record(**arguments), np.random.default_rng(TOLD_SEED))
    for at, more in enumerate(operands):
        if call.kernel.by_rows:
            more = {**thin_rows(call, more)}
        told, where = {**arguments, **more}, more.get("batch", batch)
        assert isinstance(where, Fields)
        with np.errstate(all="ignore"):
            meant = Meant.of(call, told, where, None)
            share = max(share, meant.compared(shown, launched(call, told, meant.numbers.shape), where.rows))
            if call.kernel.by_rows and at == 0:
                share = max(share, tell_rows(shown, call, told, meant))
    return share


def thin_rows(call: Call, operands: Mapping[str, object]) -> Mapping[str, object]:
    """Return operands thinned to evenly chosen rows, so few that a product with the step's weight takes at most
    TOLD_WORK multiplications."""
    work = math.prod(getattr(getattr(call.bound, "weight", None), "shape", ()))
    rows = {name: array for name, array in operands.items() if name in call.values and isinstance(array, np.ndarray)}
    every = max(1, math.ceil(work * max(map(len, rows.values()), default=0) / TOLD_WORK))
    return {**operands, **{name: np.ascontiguousarray(array[::every]) for name, array in rows.items()}}


def tell_rows(shown: str, call: Call, told: Mapping[str, object], meant: "Meant") -> float:
    """Check a step that works row by row on each row alone. `meant` is its meaning on all rows. Returns the largest
    share of its bound that an error takes."""

    def alone(row: int) -> float:
        """Compute one row alone; return the share of its bound that its error takes."""
        some = {name: np.asarray(told[name])[row : row + 1] for name in call.values}
        wanted = Meant(meant.numbers[row : row + 1], meant.allowed[row : row + 1], None)
        return wanted.compared(shown, launched(call, {**told, **some}, wanted.numbers.shape), 1)

    return max((alone(row) for row in range(len(meant.numbers))), default=0.0)


def weighed(step: Step, program: Program, batch: Batch) -> Hashable:
    """Return a key of a step with weights, whatever rows enter it, for programs that hold the same weights; None if
    the step has no weights."""
    constants = {operand: program.constants.get(value) for operand, value in step.operands.items()}
    if not any(isinstance(value, Format | Stacked) for value in constants.values()):
        return None
    held = tuple((operand, None if value is None else id(value)) for operand, value in sorted(constants.items()))
    return step.kernel, held, tuple(sorted(step.attributes.items())), batch.starts.tobytes()


def run_groups(program: Program, batch: Batch, workers: int) -> list[Batch]:
    """Return the batches that a run on `workers` threads takes one by one: groups of sentences, with their rows of
    inputs, if all steps are recorded; else the whole batch, whose rows may depend on one another."""
    schedule = program.schedule
    if not all(isinstance(segment, Recorded) for segment in schedule.segments):
        return [batch]
    groups = make_groups(batch.starts, workers, reading=schedule.reading)
    return [batch] if len(groups) < 2 else [cut_batch(batch, program, group) for group in groups]


def cut_batch(batch: Batch, program: Program, group: Group) -> Batch:
    """Return the sentences of a group, with their rows of the program's inputs."""
    part = batch.sentences(group.first, group.last)
    spaces = {port.name: port.space for port in program.schedule.ports}
    rows = {"T": slice(group.low, group.high), "S": slice(group.first, group.last)}
    for entering, matrix in batch.inputs.items():
        part.inputs[entering] = np.asarray(matrix)[rows.get(spaces.get(entering, "T"), slice(None))]
    return part


def compare_bits(program: Program, batch: Batch, workers: int) -> None:
    """Compare the bits of a whole run on `workers` threads with its steps on one thread, group by group if all of them
    are recorded. Some kernels sum in another order for other numbers of rows, but none for other numbers of threads.
    Raises VerificationError."""
    parts = run_groups(program, batch, workers)
    last = list[NDArray[np.float32]]()
    for part in parts:
        with on_threads(1):
            for step, (_, _, result) in zip(program.steps, program.schedule.walk(part), strict=True):
                if step.output == program.output:
                    output = result
        last.append(output)
    with on_threads(workers):
        whole = program.schedule.run(batch)[0]
    if not np.array_equal(np.concatenate(last), whole, equal_nan=True):
        raise VerificationError(
            3, name(program), f"its run on {workers} threads has other bits than its steps on one", rows=batch.rows
        )


class Meant(NamedTuple):
    """The result that a step's kernel should have, in float64, the largest error allowed for each entry, and the rows
    they are for (None: all rows)."""

    numbers: NDArray[np.float64]
    allowed: NDArray[np.float64]
    rows: NDArray[np.int64] | None

    @classmethod
    def of(cls, call: Call, arguments: Mapping[str, object], batch: Fields, rows: NDArray[np.int64] | None) -> "Meant":
        """Return the meaning of a call; of the chosen rows alone if the result has a row for each token and the kernel
        can be read for single rows."""
        chosen: tuple[Mapping[str, object], Fields] | None = None
        if rows is not None and call.kernel.restrict and call.by_tokens:
            chosen = call.kernel.restrict(arguments, [*call.values], batch, rows)
        if chosen:
            arguments, batch = chosen
        exact = widen_arguments(call.kernel, arguments, batch)
        numbers = call.kernel.reference(exact)
        allowed = spread_beyond(numbers, bound(call.kernel, arguments, exact) + SMALLEST)
        return cls(numbers, np.broadcast_to(allowed, numbers.shape), rows if chosen else None)

    def compared(self, shown: str, found: NDArray[np.floating], rows: int) -> float:
        """Return the largest share of its bound that the error of a step's result takes. Where the bound is infinite,
        any number and NaN are allowed. `rows` is for the message. Raises VerificationError if an entry is out of its
        bound."""
        result = found if self.rows is None else found[self.rows]
        off = abs(settled(result, self.numbers)[0])
        if not (off <= self.allowed).all():
            right = (off == 0) | (off <= self.allowed) | np.isinf(self.allowed)
            if not right.all():
                self.refuse(shown, off, right, rows)
        with np.errstate(invalid="ignore"):  # 0/0 where an entry must be exact, inf/inf where any number is allowed
            shares = np.divide(off, self.allowed, out=off)
        return float(np.fmax.reduce(shares, axis=None, initial=0.0))

    def refuse(self, shown: str, off: NDArray[np.floating], right: NDArray[np.bool_], rows: int) -> NoReturn:
        """Raise VerificationError for the entry that is farthest out of its bound."""
        beyond = np.where(right, -1.0, np.nan_to_num(off - self.allowed, nan=np.inf))
        worst = np.unravel_index(np.argmax(beyond), off.shape)
        at = worst if self.rows is None else (self.rows[worst[0]], *worst[1:])
        raise VerificationError(
            3,
            shown,
            "its result differs from the reference of its kernel",
            off=off[worst],
            allowed=self.allowed[worst],
            entry=[int(i) for i in at],
            rows=rows,
        )

    @property
    def looseness(self) -> float:
        """The bound relative to the numbers, both in the Frobenius norm over the entries where both are finite."""
        finite = np.isfinite(self.numbers) & np.isfinite(self.allowed)
        return float(ratio(np.linalg.norm(self.allowed[finite]), np.linalg.norm(self.numbers[finite])))

    def repeated(self, rows: int, of: int) -> "Meant":
        """Return the meaning of a step on `rows` rows that repeat the first `of` rows, those of this one."""
        at = np.arange(rows) % of
        if self.rows is None:
            return Meant(self.numbers[at], self.allowed[at], None)
        here, there = np.nonzero(at[:, None] == self.rows[None])
        return Meant(self.numbers[there], self.allowed[there], here)

    def last(self, rows: int, of: int) -> "Meant":
        """Return the meaning of a step on the last `rows` rows of this one, which has `of` rows."""
        if self.rows is None:
            return Meant(self.numbers[-rows:], self.allowed[-rows:], None)
        there = self.rows >= of - rows
        return Meant(self.numbers[there], self.allowed[there], self.rows[there] - (of - rows))
