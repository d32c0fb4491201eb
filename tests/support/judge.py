"""What becomes of a mutant: named by the test of its law, named in a graph that starts from its own left side, or shown
to be no mutant at all."""

from dataclasses import dataclass
from typing import Any

import computed
import numpy as np
from equal import proved
from law_mutants import Mutant, make_law, of_kernel

from opmatrix.algebra.shapes import ShapeError
from rewrites.egraph.egraph import engine
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import Law
from rewrites.verify.graphs import TOLERANCE, check_seeded

SEEDS = range(6)
TRIED = "a guard of the search: the kernel computes its term of operands without it too, as tried with numbers"
AXIOMS = "both sides are one class by the axioms"


@dataclass(frozen=True)
class Verdict:
    """Which check named the mutant, and why it is equal where none did; `equal` is empty for a survivor."""

    mutant: Mutant
    law: bool
    graph: bool
    equal: str = ""

    @property
    def survived(self) -> bool:
        return not (self.law or self.graph or self.equal)


def judge(mutant: Mutant) -> Verdict:
    """Run the checks on a mutant, without a look at any program; what no check names is proved from the axioms alone (a
    law would prove its own mutant), or has survived."""
    if isinstance(mutant.law, Implementation):
        return of_implementation(mutant, mutant.law)
    law = mutant.law
    alone = any(not law.holds(np.random.default_rng([1, seed])) for seed in SEEDS)
    shared = engine([law], trace=True)
    graph = any(graph_disproves(law, seed, shared) for seed in (SEEDS if alone else SEEDS[:3]))
    if alone or graph:
        return Verdict(mutant, alone, graph)
    return Verdict(mutant, False, False, AXIOMS if at_place(mutant, law) or proved(law) or proved(law, 5) else "")


def at_place(mutant: Mutant, law: Law) -> bool:
    """Whether what stands at the changed place equals what stood there: then so does the whole."""
    if mutant.place is None:
        return False
    before, after = mutant.place
    return proved(make_law(law, law.variables, ((before,), (after,))))


def graph_disproves(law: Law, seed: int, shared: Any) -> bool:
    """Whether a graph of the law alone, in its engine and from its own left side, holds a disagreement that names
    it, or its sides do not fit the sizes there."""
    try:
        found, _ = check_seeded([law], [law], seed, shared)
    except ShapeError:
        return True
    return bool(found) and law.name in found[0].laws


def of_implementation(mutant: Mutant, made: Implementation) -> Verdict:
    """The same for a kernel and its term."""
    alone = any(not computed.compare_kernel(made, np.random.default_rng(seed)) <= TOLERANCE for seed in SEEDS[:3])
    graph = any(not computed.misfit(made, np.random.default_rng(seed))[1] <= TOLERANCE for seed in SEEDS[:2])
    if alone or graph:
        return Verdict(mutant, alone, graph)
    if made.variables != mutant.original.variables and made.body == mutant.original.body:
        return Verdict(mutant, False, False, TRIED)  # operands were drawn without the fact
    law = of_kernel(made)
    whole = make_law(law, made.variables, (of_kernel(mutant.original).sides()[0], law.sides()[0]))
    return Verdict(mutant, False, False, AXIOMS if at_place(mutant, law) or proved(whole) else "")
