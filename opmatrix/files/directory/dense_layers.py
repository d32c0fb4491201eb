"""Dense layers behind pooled rows: a product, a shift and an activation, in a folder beside a checkpoint, as
sentence-transformers writes them."""

from pathlib import Path
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from formats.disk.files import lying
from opmatrix.algebra.data import Data
from opmatrix.files.directory.declared import DeclaredEntries, read_entries
from opmatrix.files.directory.model_files import CONFIG, WEIGHTS
from opmatrix.files.tensors import header
from opmatrix.inference.pooling import check_count, expect
from opmatrix.inference.scores.scoring import IDENTITY, torch_activation

if TYPE_CHECKING:
    from opmatrix.algebra.term import Operator

WIDTH_KEYS = "in_features", "out_features"
MODULE_NAMES = "module_input_name", "module_output_name"
EMBEDDING = "sentence_embedding"


def dense_layer(folder: Path, rows: str = EMBEDDING) -> "Operator":
    """Build the layer of a folder as an operator from rows of in_features columns to rows of out_features; `rows` names
    the value that they are. Raises InputError that names the file and the entry or tensor."""
    from opmatrix.algebra.operators import ACTIVATIONS, I, affine, weight

    entries = read_entries(folder / CONFIG)
    entries.only({*WIDTH_KEYS, *MODULE_NAMES, "bias", "activation_function", "use_residual"})
    for key in MODULE_NAMES:
        if entries.said.get(key) is not None:
            entries.usual(key, rows)
    n, p = (read_size(entries, key) for key in WIDTH_KEYS)
    act = torch_activation(entries.said.get("activation_function", "torch.nn.Tanh"), entries.at("activation_function"))
    W = read_tensor(folder, "linear.weight", p, n).T
    layer: Operator = affine(W, read_tensor(folder, "linear.bias", p)) if entries.flag("bias", True) else weight(W)
    if act != IDENTITY:
        layer = layer @ ACTIVATIONS[act]
    if entries.flag("use_residual"):
        layer = layer + (I if n == p else weight(read_tensor(folder, "residual.weight", p, n).T))
    return layer


def read_size(entries: DeclaredEntries, key: str) -> int:
    """Read a number of columns. Raises InputError that names the entry."""
    size = check_count(entries.said.get(key), entries.at(key))
    expect(size is not None, entries.at(key), size, "a whole number above 0")
    return int(size or 0)


def read_tensor(folder: Path, name: str, *shape: int) -> Data:
    """Load a tensor of a folder in float32, named by both. Raises InputError if it is missing, has another shape, or is
    in a pickle alone."""
    file = folder / WEIGHTS
    if not file.exists():
        raise InputError(
            f"{file}: No such file: a Dense needs it, and {lying(folder)}: no pickle is read: save the model by "
            "sentence-transformers anew, which writes safetensors"
        )
    if (tensor := header(file).get(name)) is None:
        raise InputError(f"{file}: tensor {name!r} is missing: get the weights again")
    if tensor.shape != shape:
        sizes = (" × ".join(map(str, numbers)) for numbers in (tensor.shape, shape))
        raise InputError(f"{file}: tensor {name!r} is {' but config.json leads to '.join(sizes)}: get both files again")
    array, blocks = tensor.read_both()
    return Data(array, f"{folder.name}.{name}", blocks)
