"""Links between devices: nested levels, the nearest first. A unit of a level, such as a node, is a number of devices
connected by its link; a unit of the next level is several of these units.

A group of ranks is described by its ranks at each level: (8, 2) means 8 in each of 2 nodes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise, starmap
from math import inf, prod
from typing import Any, NamedTuple

from formats.core.errors import InputError


class Link(NamedTuple):
    """One level: devices of a unit, inf where the number is unlimited; bytes a second that each device sends while it
    receives as many; seconds from the start of a message to its arrival, without its bytes. `meshed`: a device has a
    link to each other device of its unit and no switch, so a group uses only the links among its own devices."""

    name: str
    devices: float
    bandwidth: float
    latency: float
    meshed: bool = False

    def rate_to(self, others: Any) -> Any:
        """Return the bytes a second that a device sends to `others` devices of its unit, at least one: in a mesh over
        the links to these alone. A number, or an expression as `others` is."""
        return self.bandwidth * (others / (self.devices - 1)) if self.meshed else self.bandwidth


def read_links(rows: Iterable[tuple[str, float | None, float, float]]) -> tuple[Link, ...]:
    """Read levels of a data sheet, [name, devices, bandwidth, latency] each, with a final true for a mesh. TypeError
    where a row has other fields."""
    return tuple(starmap(read_link, rows))


def read_link(name: str, devices: float | None, bandwidth: float, latency: float, meshed: bool = False) -> Link:
    """Read one level; JSON has no infinity, so null means an unlimited number of devices. TypeError for a mesh of
    these."""
    if not isinstance(meshed, bool):
        raise TypeError(f"link {name!r}: `mesh` is true or false, got {meshed!r}")
    if meshed and devices is None:
        raise TypeError(f"link {name!r}: a mesh needs its number of devices, got none")
    return Link(name, inf if devices is None else devices, bandwidth, latency, meshed)


def read_host(name: str, bandwidth: float, latency: float) -> Link:
    """Read the link of one device to the memory of its host."""
    return Link(name, 1, bandwidth, latency)


def check_links(machine: str, links: Sequence[Link]) -> None:
    """Raise ValueError, which names the machine and the first faulty level."""
    for link in links:
        check_rates(machine, link)
        if not 1 < link.devices:
            raise ValueError(f"{machine}: link {link.name!r}: give at least two devices, got {link.devices}")
        if not fits_whole(1, link.devices):
            raise ValueError(f"{machine}: link {link.name!r}: {link.devices} devices is not a whole number")
    for near, far in pairwise(links):
        grow = near.devices < far.devices and fits_whole(near.devices, far.devices)
        if not (grow and far.bandwidth <= near.bandwidth):
            raise ValueError(
                f"{machine}: links must grow by whole units, and slow down, from the nearest on: "
                f"{far.name!r} ({far.devices} devices, {far.bandwidth:g} bytes a second) follows "
                f"{near.name!r} ({near.devices}, {near.bandwidth:g})"
            )


def check_rates(machine: str, link: Link) -> None:
    """Raise ValueError, which names the machine and the link, unless its rates are positive and finite."""
    if not (0 < link.bandwidth < inf and 0 < link.latency < inf):
        raise ValueError(
            f"{machine}: link {link.name!r}: give positive bytes a second and seconds, got "
            f"{link.bandwidth}, {link.latency}"
        )


def levels_of(stride: int, n: int, links: Sequence[Link], mesh: float = inf) -> tuple[int, ...]:
    """Return the ranks of a group at each level, where n ranks are a stride of devices apart; their product is n.

    Axes of a mesh are placed in order, the innermost nearest, so the stride of an axis is the product of the sizes of
    those before it. `mesh`: the number of devices in use, where it is known: a mesh inside one unit straddles none.
    InputError where groups would be spread over units unevenly.

        >>> node = [Link("node", 8, 3e11, 1e-6), Link("network", inf, 25e9, 3e-6)]
        >>> levels_of(1, 8, node), levels_of(8, 4, node), levels_of(1, 16, node), levels_of(4, 4, node)
        ((8, 1), (1, 4), (8, 2), (2, 2))"""
    if n < 1 or stride < 1:
        raise InputError(f"a group of {n} ranks, {stride} devices apart: both are whole numbers of at least 1")
    if n == 1:
        return (1,) * len(links)
    if not links:
        raise InputError(
            f"a group of {n} ranks needs links, and the data sheet of the machine declares none: add "
            "`links` (docs/add_a_machine.md)"
        )
    span, counts = stride * n, [1]
    for link in links:
        if link.devices <= stride:
            inside = 1
        elif span <= link.devices and (fits_whole(span, link.devices) or mesh <= link.devices):
            inside = n
        elif span > link.devices and fits_whole(stride, link.devices) and fits_whole(link.devices, span):
            inside = int(link.devices) // stride
        else:
            raise InputError(
                f"a group of {n} ranks, {stride} apart, straddles units of {link.name!r}: the "
                f"{span} devices that it spans must divide its {link.devices}, or be a multiple of them"
            )
        counts.append(inside)
    if counts[-1] < n:
        raise InputError(
            f"a group of {n} ranks, {stride} apart, is larger than {links[-1].name!r} of "
            f"{links[-1].devices} devices: take a smaller group, or a machine with one level more"
        )
    return tuple(far // near for near, far in pairwise(counts))


def levels_among(devices: Sequence[int], links: Sequence[Link]) -> tuple[int, ...]:
    """Return the ranks of a group on these devices at each level; their product is the number of devices.
    InputError where they are spread over units unevenly.

        >>> node = [Link("node", 4, 3e11, 1e-6), Link("network", inf, 25e9, 3e-6)]
        >>> levels_among([0, 2, 4, 6], node), levels_among([0, 4, 8], node)
        ((2, 2), (1, 3))"""
    counts = [1]
    for link in links:
        units = Counter(0 if link.devices == inf else device // int(link.devices) for device in devices)
        if len({*units.values()}) > 1:
            raise InputError(
                f"a group of {len(devices)} ranks, {devices[0]} to {devices[-1]}, straddles units of "
                f"{link.name!r}: each of them must hold equally many ranks of its {link.devices:g} devices"
            )
        counts.append(len(devices) // len(units))
    if counts[-1] < len(devices):
        raise InputError(
            f"a group of {len(devices)} ranks, {devices[0]} to {devices[-1]}, is not within "
            f"{links[-1].name!r}: take a smaller group, or a machine with one level more"
            if links
            else f"a group of {len(devices)} ranks needs links, and the data sheet of the machine "
            "declares none: add `links` (docs/add_a_machine.md)"
        )
    return tuple(far // near for near, far in pairwise(counts))


def check_group(group: Sequence[int], links: Sequence[Link]) -> None:
    """Raise InputError for a group that does not fit on these links."""
    if len(group) != len(links) or any(ranks < 1 for ranks in group):
        raise InputError(
            f"a group of {tuple(group)} ranks by level on {len(links)} links: one number of at least 1 "
            "for each, as levels_of(stride, n, links) gives them"
        )
    for level, link in enumerate(links, 1):
        if (inside := prod(group[:level])) > link.devices:
            raise InputError(
                f"a group of {tuple(group)} ranks by level has {inside} in a unit of {link.name!r}, which "
                f"has {link.devices} devices: use levels_of(stride, n, links)"
            )


def fits_whole(part: float, whole: float) -> bool:
    """True if `whole` is a multiple of `part`; an unlimited `whole` is a multiple of any part."""
    return whole == inf or whole % part == 0
