"""What a rank does in a step of training, as formulas: operations, and what crosses forward, backward, for weights that
are stored in pieces, for sums of gradients and for new numbers."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sympy

from opmatrix.partitions.booked import Crossing, add_up, gathers
from opmatrix.split.axis_states import piece
from opmatrix.split.placement import local
from opmatrix.stepping.learned_arrays import Bucket
from opmatrix.stepping.train_ranks import TrainPlan
from opmatrix.training.pullback import PassPhase
from opmatrix.training.step_costs import among_copies, summed_in_pieces, summed_whole

PHASES: tuple[PassPhase, ...] = ("forward", "kept", "again", "backward")
OftenCrossed: TypeAlias = tuple[int, Crossing]              # how often, and what


def step_flops(train: TrainPlan, stage: int) -> sympy.Expr:
    """Operations of a rank of a stage in a step."""
    return train.asked.micro_batches * add_up(chunk.booked.flops_of(*PHASES) for chunk in train.chunks[stage])


def step_crossings(train: TrainPlan, stage: int) -> Iterator[OftenCrossed]:
    """What crosses of a rank of a stage in a step, and how often."""
    often, buckets = train.asked.micro_batches, train.buckets[stage]
    for number, chunk in enumerate(train.chunks[stage]):
        for found in chunk.booked.crossings_of(*PHASES): yield often, found
        for bucket in buckets:
            if number not in bucket.chunks: continue
            for k in bucket.stored: yield 2 * often, gathered(train, bucket, k)
    for neighbour in (stage, stage - 1): yield from ((often, sent) for sent in train.plan.handing(neighbour))
    for bucket in buckets: yield from ((1, found) for found in learned(train, bucket))


def level_sizes(train: TrainPlan, bucket: Bucket) -> list[sympy.Expr]:
    """Numbers of a bucket whole, and as a rank has them behind each axis that stores a piece of them."""
    mesh = train.plan.mesh.flat
    found = [add_up(local(each.dims, each.key[1], mesh).numbers for each in bucket.arrays)]
    for axis in (mesh.axes[k] for k in bucket.pieces):
        found.append(sympy.sympify(piece(found[-1], axis.ranks, axis.at)))
    return found


def gathered(train: TrainPlan, bucket: Bucket, k: int) -> Crossing:
    """The pieces of a bucket that an axis stores, gathered."""
    whole = level_sizes(train, bucket)[bucket.pieces.index(k)]
    [found] = gathers([whole], [train.plan.mesh.flat.axes[k]])
    return found


def learned(train: TrainPlan, bucket: Bucket) -> Iterator[Crossing]:
    """How the gradients of a bucket are summed, and its new numbers gathered."""
    mesh, sizes = train.plan.mesh.flat, level_sizes(train, bucket)
    for k, state in bucket.copied: yield among_copies(mesh.axes[k], state, sizes[0])
    for axis in (mesh.axes[k] for k in bucket.summed): yield summed_whole(axis, sizes[0], axis.ranks, axis.at)
    for k, whole in zip(bucket.pieces, sizes, strict=False): yield summed_in_pieces(mesh.axes[k], whole)
    if bucket.stages: yield between_sharing(train, bucket.stages, sizes[-1])
    for k in bucket.pieces:
        if k not in bucket.stored: yield gathered(train, bucket, k)


def between_sharing(train: TrainPlan, stages: Sequence[int], numbers: sympy.Expr) -> Crossing:
    """The sum of an array that some stages share, among these: each merges a piece."""
    along = train.plan.mesh.stages
    assert along is not None
    n, place = len(stages), sympy.Piecewise(*((sympy.Integer(r), sympy.Eq(along.at, at))
                                              for r, at in enumerate(stages)), (sympy.Integer(0), True))
    return summed_whole(along, numbers, n, place)
