"""From a program over whole sequences to one over their new rows, whose keys and values of earlier rows lie in caches.

Every step but attention computes a row from that row alone, its position among it. So attention reads its keys and values from
caches, to which the new rows' are appended just before; RoPE has turned them by then."""
from opmatrix.errors import InputError
from opmatrix.patterns import parse
from opmatrix.program import Program, Step
from opmatrix.runtime.kernels import CAUSAL
from opmatrix.runtime.seen import pattern
from opmatrix.runtime.values import Heads


def cached(program: Program) -> Program:
    """A program with state whose session computes, of new rows, what `program` computes of whole sequences: it has the same steps, but
    attention in float32 over caches. Raises InputError where a step reads other rows in any other way than as causal attention
    within sequences."""
    steps: list[Step] = []
    shapes = {step.output: call.shape for step, call in zip(program.steps, program.schedule.calls, strict=True)}
    heads = {name: shape for name, shape in shapes.items() if isinstance(shape, Heads)}
    caches: dict[str, str] = {}
    for i, (step, call) in enumerate(zip(program.steps, program.schedule.calls, strict=True)):
        if not call.kernel.mixes:
            steps.append(step)
            continue
        if not call.kernel.cached or not (seen := pattern(call.bound)).within or seen.reach != parse(CAUSAL).reach:
            raise InputError(f"step {i}, {step.output} = {step.kernel}: it reads other rows; of new rows alone only attention where "
                             f"{CAUSAL!r} can be computed")
        for name in (step.operands[operand] for operand in "kv"):
            if name in caches: continue
            number, state, caches[name] = len(caches), f"cache {name}", f"cached {name}"
            steps.append(Step("append", {"x": name, "cache": state}, {}, caches[name]))
            shape = {"number": number, "heads": heads[name].heads, "cols": heads[name].cols}
            steps.insert(number, Step("state", {}, shape, state))
        operands = {"q": step.operands["q"], **{each: caches[step.operands[each]] for each in "kv"}}
        steps.append(Step(call.kernel.cached, operands, {"scale": step.attributes.get("scale", 1.0)}, step.output))
    if not caches: raise InputError("cached: no step of this program is attention: nothing is to be cached")
    meta = {name: entry for name, entry in program.meta.items() if name != "certificate"}
    return Program(steps, program.constants, program.output, meta)
