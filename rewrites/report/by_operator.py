"""A program by what its steps do: predicted seconds, and those measured inside runs."""
from collections.abc import Sequence
from statistics import median

from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.program import Profile, Program
from opmatrix.runtime.scheme import Running
from rewrites.lowering.price import Prices, TimeModel

PROFILED = 5                                                # runs that medians are of
OPERATOR_FIGURES = "what", "steps", "predicted_s", "measured_s"


def describe_operators(program: Program, batch: Batch, machine: TimeModel) -> list[dict[str, object]]:
    """A row for each kind of step as the report has it, the dearest first, and what a run takes beside them."""
    prices = Prices(Running.of(machine, batch.starts, program.stored_bytes), program.extents(batch))
    rows: Sequence[tuple[str, int, float, float | None]]
    try: found = program.profile(batch, PROFILED)
    except RuntimeError:                                    # native code finds no clock
        predicted = [(what, len(names), ahead, None) for what, (names, ahead) in group_steps(program, prices).items()]
        rows = sorted(predicted, key=lambda row: -row[2])
    else: rows = measure_operators(program, found, prices)
    return [dict(zip(OPERATOR_FIGURES, row, strict=True)) for row in rows]


def measure_operators(program: Program, found: Profile, prices: Prices) -> list[tuple[str, int, float, float]]:
    """Kinds of steps, how many, and their seconds as predicted and as measured, the dearest first; last what a run
    takes beside them."""
    inside, whole = {name: median(taken) for name, taken in found.steps.items()}, median(found.runs)
    measured = [(what, len(names), ahead, sum(inside[name] for name in names))
                for what, (names, ahead) in group_steps(program, prices).items()]
    return [*sorted(measured, key=lambda row: -row[-1]),
            ("before and after", 0, prices.beside(program), whole - sum(inside.values()))]


def by_operator(before: Program, after: Program, batch: Batch,
                machine: TimeModel) -> dict[str, Sequence[dict[str, object]]]:
    """The import and the answer, by operator."""
    return {"before": describe_operators(before, batch, machine), "after": describe_operators(after, batch, machine)}


def group_steps(program: Program, prices: Prices) -> dict[str, tuple[list[str], float]]:
    """The steps that are not views by what is priced of them: names, and predicted seconds of all."""
    found: dict[str, tuple[list[str], float]] = {}
    for step, call in zip(program.steps, program.schedule.calls[program.schedule.first:], strict=True):
        if call.kernel.view or call.kernel.is_input: continue
        costs = call.kernel.cost(call.bound, call.shape, prices.group)
        names, ahead = found.get(what := told(step.kernel, costs), ([], 0.0))
        found[what] = [*names, step.output], ahead + prices.seconds(costs)
    return found


def told(kernel: str, costs: Costs) -> str:
    """What is priced of a step: its kernels, and the sides of the first one's matrix."""
    sides = [f"{size}" for _, sizes in costs[:1] for name, size in sizes.items() if name in ("n", "p")]
    return " + ".join([name for name, _ in costs] or [kernel]) + f" {'×'.join(sides)}" * (len(sides) == 2)
