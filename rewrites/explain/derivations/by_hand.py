"""Laws applied by hand to one program: wherever they fit, in the requested order. The graph holds the terms that these
laws reach, stage by stage, and so the facts that guards need; the program is a tree in it, and every application a
step."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from formats.core.errors import InputError
from rewrites.egraph.borders import FULL
from rewrites.egraph.egraph import Graph, engine, freeze, keep_imported
from rewrites.egraph.layers import Part
from rewrites.egraph.match import Binding
from rewrites.egraph.template import Template
from rewrites.explain.derivations.derivation import Application
from rewrites.explain.derivations.finding import Deriver
from rewrites.explain.derivations.trees import Forest, Tree, match_trees
from rewrites.explain.derivations.wording import occurrences
from rewrites.laws.law import MARK, Law
from rewrites.lowering.lower import Lowering
from rewrites.verify.user_laws import admit_laws

NOTHING_NEW = "its result is there already, or contains itself"
Kinds = tuple[dict[str, tuple[str, ...]], ...]
BUDGET, ROUNDS, MAX_APPLICATIONS = 5000, 12, 1000  # nodes and rounds of a graph; applications to a program


@dataclass(frozen=True)
class Rewrite:
    """A stage of laws, each applied wherever it fits, again and again, the first ones first. One of the laws `needed`
    has to apply somewhere, by default the last. `kinds` narrows where a law applies: alternatives of the kinds that
    its variables may have."""

    name: str
    laws: tuple[Law, ...]
    needed: tuple[str, ...] = ()
    kinds: dict[str, Kinds] = field(default_factory=dict)

    @property
    def goals(self) -> tuple[str, ...]:
        """The laws one of which has to apply: the named ones, or else the last."""
        return self.needed or (self.laws[-1].name,)

    def check_usable(self) -> None:
        """Raise InputError for a user's law that is wrong, or that no graph can use."""
        _, left_out = admit_laws(self.laws)
        if left_out:
            raise InputError(f"{self.name}: {left_out[0]}")


Stages = Sequence[Rewrite]


@dataclass
class Applied:
    """One part of a model after stages of laws: its program, the steps that led to it, and the number of applications
    of each law in each stage."""

    part: Part
    number: int
    forest: Forest
    start: Tree
    tree: Tree
    steps: list[Application]
    counts: list[dict[str, int]]

    def over(self, part: Part) -> "Applied":
        """Return the result of these stages for another part of equal structure."""
        if part is self.part:
            return self
        forest = Forest(Lowering(self.forest.graph, part.template, None), self.forest.made)  # type: ignore[arg-type]
        return replace(self, part=part, forest=forest)

    @cached_property
    def alone(self) -> Graph:
        """The graph of this program alone."""
        keys, graph = {tree.key for tree in self.tree.walk()}, self.forest.graph
        return Graph([node for node in graph.nodes if node[:3] in keys], graph.facts, graph.named)


@cache
def isolate(law: Law) -> Law:
    """Return the law in a phase of its own, with both its sides kept."""
    return replace(law, phase=f"by_{law.name}", canonical=False)


def reached(template: Template, stages: Stages) -> Graph:
    """Return the graph that the laws of each stage reach from the result of the stages before. Raises InputError for a
    stage that does not terminate."""
    laws = tuple(dict.fromkeys(law for stage in stages for law in stage.laws))
    stage_engine, graph = engine([isolate(law) for law in laws]), Graph()

    def run(program: str) -> Any:
        """Run commands of egglog in the stage's engine."""
        return stage_engine.run_program(*stage_engine.parse_program(program))

    def explore(stage: Rewrite) -> None:
        """Apply a stage's laws in rounds until none changes the graph. Raises InputError for a graph beyond BUDGET."""
        for _ in range(ROUNDS):
            run(f"(run-schedule (saturate (run facts)) (saturate (run {MARK})))")
            changed = [run(f"(run by_{law.name} 1)")[0].report.updated for law in stage.laws]
            rows = sum(count for name, count in run("(print-size)")[0].sizes if name.startswith("K_"))
            if rows > BUDGET:
                raise InputError(
                    f"{stage.name}: more than {BUDGET} programs after a few rounds: leave one law of the stage out"
                )
            if not any(changed):
                break

    run(template.text)
    for stage in stages:
        explore(stage)
    run("(run-schedule (saturate (run facts)))")
    freeze(stage_engine, graph)
    keep_imported(graph, template)
    return graph


def apply_stages(part: Part, number: int, stages: Stages) -> Applied:
    """Return the import of a part after these stages. Raises InputError for a law that cannot be used."""
    for stage in stages:
        stage.check_usable()
    graph = reached(part.template, stages)
    forest = Forest(Lowering(graph, part.template, None))  # type: ignore[arg-type]       # nothing is priced here
    start = tree = forest.imported[part.roots[FULL]]
    steps: list[Application] = []
    counts: list[dict[str, int]] = []
    for stage in stages:
        deriver, seen = Deriver(forest, stage.laws, forest.representatives), {tree}
        counts.append(dict.fromkeys((law.name for law in stage.laws), 0))
        while (step := following(deriver, stage, tree, seen)) is not None and len(steps) < MAX_APPLICATIONS:
            tree = step.apply(forest, tree)
            seen.add(tree)
            steps.append(step)
            counts[-1][step.law] += 1
    return Applied(part, number, forest, start, tree, steps, counts)


def following(deriver: Deriver, stage: Rewrite, tree: Tree, seen: set[Tree]) -> Application | None:
    """Return the next application that leads to a new program: of the first law that fits, at the innermost place.
    Programs that compute a value from itself, as (xᵀ)ᵀ does x, are skipped: a program computes every value once."""
    for law in stage.laws:
        for before, after in fitting(deriver, law, tree, stage.kinds.get(law.name, ({},))):
            if before is after:
                continue
            rewritten = deriver.forest.replace(tree, before, after)
            if rewritten not in seen and not is_nested(rewritten):
                return Application(law.name, law.kind, False, before, after)
    return None


def is_nested(tree: Tree) -> bool:
    """True if some subtree is computed from the very value that it computes."""
    below: dict[Tree, frozenset[int]] = {}
    for part in tree.walk():
        below[part] = frozenset(child.cls for child in part.children).union(*(below[child] for child in part.children))
        if part.cls in below[part]:
            return True
    return False


def fitting(deriver: Deriver, law: Law, tree: Tree, kinds: Kinds) -> Iterator[tuple[Tree, Tree]]:
    """Yield every place where a law fits a program, with the result there. All sides of a law of several sides have to
    be present."""
    left, right = law.sides()
    keys = {part.key for part in tree.walk()}
    for part, index, binding in matching(law, tree):
        if not any(all(binding[name].kind in allowed for name, allowed in choice.items()) for choice in kinds):
            continue
        bound = {name: at.cls if isinstance(at, Tree) else at for name, at in binding.items()}
        for full in deriver.guarded(law, iter([bound])):
            others = [at for at in range(len(left)) if at != index]
            if all({deriver.member(left[at], full), deriver.member(right[at], full)} & keys for at in others):
                trees = {name: at for name, at in binding.items() if isinstance(at, Tree)}
                with suppress(KeyError):  # the graph may lack the result
                    yield part, deriver.over(right[index], full, trees)


def matching(law: Law, tree: Tree) -> Iterator[tuple[Tree, int, Binding]]:
    """Yield every place where a side of a law fits, guards not considered."""
    matches = match_trees()
    for part in tree.walk():
        for index, side in enumerate(law.sides()[0]):
            for binding in matches.find(side, part):
                yield part, index, binding


def refusal(applied: Applied, law: Law) -> str:
    """Describe why a law applies nowhere in a part: the operators are missing, or guards fail; the place where fewest
    fail is named."""
    where, left = f"part {applied.number + 1}", ", ".join(map(str, law.sides()[0]))
    places = [(missing(applied.forest.graph, law, bound), part) for part, _, bound in matching(law, applied.tree)]
    if not places:
        return f"{where} has no {left}"
    guards, part = min(places, key=lambda each: len(each[0]))
    path = ".".join(map(str, occurrences(applied.tree, part)[0])) or "top"
    return f"{where} has {left} at {path}, but {' and '.join(guards) or NOTHING_NEW}"


def missing(graph: Graph, law: Law, bound: Binding) -> list[str]:
    """Return the guards of a law that fail for a binding."""
    failing = []
    for fact, *names in (guard.strip("()").split() for guard in law.guards):
        at = [value.cls if isinstance(value := bound.get(name), Tree) else value for name in names]
        rows = [row if isinstance(row, tuple) else (row,) for row in graph.facts.get(fact, ())]
        if not any(all(a is None or a == b for a, b in zip(at, row, strict=True)) for row in rows):
            failing.append(f"not {fact}({', '.join(names)})")
    return failing
