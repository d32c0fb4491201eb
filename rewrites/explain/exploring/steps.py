"""Phases and single laws, run in turn: the contents of a graph after some of them."""

from collections.abc import Sequence
from dataclasses import replace

from formats.core.errors import InputError, suggest_name
from rewrites.egraph.egraph import SCHEDULE
from rewrites.egraph.layers import Explorer
from rewrites.extraction import Infeasible
from rewrites.laws.law import JOIN, MARK, Law
from rewrites.opened import Opened
from rewrites.search.search import SearchSpace, Structure, cheapest

LAW_PHASE = "by_"  # prefix of the phase of a single law


def next_phase(ran: Sequence[str], which: str | None, laws: Sequence[Law]) -> tuple[str, ...]:
    """Return the steps with one more: a phase or a law by name, by default the next phase. Raises InputError."""
    done = [step for step in ran if step in SCHEDULE]
    if which is None:
        if len(done) >= len(SCHEDULE):
            raise InputError("step: all phases have run: begin at .imported, or name a phase or a law")
        return *ran, SCHEDULE[len(done)]
    if which in SCHEDULE:
        return *ran, which
    if (law := next((law for law in laws if law.name == which), None)) is None:
        known = [*dict.fromkeys(SCHEDULE), *(law.name for law in laws)]
        raise InputError(
            f"step {which!r}: no such phase or law; {suggest_name(which, known)}phases are "
            f"{', '.join(dict.fromkeys(SCHEDULE))}; laws are in `opmatrix laws`"
        )
    return (*ran, *[MARK] * (law.phase == JOIN), LAW_PHASE + which)


def say_steps(schedule: Sequence[str]) -> str:
    """Return the steps in words."""
    return "by " + ", ".join(step.removeprefix(LAW_PHASE) for step in schedule) if schedule else "imported"


def search_stepped(opened: Opened, laws: Sequence[Law], schedule: Sequence[str]) -> tuple[SearchSpace, Structure]:
    """Return the space after these steps and its optimum. If canonical forms leave no program, the search is repeated
    with laws that keep both their sides."""

    def optimum(laws: Sequence[Law]) -> tuple[SearchSpace, Structure]:
        """Search under these laws by the steps of the schedule, single laws among them."""
        alone = [replace(law, phase=LAW_PHASE + law.name) for law in laws if LAW_PHASE + law.name in schedule]
        space = SearchSpace(
            opened.model, laws, opened.running, opened.workload.extents(opened.model), found=opened.parts
        )
        space.explorer = Explorer([*laws, *alone], schedule=tuple(schedule))
        return space, cheapest(space, opened.representable)

    try:
        return optimum(laws)
    except Infeasible:
        return optimum([replace(law, canonical=False) for law in laws])
