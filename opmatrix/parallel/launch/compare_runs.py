"""Results of ranks beside those expected: one rank's numbers, losses or tokens, and the counts that formulas
foresee."""

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

RunVerdict: TypeAlias = tuple[list[Tally], float | None, list[str]]  # counts, distance from one rank, lines
Judge: TypeAlias = Callable[[Launched, bool], RunVerdict]


def judge_of(job: Job, plan: Partition, term: Operator) -> Judge:
    """Return the judge of a job's results. Raises InputError for a job that cannot run, before a process starts."""
    if job.learns is not None:
        return judged_training(job, TrainPlan(plan, job.learns), term)
    return judged_decoding(job, term) if job.decode else judged_forward(job, plan, term)


def judged_forward(job: Job, plan: Partition, term: Operator) -> Judge:
    """Return a judge of counts beside formulas, and of the output beside one rank's."""
    prepared = Prepared(plan)

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        """Judge a forward run: its counts, and the distance of its output from one rank's if `compare`."""
        whole = prepared.assembled(ran.values)
        far = compared_with_one(term, job.feed.x, whole) if compare else None
        return tallies(plan, ran.meters), far, []

    return judge


def judged_decoding(job: Job, term: Operator) -> Judge:
    """Return a judge of tokens beside those of one rank without caches, which reads the whole text for each token.
    Raises InputError for attention that has no caches."""
    plan = decode_plan(job, term)
    partition(term, Mesh.of(), BatchSizes(plan.sequences, plan.prompt + job.steps))  # as long as the text will be

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        """Judge a decoding run: its tokens, and the number of them that one rank without caches chooses otherwise."""
        tokens, text = made_tokens(ran.values), np.asarray(job.ids)
        lines = [f"sequence {k}: {' '.join(map(str, row))}" for k, row in enumerate(tokens)]
        if not compare:
            return [], None, lines
        for _ in range(job.steps):
            scores = dense(term, Batch([*text])).reshape(*text.shape, -1)[:, -1]
            text = np.concatenate([text, scores.argmax(-1)[:, None]], 1)
        unlike = int((text[:, len(job.ids[0]) :] != tokens).sum())
        return [], float(unlike), [*lines, f"{unlike} of {tokens.size} tokens are not one rank's without caches"]

    return judge


def judged_training(job: Job, train: TrainPlan, term: Operator) -> Judge:
    """Return a judge of counts of the last step beside formulas, and of the loss of every step beside one rank's.
    Raises InputError for an operator that has no pullback."""
    assert train.buckets  # raises its errors before a process starts

    def judge(ran: Launched, compare: bool) -> RunVerdict:
        """Judge a training run: its losses and counts, and the largest distance of a loss from one rank's, relative to
        the largest of these."""
        losses = mean_losses(train, ran.values)
        lines = [f"step {k}: loss {loss:.12g}" for k, loss in enumerate(losses, 1)]
        counts = train_tallies(train, ran.meters)
        if not compare:
            return counts, None, lines
        asked = dict(job.train or {}) | {"schedule": USUAL.schedule}
        one = replace(job, axes={}, stages=None, train=asked)
        alone = train_virtual(train_plan(one, term), job.feed, job.steps).losses
        far = max(abs(a - b) for a, b in zip(losses, alone, strict=True)) / max(map(abs, alone))
        return counts, far, [f"{line}, one rank's {loss:.12g}" for line, loss in zip(lines, alone, strict=True)]

    return judge


def compared_with_one(term: Operator, ids: Numeric, whole: Numeric) -> float:
    """Return the largest difference of an output from one rank's, relative to the largest entry of that."""
    wanted = dense(term, Batch([*ids])).reshape(whole.shape)
    return float(abs(whole - wanted).max() / abs(wanted).max())
