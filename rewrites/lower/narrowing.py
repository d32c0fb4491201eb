"""Attention between products of narrow numbers: what it reads is no more exact than they are, so neither need it be.

A step after a program is chosen; the program's error is measured with it."""
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from formats.format import Format
from opmatrix.program import Program, Step
from opmatrix.runtime.kernel import Arguments
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from rewrites.lower.mixed import Mean
from rewrites.lower.price import Prices

NARROW = "bf16"


def narrowed(program: Program, prices: Prices | Mean) -> Program:
    """The program with attention in bfloat16 wherever q, k and v come from products that round what they multiply, and
    the machine is quicker so. The same program where that is nowhere, and where sessions run it, whose attention is
    over caches."""
    if any(each.cached for _, each in prices.parts): return program
    steps, calls = list(program.steps), program.schedule.calls
    for i, call in enumerate(calls[program.schedule.first:]):
        if not narrows(call) or not all(rounds_product(calls, v) for v in call.values.values()):
            continue
        wide, narrow = (prices.spent(partial(call.kernel.cost, with_number_type(call, kind), call.shape))
                        for kind in ("float32", NARROW))
        if narrow < wide:
            steps[i] = with_attributes(steps[i], {"number_type": NARROW})
    return program if steps == list(program.steps) else program.over(steps)


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
