"""A plan as text, rows and JSON: the best strategies with their time and memory, split, what they cost, why the next
lose."""
from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import groupby

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.parallel.search.inference import next_token_seconds
from opmatrix.parallel.search.named_collectives import named_collectives
from opmatrix.parallel.search.plans import KINDS_OF_TIME, PlanChoice, StrategyPlan
from opmatrix.parallel.search.stage_times import StageCut, best_cut, run_stages

GIGA = 1e9
RUN = 3                                                     # strategies whose pipelines are run task by task


def plan_text(plan: StrategyPlan) -> str:
    """What the command prints."""
    return "\n\n".join([heading(plan), best_table(plan), memory_table(plan), costs_table(plan), *losses(plan),
                         *run_lines(plan), *collective_lines(plan), sensitivity_table(plan)])


def heading(plan: StrategyPlan) -> str:
    """What was asked, and how many strategies there are."""
    own, found = plan.question, plan.found
    what = "a pass" if own.infer else "a step"
    return (f"{plan.name} on {own.devices} x {own.machine.name}: {own.batch} sequences of {own.seq} tokens {what}, "
            f"{own.precision}, {own.room / GIGA:g} GB a device\n"
            f"{found.count:,} strategies predicted, {found.fit:,} fit; the fastest of each way to factor the devices:")


def in_percent(part: float, whole: float) -> str: return f"{round(100 * part / whole, 1) + 0.0:.1f}"     # no -0.0


def best_table(plan: StrategyPlan) -> str:
    """Time and its split in percent, memory, and what a step costs."""
    rows = []
    for number, each in enumerate(plan.best, 1):
        grouped = each.grouped()
        rows.append([str(number), str(each), f"{each.seconds:.4g}",
                     *(in_percent(grouped[name], each.seconds) for name in KINDS_OF_TIME), f"{each.bytes / GIGA:.1f}",
                     in_percent(plan.utilisation(each), 1), f"{plan.tokens_a_second(each):.0f}"])
    return table(rows, ["", "strategy", "s a step", *(f"{name} %" for name in KINDS_OF_TIME), "GB", "MFU %",
                        "tokens/s a device"], (0, 1))


def memory_table(plan: StrategyPlan) -> str:
    """Bytes of the fullest device, by part."""
    names = [*dict.fromkeys(name for each in plan.best for name in each.prediction.memory)]
    rows = [[str(number), *(f"{float(each.prediction.memory.get(name, 0)) / GIGA:.2f}" for name in names),
             f"{float(each.prediction.allocated) / GIGA:.2f}", f"{each.bytes / GIGA:.2f}"]
            for number, each in enumerate(plan.best, 1)]
    return table(rows, ["GB of", *names, "allocated", "reserved"])


def costs_table(plan: StrategyPlan) -> str:
    """What a billion tokens take; of a model that is asked, also the token that follows a sequence."""
    rows, names = [], [*plan.costs(plan.best[0])]
    own = plan.question
    for number, each in enumerate(plan.best, 1):
        costs = [f"{value:.4g}" for value in plan.costs(each).values()]
        if own.infer: costs.append(f"{1e3 * next_token_seconds(each.prediction.setting, own.limits.head):.3g}")
        rows.append([str(number), *costs])
    return table(rows, ["a billion tokens", *names, *(["ms a token that follows"] if own.infer else [])])


def losses(plan: StrategyPlan) -> Iterator[str]:
    """Why the next strategies lose: the parts that take longer than the first's."""
    first = plan.best[0]
    if len(plan.best) > 1:
        lines = [f"{number}: {lost(first, each)}" for number, each in enumerate(plan.best[1:], 2)]
        yield "\n".join(["why the next lose to the first:", *lines])


def lost(first: PlanChoice, other: PlanChoice) -> str:
    """How much slower another strategy is, by what most."""
    own, its = first.grouped(), other.grouped()
    change, least = {name: its[name] - own[name] for name in KINDS_OF_TIME}, 5e-4 * first.seconds
    more = sorted((name for name in change if change[name] > least), key=lambda name: -change[name])
    less = sorted((name for name in change if change[name] < -least), key=lambda name: change[name])
    said = f"{100 * (other.seconds / first.seconds - 1):.1f} % slower"
    if more: said += ": " + ", ".join(f"{change[name]:.3g} s more {name}" for name in more[:3])
    if less: said += "; " + ", ".join(f"{-change[name]:.3g} s less {name}" for name in less[:2])
    return said


def run_lines(plan: StrategyPlan) -> Iterator[str]:
    """The pipelines of the first strategies, task by task, and stages that are cut unevenly where that is quicker."""
    lines = []
    for number, each in enumerate(() if plan.question.infer or plan.question.local else plan.best[:RUN], 1):
        if each.sizes["pp"] == 1: continue
        try: ran = run_stages(each)
        except InputError: continue
        line = f"{number}: {ran.seconds:.4g} s (by formula {each.seconds:.4g})"
        if (cut := best_cut(each, plan.question.room)) is not None:
            other = run_stages(each, cut.layers, again=cut.again)
            if other.seconds < ran.seconds: line += f"; {other.seconds:.4g} s where stages have {stages_text(cut)}"
        lines.append(line)
    if lines: yield "\n".join(["run task by task:", *lines])


def stages_text(cut: StageCut) -> str:
    """Layers of each stage and what it computes again, stages that are alike as one."""
    groups = [(pair, len([*same])) for pair, same in groupby(zip(cut.layers, cut.again, strict=True))]
    return ", ".join(f"{layers} layers" + f" ({again} again)" * (again != "none") + f" x {n}" * (n > 1)
                     for (layers, again), n in groups)


def collective_lines(plan: StrategyPlan) -> Iterator[str]:
    """How the ranks of the first strategy meet."""
    lines = [str(each) for each in named_collectives(plan.best[0], plan.question.infer)]
    if lines: yield "\n".join(["collectives of the first:", *lines])


def sensitivity_table(plan: StrategyPlan) -> str:
    """How the first strategy's time follows the machine."""
    rows = [[what, f"{100 * (low - 1):+.1f}", f"{100 * (high - 1):+.1f}"]
            for what, low, high in plan.sensitivity(plan.best[0])]
    return table(rows, ["seconds of the first, in percent, with", "half", "twice"])


# ---- as data

def choice_row(plan: StrategyPlan, each: PlanChoice) -> dict[str, object]:
    """All of a strategy, by name."""
    return {**each.sizes, **each.form._asdict(), "order": " ".join(each.form.order), "seconds": each.seconds,
            **{f"seconds of {name}": seconds for name, seconds in each.grouped().items()},
            "allocated bytes": float(each.prediction.allocated), "reserved bytes": each.bytes,
            "utilisation": plan.utilisation(each), "tokens a second and device": plan.tokens_a_second(each),
            **{f"{name} a billion tokens": value for name, value in plan.costs(each).items()}}


def plan_json(plan: StrategyPlan) -> dict[str, object]:
    """A plan as JSON has it, with every part of time and memory."""
    own = plan.question
    strategies = [{**choice_row(plan, each), "seconds by part": by_part(each.prediction.seconds),
                   "bytes by part": by_part(each.prediction.memory)} for each in plan.best]
    met = [each._asdict() for each in named_collectives(plan.best[0], own.infer)]
    return {"model": plan.name, "machine": own.machine.name, "devices": own.devices, "batch": own.batch,
            "tokens": own.seq, "bytes of a device": own.room, "strategies predicted": plan.found.count,
            "strategies that fit": plan.found.fit, "strategies": strategies,
            "collectives of the first": met, "sensitivity": [[*each] for each in plan.sensitivity(plan.best[0])]}


def by_part(parts: Mapping[str, object]) -> dict[str, float]:
    return {name: float(str(value)) for name, value in parts.items()}


def plan_csv(plan: StrategyPlan) -> str:
    """A row for each strategy."""
    rows, out = [choice_row(plan, each) for each in plan.best], io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
