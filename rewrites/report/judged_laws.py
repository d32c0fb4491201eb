"""Laws and graphs of a run, verified, and what each law saves: from the exact program alone."""
from functools import partial
from typing import Any

from rewrites.explain.derivations.savings import rank_savings
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened, Searched
from rewrites.search.search import Structure
from rewrites.verify.forked_task import ForkedTask
from rewrites.verify.levels import Announce


def judge_laws(opened: Opened, announce: Announce, optimum: Structure | None = None) -> list[Any]:
    """Laws and graphs verified (levels 1 and 2), what laws save, and the predicted seconds of the exact program that
    all of it is about. It needs nothing of what else is done, so it may be done beside that, from a search of its
    own."""
    from rewrites.verify import verify_graphs, verify_laws
    exact = opened.structure(opened.laws) if optimum is None else optimum
    own = [law.name for law in opened.laws if law not in EXACT_LAWS]
    return [{"laws": verify_laws(opened.laws, announce=announce) | {"own": own},
             "graphs": verify_graphs([part.template for part in exact.parts], opened.laws, announce=announce)},
            rank_savings(opened, exact), exact.time]


def take_judgement(task: ForkedTask, searched: Searched,
                   announce: Announce) -> tuple[dict[str, object], list[tuple[tuple[str, ...], float]]]:
    """Laws and graphs as verified, and what laws save, of this run's exact program."""
    judge_here = partial(judge_laws, searched.opened, optimum=searched.optimum)
    verified, saved, seconds = task.answer(judge_here)
    if seconds != searched.optimum.time:                    # a search that ended by its time limit may find another one
        verified, saved, _ = judge_here(announce)
    return verified, [(tuple(names), seconds) for names, seconds in saved]
