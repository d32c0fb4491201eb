"""Attention between products of narrow numbers: what it reads is no more exact than they are, so neither need it be;
nor what sessions keep of keys and values.

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
    """The program with attention in bfloat16 wherever q, k and v come from products that round what they multiply, and
    the machine is quicker so; where sessions run it, with caches of bfloat16. The same program where that is
    nowhere."""
    if any(each.cached for _, each in prices.parts): return with_narrow_caches(program, prices)
    steps, calls = list(program.steps), program.schedule.calls
    for i, call in enumerate(calls[program.schedule.first:]):
        if not narrows(call) or not all(rounds_product(calls, v) for v in call.values.values()):
            continue
        wide, narrow = (prices.spent(partial(call.kernel.cost, with_number_type(call, kind), call.shape))
                        for kind in ("float32", NARROW))
        if narrow < wide:
            steps[i] = with_attributes(steps[i], {"number_type": NARROW})
    return program if steps == list(program.steps) else program.over(steps)


def with_narrow_caches(program: Program, prices: Prices | Mean) -> Program:
    """The program with keys and values rounded to bfloat16, as which its sessions then keep them, wherever they come
    from products that round what they multiply, and attention over such caches is quicker."""
    calls, steps = program.schedule.calls, list[Step]()
    made = set[str]()
    for step, call in zip(program.steps, calls[program.schedule.first:], strict=True):
        if call.kernel.cached_variant and saved_by_caches(call, prices) > 0 and all(
                from_rounded(calls, call.values[each]) for each in "kv"):
            kept = {each: f"{step.operands[each]} {NARROW}" for each in "kv"}
            for each, name in kept.items():
                if name not in made: steps.append(Step("narrow", {"x": step.operands[each]}, {}, name))
                made.add(name)
            step = replace(step, operands={**step.operands, **kept})
        steps.append(step)
    return program.over(steps) if made else program


def saved_by_caches(call: Call, prices: Prices | Mean) -> float:
    """Seconds that a step of attention takes less in sessions over caches of bfloat16."""
    wide, half = (prices.spent(partial(cost_in_session, call.kernel, call.bound, call.shape, number=number))
                  for number in (FLOAT, HALF))
    return wide - half


def held_narrow(program: Program, prices: Prices | Mean) -> tuple[int, float]:
    """How many steps of attention read caches of bfloat16 in a program's sessions, and the seconds that they take less
    for it."""
    bound = [*zip(program.steps, program.schedule.calls[program.schedule.first:], strict=True)]
    held = {step.output for step, call in bound if call.kernel.held_as}
    saved = [saved_by_caches(call, prices) for step, call in bound
             if call.kernel.cached_variant and step.operands["k"] in held]
    return len(saved), sum(saved)


def most_held(program: Program, prices: Prices | Mean) -> float:
    """Seconds that a program would take less at most, had all of its caches the better number type; none where no
    session is priced."""
    if not any(each.cached for _, each in prices.parts): return 0.0
    return sum(max(0.0, saved_by_caches(call, prices)) for call in program.schedule.calls if call.kernel.cached_variant)


def from_rounded(calls: list[Call], value: int) -> bool:
    """Whether a value is computed, row by row, of a product whose format rounds what it multiplies."""
    call = calls[value]
    weight = getattr(call.bound, "weight", None)
    if isinstance(weight, Format): return weight.rounds
    return not call.kernel.row_mixing and "x" in call.values and from_rounded(calls, call.values["x"])


def narrows(call: Call) -> bool:
    """Whether a kernel computes in narrower numbers too, which it does where whom a query sees is a range of
    positions."""
    return "number_type" in call.kernel.attributes and pattern(call.bound).reach is not None


def with_number_type(call: Call, kind: str) -> Arguments:
    """The bound arguments of a call and its operands' shapes, in another number type."""
    return call.kernel.record(**vars(call.bound) | {"number_type": kind})


def rounds_product(calls: list[Call], value: int) -> bool:
    """Whether a value is a product, or a view of one, whose format rounds what it multiplies."""
    call = calls[value]
    if call.kernel.view: return rounds_product(calls, call.values["x"])
    weight = getattr(call.bound, "weight", None)
    return isinstance(weight, Format) and weight.rounds


def with_attributes(step: Step, more: Mapping[str, float | str]) -> Step:
    """A step with other attributes."""
    return replace(step, attributes={**step.attributes, **more})
