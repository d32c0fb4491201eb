"""What each means saved: programs of one measurement, each with one means more than the one before it; and laws by
leaving them out, those in one entry that save nothing without one another."""
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from formats import FORMATS, Dense
from opmatrix.measure import noisy, quartiles
from rewrites.compiler.search import Structure
from rewrites.extraction import Infeasible
from rewrites.report.choice import choose

if TYPE_CHECKING:
    from rewrites.report.points import Point

Group = tuple[tuple[str, ...], Structure]                    # laws, and a program without one of them
SAME = 1e-9                                                 # relative: predicted seconds that are the same sum


class Gain(NamedTuple):
    """One means: the program that has it, if one was measured, and seconds saved against the last program before it."""

    name: str
    program: str | None = None
    measured_s: float | None = None
    quartiles_s: tuple[float, float] | None = None
    saved_s: float | None = None
    below_noise: bool = False


def added(imported: "Point", fused: "Point", points: Sequence["Point"], best: "Point",
          within: Sequence["Point"]) -> list[Gain]:
    """From the import to the answer, by what is added: the best point within the budgets that only narrows numbers, and
    the answer where it does more."""
    exact = next((point for point in points if not point.methods), None)
    narrow = [best] if only_narrows(best.methods) else [point for point in within if point.methods
                                                        and only_narrows(point.methods)]
    numbers = choose(narrow) if narrow and best.methods else None
    last = None if best is exact or best is numbers else best
    substituted = best.structure is not None and best.structure.substitutions
    more = ("+ fewer units and heads" if best.variant else
            "+ sparsity, rank, fewer layers or keys" if substituted else "+ sparsity and rank")
    rows = {"imported": imported, "+ fusion": fused, "+ laws": exact, "+ number types": numbers, more: last}
    return [*steps([(name, point.name if point else "", point.rounds_s if point else None)
                    for name, point in rows.items()])]


def steps(rows: Sequence[tuple[str, str, Sequence[float] | None]]) -> Iterator[Gain]:
    """One for each means, program and its seconds by round, in one order of rounds; what is saved adds up to the first
    less the last."""
    before: Sequence[float] | None = None
    for name, program, taken in rows:
        if taken is None:
            yield Gain(name)
            continue
        gain = [] if before is None else [a - b for a, b in zip(before, taken, strict=True)]
        yield Gain(name, program, median(taken), quartiles(taken),
                   None if before is None else median(before) - median(taken),
                   bool(gain) and noisy([gain]))
        before = taken


def only_narrows(methods: Iterable[str]) -> bool:
    """Whether formats keep every weight and only narrow its numbers: they multiply as often as dense does."""
    return all(name in FORMATS and FORMATS[name].flops == Dense.flops for name in methods)


def group_laws(left: Iterable[tuple[str, Structure]], least: float,
               without: Callable[[Sequence[str]], Structure]) -> list[Group]:
    """Laws with what is found without each, those in one entry that save nothing without one another: leaving out all
    of them costs what leaving out any one does. `least` is what the program with all laws costs; `without` searches
    without some."""
    found: list[tuple[list[str], Structure]] = []
    for _, tied in groupby(sorted(left, key=lambda each: each[1].time), key=lambda each: f"{each[1].time:.9e}"):
        names = dict(tied)
        own: list[tuple[list[str], Structure]] = []
        if len(names) > 1 and saves(first := next(iter(names.values())), least) and joint([*names], first, without):
            own = [([*names], first)]
        for name, structure in names.items() if not own else ():
            group = next((each for each, _ in own if saves(structure, least)
                          and joint([*each, name], structure, without)), None)
            if group is None: own.append(([name], structure))
            else: group.append(name)
        found += own
    return [(tuple(names), structure) for names, structure in found]


def saves(structure: Structure, least: float) -> bool:
    """Whether a program without some law takes more than with all."""
    return structure.time > least * (1 + SAME)


def joint(laws: Sequence[str], one: Structure, without: Callable[[Sequence[str]], Structure]) -> bool:
    """Whether leaving out all these laws costs no more than leaving out one."""
    with suppress(Infeasible): return without(laws).time <= one.time * (1 + SAME)
    return False


def join_names(laws: Sequence[str]) -> str:
    """Laws of one entry, as people read them."""
    return " + ".join(laws) + (", together" if len(laws) > 1 else "")
