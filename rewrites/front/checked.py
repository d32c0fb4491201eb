"""The programs of a run, checked step by step on a few rows, several at a time."""
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from formats.machine.threads import in_threads
from opmatrix.oracles import dense
from opmatrix.patterns import Batch
from rewrites.compiler.detours import detoured, part_factors
from rewrites.verify.programs import (
    reading,
    unrounded,
    verify_exact,
    verify_outputs,
    verify_steps,
    verify_structure,
)

if TYPE_CHECKING:
    from rewrites.run import Run


def check_programs(run: "Run", laws_verified: dict[str, Any], few: Sequence[Batch], near: np.ndarray) -> None:
    """Adds to the checks of every point of a run what level 3 finds on a few rows, for which the model gives `near`:
    of the exact program, which serves all, then of each other one its structure, equal ones once, and its steps.
    Raises VerificationError."""
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
        taken = [*point.structure.detours.values()]
        if taken:
            wanted, told = dense(detoured(part_factors(run.model), taken), few[0]), {"detours": [*map(str, taken)]}
        point.checks |= told
        same = own and own.operator, reading(point.program, point.structure, emitter)
        whose[at] = read.setdefault(same, own_name := f"structure {at}")
        if whose[at] == own_name:
            calls[own_name] = partial(verify_structure, point.program, few, unrounded(point.structure, emitter),
                                      [wanted])
        calls[f"steps {at}"] = partial(verify_steps, point.program, few)
    found = dict(zip(calls, in_threads(calls.values()), strict=True))
    shared = laws_verified | {name: found[name] for name in ("exact", "outputs") if name in found}
    structures = found | {"exact": found["exact"]["float64"]}
    for at, point in enumerate(run.points):
        point.checks = shared | point.checks
        if at in whose:
            point.checks |= {"exact": None, "steps": found[f"steps {at}"], "structure": structures[whose[at]]}
