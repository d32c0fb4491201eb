"""The derivation of a whole model: one for each part, layers of equal structure by the same steps."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rewrites.egraph.borders import FULL
from rewrites.explain.derivations import wording
from rewrites.explain.derivations.derivation import Derivation, Otherwise
from rewrites.explain.derivations.finding import derive
from rewrites.extraction import Extraction
from rewrites.laws.law import APPROXIMATE, Law
from rewrites.lowering.lower import KernelCall, Method, Stored, Use
from rewrites.search.approximation import by
from rewrites.search.search import Structure


@dataclass(frozen=True)
class Chain:
    """The parts of a model in order. `like[k]` is the first part whose steps part k repeats with other numbers."""

    parts: tuple[Derivation, ...]
    like: tuple[int, ...]
    states: tuple[tuple[str, str], ...]
    laws: tuple[Law, ...] = field(repr=False)

    @cached_property
    def checked(self) -> float:
        """The largest relative difference that any step of any part makes, in float64. Raises VerificationError."""
        return max(self.parts[number].check(self.laws) for number in sorted(set(self.like)))

    def approximated(self, methods: Mapping[int, Otherwise]) -> "Chain":
        """Return the chain with the steps that store weights by other methods: by part, by class and layout."""
        return replace(
            self, parts=tuple(part.approximated(methods.get(number, {})) for number, part in enumerate(self.parts))
        )

    def title(self, number: int) -> str:
        """Return the heading of a part: its steps, the values at its borders, and the part that it is like."""
        before, after = self.states[number]
        borders = [
            f"{what} the {state} value" for what, state in (("takes", before), ("hands on", after)) if state != FULL
        ]
        first, count = self.like[number], len(self.parts[number].steps)
        return ", ".join(
            [
                f"part {number + 1} of {len(self.parts)}: {count} step{'s' * (count != 1)}",
                *borders,
                *([f"as part {first + 1}"] if first != number else []),
            ]
        )

    def __str__(self) -> str:
        lines = [
            f"{sum(len(part.steps) for part in self.parts)} steps, every one checked in float64 to {self.checked:.0e}"
        ]
        for number, part in enumerate(self.parts):
            lines.append(self.title(number))
            exact = sum(step.kind != APPROXIMATE for step in part.steps)
            if self.like[number] == number or exact < len(part.steps):
                lines.append(wording.spell_out(part, self.laws, 0 if self.like[number] == number else exact))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return HTML that folds in a notebook: parts, and in them steps."""
        return "".join(
            f"<details><summary>{self.title(number)}</summary>{wording.html(part, self.laws)}</details>"
            for number, part in enumerate(self.parts)
        )


def derive_chain(structure: Structure, laws: Sequence[Law], stored: dict[int, Otherwise] | None = None) -> Chain:
    """Return the derivation of an extracted program from the imported model. `stored` replaces the methods of the
    structure: by part, the weights that are stored by other methods, and their errors. Raises Underivable if a part
    has none."""
    derived: list[Derivation] = []
    like: list[int] = []
    known: dict[Hashable, int] = {}
    chosen = zip(structure.lowerings, structure.extractions, structure.parts, structure.path, strict=True)
    for number, (lowering, extraction, part, (_, after)) in enumerate(chosen):
        key = part.template.text, after, frozenset(chosen_as(node.cls, node.label) for node in extraction.nodes)
        first = known.setdefault(key, number)
        like.append(first)
        if first == number:
            derived.append(derive(lowering, extraction, part.roots[after], laws))
        else:  # an equal graph has equal trees: only numbers differ
            same = derived[first]
            derived.append(replace(same, forest=replace(same.forest, lowering=lowering)))
    exact = Chain(tuple(derived), tuple(like), tuple(structure.path), tuple(laws))
    numbered = zip(structure.numbers, structure.extractions, strict=True)
    return exact.approximated(
        {
            place: nearly(extraction) if stored is None else stored.get(number, {})
            for place, (number, extraction) in enumerate(numbered)
        }
    )


def nearly(extraction: Extraction) -> Otherwise:
    """Return the weights that a program does not store as they are."""
    return {
        (node.cls.weight, node.cls.layout): (describe_method(node.label), node.label.error**0.5, None)
        for node in extraction.nodes
        if isinstance(node.cls, Use) and isinstance(node.label, Method) and node.label.error
    }


def describe_method(method: Method) -> str:
    """Return a method in words: a user's approximation by its name."""
    return f"{method.fit} as {method.format}" if by(method) != method.format else str(method)


def chosen_as(cls: Hashable, label: Hashable) -> Hashable:
    """Return a chosen node as a key that does not depend on the methods of approximated weights."""
    if isinstance(cls, Stored):
        return None
    if isinstance(label, Method):
        return cls, None if label.error else label
    return cls, (label.implementation.name, label.bound) if isinstance(label, KernelCall) else label
