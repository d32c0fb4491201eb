"""Steps that are evaluated as terms because no kernel computes them: their number, their share of the time, and
remedies."""

import json
from functools import partial
from typing import Any

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.term import Operator
from opmatrix.runtime.declarations.arguments import split_operands
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.fold_term import find_fold
from opmatrix.runtime.kernels.row_term import find_kernel
from opmatrix.runtime.program import Program, Step
from rewrites.laws.epilogues import HEADS, STAGES
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices

TERM = "term"  # the attribute that holds the term of a step
GUIDE = "docs/add_a_kernel.md"
INTERPRET = KERNELS["interpret"]


def find_evaluated(program: Program, batch: Batch, rounds: int, prices: Prices | Mean) -> dict[str, object] | None:
    """Return the steps of a program that evaluate terms, as in the report: their number, that of all steps, their
    share of the time of a run of the batch, True if that is measured rather than predicted, and the kinds of their
    operators that no kernel computes. None if there are no such steps."""
    steps = [step for step in program.steps if is_evaluated(step)]
    if not steps:
        return None
    try:
        share, measured = measured_share(program, batch, rounds, {step.output for step in steps}), True
    except RuntimeError:
        share, measured = predicted_share(program, prices), False
    nodes = [node for step in steps for node in json.loads(str(step.attributes[TERM])) if node[0] != "value"]
    kinds = {
        name_kind(kind, [word["over"] for word in words if isinstance(word, dict) and "over" in word])
        for kind, _, words in nodes
    }
    return {
        "steps": len(steps),
        "of": len(program.steps),
        "share": share,
        "measured": measured,
        "kinds": sorted(kinds - computed_kinds()),
        "places": find_places(program),
    }


def is_evaluated(step: Step) -> bool:
    """True if a step evaluates a term in Python instead of launching a kernel."""
    return KERNELS[step.kernel] is INTERPRET


def find_places(program: Program) -> list[str]:
    """Return the places in users' functions that could not be traced, so that their terms are evaluated."""
    from opmatrix.runtime.codegen.row_reading import NotByRows

    places: dict[str, None] = {}
    for call in program.schedule.calls:
        if call.kernel is not INTERPRET:
            continue
        for find in (partial(find_kernel, call.bound.term, split_operands(call.bound)), partial(find_fold, call.bound)):
            try:
                find()
            except NotByRows as error:
                if error.traced:
                    places[str(error)] = None
            except ValueError:
                continue  # a table of a pattern is read, so rows mix
    return [*places]


def measured_share(program: Program, batch: Batch, rounds: int, outputs: set[str]) -> float:
    """Return the share of runs that the steps with these outputs take. Raises RuntimeError if native code has no
    clock."""
    profile = program.profile(batch, rounds)
    return sum(sum(taken) for name, taken in profile.steps.items() if name in outputs) / sum(profile.runs)


def predicted_share(program: Program, prices: Prices | Mean) -> float:
    """Return the share of a run that the steps which evaluate terms take, by their prices, which are guesses."""
    seconds = {True: 0.0, False: 0.0}
    calls = program.schedule.calls[program.schedule.first :]
    for step, call in zip(program.steps, calls, strict=True):
        if not (call.kernel.view or call.kernel.is_input):
            seconds[is_evaluated(step)] += prices.spent(partial(call.kernel.cost, call.bound, call.shape))
    return seconds[True] / sum(seconds.values())


def name_kind(kind: str, monoids: list[str]) -> str:
    """Return a kind of operator, with its monoids; for a user's own definition only the name."""
    kind, *over = (words.partition(":")[0] for words in (kind, *monoids))
    return f"{kind}({', '.join(over)})" if over else kind


def computed_kinds() -> set[str]:
    """Return the kinds of operators that some kernel computes, alone or with others."""

    def kinds(term: Operator) -> set[str]:
        """Return the kinds of an operator and of its parts."""
        here = name_kind(term.kind.name, [monoid.__name__ for monoid in term.attributes if isinstance(monoid, type)])
        return {here}.union(*map(kinds, term.children))

    return set().union(*(kinds(law.pattern) for law in (*IMPLEMENTATIONS, *HEADS, *STAGES)))


def tell_evaluated(found: dict[str, Any] | None) -> str:
    """Return the line of the report about them; empty if there are none."""
    if found is None:
        return ""
    lacking = (
        f"no kernel computes {', '.join(found['kinds'])}"
        if found["kinds"]
        else "kernels compute each of their operators, but not so composed"
    )
    which = "1 step is evaluated as a term" if found["steps"] == 1 else f"{found['steps']} steps are evaluated as terms"
    return (
        f"\nterms     {which}, of {found['of']}, in float64 by Python: {100 * found['share']:.3g} % of the time, "
        f"as {'measured' if found['measured'] else 'predicted'};\n          {lacking}: express it by operators that\n"
        f"          `opmatrix laws --kind implementation` lists, or add a kernel ({GUIDE})"
        + "".join(f"\n          {place}" for place in found["places"])
    )
