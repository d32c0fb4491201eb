"""A derivation: the steps from an imported program to the chosen one, each one application of a law. It can be
repeated, checked in numbers at every step, and read."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opmatrix.algebra.term import Operator, substitute
from rewrites.egraph.egraph import ENode, build
from rewrites.egraph.match import Binding, join_matches, name_attribute
from rewrites.egraph.template import sizes_of
from rewrites.explain.derivations.trees import OPEN, READ, STORED, Forest, Path, Tree, match_trees
from rewrites.laws.law import APPROXIMATE, Law, list_summands
from rewrites.verify.failure import VerificationError
from rewrites.verify.graphs import TOLERANCE, batch, compare_values, stack, width
from rewrites.verify.numbers import Drawn

MAX_EXACT_SIZE = 16  # largest size at which numbers are read as they are


# by class and layout of a weight: its storage in words, and the error that causes on calibration and held-out rows
Otherwise = dict[tuple[int, str], tuple[str, float, float | None]]


@dataclass(frozen=True)
class Application:
    """One application of a law, from left to right or backwards: `before` becomes `after` at these places, or wherever
    it occurs. An approximation states its error: the relative change of the model's output that it alone causes, on
    calibration rows and on held-out rows."""

    law: str
    kind: str
    backwards: bool
    before: Tree
    after: Tree
    places: tuple[Path, ...] = ()
    error: float = 0.0
    held_out: float | None = None

    def apply(self, forest: Forest, tree: Tree) -> Tree:
        """Return the program after the step. Raises ValueError if its left side is not in the program."""
        if not self.places:
            if (then := forest.replace(tree, self.before, self.after)) is tree:
                raise ValueError(f"{self.law}: its left side is not in the program")
            return then
        for path in self.places:
            if tree.at(path) is not self.before:
                raise ValueError(f"{self.law}: its left side is not at {path}")
            tree = forest.put(tree, path, self.after)
        return tree


@dataclass(frozen=True)
class Derivation:
    """The chain of one part of a model."""

    forest: Forest
    start: Tree
    steps: tuple[Application, ...]

    def programs(self) -> Iterator[Tree]:
        """Yield the import, and the program after each step, by applying one after another."""
        tree = self.start
        yield tree
        for step in self.steps:
            tree = step.apply(self.forest, tree)
            yield tree

    @property
    def end(self) -> Tree:
        """The program that the steps lead to."""
        *_, last = self.programs()
        return last

    def approximated(self, methods: Otherwise) -> "Derivation":
        """Return the derivation with one more step for each weight that is stored by another method."""
        steps = []
        for tree in self.end.walk():
            if tree.kind == STORED and (changed := methods.get((tree.cls, tree.attributes[1]))) is not None:
                words, error, held_out = changed
                after = self.forest.tree(STORED, tree.children, (words, tree.attributes[1]), tree.cls)
                steps.append(Application(words, APPROXIMATE, False, tree, after, (), error, held_out))
        return replace(self, steps=(*self.steps, *steps))

    def check(self, laws: Sequence[Law] = (), seed: int = 0, tolerance: float = TOLERANCE) -> float:
        """Return the largest relative difference of the two sides of a step, and of any program from the import, in
        float64 on random numbers at shrunken sizes. Raises VerificationError, which names the step, if one is larger
        or is no instance of its law."""
        read, worst = TreeValues.of(self.forest, seed), 0.0
        declared = {law.name: law for law in laws}
        for number, (step, program) in enumerate(zip(self.steps, list(self.programs())[1:], strict=True), 1):
            if step.law in declared and instance(declared[step.law], step) is None:
                raise VerificationError(2, f"step {number}, {step.law}", "it is not an instance of its law")
            off = max(read.apart(step.before, step.after), read.apart(program, self.start))
            if not off <= tolerance:
                raise VerificationError(2, f"step {number}, {step.law}", "its sides differ", difference=off, seed=seed)
            worst = max(worst, off)
        return worst

    def laws(self) -> dict[str, int]:
        """Return the number of applications of each law, in the order of the steps."""
        names = [step.law for step in self.steps]
        return {name: names.count(name) for name in names}


def instance(law: Law, step: Application) -> Binding | None:
    """Return the values of a law's variables in a step, derived from the text of both alone; None if the sides of the
    step are not those of the law over the same trees."""
    matches = match_trees()
    for pair in zip(*law.sides(), strict=True):
        before, after = reversed(pair) if step.backwards else pair
        for binding in join_matches(matches.find(before, step.before), matches.find(after, step.after)):
            if all(binding[str(total)] == name_attribute(total, binding) for total in summed_attributes(after, before)):
                return binding
    return None


def summed_attributes(*sides: Operator) -> Iterator[Hashable]:
    """Yield the attributes on sides of a law that are sums of its variables."""
    for node in (node for side in sides for node in side.walk()):
        yield from filter(list_summands, node.attributes)


@dataclass
class TreeValues:
    """Trees of a forest as operators over random numbers at shrunken sizes."""

    forest: Forest
    values: dict[str, object]
    numbers: Drawn
    terms: dict[Tree, Operator]

    @classmethod
    def of(cls, forest: Forest, seed: int = 0) -> "TreeValues":
        """Draw numbers for a forest, at small sizes if the model's are large."""
        rng = np.random.default_rng(seed)
        small = template = forest.lowering.template
        if max((size for value in template.values.values() for size in sizes_of(value)), default=0) > MAX_EXACT_SIZE:
            values = template.shrunken(lambda shape: rng.normal(size=shape))
            small = replace(template, values=values)
        return cls(forest, small.values, Drawn(width(small), batch(small, rng), rng), {})

    def apart(self, a: Tree, b: Tree) -> float:
        """Return the distance of two trees of a class."""
        facts = self.forest.graph.facts
        return compare_values(
            self.term(a), self.term(b), a.cls in facts["act"] or a.cls in facts["constant"], self.numbers
        )

    def term(self, tree: Tree) -> Operator:
        """Return the operator that a tree denotes. A stack of one matrix for each head is one weight, which takes
        several heads."""
        for part in tree.walk():
            if part not in self.terms:
                self.terms[part] = self.made(part)
        return self.terms[tree]

    def made(self, tree: Tree) -> Operator:
        """Build the operator of a tree: a node of the algebra, a kernel's meaning, or a term that is interpreted."""
        parts = [self.terms[child] for child in tree.children]
        if tree.kind == STORED:
            return parts[0]
        if tree.kind == READ:
            whole, *inside = map(self.term, self.forest.read[tree.cls])
            return substitute(whole, dict(zip(inside, parts, strict=True)))
        if (kernel := self.forest.kernels.get(tree.kind)) is not None:
            operands, others = iter(parts), iter(tree.attributes)
            return kernel.over(
                {
                    name: self.values[next(others)] if sort.name in OPEN else next(operands)
                    for name, sort in kernel.variables.items()
                }
            )
        places = dict(enumerate(parts))
        term = build(ENode(tree.kind, tuple(places), tree.attributes, tree.cls, False), places, self.values)
        return stack(self.forest.graph, tree.cls, term, self.numbers)
