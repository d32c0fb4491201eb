"""What a rank does in a step of training, as formulas: operations, and what crosses forward, backward, for weights that
are stored in pieces, for sums of gradients and for new numbers."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import sympy

from opmatrix.algebra.shapes import LiveSize
from opmatrix.autodiff.pullback import PassPhase
from opmatrix.parallel.cost.step_costs import (
    among_copies,
    pieces_gathered,
    place_among_copies,
    summed_in_pieces,
    summed_whole,
)
from opmatrix.parallel.sharding.axis_states import piece
from opmatrix.parallel.sharding.cost_formulas import Crossing, add_up
from opmatrix.parallel.sharding.placement import Coordinates, local
from opmatrix.parallel.train.learned_arrays import Bucket
from opmatrix.parallel.train.requested_steps import TrainPlan
from opmatrix.parallel.train.stage_chunks import StageChunk

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
    for leg in train.legs_of(stage):
        for neighbour in (leg, leg - 1): yield from ((often, sent) for sent in train.plan.handing(neighbour))
    for bucket in buckets: yield from ((1, found) for found in learned(train, bucket))


def step_peak(train: TrainPlan, place: Coordinates) -> int:
    """The most numbers of values and gradients that a rank holds in a step: what passes in flight keep, what the one
    that runs holds, gradients from when they are known, and beside them those that are summed."""
    stage, known = train.plan.stage(place), dict[sympy.Expr, int]()
    chunks, buckets = train.chunks[stage], train.buckets[stage]

    def size(e: sympy.Expr) -> int:
        if e not in known: known[e] = int(train.plan.on(sympy.sympify(e), place))
        return known[e]
    runs = [ChunkSizes.of(chunk, size) for chunk in chunks]
    learned = [(each.chunks, size(local(each.dims, each.key[1], train.plan.mesh.flat).numbers))
               for bucket in buckets for each in bucket.arrays]
    now = most = 0
    waiting = {*range(len(learned))}                        # gradients that are not known yet
    for kind, _, leg in train.order[stage]:
        numbers = train.chunk_numbers(leg)
        for number in numbers if kind == "F" else reversed(numbers):
            run = runs[number]
            if kind == "F":
                most, now = max(most, now + run.forward), now + run.saved
                continue
            most = max(most, now - run.saved + run.backward)
            first = {k for k in waiting if number in learned[k][0]}
            waiting -= first
            now += sum(learned[k][1] for k in first) - run.saved
            most = max(most, now + run.found)
    return max(most, now + max((size(level_sizes(train, bucket)[0]) for bucket in buckets), default=0))


class ChunkSizes(NamedTuple):
    """Numbers that a rank holds of a chunk: at most forward, what is saved for backward, at most backward with it, and
    gradients and cotangent when it is back."""
    forward: int
    saved: int
    backward: int
    found: int

    @classmethod
    def of(cls, chunk: StageChunk, size: Callable[[sympy.Expr], int]) -> ChunkSizes:
        held: dict[int, int] = {}
        forward = chunk.walked(chunk.there, held, size)
        if chunk.out not in chunk.saved: held.pop(chunk.out)
        saved = sum(held.values())
        backward = chunk.walked(chunk.back, held, size)
        return cls(forward, saved, backward, sum(held.values()))


def level_sizes(train: TrainPlan, bucket: Bucket) -> list[sympy.Expr]:
    """Numbers of a bucket whole, and as a rank has them behind each axis that stores a piece of them."""
    mesh = train.plan.mesh.flat
    found = [add_up(local(each.dims, each.key[1], mesh).numbers for each in bucket.arrays)]
    for k in bucket.pieces: found.append(sympy.sympify(piece(found[-1], *among(train, bucket, k))))
    return found


def among(train: TrainPlan, bucket: Bucket, k: int) -> tuple[LiveSize, LiveSize]:
    """Among how many ranks of an axis a bucket is summed, and the place of a rank among them: all, or those that have
    the same experts."""
    axis, copies = train.plan.mesh.flat.axes[k], dict(bucket.expert_copies).get(k)
    return (axis.ranks, axis.at) if copies is None else (copies, place_among_copies(axis, copies))


def gathered(train: TrainPlan, bucket: Bucket, k: int) -> Crossing:
    """The pieces of a bucket that an axis stores, gathered."""
    whole = level_sizes(train, bucket)[bucket.pieces.index(k)]
    return pieces_gathered(train.plan.mesh.flat.axes[k], whole, *among(train, bucket, k))


def learned(train: TrainPlan, bucket: Bucket) -> Iterator[Crossing]:
    """How the gradients of a bucket are summed, and its new numbers gathered."""
    mesh, sizes = train.plan.mesh.flat, level_sizes(train, bucket)
    for k, state in bucket.copied: yield among_copies(mesh.axes[k], state, sizes[0])
    for k in bucket.summed: yield summed_whole(mesh.axes[k], sizes[0], *among(train, bucket, k))
    for k, whole in zip(bucket.pieces, sizes, strict=False):
        yield summed_in_pieces(mesh.axes[k], whole, *among(train, bucket, k))
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
