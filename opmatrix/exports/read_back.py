"""Models of torch as they come back: modules that `to_torch` made carry their program or their operator, whose numbers
are read from them by name; any other is opened as a checkpoint in memory."""

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.storage.format import Format
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.exports.fx_module import CARRIED, ModuleSource
from opmatrix.exports.operator_graph import TermWeights
from opmatrix.files.checkpoint import Checkpoint, open_held
from opmatrix.runtime.program import Constant, Program

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.nn import Module
    from transformers import PreTrainedTokenizerBase

ReadArray = Callable[[str, tuple[int, ...]], NDArray[np.float32]]  # a constant's name and shape, to its numbers


@overload
def from_torch(model: "GraphModule", tokenizer: None = None) -> "Program | Operator": ...  # type: ignore[overload-overlap, unused-ignore]


@overload
def from_torch(model: "Module", tokenizer: "PreTrainedTokenizerBase | None" = None) -> Checkpoint: ...


def from_torch(
    model: "Module", tokenizer: "PreTrainedTokenizerBase | None" = None
) -> "Checkpoint | Program | Operator":
    """Open a model of transformers, or a SentenceTransformer, CrossEncoder or SparseEncoder, from memory, as
    `open_model` opens the directory that its `save_pretrained` writes: the same operator, to the bit.

    model       on the CPU; in evaluation, as files are: dropout is left out. Weights in float32 are shared, not copied:
                a program may hold them as they are, so train a copy of the model on, or save the program first
    tokenizer   the tokenizer of a model of transformers, which brings none; those of sentence-transformers have theirs

    `.operator()` is the model from tokens to rows, `.operator(pooled=True)` with its pooling or its head;
    `optimize(from_torch(model, tokenizer))` optimizes it. A module that `to_torch` made comes back as the program or
    the operator that it was made of, with the module's numbers, copied. Raises InputError for a model of another class,
    on another device, without numbers (meta), with quantised modules, forward hooks, or code of its own; for a module
    of `to_torch` with a tensor of another shape, with numbers that are not finite, or whose program rounds weights."""
    carried = getattr(model, "meta", {}).get(CARRIED) if is_graph_module(model) else None
    return open_held(model, tokenizer) if carried is None else read_back(model, carried)


def is_graph_module(model: object) -> bool:
    """True for a module of torch.fx. Nobody holds one before torch is imported, so this imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.fx.GraphModule)


def read_back(module: "Module", carried: ModuleSource) -> Program | Operator:
    """Return what a module was made of, with the module's numbers. Raises as `from_torch` does."""
    tensors = module.state_dict()

    def read_array(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return a copy of the numbers of a constant. Raises InputError where they do not fit."""
        tensor = tensors.get(carried.attributes[name])
        if tensor is None or tuple(tensor.shape) != shape:
            there = "is missing" if tensor is None else f"is {tuple(tensor.shape)}, not {shape}"
            raise InputError(f"from_torch: {name} {there}: give the module as `to_torch` made it, with other numbers")
        numbers = np.array(tensor.detach().cpu().float().numpy())
        if not np.isfinite(numbers).all():
            raise InputError(f"from_torch: {name} has numbers that are not finite: train with a smaller rate")
        return numbers

    if isinstance(carried.source, Operator):
        return read_weights(carried.source, carried.attributes, read_array)
    return read_constants(carried.source, carried.attributes, read_array)


def read_weights(term: Operator, known: Collection[str], read_array: ReadArray) -> Operator:
    """Return a term whose weights have the numbers of a module."""
    names = TermWeights(term).names
    replaced = {data: Data(read_array(name, data.shape), data.name) for data, name in names.items() if name in known}

    def put(value: object) -> object:
        """Return an attribute, an array with its new numbers."""
        if not isinstance(value, Data):
            return value
        return replaced[value.base].T if value.base in replaced else replaced.get(value, value)

    nodes = dict[Operator, Operator]()
    for node in term.walk():
        children = [nodes[child] for child in node.children]
        if node.kind.name == "compose":
            nodes[node] = children[0] @ children[1]
        else:
            nodes[node] = node.kind(*children, *map(put, node.attributes)) if children or node.attributes else node
    return nodes[term]


def is_low_rank(constant: Format) -> bool:
    """True for a matrix that is stored as two factors in float32."""
    return constant.factored() is not None and all(part.dtype == np.float32 for part in constant.arrays().values())


def read_constants(program: Program, known: Collection[str], read_array: ReadArray) -> Program:
    """Return a program whose constants have the numbers of a module, without the certificate of the old ones."""

    def store(name: str, constant: Constant) -> Constant:
        """Return a constant in its format, with new numbers."""
        if isinstance(constant, np.ndarray):
            floats = name in known and constant.dtype.kind == "f"
            return read_array(name, constant.shape).astype(constant.dtype) if floats else constant
        if isinstance(constant, Format) and is_low_rank(constant):
            arrays = constant.arrays().values()
            factors = tuple(read_array(f"{name}.{k}", part.shape) for k, part in zip("uv", arrays, strict=True))
            return type(constant)(constant.shape, factors, **constant.remembered)
        if name not in known:
            return constant
        if isinstance(constant, Format) and constant.plain:
            return type(constant).pack(read_array(name, constant.shape), **constant.remembered)
        raise InputError(
            f"from_torch: {name} is stored as {constant.name}, which rounds numbers that were trained: train the "
            "operator of the model, or a program in float32"
        )

    constants = {name: store(name, constant) for name, constant in program.constants.items()}
    uncertified = program.replace(model=program.meta.get("model", "program"))
    return uncertified.over(program.steps, constants)
