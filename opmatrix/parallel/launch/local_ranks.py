"""This machine as a target of plans: ranks that are processes of it, as `opmatrix launch` runs them, in float64."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opmatrix.models.config import Settings
from opmatrix.parallel.cost.timed_step import RECOMPUTED
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.rank_rates import LOCAL_NUMBER, RankRates, rank_rates
from opmatrix.parallel.search.plans import PlanChoice, StrategyPlan, plan
from opmatrix.parallel.search.stage_times import schedule_of
from opmatrix.parallel.sharding.mesh import Mesh, usual_mesh

LOCAL = "local"


def local_plan(model: str | Settings, ranks: int, rates: RankRates | None = None, **asked: object) -> StrategyPlan:
    """Return a `plan` for ranks of this machine, whose rates are measured if they are not given."""
    measured = rates or rank_rates(ranks)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return plan(
        model,
        ranks,
        measured.sheet(ranks, room),
        flash=False,
        precision=LOCAL_NUMBER,
        constants=measured.constants,
        **asked,  # type: ignore[arg-type]
    )


def mesh_of(choice: PlanChoice) -> Mesh:
    """Return the mesh of a strategy, as `launch` has it."""
    sizes, form = choice.sizes, choice.form
    return usual_mesh(
        sizes["dp"],
        sizes["tp"],
        sizes["pp"],
        sizes["cp"],
        ep=sizes["ep"],
        zero=form.zero,
        context=form.context,
        sequence=form.sequence,
        vocabulary=sizes["tp"] > 1,
    )


def launch_job(plan: StrategyPlan, choice: PlanChoice, ids: Sequence[Sequence[int]], steps: int) -> Job:
    """Return the job of a strategy; `ids` are those of the batch, in training a token more of each sequence."""
    train = (
        None
        if plan.question.infer
        else dict(
            schedule=str(schedule_of(choice)),
            micro_batches=micro_batches(choice),
            keep=RECOMPUTED[choice.form.recompute],
        )
    )
    axes = {axis.name: (axis.count, axis.strategy.name) for axis in mesh_of(choice)}
    return Job(plan.question.config, axes, ids, steps, scores=True, train=train)


def micro_batches(choice: PlanChoice) -> int:
    return round(float(choice.prediction.setting.micro_batches))


def launch_line(plan: StrategyPlan, choice: PlanChoice, model: str) -> str:
    """Return the command that runs a strategy on this machine."""
    sizes, form = choice.sizes, choice.form
    more = [f"--{name} {sizes[name]}" for name in ("dp", "tp", "pp", "cp", "ep") if sizes[name] > 1]
    if sizes["cp"] > 1:
        more.append(f"--context {form.context}")
    if sizes["tp"] > 1:
        more.append("--vocabulary")
    if form.sequence:
        more.append("--sequence")
    if form.zero:
        more.append(f"--zero {form.zero}")
    if plan.question.infer:
        more.append("--scores")
    else:
        more.append(
            f"--train --schedule {schedule_of(choice)} --micro-batches {micro_batches(choice)} "
            f"--recompute {form.recompute}"
        )
    return " ".join(
        [
            f"opmatrix launch {model} --ranks {plan.question.devices}",
            *more,
            f"--batch {plan.question.batch} --tokens {plan.question.seq}",
        ]
    )
