"""From a program over whole sequences to one over their new rows, whose keys and values of earlier rows lie in caches.

Every step but attention computes a row from that row alone, its position among it, or is about the last row of each sequence, which is
new. So attention reads its keys and values from caches, to which the new rows' are appended just before; RoPE has turned them by then."""
from formats.core.errors import InputError
from opmatrix.patterns import parse
from opmatrix.program import Program, Step
from opmatrix.runtime.kernels import CAUSAL
from opmatrix.runtime.operands import Heads
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern


def cached(program: Program) -> Program:
    """A program with state whose session computes, of new rows, what `program` computes of whole sequences: it has the same steps, but
    attention in float32 over caches. Raises InputError where a step reads other rows in any other way than as causal attention
    within sequences."""
    steps: list[Step] = []
    shapes = {step.output: call.shape for step, call in zip(program.steps, program.schedule.calls, strict=True)}
    heads = {name: shape for name, shape in shapes.items() if isinstance(shape, Heads)}
    caches: dict[str, str] = {}
    for i, (step, call) in enumerate(zip(program.steps, program.schedule.calls, strict=True)):
        if of_new_rows(call):
            steps.append(step)
            continue
        if not causal(call):
            raise InputError(f"step {i}, {step.output} = {step.kernel}: it reads other rows; of new rows alone only attention where "
                             f"{CAUSAL!r} can be computed")
        for name in (step.operands[operand] for operand in "kv"):
            if name in caches: continue
            number, state, caches[name] = len(caches), f"cache {name}", f"cached {name}"
            steps.append(Step("append", {"x": name, "cache": state}, {}, caches[name]))
            shape = {"number": number, "heads": heads[name].heads, "cols": heads[name].cols}
            steps.insert(number, Step("state", {}, shape, state))
        operands = {"q": step.operands["q"], **{each: caches[step.operands[each]] for each in "kv"}}
        last = {"rows": "last"} if hasattr(call.bound, "query") else {}
        steps.append(Step(call.kernel.cached, operands, {"scale": step.attributes.get("scale", 1.0), **last}, step.output))
    if not caches: raise InputError("cached: no step of this program is attention: nothing is to be cached")
    meta = {name: entry for name, entry in program.meta.items() if name != "certificate"}
    return Program(steps, program.constants, program.output, meta)


def of_new_rows(call: Call) -> bool:
    """Whether a step computes each row from one that is new: itself, or the last of its sequence."""
    moved = getattr(call.bound, "how", getattr(call.bound, "rows", ""))
    return not call.kernel.mixes and (not call.kernel.moves or moved in ("all", "last"))


def causal(call: Call) -> bool:
    """Whether a step is attention of rows to those up to themselves; the last of a sequence sees no others."""
    if not call.kernel.cached: return False
    seen, wanted = pattern(call.bound), parse(CAUSAL).reach
    if query := getattr(call.bound, "query", ""): return query == "last" and seen.within and (seen & parse(CAUSAL)).reach == wanted
    return seen.within and seen.reach == wanted
