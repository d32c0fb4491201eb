"""A program by kinds of steps: predicted seconds, and seconds measured in runs."""

from collections.abc import Sequence
from statistics import median

from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.program import Profile, Program
from opmatrix.runtime.scheme import Running
from rewrites.lowering.price import Prices, TimeModel

PROFILED = 5  # runs whose median is taken
OPERATOR_FIGURES = "what", "steps", "predicted_s", "measured_s"


def describe_operators(program: Program, batch: Batch, machine: TimeModel) -> list[dict[str, object]]:
    """Return a row for each kind of step as in the report, the dearest first, and a row for the rest of a run."""
    prices = Prices(Running.of(machine, batch.starts, program.stored_bytes), program.extents(batch))
    rows: Sequence[tuple[str, int, float, float | None]]
    try:
        profile = program.profile(batch, PROFILED)
    except RuntimeError:  # native code has no clock
        predicted = [(what, len(names), ahead, None) for what, (names, ahead) in group_steps(program, prices).items()]
        rows = sorted(predicted, key=lambda row: -row[2])
    else:
        rows = measure_operators(program, profile, prices)
    return [dict(zip(OPERATOR_FIGURES, row, strict=True)) for row in rows]


def measure_operators(program: Program, found: Profile, prices: Prices) -> list[tuple[str, int, float, float]]:
    """Return kinds of steps, their counts, and their seconds as predicted and as measured, the dearest first; last the
    rest of a run."""
    inside, whole = {name: median(taken) for name, taken in found.steps.items()}, median(found.runs)
    measured = [
        (what, len(names), ahead, sum(inside[name] for name in names))
        for what, (names, ahead) in group_steps(program, prices).items()
    ]
    return [
        *sorted(measured, key=lambda row: -row[-1]),
        ("before and after", 0, prices.beside(program), whole - sum(inside.values())),
    ]


def by_operator(
    before: Program, after: Program, batch: Batch, machine: TimeModel
) -> dict[str, Sequence[dict[str, object]]]:
    """Return the rows of the import and of the answer, by operator."""
    return {"before": describe_operators(before, batch, machine), "after": describe_operators(after, batch, machine)}


def group_steps(program: Program, prices: Prices) -> dict[str, tuple[list[str], float]]:
    """Group the steps that are not views by the text of their price: names, and predicted seconds of all of them."""
    groups: dict[str, tuple[list[str], float]] = {}
    for step, call in zip(program.steps, program.schedule.calls[program.schedule.first :], strict=True):
        if call.kernel.view or call.kernel.is_input:
            continue
        costs = call.kernel.cost(call.bound, call.shape, prices.group)
        names, ahead = groups.get(what := told(step.kernel, costs), ([], 0.0))
        groups[what] = [*names, step.output], ahead + prices.seconds(costs)
    return groups


def told(kernel: str, costs: Costs) -> str:
    """Return the text that identifies the price of a step: its kernels, and the sides of the first one's matrix."""
    sides = [f"{size}" for _, sizes in costs[:1] for name, size in sizes.items() if name in ("n", "p")]
    return " + ".join([name for name, _ in costs] or [kernel]) + f" {'×'.join(sides)}" * (len(sides) == 2)
