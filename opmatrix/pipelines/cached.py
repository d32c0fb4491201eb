"""From a program that was found for whole sequences to one of their new rows, step by step: keys and values of earlier
rows lie in caches. What runs a saved program imports no terms for it (cached_terms.py is of a model).

Every operator but attention computes a row from that row alone, its position among it, or is about the last row of each
sequence, which is new. So attention reads its keys and values from caches, to which the new rows' are appended just
before; RoPE has turned them by then."""
from collections.abc import Callable

from formats.core.errors import InputError
from opmatrix.patterns import parse
from opmatrix.program import Program, Step
from opmatrix.runtime.operands import C, Heads
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern
from opmatrix.signature import FLOAT, Port, check_cache

CAUSAL = "sequence & causal"                                # whom rows of caches see
ELSEWHERE = f"it reads other rows; of new rows alone only attention where {CAUSAL!r} can be computed"


def cached(program: Program, number: str = FLOAT) -> Program:
    """A program with state whose session computes, of new rows, what `program` computes of whole sequences: it has the
    same steps, but attention in float32 over caches, which hold numbers of this type: float32, or bf16, to which keys
    and values are rounded. Raises InputError for another type, and where a step reads other rows in any other way than
    as causal attention within sequences."""
    check_cache(number)
    rounds = {} if number == FLOAT else {"number": number}
    steps: list[Step] = []
    bound = [*zip(program.steps, program.schedule.calls[program.schedule.first:], strict=True)]
    heads = {step.output: call.shape for step, call in bound if isinstance(call.shape, Heads)}
    ports: dict[str, Port] = {}
    for i, (step, call) in enumerate(bound):
        if of_new_rows(call):
            steps.append(step)
            continue
        if not causal(call): raise InputError(f"step {i}, {step.output} = {step.kernel}: {ELSEWHERE}")
        for name in (step.operands[operand] for operand in "kv"):
            if name in ports: continue
            ports[name] = Port(f"cache {name}", str(C), heads[name].cols, heads[name].heads, number)
            steps.append(Step("append", {"x": name, "cache": ports[name].name}, rounds, behind(name)))
        operands = {"q": step.operands["q"], **{each: behind(step.operands[each]) for each in "kv"}}
        last = {"rows": "last"} if hasattr(call.bound, "query") else {}
        steps.append(Step(call.kernel.cached_variant, operands, {"scale": step.attributes.get("scale", 1.0), **last},
                          step.output))
    if not ports: raise InputError("cached: no step of this program is attention: nothing is to be cached")
    meta = {name: entry for name, entry in program.meta.items() if name != "certificate"}
    state = {port.name: behind(name) for name, port in ports.items()}
    return Program(steps, program.constants, program.outputs, meta, inputs=[*program.inputs, *ports.values()],
                   state=state)


behind: Callable[[str], str] = "cached {}".format           # the name of a cache with the new rows of a value


def of_new_rows(call: Call) -> bool:
    """Whether a step computes each row from one that is new: itself, or the last of its sequence."""
    moved = getattr(call.bound, "how", getattr(call.bound, "rows", ""))
    return not call.kernel.row_mixing and (not call.kernel.changes_space or moved in ("all", "last"))


def causal(call: Call) -> bool:
    """Whether a step is attention of rows to those up to themselves; the last of a sequence sees no others."""
    if not call.kernel.cached_variant: return False
    seen, wanted = pattern(call.bound), parse(CAUSAL).reach
    if query := getattr(call.bound, "query", ""):
        return query == "last" and seen.within and (seen & parse(CAUSAL)).reach == wanted
    return seen.within and seen.reach == wanted
