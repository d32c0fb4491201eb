"""A program as a module of torch: a graph of plain operations, with its weights as parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import getitem
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.signature import FLOAT, INTEGER
from opmatrix.algebra.term import Operator
from opmatrix.exports.cached_graph import read_cached
from opmatrix.exports.graph import BATCH, BOOL, LENGTH, PASSED, PASSED_PART, PAST, TOTAL, ArrayGraph, ArrayNode, RowPass
from opmatrix.exports.operator_graph import read_operator
from opmatrix.exports.program_graph import ProgramGraph, live_nodes, read_program
from opmatrix.runtime.declarations.padded import Padded

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from opmatrix.runtime.program import Program

TorchFunction = Callable[..., Padded]
CARRIED = "opmatrix"  # the entry of a module's meta with what it was made of
SAMPLE = {BATCH: 2, LENGTH: 8, PAST: 5, TOTAL: 13}  # open sizes of the batch that torch.export traces with


@dataclass(frozen=True)
class ModuleSource:
    """The program or the operator that a module was made of, and the attributes of the module that hold its constants,
    by their names: what `from_torch` reads back (opmatrix/exports/read_back.py)."""

    source: "Program | Operator"
    attributes: Mapping[str, str]

    def __deepcopy__(self, memo: object) -> "ModuleSource":
        """Return this record, as a program and an operator never change."""
        return self


def to_torch(program: "Program | Operator", caches: bool = False) -> "GraphModule":
    """Return a program, or an operator on tokens, as a module of torch: (input_ids, attention_mask[, token_type_ids]),
    int64 (batch, length), to its output, or a dictionary of several. The mask is 0 where there is padding, on either
    side. Weights are parameters in float32, whatever format they are stored in, and rows are not rounded. An array that
    an operator reads twice, as a tied head does, is one parameter. `from_torch` reads the numbers back. With
    `caches`, a language model takes new rows, the mask of all rows, and caches (opmatrix/exports/cached_graph.py).
    Raises InputError for a step that torch cannot compute, and without torch."""
    if isinstance(program, Operator):
        if caches:
            raise InputError("to_torch: caches are those of programs: search one, or leave caches=True out")
        return make_module(read_operator(program), program)
    return make_module(read_cached(program) if caches else read_program(program), program)


def check_torch() -> None:
    """Raise InputError without torch."""
    if not find_spec("torch"):
        raise InputError("torch is not installed: pip install torch")


def make_module(read: ProgramGraph, source: "Program | Operator | None" = None) -> "GraphModule":
    """Return the module of the graph of a program or an operator, which it carries. Raises InputError without
    torch."""
    check_torch()
    import torch

    root, graph, attributes = torch.nn.Module(), torch.fx.Graph(), dict[str, str]()
    operations, values = torch_operations(torch), dict[int, Padded]()
    for name, symbol in read.inputs.items():
        values[symbol.number] = graph.placeholder(as_identifier(name))
    for number in sorted(live_nodes(read.graph, read.outputs) - values.keys()):
        node = read.graph.nodes[number]
        if node.operation == "constant":
            [name] = node.attributes
            attributes[name] = register(torch, root, read.graph, name)
            values[number] = graph.get_attr(attributes[name])
            continue
        operands = [values[operand] for operand in node.operands]
        if node.operation == PASSED:
            body = f"row_{number}"
            root.add_module(body, make_step(torch, operations, read.graph, node.attributes[0]))
            count = len(node.attributes[0].states)
            values[number] = graph.call_function(run_passed, (graph.get_attr(body), count, *operands))
            continue
        values[number] = operations[node.operation](Calls(torch, graph, node), *operands)
    outputs = {name: values[symbol.number] for name, symbol in read.outputs.items()}
    graph.output(next(iter(outputs.values())) if len(outputs) == 1 else outputs)
    module = torch.fx.GraphModule(root, graph, "Program")
    if source is not None:
        module.meta[CARRIED] = ModuleSource(source, attributes)
    return module


def make_step(
    torch: ModuleType, operations: "Mapping[str, TorchOperation]", arrays: ArrayGraph, body: RowPass
) -> "GraphModule":
    """Return the module of a step of rows: states and rows to the next states and the result."""
    graph, values = torch.fx.Graph(), dict[int, Padded]()
    for number in body.inputs:
        values[number] = graph.placeholder(body.nodes[number].attributes[0])
    for number, node in enumerate(body.nodes):
        if node.operation == "constant":
            stored = arrays.constants[node.attributes[0]]
            dtype = torch.from_numpy(np.array(stored)).dtype
            values[number] = graph.call_function(torch.scalar_tensor, (stored.item(),), {"dtype": dtype})
        elif number not in values:
            calls = Calls(torch, graph, node)
            values[number] = operations[node.operation](calls, *(values[operand] for operand in node.operands))
    graph.output([values[number] for number in (*body.states, body.result)])
    step: GraphModule = torch.fx.GraphModule(torch.nn.Module(), graph, "Row")
    return step


def as_identifier(name: str) -> str:
    """Return a name with underscores for what no identifier has."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def register(torch: ModuleType, root: Padded, graph: ArrayGraph, name: str) -> str:
    """Store a constant in a module: a weight of a program as a parameter, any other as a buffer. Return its attribute:
    its name as an identifier that the module has not."""
    attribute = as_identifier(name)
    while hasattr(root, attribute) or not attribute.isidentifier():
        attribute = f"_{attribute}"
    tensor = torch.from_numpy(np.array(graph.constants[name]))
    if name in graph.weights and tensor.is_floating_point():
        root.register_parameter(attribute, torch.nn.Parameter(tensor))
    else:
        root.register_buffer(attribute, tensor)
    return attribute


class Calls:
    """Calls of torch that are added to a graph for one node."""

    def __init__(self, torch: ModuleType, graph: Padded, node: ArrayNode) -> None:
        self.torch, self.graph, self.node = torch, graph, node

    def __call__(self, function: TorchFunction, *operands: Padded, **options: object) -> Padded:
        """Add a call of a function."""
        return self.graph.call_function(function, operands, options)

    def method(self, name: str, *operands: Padded, **options: object) -> Padded:
        """Add a call of a method of the first operand."""
        return self.graph.call_method(name, operands, options)


TorchOperation = Callable[..., Padded]  # the calls of a node and its operands, to its result


def torch_operations(torch: ModuleType) -> dict[str, TorchOperation]:
    """Return the calls of torch for each operation of a graph."""
    functional = torch.nn.functional
    types = {FLOAT: torch.float32, INTEGER: torch.int64, BOOL: torch.bool}

    def plain(function: TorchFunction) -> TorchOperation:
        """Return the call of a function with the operands alone."""
        return lambda call, *operands: call(function, *operands)

    def folded(function: TorchFunction) -> TorchOperation:
        """Return the call of a reduction of one axis."""

        def reduce(call: Calls, x: Padded) -> Padded:
            """Add the call."""
            axis, keepdim = call.node.attributes
            return call(function, x, dim=axis, keepdim=keepdim)

        return reduce

    def normalise(call: Calls, y: Padded, gain: Padded, shift: Padded = None) -> Padded:
        """Add the call of a layer norm."""
        return call(functional.layer_norm, y, [call.node.shape[-1]], gain, shift, call.node.attributes[0])

    def take(call: Calls, x: Padded, at: Padded) -> Padded:
        """Add the rows of a table that are named, or places of another axis."""
        [axis] = call.node.attributes
        if axis or call.node.dtype != FLOAT:
            return call(pick_places, x, at, axis)
        return call(functional.embedding, at, x) if len(call.node.shape) > 1 else call(pick_places, x, at, axis)

    def cut(call: Calls, x: Padded) -> Padded:
        """Add a range of an axis."""
        axis, start, stop, step = call.node.attributes
        if step == 1:
            return call(torch.narrow, x, axis, start, stop - start)
        return call(step_places, x, axis, start, stop, step)

    def pad(call: Calls, x: Padded) -> Padded:
        """Add zeros before and behind the columns."""
        return call(functional.pad, x, list(call.node.attributes))

    return {
        **{name: plain(getattr(torch, name)) for name in UNARY},
        "absolute": plain(torch.abs),
        "not": plain(torch.logical_not),
        **{name: plain(getattr(torch, torch_name)) for name, torch_name in BINARY.items()},
        **{name: folded(getattr(torch, torch_name)) for name, torch_name in TORCH_REDUCTIONS.items()},
        "gelu": plain(functional.gelu),
        "gelu_tanh": lambda call, x: call(functional.gelu, x, approximate="tanh"),
        "silu": plain(functional.silu),
        "relu": plain(torch.relu),
        "sigmoid": plain(torch.sigmoid),
        "softplus": plain(functional.softplus),
        "softmax": lambda call, x: call(torch.softmax, x, -1),
        "normalise_layer": normalise,
        "where": plain(torch.where),
        "matmul": plain(torch.matmul),
        "concat": lambda call, *parts: call(torch.cat, list(parts), call.node.attributes[0]),
        "expand": lambda call, x: call(torch.unsqueeze, x, call.node.attributes[0]),
        "select": lambda call, x: call(torch.select, x, *call.node.attributes),
        "slice": cut,
        "transpose": lambda call, x: call(torch.permute, x, call.node.attributes[0]),
        "take": take,
        "take_columns": lambda call, x, at: call(torch.gather, x, -1, at),
        "take_places": lambda call, x, at: call(pick_rows, x, at),
        "take_newest": lambda call, x, new: call(pick_newest, x, new),
        "cumsum": lambda call, x: call(torch.cumsum, x, call.node.attributes[0]),
        "cast": lambda call, x: call.method("to", x, types[call.node.dtype]),
        "pad": pad,
        "into_heads": lambda call, x: call(torch.unflatten, x, -1, call.node.attributes),
        "out_of_heads": lambda call, x: call(torch.flatten, x, -2),
        "among_largest": lambda call, x: call(mark_largest, x, call.node.attributes[0]),
        PASSED_PART: lambda call, x: call(getitem, x, call.node.attributes[0]),
    }


UNARY = "exp", "log", "sqrt", "tanh", "erf", "negative", "sign", "isnan"
BINARY = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "floor_divide": "floor_divide",
    "remainder": "remainder",
    "equal": "eq",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
TORCH_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "argmax": "argmax"}


# ---- indices of torch, as functions


def step_places(x: Padded, axis: int, start: int, stop: int, step: int) -> Padded:
    """Return a range of an axis."""
    return x[(*[slice(None)] * axis, slice(start, stop, step))]


def pick_places(x: Padded, at: Padded, axis: int) -> Padded:
    """Return the places of an axis that whole numbers name."""
    return x[(*[slice(None)] * axis, at)]


def pick_rows(x: Padded, at: Padded) -> Padded:
    """Return one row of each sequence."""
    return x[at.new_ones(at.shape[0]).cumsum(0) - 1, at]


def pick_newest(x: Padded, new: Padded) -> Padded:
    """Return the last places of each row, as many as there are new ones. A range would be traced for texts with rows
    before them alone."""
    return x.gather(1, new.new_ones(new.shape).cumsum(1) + (x.shape[1] - new.shape[1] - 1))


def mark_largest(x: Padded, k: int) -> Padded:
    """Return a mask of the k largest of each row; of equal numbers the first."""
    order = x.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(-1) < k


def run_passed(step: TorchFunction, count: int, *operands: Padded) -> Sequence[Padded]:
    """Pass rows (batch, length, ..) through so many states: return the last ones, and the results of all rows. A loop,
    or torch's own operation of a loop where it is compiled or exported."""
    import torch

    states, rows = operands[:count], [x.movedim(1, 0) for x in operands[count:]]
    if torch.compiler.is_compiling():
        from torch._higher_order_ops.scan import scan

        last, [results] = scan(lambda held, row: split_step(step, held, row), [*states], rows)
        return [*last, results.movedim(0, 1)]
    collected = []
    for row in zip(*rows, strict=True):
        *states, result = step(*states, *row)
        collected.append(result)
    return [*states, torch.stack(collected, 1)]


def split_step(step: TorchFunction, held: Sequence[Padded], row: Sequence[Padded]) -> tuple[Sequence[Padded], Padded]:
    """Return the next states of a step, and its result, in lists."""
    *states, result = step(*held, *row)
    return states, [result]


# ---- files


def sample_inputs(read: ProgramGraph) -> Sequence[Padded]:
    """Return the batch that torch.export traces with: ones in the mask, zeros in all other inputs."""
    import torch

    types = {FLOAT: torch.float32, INTEGER: torch.int64}
    return [
        torch.full(
            [SAMPLE[size] if isinstance(size, str) else size for size in x.shape],
            int(name.endswith("mask")),
            dtype=types[x.dtype],
        )
        for name, x in read.inputs.items()
    ]


def export_program(read: ProgramGraph, file: str, beside: Mapping[str, str]) -> None:
    """Write the program as torch.export does, for any open sizes, with texts beside it. Raises InputError without
    torch."""
    module = make_module(read)
    import torch

    dims = {size: torch.export.Dim(size) for size in SAMPLE}
    sizes = {
        as_identifier(name): {axis: dims[size] for axis, size in enumerate(x.shape) if isinstance(size, str)}
        for name, x in read.inputs.items()
    }
    exported = torch.export.export(module, tuple(sample_inputs(read)), dynamic_shapes=sizes)
    torch.export.save(exported, file, extra_files=dict(beside))
