"""Collectives of carriers over a wire that moves vectors between pairs of ranks. Parts are merged in the order of
ranks, so bits are those of virtual ranks. What crosses is counted at the vectors."""
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

RankVectors: TypeAlias = Mapping[int, Numeric]              # by rank
NOTHING = np.zeros(0)


class Wire(Protocol):
    """Moves vectors of float64."""
    def exchange(self, sends: RankVectors, takes: Mapping[int, int], wait: bool = True, lane: int = 0) -> RankVectors:
        """Sends a vector, which nobody changes any more, to each of some ranks, and takes one of so many numbers from
        others. Without `wait` it goes on before what is sent has arrived. Between two ranks vectors of one lane come
        in the order in which they are sent."""
        ...

    def settle(self) -> None:
        """Waits for what was sent without waiting."""
        ...


class NotFinite(RanksFailed):
    """Values that are no numbers."""


class Crossings:
    """One rank's end of all crossings. In the first run a heading goes before each; sizes are known then, and later the
    heading is the front of what crosses anyway."""
    def __init__(self, wire: Wire, mesh: Mesh, place: Coordinates, meter: Meter) -> None:
        self.wire, self.mesh, self.place, self.meter = wire, mesh, place, meter
        self.ranks = {each: number for number, each in enumerate(mesh.places())}
        self.here, self.length = self.ranks[place], length_of(mesh)
        self.checking = Checking(mesh, self.here)
        self.known: dict[tuple[int, int], dict[int, Heading]] = {}
        self.groups: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
        self.current: Message | None = None                 # what this rank waits in
        self.begin(meter)

    def begin(self, meter: Meter) -> None:
        """Counts what follows in another meter; sizes stay known."""
        self.wire.settle()
        self.meter, self.times = meter, dict[int, int]()

    def cross(self, message: Message) -> Numeric | Carriers:
        """What a rank gets for what it hands over. Raises RanksDisagree where others are in another crossing, and
        NotFinite for values that are no numbers."""
        if any(map(holds_nan, message.arrays)):
            raise NotFinite(f"rank {self.here}: what it hands over in {Heading.of(message).told(self.mesh)[:60]} is "
                            "not a number")
        self.current = message
        found, wire, messages = EXCHANGES[message.op](RankCrossing(self, message))
        self.current = None
        if message.op not in POSTED.values():
            name = COUNTED.get(message.op, message.op)
            self.meter.sent((name, self.mesh.axes[message.axis].name), message.numbers, wire, messages)
        return found

    def group(self, message: Message) -> list[int]:
        """The ranks that take part, in order."""
        key = message.op, message.axis, message.among
        if key not in self.groups:
            self.groups[key] = [self.ranks[each] for each in group_of(self.place, message, self.mesh)]
        return self.groups[key]

    def meet(self, message: Message, own: Heading, sends: Sequence[int],
             takes: Sequence[int]) -> tuple[dict[int, Heading], Numeric]:
        """What other ranks say of a crossing, and what is to go before the numbers: nothing where it went already."""
        at, vector = message.at, own.vector(self.length)
        key = at, self.times.get(at, 0)
        self.times[at] = key[1] + 1
        if key in self.known: return self.known[key], vector
        came = self.wire.exchange(dict.fromkeys(sends, vector), dict.fromkeys(takes, self.length),
                                  message.op not in POSTED, lane_of(message))
        said = {rank: Heading.read(each) for rank, each in came.items()}
        self.checking.demand(message, own, said)
        self.known[key] = said
        return said, NOTHING


class RankCrossing:
    """One crossing of one rank: its group in order, and where this rank is in it."""
    def __init__(self, line: Crossings, message: Message) -> None:
        self.line, self.message, self.heading = line, message, Heading.of(message)
        self.group = line.group(message)
        self.own, self.n = self.group.index(line.here), len(self.group)
        self.others = [q for q in range(self.n) if q != self.own]

    def opened(self, sends: Sequence[int], takes: Sequence[int]) -> None:
        """Makes sure that the ranks of the group at these places are in this crossing."""
        to, of = [self.group[q] for q in sends], [self.group[q] for q in takes]
        said, self.front = self.line.meet(self.message, self.heading, to, of)
        self.shapes = {q: said[self.group[q]].shapes for q in takes}
        self.shapes[self.own] = self.heading.shapes

    def swap(self, sends: Mapping[int, Carriers], takes: Mapping[int, int]) -> RankVectors:
        """Arrays as one vector, and vectors, by place in the group. What comes behind a heading is checked by it."""
        front, vectors, given = len(self.front), dict[int, Numeric](), dict[int, Numeric]()
        for q, each in sends.items():
            if id(each) not in vectors: vectors[id(each)] = as_vector(self.front, each)      # to all ranks it is one
            given[self.group[q]] = vectors[id(each)]
        came = self.line.wire.exchange(given, {self.group[q]: front + size for q, size in takes.items()},
                                       self.message.op not in POSTED, lane_of(self.message))
        if front:
            said = {rank: Heading.read(each[:front]) for rank, each in came.items()
                    if not np.array_equal(each[:front], self.front)}    # who says the same is in the same crossing
            if said: self.line.checking.demand(self.message, self.heading, said)
        self.front = NOTHING
        return {q: came[self.group[q]][front:] for q in takes}

    def portion(self, arrays: Carriers, r: int) -> Carriers:
        """What rank r of the group shall hold; what has one column for a row goes with every cut of columns."""
        then, widest = self.message.then, max(each.shape[-1] for each in arrays)
        assert then is not None
        return tuple(each if then.role == "cols" and each.shape[-1] < widest
                     else cut_piece(each, then, self.message.unit, self.n, r) for each in arrays)

    def portioned(self, rank: int, r: int) -> tuple[ArrayShape, ...]:
        """The shapes of a portion of what another rank holds."""
        return tuple(each.shape for each in self.portion(tuple(map(empty, self.shapes[rank])), r))

    def merged(self, pieces: Sequence[Carriers]) -> Carriers:
        over = self.message.over
        assert over is not None
        return reduce(over.merged, pieces)

    def finished(self, total: Carriers) -> Carriers:
        """The value of a merged carrier; the carrier where other axes have parts of it still."""
        over = self.message.over
        assert over is not None
        if self.message.unfinished or over.plain(): return total
        shape = np.broadcast_shapes(*(each.shape for each in total))
        return (np.asarray(over.finished(total, shape), np.float64),)


Crossed: TypeAlias = tuple["Numeric | Carriers", int, int]  # what comes out; numbers on the wire, messages


def gather_all(one: RankCrossing) -> Crossed:
    """To each rank what every rank holds."""
    message = one.message
    one.opened(one.others, one.others)
    sizes = {q: count_all(one.shapes[q]) for q in one.others}
    came = one.swap(dict.fromkeys(one.others, message.arrays), sizes)
    sent = [message._replace(arrays=message.arrays if q == one.own else as_arrays(came[q], one.shapes[q]))
            for q in range(one.n)]
    assert message.cut is not None
    return pieces_of(message.cut, sent), sum(sizes.values()), len(one.others)


def all_reduce(one: RankCrossing) -> Crossed:
    """Each rank merges one piece and gives it to all: of numbers as many each, of carriers as many rows."""
    arrays, n, single = one.message.arrays, one.n, len(one.message.arrays) == 1
    one.opened(one.others, one.others)
    if n == PAIR: return merge_pair(one)
    rows = [arrays[0].reshape(-1)] if single else [each.reshape(-1, each.shape[-1]) for each in arrays]
    cuts = [bounds(len(rows[0]), n, r) for r in range(n)]
    pieces = [tuple(each[lo:hi] for each in rows) for lo, hi in cuts]
    shapes = [each.shape for each in pieces[one.own]]
    came = one.swap({q: pieces[q] for q in one.others}, dict.fromkeys(one.others, count_all(shapes)))
    done = one.finished(one.merged([pieces[q] if q == one.own else as_arrays(came[q], shapes) for q in range(n)]))
    wholes = [[(hi - lo, *each.shape[1:]) for each in done] for lo, hi in cuts]
    took = {q: count_all(wholes[q]) for q in one.others}
    more = one.swap(dict.fromkeys(one.others, done), took)
    parts = [done if q == one.own else as_arrays(more[q], wholes[q]) for q in range(n)]
    final = [each.shape for each in arrays]
    if not one.message.unfinished: final = [np.broadcast_shapes(*final)]
    whole = tuple(np.concatenate(each).reshape(shape) for each, shape in zip(zip(*parts, strict=True), final,
                                                                             strict=True))
    wire = sum(count_sizes(pieces[q]) for q in one.others) + sum(took.values())
    return (whole if one.message.unfinished else whole[0]), wire, 2 * len(one.others)


def merge_pair(one: RankCrossing) -> Crossed:
    """Two ranks: each merges all that both have, so they wait for each other once."""
    arrays, [other] = one.message.arrays, one.others
    came = one.swap({other: arrays}, {other: count_sizes(arrays)})
    both = as_arrays(came[other], one.shapes[other]), arrays
    done = one.finished(one.merged(both if one.own else both[::-1]))
    return (done if one.message.unfinished else done[0]), count_sizes(arrays), 1


def reduce_scatter(one: RankCrossing) -> Crossed:
    """To each rank the parts of what it shall hold, which it merges."""
    came, wire = deal(one)
    done = one.finished(one.merged(came))
    return (done if one.message.unfinished else done[0]), wire, len(one.others)


def all_to_all(one: RankCrossing) -> Crossed:
    """To each rank what it shall hold of what others hold."""
    cut, then = one.message.cut, one.message.then
    assert cut is not None and then is not None
    came, wire = deal(one)
    return pieces_of(cut, [one.message._replace(arrays=each) for each in came]), wire, len(one.others)


def deal(one: RankCrossing) -> tuple[list[Carriers], int]:
    """What every rank has for this one, in order, and the numbers that this one sends."""
    one.opened(one.others, one.others)
    sends = {q: one.portion(one.message.arrays, q) for q in one.others}
    shapes = {q: one.portioned(q, one.own) for q in one.others}
    came = one.swap(sends, {q: count_all(each) for q, each in shapes.items()})
    own = one.portion(one.message.arrays, one.own)
    found = [own if q == one.own else as_arrays(came[q], shapes[q]) for q in range(one.n)]
    return found, sum(map(count_sizes, sends.values()))


def exchange_halo(one: RankCrossing) -> Crossed:
    """To each rank the rows that it names, of those of every rank in order."""
    arrays, own = one.message.arrays, one.own
    one.opened(one.others, one.others)
    sends = {q: (arrays[q],) for q in one.others}
    came = one.swap(sends, {q: prod(one.shapes[q][own]) for q in one.others})
    rows = [arrays[own] if q == own else came[q].reshape(one.shapes[q][own]) for q in range(one.n)]
    sizes = [arrays[q].size for q in one.others]
    return np.concatenate(rows, AXES["rows"]), sum(sizes), sum(size > 0 for size in sizes)


def hand_on(one: RankCrossing) -> Crossed:
    """To the right neighbour, from the left one."""
    right, left, arrays = (one.own + 1) % one.n, (one.own - 1) % one.n, one.message.arrays
    if one.n == 1: return arrays, 0, 0
    one.opened([right], [left])
    came = one.swap({right: arrays}, {left: count_all(one.shapes[left])})
    return as_arrays(came[left], one.shapes[left]), count_sizes(arrays), int(bool(arrays))


def give(one: RankCrossing) -> Crossed:
    """To a neighbouring stage, which takes it when it gets there."""
    one.opened(one.others, [])
    one.swap(dict.fromkeys(one.others, one.message.arrays), {})
    return (), one.message.numbers, 1


def take(one: RankCrossing) -> Crossed:
    """From a neighbouring stage."""
    [other] = one.others
    one.opened([], [other])
    came = one.swap({}, {other: count_all(one.shapes[other])})
    return as_arrays(came[other], one.shapes[other]), 0, 0


def exchange_rows(one: RankCrossing) -> Crossed:
    """To each rank its share of the arrays, in order of senders. How many rows each has goes before them, every time:
    whom rows ask is not known before."""
    arrays, share = one.message.arrays, len(one.message.arrays) // one.n
    own = {q: arrays[q * share:(q + 1) * share] for q in range(one.n)}
    one.opened(one.others, one.others)
    told = one.swap({q: (np.array([len(each) for each in own[q]], np.float64),) for q in one.others},
                    dict.fromkeys(one.others, share))
    wide = arrays[0].shape[-1]
    shapes = {q: [(int(rows), wide) for rows in each] for q, each in told.items()}
    came = one.swap({q: own[q] for q in one.others}, {q: count_all(each) for q, each in shapes.items()})
    parts = [own[q] if q == one.own else as_arrays(came[q], shapes[q]) for q in range(one.n)]
    return tuple(each for part in parts for each in part), sum(count_sizes(own[q]) for q in one.others), len(one.others)


EXCHANGES: dict[str, Callable[[RankCrossing], Crossed]] = dict(
    give=give, take=take, give_back=give, take_back=take, exchange=exchange_rows, visit=exchange_rows,
    all_gather=gather_all, all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_to_all=all_to_all, send=hand_on,
    halo=exchange_halo)


def lane_of(message: Message) -> int:
    """What stages hand on has lanes of its own, one for each place and direction: a stage of several chunks takes it in
    another order than it was given."""
    if message.op in ("give", "take"): return 1 + 2 * message.at
    return 2 + 2 * message.at if message.op in ("give_back", "take_back") else 0


def empty(shape: ArrayShape) -> Numeric: return np.broadcast_to(0.0, shape)
def count_all(shapes: Sequence[ArrayShape]) -> int: return sum(map(prod, shapes))
def count_sizes(arrays: Carriers) -> int: return sum(each.size for each in arrays)
def as_vector(front: Numeric, arrays: Carriers) -> Numeric:
    """A vector of their numbers, one after another, copied once."""
    return np.concatenate([front, *arrays], None, dtype=np.float64)


def holds_nan(array: Numeric) -> bool:
    """Whether some number is none: squares that are summed are not, unless one of them is."""
    flat = array.reshape(-1)
    return isnan(np.dot(flat, flat))


def as_arrays(vector: Numeric, shapes: Sequence[ArrayShape]) -> Carriers:
    """The arrays of a vector."""
    found, at = list[Numeric](), 0
    for shape in shapes:
        size = prod(shape)
        found.append(vector[at:at + size].reshape(shape))
        at += size
    return tuple(found)
