"""Equations that follow from laws: many of them are saturated in one graph, and those whose sides end in one class are
dropped."""

from collections.abc import Sequence

from rewrites.discovery.small_terms import LETTERS, OPEN_ATTRIBUTES
from rewrites.discovery.stated_laws import StatedEquation
from rewrites.egraph.egraph import EgglogEngine, engine, rules
from rewrites.egraph.template import Template, state_imported
from rewrites.laws.law import RESTRUCTURE, Law
from rewrites.proofs.equations import FACTS, PROOFS_PER_ENGINE, ROUND, ProofSearch, add_sizes, literal_facts

EQUATIONS_TOGETHER = 40  # equations in one graph
MOST_NODES = 4000  # of such a graph
MOST_ROUNDS = 5  # of its saturation


def nothing(**variables: object) -> tuple[object, object]:
    """Return two sides that no rule reads: a law of all sorts, whose facts an engine then derives."""
    return (), ()


class Consequences:
    """Laws, and an engine that knows them."""

    def __init__(self, laws: Sequence[Law] = ()) -> None:
        self.laws = [*laws]
        self.renew()

    def renew(self) -> None:
        """Make a fresh engine with all laws so far."""
        nothing.__annotations__ = {**LETTERS, **OPEN_ATTRIBUTES}
        self.engine: EgglogEngine = engine((), later=(Law(nothing),))
        self.graphs = 0
        self.run("\n".join([FACTS, literal_facts(())]))
        for law in self.laws:
            self.run("\n".join(rules(law)))
        self.phase = self.engine.parse_program(ROUND.format(RESTRUCTURE))

    def run(self, program: str) -> None:
        """Run commands of egglog."""
        self.engine.run_program(*self.engine.parse_program(program))

    def add(self, law: Law) -> None:
        """Add a law, in the directions in which a match binds its variables."""
        self.laws.append(law)
        self.run("\n".join(rules(law)))

    def open_among(self, equations: Sequence[StatedEquation]) -> list[StatedEquation]:
        """Return the equations that do not follow from the laws within the bounds, in the same order."""
        if not self.laws:
            return [*equations]
        parts = [equations[at : at + EQUATIONS_TOGETHER] for at in range(0, len(equations), EQUATIONS_TOGETHER)]
        return [one for part in parts for one in self.open_in_graph(part)]

    def open_in_graph(self, equations: Sequence[StatedEquation]) -> list[StatedEquation]:
        """Saturate the sides of a few equations in one graph, and return those whose sides stay apart."""
        if self.graphs == PROOFS_PER_ENGINE:
            self.renew()
        self.graphs += 1
        roots = {f"left{number}": one.left for number, one in enumerate(equations)}
        roots |= {f"right{number}": one.right for number, one in enumerate(equations)}
        template = add_sizes(Template.of(roots), roots)
        self.run("\n".join(["(push)", template.text, *state_imported(template, self.laws)]))
        try:
            search = ProofSearch(self.engine, MOST_NODES)
            for _ in range(MOST_ROUNDS):
                if search.nodes > MOST_NODES or not search.changed(self.phase):
                    break
            return [one for number, one in enumerate(equations) if not self.meet(number)]
        finally:
            self.run("(pop)")

    def meet(self, number: int) -> bool:
        """True if both sides of an equation are in one class."""
        left, right = (self.engine.lookup_function(f"${side}{number}", []) for side in ("left", "right"))
        return bool(left == right)
