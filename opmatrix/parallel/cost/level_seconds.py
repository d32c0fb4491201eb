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
        moved.append((link.name, bytes_ / (constants.links * link.rate_to(most(unit - 1, 1)))))
        waited = waited + messages * link.latency
    return LevelSeconds(tuple(moved), waited + constants.superstep * binary_log(n) ** 0.5)
