r"""A term as Python that evaluates back to the same term, and as LaTeX, written out in full. Notation is a table:
operation -> how closely it binds, a template, and how closely its operands have to bind. An operator with a product of
values in it is written as a formula in x; all others, as x @ A."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Container, Iterator
from functools import reduce
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import sympy

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import GIVEN, Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import Live
from opmatrix.algebra.term import NAMES, Operator, factor
from opmatrix.display.naming import SizeWriter, has_name, is_scalar, label_leaves, literal
from opmatrix.display.naming import vocabulary as vocabulary


class Mark(NamedTuple):
    """Notation of an operation: precedence, template, and the least precedence of its operands, left and right."""

    level: int
    template: str
    left: int = 0
    right: int = 0


Notation = dict[str, Mark]
SUM, TIMES, JUXTAPOSED, RAISED, ATOM = 1, 2, 3, 4, 5  # precedences of LaTeX; Python has no third, no raised one

PYTHON: Notation = dict(
    add=Mark(1, "{} + {}", 1, 2),
    sub=Mark(1, "{} - {}", 1, 2),
    mul=Mark(2, "{} * {}", 2, 3),
    compose=Mark(2, "{} @ {}", 2, 3),
    pair=Mark(2, "{} @ {}", 2, 3),
    neg=Mark(3, "-{}", 4),
    number=Mark(ATOM, "{}"),
    negative=Mark(ATOM, "{}"),
    expression=Mark(0, "{}"),
    turn=Mark(ATOM, "{}.T", ATOM),
    join=Mark(ATOM, "heads({}).T"),
    formula=Mark(ATOM, "formula(lambda x: {})"),
    brackets=Mark(ATOM, "({})"),
    call=Mark(ATOM, "{}({})"),
    product=Mark(ATOM, "product({}, {}{}{})"),
    summed=Mark(ATOM, ", over={}"),
    seen=Mark(ATOM, ", where={}"),
    row=Mark(ATOM, "row({})"),
    comma=Mark(ATOM, ", "),
)
LATEX: Notation = dict(
    add=Mark(SUM, "{} + {}", SUM, TIMES),
    sub=Mark(SUM, "{} - {}", SUM, TIMES),
    mul=Mark(TIMES, r"{} \odot {}", JUXTAPOSED, JUXTAPOSED),
    compose=Mark(JUXTAPOSED, r"{}\,{}", JUXTAPOSED, RAISED),
    pair=Mark(JUXTAPOSED, r"{}\,{}", JUXTAPOSED, RAISED),
    neg=Mark(SUM, "-{}", TIMES),
    number=Mark(ATOM, "{}"),
    negative=Mark(SUM, "{}"),
    expression=Mark(SUM, "{}"),
    turn=Mark(RAISED, r"{}^{{\top}}", ATOM),
    join=Mark(RAISED, r"H_{{{}}}^{{\top}}"),
    formula=Mark(0, r"x \mapsto {}"),
    brackets=Mark(ATOM, r"\left({}\right)"),
    call=Mark(ATOM, r"\mathrm{{{}}}\left({}\right)"),
    product=Mark(TIMES, r"{0} \circledast{2}{3} {1}", JUXTAPOSED, JUXTAPOSED),
    summed=Mark(ATOM, r"_{{\mathrm{{{}}}}}"),
    seen=Mark(ATOM, r"^{{\mathrm{{{}}}}}"),
    row=Mark(ATOM, r"\begin{{bmatrix}}{}\end{{bmatrix}}"),
    comma=Mark(ATOM, " & "),
    heads=Mark(ATOM, "H_{{{}}}"),
    cols=Mark(ATOM, "P_{{{}:{}}}"),
    given=Mark(ATOM, r"\mathrm{{{}}}_{{{}}}"),
    related=Mark(ATOM, r"\mathrm{{{}}}"),
    pick=Mark(ATOM, r"\Pi_{{\mathrm{{{}}}}}"),
    diag=Mark(ATOM, r"\operatorname{{diag}}({})"),
    const=Mark(ATOM, "{}"),
    layernorm=Mark(ATOM, r"\mathrm{{norm}}_{{{}}}"),
)
GREEDY = ("product", "turn")  # kinds that are written of values only
SHOWN = 3  # numbers that a reader sees of a larger array
SPEAKABLE = Operator, Pattern, int, float, str, sympy.Expr, type(None)  # types of a named family's arguments


class Say(Protocol):
    """A writer of a term, in brackets where it binds less than `level`, or as a right operand."""

    def __call__(self, term: Operator, level: int = 0, right: bool = False) -> str: ...


class TermWriter:
    """One term in one notation. `short`: terms with a name are written by their names. `exact`: the text can be read
    back, so a large array is a label; for readers it is its shape and a few numbers."""

    def __init__(self, term: Operator, notation: Notation, short: bool = True, exact: bool = True) -> None:
        self.notation, self.latex, self.short = notation, notation is LATEX, short
        self.exact = exact and not self.latex
        self.named: dict[Operator, tuple[str, *tuple[object, ...]]] = {}
        nodes = [*self.collect(term)]
        self.labels = label_leaves(nodes, {words[0]: words[1:] for words in self.named.values()})
        self.formulaic, self.stops = set[Operator](), dict[Operator, int]()
        for node in nodes:
            first = node.children[:1] if node.kind.name == "compose" else node.children
            through = node.kind.name in ("add", "mul", "compose", "row") and any(c in self.formulaic for c in first)
            if (node.kind.name in GREEDY or through) and node not in self.named:
                self.formulaic.add(node)

    def collect(self, term: Operator) -> Iterator[Operator]:
        """Yield every node that is written, children first, and the arguments of named terms; names are found on the
        way."""
        seen, taken = set[Operator](), dict[tuple[object, ...], Operator]()
        todo = [term]
        while todo:
            for node in todo.pop().walk():
                if node in seen:
                    continue
                seen.add(node)
                if self.short and (words := NAMES.get(node)):
                    name, *args = words
                    called = [factor(a) if isinstance(a, np.ndarray) and a.ndim > 1 else a for a in args]
                    if not self.exact or readable(node, name, called, taken):
                        self.named[node] = name, *called
                        todo += [a for a in called if isinstance(a, Operator)]
                yield node

    def put(self, what: str, level: int, *parts: str) -> str:
        """Fill the template with the parts, in brackets where it binds less than `level`."""
        text = self.notation[what].template.format(*parts)
        return self.notation["brackets"].template.format(text) if self.notation[what].level < level else text

    def operator(self, term: Operator, level: int = 0, right: bool = False) -> str:
        """Write the term as an operator; as a right operand of +, * and @ a number and a monoid are written as they
        are."""
        kind, args = term.kind.name, term.args
        if name := self.named.get(term):
            return self.call(*name)
        if term in self.formulaic:
            return self.put("formula", level, self.formula_body(term))
        match kind:
            case "weight":
                return self.array(kind, args[0], level, telling=len(args[0].shape) > 1)
            case "const" if is_scalar(args[0]):
                return self.constant(args[0][0], level, right)
            case "const":
                return self.array(kind, args[0], level, telling=len(args[0].shape) == 1)
            case "symbol":
                return self.word(self.labels[term])
            case "over" if self.is_monoid_alone(term, right):
                return self.word(self.monoid(args[1]))
            case "compose" | "add" | "mul":
                return self.chain(term, level, self.operator)
            case "row":
                operands = map(self.operator, self.spine(term))
                return self.put("row", level, self.notation["comma"].template.join(operands))
            case "related":
                return self.call(kind if self.latex else "given", *args)
            case "entered":
                return self.entered(args[0])
            case "join":
                return self.put("join", level, self.attribute(args[0]))
        return self.call(kind, *args)

    def array(self, kind: str, data: Data, level: int, telling: bool) -> str:
        """Write a weight or a constant of an array: as a label alone where the axes of the array are `telling` its
        kind, else by the name of the kind."""
        labelled = self.exact or has_name(data)
        if self.latex or (labelled and telling and not literal(data)):
            return self.data(data, level)
        return self.call(kind, data)

    def constant(self, number: float | sympy.Expr, level: int, right: bool) -> str:
        """Write a constant of one number: as the number alone where it is a right operand."""
        return self.number(number, level) if right or self.latex else f"const({self.number(number)})"

    def is_monoid_alone(self, term: Operator, right: bool) -> bool:
        """True if a sum of all rows is written as its monoid."""
        ones, monoid = term.args
        return ones.kind.name == "ones" and (right or self.latex) and not monoid.normalised

    def formula_body(self, term: Operator) -> str:
        """Write the text of a formula behind its x."""
        return self.value(term)

    def entered(self, port: Port) -> str:
        """Write the matrix that a batch gives for an input."""
        if self.latex:
            return rf"{self.word(port.name)}_{{{port.size}}}".replace("×", r"\times")
        heads = "" if port.heads == 1 else f", {port.heads}"
        return f"given({port.name!r}, {port.columns}, {port.space!r}{heads})"

    def value(self, term: Operator, level: int = 0, right: bool = False) -> str:
        """Write the term's value at x."""
        if term.kind.name == "I":
            return "x"
        if self.latex and term.kind.name in FIXED:
            return self.operator(term, level)
        if term not in self.formulaic:
            return self.apply(term, level)
        match term.kind.name, term.args:
            case "turn", (a,):
                return self.put("turn", level, self.value(a, self.notation["turn"].left))
            case "product", (a, b, over, where):
                if over is monoids.sum and where is everyone:
                    return self.pair("pair", level, a, b)
                seen = "" if where is everyone else self.notation["seen"].template.format(self.attribute(where))
                return self.pair(
                    "product", level, a, b, self.notation["summed"].template.format(self.attribute(over)), seen
                )
            case "row", _:
                return self.put("row", level, self.notation["comma"].template.join(map(self.value, self.spine(term))))
        return self.chain(term, level, self.value)

    def pair(self, what: str, level: int, a: Operator, b: Operator, *more: str) -> str:
        """Write a product of two values."""
        form = self.notation[what]
        return self.put(what, level, self.value(a, form.left), self.value(b, form.right), *more)

    def apply(self, term: Operator, level: int) -> str:
        """Write x @ A, for an A without a formula inside."""
        whole = term.kind.name != "compose" or term in self.named or term in self.stops
        factors = [term] if whole else self.spine(term)
        least = self.notation["compose"].right
        return self.fold("compose", ["x", *(self.operator(f, least, right=True) for f in factors)], level)

    def chain(self, term: Operator, level: int, say: Say) -> str:
        """Write a left spine of one kind without brackets; a value goes on through operators."""
        kind, (first, *rest) = term.kind.name, self.spine(term)
        form = self.notation[kind]
        if kind == "compose":
            return self.fold(
                kind, [say(first, form.left), *(self.operator(f, form.right, right=True) for f in rest)], level
            )

        def fixed(f: Operator) -> Say:
            """Choose the writer of a factor: operators that do not depend on x have no value to write."""
            return self.operator if f.kind.name in FIXED else say

        if kind == "mul":
            if minus(term):
                return self.put("neg", level, fixed(term.args[0])(term.args[0], self.notation["neg"].left))
            return self.fold(
                kind, [fixed(first)(first, form.left), *(fixed(f)(f, form.right, right=True) for f in rest)], level
            )
        out: str = fixed(first)(first, form.left)
        for k, f in enumerate(rest):
            subtracted = minus(f) and f not in self.named and f not in self.stops
            f, what = (f.args[0], "sub") if subtracted else (f, "add")
            out = self.put(what, level if k == len(rest) - 1 else 0, out, fixed(f)(f, form.right, right=True))
        return out

    def spine(self, term: Operator) -> list[Operator]:
        """Return the operands of a left spine, which ends at a term with a label."""
        return spine(term, self.stops)

    def fold(self, kind: str, said: list[str], level: int) -> str:
        """Join operands from left to right, with at most one pair of brackets around them."""
        out = reduce(self.notation[kind].template.format, said)
        bracketed = self.notation[kind].level < level and len(said) > 1
        return self.notation["brackets"].template.format(out) if bracketed else out

    def call(self, name: str, *args: object) -> str:
        """Write a kind or a named family by its name, with children and attributes as arguments."""
        words = [self.operator(a) if isinstance(a, Operator) else self.attribute(a) for a in args]
        if self.latex and name not in self.notation:
            words = [
                rf"\mathrm{{{word}}}" if isinstance(a, Pattern | type | str) else word
                for word, a in zip(words, args, strict=True)
            ]
        if words and args[-1] is None:
            words.pop()  # the last argument is the default
        if self.latex and name in self.notation:
            return self.notation[name].template.format(*words)
        if not args:
            return self.word(name)
        return self.notation["call"].template.format(name.replace("_", r"\_") if self.latex else name, ", ".join(words))

    def attribute(self, a: Any) -> str:
        """Write an attribute by its type: relation, array, pattern, monoid, number, size, text or name."""
        if isinstance(a, Relation):
            return escape(a.name) if self.latex else relation_text(a)
        if isinstance(a, Data):
            return self.number(a[0]) if is_scalar(a) else self.data(a)
        if isinstance(a, Pattern):
            return self.pattern(a)
        if hasattr(a, "merge"):
            return escape(a.__name__) if self.latex else self.monoid(a)
        if isinstance(a, float):
            return self.number(a)
        if isinstance(a, sympy.Expr | Live):
            return self.size(sympy.sympify(a))
        if isinstance(a, str) and not self.latex:
            return repr(a)
        name = getattr(a, "__name__", None) or str(a)
        return escape(name) if self.latex else name

    def monoid(self, a: type[Monoid]) -> str:
        """Write a sum by its name at the front door; a custom one by a label."""
        name = str(a.__name__)
        if self.latex or not (self.exact or is_known(a)):
            return name
        if not is_known(a):
            return self.labels[a]
        return name if vocabulary().get(name) is a else f"monoids.{name}"

    def pattern(self, a: Pattern) -> str:
        """Write a pattern by its text; a custom one by a label."""
        if self.latex:
            return with_tables(a, self.data, escape)
        if self.exact and not a.ours:
            return self.labels[a]
        if a.relation is not None and self.exact:
            return f"among(relation({a.relation.name!r}, {a.relation.rows!r}, {a.relation.cols!r}))"
        return with_tables(a, self.data)

    def size(self, n: sympy.Expr, level: int = 0) -> str:
        """Write a size, or a number that is made of sizes."""
        words = {symbol: self.word(self.labels.get(symbol, symbol.name)) for symbol in n.free_symbols}
        value = sympy.latex(n, symbol_names=words) if self.latex else SizeWriter(words).doprint(n)
        alone = not n.is_Add if self.latex else n.is_Symbol or (n.is_Pow and n.exp != -1)
        return self.put("number" if alone else "expression", level, value)

    def number(self, number: float | sympy.Expr, level: int = 0) -> str:
        """Write a number so that Python reads it back, or as LaTeX; a negative one binds like a negation."""
        if isinstance(number, sympy.Expr):
            return self.size(number, level)
        value = repr(number)
        if self.latex:
            value = with_powers(value)
        elif not value[-1].isdigit():
            value = f"float({value!r})"
        plain = not value.startswith("-") and "cdot" not in value
        return self.put("number" if plain else "negative", level, value)

    def data(self, data: Data, level: int = 0) -> str:
        """Write a small array without a name by its numbers, any other by its label, or for a reader by its shape."""
        if self.latex and literal(data):
            lines = [" & ".join(with_powers(f"{u:.4g}") for u in line) for line in np.atleast_2d(data.array)]
            return self.put("row", 0, r" \\ ".join(lines))
        if literal(data):
            return str(data.array.tolist())
        if not (self.exact or self.latex or has_name(data)):
            return summary(data)
        whole = data.base or data
        label = self.word(self.labels[whole]) if self.exact or has_name(data) else self.numbered(whole)
        return self.put("turn", level, label) if data.base else label

    def numbered(self, data: Data) -> str:
        """Write an array without a name: its number among such arrays of this formula, and its shape."""
        nth = [leaf for leaf in self.labels if isinstance(leaf, Data) and not has_name(leaf)].index(data) + 1
        letter, shape = "b" if len(data.shape) == 1 else "W", r" \times ".join(map(self.attribute, data.shape))
        return rf"{letter}_{{{nth}:\,{shape}}}"

    def word(self, name: str) -> str:
        """Write a name of several letters upright in LaTeX; elsewhere as it is."""
        if not self.latex or len(name) == 1:
            return name
        return r"\mathrm{" + escape(name) + "}"


FIXED = ("const", "given", "related", "entered", "by_distance")  # the same at any x, so values may be such


def with_tables(pattern: Pattern, say: Callable[[Data], str], quoted: Callable[[str], str] = str) -> str:
    """Return a pattern's text with its tables in their places; a custom name may hold any characters."""
    first, *rest = pattern.form.split("{}") if pattern.data else [pattern.form]
    return quoted(first) + "".join(say(data) + quoted(words) for data, words in zip(pattern.data, rest, strict=True))


def with_powers(number: str) -> str:
    """Return a number that Python wrote as LaTeX reads it: powers of ten, and the sign of infinity."""
    number = number.replace("inf", r"\infty")
    return re.sub(r"e([+-])0*(\d+)", lambda at: rf" \cdot 10^{{{at[1].strip('+')}{at[2]}}}", number)


def escape(text: str) -> str:
    """Return a text as LaTeX reads it, on one line, with its special characters escaped."""
    return re.sub(r"[&%$#_{}\\^~\n]", lambda at: NAMED_SIGNS.get(at[0], rf"\{at[0]}"), text)


NAMED_SIGNS = {"\\": r"\backslash{}", "^": r"\hat{}", "~": r"\sim{}", "\n": " "}


def readable(term: Operator, name: str, args: list[object], taken: dict[tuple[object, ...], Operator]) -> bool:
    """True if `name(*args)` is read back as this term: by the vocabulary where it has that name, else by `names`."""
    if not name.isidentifier() or keyword.iskeyword(name) or name == "x":
        return False
    if not all(isinstance(a, SPEAKABLE) for a in args):
        return False
    if name not in (known := vocabulary()):
        alike = not any(other == name and bool(more) != bool(args) for other, *more in taken)
        return alike and taken.setdefault((name, *args), term) is term
    if term not in SPOKEN:
        SPOKEN[term] = (known[name](*args) if args else known[name]) is term
    return SPOKEN[term]


SPOKEN: WeakKeyDictionary[Operator, bool] = WeakKeyDictionary()  # true if its name gives the term


def summary(data: Data) -> str:
    """Return an array as a reader sees it: its shape and its first numbers."""
    shape = "×".join(map(str, data.shape))
    if isinstance(data, Promised):
        return shape
    first = ", ".join(f"{u:.3g}" for u in data.array.flat[:SHOWN])
    return f"{shape}: {first}, …" if data.array.size > SHOWN else f"{shape}: {first}"


def relation_text(a: Relation) -> str:
    """Write a relation as Python: by its name alone if every batch has it."""
    return repr(a.name) if a.name in GIVEN else f"relation({a.name!r}, {a.rows!r}, {a.cols!r})"


def minus(term: Operator) -> bool:
    """True for a term times -1."""
    if term.kind.name != "mul" or term.args[1].kind.name != "const":
        return False
    return is_scalar(data := term.args[1].args[0]) and data[0] == -1


def spine(term: Operator, stops: Container[Operator] = ()) -> list[Operator]:
    """Return the operands of a left spine of one kind, in order. A term times -1 is one operand; so is a term that has
    a name, or is among the stops."""
    kind, operands = term.kind, list[Operator]()
    while term.kind is kind and not (operands and is_one(term, stops)):
        operands.append(term.args[1])
        term = term.args[0]
    return [term, *reversed(operands)]


def is_one(term: Operator, stops: Container[Operator]) -> bool:
    """True for a term that is written as one operand of a spine."""
    return term in NAMES or term in stops or minus(term)
