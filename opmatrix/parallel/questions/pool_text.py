"""Plans of two pools as text, rows and JSON."""

from __future__ import annotations

from collections.abc import Iterator

from opmatrix.display.tables import table
from opmatrix.parallel.questions.device_pools import PoolShare
from opmatrix.parallel.questions.pool_splits import DevicesSplit, PoolCrossing, PoolsPlan, PoolTurns
from opmatrix.parallel.search.plan_text import GIGA, asked_sizes, in_percent, rows_csv


def pools_text(plan: PoolsPlan) -> str:
    """Return the printed text of a plan of pools."""
    return "\n\n".join([pools_heading(plan), *splits_table(plan), turns_lines(plan)])


def pools_heading(plan: PoolsPlan) -> str:
    """Return the inputs of the plan, and the number of splits."""
    pair, question, splits = plan.pair, plan.pair.question, plan.splits
    names = f"{pair.first.name} and {pair.second.name}"
    batch = f"at most {question.batch} sequences at a time" if pair.overlaps else f"{question.batch} sequences a step"
    return (
        f"{plan.name} on {question.devices} x {question.machine.name}, pools for {names}: {batch}, of {question.seq} "
        f"tokens, {plan.reply} of them generated, {question.precision}, {question.room / GIGA:g} GB a device\n"
        f"{splits.count:,} splits of the devices, {splits.searched:,} searched, which has the best by a bound; "
        f"{pair.crossing_name} cross over {pair.link.name}"
    )


def share_cells(share: PoolShare) -> list[str]:
    """Return the devices of a pool, its strategy, its sequences at a time, and the seconds of its prediction."""
    choice = share.choice
    return [str(share.devices), str(choice), str(share.batch), f"{choice.seconds:.4g}", f"{choice.bytes / GIGA:.1f}"]


def splits_table(plan: PoolsPlan) -> Iterator[str]:
    """Yield the table of the best splits, if there are any."""
    pair = plan.pair
    rows = [
        [
            *(cell for share in (split.first, split.second) for cell in share_cells(share)),
            *(in_percent(split.busy(share), 1) for share in (split.first, split.second)),
            f"{split.crossing.payload / GIGA:.3g}",
            f"{split.crossing.seconds:.3g}",
            f"{1 / split.period:.4g}",
            f"{plan.tokens_a_second(split.period):.4g}",
        ]
        for split in plan.splits.best
    ]
    pools = pair.first.name, pair.second.name
    heads = [head for name in pools for head in (name, "strategy", "at a time", "s", "GB")]
    heads += [f"{name} busy %" for name in pools]
    crossed = pair.crossing_name
    heads += [f"GB of {crossed}", f"s of {crossed}", "sequences/s", "tokens/s a device"]
    yield table(rows, heads, (1, 6)) if rows else "no split of the devices has room for both pools"


def turns_lines(plan: PoolsPlan) -> str:
    """Return the lines of both phases in turn on all devices."""
    turns, pair = plan.turns, plan.pair
    if turns is None:
        return "in turn on all devices: no pair of strategies fits beside the arrays that stay between both"
    lines = [f"in turn on all devices: {1 / turns.period:.4g} sequences/s{beside_best(plan, turns)}"]
    for pool, share in ((pair.first, turns.first), (pair.second, turns.second)):
        part = in_percent(share.period, turns.period)
        lines.append(f"  {pool.name}: {share.choice}; {share.batch} at a time, {part} % of the time")
    lines.append(f"  {laid_anew(turns.crossing)}, {in_percent(turns.crossing.period, turns.period)} % of the time")
    return "\n".join(lines)


def beside_best(plan: PoolsPlan, turns: PoolTurns) -> str:
    """Return how much faster or slower turns are than the best split."""
    if not plan.splits.best:
        return ""
    ratio = plan.splits.best[0].period / turns.period
    return f", {abs(100 * (ratio - 1)):.1f} % {'more' if ratio >= 1 else 'fewer'} than the best split"


def laid_anew(crossing: PoolCrossing) -> str:
    """Return the line of the arrays that are laid out anew."""
    if not crossing.payload:
        return "both have one layout: no array is laid out anew"
    return f"laid out anew: {crossing.payload / GIGA:.3g} GB a device, {crossing.seconds:.3g} s"


def share_row(name: str, share: PoolShare) -> dict[str, object]:
    """Return all figures of a pool, each behind the name of the pool."""
    choice = share.choice
    figures = {
        "devices": share.devices,
        "sequences at a time": share.batch,
        **choice.sizes,
        **choice.form._asdict(),
        "order": " ".join(choice.form.order),
        "seconds": choice.seconds,
        "driver bytes": choice.bytes,
        "seconds a sequence": share.period,
    }
    return {f"{name} {key}": value for key, value in figures.items()}


def pools_row(plan: PoolsPlan, both: DevicesSplit | PoolTurns) -> dict[str, object]:
    """Return all figures of a split, or of turns."""
    pair, crossing = plan.pair, both.crossing
    return {
        **share_row(pair.first.name, both.first),
        **share_row(pair.second.name, both.second),
        f"bytes of {pair.crossing_name}": crossing.payload,
        f"seconds of {pair.crossing_name}": crossing.seconds,
        "seconds a sequence": both.period,
        "generated tokens a second and device": plan.tokens_a_second(both.period),
    }


def pools_json(plan: PoolsPlan) -> dict[str, object]:
    """Return a plan of pools as JSON."""
    question, pair = plan.pair.question, plan.pair
    return {
        **asked_sizes(plan.name, question),
        "tokens that are generated": plan.reply,
        "pools": [pair.first.name, pair.second.name],
        "link": pair.link.name,
        "splits": plan.splits.count,
        "splits that were searched": plan.splits.searched,
        "disaggregated": [pools_row(plan, split) for split in plan.splits.best],
        "colocated": None if plan.turns is None else pools_row(plan, plan.turns),
    }


def pools_csv(plan: PoolsPlan) -> str:
    """Return the splits, and turns on all devices, as CSV, a row each."""
    rows = [{"placement": "disaggregated", **pools_row(plan, split)} for split in plan.splits.best]
    rows += [] if plan.turns is None else [{"placement": "colocated", **pools_row(plan, plan.turns)}]
    return rows_csv(rows)
