"""A program as an ONNX file: operations of opset 21 alone, weights inside it, or beside it if they are large."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.signature import FLOAT, INTEGER
from opmatrix.algebra.data import Numeric
from opmatrix.exports.graph import (
    BFLOAT16_NUMBERS,
    BOOL,
    FLOAT16_NUMBERS,
    INT4_NUMBERS,
    INT8_NUMBERS,
    PASSED,
    PASSED_PART,
    UINT8_NUMBERS,
    ArrayNode,
)
from opmatrix.exports.program_graph import ProgramGraph, live_nodes
from opmatrix.exports.spelled_weights import ZERO_POINT

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 21, 10
MAX_INSIDE = 1 << 30  # bytes of weights that a file holds itself: protobuf allows 2 GB
LARGE_WEIGHT = 1024  # bytes of a weight that is stored beside the file
OUTSIDE = ".data"  # ending of the file of weights
MAPPED_BYTES = 4096  # bytes at whose multiples weights begin there, so that they can be mapped
NO_METADATA: Mapping[str, str] = MappingProxyType({})
ONNX_TYPES = {
    FLOAT: "FLOAT",
    INTEGER: "INT64",
    BOOL: "BOOL",
    INT8_NUMBERS: "INT8",
    INT4_NUMBERS: "INT4",
    UINT8_NUMBERS: "UINT8",
    FLOAT16_NUMBERS: "FLOAT16",
    BFLOAT16_NUMBERS: "BFLOAT16",
}  # number types of a graph, by their names in ONNX
ONNX_OPERATORS = {
    **{name: name.capitalize() for name in ("exp", "log", "sqrt", "tanh", "erf", "sign", "not", "and", "or", "xor")},
    **{name: name.capitalize() for name in ("add", "where", "equal", "less", "greater", "relu", "sigmoid", "softplus")},
    "negative": "Neg",
    "absolute": "Abs",
    "isnan": "IsNaN",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "less_equal": "LessOrEqual",
    "greater_equal": "GreaterOrEqual",
    "matmul": "MatMul",
    "gelu": "Gelu",
    "rint": "Round",
}
ONNX_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
BITWISE = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}


class Writer:
    """The nodes and constants of an ONNX graph while it is written; values are known by their names."""

    def __init__(self, helper: ModuleType, types: Mapping[str, int], prefix: str = "v") -> None:
        self.helper, self.types, self.prefix = helper, types, prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Numeric] = {}
        self.node: ArrayNode | None = None

    def __call__(self, operator: str, *operands: str, **attributes: object) -> str:
        """Add a node of one result; return its name."""
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operator, [*operands], [name], name=f"{operator}_{name}", **attributes))
        return name

    def numbers(self, numbers: object, dtype: type = np.int64) -> str:
        """Add a constant; equal ones are one."""
        array: Numeric = np.asarray(numbers, dtype)
        name = f"k_{array.dtype}_{'_'.join(map(str, array.shape))}_{array.tobytes().hex()}"
        self.constants.setdefault(name, array)
        return name

    def all(self, nodes: Sequence[ArrayNode], numbers: Iterable[int], names: dict[int, str]) -> None:
        """Write nodes by their numbers, and note the names of their results."""
        for number in numbers:
            node = nodes[number]
            if node.operation == "constant":
                names[number] = f"w_{node.attributes[0]}"
            else:
                operands = (names[operand] for operand in node.operands)
                names[number] = WRITERS[node.operation](self, node, *operands)


OnnxOperation = Callable[..., str]  # the writer, the node and the names of its operands, to the name of its result


def write_plain(write: Writer, node: ArrayNode, *operands: str) -> str:
    """Write an operation that ONNX has."""
    operator = ONNX_OPERATORS[node.operation]
    if node.operation in BITWISE and node.dtype != BOOL:
        operator = BITWISE[node.operation]
    return write(operator, *operands)


def write_fold(write: Writer, node: ArrayNode, x: str) -> str:
    """Write a reduction of one axis."""
    axis, keepdims = node.attributes
    return write(ONNX_REDUCTIONS[node.operation], x, write.numbers([axis]), keepdims=int(keepdims))


def write_norm(write: Writer, node: ArrayNode, y: str, gain: str, *shift: str) -> str:
    """Write a layer norm."""
    return write("LayerNormalization", y, gain, *shift, axis=-1, epsilon=node.attributes[0])


def write_silu(write: Writer, node: ArrayNode, x: str) -> str:
    """Write x times its logistic function."""
    return write("Mul", x, write("Sigmoid", x))


def write_cast(write: Writer, node: ArrayNode, x: str) -> str:
    """Write a change of the number type."""
    return write("Cast", x, to=write.types[node.dtype])


def write_places(write: Writer, node: ArrayNode, x: str, at: str) -> str:
    """Write one row of each sequence: a gathering with the batch as its shared axis."""
    return write("GatherND", x, write("Unsqueeze", at, write.numbers([1])), batch_dims=1)


def write_newest(write: Writer, node: ArrayNode, x: str, new: str) -> str:
    """Write the last places of each row, as many as there are new ones."""
    count = write("Shape", new, start=1, end=2)
    return write("Slice", x, write("Neg", count), write.numbers([np.iinfo(np.int64).max]), write.numbers([1]))


def write_slice(write: Writer, node: ArrayNode, x: str) -> str:
    """Write a range of an axis."""
    axis, start, stop, step = node.attributes
    return write("Slice", x, *(write.numbers([number]) for number in (start, stop, axis, step)))


def write_argmax(write: Writer, node: ArrayNode, x: str) -> str:
    """Write the first place of the largest number."""
    axis, keepdims = node.attributes
    return write("ArgMax", x, axis=axis, keepdims=int(keepdims))


def write_split(write: Writer, node: ArrayNode, x: str) -> str:
    """Write the last axis as two: sizes before it are kept, which a 0 says."""
    return write("Reshape", x, write.numbers([*[0] * (len(node.shape) - 2), *node.attributes]))


def write_join(write: Writer, node: ArrayNode, x: str) -> str:
    """Write the last two axes as one."""
    return write("Reshape", x, write.numbers([*[0] * (len(node.shape) - 1), *node.attributes]))


def write_pad(write: Writer, node: ArrayNode, x: str) -> str:
    """Write zeros before and behind the columns."""
    return write("Pad", x, write.numbers([*node.attributes]), "", write.numbers([-1]))


def write_largest(write: Writer, node: ArrayNode, x: str) -> str:
    """Write a mask of the k largest numbers of each row; of equal ones TopK takes the first."""
    [k] = node.attributes
    largest, places = (f"v{len(write.nodes)}_{part}" for part in ("largest", "places"))
    top = write.helper.make_node("TopK", [x, write.numbers([k])], [largest, places], name=f"TopK_{places}", axis=-1)
    write.nodes.append(top)
    hot = write("OneHot", places, write.numbers(node.shape[-1]), write.numbers([0.0, 1.0], np.float32), axis=-1)
    return write("Greater", write("ReduceSum", hot, write.numbers([-2]), keepdims=0), write.numbers(0.5, np.float32))


def write_dequantised(write: Writer, node: ArrayNode, whole: str, scale: str) -> str:
    """Write whole numbers times the scale of their output, or of their group of inputs."""
    [group] = node.attributes
    if group == node.shape[0]:
        return write("DequantizeLinear", whole, scale, axis=1)
    return write("DequantizeLinear", whole, scale, axis=0, block_size=group)


def write_integers(write: Writer, node: ArrayNode, levels: str, whole: str) -> str:
    """Write a product of integers, its sums in float32."""
    sums = write("MatMulInteger", levels, whole, write.numbers(ZERO_POINT, np.uint8))
    return write("Cast", sums, to=write.types[node.dtype])


def write_pass(write: Writer, node: ArrayNode, *operands: str) -> str:
    """Write rows that pass through states, as a Scan over the second axis; its results are named by their number."""
    [body] = node.attributes
    name, states = f"{write.prefix}{len(write.nodes)}", len(body.states)
    inner = Writer(write.helper, write.types, f"{name}_v")
    inner.constants = write.constants
    names = {number: f"{name}_x{n}" for n, number in enumerate(body.inputs)}
    inner.all(body.nodes, (number for number in range(len(body.nodes)) if number not in names), names)
    ends = {f"{name}_y{n}": number for n, number in enumerate((*body.states, body.result))}
    for end, number in ends.items():
        inner.nodes.append(write.helper.make_node("Identity", [names[number]], [end], name=end))
    entered = {names[number]: number for number in body.inputs}
    inputs, results = (
        [
            write.helper.make_tensor_value_info(value, write.types[body.nodes[number].dtype], body.nodes[number].shape)
            for value, number in values.items()
        ]
        for values in (entered, ends)
    )
    rows = len(operands) - states
    scan = write.helper.make_node(
        "Scan",
        operands,
        [part_name(name, n) for n in range(states + 1)],
        name=f"Scan_{name}",
        body=write.helper.make_graph(inner.nodes, f"row_{name}", inputs, results),
        num_scan_inputs=rows,
        scan_input_axes=[1] * rows,
        scan_output_axes=[1],
    )
    write.nodes.append(scan)
    return name


def part_name(passed: str, number: int) -> str:
    """Return the name of a result of a pass of rows."""
    return f"{passed}_{number}"


WRITERS: dict[str, OnnxOperation] = {
    **dict.fromkeys(ONNX_OPERATORS, write_plain),
    **dict.fromkeys(ONNX_REDUCTIONS, write_fold),
    "gelu_tanh": lambda write, node, x: write("Gelu", x, approximate="tanh"),
    "silu": write_silu,
    "softmax": lambda write, node, x: write("Softmax", x, axis=-1),
    "normalise_layer": write_norm,
    "floor_divide": lambda write, node, x, y: write("Div", x, y),
    "remainder": lambda write, node, x, y: write("Mod", x, y),
    "concat": lambda write, node, *parts: write("Concat", *parts, axis=node.attributes[0]),
    "expand": lambda write, node, x: write("Unsqueeze", x, write.numbers([node.attributes[0]])),
    "select": lambda write, node, x: write("Gather", x, write.numbers(node.attributes[1]), axis=node.attributes[0]),
    "slice": write_slice,
    "transpose": lambda write, node, x: write("Transpose", x, perm=node.attributes[0]),
    "take": lambda write, node, x, at: write("Gather", x, at, axis=node.attributes[0]),
    "take_places": write_places,
    "take_newest": write_newest,
    "take_columns": lambda write, node, x, at: write("GatherElements", x, at, axis=-1),
    "cumsum": lambda write, node, x: write("CumSum", x, write.numbers(node.attributes[0])),
    "argmax": write_argmax,
    "cast": write_cast,
    "pad": write_pad,
    "into_heads": write_split,
    "out_of_heads": write_join,
    "among_largest": write_largest,
    "dequantise": write_dequantised,
    "integer_product": write_integers,
    PASSED: write_pass,
    PASSED_PART: lambda write, node, x: part_name(x, node.attributes[0]),
}


class StoredTensor(NamedTuple):
    """A constant of a file: its sizes, its number type, and an array whose bytes are stored."""

    shape: tuple[int, ...]
    dtype: str
    array: Numeric


def check_onnx() -> None:
    """Raise InputError without the package onnx."""
    if not find_spec("onnx"):
        raise InputError("onnx is not installed: pip install onnx")


def make_onnx(read: ProgramGraph, weights: str, metadata: Mapping[str, str] = NO_METADATA) -> "onnx.ModelProto":
    """Return the graph of a program as a model of ONNX: inputs int64 (batch, length), its outputs in float32. Weights
    of more than MAX_INSIDE bytes together are named as in a file `weights` beside it; `metadata` are further entries.
    Raises InputError without the package onnx."""
    check_onnx()
    from onnx import TensorProto, helper

    types = {name: TensorProto.DataType.Value(onnx_type) for name, onnx_type in ONNX_TYPES.items()}
    write, names = Writer(helper, types), dict[int, str]()
    for name, symbol in read.inputs.items():
        names[symbol.number] = name
    write.all(read.graph.nodes, sorted(live_nodes(read.graph, read.outputs) - names.keys()), names)
    for name, symbol in read.outputs.items():
        write.nodes.append(helper.make_node("Identity", [names[symbol.number]], [name], name=f"output_{name}"))
    graph = helper.make_graph(
        write.nodes,
        "program",
        [helper.make_tensor_value_info(name, types[x.dtype], x.shape) for name, x in read.inputs.items()],
        [helper.make_tensor_value_info(name, types[x.dtype], x.shape) for name, x in read.outputs.items()],
        [*make_tensors(weights_of(read) | stored_constants(write.constants), weights, types)],
    )
    model = helper.make_model(
        graph, producer_name="opmatrix", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    helper.set_model_props(model, dict(metadata))
    return model


def make_tensors(
    constants: Mapping[str, StoredTensor], weights: str, types: Mapping[str, int]
) -> "Iterator[onnx.TensorProto]":
    """Yield constants as tensors of ONNX; large ones of a large model with their place in the file `weights`."""
    from onnx import TensorProto

    places = place_outside(constants)
    for name, (shape, dtype, array) in constants.items():
        tensor = TensorProto(name=name, dims=shape, data_type=types[dtype])
        if name not in places:
            tensor.raw_data = array.tobytes()
            yield tensor
            continue
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", weights), ("offset", places[name]), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        yield tensor


def stored_constants(constants: Mapping[str, Numeric]) -> dict[str, StoredTensor]:
    """Return arrays as constants of a file, in their own number types."""
    return {name: StoredTensor(array.shape, array.dtype.name, array) for name, array in constants.items()}


def place_outside(constants: Mapping[str, StoredTensor]) -> dict[str, int]:
    """Return where the weights of a large model begin in a file of their own; none of a smaller model."""
    places, at = dict[str, int](), 0
    if sum(array.nbytes for _, _, array in constants.values()) <= MAX_INSIDE:
        return places
    for name, (_, _, array) in constants.items():
        if array.nbytes >= LARGE_WEIGHT:
            places[name] = at
            at += -(-array.nbytes // MAPPED_BYTES) * MAPPED_BYTES
    return places


def write_weights(read: ProgramGraph, file: Path) -> None:
    """Write the weights of a large model to a file of their own; write none for a smaller model."""
    constants = weights_of(read)
    if places := place_outside(constants):
        with file.open("wb") as stream:
            for name, at in places.items():
                stream.seek(at)
                stream.write(constants[name].array.tobytes())


def weights_of(read: ProgramGraph) -> dict[str, StoredTensor]:
    """Return the constants of a graph that its outputs depend on, by their names in ONNX."""
    nodes = [read.graph.nodes[number] for number in sorted(live_nodes(read.graph, read.outputs))]
    nodes += [inner for node in nodes if node.operation == PASSED for inner in node.attributes[0].nodes]
    weights = dict[str, StoredTensor]()
    for node in nodes:
        if node.operation == "constant":
            array = read.graph.constants[node.attributes[0]]
            stored = pack_halves(array) if node.dtype == INT4_NUMBERS else array
            weights[f"w_{node.attributes[0]}"] = StoredTensor(array.shape, node.dtype, stored)
    return weights


def pack_halves(whole: Numeric) -> Numeric:
    """Return whole numbers from -8 to 7 as halves of bytes, the first of two in the lower half."""
    flat = whole.reshape(-1).view(np.uint8)
    halves = np.pad(flat, (0, len(flat) % 2)) & 15
    return halves[::2] | halves[1::2] << 4
