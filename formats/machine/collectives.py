"""The time of a collective on nested links: supersteps, a level each (Valiant 1990, Communications of the ACM 33;
nested: Li and Hains 2012, SGL, Procedia Computer Science 9). A superstep takes its bytes over the bandwidth, and its
messages times the latency; the two terms are returned separately.

Ranks of one unit form a ring, which sends the fewest bytes (Patarasuk and Yuan 2009, Journal of Parallel and
Distributed Computing 69). Over several levels values are scattered inside a unit before they leave it, so that every
device of a unit sends its own share outward: a flat ring over all ranks would send the full value over the slowest
link.

The payload is the bytes of the full (unsharded) value on one rank: the output of all_gather, the input of
reduce_scatter, the value that all_reduce and broadcast leave on every rank, the data of one rank for all others in
all_to_all, the message of send to the neighbour. It may be an expression of symbols; then so is the result."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from formats.core.errors import InputError
from formats.machine.links import Link, check_group

if TYPE_CHECKING:
    import sympy

Quantity: TypeAlias = "float | sympy.Expr"  # a number, or an expression of symbols


class LevelPlace(NamedTuple):
    """A group at one level: the units of the level before that take part, the ranks inside each of them, and the number
    of such groups outside."""

    units: Quantity
    inside: int = 1
    outside: int = 1


class Collective(NamedTuple):
    """Bytes of a payload that one rank sends at a level, and the number of its messages, one after another."""

    sent: Callable[[Quantity, LevelPlace], Quantity]
    messages: Callable[[LevelPlace], Quantity]


def count_scattered(payload: Quantity, place: LevelPlace) -> Quantity:
    """Return the bytes of all shares but one, where each rank inside has its own part of the payload."""
    return payload * (place.units - 1) / (place.inside * place.units)


def count_exchanged(payload: Quantity, place: LevelPlace) -> Quantity:
    """Return the bytes of one share for each rank in the other units of this level."""
    return payload * (place.units - 1) / (place.units * place.outside)


def count_passed_on(payload: Quantity, place: LevelPlace) -> Quantity:
    """Return the bytes of the full value, sent once round the ring; 0 in a single unit."""
    return 0 * payload if place.units == 1 else payload


def crosses(place: LevelPlace) -> bool:
    """True if this is the outermost level where a group has neighbours; the slowest sends use its link."""
    return place.units != 1 and place.outside == 1


ROUND_A_RING = Collective(count_scattered, lambda place: place.units - 1)
COLLECTIVES: Mapping[str, Collective] = {
    "all_gather": ROUND_A_RING,
    "reduce_scatter": ROUND_A_RING,
    # scattered on the way outward, gathered on the way back
    "all_reduce": Collective(
        lambda payload, place: 2 * count_scattered(payload, place), lambda place: 2 * (place.units - 1)
    ),
    "all_to_all": Collective(count_exchanged, lambda place: (place.units - 1) * place.inside),
    "broadcast": Collective(count_passed_on, lambda place: place.units - 1),
    "send": Collective(
        lambda payload, place: payload if crosses(place) else 0 * payload, lambda place: int(crosses(place))
    ),
}


class CollectiveTime(NamedTuple):
    """Seconds by level, the nearest first: transfer of bytes, and latency of messages that wait for each other."""

    levels: tuple[str, ...]
    transfer: tuple[Quantity, ...]
    latency: tuple[Quantity, ...]

    @property
    def seconds(self) -> Quantity:
        """The sum over all levels: supersteps follow each other."""
        return sum(self.transfer) + sum(self.latency)

    def __str__(self) -> str:
        return "\n".join(
            f"{level}: {show(transfer)} s of transfer, {show(latency)} s of latency"
            for level, transfer, latency in zip(*self, strict=True)
        )


def wire_bytes(op: str, payload: Quantity, n: Quantity) -> Quantity:
    """Return the bytes that one rank of n sends, where all ranks are on one level.

    >>> wire_bytes("all_reduce", 800, 8), wire_bytes("all_gather", 800, 8), wire_bytes("send", 800, 8)
    (1400.0, 700.0, 800)"""
    collective = find_collective(op)
    if isinstance(n, int) and n < 1:
        raise InputError(f"{op} of {n} ranks: give at least 1")
    return collective.sent(check_payload(op, payload), LevelPlace(n))


def level_bytes(op: str, payload: Quantity, group: Sequence[int]) -> tuple[Quantity, ...]:
    """Return the bytes that one rank sends at each level, the nearest first; `group` is the ranks by level.

    >>> level_bytes("all_reduce", 800, (8, 2))
    (1400.0, 100.0)"""
    collective = find_collective(op)
    return tuple(collective.sent(check_payload(op, payload), place) for place in list_places(group))


def collective_seconds(op: str, payload: Quantity, group: Sequence[int], links: Sequence[Link]) -> CollectiveTime:
    """Return the time of a collective in a group with these ranks by level (`levels_of`), at the full rates of the
    links, in a mesh of the links among the group: without in-network reduction, other traffic or overlap with
    computation."""
    check_group(group, links)
    collective = find_collective(op)
    return CollectiveTime(
        tuple(link.name for link in links),
        tuple(
            sent / link.rate_to(max(units - 1, 1))
            for sent, link, units in zip(level_bytes(op, payload, group), links, group, strict=True)
        ),
        tuple(collective.messages(place) * link.latency for place, link in zip(list_places(group), links, strict=True)),
    )


def list_places(group: Sequence[int]) -> list[LevelPlace]:
    """List each level of a group, with its ranks inside and its groups outside."""
    return [LevelPlace(units, prod(group[:level]), prod(group[level + 1 :])) for level, units in enumerate(group)]


def find_collective(op: str) -> Collective:
    """Return a collective by name; InputError lists the known names."""
    if op not in COLLECTIVES:
        raise InputError(f"no collective is called {op!r}; there are {', '.join(COLLECTIVES)}")
    return COLLECTIVES[op]


def check_payload(op: str, payload: Quantity) -> Quantity:
    """Return the payload; InputError for a negative number of bytes."""
    if isinstance(payload, int | float) and not payload >= 0:
        raise InputError(f"{op} of {payload} bytes: a payload is a number of at least 0, or an expression")
    return payload


def show(seconds: Quantity) -> str:
    """Write seconds with three digits, and an expression as sympy does."""
    return f"{seconds:.3g}" if isinstance(seconds, int | float) else str(seconds)
