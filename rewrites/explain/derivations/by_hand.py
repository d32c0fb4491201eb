"""Laws applied by hand to one program: wherever they fit, in the order that is asked for. The graph holds what those
laws reach, stage by stage, and so knows the facts that guards ask for; the program is a tree in it, and every
application a step."""
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

NOTHING_NEW = "what it makes is there already, or is made of itself"
Kinds = tuple[dict[str, tuple[str, ...]], ...]
BUDGET, ROUNDS, MAX_APPLICATIONS = 5000, 12, 1000           # nodes and rounds of a graph, applications to a program


@dataclass(frozen=True)
class Rewrite:
    """A stage of laws, each applied wherever it fits, again and again, the first ones first. One of those `needed` has
    to apply somewhere, by default the last. `kinds` narrows where a law applies: choices of what kinds its variables
    may be there."""

    name: str
    laws: tuple[Law, ...]
    needed: tuple[str, ...] = ()
    kinds: dict[str, Kinds] = field(default_factory=dict)

    @property
    def goals(self) -> tuple[str, ...]:
        return self.needed or (self.laws[-1].name,)

    def check_usable(self) -> None:
        """Raises InputError for a law of a user's that is wrong, or that no graph can use."""
        _, left_out = admit_laws(self.laws)
        if left_out: raise InputError(f"{self.name}: {left_out[0]}")


Stages = Sequence[Rewrite]


@dataclass
class Applied:
    """One part of a model behind stages of laws: its program, the steps that led there, and how often each law of each
    stage was applied."""

    part: Part
    number: int
    forest: Forest
    start: Tree
    tree: Tree
    steps: list[Application]
    counts: list[dict[str, int]]

    def over(self, part: Part) -> "Applied":
        """What these stages make of another part of equal structure."""
        if part is self.part:
            return self
        forest = Forest(Lowering(self.forest.graph, part.template, None), self.forest.made)     # type: ignore[arg-type]
        return replace(self, part=part, forest=forest)

    @cached_property
    def alone(self) -> Graph:
        """The graph of this program and no other."""
        keys, graph = {tree.key for tree in self.tree.walk()}, self.forest.graph
        return Graph([node for node in graph.nodes if node[:3] in keys], graph.facts, graph.named)


@cache
def isolate(law: Law) -> Law:
    """The law in a phase of its own, which keeps both its sides."""
    return replace(law, phase=f"by_{law.name}", canonical=False)


def reached(template: Template, stages: Stages) -> Graph:
    """What the laws of each stage reach from what those before it did. Raises InputError for a stage that does not come
    to an end."""
    laws = tuple(dict.fromkeys(law for stage in stages for law in stage.laws))
    made, graph = engine([isolate(law) for law in laws]), Graph()

    def run(program: str) -> Any:
        return made.run_program(*made.parse_program(program))

    def explore(stage: Rewrite) -> None:
        for _ in range(ROUNDS):
            run(f"(run-schedule (saturate (run facts)) (saturate (run {MARK})))")
            changed = [run(f"(run by_{law.name} 1)")[0].report.updated for law in stage.laws]
            rows = sum(count for name, count in run("(print-size)")[0].sizes if name.startswith("K_"))
            if rows > BUDGET:
                raise InputError(f"{stage.name}: more than {BUDGET} programs after a few rounds: leave one law of the "
                                 "stage out")
            if not any(changed):
                break

    run(template.text)
    for stage in stages: explore(stage)
    run("(run-schedule (saturate (run facts)))")
    freeze(made, graph)
    keep_imported(graph, template)
    return graph


def apply_stages(part: Part, number: int, stages: Stages) -> Applied:
    """The import of a part behind these stages. Raises InputError for a law that cannot be used."""
    for stage in stages: stage.check_usable()
    graph = reached(part.template, stages)
    forest = Forest(Lowering(graph, part.template, None))   # type: ignore[arg-type]       # nothing is priced here
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
    """The next application that leads to a program not seen before: of the first law that fits, at the innermost place.
    None computes a value of itself, as (xᵀ)ᵀ does x: a program computes every value once."""
    for law in stage.laws:
        for before, after in fitting(deriver, law, tree, stage.kinds.get(law.name, ({},))):
            if before is after: continue
            made = deriver.forest.replace(tree, before, after)
            if made not in seen and not is_nested(made):
                return Application(law.name, law.kind, False, before, after)
    return None


def is_nested(tree: Tree) -> bool:
    """True where some subtree is made of the very value that it computes."""
    below: dict[Tree, frozenset[int]] = {}
    for part in tree.walk():
        below[part] = frozenset(child.cls for child in part.children).union(*(below[child] for child in part.children))
        if part.cls in below[part]: return True
    return False


def fitting(deriver: Deriver, law: Law, tree: Tree, kinds: Kinds) -> Iterator[tuple[Tree, Tree]]:
    """Every place where a law fits a program, and what it makes there. A law of several sides asks for all of them."""
    left, right = law.sides()
    keys = {part.key for part in tree.walk()}
    for part, index, found in matching(law, tree):
        if not any(all(found[name].kind in allowed for name, allowed in choice.items()) for choice in kinds):
            continue
        bound = {name: at.cls if isinstance(at, Tree) else at for name, at in found.items()}
        for full in deriver.guarded(law, iter([bound])):
            others = [at for at in range(len(left)) if at != index]
            if all({deriver.member(left[at], full), deriver.member(right[at], full)} & keys for at in others):
                trees = {name: at for name, at in found.items() if isinstance(at, Tree)}
                with suppress(KeyError):                    # where the graph does not hold what would be made
                    yield part, deriver.over(right[index], full, trees)


def matching(law: Law, tree: Tree) -> Iterator[tuple[Tree, int, Binding]]:
    """Every place where a side of a law fits but for its guards."""
    matches = match_trees()
    for part in tree.walk():
        for index, side in enumerate(law.sides()[0]):
            for binding in matches.find(side, part):
                yield part, index, binding


def refusal(applied: Applied, law: Law) -> str:
    """Why a law applies nowhere in a part: no such operators, or what guards miss, where they miss least."""
    where, left = f"part {applied.number + 1}", ", ".join(map(str, law.sides()[0]))
    found = [(missing(applied.forest.graph, law, bound), part) for part, _, bound in matching(law, applied.tree)]
    if not found:
        return f"{where} has no {left}"
    guards, part = min(found, key=lambda each: len(each[0]))
    path = ".".join(map(str, occurrences(applied.tree, part)[0])) or "top"
    return f"{where} has {left} at {path}, but {' and '.join(guards) or NOTHING_NEW}"


def missing(graph: Graph, law: Law, bound: Binding) -> list[str]:
    """The guards of a law that what was found does not have."""
    found = []
    for fact, *names in (guard.strip("()").split() for guard in law.guards):
        at = [value.cls if isinstance(value := bound.get(name), Tree) else value for name in names]
        rows = [row if isinstance(row, tuple) else (row,) for row in graph.facts.get(fact, ())]
        if not any(all(a is None or a == b for a, b in zip(at, row, strict=True)) for row in rows):
            found.append(f"not {fact}({', '.join(names)})")
    return found
