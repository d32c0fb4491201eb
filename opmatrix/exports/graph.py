"""Graphs of array functions: a padded reading that is run at symbolic arrays, which have no numbers, is recorded.

Symbolic arrays take part in functions and methods of numpy by its protocols for other arrays (NEP 13, NEP 18), so a
meaning that is written for numbers is recorded as it is. Equal nodes are one node. There are three number types, and
the operands of a node have one, but for stored weights of fewer bits; sizes are numbers, or the names of sizes that are
open."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from formats.core.activation import ACTIVATIONS
from opmatrix.algebra.batch.signature import FLOAT, INTEGER
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.declarations.padded import Padded, RowStep, Unpadded

BATCH, LENGTH = "batch", "length"
PAST, TOTAL = "past", "total"  # rows of caches before new ones, and with them
BOOL = "bool"
INT8_NUMBERS, INT4_NUMBERS, UINT8_NUMBERS = (
    "int8",
    "int4",
    "uint8",
)  # number types of stored weights, and of levels of rows
FLOAT16_NUMBERS, BFLOAT16_NUMBERS = "float16", "bfloat16"
OPEN = (BATCH, LENGTH)
FEW_NUMBERS = 64  # numbers of a constant that is known by them
AxisSize = int | str
RecordFunction = Callable[..., Padded]
AxisSizes = tuple[AxisSize, ...]
NAMED_ACTIVATIONS = frozenset({"gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid", "softplus"})


class ArrayNode(NamedTuple):
    """An operation on earlier nodes. An operation without operands is an input or a constant, by its name."""

    operation: str
    operands: tuple[int, ...]
    attributes: tuple[Any, ...]
    shape: AxisSizes
    dtype: str


class RowPass(NamedTuple):
    """A step of rows through states as nodes of its own: the numbers there of its inputs, states before rows, of the
    states behind a row, and of the result."""

    nodes: tuple[ArrayNode, ...]
    inputs: tuple[int, ...]
    states: tuple[int, ...]
    result: int


PASSED, PASSED_PART = "pass_rows", "passed_part"  # operations: a pass, and its last states or results by number


class ArrayGraph:
    """Nodes in order; constants by name."""

    def __init__(self) -> None:
        self.nodes: list[ArrayNode] = []
        self.numbers: dict[ArrayNode, int] = {}
        self.constants: dict[str, Numeric] = {}
        self.names: dict[tuple[object, ...], str] = {}
        self.weights: set[str] = set()  # names of constants that are weights of a program
        self.held: list[Numeric] = []  # arrays whose places in memory are names

    def add(
        self,
        operation: str,
        operands: Sequence["SymbolicArray"],
        attributes: Sequence[object],
        shape: AxisSizes,
        dtype: str,
    ) -> "SymbolicArray":
        """Add a node unless there is an equal one; return its symbol."""
        node = ArrayNode(operation, tuple(x.number for x in operands), tuple(attributes), tuple(shape), dtype)
        if node not in self.numbers:
            self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return SymbolicArray(self, self.numbers[node])

    def enter(self, name: str, shape: AxisSizes = OPEN, dtype: str = INTEGER) -> "SymbolicArray":
        """Add an input, by default of whole numbers, (batch, length)."""
        return self.add("input", (), (name,), shape, dtype)

    def name(self, array: Numeric, name: str = "") -> str:
        """Name a constant array, unless it has a name; return its name. The same array in memory is one constant, and
        so are the same few numbers, but for weights, which have names: weights that are equal may be trained apart."""
        form = array.dtype.str, array.shape, array.strides
        place = *form, array.__array_interface__["data"][0]
        few = not name and place not in self.names and array.size <= FEW_NUMBERS
        key = (*form, array.tobytes()) if few else place
        if key not in self.names:
            taken = not name or name in self.names.values()
            self.names[key] = f"constant{len(self.names)}" if taken else name
            self.held.append(array)
            if name:
                self.weights.add(self.names[key])
        return self.names[key]

    def constant(self, array: Numeric, name: str = "", stored: str = "") -> "SymbolicArray":
        """Add a constant array: in float32, int64 or bool, or whole numbers of a weight in the type that stores
        them."""
        named, dtype = self.name(array, name), stored or dtype_of(array)
        if named not in self.constants:
            self.constants[named] = array if stored else array.astype(dtype, copy=False)
        return self.add("constant", (), (named,), array.shape, dtype)


def dtype_of(array: Numeric) -> str:
    """Return the number type in which a constant is stored."""
    return {"f": FLOAT, "b": BOOL}.get(array.dtype.kind, INTEGER)


class SymbolicArray(NDArrayOperatorsMixin):
    """An array of a graph, by the number of its node."""

    def __init__(self, graph: ArrayGraph, number: int) -> None:
        self.graph, self.number = graph, number

    @property
    def node(self) -> ArrayNode:
        """The operation that gives it."""
        return self.graph.nodes[self.number]

    @property
    def shape(self) -> AxisSizes:
        """The sizes of its axes."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """The count of its axes."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """Its number type."""
        return self.node.dtype

    def __bool__(self) -> bool:
        raise Unpadded("a function of it looks at numbers to choose what it computes, which no graph can record")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise Unpadded("a function of it converts numbers, which no graph can record")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Padded, **options: object) -> "SymbolicArray":
        """Record an elementwise function of numpy, or a product of matrices. Raises Unpadded for another one."""
        record = UFUNCS.get(ufunc.__name__)
        if record is None or method != "__call__" or options:
            raise Unpadded(f"it computes np.{ufunc.__name__}, for which no graph has an operation")
        recorded: SymbolicArray = record(*(as_symbol(self.graph, x) for x in inputs))
        return recorded

    def __array_function__(
        self, function: RecordFunction, types: object, arguments: tuple[Padded, ...], options: dict[str, Padded]
    ) -> Padded:
        """Record another function of numpy. Raises Unpadded for one that graphs do not know."""
        record = NUMPY_FUNCTIONS.get(function.__name__)
        if record is None:
            raise Unpadded(f"it computes np.{function.__name__}, for which no graph has an operation")
        return record(self.graph, *arguments, **options)

    def record(self, name: str, *arguments: object) -> "SymbolicArray":
        """Record an array function of padded readings."""
        recorded: SymbolicArray = RECORDED[name](self, *arguments)
        return recorded

    def record_passed(
        self, step: RowStep, states: Sequence[Padded], rows: Sequence[Padded]
    ) -> tuple[Sequence["SymbolicArray"], "SymbolicArray"]:
        """Record rows that pass through states."""
        return record_pass(self.graph, step, [as_symbol(self.graph, x) for x in states], rows)

    def __getitem__(self, places: object) -> "SymbolicArray":
        return record_index(self, places if isinstance(places, tuple) else (places,))

    def astype(self, dtype: str) -> "SymbolicArray":
        """Return it in a number type."""
        return self if dtype == self.dtype else self.graph.add("cast", [self], [dtype], self.shape, dtype)

    def sum(self, axis: int, keepdims: bool = False) -> "SymbolicArray":
        """Sum an axis."""
        return record_reduction(self.astype(INTEGER) if self.dtype == BOOL else self, "sum", axis, keepdims)

    def mean(self, axis: int, keepdims: bool = False) -> "SymbolicArray":
        """Return the mean of an axis."""
        return record_reduction(self, "mean", axis, keepdims)

    def max(self, axis: int, keepdims: bool = False, initial: float = 0.0) -> "SymbolicArray":
        """Return the largest numbers of an axis, which is never empty."""
        return record_reduction(self, "max", axis, keepdims)

    def min(self, axis: int, keepdims: bool = False) -> "SymbolicArray":
        """Return the smallest numbers of an axis."""
        return record_reduction(self, "min", axis, keepdims)

    def swapaxes(self, one: int, other: int) -> "SymbolicArray":
        """Exchange two axes."""
        order = [*range(self.ndim)]
        order[one], order[other] = order[other], order[one]
        return record_transposition(self, order)


def as_symbol(graph: ArrayGraph, x: Padded) -> SymbolicArray:
    """Return a symbol as it is, and numbers as a constant."""
    return x if isinstance(x, SymbolicArray) else graph.constant(np.asarray(x))


# ---- sizes and number types


def spread_sizes(*shapes: AxisSizes) -> AxisSizes:
    """Return the sizes that shapes spread to. Raises Unpadded for sizes that differ."""
    count = max(map(len, shapes))
    sizes = list[AxisSize]()
    for axis in zip(*((1,) * (count - len(shape)) + shape for shape in shapes), strict=True):
        wide = [size for size in dict.fromkeys(axis) if size != 1]
        if len(wide) > 1:
            raise Unpadded(f"axes of sizes {wide[0]} and {wide[1]} meet")
        sizes.append(wide[0] if wide else 1)
    return tuple(sizes)


def in_one_type(*symbols: SymbolicArray) -> list[SymbolicArray]:
    """Return symbols in the widest of their number types."""
    dtype = next(each for each in (FLOAT, INTEGER, BOOL) if any(x.dtype == each for x in symbols))
    return [number_as(x, dtype) for x in symbols]


def number_as(x: SymbolicArray, dtype: str) -> SymbolicArray:
    """Return a symbol in a number type; a constant of one number is stored in it."""
    if x.dtype == dtype or x.node.operation != "constant" or x.shape:
        return x.astype(dtype)
    return x.graph.constant(x.graph.constants[x.node.attributes[0]].astype(dtype))


def holds_number(x: SymbolicArray, number: float) -> bool:
    """True for a constant that is this one number."""
    return x.node.operation == "constant" and not x.shape and x.graph.constants[x.node.attributes[0]] == number


# ---- elementwise functions and products


def unary(operation: str, dtype: str = FLOAT) -> Callable[[SymbolicArray], SymbolicArray]:
    """Return the record of a function of each number; "" keeps its number type."""

    def record(x: SymbolicArray) -> SymbolicArray:
        """Add the node."""
        x = x.astype(FLOAT) if dtype == FLOAT else x
        return x.graph.add(operation, [x], [], x.shape, dtype or x.dtype)

    return record


def binary(
    operation: str, result: str = "", unit: float | None = None
) -> Callable[[SymbolicArray, SymbolicArray], SymbolicArray]:
    """Return the record of a function of two numbers; `unit` on the right changes nothing."""

    def record(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
        """Add the node."""
        x, y = in_one_type(x, y)
        if unit is not None and holds_number(y, unit):
            return x
        if operation in ("add", "subtract", "multiply") and x.dtype == BOOL:
            x, y = x.astype(INTEGER), y.astype(INTEGER)
        return x.graph.add(operation, [x, y], [], spread_sizes(x.shape, y.shape), result or x.dtype)

    return record


def record_quotient(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Record a quotient, of floating-point numbers."""
    return binary("divide", unit=1.0)(number_as(x, FLOAT), number_as(y, FLOAT))


def record_conjunction(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Record where both are true; a constant that is true changes nothing."""
    for one, other in ((x, y), (y, x)):
        if one.dtype == BOOL and one.node.operation == "constant":
            if one.graph.constants[one.node.attributes[0]].all() and len(one.shape) <= other.ndim:
                return other
    return binary("and")(x, y)


def record_matmul(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Record x @ y."""
    x, y = in_one_type(x, y)
    if x.shape[-1] != y.shape[-2]:
        raise Unpadded(f"a product of {x.shape} and {y.shape}")
    shape = (*spread_sizes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return x.graph.add("matmul", [x, y], [], shape, FLOAT)


def record_logaddexp(x: SymbolicArray, y: SymbolicArray) -> Padded:
    """Record log(e^x + e^y)."""
    largest: Padded = np.maximum(x, y)
    return largest + np.log(1.0 + np.exp(np.negative(np.absolute(x - y))))


def record_shift(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Record a shift of whole numbers, none negative, by a known count of bits: a quotient."""
    bits = y.graph.constants[y.node.attributes[0]]
    return binary("floor_divide")(x, as_symbol(x.graph, 2**bits))


UFUNCS: dict[str, RecordFunction] = {
    **{name: unary(name) for name in ("exp", "log", "sqrt", "tanh", "erf", "rint")},
    **{name: unary(name, "") for name in ("negative", "absolute", "sign")},
    "logical_not": unary("not", BOOL),
    "invert": unary("not", BOOL),
    "isnan": unary("isnan", BOOL),
    "square": lambda x: x * x,
    "expm1": lambda x: np.exp(x) - 1.0,
    "log1p": lambda x: np.log(x + 1.0),
    "reciprocal": lambda x: 1.0 / x,
    "add": binary("add", unit=0.0),
    "subtract": binary("subtract", unit=0.0),
    "multiply": binary("multiply", unit=1.0),
    "divide": record_quotient,
    "power": binary("power"),
    "maximum": binary("maximum"),
    "minimum": binary("minimum"),
    "floor_divide": binary("floor_divide"),
    "remainder": binary("remainder"),
    "right_shift": record_shift,
    **{name: binary(name, BOOL) for name in ("equal", "less", "less_equal", "greater", "greater_equal")},
    "not_equal": lambda x, y: unary("not", BOOL)(binary("equal", BOOL)(x, y)),
    "bitwise_and": record_conjunction,
    "logical_and": record_conjunction,
    "bitwise_or": binary("or"),
    "logical_or": binary("or"),
    "bitwise_xor": binary("xor"),
    "logaddexp": record_logaddexp,
    "matmul": record_matmul,
}


# ---- axes


def record_reduction(x: SymbolicArray, how: str, axis: int, keepdims: bool) -> SymbolicArray:
    """Record a reduction of one axis."""
    axis %= x.ndim
    behind = (1,) if keepdims else ()
    shape = (*x.shape[:axis], *behind, *x.shape[axis + 1 :])
    return x.graph.add(how, [x], [axis, keepdims], shape, x.dtype)


def record_transposition(x: SymbolicArray, order: Sequence[int]) -> SymbolicArray:
    """Record a transposition."""
    order = [axis % x.ndim for axis in order]
    if order == sorted(order):
        return x
    if x.node.operation == "transpose":  # of a transposition
        [before] = x.node.attributes
        return record_transposition(SymbolicArray(x.graph, x.node.operands[0]), [before[axis] for axis in order])
    return x.graph.add("transpose", [x], [tuple(order)], tuple(x.shape[axis] for axis in order), x.dtype)


def record_index(x: SymbolicArray, places: tuple[object, ...]) -> SymbolicArray:
    """Record ranges of axes, and single places of them. Raises Unpadded for other indices."""
    if Ellipsis in places:
        at = places.index(Ellipsis)
        places = (*places[:at], *[slice(None)] * (x.ndim - len(places) + 1), *places[at + 1 :])
    dropped = 0
    for number, place in enumerate(places):
        axis = number - dropped
        if isinstance(place, int):
            shape = (*x.shape[:axis], *x.shape[axis + 1 :])
            x, dropped = x.graph.add("select", [x], [axis, place], shape, x.dtype), dropped + 1
        elif not isinstance(place, slice):
            raise Unpadded(f"it takes the places {place!r:.40} of an array")
        elif place != slice(None):
            x = record_range(x, axis, place)
    return x


def record_range(x: SymbolicArray, axis: int, places: slice) -> SymbolicArray:
    """Record a range of an axis of known size. Raises Unpadded for one of tokens or sequences."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Unpadded(f"it takes a range of {size}")
    start, stop, step = places.indices(size)
    count = len(range(start, stop, step))
    if count == size:
        return x
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    operation, operands, attributes, *_ = x.node
    if operation == "slice" and attributes[0] == axis and attributes[3] == 1:  # a range of a range of the same axis
        x, start, stop = SymbolicArray(x.graph, operands[0]), attributes[1] + start, attributes[1] + stop
    return x.graph.add("slice", [x], [axis, start, stop, step], shape, x.dtype)


def record_new_axis(graph: ArrayGraph, x: SymbolicArray, axis: int) -> SymbolicArray:
    """Record a new axis of size one."""
    axis %= x.ndim + 1
    return graph.add("expand", [x], [axis], (*x.shape[:axis], 1, *x.shape[axis:]), x.dtype)


def record_moved_axis(graph: ArrayGraph, x: SymbolicArray, source: int, target: int) -> SymbolicArray:
    """Record an axis that moves to another place."""
    order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
    order.insert(target % x.ndim, source % x.ndim)
    return record_transposition(x, order)


def record_concatenation(graph: ArrayGraph, parts: Sequence[Padded], axis: int = 0) -> SymbolicArray:
    """Record arrays behind one another along an axis of known sizes, or new rows behind those of a cache."""
    symbols = in_one_type(*(as_symbol(graph, part) for part in parts))
    axis %= symbols[0].ndim
    rest = spread_sizes(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in symbols))
    shape = (*rest[:axis], join_sizes(*(x.shape[axis] for x in symbols)), *rest[axis + 1 :])
    if any(x.shape[:axis] != rest[:axis] for x in symbols):
        raise Unpadded("it joins arrays of different sizes")
    return graph.add("concat", symbols, [axis], shape, symbols[0].dtype)


def join_sizes(*sizes: AxisSize) -> AxisSize:
    """Return the size of axes behind one another. Raises Unpadded for open ones that have no name together."""
    if sizes == (PAST, LENGTH):
        return TOTAL
    if not all(isinstance(size, int) for size in sizes):
        raise Unpadded(f"it joins axes of {' and '.join(map(str, sizes))}")
    return sum(map(int, sizes))


def record_where(graph: ArrayGraph, condition: Padded, x: Padded, y: Padded) -> SymbolicArray:
    """Record x where a condition is true, y elsewhere."""
    condition = as_symbol(graph, condition)
    x, y = in_one_type(as_symbol(graph, x), as_symbol(graph, y))
    shape = spread_sizes(condition.shape, x.shape, y.shape)
    return graph.add("where", [condition, x, y], [], shape, x.dtype)


def record_places(graph: ArrayGraph, x: Padded, at: object, axis: int) -> SymbolicArray:
    """Record the places of an axis that known numbers name."""
    axis %= x.ndim
    at = graph.constant(np.asarray(at, np.int64))
    shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    return graph.add("take", [x, at], [axis], shape, x.dtype)


def record_padding(graph: ArrayGraph, x: SymbolicArray, widths: Sequence[tuple[int, int]]) -> SymbolicArray:
    """Record zeros before and behind the columns."""
    before, behind = widths[-1]
    shape = (*x.shape[:-1], int(x.shape[-1]) + before + behind)
    return graph.add("pad", [x], [before, behind], shape, x.dtype)


def keep_size(graph: ArrayGraph, x: Padded, shape: AxisSizes) -> SymbolicArray:
    """Return an array as it is where it has the sizes. Raises Unpadded for one that would be copied."""
    if tuple(x.shape) == tuple(shape):
        return as_symbol(graph, x)
    raise Unpadded(f"it spreads an array of {x.shape} to {shape}")


def record_stack(graph: ArrayGraph, parts: Sequence[Padded], axis: int) -> SymbolicArray:
    """Record arrays side by side along a new axis."""
    return record_concatenation(graph, [record_new_axis(graph, as_symbol(graph, part), axis) for part in parts], axis)


NUMPY_FUNCTIONS: dict[str, RecordFunction] = {
    "where": record_where,
    "concatenate": record_concatenation,
    "stack": record_stack,
    "expand_dims": record_new_axis,
    "swapaxes": lambda graph, x, one, other: x.swapaxes(one, other),
    "moveaxis": record_moved_axis,
    "take": record_places,
    "pad": record_padding,
    "broadcast_to": keep_size,
    "shape": lambda graph, x: x.shape,
    "cumsum": lambda graph, x, axis: graph.add("cumsum", [x], [axis], x.shape, x.dtype),
    "argmax": lambda graph, x, axis: record_reduction(x, "argmax", axis, False),
    "ones_like": lambda graph, x: x * 0 + 1,
    "zeros_like": lambda graph, x: x * 0,
    "sum": lambda graph, x, axis, keepdims=False: x.sum(axis, keepdims),
    "max": lambda graph, x, axis, keepdims=False: x.max(axis, keepdims),
    "min": lambda graph, x, axis, keepdims=False: x.min(axis, keepdims),
    "mean": lambda graph, x, axis, keepdims=False: x.mean(axis, keepdims),
}


# ---- functions of padded readings


def record_split(x: SymbolicArray, heads: int) -> SymbolicArray:
    """Record `into_heads`."""
    shape = (*x.shape[:-1], heads, int(x.shape[-1]) // heads)
    return x.graph.add("into_heads", [x], shape[-2:], shape, x.dtype)


def record_join(x: SymbolicArray) -> SymbolicArray:
    """Record `out_of_heads`."""
    shape = (*x.shape[:-2], int(x.shape[-2]) * int(x.shape[-1]))
    return x.graph.add("out_of_heads", [x], shape[-1:], shape, x.dtype)


def record_norm(y: SymbolicArray, gain: Padded, shift: Padded, eps: float) -> SymbolicArray:
    """Record `normalise_layer`; a vector that is absent is ones, or zeros."""
    columns = int(y.shape[-1])
    vectors = np.ones(columns, np.float32) if gain is None else gain, shift
    operands = [y, *(as_symbol(y.graph, each) for each in vectors if each is not None)]
    return y.graph.add("normalise_layer", operands, [eps], y.shape, FLOAT)


def record_activation(y: SymbolicArray, name: str) -> Padded:
    """Record an activation by its name if all runtimes know it, else the functions that it is made of."""
    y = y.astype(FLOAT)
    if name in NAMED_ACTIVATIONS:
        return y.graph.add(name, [y], [], y.shape, FLOAT)
    return ACTIVATIONS[name].function(y)


def record_largest(x: Padded, by: SymbolicArray, k: int) -> SymbolicArray:
    """Record `keep_largest`."""
    kept = by.graph.add("among_largest", [by], [k], by.shape, BOOL)
    return record_where(by.graph, kept, x, 0.0)


def record_rows(ids: SymbolicArray, table: Padded) -> SymbolicArray:
    """Record `take_rows`; of a table that is stored in fewer bits, the stored numbers are taken, and widened."""
    table = as_symbol(ids.graph, table)
    if table.node.operation == "cast":
        [number] = table.node.operands
        rows: SymbolicArray = record_rows(ids, SymbolicArray(ids.graph, number)).astype(table.dtype)
        return rows
    if stored := stored_rows(table):
        rows, scale = (
            ids.graph.add("take", [part, ids], [0], (*ids.shape, *part.shape[1:]), part.dtype) for part in stored
        )
        scaled: SymbolicArray = rows.astype(FLOAT) * np.expand_dims(scale, -1)
        return scaled
    return ids.graph.add("take", [table, ids], [0], (*ids.shape, *table.shape[1:]), table.dtype)


def stored_rows(table: SymbolicArray) -> tuple[SymbolicArray, SymbolicArray] | None:
    """Return whole numbers (rows, columns) and scales (rows,) of a table that is the transpose of such a weight; None
    for any other."""
    graph, node = table.graph, table.node
    if node.operation != "transpose" or graph.nodes[node.operands[0]].operation != "dequantise":
        return None
    whole, scale = (SymbolicArray(graph, number) for number in graph.nodes[node.operands[0]].operands)
    if scale.ndim > 1:
        return None
    [name] = whole.node.attributes
    return graph.constant(graph.constants[name].T, f"{name}.rows", whole.dtype), scale


def record_row_of_each(x: SymbolicArray, at: SymbolicArray) -> SymbolicArray:
    """Record `take_places`."""
    return x.graph.add("take_places", [x, at], [], (x.shape[0], *x.shape[2:]), x.dtype)


def record_newest(x: SymbolicArray, new: SymbolicArray) -> SymbolicArray:
    """Record `take_newest`."""
    return x.graph.add("take_newest", [x, new], [], (x.shape[0], new.shape[1]), x.dtype)


def record_columns(x: SymbolicArray, places: SymbolicArray) -> SymbolicArray:
    """Record `take_columns`."""
    at: SymbolicArray = places + np.zeros((1, int(x.shape[1]), 1, 1), np.int64)
    return x.graph.add("take_columns", [x, at], [], (*x.shape[:3], at.shape[3]), x.dtype)


def record_pass(
    graph: ArrayGraph, step: RowStep, states: Sequence[SymbolicArray], rows: Sequence[SymbolicArray]
) -> tuple[Sequence[SymbolicArray], SymbolicArray]:
    """Record `pass_rows`: its step at symbols of one row, in a graph of its own. Raises Unpadded for a step that reads
    arrays beside its rows, or that changes the sizes of a state."""
    inner = ArrayGraph()
    inner.constants, inner.names, inner.held = graph.constants, graph.names, graph.held
    shapes = [x.shape for x in states] + [(x.shape[0], *x.shape[2:]) for x in rows]
    symbols = [
        inner.enter(f"x{n}", shape, x.dtype) for n, (shape, x) in enumerate(zip(shapes, [*states, *rows], strict=True))
    ]
    behind, result = step(symbols[: len(states)], symbols[len(states) :])
    if any(node.operation == "constant" and node.shape for node in inner.nodes):
        raise Unpadded("a step of rows reads an array beside them")
    if [x.shape for x in behind] != [x.shape for x in states]:
        raise Unpadded("a step of rows changes the sizes of a state")
    inputs, last = (tuple(x.number for x in part) for part in (symbols, behind))
    body = RowPass(tuple(inner.nodes), inputs, last, result.number)
    passed = graph.add(PASSED, [*states, *rows], [body], (), FLOAT)
    parts = [(x.shape, x.dtype) for x in states] + [((*rows[0].shape[:2], *result.shape[1:]), result.dtype)]
    results = [graph.add(PASSED_PART, [passed], [n], *part) for n, part in enumerate(parts)]
    return results[:-1], results[-1]


RECORDED: Mapping[str, RecordFunction] = {
    "into_heads": record_split,
    "out_of_heads": record_join,
    "share_rows": lambda x: x.graph.add("softmax", [x], [], x.shape, FLOAT),
    "normalise_layer": record_norm,
    "activate_rows": record_activation,
    "keep_largest": record_largest,
    "take_rows": record_rows,
    "take_places": record_row_of_each,
    "take_columns": record_columns,
    "take_newest": record_newest,
}
