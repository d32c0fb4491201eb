"""Reasons: the steps from one member to another, and the place where a law fires, or the conditions that it misses."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import islice

from rewrites.explain.derivations import wording
from rewrites.explain.derivations.derivation import Derivation
from rewrites.explain.derivations.finding import Underivable
from rewrites.explain.derivations.trees import Tree
from rewrites.explain.exploring.looked_at import LookedAt
from rewrites.laws.law import Law

LACKS = {  # the complaint, by the fact that a value lacks
    "act": "no input reaches it",
    "storable": "it is no matrix of known numbers",
    "column": "it has several columns",
    "constant": "it depends on the input",
    "uniform": "it is not the same in every row",
    "row_wise": "it mixes rows",
    "entrywise": "it is no function of single entries",
    "level": "its columns differ",
    "turning": "it is no matrix for each position",
    **dict.fromkeys(("joinable", "joinable_bias", "joinable_biases"), "no attention or gate reads what both give"),
}
MOST_PLACES = 200  # nearly fitting places that are examined


@dataclass(frozen=True, repr=False)
class Why:
    """A chain of laws from one member to another, or the reason why there is none. It prints its steps; `check()`
    computes both sides of each in float64."""

    said: str
    derivation: Derivation | None
    laws: tuple[Law, ...]

    @property
    def equal(self) -> bool:
        """True if a chain of laws was found."""
        return self.derivation is not None

    @property
    def steps(self) -> tuple[str, ...]:
        """The laws, in the order of the steps."""
        return () if self.derivation is None else tuple(step.law for step in self.derivation.steps)

    def check(self) -> float:
        """Return the largest relative difference that a step makes, on random numbers; 0 if there is no step."""
        return 0.0 if self.derivation is None else self.derivation.check(self.laws)

    def __str__(self) -> str:
        return (
            self.said
            if self.derivation is None
            else (f"{self.said}\n{wording.spell_out(self.derivation, self.laws)}".rstrip())
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        steps = "" if self.derivation is None else wording.html(self.derivation, self.laws)
        return f"<p>{escape(self.said)}</p>{steps}"


def find_why(view: LookedAt, start: Tree, goal: Tree) -> Why:
    """Find the chain from one tree to another, by the laws of this exploration."""
    laws = tuple(view.laws)
    if start.cls != goal.cls:
        return Why(
            f"no law joins them: c{start.cls}, {view.say(start.cls)}, and c{goal.cls}, {view.say(goal.cls)}, "
            "are two classes",
            None,
            laws,
        )
    try:
        steps = tuple(view.deriver.chain(start, goal))
    except Underivable as error:
        return Why(f"both are in c{start.cls}, but no chain of single laws was found: {error}", None, laws)
    count = len(steps)
    return Why(f"{count} step{'s' * (count != 1)} within c{start.cls}", Derivation(view.forest, start, steps), laws)


def tell_law(view: LookedAt, law: Law) -> str:
    """Describe where a law fires in a part, or the place where it misses fewest conditions, as lines."""
    sides = " = ".join(", ".join(map(str, side)) for side in law.sides())
    count = view.lowering.graph.fired.get(law.name, 0)
    head = f"{law.name}: {sides}\n{tell_first(law.doc)}".rstrip()
    if count:
        return f"{head}\nit fires: {count} match{'es' * (count != 1)} in this part, {tell_place(view, law)}"
    nearest = min(islice(near_misses(view, law), MOST_PLACES), key=lambda each: len(each[1]), default=None)
    if nearest is None:
        return f"{head}\nit does not fire: this part has no {', '.join(map(str, law.sides()[0]))}"
    cls, guards = nearest
    return (
        f"{head}\nit does not fire: c{cls}, {view.say(cls)}, has its left side, but "
        f"{' and '.join(guards) or 'it was left out, its phase did not run, or its result is there already'}"
    )


def tell_first(words: str) -> str:
    """Return the first sentence, in one line."""
    return " ".join(words.split(". ")[0].split())


def tell_place(view: LookedAt, law: Law) -> str:
    """Describe the first class where both sides of a law are members."""
    matches, left = view.deriver.matches, law.sides()[0]
    for cls in view.forest.members:
        if any(
            True for side in left for bound in matches.find(side, cls) for _ in view.deriver.guarded(law, iter([bound]))
        ):
            return f"as in c{cls}, {view.say(cls)}"
    return "of what another law replaced"


def near_misses(view: LookedAt, law: Law) -> Iterator[tuple[int, list[str]]]:
    """Yield classes that have a left side of a law, each with the guards that it lacks."""
    facts = view.lowering.graph.facts
    for cls in view.forest.members:
        for side in law.sides()[0]:
            for bound in view.deriver.matches.find(side, cls):
                lacking: dict[str, None] = {}
                for fact, *names in (guard.strip("()").split() for guard in law.guards):
                    rows = [row if isinstance(row, tuple) else (row,) for row in facts.get(fact, ())]
                    wanted = [bound.get(name) for name in names]
                    if not any(all(a is None or a == b for a, b in zip(wanted, row, strict=True)) for row in rows):
                        what = ", ".join(
                            view.say(at, 2) if isinstance(at, int) else str(at or "anything") for at in wanted
                        )
                        why = f" ({LACKS[fact]})" if fact in LACKS else ""
                        lacking[f"{' and '.join(names)}, here {what}, is not {fact.replace('_', ' ')}{why}"] = None
                yield cls, [*lacking]
