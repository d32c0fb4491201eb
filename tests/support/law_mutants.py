"""Mutants: laws with one thing wrong, made from the declaration itself by rewriting the two sides as terms (DeMillo,
Lipton and Sayward 1978). What the checks of a law are worth is how many of its mutants they name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sympy import Symbol, sympify

from opmatrix.algebra import monoids
from opmatrix.algebra.operators import const, heads, join, turn
from opmatrix.algebra.positions import patterns
from opmatrix.algebra.shapes import N
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.kinds import adjoint, left, right
from rewrites.laws.law import (
    Law,
    Name,
    Sides,
    Sort,
    attribute_over,
    h,
    is_variable,
    k,
    list_summands,
    list_ways,
    n,
    p,
    q,
    stand_in,
)
from rewrites.proofs.refute import instance

Place = tuple[Operator, Operator]
Made = tuple[str, str, Law, Place | None]  # kind of mutant, change in words, the law, the place
Change = tuple[str, str, Callable[[], Operator]]  # kind of mutant, what is changed in words, the term instead
SQUARES = ({k: n, p: n, q: n}, {n: h * q, k: h * q, p: h * q}, {n: h * p, k: h * p, q: p}, {p: q})
LACKING = {
    "storable": "operator",
    "row_linear": "operator",
    "constant": "varying",
    "uniform": "placed",
    "level": "scores",
    "column": "value",
    "row_wise": "mixing",
    "by_key": "value",
}  # a fact, and what has it not
ATTRIBUTES = "over", "where", "relation"
FREE = {"value": "constant", "column": "scalar"}  # what does not depend on the input


@dataclass(frozen=True)
class Mutant:
    """A law or an implementation with one thing changed: `kind` of change, and `change` in words."""

    original: Any
    law: Any
    kind: str
    change: str
    place: Place | None = None  # the node that was changed, and what stands there now

    def __str__(self) -> str:
        return f"{self.original.name}: {self.change}"


def mutants(laws: Sequence[Law]) -> Iterator[Mutant]:
    """Every mutant of every law, each statement once. What fits at no sizes, or is no rule, is none."""
    for law in laws:
        known = {(law.sides(), law.guards)}
        for kind, change, made, place in (*unguarded(law), *rewritten(law)):
            if (key := (made.sides(), made.guards)) not in known:
                known.add(key)
                yield Mutant(law, made, kind, change, place)


# ---- statements as terms


def make_law(law: Law, sorts: dict[str, Sort], sides: Sides, **more: Any) -> Law:
    """A law of these two sides, over variables of these sorts."""
    counts = {name: str(stand_in(name, sort)) for name, sort in sorts.items() if sort.name == "count"}

    def body(**variables: Any) -> Sides:
        by = variables | {symbol: variables[name] for name, symbol in counts.items()}
        first, second = (tuple(instance(term, keyed(term, by)) for term in side) for side in sides)
        return first, second

    body.__name__, body.__annotations__, body.__doc__ = law.name, sorts, law.doc
    return replace(law, body=body, without=(), canonical=False, **more)


def keyed(term: Operator, by: dict[str, Any]) -> dict[Any, Any]:
    """What stands for the variables of a term, by their names, by what they are there."""
    leaves = {node: node.args[0] for node in term.walk() if node.kind.name == "symbol"}
    leaves |= {
        each: str(each) for node in term.walk() for each in node.attributes if node not in leaves and is_variable(each)
    }
    sums = {each for node in term.walk() for each in node.attributes if node not in leaves and list_summands(each)}
    return {leaf: by[name] for leaf, name in leaves.items() if name in by} | {
        each: attribute_over(each, by) for each in sums if by.keys() >= {*list_summands(each)}
    }


def resized(sorts: dict[str, Sort], sizes: dict[Any, Any]) -> dict[str, Sort]:
    """The same sorts at other sizes."""
    return {
        name: sort
        if sort.name in ATTRIBUTES
        else replace(sort, sizes=tuple(sympify(s).subs(sizes, simultaneous=True) for s in sort.sizes))
        for name, sort in sorts.items()
    }


def fits(law: Law) -> bool:
    """Whether it is a rule: the sides are of one shape, and each says nothing of what the other does not."""
    before, after = law.sides()
    if any(not same_shape(a, b) or len({role(a), role(b)} - {EITHER}) > 1 for a, b in zip(before, after, strict=True)):
        return False
    own, new = ({leaf for side in sides for leaf in variables(side)} for sides in (before, after))
    return new <= own and (not law.both or own == new)


VALUE, FOLLOWS, EITHER = "value", "operator", "either"


def same_shape(a: Operator, b: Operator) -> bool:
    """One shape, where heads that nobody knows may be any."""
    return bool(a.out.cols == b.out.cols and a.out.rows == b.out.rows)


def role(term: Operator) -> str:
    """Whether a term is what an input gives, what may follow it, or a constant, which is either. Raises TypeError where
    one stands in the place of the other."""
    parts, wanted = [role(child) for child in term.children], tuple[str, ...]()
    match term.kind.name:
        case "symbol":
            return EITHER if term.constant else VALUE if term.into.cols is N and not term.entrywise else FOLLOWS
        case "const" | "blank" | "given" | "related":
            return EITHER
        case "compose":
            own, wanted = parts[0], (parts[0], FOLLOWS)
        case "product" | "turn":
            own, wanted = VALUE, (VALUE, VALUE)
        case "left" | "right" | "behind":
            own, wanted = VALUE, (VALUE, FOLLOWS, FOLLOWS)
        case _:
            own = next((each for each in parts if each != EITHER), EITHER if parts else FOLLOWS)
            wanted = (own, own)
    if any(each not in (want, EITHER) for want, each in zip(wanted, parts, strict=False)):
        raise TypeError(f"{term}: a value stands for an operator, or an operator for a value")
    return own


def variables(term: Operator) -> set[str]:
    """What a term is written over."""
    names = {str(node.args[0]) for node in term.walk() if node.kind.name == "symbol"}
    return names | {str(a) for node in term.walk() for a in node.attributes if isinstance(a, Name | Symbol)}


# ---- guards


def unguarded(law: Law) -> Iterator[Made]:
    """Each fact of each variable dropped, each flag, each condition."""
    sorts = law.variables
    for name, sort in sorts.items():
        flags = sort.sizes if sort.name in ATTRIBUTES else ()
        for fact in (*sort.facts, *flags):
            for wide in drop_fact(sort, fact):
                if made := restate(law, sorts | {name: wide}):
                    yield "linear" if fact == "storable" else "guard", f"{name} need not be {fact}", made, None
                    break
    for condition in law.when:
        made = replace(law, when=tuple(each for each in law.when if each != condition), without=())
        yield "guard", f"without {condition}", made, None


def drop_fact(sort: Sort, fact: str) -> Iterator[Sort]:
    """Sorts that lack this fact alone: what is drawn for them lacks it too."""
    facts = tuple(each for each in sort.facts if each != fact)
    if sort.name in ATTRIBUTES:
        yield Sort(sort.name, (), tuple(flag for flag in sort.sizes if flag != fact))
    elif fact == "column":
        yield from (Sort("constant" if "constant" in facts else "value", facts, (size,)) for size in (n, p, q))
    elif fact == "maps_zero_to_zero":
        yield Sort("constant", facts, sort.sizes[-1:])
    elif fact == "act":
        yield Sort(FREE.get(sort.name, sort.name), facts, sort.sizes)
    else:
        lacking = Sort(LACKING.get(fact, sort.name), facts, sort.sizes or (1,))
        yield lacking if list_ways(lacking) else replace(lacking, facts=())  # nothing has all the others


def restate(law: Law, sorts: dict[str, Sort]) -> Law | None:
    """The law's own text over other sorts, at the first sizes where it fits."""
    for sizes in ({}, *SQUARES):
        try:
            own = resized(sorts, sizes)
            sides = law.of({name: stand_in(name, sort) for name, sort in own.items()})
            if fits(made := make_law(law, own, sides)):
                return made
        except (TypeError, ValueError):
            continue
    return None


# ---- sides


def rewritten(law: Law, of: tuple[int, ...] = (0, 1)) -> Iterator[Made]:
    """Each change at each place of each side, at the first sizes where it fits."""
    done = set()
    for sizes in ({}, *SQUARES):
        sorts = resized(law.variables, sizes)
        symbols = {name: stand_in(name, sort) for name, sort in sorts.items()}
        try:
            sides = law.of(symbols)
        except TypeError:
            continue
        for number, at, node in ((i, j, node) for i in of for j, term in enumerate(sides[i]) for node in term.walk()):
            for kind, words, make in changes(node, sorts, symbols):
                said = f"{words} on the {('left', 'right')[number]}{at or ''}"
                if said not in done and (found := changed(law, sorts, sides, number, at, node, make)):
                    done.add(said)
                    yield kind, said, *found


def changed(
    law: Law, sorts: dict[str, Sort], sides: Sides, number: int, at: int, node: Operator, make: Callable[[], Operator]
) -> tuple[Law, Place] | None:
    """The law with another term at a node, wherever that node is in this term; none where it does not fit."""
    try:
        own, other = [list(side) for side in sides], make()
        own[number][at] = instance(own[number][at], {}, {node: other})
        made = make_law(law, sorts, (tuple(own[0]), tuple(own[1])))
        return (made, (node, other)) if fits(made) else None
    except (TypeError, ValueError):
        return None


def changes(node: Operator, sorts: dict[str, Sort], symbols: dict[str, Any]) -> Iterator[Change]:
    """What may be wrong at one node: the kind of mutant, what is changed in words, and the term instead."""
    kind, children = node.kind, node.children
    if len(children) == 2:
        a, b = children
        yield (
            ("order" if kind.name == "compose" else "operand"),
            f"({node}) has its parts exchanged",
            lambda: again(node, b, a),
        )
        if kind.name in ("compose", "add", "mul"):
            yield "term", f"({node}) is its first part", lambda: a
            yield "term", f"({node}) is its second part", lambda: b
        if kind.name == "compose" and a.kind is kind:
            yield "order", f"({node}) has its last two factors exchanged", lambda: a.children[0] @ b @ a.children[1]
    yield from exchanged(node)
    if kind.name in ("I", "heads", "join", "total"):
        return
    yield "sign", f"({node}) is negated", lambda: node * const(-1.0)
    yield "scale", f"({node}) is doubled", lambda: node + node
    if kind.name == "symbol":
        own = sorts[str(node.args[0])]
        yield from (
            ("index", f"({node}) is ({name})", lambda other=symbols[name]: other)
            for name, sort in sorts.items()
            if (sort.name, sort.sizes) == (own.name, own.sizes) and symbols[name] is not node
        )
        yield "transpose", f"({node}) is turned", lambda: adjoint(node) if node.linear else turn(node)
    else:
        yield "transpose", f"({node}) is turned", lambda: turn(node)


def exchanged(node: Operator) -> Iterator[Change]:
    """Transposes left out, heads split for joined, first columns for last ones, another monoid or pattern."""
    match node.kind.name, node.args:
        case "turn" | "adjoint", (a,):
            yield "transpose", f"({node}) is not turned", lambda: a
        case "heads", (count,):
            yield "transpose", f"({node}) joins", lambda: join(count)
        case "join", (count,):
            yield "transpose", f"({node}) splits", lambda: heads(count)
        case "left" | "right" as side, (y, a):
            yield "index", f"({node}) takes the other columns", lambda: (right if side == "left" else left)(y, a)
        case "product", (a, b, over, where):
            for other in (monoids.sum, monoids.softmax, monoids.max):
                yield "index", f"({node}) is over {other.__name__}", partial(node.kind, a, b, other, where)
            for seen in (patterns.everyone, patterns.sequence, patterns.causal):
                yield "index", f"({node}) is where {seen}", partial(node.kind, a, b, over, seen)


def again(node: Operator, *children: Operator) -> Operator:
    """A node of the same kind over other children."""
    return children[0] @ children[1] if node.kind is KINDS["compose"] else node.kind(*children, *node.attributes)


# ---- implementations: a kernel equals a term


def kernel_mutants(implementations: Sequence[Implementation]) -> Iterator[Mutant]:
    """Every mutant of the term that each kernel is said to compute, and of the guards of its operands."""
    for each in implementations:
        for name, sort in each.variables.items():
            for wide in narrowed(sort):
                fact = next(iter({*sort.facts, *sort.sizes} - {*wide.facts, *wide.sizes}))
                made = replace(each, variables=each.variables | {name: wide})
                yield Mutant(each, made, "linear" if fact == "storable" else "guard", f"{name} need not be {fact}")
        for kind, change, law, place in rewritten(of_kernel(each), (0,)):
            body = partial(term_of, law)
            yield Mutant(each, replace(each, body=body, variables=law.variables), kind, change, place)


def narrowed(sort: Sort) -> Iterator[Sort]:
    """The sort without each of its facts or flags: what an operand is drawn as has it not."""
    for fact in sort.facts:
        yield replace(sort, facts=tuple(each for each in sort.facts if each != fact))
    for flag in sort.sizes if sort.name == "where" else ():
        yield replace(sort, sizes=tuple(each for each in sort.sizes if each != flag))


def of_kernel(implementation: Implementation) -> Law:
    """The term of an implementation, twice: one will be changed."""

    def body(**operands: Any) -> tuple[Operator, Operator]:
        return implementation.over(operands), implementation.over(operands)

    body.__name__, body.__annotations__ = implementation.name, implementation.variables
    return Law(body, both=True)


def term_of(law: Law, **operands: Any) -> Operator:
    """The changed term."""
    return law.of(operands)[0][0]
