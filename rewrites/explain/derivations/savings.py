"""What each law saves, by leaving it out; laws that only save together are one entry."""
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

LawGroup = tuple[tuple[str, ...], Structure]                # laws, and a program without one of them
SAME_SUM = 1e-9                                             # relative: predicted seconds that are the same sum


def search_without(opened: Opened, names: Sequence[str], exact: Structure) -> Structure:
    """The optimum without some laws, along the border states of the exact program. A graph in which none of them
    matched is the same without them."""
    space = SearchSpace(opened.model, without(opened.laws, names), opened.running,
                        opened.workload.extents(opened.model), found=opened.parts)
    for (number, (before, _)), lowering in zip(exact.route, exact.lowerings, strict=True):
        if lowering.graph.fired.keys().isdisjoint(names):
            space.lowerings[number, before] = lowering
            space.explorer.graphs[lowering.template.text] = lowering.graph
    return cheapest(space, opened.representable, along=exact.path)


def leave_out_each(opened: Opened, exact: Structure) -> Iterator[tuple[str, Structure]]:
    """The optimum without each law that fired. A law whose canonical form the others rest on cannot be left out alone.
    Those that the exact program does not follow from are left out together first: mostly no one of them saves
    anything."""
    used, fired = find_used(exact, opened.laws), [law.name for law in opened.laws if law.name in exact.fired]
    def lacking(names: Sequence[str]) -> Structure: return search_without(opened, names, exact)
    found = dict(leave_out([name for name in fired if name not in used], exact.time, lacking))
    for name in fired:
        if name in used:
            with suppress(Infeasible): found[name] = lacking([name])
    yield from ((name, found[name]) for name in fired if name in found)


def leave_out(names: Sequence[str], least: float,
              lacking: Callable[[Sequence[str]], Structure]) -> Iterator[tuple[str, Structure]]:
    """What is found without each of these laws: one search where all may go and nothing changes, as fewer laws reach no
    other programs; otherwise each half by itself."""
    if not names: return
    found, half = None, len(names) // 2
    with suppress(Infeasible): found = lacking(names)
    if found is not None and (not half or abs(found.time - least) <= SAME_SUM * least):
        yield from ((name, found) for name in names)
    elif half:
        yield from leave_out(names[:half], least, lacking)
        yield from leave_out(names[half:], least, lacking)


def find_used(exact: Structure, laws: Sequence[Law]) -> frozenset[str]:
    """The laws by which a program follows from its import; all that fired where nobody knows how it does."""
    try: return frozenset(step.law for part in derive_chain(exact, laws).parts for step in part.steps)
    except Underivable: return exact.fired


def group_fired(opened: Opened, exact: Structure) -> list[LawGroup]:
    """The laws that fired with the optimum without each, those together that save nothing without one another."""
    return group_laws(leave_out_each(opened, exact), exact.time, lambda names: search_without(opened, names, exact))


def rank_savings(opened: Opened, exact: Structure) -> list[tuple[tuple[str, ...], float]]:
    """Predicted seconds that groups of laws save, the most first."""
    return sorted(((names, left.time - exact.time) for names, left in group_fired(opened, exact)),
                  key=lambda pair: -pair[1])


def group_laws(left: Iterable[tuple[str, Structure]], least: float,
               lacking: Callable[[Sequence[str]], Structure]) -> list[LawGroup]:
    """Laws with what is found without each, those in one entry that save nothing without one another: leaving out all
    of them costs what leaving out any one does. `least` is what the program with all laws costs; `lacking` searches
    without some."""
    found: list[tuple[list[str], Structure]] = []
    for _, tied in groupby(sorted(left, key=lambda each: each[1].time), key=lambda each: f"{each[1].time:.9e}"):
        names = dict(tied)
        own: list[tuple[list[str], Structure]] = []
        if len(names) > 1 and saves(first := next(iter(names.values())), least) and joint([*names], first, lacking):
            own = [([*names], first)]
        for name, structure in names.items() if not own else ():
            group = next((each for each, _ in own if saves(structure, least)
                          and joint([*each, name], structure, lacking)), None)
            if group is None: own.append(([name], structure))
            else: group.append(name)
        found += own
    return [(tuple(names), structure) for names, structure in found]


def saves(structure: Structure, least: float) -> bool:
    """Whether a program without some law takes more than with all."""
    return structure.time > least * (1 + SAME_SUM)


def joint(laws: Sequence[str], one: Structure, lacking: Callable[[Sequence[str]], Structure]) -> bool:
    """Whether leaving out all these laws costs no more than leaving out one."""
    with suppress(Infeasible): return lacking(laws).time <= one.time * (1 + SAME_SUM)
    return False


def join_names(laws: Sequence[str]) -> str:
    """Laws of one entry, as people read them."""
    return " + ".join(laws) + (", together" if len(laws) > 1 else "")
