"""Ranks that run in one process: generators that wait for each other, merged in the order of ranks, so every run gives
the same bits. Communication is counted at the arrays."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Data, Numeric
from opmatrix.parallel.ranks.ranks import Message, Meter, Rank, count_held
from opmatrix.parallel.sharding.axis_states import Cut, bounds
from opmatrix.parallel.sharding.carrier_pieces import AXES, Carriers, cut_piece, each_of
from opmatrix.parallel.sharding.cost_formulas import PAIR
from opmatrix.parallel.sharding.feeds import Feed, window
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates, found_at
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.sharding.spreading import Split

STEPS = 100_000  # more steps than a factor has
POSTED = {"give": "take", "give_back": "take_back"}  # sent without waiting for the receiver
COUNTED = {"give": "send", "give_back": "send", "exchange": "all_to_all"}  # the operation that it is counted as
NEIGHBOURS = dict(give=(0, 1), take=(-1, 0), give_back=(-1, 0), take_back=(0, 1))  # offsets of two stages


RankBody: TypeAlias = Callable[[Coordinates, Meter, Numeric | None], Generator[Message, Any, Numeric]]


class Stuck(RuntimeError):
    """Ranks that wait forever, each named with the operation that it waits in."""


@dataclass(frozen=True)
class Ran:
    """The result of a run."""

    value: Numeric  # the whole value
    meters: Mapping[Coordinates, Meter]  # counts of each rank


def run(plan: Partition, feed: Feed) -> Ran:
    """Run every rank of a partition on the numbers of a batch. Raises Stuck for ranks that wait forever, and InputError
    for a batch whose sizes are not those of the partition."""
    dims, shape = plan.sizes.dims(plan.splits[0].x), feed.x.shape[:2]
    if (dims.batch, dims.rows) != shape:
        raise InputError(
            f"batch: {shape[0]} sequences of {shape[1]} rows, but the partition is for {dims.batch} of "
            f"{dims.rows}: partition for the sizes of the batch"
        )
    splits = {at: plan.split_of(at) for at in range(len(plan.chain))}
    final = splits[len(plan.chain) - 1]
    return run_ranks(plan, partial(factor_by_factor, plan, splits, feed), final.steps[final.out])


def run_ranks(plan: Partition, body: RankBody, result: RankStep) -> Ran:
    """Run the body of each rank in its stage, which begins with the output of the stage before; `result` is the last
    step of the last stage."""
    meters = {place: Meter() for place in plan.mesh.places()}
    running = {place: rank(plan, place, body, meter) for place, meter in meters.items()}
    return Ran(assembled(result, last_stage(plan, drive(running, plan.mesh, meters)), plan.mesh.flat), meters)


def last_stage(plan: Partition, results: Mapping[Coordinates, Numeric]) -> dict[Coordinates, Numeric]:
    """Return the results of the ranks of the last stage, by their coordinates within it."""
    last = len(plan.stages) - 1
    return {plan.flat(place): value for place, value in results.items() if plan.stage(place) == last}


def rank(plan: Partition, place: Coordinates, body: RankBody, meter: Meter) -> Generator[Message, Any, Numeric]:
    """Run the body of a rank in its stage, between taking a value and handing one on."""
    stage, start = plan.stage(place), None
    lo, hi = plan.cuts[stage]
    axis = plan.mesh.index(plan.mesh.stages.name) if plan.mesh.stages else 0
    if stage:
        [start] = yield Message("take", axis, (), lo)
    value = yield from body(place, meter, start)
    if stage < len(plan.stages) - 1:
        yield Message("give", axis, (value,), hi)
    return value


def factor_by_factor(
    plan: Partition, splits: Mapping[int, Split], feed: Feed, place: Coordinates, meter: Meter, value: Numeric | None
) -> Generator[Message, Any, Numeric]:
    """Run the factors of a rank's stage, one after the other."""
    stored: dict[Any, Data] = {}
    for at in range(*plan.cuts[plan.stage(place)]):
        one = Rank(splits[at], plan.flat(place), feed, meter, value, stored)
        value = yield from with_mesh_axes(one.run(), plan, at)
    assert value is not None
    return value


def with_mesh_axes(
    running: Generator[Message, Any, Numeric], plan: Partition, at: int
) -> Generator[Message, Any, Numeric]:
    """Run a factor; give its messages the axes of the whole mesh, and step numbers that no other factor has."""
    axes = [plan.mesh.index(axis.name) for axis in plan.mesh.flat]
    value = None
    while True:
        try:
            message = running.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        value = yield message._replace(axis=axes[message.axis], at=at * STEPS + message.at)


def drive(
    running: Mapping[Coordinates, Any], mesh: Mesh, meters: Mapping[Coordinates, Meter]
) -> dict[Coordinates, Numeric]:
    """Run all ranks until each is done; a group goes on when all of its ranks hand over arrays for the same
    operation."""
    results: dict[Coordinates, Numeric] = {}
    waits: dict[Coordinates, Message] = {}
    mail: dict[object, deque[Carriers]] = defaultdict(deque)

    def advance(place: Coordinates, value: Any) -> None:
        """Resume a rank with a value; post its sends until it waits for a message or ends."""
        try:
            while (message := running[place].send(value)).op in POSTED:
                [receiver] = {*group_of(place, message, mesh)} - {place}
                key = COUNTED[message.op], mesh.axes[message.axis].name
                meters[place].sent(key, message.numbers, message.numbers, 1)
                mail[receiver, POSTED[message.op], message.at].append(message.arrays)
                value = ()
            waits[place] = message
        except StopIteration as end:
            results[place] = end.value

    for place in running:
        advance(place, None)
    while waits:
        taking = [place for place, message in waits.items() if mail.get((place, message.op, message.at))]
        for place in taking:
            taken = waits.pop(place)
            advance(place, mail[place, taken.op, taken.at].popleft())
        if taking:
            continue
        groups = {group_of(place, message, mesh): message for place, message in waits.items()}
        ready = [
            (group, message)
            for group, message in groups.items()
            if all(p in waits and alike(waits[p], message) for p in group)
        ]
        if not ready:
            raise Stuck(
                "; ".join(
                    f"rank {p} waits in {m.op} of step {m.at} on axis {mesh.axes[m.axis].name}"
                    for p, m in waits.items()
                )
            )
        for group, message in ready:
            sent = [waits.pop(p) for p in group]
            values = MERGES[message.op](sent, [meters[p] for p in group], mesh.axes[message.axis].name)
            for place, value in zip(group, values, strict=True):
                advance(place, value)
    return results


def alike(one: Message, other: Message) -> bool:
    """True if two ranks wait for each other: in one operation of one step."""

    def met(message: Message) -> tuple[object, ...]:
        """Return the operation, axis, step and group that must agree."""
        return message.op, message.axis, message.at, message.among

    return one.op not in POSTED.values() and met(one) == met(other)


def group_of(place: Coordinates, message: Message, mesh: Mesh) -> tuple[Coordinates, ...]:
    """Return the ranks that take part: ranks that meet on an axis, in order, or two neighbours."""
    axis, here = message.axis, place[message.axis]
    along = NEIGHBOURS.get(message.op)
    if along is not None:  # with several chunks the last stage gives to the first
        n = mesh.axes[axis].count
        return tuple((*place[:axis], (here + step) % n, *place[axis + 1 :]) for step in along)
    group = mesh.group(place, axis)
    return tuple(group[r] for r in message.among) or group


def pieces_of(cut: Cut, sent: Sequence[Message]) -> Numeric | Carriers:
    """Return the whole of a sharded value, for each component of a carrier; pieces that ranks copy are taken once."""
    n, units = len(sent), sent[0].units
    pieces = [
        m.arrays
        for r, m in enumerate(sent)
        if not (cut.copied and r and cut.bounds(n, r, units) == cut.bounds(n, r - 1, units))
    ]
    whole = tuple(np.concatenate(parts, AXES[cut.role]) for parts in zip(*pieces, strict=True))
    return whole if len(whole) > 1 else whole[0]


def gather(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric | Carriers]:
    """Concatenate the pieces of all ranks of a group; each gets all of them."""
    cut = sent[0].cut
    assert cut is not None
    whole = pieces_of(cut, sent)
    for m, meter in zip(sent, meters, strict=True):
        meter.sent((m.op, axis), m.numbers, count_held(whole) - m.numbers, len(sent) - 1)
    return [whole] * len(sent)


def merge_sent(sent: Sequence[Message]) -> Numeric | Carriers:
    """Merge the carriers of ranks in their order. Return the finished value, or a carrier that other axes merge
    further."""
    over = sent[0].over
    assert over is not None
    total: Carriers = reduce(over.merged, (m.arrays for m in sent))
    if sent[0].unfinished:
        return total
    shape = np.broadcast_shapes(*(part.shape for part in total))
    return np.asarray(over.finished(total, shape), np.float64)


def piece_of(x: Numeric | Carriers, m: Message, n: int, r: int) -> Numeric | Carriers:
    """Return the piece that rank r of n shall hold."""
    then = m.then
    assert then is not None
    return each_of(x, lambda each: cut_piece(each, then, m.unit, n, r))


def all_reduce(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric | Carriers]:
    """Merge the parts of a group; two ranks swap all numbers, more use a ring."""
    value, n = merge_sent(sent), len(sent)
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        lo, hi = bounds(m.numbers, n, r)
        crossed = (m.numbers, 1) if n == PAIR else (2 * (m.numbers - (hi - lo)), 2 * (n - 1))
        meter.sent((m.op, axis), m.numbers, *crossed)
    return [value] * n


def reduce_scatter(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric | Carriers]:
    """Merge the parts of a group; each rank gets its piece."""
    return scattered(merge_sent(sent), sent, meters, axis)


def all_to_all(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric | Carriers]:
    """Concatenate the pieces of a group; each rank gets its piece along another dimension."""
    cut = sent[0].cut
    assert cut is not None
    return scattered(pieces_of(cut, sent), sent, meters, axis)


def scattered(
    whole: Numeric | Carriers, sent: Sequence[Message], meters: Sequence[Meter], axis: str
) -> list[Numeric | Carriers]:
    """Return the pieces of the whole that ranks shall hold; the piece that a rank has already is not sent."""
    n = len(sent)
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        meter.sent((m.op, axis), m.numbers, m.numbers - count_held(piece_of(m.arrays, m, n, r)), n - 1)
    return [piece_of(whole, m, n, r) for r, m in enumerate(sent)]


def exchange_halo(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric]:
    """Give each rank the rows that it names, of every rank in order; its own rows are not sent."""
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        others = [rows for q, rows in enumerate(m.arrays) if q != r]
        numbers = sum(rows.size for rows in others)
        meter.sent((m.op, axis), numbers, numbers, sum(rows.size > 0 for rows in others))
    return [np.concatenate([m.arrays[r] for m in sent], AXES["rows"]) for r in range(len(sent))]


def exchange_rows(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Carriers]:
    """Give each rank its share of the arrays of every rank, in order of ranks; a rank's share of its own arrays is not
    sent."""
    share = len(sent[0].arrays) // len(sent)
    shares = [[m.arrays[r * share : (r + 1) * share] for m in sent] for r in range(len(sent))]
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        meter.sent(
            (COUNTED.get(m.op, m.op), axis),
            m.numbers,
            m.numbers - sum(array.size for array in shares[r][r]),
            len(sent) - 1,
        )
    return [tuple(array for arrays in came for array in arrays) for came in shares]


def hand_on(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Carriers]:
    """Give the arrays of each rank to its right neighbour."""
    for m, meter in zip(sent, meters, strict=True):
        meter.sent((m.op, axis), m.numbers, m.numbers, int(bool(m.arrays)))
    return [sent[r - 1].arrays for r in range(len(sent))]


MERGES: dict[str, Callable[[Sequence[Message], Sequence[Meter], str], Sequence[Any]]] = dict(
    all_gather=gather,
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_to_all=all_to_all,
    send=hand_on,
    halo=exchange_halo,
    exchange=exchange_rows,
    visit=exchange_rows,
)


def assembled(step: RankStep, results: Mapping[Coordinates, Numeric], mesh: Mesh) -> Numeric:
    """Return the whole value from the parts of ranks: sequences x heads x rows x columns."""
    whole = np.full(tuple(map(int, step.dims)), np.nan)
    for place, value in results.items():
        whole[window(step.dims, found_at(step.dims, step.placement, mesh, place))] = value
    return whole
