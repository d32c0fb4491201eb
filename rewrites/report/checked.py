"""The programs of a run compared with the model: their errors on held-out rows, and step by step on a few rows,
several programs at a time."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from formats.host.freed_memory import release_memory
from formats.host.threads import in_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.oracles import dense
from rewrites.approximate.proposals import Choices
from rewrites.metrics.compared import GROUP_ROWS, Compared, Off, compare, compare_given, redraw
from rewrites.opened import Searched
from rewrites.report.points import Point
from rewrites.search.emit import Emitter
from rewrites.search.substitutions import part_factors, substitute_blocks
from rewrites.verify.differences import Change
from rewrites.verify.failure import VerificationError
from rewrites.verify.lengths import (
    Lengths,
    Steps,
    batches_at,
    errors_at,
    lengths_of,
    stated_at,
    verify_lengths,
    verify_rounding,
)
from rewrites.verify.programs import (
    EQUAL,
    ROUNDING,
    ProductsSeen,
    Unrounded,
    allowed_rounding,
    oracle,
    reading,
    unrounded,
    verify_exact,
    verify_outputs,
    verify_steps,
    verify_structure,
)
from rewrites.verify.routed import describe_routing, is_routed, run_beside
from rewrites.verify.sessions.verified_sessions import SessionChecks, Sessions
from rewrites.workload.stated import RoutedChange, Stated

T = TypeVar("T")


def state_errors(
    searched: Searched, choices: Choices, points: Sequence[Point], few: Batch, near: np.ndarray
) -> tuple[float, list[Point]]:
    """Return the relative error of the import on held-out rows, and the points with their measured and stated errors.
    `near` is the model's output for a few of these rows. A program is verified if every output is within the planned
    error and the rounding allowed to an exact program. Raises VerificationError for an exact program that is not."""
    exact, imported, workload = searched.exact, searched.programs["imported"], searched.workload
    model = {name: searched.opened.outputs[name] for name in exact.outputs}
    programs = [imported, *(point.program for point in points)]
    (base, *offs), changes = compare(
        programs, model, workload.verify, workload.state, [True, *(not point.methods for point in points)]
    )
    given_errors = compare_given(programs, workload.given) if workload.given else [0.0] * len(points)
    others = (
        redraw(imported, {point.program: constants_of(searched, choices, point) for point in points}, workload.state)
        if is_routed(model.values())
        else {}
    )
    allowed = {name: ROUNDING * off for name, off in base.along.items()}
    for point, off in zip(points, offs, strict=True):
        if point.methods:
            continue
        batches = [*workload.verify.pieces(GROUP_ROWS)]
        allowed = {
            name: max(most, allowed_rounding(off.along[name], base.along[name], model[name], batches))
            for name, most in allowed.items()
        }
        if over := [name for name, most in allowed.items() if not off.along[name] <= most]:
            raise VerificationError(
                3,
                "exact",
                "on held-out rows it rounds more than the imported program",
                output=over[0],
                relative=off.along[over[0]],
                imported=base.along[over[0]],
                times=ROUNDING,
            )
    rounding, rows = next(iter(allowed.values())), int(exact.starts(workload.verify)[-1])

    def state(point: Point, off: Off, change: Compared, theirs: float) -> Point:
        """Return a point with its measured and stated errors, and the verdict on its outputs."""
        measured, judged = max(off.free.values()), off.free if point.methods else off.along
        beside = run_beside(point.program, searched.opened.operator, [few], [near], exact=not point.methods)
        shown = Change.of(beside.found[0], beside.alone[0], point.program.starts(few))
        checked = max(measured, shown.relative, theirs + rounding)
        # EQUAL is added below, the allowed difference of two float64 readings
        routed = RoutedChange(change.along, others[point.program]) if point.program in others else None
        worst = float(shown.each.max()) + EQUAL
        stated = Stated.of(change.change, change.cosines, rounding, checked + EQUAL, routed, worst)
        return replace(
            point,
            predicted_error=float(np.hypot(point.predicted_error, rounding)),
            measured_error=measured,
            verified=all(judged[name] <= float(np.hypot(point.stated_error, most)) for name, most in allowed.items()),
            stated=stated,
            stated_error=stated.error,
            checks={
                "error": {
                    "relative": measured,
                    "stated": stated.error,
                    "rows": rows,
                    "like": workload.like,
                    **stated.described(),
                    **describe_routing(off.flips, max(off.along.values())),
                }
            },
        )

    return next(iter(base.free.values())), [
        state(*row) for row in zip(points, offs, changes, given_errors, strict=True)
    ]


def constants_of(searched: Searched, choices: Choices, point: Point) -> Unrounded:
    """Return the constants of a point's program before they were rounded."""
    if point.structure is None or not point.methods:
        return unrounded(searched.optimum, searched.emitter)
    return unrounded(point.structure, emitter_of(choices, point))


def emitter_of(choices: Choices, point: Point) -> Emitter:
    """Return the emitter with the origins of the constants of an approximate program."""
    assert point.structure is not None
    return point.variant.sources(point.structure, point.program) if point.variant else choices.sources[point.program]


@dataclass(frozen=True, eq=False)
class LengthChecks:
    """The checks of programs at lengths that their sentences do not have (rewrites.verify.lengths), each kind of step
    once: the lengths; their batches, in shares that run at once; and the batches at which the model is read, too."""

    searched: Searched
    points: Sequence[Point]
    lengths: Lengths
    shares: Sequence[tuple[Sequence[Batch], Steps]]
    near: Sequence[Batch]

    @classmethod
    def of(cls, searched: Searched, points: Sequence[Point], few: Batch) -> "LengthChecks":
        """Return the checks of the import and of the points' programs; without lengths where batches of other lengths
        cannot be made."""
        opened, timed = searched.opened, searched.workload.lengths_run
        programs = [point.program for point in points]
        limits = [
            opened.meta.get("config", {}).get("max_position_embeddings"),
            *(need.limit for need in collect_needs(*opened.outputs.values())[0]),
        ]
        lengths = lengths_of(programs, timed, min((most for most in limits if most is not None), default=None))
        near = stated_at(searched.programs["imported"], lengths, timed) if lengths else ()
        longest: tuple[int, ...] = max((batch for batch in lengths if len(batch) == 1), default=())
        shares = [[longest], [batch for batch in lengths if batch != longest]] if longest else []
        return cls(
            searched,
            points,
            lengths,
            [(batches_at(share, few), Steps.at(lengths, programs, timed)) for share in shares],
            batches_at(near, few),
        )

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return the checks that may run beside others, by name; none without lengths."""
        if not self.lengths:
            return {}
        steps = {f"lengths {at}": partial(self.verify_steps, *share) for at, share in enumerate(self.shares)}
        return {**steps, "model at lengths": self.read_model}

    def verify_steps(self, batches: Sequence[Batch], steps: Steps) -> None:
        """Verify the steps of every program at a share of the lengths."""
        for point in self.points:
            verify_lengths(point.program, batches, steps)

    def read_model(self) -> tuple[list[Batch], list[np.ndarray]]:
        """Read the model at the lengths, and verify the exact program there; rows that are zero or not finite are left
        out, as beside other rows a relative error means nothing."""
        searched, model = self.searched, self.searched.opened.operator
        known = [
            (batch, rows)
            for batch, rows in zip(self.near, oracle(model, self.near), strict=True)
            if rows.any() and np.isfinite(rows).all()
        ]
        told, wanted = [batch for batch, _ in known], [rows for _, rows in known]
        if told:
            verify_structure(searched.exact, told, unrounded(searched.optimum, searched.emitter), wanted, model)
        return told, wanted

    def state(self, points: Sequence[Point], told: Sequence[Batch], wanted: Sequence[np.ndarray]) -> list[Point]:
        """Return points with the lengths and the errors at some of them. Raises VerificationError for an exact program
        that rounds too much."""
        model, imported = self.searched.opened.operator, self.searched.programs["imported"]
        programs = [(imported, True), *((point.program, not point.methods) for point in points)]
        base, *errors = errors_at(programs, model, told, wanted)
        for point, error in zip(points, errors, strict=True):
            if not point.methods:
                verify_rounding(point.program, error, base, model, told)
        nearest = max(steps.nearest for _, steps in self.shares)
        return [
            replace(
                point, lengths=self.lengths, checks=point.checks | {"lengths": {"nearest": nearest, "errors": error}}
            )
            for point, error in zip(points, errors, strict=True)
        ]


def run_and_release(call: Callable[[], T]) -> T:
    """Return the result of a check, after which freed memory is given back."""
    try:
        return call()
    finally:
        release_memory()


def check_programs(
    searched: Searched,
    choices: Choices,
    points: Sequence[Point],
    laws_verified: dict[str, object],
    few: Sequence[Batch],
    near: np.ndarray,
) -> list[Point]:
    """Return points with the results of level 3 on a few rows, for which the model's output is `near`: of the exact
    program, which all points share; of each other program its structure, equal ones once, and its steps; and of all of
    them the results at other lengths and, once for each kind of attention, in sessions. Raises VerificationError."""
    exact, structure, opened = searched.exact, searched.optimum, searched.opened
    constants, told = unrounded(structure, searched.emitter), set[Hashable]()
    calls: dict[str, Callable[[], Any]] = {
        "exact": partial(
            verify_exact, exact, opened.operator, few, searched.programs["imported"], constants, [near], told
        ),
        "import": partial(verify_steps, searched.programs["imported"], few, told),
    }
    lengths = LengthChecks.of(searched, points, few[0])
    calls |= lengths.calls()
    if len(opened.outputs) > 1:
        calls["outputs"] = partial(verify_outputs, exact, opened.outputs, few, constants)
    # by reading: the name of the call that checks it
    read: dict[Hashable, str] = {(None, reading(exact, structure, searched.emitter)): "exact"}
    products = ProductsSeen()  # steps whose weights several programs hold
    # by point: the call that checks its structure, and further entries of its checks
    whose, details = dict[int, str](), dict[int, dict[str, object]]()
    for at, point in enumerate(points):
        if not point.methods:
            continue
        assert point.structure is not None
        variant, substitutions = point.variant, [*point.structure.substitutions.values()]
        emitter = emitter_of(choices, point)
        wanted, details[at] = variant.verified(few[0]) if variant else (near, {})
        meant = variant.operator if variant else opened.operator
        if substitutions:
            meant = substitute_blocks(part_factors(opened.model), substitutions)
            wanted, details[at] = dense(meant, few[0]), {"detours": [*map(str, substitutions)]}
        same = variant and variant.operator, reading(point.program, point.structure, emitter)
        whose[at] = read.setdefault(same, name := f"structure {at}")
        if whose[at] == name:
            calls[name] = partial(
                verify_structure, point.program, few, unrounded(point.structure, emitter), [wanted], meant
            )
        calls[f"steps {at}"] = partial(verify_steps, point.program, few, told, products)
    sessions = SessionChecks.of((point.program for point in points), few[0], Sessions.of(lengths.lengths))
    every = in_threads(partial(run_and_release, call) for call in chain(calls.values(), sessions.calls()))
    results = dict(zip(calls, every, strict=False))
    sessions.note(every[len(calls) :])
    shared = laws_verified | {name: results[name] for name in ("exact", "import", "outputs") if name in results}
    structures = results | {"exact": results["exact"]["float64"]}

    def checks(at: int) -> dict[str, object]:
        """Return the results of a point of its own: its steps and its structure."""
        if at not in whose:
            return {}
        return {**details[at], "exact": None, "steps": results[f"steps {at}"], "structure": structures[whose[at]]}

    points = [replace(point, checks=shared | point.checks | checks(at)) for at, point in enumerate(points)]
    if lengths.lengths:
        points = lengths.state(points, *results["model at lengths"])
    return [
        replace(point, checks=point.checks | {"sessions": sessions.sessions.described()}) if decodes else point
        for point, decodes in zip(points, sessions.decodes, strict=True)
    ]
