"""Collectives of carriers over a wire that moves vectors between pairs of ranks. Parts are merged in the order of
ranks, so bits are those of virtual ranks. Communication is counted at the vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import isnan, prod
from typing import Protocol, TypeAlias

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.parallel.launch.headings import ArrayShape, Checking, Heading, RanksFailed, length_of
from opmatrix.parallel.ranks.ranks import Message, Meter
from opmatrix.parallel.ranks.virtual import COUNTED, POSTED, group_of, pieces_of
from opmatrix.parallel.sharding.axis_states import bounds
from opmatrix.parallel.sharding.carrier_pieces import AXES, Carriers, cut_piece
from opmatrix.parallel.sharding.cost_formulas import PAIR
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.placement import Coordinates

RankVectors: TypeAlias = Mapping[int, Numeric]  # a vector by rank
NOTHING = np.zeros(0)


class Wire(Protocol):
    """A wire that moves vectors of float64."""

    def exchange(self, sends: RankVectors, takes: Mapping[int, int], wait: bool = True, lane: int = 0) -> RankVectors:
        """Send a vector, which must not change any more, to each of some ranks, and receive one of a given size from
        others. Without `wait` the call returns before sent vectors have arrived. Between two ranks vectors of one lane
        come in the order in which they are sent."""
        ...

    def settle(self) -> None:
        """Wait for vectors that were sent without waiting."""
        ...


class NotFinite(RanksFailed):
    """Values that are not finite numbers."""


class Crossings:
    """One rank's end of all communication. In the first run a heading goes before each message. Sizes are known then,
    and later the heading is the front of the message itself."""

    def __init__(self, wire: Wire, mesh: Mesh, place: Coordinates, meter: Meter) -> None:
        self.wire, self.mesh, self.place, self.meter = wire, mesh, place, meter
        self.ranks = {coordinates: number for number, coordinates in enumerate(mesh.places())}
        self.here, self.length = self.ranks[place], length_of(mesh)
        self.checking = Checking(mesh, self.here)
        self.known: dict[tuple[int, int], dict[int, Heading]] = {}
        self.groups: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        self.current: Message | None = None  # the message that this rank waits in
        self.begin(meter)

    def begin(self, meter: Meter) -> None:
        """Count further messages in another meter; sizes stay known."""
        self.wire.settle()
        self.meter, self.times = meter, dict[int, int]()

    def cross(self, message: Message) -> Numeric | Carriers:
        """Return the result of a message. Raises RanksDisagree if other ranks are in another operation, and NotFinite
        for values that are not finite numbers."""
        if any(map(holds_nan, message.arrays)):
            raise NotFinite(f"rank {self.here}: it sends NaN in {Heading.of(message).told(self.mesh)[:60]}")
        self.current = message
        result, wire, messages = EXCHANGES[message.op](RankCrossing(self, message))
        self.current = None
        if message.op not in POSTED.values():
            name = COUNTED.get(message.op, message.op)
            self.meter.sent((name, self.mesh.axes[message.axis].name), message.numbers, wire, messages)
        return result

    def group(self, message: Message) -> list[int]:
        """Return the ranks that take part, in order."""
        key = message.op, message.axis, message.among
        if key not in self.groups:
            self.groups[key] = [self.ranks[member] for member in group_of(self.place, message, self.mesh)]
        return self.groups[key]

    def meet(
        self, message: Message, own: Heading, sends: Sequence[int], takes: Sequence[int]
    ) -> tuple[dict[int, Heading], Numeric]:
        """Return the headings of other ranks, and the vector that goes before the numbers: empty if the heading was
        sent on its own."""
        at, vector = message.at, own.vector(self.length)
        key = at, self.times.get(at, 0)
        self.times[at] = key[1] + 1
        if key in self.known:
            return self.known[key], vector
        came = self.wire.exchange(
            dict.fromkeys(sends, vector), dict.fromkeys(takes, self.length), message.op not in POSTED, lane_of(message)
        )
        headings = {rank: Heading.read(front) for rank, front in came.items()}
        self.checking.demand(message, own, headings)
        self.known[key] = headings
        return headings, NOTHING


class RankCrossing:
    """One message of one rank: its group in order, and the position of this rank in it."""

    def __init__(self, line: Crossings, message: Message) -> None:
        self.line, self.message, self.heading = line, message, Heading.of(message)
        self.group = line.group(message)
        self.own, self.n = self.group.index(line.here), len(self.group)
        self.others = [q for q in range(self.n) if q != self.own]

    def opened(self, sends: Sequence[int], takes: Sequence[int]) -> None:
        """Check that the ranks at some positions of the group are in the same operation, and note the shapes of their
        arrays."""
        to, of = [self.group[q] for q in sends], [self.group[q] for q in takes]
        headings, self.front = self.line.meet(self.message, self.heading, to, of)
        self.shapes = {q: headings[self.group[q]].shapes for q in takes}
        self.shapes[self.own] = self.heading.shapes

    def swap(self, sends: Mapping[int, Carriers], takes: Mapping[int, int]) -> RankVectors:
        """Send arrays as one vector to each rank, and receive vectors, by position in the group. A heading at the front
        of a vector is checked."""
        front, vectors, outgoing = len(self.front), dict[int, Numeric](), dict[int, Numeric]()
        for q, arrays in sends.items():
            if id(arrays) not in vectors:
                vectors[id(arrays)] = as_vector(self.front, arrays)  # one for all ranks
            outgoing[self.group[q]] = vectors[id(arrays)]
        came = self.line.wire.exchange(
            outgoing,
            {self.group[q]: front + size for q, size in takes.items()},
            self.message.op not in POSTED,
            lane_of(self.message),
        )
        if front:
            unlike = {
                rank: Heading.read(vector[:front])
                for rank, vector in came.items()
                if not np.array_equal(vector[:front], self.front)
            }  # equal headings agree
            if unlike:
                self.line.checking.demand(self.message, self.heading, unlike)
        self.front = NOTHING
        return {q: came[self.group[q]][front:] for q in takes}

    def portion(self, arrays: Carriers, r: int) -> Carriers:
        """Return the arrays that rank r of the group shall hold. If columns are sharded, an array with one column a row
        goes to every rank."""
        then, widest = self.message.then, max(array.shape[-1] for array in arrays)
        assert then is not None
        return tuple(
            array
            if then.role == "cols" and array.shape[-1] < widest
            else cut_piece(array, then, self.message.unit, self.n, r)
            for array in arrays
        )

    def portioned(self, rank: int, r: int) -> tuple[ArrayShape, ...]:
        """Return the shapes of a portion of the arrays of another rank."""
        return tuple(array.shape for array in self.portion(tuple(map(empty, self.shapes[rank])), r))

    def merged(self, pieces: Sequence[Carriers]) -> Carriers:
        """Merge carriers by the message's monoid, in the order of ranks."""
        over = self.message.over
        assert over is not None
        return reduce(over.merged, pieces)

    def finished(self, total: Carriers) -> Carriers:
        """Return the value of a merged carrier; the carrier itself if it is partial on other axes, too."""
        over = self.message.over
        assert over is not None
        if self.message.unfinished or over.plain():
            return total
        shape = np.broadcast_shapes(*(part.shape for part in total))
        return (np.asarray(over.finished(total, shape), np.float64),)


Crossed: TypeAlias = tuple["Numeric | Carriers", int, int]  # result, numbers on the wire, messages


def gather_all(one: RankCrossing) -> Crossed:
    """Give each rank the arrays of every rank."""
    message = one.message
    one.opened(one.others, one.others)
    sizes = {q: count_all(one.shapes[q]) for q in one.others}
    came = one.swap(dict.fromkeys(one.others, message.arrays), sizes)
    sent = [
        message._replace(arrays=message.arrays if q == one.own else as_arrays(came[q], one.shapes[q]))
        for q in range(one.n)
    ]
    assert message.cut is not None
    return pieces_of(message.cut, sent), sum(sizes.values()), len(one.others)


def all_reduce(one: RankCrossing) -> Crossed:
    """Let each rank merge one piece and give it to all: equally many numbers each, of carriers equally many rows."""
    one.opened(one.others, one.others)
    if one.n == PAIR:
        return merge_pair(one)
    rows = rows_of_carrier(one.message.arrays)
    cuts = [bounds(len(rows[0]), one.n, r) for r in range(one.n)]
    pieces = [tuple(array[lo:hi] for array in rows) for lo, hi in cuts]
    merged = merge_piece(one, pieces)
    shapes = [[(hi - lo, *array.shape[1:]) for array in merged] for lo, hi in cuts]
    whole = join_pieces(one.message, gather_pieces(one, merged, shapes))
    wire = sum(count_sizes(pieces[q]) + count_all(shapes[q]) for q in one.others)
    return (whole if one.message.unfinished else whole[0]), wire, 2 * len(one.others)


def rows_of_carrier(arrays: Carriers) -> Carriers:
    """Return the arrays of a carrier as rows, which are merged one by one; a single array as its numbers."""
    if len(arrays) == 1:
        return (arrays[0].reshape(-1),)
    return tuple(array.reshape(-1, array.shape[-1]) for array in arrays)


def merge_piece(one: RankCrossing, pieces: Sequence[Carriers]) -> Carriers:
    """Give each rank its piece of a carrier, and return this rank's piece, merged of the pieces of all."""
    shapes = [array.shape for array in pieces[one.own]]
    came = one.swap({q: pieces[q] for q in one.others}, dict.fromkeys(one.others, count_all(shapes)))
    parts = [pieces[q] if q == one.own else as_arrays(came[q], shapes) for q in range(one.n)]
    return one.finished(one.merged(parts))


def gather_pieces(one: RankCrossing, merged: Carriers, shapes: Sequence[Sequence[ArrayShape]]) -> list[Carriers]:
    """Give this rank's merged piece to every rank, and return the pieces of all, which have these shapes."""
    came = one.swap(dict.fromkeys(one.others, merged), {q: count_all(shapes[q]) for q in one.others})
    return [merged if q == one.own else as_arrays(came[q], shapes[q]) for q in range(one.n)]


def join_pieces(message: Message, pieces: Sequence[Carriers]) -> Carriers:
    """Return the merged pieces of a message as whole arrays: of the shapes of its carrier, or of the one value that a
    finished carrier has."""
    shapes = [array.shape for array in message.arrays]
    if not message.unfinished:
        shapes = [np.broadcast_shapes(*shapes)]
    blocks = zip(*pieces, strict=True)
    return tuple(np.concatenate(parts).reshape(shape) for parts, shape in zip(blocks, shapes, strict=True))


def merge_pair(one: RankCrossing) -> Crossed:
    """Let two ranks each merge the arrays of both, so they wait for each other once."""
    arrays, [other] = one.message.arrays, one.others
    came = one.swap({other: arrays}, {other: count_sizes(arrays)})
    both = as_arrays(came[other], one.shapes[other]), arrays
    done = one.finished(one.merged(both if one.own else both[::-1]))
    return (done if one.message.unfinished else done[0]), count_sizes(arrays), 1


def reduce_scatter(one: RankCrossing) -> Crossed:
    """Give each rank the parts of the piece that it shall hold, which it merges."""
    came, wire = deal(one)
    done = one.finished(one.merged(came))
    return (done if one.message.unfinished else done[0]), wire, len(one.others)


def all_to_all(one: RankCrossing) -> Crossed:
    """Give each rank the parts that it shall hold of the arrays of others."""
    cut, then = one.message.cut, one.message.then
    assert cut is not None and then is not None
    came, wire = deal(one)
    return pieces_of(cut, [one.message._replace(arrays=arrays) for arrays in came]), wire, len(one.others)


def deal(one: RankCrossing) -> tuple[list[Carriers], int]:
    """Return the arrays that every rank has for this one, in order, and the numbers that this one sends."""
    one.opened(one.others, one.others)
    sends = {q: one.portion(one.message.arrays, q) for q in one.others}
    shapes = {q: one.portioned(q, one.own) for q in one.others}
    came = one.swap(sends, {q: count_all(wanted) for q, wanted in shapes.items()})
    portion = one.portion(one.message.arrays, one.own)
    portions = [portion if q == one.own else as_arrays(came[q], shapes[q]) for q in range(one.n)]
    return portions, sum(map(count_sizes, sends.values()))


def exchange_halo(one: RankCrossing) -> Crossed:
    """Give each rank the rows that it names, of every rank in order."""
    arrays, here = one.message.arrays, one.own
    one.opened(one.others, one.others)
    sends = {q: (arrays[q],) for q in one.others}
    came = one.swap(sends, {q: prod(one.shapes[q][here]) for q in one.others})
    rows = [arrays[here] if q == here else came[q].reshape(one.shapes[q][here]) for q in range(one.n)]
    sizes = [arrays[q].size for q in one.others]
    return np.concatenate(rows, AXES["rows"]), sum(sizes), sum(size > 0 for size in sizes)


def hand_on(one: RankCrossing) -> Crossed:
    """Send to the right neighbour, and receive from the left one."""
    right, left, arrays = (one.own + 1) % one.n, (one.own - 1) % one.n, one.message.arrays
    if one.n == 1:
        return arrays, 0, 0
    one.opened([right], [left])
    came = one.swap({right: arrays}, {left: count_all(one.shapes[left])})
    return as_arrays(came[left], one.shapes[left]), count_sizes(arrays), int(bool(arrays))


def give(one: RankCrossing) -> Crossed:
    """Send to a neighbouring stage, which receives when it gets there."""
    one.opened(one.others, [])
    one.swap(dict.fromkeys(one.others, one.message.arrays), {})
    return (), one.message.numbers, 1


def take(one: RankCrossing) -> Crossed:
    """Receive from a neighbouring stage."""
    [other] = one.others
    one.opened([], [other])
    came = one.swap({}, {other: count_all(one.shapes[other])})
    return as_arrays(came[other], one.shapes[other]), 0, 0


def exchange_rows(one: RankCrossing) -> Crossed:
    """Give each rank its share of the arrays, in order of senders. The numbers of rows go before them every time,
    because the routing of rows is not known in advance."""
    arrays, share = one.message.arrays, len(one.message.arrays) // one.n
    shares = {q: arrays[q * share : (q + 1) * share] for q in range(one.n)}
    one.opened(one.others, one.others)
    told = one.swap(
        {q: (np.array([len(array) for array in shares[q]], np.float64),) for q in one.others},
        dict.fromkeys(one.others, share),
    )
    wide = arrays[0].shape[-1]
    shapes = {q: [(int(rows), wide) for rows in counts] for q, counts in told.items()}
    came = one.swap({q: shares[q] for q in one.others}, {q: count_all(sizes) for q, sizes in shapes.items()})
    parts = [shares[q] if q == one.own else as_arrays(came[q], shapes[q]) for q in range(one.n)]
    return (
        tuple(array for part in parts for array in part),
        sum(count_sizes(shares[q]) for q in one.others),
        len(one.others),
    )


EXCHANGES: dict[str, Callable[[RankCrossing], Crossed]] = dict(
    give=give,
    take=take,
    give_back=give,
    take_back=take,
    exchange=exchange_rows,
    visit=exchange_rows,
    all_gather=gather_all,
    all_reduce=all_reduce,
    reduce_scatter=reduce_scatter,
    all_to_all=all_to_all,
    send=hand_on,
    halo=exchange_halo,
)


def lane_of(message: Message) -> int:
    """Return the lane of a message. Messages between stages have lanes of their own, one for each place and direction,
    because a stage of several chunks takes them in another order than they are sent."""
    if message.op in ("give", "take"):
        return 1 + 2 * message.at
    return 2 + 2 * message.at if message.op in ("give_back", "take_back") else 0


def empty(shape: ArrayShape) -> Numeric:
    """Return zeros of a shape that take no memory, to read off shapes of pieces."""
    return np.broadcast_to(0.0, shape)


def count_all(shapes: Sequence[ArrayShape]) -> int:
    """Count the numbers of arrays of these shapes."""
    return sum(map(prod, shapes))


def count_sizes(arrays: Carriers) -> int:
    """Count the numbers of arrays."""
    return sum(each.size for each in arrays)


def as_vector(front: Numeric, arrays: Carriers) -> Numeric:
    """Return a vector of the numbers of some arrays, one after another, copied once."""
    return np.concatenate([front, *arrays], None, dtype=np.float64)


def holds_nan(array: Numeric) -> bool:
    """True if the array holds a NaN: its dot product with itself is NaN only then."""
    flat = array.reshape(-1)
    return isnan(np.dot(flat, flat))


def as_arrays(vector: Numeric, shapes: Sequence[ArrayShape]) -> Carriers:
    """Return the arrays of a vector."""
    arrays, at = list[Numeric](), 0
    for shape in shapes:
        size = prod(shape)
        arrays.append(vector[at : at + size].reshape(shape))
        at += size
    return tuple(arrays)
