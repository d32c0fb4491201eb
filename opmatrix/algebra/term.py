"""The term: a hash-consed node (kind, children, static attributes). One body per kind; the type of `x` decides the
reading: shapes in, shapes out; numbers in, numbers out. An Operator is a term; a Value is the result of a term at the
unknown x."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import reduce, wraps
from operator import index, matmul
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeAlias, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from opmatrix import body
from opmatrix.algebra.attributes import bind, brief, whole_of
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.relations import as_relation as relation_of
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import monoid_of, refuse_constant_sum
from opmatrix.algebra.positions.lags import Lag, lag_of
from opmatrix.algebra.positions.patterns import Pattern, pattern_of
from opmatrix.algebra.shapes import H, LiveSize, Memo, Needs, R, Shape, ShapeError, Space, T, is_fixed_value, untaken

__all__ = ["Data", "Operator", "ShapeError", "Value", "formula", "named", "operator", "substitute"]

Body: TypeAlias = Callable[..., Any]  # a body of a kind or of a predicate: it reads the arguments
RowFunction: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # from and to heads x rows x columns
BothSides: TypeAlias = Callable[
    [RowFunction, NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]
]
KINDS: dict[str, Kind] = {}  # name -> kind
PROPERTIES: dict[str, Property] = {}  # name -> property
READERS: dict[type, Body] = {  # annotation -> reader of (attribute, kind, name)
    Data: lambda given, *_: Data.of(given),
    type: lambda given, kind, _: monoid_of(given, kind),
    Relation: lambda given, kind, _: relation_of(given, kind),
    Pattern: lambda given, kind, _: pattern_of(given, kind),
    int: lambda given, kind, name: whole_of(given, f"{kind}: {name}"),
    Lag: lambda given, kind, name: lag_of(given, f"{kind}: {name}"),
}


class Property(NamedTuple):
    """A property that an operator may have. `sides(f, x, y)` gives two arrays that are equal where it holds: f gives
    heads x rows x columns at random inputs x and y. It follows from each of `implied`; `measured` tells it from a
    term's sizes."""

    sides: BothSides
    implied: tuple[str, ...] = ()
    measured: Callable[[Operator], bool] | None = None

    @property
    def doc(self) -> str:
        """The meaning of the property in words: the docstring of `sides`."""
        return inspect.getdoc(self.sides) or ""


def holding(*implied: str, measured: Callable[[Operator], bool] | None = None) -> Callable[[BothSides], Property]:
    """Declare a property of operators by its meaning; see Property. It becomes an attribute of all of them."""

    def enter(sides: BothSides) -> Property:
        """Declare the property under the function's name, and make it an attribute of all operators."""
        declared = PROPERTIES[sides.__name__] = Property(sides, implied, measured)
        setattr(Operator, sides.__name__, make_property(sides.__name__))
        return declared

    return enter


class Kind:
    """One node kind. Children are the parameters annotated Operator; the others are static attributes. Its name is that
    of its body, with a number behind it where another kind has that name already, so no kind replaces another.

    `matrix` gives a matrix kind its shape from the columns of x, `dense` its action on an array, and `adjoint` the
    transposed operator for a number of columns. A property is a bool or a predicate of the arguments, named as in
    PROPERTIES; a property that is neither declared nor implied does not hold. `at_x`: the number of its children, from
    the left, that the body reads at x itself; a long chain of kinds that read their first child so is read in a
    loop."""

    def __init__(
        self,
        body: Body,
        matrix: Body | None = None,
        dense: Body | None = None,
        adjoint: Body | None = None,
        at_x: int = 0,
        **properties: bool | Body,
    ) -> None:
        self.name, self.body, self.doc = untaken(body.__name__, KINDS), body, body.__doc__
        self.__name__, self.__doc__ = body.__name__, body.__doc__  # help(relu) is about relu
        self.matrix, self.dense, self.adjoint, self.at_x = matrix, dense, adjoint, at_x
        if unknown := properties.keys() - PROPERTIES:
            raise TypeError(f"{self.name}: {sorted(unknown)} are not among {[*PROPERTIES]}")
        self.properties = {name: p if callable(p) else lambda *args, p=p: p for name, p in properties.items()}
        parameters = list(inspect.signature(body, eval_str=True).parameters.values())[2 if matrix else 1 :]
        self.signature = self.__signature__ = inspect.Signature(parameters)
        self.arity = sum(p.annotation is Operator for p in parameters)
        self.count = len(parameters) if all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) else -1
        self.data = [k for k, p in enumerate(parameters) if p.annotation is Data]
        self.readers = [(k, p.name, READERS[p.annotation]) for k, p in enumerate(parameters) if p.annotation in READERS]
        KINDS[self.name] = self

    @overload
    def __call__(self, first: Value, /, *args: object, **named: object) -> Value: ...
    @overload
    def __call__(self, first: object, second: Value, /, *args: object, **named: object) -> Value: ...
    @overload
    def __call__(self, /, *args: Any, **named: Any) -> Operator: ...
    def __call__(self, /, *args: object, **named: object) -> Operator | Value:
        """Operators in, an operator out; values in, a value out; never mixed."""
        if named or len(args) != self.count:
            args = bind(self.name, self.signature, *args, **named).args
        children, attributes = [lift(c) for c in args[: self.arity]], list(args)
        for k, called, read_attribute in self.readers:
            attributes[k] = read_attribute(attributes[k], self.name, called)
        if not any(isinstance(c, Value) for c in children):
            return Operator(self, *children, *attributes[self.arity :])
        stranger = next((c for c in children if not isinstance(c, Value) and not fixed(c)), None)
        if stranger is not None:
            raise TypeError(
                f"{self}: a Value cannot be combined with the Operator {brief(stranger)}: apply it first, x @ A"
            )
        return Value(
            Operator(self, *(c.term if isinstance(c, Value) else c for c in children), *attributes[self.arity :])
        )

    def __repr__(self) -> str:
        return self.name


def lift(other: Any) -> Any:
    """Return an operand as an operator: numbers and rows of numbers are constant operators; a monoid by itself reduces
    every row. Raises TypeError for a monoid by which every row is reduced to 1."""
    if isinstance(other, (Operator, Value)):
        return other
    if not hasattr(other, "merge"):
        return KINDS["const"](other)
    return refuse_constant_sum(other) if other.normalised else KINDS["over"](KINDS["ones"](), other)


def factor(other: Any) -> Any:
    """Return an operand that follows an @ as an operator: a plain matrix is a weight."""
    return lift(other) if isinstance(other, (Operator, Value, type)) or np.ndim(other) < 2 else KINDS["weight"](other)


def fixed(*terms: object) -> bool:
    """True if no term depends on x; such a term meets values and operators alike."""
    return all(isinstance(t, Operator) and t.constant for t in terms)


def make_property(name: str) -> property:
    """Make a property of operators, found once for each: measured, declared with its kind, or implied by stronger
    ones."""
    declared = PROPERTIES[name]

    def holds(self: Operator) -> bool:
        """True if the operator has the property; remembered in `facts`."""
        if name not in self.facts:
            predicate = self.kind.properties.get(name)
            self.facts[name] = bool(
                (predicate and predicate(*self.args))
                or (declared.measured and declared.measured(self))
                or any(getattr(self, stronger) for stronger in declared.implied)
            )
        return self.facts[name]

    return property(holds, doc=declared.doc)


class Operator:
    """Maps a value to a value with as many rows. `@` composes, from left to right, and `x @ A` with numbers x is A(x);
    `+` and `*` are pointwise."""

    __slots__ = ("__weakref__", "args", "facts", "into", "kind", "out", "shapes")
    __array_ufunc__ = None
    nodes: ClassVar[WeakValueDictionary[tuple[Kind, tuple[object, ...]], Operator]] = WeakValueDictionary()
    kind: Kind
    args: tuple[Any, ...]
    into: Shape
    out: Shape
    facts: dict[str, bool]
    shapes: dict[Shape, Shape]

    def __new__(cls, kind: Kind, *args: object) -> Operator:
        if (node := cls.nodes.get((kind, args))) is None:
            node = super().__new__(cls)
            node.kind, node.args, node.facts, node.shapes = kind, args, {}, {}
            node.into, node.out = infer(node)
            node = cls.nodes.setdefault((kind, args), node)  # the node of another thread that came first
        return node

    @property
    def children(self) -> tuple[Operator, ...]:
        """The operators among the arguments, as many as the arity of the kind."""
        return self.args[: self.kind.arity]

    @property
    def attributes(self) -> tuple[Any, ...]:
        """The arguments behind the operators: arrays, numbers, patterns, monoids."""
        return self.args[self.kind.arity :]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # one of PROPERTIES, a bool; for a Child in a body, its term

    @overload
    def __matmul__(self, other: Value) -> Value: ...
    @overload
    def __matmul__(self, other: Any) -> Operator: ...
    def __matmul__(self, other: Any) -> Operator | Value:
        if isinstance(other := factor(other), Value) and self.constant:
            return KINDS["product"](self, other)
        if isinstance(other, Value):
            raise TypeError(f"{brief(self)} @ a Value: only an operator can follow an operator")
        if not isinstance(self.out.rows, Space) and not (other.row_wise and other.uniform):
            raise ShapeError(
                f"({brief(self)}) @ {brief(other)}: the left returns {self.out}, whose rows are not tokens: "
                "only row-wise operators that do not read positions may follow; or use it as the right operand of a "
                "product"
            )
        return other if self.kind.name == "I" else self if other.kind.name == "I" else KINDS["compose"](self, other)

    def __rmatmul__(self, x: object) -> Any:
        """Return A at x, which is numbers, a list of them, or a Batch; a row of numbers is one row in and one row
        out."""
        if isinstance(x, type):
            return lift(x) @ self  # a monoid
        if isinstance(x, Data):
            raise TypeError(f"{x} @ ({brief(self)}): to make an operator of data, use weight({x})")
        if not (isinstance(x, list | tuple | np.ndarray) and np.ndim(x) == 1):
            return self(x)
        if self.out.rows is not T:
            raise ShapeError(f"({brief(self)}) at one row: it gives {self.out}: give a matrix")
        return self([x])[..., 0, :]

    @overload
    def __add__(self, other: Value) -> Value: ...
    @overload
    def __add__(self, other: Any) -> Operator: ...
    def __add__(self, other: object) -> Operator | Value:
        return KINDS["add"](self, other)

    @overload
    def __mul__(self, other: Value) -> Value: ...
    @overload
    def __mul__(self, other: Any) -> Operator: ...
    def __mul__(self, other: object) -> Operator | Value:
        return KINDS["mul"](self, other)

    def __neg__(self) -> Operator:
        return self * -1.0

    def __abs__(self) -> Operator:
        return self @ KINDS["magnitude"]()

    def __sub__(self, other: object) -> Any:
        return self + -lift(other)

    def __rsub__(self, other: object) -> Operator | Value:
        return -self + other

    def __truediv__(self, number: float) -> Operator:
        return self * (1 / number)

    def __pow__(self, times: int) -> Operator:
        """Compose the operator `times` times with itself; 0 gives I."""
        if isinstance(times, bool) or not hasattr(times, "__index__"):
            raise TypeError(f"({brief(self)}) ** {brief(times)}: a power is a whole number, 0 or more")
        if times < 0:
            raise ValueError(f"({brief(self)}) ** {times}: a power is 0 or more; an inverse is no operator here")
        return reduce(matmul, [self] * index(times), KINDS["I"]())

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def T(self) -> Operator:
        """The operator of the transposed matrix; of a term that does not depend on x, which is a value, its transposed
        numbers."""
        return KINDS["turn"](self) if self.constant else adjoint(self, self.into.cols)

    def __getitem__(self, at: tuple[int, ...]) -> Callable[[Any], Any]:
        """Return the entry (i, j) of an operator matrix: a function of a number."""
        entry: Callable[[Any], Any] = body("algebra.entries.entry")(self, at)
        return entry

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{brief(self)} is no list: A[i, j] is an entry, A.shape the sizes, A.walk() its nodes")

    def __call__(self, x: object) -> Any:
        """Read the operator at x: a Shape gives a shape, numbers (or a Batch) numbers in float64, the Value of a
        formula a Value."""
        if isinstance(x, Value):
            return x @ self
        if hasattr(x, "act"):
            return read(self, x, {})
        return body("algebra.oracles.dense")(self, x)

    @property
    def shape(self) -> tuple[LiveSize, ...]:
        """(columns of x, columns of the result), behind the heads where there are several: `weight(W).shape` is
        `W.shape`. A symbol stands for a size that may be any number."""
        return (*(() if self.out.heads in (1, H) else (self.out.heads,)), self.into.cols, self.out.cols)

    def shape_of(self, n: LiveSize) -> tuple[LiveSize, ...]:
        """Return rows and columns of the matrix for n columns coming in, after the heads of a stack. Raises TypeError
        for other operators."""
        if self.kind.matrix is None:
            raise TypeError(f"{brief(self)} is no matrix of entries")
        return tuple(self.kind.matrix(n, *self.args))

    def walk(self) -> Iterator[Operator]:
        """Yield every node once, children before parents, from left to right."""
        seen, path = set(), [(self, iter(self.children))]
        while path:
            node, rest = path[-1]
            if (child := next((c for c in rest if c not in seen), None)) is not None:
                path.append((child, iter(child.children)))
                continue
            path.pop()
            if node not in seen:
                seen.add(node)
                yield node

    def __str__(self) -> str:
        return str(body("display.show.text")(self))

    def __repr__(self) -> str:
        return str(body("display.show.text")(self, exact=False))

    def _repr_latex_(self) -> str:
        return f"${body('display.show.latex')(self)}$"

    def _repr_html_(self) -> str:
        return str(body("display.html.html")(self))


def adjoint(term: Operator, n: LiveSize) -> Operator:
    """Return the transposed matrix of a term that n columns go into. Raises TypeError naming the operator that has
    none."""
    turned: Operator | None = term.kind.adjoint and term.kind.adjoint(n, *term.args)
    if turned is None:
        symbolic = next((node for node in term.walk() if node.kind.name == "symbol" and node.linear), None)
        why = (
            f"only the sizes of the symbol {brief(symbolic)} are known: transpose its result, turn({brief(symbolic)})"
            if symbolic is not None
            else "only a linear operator of known sizes has an adjoint"
        )
        raise TypeError(f"({brief(term)}).T: {why}")
    return turned


class Child(Generic[R]):
    """A child as the body of its parent sees it: a function of x that remembers its readings."""

    def __init__(self, term: Operator, memo: Memo[R], at: R | None = None, value: R | None = None) -> None:
        self.term, self.memo, self.at, self.value = term, memo, at, value

    def __call__(self, x: R) -> R:
        return self.value if self.value is not None and self.at is x else read(self.term, x, self.memo)


def read(term: Operator, x: R, memo: Memo[R]) -> R:
    """Read a term at x. This is the one interpreter: the type of x (a shape, an array, entries) decides the meaning; a
    shared term is read once.

    A spine of first children is walked in a loop, so a model may have any number of layers."""
    spine = []
    while (value := memo.get((term, x))) is None:
        spine.append(term)
        if not term.kind.at_x:
            break
        term = term.args[0]
    for term in reversed(spine):
        if term.kind.matrix:
            value = x.act(term)
        else:
            children = [Child(c, memo) for c in term.children]
            if term.kind.at_x:
                children[0] = Child(term.children[0], memo, x, value)
            value = term.kind.body(x, *children, *term.attributes)
        memo[term, x] = value
    assert value is not None
    return value


class Shapes:
    """The known shapes of every term, kept on the node, so a term built on known terms costs one step."""

    @staticmethod
    def get(key: tuple[Operator, Shape]) -> Shape | None:
        """Return the known shape of a term at an input of this shape; None if it was not read yet."""
        return key[0].shapes.get(key[1])

    def __setitem__(self, key: tuple[Operator, Shape], found: Shape) -> None:
        key[0].shapes[key[1]] = found


SHAPES = Shapes()


def infer(term: Operator) -> tuple[Shape, Shape]:
    """Return the most general input and the output that it gives. Unknown sizes are found by running into the sizes
    that they must have."""
    x = unknown = Shape()
    for c in term.children[: term.kind.at_x]:
        x = Shape(*(new if current is free else current for current, new, free in zip(x, c.into, unknown, strict=True)))
    while True:
        try:
            return x, read(term, x, SHAPES)
        except Needs as needs:
            x = Shape(*(needs.sizes.get(size, size) for size in x))


class Value:
    """The result of a term at the unknown x, for writing formulas: `x @ A` applies, `q @ k.T` multiplies values, `.T`
    turns the numbers."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **more: object) -> Any:
        """Arithmetic with arrays and numpy's numbers; a function of numpy's that is an operator is applied."""
        name = {"absolute": "magnitude"}.get(ufunc.__name__, ufunc.__name__)  # np.abs
        if method == "__call__" and not more:
            if len(inputs) == 1 and name in KINDS and KINDS[name]().entrywise:
                return self @ KINDS[name]()
            if len(inputs) == 2 and inputs[1] is self and ufunc.__name__ in REFLECTED:
                return getattr(self, REFLECTED[ufunc.__name__])(inputs[0])
        raise TypeError(
            f"np.{ufunc.__name__} of a Value: it stands for numbers that are not known yet: apply an "
            "operator, such as x @ gelu, or declare one with @scalar_function (opmatrix/algebra/nodes.py)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = {"sum": "x @ ones", "mean": "x @ mean", "max": "x @ maximum"}.get(name, "x @ A")
        raise AttributeError(
            f"a Value has no {name}: it stands for numbers that are not known yet, and operators are "
            f"applied to it: {hint}{' returns that of every row' if hint != 'x @ A' else ''}"
        )

    def __init__(self, term: Operator) -> None:
        self.term = term

    def __repr__(self) -> str:
        return str(body("display.show.value_text")(self.term))

    @property
    def shape(self) -> Shape:
        """The heads, rows and columns of the value."""
        return self.term.out

    @property
    def cols(self) -> LiveSize:
        """The columns of each head of the value."""
        return self.shape.cols

    @property
    def T(self) -> Value:
        """The value with rows and columns exchanged."""
        return self.made("turn")

    def made(self, kind: str, *others: object) -> Value:
        """Make a node of values."""
        return KINDS[kind](self, *others)

    def __matmul__(self, other: object) -> Value:
        value = isinstance(other := factor(other), Value) or is_fixed_value(other, self.cols)
        return self.made("product", other) if value else Value(self.term @ other)

    def __add__(self, other: object) -> Value:
        return self.made("add", other)

    def __mul__(self, other: object) -> Value:
        return self.made("mul", other)

    def __neg__(self) -> Value:
        return self * -1.0

    def __abs__(self) -> Value:
        return Value(abs(self.term))

    def __sub__(self, other: object) -> Value:
        return self.made("add", -lift(other))

    def __rsub__(self, other: object) -> Value:
        return (-self).made("add", lift(other))

    def __truediv__(self, number: float) -> Value:
        return self * (1 / number)

    def __pow__(self, times: object) -> NoReturn:
        raise TypeError(f"a Value ** {times}: multiply it, x * x, or apply an operator, x @ square")

    __radd__ = __add__
    __rmul__ = __mul__


REFLECTED = dict(add="__radd__", subtract="__rsub__", multiply="__rmul__")  # numpy's name: the method on the right


def formula(f: Callable[[Value], Value]) -> Operator:
    """Turn a formula in x into an operator: x is read as I, application as composition, the rest pointwise. Raises
    TypeError where f gives no value."""
    if isinstance(f, Operator) or not callable(f):
        raise TypeError(f"formula: {brief(f)} is no function of x: give one, such as lambda x: x @ relu")
    result = f(Value(KINDS["I"]()))
    if isinstance(result, int | float | np.ndarray) or (isinstance(result, Operator) and result.constant):
        return lift(result)
    if not isinstance(result, Value):
        what = "None (is a `return` missing?)" if result is None else f"{brief(result)}, a {type(result).__name__}"
        raise TypeError(f"formula {getattr(f, '__name__', '')}: it returns {what}: return a value, such as x @ relu")
    return result.term


NAMES: WeakKeyDictionary[Operator, tuple[Any, ...]] = WeakKeyDictionary()  # terms with a shorter name: its words


def named(name: str, term: Operator, *args: object) -> Operator:
    """Let the term be printed as `name`, or as `name(*args)`."""
    NAMES.setdefault(term, (name, *args))
    return term


def operator(f: Callable[..., Value]) -> Callable[..., Operator]:
    """Declare a family of operators: a formula in x with parameters. They print as they were called."""
    signature = inspect.signature(f)

    @wraps(f)
    def family(*args: object, **more: object) -> Operator:
        """Build the operator of the formula at these parameters, named after its call."""
        bound = bind(f.__name__, signature, None, *args, **more)
        return named(f.__name__, formula(lambda x: f(x, *bound.args[1:], **bound.kwargs)), *bound.args[1:])

    return family


def substitute(term: Operator, by: dict[Operator, Operator]) -> Operator:
    """Return the term with every key of `by` replaced by its value (so a law's symbols become operators)."""
    replaced = dict(by)
    for node in term.walk():
        if node not in replaced:
            children = [replaced[c] for c in node.children]
            replaced[node] = (
                node
                if not children
                else children[0] @ children[1]
                if node.kind.name == "compose"
                else node.kind(*children, *node.attributes)
            )
    return replaced[term]
