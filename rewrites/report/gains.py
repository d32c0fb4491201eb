"""The savings of fusion, laws, number types and sparsity: programs of one measurement, each with one more of these
means."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from opmatrix.runtime.measure import noisy, quartiles
from rewrites.lowering.representations import only_narrows
from rewrites.report.choice import choose
from rewrites.report.points import Point


class Gain(NamedTuple):
    """One means: the program that has it, if one was measured, and the seconds saved against the last program before
    it."""

    name: str
    program: str | None = None
    measured_s: float | None = None
    quartiles_s: tuple[float, float] | None = None
    saved_s: float | None = None
    below_noise: bool = False


def add_means(
    imported: Point, fused: Point, points: Sequence[Point], best: Point, within: Sequence[Point], trusted: bool = True
) -> list[Gain]:
    """Return the gains from the import to the answer, one means added after another: among them the best point within
    the budgets that only narrows numbers, and the answer if it does more."""
    exact = next((point for point in points if not point.methods), None)
    narrow = (
        [best]
        if only_narrows(best.methods)
        else [point for point in within if point.methods and only_narrows(point.methods)]
    )
    numbers = choose(narrow, trusted) if narrow and best.methods else None
    last = None if best is exact or best is numbers else best
    substituted = best.structure is not None and best.structure.substitutions
    more = (
        "+ fewer units and heads"
        if best.variant
        else "+ sparsity, rank, fewer layers or keys"
        if substituted
        else "+ sparsity and rank"
    )
    rows = {"imported": imported, "+ fusion": fused, "+ laws": exact, "+ number types": numbers, more: last}
    return [
        *steps([(name, point.name if point else "", point.rounds_s if point else None) for name, point in rows.items()])
    ]


def steps(rows: Sequence[tuple[str, str, Sequence[float] | None]]) -> Iterator[Gain]:
    """Yield a gain for each means, given its program and the program's seconds by round, in the same order of rounds.
    The savings add up to the first time less the last."""
    before: Sequence[float] | None = None
    for name, program, taken in rows:
        if taken is None:
            yield Gain(name)
            continue
        gain = [] if before is None else [a - b for a, b in zip(before, taken, strict=True)]
        yield Gain(
            name,
            program,
            median(taken),
            quartiles(taken),
            None if before is None else median(before) - median(taken),
            bool(gain) and noisy([gain]),
        )
        before = taken
