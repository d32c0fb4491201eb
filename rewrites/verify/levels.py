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


Announce = Callable[[str], None]                            # told before what may take a while


def verify_laws(laws: Sequence[Law], seed: int = 0, draws: int = 2,
                announce: Announce = lambda line: None) -> dict[str, int]:
    """Each law alone, with its counterexamples and wherever a graph matches it, then in a graph of all laws that starts
    from their left sides. Raises VerificationError, which names the law."""
    for law in laws:
        for draw in range(draws):
            try:
                law.check(np.random.default_rng([seed, draw]))
                if not draw: check_matches(law, seed)
            except (AssertionError, TypeError) as error:
                raise VerificationError(1, law.name, str(error), reproduce_law(law, seed, announce), [law.name],
                                        seed=seed) from error
    found, _ = check_seeded(laws, laws, seed)
    blame(found, laws, "the graph of the laws' left sides", seed, lambda: seeded(laws, np.random.default_rng(seed)),
          announce)
    return {"laws": len(laws), "draws": draws, "seed": seed}


def verify_graphs(templates: Iterable[Template], laws: Sequence[Law], seed: int = 0,
                  announce: Announce = lambda line: None) -> dict[str, int]:
    """Every class, fact and kernel of the graphs of these templates, equal ones once. Raises VerificationError, which
    names the first member that disagrees and the laws that made it."""
    distinct = {template.text: template for template in templates}
    for number, template in enumerate(distinct.values()):
        blame(check_graph(template, laws, seed), laws, f"graph {number + 1} of {len(distinct)}", seed,
              partial(small, template, laws, np.random.default_rng(seed)), announce)
    return {"graphs": len(distinct), "seed": seed}


def reproduce_law(law: Law, seed: int, announce: Announce) -> str:
    """How a law's failure is seen again, by its own left side; nothing where a graph does not show it."""
    found, _ = check_seeded([law], [law], seed)
    if not found: return ""
    announce(SHRINKING)
    return reproducer(seeded([law], np.random.default_rng(seed)), [law], found[0], seed)


def blame(found: list[Disagreement], laws: Sequence[Law], where: str, seed: int, made: Callable[[], Template],
          announce: Announce) -> None:
    """Raise for the first disagreement, with its smallest form; of the laws that may be at fault, those that fail alone
    are named. `made` gives the template it was found in."""
    if not found: return
    first = found[0]
    failing = [law.name for law in laws if law.name in first.laws and not law.holds(np.random.default_rng(seed))]
    guilty = failing or first.laws
    announce(SHRINKING)
    raise VerificationError(2, where, f"{first.what}; made by {', '.join(guilty) or 'nothing but its parts'}",
                            reproducer(made(), laws, first, seed), guilty, difference=first.difference,
                            disagreements=len(found), seed=seed)
