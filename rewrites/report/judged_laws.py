"""Verification of the laws and graphs of a run, and the savings of each law: computed from the exact program alone."""

from functools import partial
from typing import Any

from rewrites.explain.derivations.savings import rank_savings
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened, Searched
from rewrites.search.search import Structure
from rewrites.verify.forked_task import ForkedTask
from rewrites.verify.levels import Announce


def judge_laws(opened: Opened, announce: Announce, optimum: Structure | None = None) -> list[Any]:
    """Verify laws and graphs (levels 1 and 2), and return the results, the savings of laws, and the predicted seconds
    of the exact program that they are about. It depends on no other part of the run, so it may run beside the others,
    from a search of its own."""
    from rewrites.verify import verify_graphs, verify_laws

    exact = opened.structure(opened.laws) if optimum is None else optimum
    user_laws = [law.name for law in opened.laws if law not in EXACT_LAWS]
    return [
        {
            "laws": verify_laws(opened.laws, announce=announce) | {"own": user_laws},
            "graphs": verify_graphs([part.template for part in exact.parts], opened.laws, announce=announce),
        },
        rank_savings(opened, exact),
        exact.time,
    ]


def take_judgement(
    task: ForkedTask, searched: Searched, announce: Announce
) -> tuple[dict[str, object], list[tuple[tuple[str, ...], float]]]:
    """Return the verified laws and graphs, and the savings of laws, for this run's exact program."""
    judge_here = partial(judge_laws, searched.opened, optimum=searched.optimum)
    verified, saved, seconds = task.answer(judge_here)
    if seconds != searched.optimum.time:  # a search ended by its time limit may find another program
        verified, saved, _ = judge_here(announce)
    return verified, [(tuple(names), seconds) for names, seconds in saved]
