"""This machine as one that is planned for: ranks that are processes of it, as `opmatrix launch` runs them, in float64.
Rates are measured when they are asked for; what an exchange takes is assumed."""
from __future__ import annotations

import os

import numpy as np

from formats.machine.datasheets import Datasheet
from formats.machine.peaks import best
from formats.network.links import Link
from opmatrix.planner.constants import Constants
from opmatrix.strategies.plans import PlanChoice, StrategyPlan

LOCAL = "local"
EXCHANGE = 2e-3                                             # seconds of an exchange of processes; assumed
ISSUED = 3e-5                                                 # seconds of an operation beside its numbers; assumed
SIDE, COPIED = 512, 1 << 22                                 # numbers of a product's side, and of a copy
WIDER = 2                                                   # float64 beside the float32 that formulas count

# rates are measured, so nothing is a fraction of them
LOCAL_CONSTANTS = Constants(matrix=1, idle=0, memory=1, near=1, far=1, superstep=EXCHANGE, gap=ISSUED, hidden=0)


def local_sheet(ranks: int) -> Datasheet:
    """A data sheet of one of so many ranks that share this machine's cores."""
    a, line = np.ones((SIDE, SIDE)), np.ones(COPIED)
    share = max(1.0, ranks / (os.cpu_count() or 1))
    rate = 2 * SIDE ** 3 / best(lambda: a @ a) / share
    copied = 2 * line.nbytes / best(line.copy) / share / WIDER
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return Datasheet(LOCAL, f"measured: a product of {SIDE} x {SIDE} and a copy of {line.nbytes >> 20} MB in float64, "
                            f"shared by {ranks} ranks; exchanges through pipes as fast as a quarter of a copy, and "
                            f"{EXCHANGE} s each: assumed",
                     {"float32": rate, "bf16": rate}, {"float32": rate}, (1, 1, 1), (("memory", room, copied),),
                     links=(Link("processes", float("inf"), copied / 4, 1e-6),))


def launch_line(plan: StrategyPlan, choice: PlanChoice, model: str) -> str:
    """The command that runs a strategy on this machine."""
    own = choice.sizes
    axes = " ".join(f"--{name} {own[name]}" for name in ("dp", "tp", "pp", "cp", "ep") if own[name] > 1)
    more = [f"--context {choice.form.context}"] if own["cp"] > 1 else []
    if own["tp"] > 1: more.append("--vocabulary")
    if choice.form.sequence: more.append("--sequence")
    return " ".join(filter(None, [f"opmatrix launch {model} --ranks {plan.question.devices}", axes, *more,
                                  f"--scores --batch {plan.question.batch} --tokens {plan.question.seq}"]))
