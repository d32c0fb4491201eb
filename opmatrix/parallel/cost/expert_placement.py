"""The placement of experts on ranks from how often each is asked: heavy experts have several copies, and copies lie so
that the busiest rank has as few rows as possible (EPLB, DeepSeek 2025). With groups of experts and nodes the groups are
shared out over nodes first, since a row may visit few nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError

MOST_EXACT = 10  # slots that are placed exactly, at most
PlacedRanks = tuple[tuple[int, ...], ...]


class ExpertPlacement(NamedTuple):
    """Experts on ranks."""

    copies: tuple[int, ...]  # copies of each expert
    ranks: PlacedRanks  # the experts of each rank, in order
    load: float  # rows of the busiest rank, relative to the mean


def place_experts(
    counts: Sequence[float],
    ranks: int,
    slots: int | None = None,
    groups: int = 1,
    nodes: int = 1,
    *,
    exact: bool = False,
) -> ExpertPlacement:
    """Place experts on ranks. `counts`: rows that ask each expert; `slots`: copies of all experts together, as many on
    each rank, by default one an expert; `groups` of experts that follow each other are shared out over `nodes` of
    ranks. Copies of an expert get equally many of its rows. `exact` tries all placements, of at most 10 slots. Raises
    InputError for numbers that do not divide, and for counts that are none.

        >>> place_experts([9, 1, 1, 1], 2), place_experts([9, 1, 1, 1], 2, 6).copies
        (ExpertPlacement(copies=(1, 1, 1, 1), ranks=((0, 3), (1, 2)), load=1.6666666666666667), (3, 1, 1, 1))"""
    slots = len(counts) if slots is None else slots
    check_placement(counts, ranks, slots, groups, nodes)
    if exact:
        return exact_placement(counts, ranks, slots)
    sizes, placed = len(counts) // groups, list[tuple[int, ...]]()
    sums = [sum(counts[at * sizes : (at + 1) * sizes]) for at in range(groups)]
    for chosen in pack(sums, nodes, groups // nodes):
        experts = [group * sizes + at for group in sorted(chosen) for at in range(sizes)]
        here = [float(counts[expert]) for expert in experts]
        copies = copies_of_experts(here, slots // nodes)
        items = [at for at, number in enumerate(copies) for _ in range(number)]
        weights = [here[at] / copies[at] for at in items]
        bins = pack(weights, ranks // nodes, slots // ranks)
        placed += [tuple(sorted(experts[items[item]] for item in row)) for row in bins]
    return placement_of(counts, tuple(placed))


def check_placement(counts: Sequence[float], ranks: int, slots: int, groups: int, nodes: int) -> None:
    """Raise InputError for counts that are none, and for numbers that do not divide."""
    strange = [count for count in counts if not (isfinite(count) and count >= 0)]
    if strange or not sum(counts):
        raise InputError(f"counts of experts: {strange[0] if strange else 'all 0'}: give rows that ask each expert")
    experts = len(counts)
    if min(ranks, groups, nodes) < 1 or slots < experts or slots % ranks:
        raise InputError(f"slots {slots}: give at least {experts}, one an expert, and a multiple of {ranks} ranks")
    if experts % groups or groups % nodes or ranks % nodes:
        raise InputError(
            f"groups {groups}, nodes {nodes}: they divide {experts} experts, and nodes groups and {ranks} ranks"
        )


def copies_of_experts(counts: Sequence[float], slots: int) -> list[int]:
    """Return the copies of each expert: each further one is of the expert whose copies have the most rows, which makes
    that number as small as possible."""
    copies = np.ones(len(counts), int)
    for _ in range(slots - len(counts)):
        copies[np.argmax(np.asarray(counts) / copies)] += 1
    return [int(number) for number in copies]


def pack(weights: Sequence[float], bins: int, most: int) -> list[list[int]]:
    """Return the items of each bin, at most `most` in each: the heaviest first, each to the lightest bin with a place;
    then items of the heaviest bin change places with others as long as that makes it lighter."""
    rows: list[list[int]] = [[] for _ in range(bins)]
    sums = [0.0] * bins
    for item in sorted(range(len(weights)), key=lambda at: -weights[at]):
        at = min((at for at in range(bins) if len(rows[at]) < most), key=lambda at: sums[at])
        rows[at].append(item)
        sums[at] += weights[item]
    while swap := better_swap(weights, rows, sums):
        heavy, light, one, other = swap
        difference = weights[rows[heavy][one]] - weights[rows[light][other]]
        rows[heavy][one], rows[light][other] = rows[light][other], rows[heavy][one]
        sums[heavy], sums[light] = sums[heavy] - difference, sums[light] + difference
    return rows


def better_swap(
    weights: Sequence[float], rows: Sequence[Sequence[int]], sums: Sequence[float]
) -> tuple[int, int, int, int] | None:
    """Return the bins and places of two items whose change makes the heaviest bin lighter and no other as heavy; None
    where there are none."""
    heavy = max(range(len(sums)), key=lambda at: sums[at])
    best, swap = sums[heavy] * (1 - 1e-12), None
    for light, row in enumerate(rows):
        for one, item in enumerate(rows[heavy]):
            for other, instead in enumerate(row):
                moved = weights[item] - weights[instead]
                worse = max(sums[heavy] - moved, sums[light] + moved)
                if light != heavy and worse < best:
                    best, swap = worse, (heavy, light, one, other)
    return swap


def placement_of(counts: Sequence[float], ranks: PlacedRanks) -> ExpertPlacement:
    """Return experts on ranks with the load of the busiest."""
    copies = [sum(row.count(expert) for row in ranks) for expert in range(len(counts))]
    rows = [sum(counts[expert] / copies[expert] for expert in row) for row in ranks]
    return ExpertPlacement(tuple(copies), ranks, max(rows) * len(ranks) / sum(counts))


def exact_placement(counts: Sequence[float], ranks: int, slots: int) -> ExpertPlacement:
    """Return the best of all placements. Raises InputError for more slots than are tried."""
    if slots > MOST_EXACT:
        raise InputError(f"slots {slots}: at most {MOST_EXACT} are placed exactly: leave exact out")
    best: ExpertPlacement | None = None
    for copies in all_copies(len(counts), slots):
        items = [at for at, number in enumerate(copies) for _ in range(number)]
        for rows in all_packings(items, ranks, slots // ranks):
            placement = placement_of(counts, rows)
            if best is None or placement.load < best.load:
                best = placement
    if best is None:
        raise InputError(f"slots {slots}: no placement on {ranks} ranks")
    return best


def all_copies(experts: int, slots: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of copies, one at least each, that add up to the slots."""
    if experts == 1:
        yield (slots,)
        return
    for number in range(1, slots - experts + 2):
        for others in all_copies(experts - 1, slots - number):
            yield (number, *others)


def all_packings(items: Sequence[int], bins: int, most: int) -> Iterator[PlacedRanks]:
    """Yield all ways to put items into bins of `most` places, but for the order of bins: the first item that is left
    opens a bin."""
    if not items:
        yield ()
        return
    first, *others = items
    for row, left in chosen_of(others, most - 1):
        for rows in all_packings(left, bins - 1, most):
            yield ((first, *row), *rows)


def chosen_of(items: Sequence[int], number: int) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Yield each choice of a number of items, equal ones once, with those that are left."""
    if number == 0:
        yield (), [*items]
        return
    last: float = inf
    for at, item in enumerate(items):
        if item == last:
            continue
        last = item
        for row, left in chosen_of(items[at + 1 :], number - 1):
            yield (item, *row), [*items[:at], *left]
