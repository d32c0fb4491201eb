"""Class facts: properties of the value that a class denotes, as egglog rules. Kinds declare them
(opmatrix/algebra/nodes.py, properties.py). Each predicate is tried on operands to find the least facts from which it
follows, and these are a rule. Facts describe a value, so they pass through an approximation from its original, never
from its replacement.

Other facts only direct laws and kernels and make no law true: `act` depends on the input, `given` is a field of the
batch, `turning` acts on rows by their positions, `distant` is a number for each pair by their distance, `imported` is
part of the term that a graph begins with."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from functools import cache
from typing import Any

from opmatrix.algebra.term import KINDS, PROPERTIES, Kind, Operator
from rewrites.laws.guards import SAME_SIZE
from rewrites.laws.law import FITTING, FLAGS, OF_MONOID
from rewrites.laws.spelling import list_lag_sums

Known = frozenset[tuple[str, str]]  # (variable, property or flag)
DIRECTING = "act", "given", "turning", "distant", "imported"
# properties that kernels and markers always need
ALWAYS = "storable", "single", "stacked", "constant", "uniform", "entrywise", "column", "row_linear"


class Asked(Operator):
    """A placeholder for an operand: it has the properties in `known`, and records the others that are read."""

    def __new__(cls, *about: object) -> "Asked":
        return object.__new__(cls)

    def __init__(self, name: str, known: Known, asked: set[tuple[str, str]]) -> None:
        self.name, self.known, self.asked = name, known, asked

    def __getattribute__(self, name: str) -> Any:
        return self.says(name) if name in PROPERTIES else object.__getattribute__(self, name)

    def says(self, name: str) -> bool:
        """True if the property is known of this operand; the request is recorded."""
        self.asked.add((self.name, name))
        return (self.name, name) in self.known


class AskedFlags:
    """A placeholder for an attribute: it has the flags of a monoid in `known`, and records the others that are read.
    All else about an attribute is in the template."""

    def __init__(self, name: str, known: Known, asked: set[tuple[str, str]]) -> None:
        self.name, self.known, self.asked = name, known, asked

    def __getattr__(self, flag: str) -> bool:
        self.asked.add((self.name, name_flag(flag)))
        return (self.name, name_flag(flag)) in self.known

    def __contains__(self, name: str) -> bool:
        return False


def name_flag(flag: str) -> str:
    """Return the name of a flag of an attribute in a graph, which differs from the flag where a property may have its
    name."""
    return flag if flag in (*FLAGS, *FITTING) else flag + OF_MONOID


def variables(kind: Kind) -> list[str]:
    """Return the names of a kind's arguments, by which rules refer to them."""
    return list(kind.signature.parameters)


def premises(kind: Kind, predicate: Callable[..., bool]) -> list[Known]:
    """Return every least set of facts about the arguments of a kind from which a predicate of them follows. More facts
    never make a predicate false, so the facts that it reads lead to all such sets."""
    least_sets, todo = list[Known](), [Known()]
    for known in todo:  # the list grows in the loop, from smaller sets to larger
        if any(least <= known for least in least_sets):
            continue
        asked: set[tuple[str, str]] = set()
        arguments = [
            (Asked if k < kind.arity else AskedFlags)(name, known, asked) for k, name in enumerate(variables(kind))
        ]
        if predicate(*arguments):
            least_sets.append(known)
        else:
            todo += [known | {one} for one in sorted(asked - known) if known | {one} not in todo]
    return least_sets


def derive_facts() -> tuple[tuple[str, Known, str], ...]:
    """Return a node's text, the facts required of its arguments, and the fact that follows: for every kind and
    property."""
    return derived_of(tuple(KINDS.values()), tuple(PROPERTIES))


@cache
def derived_of(kinds: tuple[Kind, ...], properties: tuple[str, ...]) -> tuple[tuple[str, Known, str], ...]:
    """Derive the facts of these kinds: the premises of each property, and a dependence on the input through
    operands."""
    derived = list[tuple[str, Known, str]]()
    for kind in kinds:
        node = f"(K_{' '.join([kind.name, *variables(kind)])})"
        derived += [
            (node, known, name)
            for name in properties
            if name in kind.properties
            for known in premises(kind, kind.properties[name])
        ]
        derived += [(node, Known({(child, "act")}), "act") for child in variables(kind)[: kind.at_x]]
    return tuple(derived)


def flags() -> tuple[str, ...]:
    """Return the flags of attributes that laws and properties require."""
    asked = {flag for _, known, _ in derive_facts() for _, flag in known} - PROPERTIES.keys() - {*DIRECTING}
    return *FLAGS, *FITTING, *sorted({flag.removesuffix(OF_MONOID) for flag in asked} - {*FLAGS})


def rule(premises: list[str], facts: list[str]) -> str:
    """Write an egglog rule of facts."""
    return f"(rule ({' '.join(premises)}) ({' '.join(facts)}) :ruleset facts)"


# Products that are read together, stated on the consumers: queries and keys, then both and values; a gate and its
# factor. A value that is read comes from a product by operators that act on each row and within the columns of a head:
# copies for groups of queries, rotations, a norm and its gain; or it is appended to a cache. Biases are joined with
# their products, so that one kernel adds them. Where the rows of queries were picked early, only keys and values are
# joined. A joined matrix has a fixed number of columns, or its part could not be cut from the product again: -I has
# none.
MARKERS = """
(relation reads (Op Op Op))
(relation gates (Op Op))
(relation comes (Op Op))
(relation gained (Op Op))
(relation bare (Op Op Op))
(relation biased (Op Op Op))
(relation picked_of (Op Op))
(relation sized (Op))
(relation joinable (Op Op))
(relation joinable_bias (Op Op))
(relation joinable_biases (Op Op))
(rule ((= o (K_product s v m w)) (= s (K_product a (K_turn b) "sum" u)) (act s))
      ((reads a b v) (comes a a) (comes b b) (comes v v)) :ruleset mark)
(relation near (Op))
(rule ((distant d)) ((near d)) :ruleset mark)
(rule ((distant d) (= e (K_compose d (K_pick r)))) ((near e)) :ruleset mark)
(rule ((near d) (= t (K_add s d)) (= o (K_product t v m w)) (= s (K_product a (K_turn b) "sum" u)) (act s))
      ((reads a b v) (comes a a) (comes b b) (comes v v)) :ruleset mark)
(rule ((comes y z) (= z (K_compose w (K_repeat g)))) ((comes y w)) :ruleset mark)
(rule ((comes y z) (= z (K_compose w R)) (turning R)) ((comes y w)) :ruleset mark)
(rule ((comes y z) (= z (K_add c (K_product (K_related r) w "sum" u)))) ((comes y w)) :ruleset mark)
(rule ((comes y z)) ((gained y z)) :ruleset mark)
(rule ((gained y z) (= z (K_compose w (K_mul i c))) (constant c) (uniform c)) ((gained y w)) :ruleset mark)
(rule ((gained y z) (= z (K_mul w r)) (column r)) ((comes y w)) :ruleset mark)
(rule ((= e (K_weight a))) ((sized e)) :ruleset mark)
(rule ((= e (K_compose a b)) (sized b)) ((sized e)) :ruleset mark)
(rule ((= e (K_compose a b)) (sized a) (diagonal b)) ((sized e)) :ruleset mark)
(rule ((= e (K_compose a b)) (sized a) (splits b)) ((sized e)) :ruleset mark)
(rule ((= e (K_add a b)) (sized a)) ((sized e)) :ruleset mark)
(rule ((= e (K_add a b)) (sized b)) ((sized e)) :ruleset mark)
(rule ((= e (K_mul a b)) (sized a)) ((sized e)) :ruleset mark)
(rule ((= e (K_mul a b)) (sized b)) ((sized e)) :ruleset mark)
(rule ((= e (K_adjoint a)) (sized a)) ((sized e)) :ruleset mark)
(rule ((= e (K_by_head a h)) (sized a)) ((sized e)) :ruleset mark)
(rule ((= e (K_joined a b)) (sized a) (sized b)) ((sized e)) :ruleset mark)
(rule ((comes y z) (= z (K_compose x A)) (act x) (stacked A) (sized A)) ((bare y x A)) :ruleset mark)
(rule ((comes y z) (= z (K_add w c)) (= w (K_compose x A)) (act x) (stacked A) (sized A) (constant c) (uniform c))
      ((biased y x A)) :ruleset mark)
(rule ((reads a b v) (bare a x A) (bare b x B)) ((joinable A B)) :ruleset mark)
(rule ((reads a b v) (biased a x A) (bare b x B)) ((joinable_bias A B)) :ruleset mark)
(rule ((reads a b v) (biased a x A) (biased b x B)) ((joinable_biases A B)) :ruleset mark)
(rule ((reads a b v) (bare a x A) (bare b x B) (bare v x C)) ((joinable (K_joined A B) C)) :ruleset mark)
(rule ((reads a b v) (biased a x A) (bare b x B) (bare v x C)) ((joinable_bias (K_joined A B) C)) :ruleset mark)
(rule ((reads a b v) (biased a x A) (biased b x B) (bare v x C)) ((joinable_bias (K_joined A B) C)) :ruleset mark)
(rule ((reads a b v) (biased a x A) (biased b x B) (biased v x C)) ((joinable_biases (K_joined A B) C)) :ruleset mark)
(rule ((bare a y A) (= y (K_compose x (K_pick r)))) ((picked_of a x)) :ruleset mark)
(rule ((biased a y A) (= y (K_compose x (K_pick r)))) ((picked_of a x)) :ruleset mark)
(rule ((reads a b v) (picked_of a x) (bare b x B) (bare v x C)) ((joinable B C)) :ruleset mark)
(rule ((reads a b v) (picked_of a x) (biased b x B) (bare v x C)) ((joinable_bias B C)) :ruleset mark)
(rule ((reads a b v) (picked_of a x) (biased b x B) (biased v x C)) ((joinable_biases B C)) :ruleset mark)
(rule ((= o (K_mul (K_compose a f) b)) (entrywise f) (act a) (act b)) ((gates a b)) :ruleset mark)
(rule ((gates a b) (= a (K_compose x A)) (= b (K_compose x B)) (single A) (single B) (sized A) (sized B))
      ((joinable A B)) :ruleset mark)
(rule ((gates a b) (= a (K_add w c)) (= w (K_compose x A)) (= b (K_add z d)) (= z (K_compose x B)) (single A) (single B)
       (sized A) (sized B) (constant c) (uniform c) (constant d) (uniform d)) ((joinable_biases A B)) :ruleset mark)
"""
# Sizes of values, where a law requires equal ones: of imported terms, and of entrywise functions of them.
SIZE_FACTS = ("(function sized_as (Op) String :merge old)", f"(relation {SAME_SIZE} (Op Op))")
SIZE_RULES = (
    "(rule ((= e (K_compose a f)) (entrywise f) (= s (sized_as a))) ((set (sized_as e) s)) :ruleset facts)",
    *(
        f"(rule ((= e (K_{kind} a b)) (= s (sized_as a)) (= s (sized_as b))) ((set (sized_as e) s)) :ruleset facts)"
        for kind in ("add", "mul")
    ),
    f"(rule ((= s (sized_as a)) (= s (sized_as b))) (({SAME_SIZE} a b)) :ruleset facts)",
)
# The sum of two lags, by their names: a law that adds them matches where it is a lag, too.
LAG_SUM = "lag_sum"
LAG_SUMS = tuple(f'(set ({LAG_SUM} "{one}" "{other}") "{both}")' for one, other, both in list_lag_sums())
MARKED = {fact: len(of.split()) for fact, of in re.findall(r"\(relation (\w+) \(([\w ]+)\)\)", MARKERS)}  # operands
MADE = frozenset({"joined"})  # kinds of nodes that markers add
KIND = re.compile(r"\(K_(\w+)")  # a kind in the text of a rule


def relations() -> list[str]:
    """Return the declarations of all facts and flags."""
    return [
        *SIZE_FACTS,
        f"(function {LAG_SUM} (String String) String :merge old)",
        *(f"(relation {fact} (Op))" for fact in (*PROPERTIES, *DIRECTING)),
        *(f"(relation {name_flag(flag)} (String))" for flag in flags()),
    ]


def needed(names: Iterable[str]) -> set[str]:
    """Return these properties, those that markers require, and all from which they follow."""
    asked = re.findall(r"\((\w+) ", MARKERS)
    wanted, todo = set(DIRECTING), [name for name in (*ALWAYS, *asked, *names) if name in PROPERTIES]
    while todo:
        if (name := todo.pop()) not in wanted:
            wanted.add(name)
            todo += PROPERTIES[name].implied
            todo += [one for _, known, what in derive_facts() if what == name for _, one in known if one in PROPERTIES]
    return wanted


def rules(names: Iterable[str] = (), among: Container[str] | None = None) -> tuple[str, ...]:
    """Return the rules of facts and the markers, for every declared kind, or for the kinds in `among`. Covers the
    properties of these names and the properties that are always needed. Facts with equal premises are one rule."""
    names = {*names}

    def matched(text: str) -> bool:
        """True if a rule names only kinds that are among the wanted ones."""
        return among is None or all(kind in among for kind in KIND.findall(text))

    together: dict[tuple[str, Known], list[str]] = defaultdict(list)
    wanted = needed(names)
    for node, known, name in derive_facts():
        if name in wanted and matched(node):
            together[node, known].append(f"({name} e)")
    lines = [
        rule([f"(= e {node})", *(f"({name} {of})" for of, name in sorted(known))], facts)
        for (node, known), facts in together.items()
    ]
    lines += [
        rule([f"({stronger} e)"], [f"({name} e)"])
        for name, declaration in PROPERTIES.items()
        if name in wanted
        for stronger in declaration.implied
    ]
    lines += SIZE_RULES if SAME_SIZE in names else ()
    lines += LAG_SUMS if among is None or "shift" in among else ()
    return *lines, *filter(matched, re.split(r"\n(?=\()", MARKERS.strip()))
