"""The formulas of a rank in a step of training: operations, and the collectives of forward, of backward, of sharded
weights, of gradient sums and of new weights."""

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
OftenCrossed: TypeAlias = tuple[int, Crossing]  # count of a collective in a step, and the collective


def step_flops(train: TrainPlan, stage: int) -> sympy.Expr:
    """Return the operations of a rank of a stage in a step."""
    return train.asked.micro_batches * add_up(chunk.booked.flops_of(*PHASES) for chunk in train.chunks[stage])


def step_crossings(train: TrainPlan, stage: int) -> Iterator[OftenCrossed]:
    """Yield the collectives of a rank of a stage in a step, each with its count."""
    often, buckets = train.asked.micro_batches, train.buckets[stage]
    for number, chunk in enumerate(train.chunks[stage]):
        for crossing in chunk.booked.crossings_of(*PHASES):
            yield often, crossing
        for bucket in buckets:
            if number not in bucket.chunks:
                continue
            for k in bucket.stored:
                yield 2 * often, gathered(train, bucket, k)
    for leg in train.legs_of(stage):
        for neighbour in (leg, leg - 1):
            yield from ((often, sent) for sent in train.plan.handing(neighbour))
    for bucket in buckets:
        yield from ((1, collective) for collective in learned(train, bucket))


def step_peak(train: TrainPlan, place: Coordinates) -> int:
    """Return the largest count of numbers that a rank holds in a step: the saved values of passes in flight, the values
    of the running pass, gradients from when they are computed, and beside them the bucket that is summed."""
    stage, known = train.plan.stage(place), dict[sympy.Expr, int]()
    chunks, buckets = train.chunks[stage], train.buckets[stage]

    def size(e: sympy.Expr) -> int:
        """Evaluate a formula at the rank's place, each once."""
        if e not in known:
            known[e] = int(train.plan.on(sympy.sympify(e), place))
        return known[e]

    runs = [ChunkSizes.of(chunk, size) for chunk in chunks]
    learned = [
        (array.chunks, size(local(array.dims, array.key[1], train.plan.mesh.flat).numbers))
        for bucket in buckets
        for array in bucket.arrays
    ]
    now = most = 0
    waiting = {*range(len(learned))}  # gradients that are not computed yet
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
    """Counts of numbers that a rank holds of a chunk."""

    forward: int  # at most, in the forward pass
    saved: int  # saved for backward
    backward: int  # at most in the backward pass, with the saved numbers
    found: int  # gradients and cotangent after the backward pass

    @classmethod
    def of(cls, chunk: StageChunk, size: Callable[[sympy.Expr], int]) -> ChunkSizes:
        """Follow the held numbers through the forward and the backward pass of a chunk."""
        held: dict[int, int] = {}
        forward = chunk.walked(chunk.there, held, size)
        if chunk.out not in chunk.saved:
            held.pop(chunk.out)
        saved = sum(held.values())
        backward = chunk.walked(chunk.back, held, size)
        return cls(forward, saved, backward, sum(held.values()))


def level_sizes(train: TrainPlan, bucket: Bucket) -> list[sympy.Expr]:
    """Return the numbers of a bucket, and of its shard after each axis that shards it."""
    mesh = train.plan.mesh.flat
    sizes = [add_up(local(array.dims, array.key[1], mesh).numbers for array in bucket.arrays)]
    for k in bucket.pieces:
        sizes.append(sympy.sympify(piece(sizes[-1], *among(train, bucket, k))))
    return sizes


def among(train: TrainPlan, bucket: Bucket, k: int) -> tuple[LiveSize, LiveSize]:
    """Return the number of ranks of an axis among which a bucket is summed, and the index of a rank among them: all
    ranks, or the replicas of the same experts."""
    axis, copies = train.plan.mesh.flat.axes[k], dict(bucket.expert_copies).get(k)
    return (axis.ranks, axis.at) if copies is None else (copies, place_among_copies(axis, copies))


def gathered(train: TrainPlan, bucket: Bucket, k: int) -> Crossing:
    """Return the all-gather of the shards of a bucket over an axis."""
    whole = level_sizes(train, bucket)[bucket.pieces.index(k)]
    return pieces_gathered(train.plan.mesh.flat.axes[k], whole, *among(train, bucket, k))


def learned(train: TrainPlan, bucket: Bucket) -> Iterator[Crossing]:
    """Yield the collectives that sum the gradients of a bucket, and gather its new numbers."""
    mesh, sizes = train.plan.mesh.flat, level_sizes(train, bucket)
    for k, state in bucket.copied:
        yield among_copies(mesh.axes[k], state, sizes[0])
    for k in bucket.summed:
        yield summed_whole(mesh.axes[k], sizes[0], *among(train, bucket, k))
    for k, whole in zip(bucket.pieces, sizes, strict=False):
        yield summed_in_pieces(mesh.axes[k], whole, *among(train, bucket, k))
    if bucket.stages:
        yield between_sharing(train, bucket.stages, sizes[-1])
    for k in bucket.pieces:
        if k not in bucket.stored:
            yield gathered(train, bucket, k)


def between_sharing(train: TrainPlan, stages: Sequence[int], numbers: sympy.Expr) -> Crossing:
    """Return the all-reduce of an array that several stages share, among these stages; each merges a piece."""
    along = train.plan.mesh.stages
    assert along is not None
    n, place = (
        len(stages),
        sympy.Piecewise(
            *((sympy.Integer(r), sympy.Eq(along.at, at)) for r, at in enumerate(stages)), (sympy.Integer(0), True)
        ),
    )
    return summed_whole(along, numbers, n, place)
