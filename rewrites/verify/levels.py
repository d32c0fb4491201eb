"""Levels 1 and 2 over all that a search uses: its laws alone, and the graphs that they make of a model's parts."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from rewrites.egraph.law_matches import check_matches
from rewrites.egraph.template import Template
from rewrites.laws.law import Law
from rewrites.verify.failure import VerificationError
from rewrites.verify.graphs import Disagreement, check_graph, check_seeded, seeded, small
from rewrites.verify.shrink import SHRINK_SECONDS, reproducer

SHRINKING = f"what is wrong is made small, {SHRINK_SECONDS} s at most …"


Announce = Callable[[str], None]  # called before a step that may take long


def verify_laws(
    laws: Sequence[Law], seed: int = 0, draws: int = 2, announce: Announce = lambda line: None
) -> dict[str, int]:
    """Check each law alone, with its counterexamples and wherever a graph matches it, then in a graph of all laws that
    starts from their left sides. Returns the number of laws and of draws, and the seed. Raises VerificationError,
    which names the law."""
    for law in laws:
        verify_law(law, seed, draws, announce)
    wrong, _ = check_seeded(laws, laws, seed)
    blame(
        wrong,
        laws,
        "the graph of the laws' left sides",
        seed,
        lambda: seeded(laws, np.random.default_rng(seed)),
        announce,
    )
    return {"laws": len(laws), "draws": draws, "seed": seed}


def verify_law(law: Law, seed: int, draws: int, announce: Announce) -> None:
    """Check a law alone, with its counterexamples and wherever a graph matches it. Raises VerificationError."""
    for draw in range(draws):
        try:
            law.check(np.random.default_rng([seed, draw]))
            if not draw:
                check_matches(law, seed)
        except (AssertionError, TypeError) as error:
            raise VerificationError(
                1, law.name, str(error), reproduce_law(law, seed, announce), [law.name], seed=seed
            ) from error


def verify_graphs(
    templates: Iterable[Template], laws: Sequence[Law], seed: int = 0, announce: Announce = lambda line: None
) -> dict[str, int]:
    """Check every class, fact and kernel of the graphs of these templates; equal templates are checked once. Returns
    the number of graphs, and the seed. Raises VerificationError, which names the first member that disagrees and the
    laws that made it."""
    distinct = {template.text: template for template in templates}
    for number, template in enumerate(distinct.values()):
        blame(
            check_graph(template, laws, seed),
            laws,
            f"graph {number + 1} of {len(distinct)}",
            seed,
            partial(small, template, laws, np.random.default_rng(seed)),
            announce,
        )
    return {"graphs": len(distinct), "seed": seed}


def reproduce_law(law: Law, seed: int, announce: Announce) -> str:
    """Return code that reproduces a law's failure from its own left side; empty if no graph shows the failure."""
    disagreements, _ = check_seeded([law], [law], seed)
    if not disagreements:
        return ""
    announce(SHRINKING)
    return reproducer(seeded([law], np.random.default_rng(seed)), [law], disagreements[0], seed)


def blame(
    found: list[Disagreement],
    laws: Sequence[Law],
    where: str,
    seed: int,
    made: Callable[[], Template],
    announce: Announce,
) -> None:
    """Raise VerificationError for the first disagreement, reduced to its smallest form. Of the laws that may be at
    fault, only the laws that fail alone are named, if there are any. `made` returns the template with the
    disagreement."""
    if not found:
        return
    first = found[0]
    failing = [law.name for law in laws if law.name in first.laws and not law.holds(np.random.default_rng(seed))]
    guilty = failing or first.laws
    announce(SHRINKING)
    raise VerificationError(
        2,
        where,
        f"{first.what}; made by {', '.join(guilty) or 'nothing but its parts'}",
        reproducer(made(), laws, first, seed),
        guilty,
        difference=first.difference,
        disagreements=len(found),
        seed=seed,
    )
