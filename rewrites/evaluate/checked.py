"""The programs of a run against the model: their errors on held-out rows, and step by step on a few, several at a
time."""
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from formats.machine.threads import in_threads
from opmatrix.algebra.oracles import dense
from opmatrix.batch import Batch
from opmatrix.extents import collect_needs
from rewrites.compiler.substitutions import detoured, part_factors
from rewrites.evaluate.compared import GROUP_ROWS, compare
from rewrites.verify.differences import difference
from rewrites.verify.failure import VerificationError
from rewrites.verify.lengths import (
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
    allowed_rounding,
    oracle,
    reading,
    unrounded,
    verify_exact,
    verify_outputs,
    verify_steps,
    verify_structure,
)
from rewrites.workload.stated import Stated

if TYPE_CHECKING:
    from rewrites.run import Run


def state_errors(run: "Run", few: Batch, near: np.ndarray) -> None:
    """How far the programs of a run are from the model on held-out rows, and what is stated of each; `near` is what the
    model gives for a few of these. A program is verified where it is as near as was planned, output by output: what the
    plan says, and what an exact one may round. Raises VerificationError for an exact program that is not."""
    exact, imported, workload = run.programs["exact"], run.programs["imported"], run.workload
    model = {name: run.outputs[name] for name in exact.outputs}
    every = [imported, *(point.program for point in run.points)]
    (base, *offs), changes = compare(every, model, workload.verify, workload.state)
    run.imported.measured_error = run.imported.predicted_error = next(iter(base.values()))
    allowed = {name: ROUNDING * off for name, off in base.items()}
    for point, off in zip(run.points, offs, strict=True):
        if point.methods: continue
        batches = [*workload.verify.pieces(GROUP_ROWS)]
        allowed = {name: max(most, allowed_rounding(off[name], base[name], model[name], batches))
                   for name, most in allowed.items()}
        if over := [name for name, most in allowed.items() if not off[name] <= most]:
            raise VerificationError(3, "exact", "on held-out rows it rounds more than the imported program",
                                    output=over[0], relative=off[over[0]], imported=base[over[0]], times=ROUNDING)
    rounding = next(iter(allowed.values()))
    for point, off, change in zip(run.points, offs, changes, strict=True):
        point.predicted_error = float(np.hypot(point.predicted_error, rounding))
        point.verified = all(off[name] <= float(np.hypot(point.stated_error, most)) for name, most in allowed.items())
        point.measured_error = max(off.values())
        checked = max(point.measured_error, difference(point.program.run(few), near))
        point.stated = Stated.of(*change, rounding, checked + EQUAL)         # as near as two float64 readings are
        point.stated_error = point.stated.error
        point.checks = {"error": {
            "relative": point.measured_error, "stated": point.stated_error,
            "rows": int(exact.starts(workload.verify)[-1]), "like": workload.like, **point.stated.described()}}


def check_lengths(run: "Run", few: Batch) -> None:
    """Looks at every program of a run at lengths that its sentences do not have (rewrites.verify.lengths), at each kind
    of step once, and notes the lengths and how far the program is off at some of them. Raises VerificationError."""
    timed = [batch for _, batch in run.workload.shares]
    every = [run.programs["imported"], *(point.program for point in run.points)]
    limits = [run.meta.get("config", {}).get("max_position_embeddings"),
              *(each.limit for each in collect_needs(*run.outputs.values())[0])]
    lengths = lengths_of(every[1:], timed, min((each for each in limits if each is not None), default=None))
    if not lengths: return
    batches, near = batches_at(lengths, few), batches_at(stated_at(every[0], lengths, timed), few)
    steps = Steps.at(lengths, every[1:], timed)

    def look() -> None:
        for point in run.points: verify_lengths(point.program, batches, steps)

    def read() -> tuple[list[Batch], list[np.ndarray]]:
        known = [(batch, rows) for batch, rows in zip(near, oracle(run.operator, near), strict=True)
                 if rows.any() and np.isfinite(rows).all()]                  # beside others no error is a share
        told, wanted = [batch for batch, _ in known], [rows for _, rows in known]
        constants = unrounded(run.structures["exact"], run.emitter)
        if told: verify_structure(run.programs["exact"], told, constants, wanted, run.operator)
        return told, wanted
    told, wanted = in_threads([look, read])[1]
    errors = errors_at(every, told, wanted)
    for point, found in zip(run.points, errors[1:], strict=True):
        if not point.methods: verify_rounding(point.program, found, errors[0], run.operator, told)
        point.lengths = lengths
        point.checks |= {"lengths": {"nearest": steps.nearest, "errors": found}}


def check_programs(run: "Run", laws_verified: dict[str, Any], few: Sequence[Batch], near: np.ndarray) -> None:
    """Adds to the checks of every point of a run what level 3 finds on a few rows, for which the model gives `near`:
    of the exact program, which serves all, then of each other one its structure, equal ones once, and its steps; and of
    all of them what it finds at other lengths. Raises VerificationError."""
    exact, structure = run.programs["exact"], run.structures["exact"]
    constants = unrounded(structure, run.emitter)
    calls: dict[str, Callable[[], Any]] = {"exact": partial(
        verify_exact, exact, run.operator, few, run.programs["imported"], constants, [near])}
    if len(run.outputs) > 1: calls["outputs"] = partial(verify_outputs, exact, run.outputs, few, constants)
    read: dict[Any, str] = {(None, reading(exact, structure, run.emitter)): "exact"}     # who checks what reads so
    whose: dict[int, str] = {}
    for at, point in enumerate(run.points):
        if not point.methods: continue
        assert run.choices is not None and point.structure is not None
        own = point.variant
        emitter = own.sources(point) if own else run.choices.sources[point.program]
        wanted, told = own.verified(few[0]) if own else (near, {})
        meant = own.operator if own else run.operator
        taken = [*point.structure.detours.values()]
        if taken:
            meant = detoured(part_factors(run.model), taken)
            wanted, told = dense(meant, few[0]), {"detours": [*map(str, taken)]}
        point.checks |= told
        same = own and own.operator, reading(point.program, point.structure, emitter)
        whose[at] = read.setdefault(same, own_name := f"structure {at}")
        if whose[at] == own_name:
            calls[own_name] = partial(verify_structure, point.program, few, unrounded(point.structure, emitter),
                                      [wanted], meant)
        calls[f"steps {at}"] = partial(verify_steps, point.program, few)
    found = dict(zip(calls, in_threads(calls.values()), strict=True))
    shared = laws_verified | {name: found[name] for name in ("exact", "outputs") if name in found}
    structures = found | {"exact": found["exact"]["float64"]}
    for at, point in enumerate(run.points):
        point.checks = shared | point.checks
        if at in whose:
            point.checks |= {"exact": None, "steps": found[f"steps {at}"], "structure": structures[whose[at]]}
    check_lengths(run, few[0])
