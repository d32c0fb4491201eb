"""This machine as one that is planned for: ranks that are processes of it, as `opmatrix launch` runs them, in
float64."""
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
    """`plan` for ranks of this machine, whose rates are measured where they are not given."""
    found = rates or rank_rates(ranks)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return plan(model, ranks, found.sheet(ranks, room), flash=False, precision=LOCAL_NUMBER, constants=found.constants,
                **asked)                                    # type: ignore[arg-type]


def mesh_of(choice: PlanChoice) -> Mesh:
    """The ranks of a strategy as `launch` has them."""
    own, form = choice.sizes, choice.form
    return usual_mesh(own["dp"], own["tp"], own["pp"], own["cp"], ep=own["ep"], zero=form.zero, context=form.context,
                      sequence=form.sequence, vocabulary=own["tp"] > 1)


def launch_job(plan: StrategyPlan, choice: PlanChoice, ids: Sequence[Sequence[int]], steps: int) -> Job:
    """What ranks are asked for by a strategy; `ids` are of the batch, of training a token more of each sequence."""
    train = None if plan.question.infer else dict(
        schedule=schedule_of(choice), micro_batches=micro_batches(choice), keep=RECOMPUTED[choice.form.recompute])
    axes = {axis.name: (axis.count, axis.strategy.name) for axis in mesh_of(choice)}
    return Job(plan.question.config, axes, ids, steps, scores=True, train=train)


def micro_batches(choice: PlanChoice) -> int: return round(float(choice.prediction.setting.micro_batches))


def launch_line(plan: StrategyPlan, choice: PlanChoice, model: str) -> str:
    """The command that runs a strategy on this machine."""
    own, form = choice.sizes, choice.form
    more = [f"--{name} {own[name]}" for name in ("dp", "tp", "pp", "cp", "ep") if own[name] > 1]
    if own["cp"] > 1: more.append(f"--context {form.context}")
    if own["tp"] > 1: more.append("--vocabulary")
    if form.sequence: more.append("--sequence")
    if form.zero: more.append(f"--zero {form.zero}")
    if plan.question.infer: more.append("--scores")
    else: more.append(f"--train --schedule {schedule_of(choice)} --micro-batches {micro_batches(choice)} "
                      f"--recompute {form.recompute}")
    return " ".join([f"opmatrix launch {model} --ranks {plan.question.devices}", *more,
                     f"--batch {plan.question.batch} --tokens {plan.question.seq}"])
