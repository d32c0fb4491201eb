"""Attention in bfloat16 between products of narrow numbers: its operands are no more exact than these products, so it
need not be more exact either, nor the keys and values that sessions store.

A step after a program is chosen; the program's error is measured with it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from formats.storage.format import Format
from opmatrix.algebra.batch.signature import FLOAT, HALF
from opmatrix.runtime.declarations.kernel import Arguments
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices, cost_in_session

NARROW = "bf16"


def narrowed(program: Program, prices: Prices | Mean) -> Program:
    """Return the program with attention in bfloat16 wherever q, k and v come from products that round their inputs, and
    the machine is faster so. Where sessions run the program, its caches are bfloat16 instead. Returns the same program
    if no step changes."""
    if any(part.cached for _, part in prices.parts):
        return with_narrow_caches(program, prices)
    steps, calls = list(program.steps), program.schedule.calls
    for i, call in enumerate(calls[program.schedule.first :]):
        if not narrows(call) or not all(rounds_product(calls, v) for v in call.values.values()):
            continue
        wide, narrow = (
            prices.spent(partial(call.kernel.cost, with_number_type(call, kind), call.shape))
            for kind in ("float32", NARROW)
        )
        if narrow < wide:
            steps[i] = with_attributes(steps[i], {"number_type": NARROW})
    return program if steps == list(program.steps) else program.over(steps)


def with_narrow_caches(program: Program, prices: Prices | Mean) -> Program:
    """Return the program with keys and values rounded to bfloat16 wherever they come from products that round their
    inputs and attention over such caches is faster. Its sessions then store them so."""
    calls, steps = program.schedule.calls, list[Step]()
    narrowed_values = set[str]()
    for step, call in zip(program.steps, calls[program.schedule.first :], strict=True):
        if (
            call.kernel.cached_variant
            and saved_by_caches(call, prices) > 0
            and all(from_rounded(calls, call.values[operand]) for operand in "kv")
        ):
            caches = {operand: f"{step.operands[operand]} {NARROW}" for operand in "kv"}
            for operand, name in caches.items():
                if name not in narrowed_values:
                    steps.append(Step("narrow", {"x": step.operands[operand]}, {}, name))
                narrowed_values.add(name)
            step = replace(step, operands={**step.operands, **caches})
        steps.append(step)
    return program.over(steps) if narrowed_values else program


def saved_by_caches(call: Call, prices: Prices | Mean) -> float:
    """Return the seconds that caches of bfloat16 save in a step of attention in a session."""
    wide, half = (
        prices.spent(partial(cost_in_session, call.kernel, call.bound, call.shape, number=number))
        for number in (FLOAT, HALF)
    )
    return wide - half


def held_narrow(program: Program, prices: Prices | Mean) -> tuple[int, float]:
    """Return the number of attention steps that read caches of bfloat16 in a program's sessions, and the seconds that
    this saves."""
    bound = [*zip(program.steps, program.schedule.calls[program.schedule.first :], strict=True)]
    held = {step.output for step, call in bound if call.kernel.held_as}
    saved = [
        saved_by_caches(call, prices)
        for step, call in bound
        if call.kernel.cached_variant and step.operands["k"] in held
    ]
    return len(saved), sum(saved)


def most_held(program: Program, prices: Prices | Mean) -> float:
    """Return the seconds that a program would save at most if each of its caches had the faster number type; 0 where no
    session is priced."""
    if not any(part.cached for _, part in prices.parts):
        return 0.0
    return sum(max(0.0, saved_by_caches(call, prices)) for call in program.schedule.calls if call.kernel.cached_variant)


def from_rounded(calls: list[Call], value: int) -> bool:
    """True if a value is computed, row by row, from a product whose format rounds its inputs."""
    call = calls[value]
    weight = getattr(call.bound, "weight", None)
    if isinstance(weight, Format):
        return weight.rounds
    return not call.kernel.row_mixing and "x" in call.values and from_rounded(calls, call.values["x"])


def narrows(call: Call) -> bool:
    """True if a kernel can compute in narrower numbers, too. It can where each query sees a range of positions, and
    scores have no cap and no sink."""
    if "number_type" not in call.kernel.attributes or call.bound.cap or call.bound.margin is not None:
        return False
    return pattern(call.bound).reach is not None


def with_number_type(call: Call, kind: str) -> Arguments:
    """Return the bound arguments of a call and its operands' shapes, in another number type."""
    return call.kernel.record(**vars(call.bound) | {"number_type": kind})


def rounds_product(calls: list[Call], value: int) -> bool:
    """True if a value is a product, or a view of one, whose format rounds its inputs."""
    call = calls[value]
    if call.kernel.view:
        return rounds_product(calls, call.values["x"])
    weight = getattr(call.bound, "weight", None)
    return isinstance(weight, Format) and weight.rounds


def with_attributes(step: Step, more: Mapping[str, float | str]) -> Step:
    """Return a step with some attributes replaced."""
    return replace(step, attributes={**step.attributes, **more})
