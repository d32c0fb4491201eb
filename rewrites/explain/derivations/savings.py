"""The savings of each law, measured by leaving it out; laws that only save together are one entry."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

from rewrites.explain.derivations.chain import derive_chain
from rewrites.explain.derivations.finding import Underivable
from rewrites.extraction import Infeasible
from rewrites.laws import without
from rewrites.laws.law import Law
from rewrites.opened import Opened
from rewrites.search.search import SearchSpace, Structure, cheapest

LawGroup = tuple[tuple[str, ...], Structure]  # laws, and the program without one of them
SAME_SUM = 1e-9  # relative: smaller differences of seconds are rounding


def search_without(opened: Opened, names: Sequence[str], exact: Structure) -> Structure:
    """Return the optimum without some laws, along the border states of the exact program. A graph in which none of
    them matched is reused."""
    space = SearchSpace(
        opened.model,
        without(opened.laws, names),
        opened.running,
        opened.workload.extents(opened.model),
        found=opened.parts,
    )
    for (number, (before, _)), lowering in zip(exact.route, exact.lowerings, strict=True):
        if lowering.graph.fired.keys().isdisjoint(names):
            space.lowerings[number, before] = lowering
            space.explorer.graphs[lowering.template.text] = lowering.graph
    return cheapest(space, opened.representable, along=exact.path)


def leave_out_each(opened: Opened, exact: Structure) -> Iterator[tuple[str, Structure]]:
    """Yield the optimum without each law that fired. A law whose canonical form other laws need cannot be left out
    alone. Laws that the derivation of the exact program does not use are left out together first: mostly none of them
    saves time."""
    used, fired = find_used(exact, opened.laws), [law.name for law in opened.laws if law.name in exact.fired]

    def lacking(names: Sequence[str]) -> Structure:
        """Search without the laws of these names."""
        return search_without(opened, names, exact)

    by_law = dict(leave_out([name for name in fired if name not in used], exact.time, lacking))
    for name in fired:
        if name in used:
            with suppress(Infeasible):
                by_law[name] = lacking([name])
    yield from ((name, by_law[name]) for name in fired if name in by_law)


def leave_out(
    names: Sequence[str], least: float, lacking: Callable[[Sequence[str]], Structure]
) -> Iterator[tuple[str, Structure]]:
    """Yield the optimum without each of these laws. One search suffices if all can be left out and the time does not
    change, as fewer laws reach no other programs; otherwise each half is searched by itself."""
    if not names:
        return
    optimum, half = None, len(names) // 2
    with suppress(Infeasible):
        optimum = lacking(names)
    if optimum is not None and (not half or abs(optimum.time - least) <= SAME_SUM * least):
        yield from ((name, optimum) for name in names)
    elif half:
        yield from leave_out(names[:half], least, lacking)
        yield from leave_out(names[half:], least, lacking)


def find_used(exact: Structure, laws: Sequence[Law]) -> frozenset[str]:
    """Return the laws in the derivation of a program from its import; all that fired if no derivation is found."""
    try:
        return frozenset(step.law for part in derive_chain(exact, laws).parts for step in part.steps)
    except Underivable:
        return exact.fired


def group_fired(opened: Opened, exact: Structure) -> list[LawGroup]:
    """Return the laws that fired, with the optimum without each; laws that save nothing without one another are one
    entry."""
    return group_laws(leave_out_each(opened, exact), exact.time, lambda names: search_without(opened, names, exact))


def rank_savings(opened: Opened, exact: Structure) -> list[tuple[tuple[str, ...], float]]:
    """Return the predicted seconds that groups of laws save, the most first."""
    return sorted(
        ((names, left.time - exact.time) for names, left in group_fired(opened, exact)), key=lambda pair: -pair[1]
    )


def group_laws(
    left: Iterable[tuple[str, Structure]], least: float, lacking: Callable[[Sequence[str]], Structure]
) -> list[LawGroup]:
    """Group laws, each with the optimum without it, into entries of laws that save nothing without one another:
    leaving out all of them costs the same as leaving out one. `least` are the seconds of the program with all laws;
    `lacking` searches without some."""
    groups: list[tuple[list[str], Structure]] = []
    for _, tied in groupby(sorted(left, key=lambda each: each[1].time), key=lambda each: f"{each[1].time:.9e}"):
        names = dict(tied)
        joined: list[tuple[list[str], Structure]] = []
        if len(names) > 1 and saves(first := next(iter(names.values())), least) and joint([*names], first, lacking):
            joined = [([*names], first)]
        for name, structure in names.items() if not joined else ():
            group = next(
                (
                    members
                    for members, _ in joined
                    if saves(structure, least) and joint([*members, name], structure, lacking)
                ),
                None,
            )
            if group is None:
                joined.append(([name], structure))
            else:
                group.append(name)
        groups += joined
    return [(tuple(names), structure) for names, structure in groups]


def saves(structure: Structure, least: float) -> bool:
    """True if a program without some law takes longer than with all."""
    return structure.time > least * (1 + SAME_SUM)


def joint(laws: Sequence[str], one: Structure, lacking: Callable[[Sequence[str]], Structure]) -> bool:
    """True if leaving out all these laws costs no more than leaving out one."""
    with suppress(Infeasible):
        return lacking(laws).time <= one.time * (1 + SAME_SUM)
    return False


def join_names(laws: Sequence[str]) -> str:
    """Return the laws of one entry as text."""
    return " + ".join(laws) + (", together" if len(laws) > 1 else "")
