"""This machine as a target of plans: ranks that are processes of it, as `opmatrix launch` runs them, in float64."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opmatrix.models.config import Settings
from opmatrix.parallel.axes.known_axes import PLANNED_AXES
from opmatrix.parallel.cost.timed_step import RECOMPUTED
from opmatrix.parallel.launch.jobs import Job, job_mesh
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
    return usual_mesh(**{axis.name: choice.sizes[axis.name] for axis in PLANNED_AXES}, **options_of_form(choice))


def options_of_form(choice: PlanChoice) -> dict[str, object]:
    """Return the options of a mesh that a strategy's form and the planner's formulas decide."""
    form = choice.form
    return dict(zero=form.zero, sequence=form.sequence, vocabulary=choice.sizes["tp"] > 1, context=form.context)


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
    mesh = job_mesh(mesh_of(choice))
    return Job(plan.question.config, ids=ids, steps=steps, scores=True, train=train, **mesh)


def micro_batches(choice: PlanChoice) -> int:
    """Return the micro-batches of a step as a whole number."""
    return round(float(choice.prediction.setting.micro_batches))


def launch_line(plan: StrategyPlan, choice: PlanChoice, model: str) -> str:
    """Return the command that runs a strategy on this machine."""
    sizes, form = choice.sizes, choice.form
    more = [f"--{axis.name} {sizes[axis.name]}" for axis in PLANNED_AXES if sizes[axis.name] > 1]
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
