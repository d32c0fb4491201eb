"""A rank that trains: micro-batches through its stage in the order of a schedule, gradients summed over the ranks that
have parts of them, a step of Adam on the optimiser state that this rank stores, new weights gathered."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.traced import sliced_at
from opmatrix.algebra.data import Data, Numeric
from opmatrix.autodiff.learning import Adam
from opmatrix.parallel.ranks.ranks import Message, Meter
from opmatrix.parallel.ranks.virtual import STEPS, drive, with_mesh_axes
from opmatrix.parallel.sharding.axis_states import Cut, bounds
from opmatrix.parallel.sharding.cost_formulas import StoredKey, stored_arrays, stored_dims
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.placement import Coordinates, copy_holders, found_at
from opmatrix.parallel.train.chunk_passes import NO_NUMBERS, ChunkPass, HeldNumbers
from opmatrix.parallel.train.drop_masks import DropMasks
from opmatrix.parallel.train.learned_arrays import Bucket
from opmatrix.parallel.train.requested_steps import TrainPlan

GATHERING, SUMMING, RENEWING = 70_000, 80_000, 90_000  # step numbers of weights, apart from those of values
VERSIONS = count()  # version numbers that keep the keys of arrays unique


class LossNotFinite(ArithmeticError):
    """A loss, or a gradient, that is not finite."""


@dataclass
class Shard:
    """The part of a bucket that a rank stores."""

    bucket: Bucket  # the bucket
    flat: Numeric  # its numbers; a piece if an axis stores weights once
    shapes: Sequence[tuple[int, ...]]  # shapes of its arrays on this rank, when gathered
    sizes: Sequence[int]  # numbers in all, and behind each axis of pieces
    adam: Adam  # optimiser of the numbers that the rank updates


class TrainingRank:
    """One rank with its weights; `step` is a generator, like the runs of other ranks."""

    def __init__(self, train: TrainPlan, place: Coordinates) -> None:
        self.train, self.plan, self.place, self.flat_place = train, train.plan, place, train.plan.flat(place)
        self.stage, self.steps = self.plan.stage(place), 0
        self.chunks, self.buckets = train.chunks[self.stage], train.buckets[self.stage]
        self.arrays: dict[Any, Data] = {}
        self.mesh = self.plan.mesh.flat
        self.numbers = [self.plan.mesh.index(axis.name) for axis in self.mesh]
        for chunk in self.chunks:
            for key, data, _ in stored_arrays(chunk.steps):
                self.arrays.setdefault(key, self.stored(data, key))
        self.shards = [self.beginning(bucket) for bucket in self.buckets]

    def stored(self, data: Data, key: StoredKey) -> Data:
        """Return the part of an array that this rank has at the beginning."""
        base = data.base or data
        return sliced_at(base, found_at(stored_dims(base), key[1], self.mesh, self.flat_place))

    def beginning(self, bucket: Bucket) -> Shard:
        """Return the rank's shard of a bucket: its numbers, and a new optimiser for them. Weights that are stored in
        pieces are dropped."""
        arrays = [self.arrays[array.key].array for array in bucket.arrays]
        flat = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
        sizes = [len(flat)]
        for k in bucket.pieces:
            part = self.own_piece(bucket, k, sizes[-1])
            sizes.append(part.stop - part.start)
            if k in bucket.stored:
                flat = flat[part]
        shard = Shard(bucket, flat, [array.shape for array in arrays], sizes, Adam(self.train.asked.rate))
        if bucket.stored:
            self.drop(bucket)
        return shard

    def own_piece(self, bucket: Bucket, k: int, size: int) -> slice:
        """Return the slice of a bucket that this rank stores, among the ranks that store pieces of it on an axis."""
        among = self.among(bucket, k)
        if not among:
            return slice(*bounds(size, self.mesh.axes[k].count, self.flat_place[k]))
        return slice(*bounds(size, len(among), among.index(self.flat_place[k])))

    def among(self, bucket: Bucket, k: int) -> tuple[int, ...]:
        """Return the ranks of an axis that have the same experts as this one; empty for arrays of no expert."""
        n, copies = self.mesh.axes[k].count, dict(bucket.expert_copies).get(k)
        return () if copies is None else tuple(range(self.flat_place[k] % (n // copies), n, n // copies))

    # One step.

    def step(self, feeds: Sequence[Feed], meter: Meter) -> Generator[Message, Any, Numeric]:
        """Run a step of training, and return this rank's part of the losses of each micro-batch's rows. Raises
        LossNotFinite."""
        self.meter, self.held = meter, HeldNumbers(meter)
        self.steps += 1
        self.passes: dict[tuple[int, int], list[ChunkPass]] = {}
        self.gradients: dict[StoredKey, Numeric] = {}
        losses: dict[int, Numeric] = {}
        for kind, micro, leg in self.train.order[self.stage]:
            if kind == "F":
                losses[micro] = yield from self.ahead(micro, leg, feeds[micro])
            else:
                yield from self.back(micro, leg)
        for shard in self.shards:
            yield from self.learn(shard)
        return np.stack([losses[m] for m in sorted(losses)])

    def ahead(self, micro: int, leg: int, feed: Feed) -> Generator[Message, Any, Numeric]:
        """Run a micro-batch forward through a virtual stage."""
        along, passes, (lo, hi) = self.along, list[ChunkPass](), self.plan.cuts[leg]
        asked, first = self.train.asked, micro * int(self.plan.sizes.sequences)
        value: Numeric | None = None
        if leg:
            [value] = yield Message("take", along, (), lo)
        for number in self.train.chunk_numbers(leg):
            yield from self.gather(number)
            chunk = self.chunks[number]
            masks = DropMasks(asked.seed, self.steps, first, chunk.lo)
            passes.append(ChunkPass(chunk, self.flat_place, feed, self.held, self.arrays, value, masks))
            value = yield from with_mesh_axes(passes[-1].ahead(), self.plan, chunk.lo)
            self.leave(number)
        self.passes[micro, leg] = passes
        assert value is not None
        if leg < self.train.legs - 1:
            yield Message("give", along, (value,), hi)
            return NO_NUMBERS
        if not np.isfinite(value).all():
            raise LossNotFinite(f"the loss is not finite: a smaller rate than {self.train.asked.rate:g} may help")
        return value

    def back(self, micro: int, leg: int) -> Generator[Message, Any, None]:
        """Run a micro-batch backward through a virtual stage; its gradients are added to those of other
        micro-batches."""
        along, (lo, hi) = self.along, self.plan.cuts[leg]
        g: Any = 1 / self.train.rows
        if leg < self.train.legs - 1:
            [g] = yield Message("take_back", along, (), hi)
        passes = self.passes.pop((micro, leg))
        for number in reversed(self.train.chunk_numbers(leg)):
            yield from self.gather(number)
            chunk, one = self.chunks[number], passes.pop()
            went: Any = yield from with_mesh_axes(one.back(g), self.plan, chunk.lo)  # type: ignore[arg-type]
            g = went.cotangent
            self.add_gradients(number, went.gradients)
            one.end()
            self.leave(number)
        if leg:
            yield Message("give_back", along, (g,), lo)

    @property
    def along(self) -> int:
        """The number of the axis of pipeline stages; 0 without one."""
        return self.plan.mesh.index(self.plan.mesh.stages.name) if self.plan.mesh.stages else 0

    def add_gradients(self, number: int, found: Mapping[int, Numeric]) -> None:
        """Add the gradients of a chunk to those of its arrays, in the layout in which the arrays are stored."""
        for shard in self.shards:
            for array in shard.bucket.arrays:
                for use in array.uses:
                    if use.chunk != number:
                        continue
                    g = found[use.line]
                    if use.turned:
                        g = g.swapaxes(-1, -2)
                    if any(self.flat_place[k] for k in array.partial if k not in use.partial):
                        g = np.zeros_like(g)
                    total = self.gradients.get(array.key)
                    if total is None:
                        self.held.change(g.size)
                    self.gradients[array.key] = np.array(g) if total is None else total + g
        self.held.look()

    # Weights that are stored in pieces are gathered while a chunk runs.

    def gather(self, number: int) -> Generator[Message, Any, None]:
        """Gather the weights of a chunk that ranks store in pieces."""
        for shard in self.shards:
            if not shard.bucket.stored or number not in shard.bucket.chunks:
                continue
            flat = shard.flat
            for k in reversed(shard.bucket.stored):
                flat = yield from self.whole(shard, flat, k, GATHERING)
            self.put(shard, flat)

    def leave(self, number: int) -> None:
        """Drop the gathered weights of a chunk."""
        for shard in self.shards:
            if shard.bucket.stored and number in shard.bucket.chunks:
                self.drop(shard.bucket)

    def drop(self, bucket: Bucket) -> None:
        """Drop the gathered weights of a bucket."""
        for array in bucket.arrays:
            self.arrays.pop(array.key, None)

    def whole(self, shard: Shard, own: Numeric, k: int, after: int) -> Generator[Message, Any, Numeric]:
        """Gather a bucket from the pieces of all ranks of an axis that stores pieces of it."""
        whole = shard.sizes[shard.bucket.pieces.index(k)]
        gathered: Numeric = yield Message(
            "all_gather",
            self.numbers[k],
            (own,),
            self.named(shard.bucket, after),
            None,
            Cut("batch", whole),
            units=whole,
            among=self.among(shard.bucket, k),
        )
        return gathered

    def named(self, bucket: Bucket, after: int) -> int:
        """Return the step number of a bucket's collective, from its first chunk."""
        return self.chunks[min(bucket.chunks)].lo * STEPS + after + bucket.number

    def put(self, shard: Shard, flat: Numeric) -> None:
        """Replace the arrays of a bucket by these numbers."""
        at = 0
        for array, shape in zip(shard.bucket.arrays, shard.shapes, strict=True):
            size = prod(shape)
            data = Data(flat[at : at + size].reshape(shape))
            data.key = f"{array.key[0]} version {next(VERSIONS)}"
            data.T.key = f"{data.key}.T"
            self.arrays[array.key], at = data, at + size

    def learn(self, shard: Shard) -> Generator[Message, Any, None]:
        """Sum the gradients of a bucket, and take a step on the part of it that this rank stores. Raises
        LossNotFinite."""
        bucket = shard.bucket
        at = self.named(bucket, SUMMING)
        flat = np.concatenate([self.gradients[array.key].ravel() for array in bucket.arrays])
        self.held.look(flat.size)
        self.check_finite(bucket, flat)  # behind a sum their array is not known
        for k, state in bucket.copied:
            holders = copy_holders(state, self.mesh.axes[k].count, self.flat_place[k])
            flat = yield Message("all_reduce", self.numbers[k], (flat,), at, monoids.sum, among=holders)
        for k in bucket.summed:
            flat = yield Message("all_reduce", self.numbers[k], (flat,), at, monoids.sum, among=self.among(bucket, k))
        for k in bucket.pieces:
            flat = yield Message(
                "reduce_scatter",
                self.numbers[k],
                (flat,),
                at,
                monoids.sum,
                None,
                Cut("batch", flat.size),
                among=self.among(bucket, k),
            )
        if bucket.stages:
            flat = yield Message(
                "all_reduce", self.along, (flat,), self.shared_at(bucket), monoids.sum, among=bucket.stages
            )
        self.check_finite(bucket, flat)
        weights, apart = shard.flat, [k for k in bucket.pieces if k not in bucket.stored]
        for k in apart:
            weights = weights[self.own_piece(bucket, k, len(weights))]
        new = shard.adam.step({"": weights}, {"": flat})[""]
        for k in reversed(apart):
            new = yield from self.whole(shard, new, k, RENEWING)
        shard.flat = new
        if not bucket.stored:
            self.put(shard, new)

    def check_finite(self, bucket: Bucket, flat: Numeric) -> None:
        """Raise LossNotFinite for a gradient that is no number, or too large for one."""
        if np.isfinite(flat).all():
            return
        raise LossNotFinite(
            f"the gradient of {bucket.arrays[0].name} is not finite: a smaller rate than "
            f"{self.train.asked.rate:g} may help"
        )

    def shared_at(self, bucket: Bucket) -> int:
        """Return the step number of a sum between stages, which must be the same on all of them."""
        shared = sorted(
            {
                array.key[0]
                for buckets in self.train.buckets.values()
                for one in buckets
                if one.stages
                for array in one.arrays
            }
        )
        return SUMMING + shared.index(bucket.arrays[0].key[0])


@dataclass(frozen=True)
class TrainRan:
    """The result of steps of training."""

    losses: Sequence[float]  # mean loss of each step
    meters: Mapping[Coordinates, Meter]  # counts of each rank in the last step
    ranks: Mapping[Coordinates, TrainingRank]  # the ranks, with their weights


def train_virtual(train: TrainPlan, feed: Feed, steps: int) -> TrainRan:
    """Run steps of training with all ranks in this process."""
    ranks = {place: TrainingRank(train, place) for place in train.mesh.places()}
    losses, feeds, meters = list[float](), train.feeds(feed), dict[Coordinates, Meter]()
    for _ in range(steps):
        loss, meters = virtual_step(train, ranks, feeds)
        losses.append(loss)
    return TrainRan(losses, meters, ranks)


def virtual_step(
    train: TrainPlan, ranks: Mapping[Coordinates, TrainingRank], feeds: Sequence[Feed]
) -> tuple[float, dict[Coordinates, Meter]]:
    """Run one step of ranks in this process, and return the mean loss and the counts of each rank."""
    meters = {place: Meter() for place in ranks}
    running = {place: rank.step(feeds, meters[place]) for place, rank in ranks.items()}
    return float(train.losses(drive(running, train.mesh, meters)).mean()), meters
