"""Seconds of collectives over nested links, by level, for groups whose sizes may be arrays or symbols."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from formats.machine.collectives import COLLECTIVES, LevelPlace
from formats.machine.links import Link
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.quantities import Quantity, binary_log, least, most, multiply, step_at

TREES = ("all_reduce",)  # collectives that use trees between nodes


class LevelSeconds(NamedTuple):
    """Seconds of one collective: of its bytes by level, and of its messages and of waiting for the slowest rank."""

    moved: tuple[tuple[str, Quantity], ...]
    waited: Quantity


def units_of(n: Quantity, stride: Quantity, links: Sequence[Link]) -> list[Quantity]:
    """Split a group of n ranks, `stride` devices apart, over the levels of links: how many units meet at each level.
    The product of the counts is n."""
    inside: list[Quantity] = [1 + 0 * n]
    for link in links:
        inside.append(n if link.devices == inf else least(n, most(1, link.devices / stride)))
    return [far / near for near, far in pairwise(inside)]


def relayed_parts(
    size: Quantity, n: Quantity, stride: Quantity, links: Sequence[Link], constants: Constants, share: Quantity
) -> LevelSeconds:
    """Return the seconds of an all-to-all of `size` bytes of rows, one for each expert of a row, of which a `share`
    leaves a node: a row is sent to each node once, to the rank with the same position there, and on from it to all of
    its experts (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2)."""
    near, *far = units_of(n, stride, links)
    moved, waited = [], 0 * size
    for k, (link, unit) in enumerate(zip(links, (near, *far), strict=True)):
        outside: Any = multiply(far[k:]) if k else 1
        place = LevelPlace(unit, 1, outside)
        bytes_ = COLLECTIVES["all_to_all"].sent(size, place) * (share if k else 1)
        moved.append((link.name, bytes_ / link_rate(link, unit, constants)))
        waited = waited + COLLECTIVES["all_to_all"].messages(place) * link.latency
    late = binary_log(near) ** 0.5 + binary_log(multiply(far)) ** 0.5  # ranks of a node wait, and those of all nodes
    return LevelSeconds(tuple(moved), waited + constants.superstep * late)


def link_rate(link: Link, units: Quantity, constants: Constants) -> Quantity:
    """Return the bytes a second that a device of one of these units sends over a link."""
    rate: Quantity = constants.links * link.rate_to(most(units - 1, 1))
    return rate


def collective_parts(
    op: str, size: Quantity, n: Quantity, stride: Quantity, links: Sequence[Link], constants: Constants
) -> LevelSeconds:
    """Return the seconds of a collective of `size` bytes. It is hierarchical: a value is scattered inside a level
    before it is sent over the next one. Ranks form a ring; between nodes sums go up and down two trees, each of half
    the bytes, in fewer messages (Sanders et al. 2009, Parallel Computing 35). All ranks wait for the slowest: among n
    ranks whose times scatter alike it is late by the root of the logarithm of n (Cramér 1946, section 28.6)."""
    units = units_of(n, stride, links)
    moved, waited = [], 0 * size
    for k, (link, unit) in enumerate(zip(links, units, strict=True)):
        inside: Any = multiply(units[:k])
        outside: Any = multiply(units[k + 1 :])
        place = LevelPlace(unit, inside, outside)
        if op == "send":
            bytes_ = size * step_at(unit, 2) * (1 - step_at(outside, 2))
            messages: Quantity = step_at(unit, 2)
        else:
            bytes_ = COLLECTIVES[op].sent(size, place)
            messages = COLLECTIVES[op].messages(place)
        if op in TREES and k:
            messages = 2 * binary_log(unit)
        moved.append((link.name, bytes_ / link_rate(link, unit, constants)))
        waited = waited + messages * link.latency
    return LevelSeconds(tuple(moved), waited + constants.superstep * binary_log(n) ** 0.5)
