"""A plan as text, rows and JSON: the best strategies with their time and memory by part, their costs, and why the
slower ones lose."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.parallel.cost.constants import constants_version
from opmatrix.parallel.cost.intervals import INTERVAL_SHARE, StepInterval
from opmatrix.parallel.cost.memory_parts import MEMORY_KINDS
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.inference import next_token_seconds
from opmatrix.parallel.search.named_collectives import named_collectives
from opmatrix.parallel.search.plans import KINDS_OF_TIME, PlanChoice, StrategyPlan
from opmatrix.parallel.search.stage_times import StageCut, best_cut, run_stages
from opmatrix.parallel.search.strategy_search import PlanQuestion

GIGA = 1e9
RUN = 3  # strategies whose pipelines are simulated task by task


def plan_text(plan: StrategyPlan) -> str:
    """Return the printed text of a plan."""
    return "\n\n".join(
        [
            heading(plan),
            *([str(plan.learned)] if plan.learned else []),
            best_table(plan),
            *lengths_table(plan),
            memory_table(plan),
            *interval_lines(plan),
            costs_table(plan),
            *losses(plan),
            *run_lines(plan),
            *collective_lines(plan),
            sensitivity_table(plan),
        ]
    )


def heading(plan: StrategyPlan) -> str:
    """Return the inputs of the plan, and the number of strategies."""
    question, strategies = plan.question, plan.found
    what = "a pass" if question.infer else "a step"
    stack = question.stack
    by = f" by {stack.title} ({stack.version})" if stack else ""
    if (work := question.work(StrategyForm())).tower:
        by += f"; the first {work.tower} of {work.count} layers are a tower's, on {work.source} rows of a sequence"
    by += f"; the busiest rank of experts has {question.load:g} times the mean rows" if question.load != 1 else ""
    return (
        f"{plan.name} on {question.devices} x {question.machine.name}: {question.batch} sequences of "
        f"{question.mix} tokens {what}, {question.precision}, {question.room / GIGA:g} GB a device{by}\n"
        f"{strategies.count:,} strategies predicted, {strategies.fit:,} fit; the fastest of each way to factor the "
        "devices:"
    )


def in_percent(part: float, whole: float) -> str:
    """Write a part in percent of a whole, with one decimal."""
    return f"{round(100 * part / whole, 1) + 0.0:.1f}"  # no -0.0


def best_table(plan: StrategyPlan) -> str:
    """Return the table of the time and its split in percent, memory, utilisation and tokens a second."""
    rows = []
    for number, choice in enumerate(plan.best, 1):
        grouped = choice.grouped()
        rows.append(
            [
                str(number),
                str(choice),
                f"{choice.seconds:.4g}",
                *interval_cell(plan.intervals[0], choice.seconds),
                *(in_percent(grouped[name], choice.seconds) for name in KINDS_OF_TIME),
                f"{choice.bytes / GIGA:.1f}",
                in_percent(plan.utilisation(choice), 1),
                f"{plan.tokens_a_second(choice):.0f}",
            ]
        )
    return table(
        rows,
        [
            "",
            "strategy",
            "s a step",
            *from_to(plan.intervals[0]),
            *(f"{name} %" for name in KINDS_OF_TIME),
            "GB",
            "MFU %",
            "tokens/s a device",
        ],
        (0, 1),
    )


def lengths_table(plan: StrategyPlan) -> Iterator[str]:
    """Yield the table of the seconds of steps of each length of sequences, where there are several."""
    if (mix := plan.question.lengths) is None:
        return
    rows = [
        [str(number), *(f"{seconds:.4g}" for seconds in plan.seconds_by_length(choice).values())]
        for number, choice in enumerate(plan.best, 1)
    ]
    yield table(rows, ["s a step of", *(f"{tokens} tokens" for tokens, _ in mix.shares)])


def memory_table(plan: StrategyPlan) -> str:
    """Return the table of the bytes of the fullest device, by part."""
    names = [*dict.fromkeys(name for choice in plan.best for name in choice.prediction.memory)]
    rows = [
        [
            str(number),
            *(f"{float(choice.prediction.memory.get(name, 0)) / GIGA:.2f}" for name in names),
            *(f"{float(choice.prediction.bytes_of(kind)) / GIGA:.2f}" for kind in MEMORY_KINDS),
            *interval_cell(plan.intervals[1], choice.bytes / GIGA),
        ]
        for number, choice in enumerate(plan.best, 1)
    ]
    return table(rows, ["GB of", *names, *MEMORY_KINDS, *from_to(plan.intervals[1])])


def interval_cell(interval: StepInterval | None, number: float) -> list[str]:
    """Write the interval of a number as a cell, if there is one."""
    return [] if interval is None else ["{:.3g}-{:.3g}".format(*interval.around(number))]


def from_to(interval: StepInterval | None) -> list[str]:
    """Return the heading of a column of intervals, if there are any."""
    return [] if interval is None else [f"{100 * INTERVAL_SHARE:.0f} % of steps"]


def interval_lines(plan: StrategyPlan) -> Iterator[str]:
    """Yield the rows that intervals are made from; for a step of training without such rows, that there are none."""
    if plan.question.infer or plan.question.local:
        return
    lines = []
    for what, interval in zip(("seconds", "bytes"), plan.intervals, strict=True):
        rows = "no rows of measured steps" if interval is None else interval.text
        lines.append(f"{what}: from {rows}")
    yield "\n".join([f"intervals that hold {100 * INTERVAL_SHARE:.0f} % of measured steps:", *lines])


def costs_table(plan: StrategyPlan) -> str:
    """Return the table of the costs of a billion tokens; for inference also the time of the next token."""
    rows, names = [], [*plan.costs(plan.best[0])]
    question = plan.question
    for number, choice in enumerate(plan.best, 1):
        costs = [f"{value:.4g}" for value in plan.costs(choice).values()]
        if question.infer:
            costs.append(f"{1e3 * next_token_seconds(choice.prediction.setting, question.limits.head):.3g}")
        rows.append([str(number), *costs])
    return table(rows, ["a billion tokens", *names, *(["ms a token that follows"] if question.infer else [])])


def losses(plan: StrategyPlan) -> Iterator[str]:
    """Yield why the next strategies lose: the parts that take longer than the first's."""
    first = plan.best[0]
    if len(plan.best) > 1:
        lines = [f"{number}: {lost(first, choice)}" for number, choice in enumerate(plan.best[1:], 2)]
        yield "\n".join(["why the next lose to the first:", *lines])


def lost(first: PlanChoice, other: PlanChoice) -> str:
    """Return how much slower another strategy is, with the largest differences by kind."""
    ours, its = first.grouped(), other.grouped()
    change, least = {name: its[name] - ours[name] for name in KINDS_OF_TIME}, 5e-4 * first.seconds
    more = sorted((name for name in change if change[name] > least), key=lambda name: -change[name])
    less = sorted((name for name in change if change[name] < -least), key=lambda name: change[name])
    text = f"{100 * (other.seconds / first.seconds - 1):.1f} % slower"
    if more:
        text += ": " + ", ".join(f"{change[name]:.3g} s more {name}" for name in more[:3])
    if less:
        text += "; " + ", ".join(f"{-change[name]:.3g} s less {name}" for name in less[:2])
    return text


def run_lines(plan: StrategyPlan) -> Iterator[str]:
    """Yield the simulated pipelines of the first strategies, and uneven stages where they are faster."""
    lines = []
    question = plan.question
    simulated = () if question.infer or question.local or question.lengths else plan.best[:RUN]
    for number, choice in enumerate(simulated, 1):
        if choice.sizes["pp"] == 1:
            continue
        try:
            ran = run_stages(choice)
        except InputError:
            continue
        line = f"{number}: {ran.seconds:.4g} s (by formula {choice.seconds:.4g})"
        if (cut := best_cut(choice, question.room)) is not None:
            other = run_stages(choice, cut)
            if other.seconds < ran.seconds:
                line += f"; {other.seconds:.4g} s where stages have {stages_text(cut)}"
        lines.append(line)
    if lines:
        yield "\n".join(["run task by task:", *lines])


def stages_text(cut: StageCut) -> str:
    """Return the layers of each stage and what it recomputes; equal stages are grouped."""
    rows = zip(cut.layers, cut.again, cut.recomputed, strict=True)
    groups = [(row, len([*same])) for row, same in groupby(rows)]
    return ", ".join(stage_text(layers, again, n) + f" x {times}" * (times > 1) for (layers, again, n), times in groups)


def stage_text(layers: int, again: str, recomputed: int) -> str:
    """Return the layers of a stage, and how many of them it computes again."""
    if not recomputed:
        return f"{layers} layers"
    return (
        f"{layers} layers ({again} again)" if recomputed == layers else f"{layers} layers ({recomputed} {again} again)"
    )


def collective_lines(plan: StrategyPlan) -> Iterator[str]:
    """Yield the collectives of the first strategy."""
    lines = [str(collective) for collective in named_collectives(plan.best[0], plan.question.infer)]
    if lines:
        yield "\n".join(["collectives of the first:", *lines])


def sensitivity_table(plan: StrategyPlan) -> str:
    """Return the table of the first strategy's time on changed machines."""
    rows = [
        [what, f"{100 * (low - 1):+.1f}", f"{100 * (high - 1):+.1f}"]
        for what, low, high in plan.sensitivity(plan.best[0])
    ]
    return table(rows, ["seconds of the first, in percent, with", "half", "twice"])


# ---- as data


def choice_row(plan: StrategyPlan, each: PlanChoice) -> dict[str, object]:
    """Return all figures of a strategy, by name."""
    return {
        **each.sizes,
        **each.form._asdict(),
        "order": " ".join(each.form.order),
        "seconds": each.seconds,
        **interval_columns("seconds", plan.intervals[0], each.seconds),
        **{f"seconds of {name}": seconds for name, seconds in each.grouped().items()},
        **{f"{kind} bytes": float(each.prediction.bytes_of(kind)) for kind in MEMORY_KINDS},
        **interval_columns("driver bytes", plan.intervals[1], each.bytes),
        "utilisation": plan.utilisation(each),
        "tokens a second and device": plan.tokens_a_second(each),
        **{f"{name} a billion tokens": value for name, value in plan.costs(each).items()},
    }


def asked_sizes(name: str, question: PlanQuestion) -> dict[str, object]:
    """Return the model, the devices and the batch of a question, as the JSON of every plan begins."""
    return {
        "model": name,
        "machine": question.machine.name,
        "devices": question.devices,
        "batch": question.batch,
        "tokens": question.seq,
    }


def plan_json(plan: StrategyPlan) -> dict[str, object]:
    """Return a plan as JSON, with every part of time and memory."""
    question = plan.question
    strategies = [
        {
            **choice_row(plan, choice),
            "seconds by part": by_part(choice.prediction.seconds),
            "bytes by part": by_part(choice.prediction.memory),
        }
        for choice in plan.best
    ]
    met = [collective._asdict() for collective in named_collectives(plan.best[0], question.infer)]
    return {
        **asked_sizes(plan.name, question),
        **({"lengths": lengths_rows(plan)} if question.lengths else {}),
        "bytes of a device": question.room,
        "precision": question.precision,
        "stack": plan.stack,
        "version of constants": constants_version(),
        "intervals": {
            what: None if interval is None else interval._asdict()
            for what, interval in zip(("seconds", "bytes"), plan.intervals, strict=True)
        },
        "strategies predicted": plan.found.count,
        "strategies that fit": plan.found.fit,
        "strategies": strategies,
        "collectives of the first": met,
        "sensitivity": [[*change] for change in plan.sensitivity(plan.best[0])],
    }


def lengths_rows(plan: StrategyPlan) -> list[dict[str, float]]:
    """Return each length of sequences, its share of steps, and the seconds of the first on it."""
    seconds = plan.seconds_by_length(plan.best[0])
    return [
        {"tokens": tokens, "share": share, "seconds of the first": seconds[tokens]}
        for tokens, share in plan.question.mix.shares
    ]


def interval_columns(name: str, interval: StepInterval | None, number: float) -> dict[str, object]:
    """Return the ends of the interval of a number, by name; empty where there is none."""
    if interval is None:
        return {}
    low, high = interval.around(number)
    return {f"{name} from": low, f"{name} to": high}


def by_part(parts: Mapping[str, object]) -> dict[str, float]:
    """Read parts as numbers, from JSON where they may be texts."""
    return {name: float(str(value)) for name, value in parts.items()}


def plan_csv(plan: StrategyPlan) -> str:
    """Return the strategies as CSV, a row each."""
    return rows_csv([choice_row(plan, choice) for choice in plan.best])


def rows_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows of the same columns as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
