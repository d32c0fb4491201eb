"""What ranks gave beside what they should: one rank's numbers, losses or tokens, and what formulas foresee."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.parallel.launch.counters import Tally, tallies, train_tallies
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Launched
from opmatrix.parallel.launch.prepared import Prepared
from opmatrix.parallel.launch.train_runs import decode_plan, made_tokens, mean_losses, train_plan
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition, partition
from opmatrix.parallel.train.requested_steps import USUAL, TrainPlan
from opmatrix.parallel.train.train_ranks import train_virtual

RunVerdict: TypeAlias = tuple[list[Tally], float | None, list[str]]         # counts, how far from one rank, lines
Judge: TypeAlias = Callable[[Launched, bool], RunVerdict]


def judge_of(job: Job, plan: Partition, term: Operator) -> Judge:
    """How what a job gives is judged. Raises InputError for what cannot run, before a process starts."""
    if job.learns is not None: return judged_training(job, TrainPlan(plan, job.learns), term)
    return judged_decoding(job, term) if job.decode else judged_forward(job, plan, term)


def judged_forward(job: Job, plan: Partition, term: Operator) -> Judge:
    """Counts beside formulas, and what comes out beside one rank's."""
    prepared = Prepared(plan)

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        whole = prepared.assembled(ran.values)
        far = compared_with_one(term, job.feed.x, whole) if compare else None
        return tallies(plan, ran.meters), far, []
    return judge


def judged_decoding(job: Job, term: Operator) -> Judge:
    """Tokens beside those of one rank without caches, which reads the whole text for each. Raises InputError for
    attention that has no caches."""
    plan = decode_plan(job, term)
    partition(term, Mesh.of(), BatchSizes(plan.sequences, plan.prompt + job.steps))     # as long as the text will be

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        made, text = made_tokens(ran.values), np.asarray(job.ids)
        lines = [f"sequence {k}: {' '.join(map(str, own))}" for k, own in enumerate(made)]
        if not compare: return [], None, lines
        for _ in range(job.steps):
            scores = dense(term, Batch([*text])).reshape(*text.shape, -1)[:, -1]
            text = np.concatenate([text, scores.argmax(-1)[:, None]], 1)
        unlike = int((text[:, len(job.ids[0]):] != made).sum())
        return [], float(unlike), [*lines, f"{unlike} of {made.size} tokens are not one rank's without caches"]
    return judge


def judged_training(job: Job, train: TrainPlan, term: Operator) -> Judge:
    """Counts of the last step beside formulas, and the loss of every step beside one rank's. Raises InputError for what
    has no pullback."""
    assert train.buckets                                    # what is refused is refused before a process starts

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        losses = mean_losses(train, ran.values)
        lines = [f"step {k}: loss {loss:.12g}" for k, loss in enumerate(losses, 1)]
        counts = train_tallies(train, ran.meters)
        if not compare: return counts, None, lines
        asked = dict(job.train or {}) | {"schedule": USUAL.schedule}
        one = replace(job, axes={}, stages=None, train=asked)
        alone = train_virtual(train_plan(one, term), job.feed, job.steps).losses
        far = max(abs(a - b) for a, b in zip(losses, alone, strict=True)) / max(map(abs, alone))
        return counts, far, [f"{line}, one rank's {each:.12g}" for line, each in zip(lines, alone, strict=True)]
    return judge


def compared_with_one(term: Operator, ids: Numeric, whole: Numeric) -> float:
    """How far an output is from one rank's, of its largest entry."""
    wanted = dense(term, Batch([*ids])).reshape(whole.shape)
    return float(abs(whole - wanted).max() / abs(wanted).max())
