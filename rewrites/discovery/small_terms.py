"""Terms over variables of the sorts that laws are written in, by their number of operators. A value depends on the
input; an operator may follow a value, as A does in x @ A. A constant is either."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product as pairs

from formats.core.errors import InputError, suggest_name
from opmatrix.algebra import monoids, operators
from opmatrix.algebra.operators import I, given, pick
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.shapes import N
from opmatrix.algebra.term import KINDS, PROPERTIES, Operator
from rewrites.laws.law import (
    Name,
    Sort,
    any_relation,
    array,
    column,
    constant,
    is_variable,
    k,
    level,
    matrix,
    n,
    normalised,
    operator,
    over,
    p,
    q,
    reflexive,
    relation,
    right_linear,
    rotation,
    scores,
    shift_invariant,
    stand_in,
    value,
    where,
)

VALUE, FOLLOWS = "value", "follows"
OPEN_ATTRIBUTES = {
    "M": over,
    "L": over[right_linear],
    "S": over[shift_invariant],
    "N": over[normalised],
    "P": where,
    "Q": where[reflexive],
    "E": any_relation,
    "F": relation,
}  # the most general first
LETTERS = {
    "a": array[k, n],
    "b": array[k, n],
    "e": array[n, p],
    "f": array[n, p],
    "g": array[p, q],
    "x": value[n],
    "y": value[n],
    "z": value[n],
    "w": value[p],
    "c": constant[n],
    "d": constant[n],
    "r": column,
    "A": operator[n, p],
    "B": operator[n, p],
    "C": operator[p, q],
    "U": matrix[n, p],
    "V": matrix[n, p],
    "W": matrix[p, q],
    "R": rotation[n, n],
    "s": scores[1],
    "t": level[1],
}  # variables of the same sort are interchangeable
WANTS = {
    "operator": {"compose"},
    "matrix": {"compose"},
    "rotation": {"compose"},
    "scores": {"product"},
    "level": {"product"},
    "array": {"product", "turn"},
    "w": {"row"},
}  # a sort, or a variable, is used with one of these kinds
PROBED_BY = {n: "x", p: "w"}  # columns that an operator takes -> the value that it is tried on
OPERAND_ROLES = {
    "add": ((VALUE, VALUE), (FOLLOWS, FOLLOWS)),
    "mul": ((VALUE, VALUE), (FOLLOWS, FOLLOWS)),
    "row": ((VALUE, VALUE), (FOLLOWS, FOLLOWS)),
    "compose": ((VALUE, FOLLOWS), (FOLLOWS, FOLLOWS)),
    "product": ((VALUE, VALUE),),
    "turn": ((VALUE,),),
    "related": ((VALUE,),),
    "pick": (),
}  # roles of the operands; the result has that of the first
RELATED_OVER = "M", "L", "N"  # monoids of products over a relation
OVER = (("M", "P"), ("L", "P"), ("S", "P"), ("N", "Q"))  # monoids and patterns that products are taken over


@dataclass(frozen=True)
class FlaggedName(Name):
    """An attribute variable of which flags are known, as in `M: over[right_linear]`."""

    flags: tuple[str, ...] = ()

    def __getattr__(self, flag: str) -> bool:
        if flag in self.flags:
            return True
        raise AttributeError(flag)


@dataclass(frozen=True)
class SmallTerm:
    """A term, whether it is a value or follows one, and its number of operators."""

    term: Operator
    role: str
    size: int


def sort_of(name: str) -> Sort:
    """Return the sort of a variable or an attribute variable."""
    return LETTERS[name] if name in LETTERS else OPEN_ATTRIBUTES[name]


def state_variable(name: str, sort: Sort) -> object:
    """Return what stands for a variable of a sort in a term: a symbol with all facts of the sort, or, for an attribute,
    its name."""
    symbol = stand_in(name, sort)
    if not isinstance(symbol, Operator):
        return symbol
    called, into, out, known = symbol.args
    facts = {fact for fact in sort.facts if fact in PROPERTIES}
    return Operator(symbol.kind, called, into, out, tuple(sorted({*known, *facts})))


def variable(name: str) -> Operator:
    """Return the symbol of a variable of the pool."""
    symbol = state_variable(name, LETTERS[name])
    assert isinstance(symbol, Operator)
    return symbol


def flagged_name(name: str) -> FlaggedName:
    """Return an attribute variable, with the flags of its sort, and those that follow from them."""
    flags = tuple(map(str, OPEN_ATTRIBUTES[name].sizes))
    return FlaggedName(name, (*flags, right_linear) if normalised in flags else flags)


def list_functions() -> tuple[str, ...]:
    """Return the kinds that follow a value and have neither operands nor attributes, such as relu."""
    alone = [name for name, kind in KINDS.items() if kind.matrix and not kind.signature.parameters]
    return tuple(name for name in alone if getattr(operators, name, None) is KINDS[name]())


def read_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds that a text names with commas. Raises InputError for a kind that is not enumerated, and for one
    that is named twice."""
    known = (*OPERAND_ROLES, *list_functions())
    kinds = tuple(name.strip() for name in text.split(","))
    for kind in kinds:
        if kind not in known:
            raise InputError(
                f"--kinds {kind}: no terms of this kind are enumerated; {suggest_name(kind, known)}"
                f"there are {', '.join(known)}"
            )
        if kinds.count(kind) > 1:
            raise InputError(f"--kinds {kind}: it is named twice")
    return kinds


def list_leaves(kinds: Sequence[str]) -> Iterator[SmallTerm]:
    """Yield the variables that terms of these kinds need, and the named functions."""
    for name, sort in LETTERS.items():
        if any(not WANTS[wanting] & {*kinds} for wanting in (name, sort.name) if wanting in WANTS):
            continue
        follows = WANTS.get(sort.name) == {"compose"}
        yield SmallTerm(variable(name), FOLLOWS if follows else VALUE, 0)
        if sort.name == "constant" and "compose" in kinds:
            yield SmallTerm(variable(name), FOLLOWS, 0)
    if "compose" in kinds:
        yield SmallTerm(I, FOLLOWS, 0)
        yield from (SmallTerm(pick(Name("F")), FOLLOWS, 0) for kind in kinds if kind == "pick")
        yield from (SmallTerm(KINDS[kind](), FOLLOWS, 0) for kind in kinds if kind not in OPERAND_ROLES)


def may_fit(kind: str, role: str, operands: Sequence[Operator]) -> bool:
    """True unless the columns of two operands exclude a node over them. Building it decides; this is faster."""
    if len(operands) < 2:
        return True
    one, other = operands
    if kind == "product":
        return bool(one.out.cols == other.out.rows)
    if kind == "compose":
        same = other.constant or other is I or (one.constant and role == FOLLOWS)  # x @ c is c, and x @ I is x
        return other.into.cols in (N, one.out.cols) and not same
    columns = {one.out.cols, other.out.cols} - {N}
    return kind == "row" or len(columns) < 2 or 1 in columns


def list_attributes(kind: str, operands: Sequence[Operator]) -> list[tuple[object, ...]]:
    """Return the attributes that a kind takes over these operands: none, or monoids with patterns. Only scores, which
    have a column for each row, merge values by any monoid, and they are no product themselves."""
    if kind == "related":
        return [(monoids.sum, everyone), *((flagged_name(monoid), everyone) for monoid in RELATED_OVER)]
    if kind != "product":
        return [()]
    one, other = operands
    scored = one.out.rows == one.out.cols != other.out.cols and one.kind is not KINDS[kind]
    named = [(flagged_name(monoid), flagged_name(pattern)) for monoid, pattern in OVER if scored]
    return [(monoids.sum, everyone), *named]


def variables_of(*terms: Operator) -> list[str]:
    """Return the names of the variables of terms, those of attributes too, in the order in which they occur."""
    names = list[str]()
    for term in terms:
        for node in walk_in_order(term):
            names += (
                [str(node.args[0])] if node.kind.name == "symbol" else map(str, filter(is_variable, node.attributes))
            )
    return list(dict.fromkeys(names))


def walk_in_order(term: Operator) -> Iterator[Operator]:
    """Yield the nodes of a term, operands from the left."""
    for child in term.children:
        yield from walk_in_order(child)
    yield term


INTERCHANGEABLE = {
    name: [other for other in LETTERS if LETTERS[other] == sort] for name, sort in LETTERS.items()
}  # interchangeable


def uses_first(term: Operator) -> bool:
    """True if of each sort a term has the first variables: others are the same term in other letters."""
    names = {*variables_of(term)} & {*LETTERS}
    return all(
        INTERCHANGEABLE[name][number - 1] in names for name in names if (number := INTERCHANGEABLE[name].index(name))
    )


def build_node(kind: str, operands: tuple[Operator, ...], attributes: tuple[object, ...]) -> Operator:
    """Return a node of a kind; `related` is a product over an open relation. Raises TypeError or ValueError where the
    operands do not fit."""
    if kind == "related":
        kind, operands = "product", (given(Name("E")), *operands)
    return Operator(KINDS[kind], *operands, *attributes)


@dataclass
class Bank:
    """Terms of each size over which larger ones are built, by role."""

    kinds: tuple[str, ...]
    sizes: dict[tuple[str, int], list[SmallTerm]] = field(default_factory=dict)
    misfits: int = 0

    def add(self, entry: SmallTerm) -> None:
        """Keep a term as an operand of larger ones."""
        self.sizes.setdefault((entry.role, entry.size), []).append(entry)

    def list_terms(self, size: int) -> Iterator[SmallTerm]:
        """Yield every term of this many operators over the terms of the bank, and count what does not fit."""
        for kind in self.kinds:
            for roles in OPERAND_ROLES.get(kind, ()):
                for operands in self.list_operands(roles, size - 1):
                    if may_fit(kind, roles[0], operands):
                        yield from self.build(kind, roles[0], operands, size)

    def list_operands(self, roles: tuple[str, ...], size: int) -> Iterator[tuple[Operator, ...]]:
        """Yield operands of these roles with this many operators in all."""
        if len(roles) == 1:
            yield from ((entry.term,) for entry in self.sizes.get((roles[0], size), ()))
            return
        for first in range(size + 1):
            left = self.sizes.get((roles[0], first), ())
            right = self.sizes.get((roles[1], size - first), ())
            yield from ((one.term, other.term) for one, other in pairs(left, right))

    def build(self, kind: str, role: str, operands: tuple[Operator, ...], size: int) -> Iterator[SmallTerm]:
        """Yield the terms of a kind over these operands, once for each choice of attributes that fits."""
        for attributes in list_attributes(kind, operands):
            try:
                yield SmallTerm(build_node(kind, operands, attributes), role, size)
            except (TypeError, ValueError):
                self.misfits += 1
