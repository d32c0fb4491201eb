"""Pretrained weights: a directory with config.json and safetensors, whole or in shards, read when asked."""
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from opmatrix.data import Data
from opmatrix.errors import InputError
from opmatrix.text import Tokenizer

if TYPE_CHECKING:
    from opmatrix.term import Operator

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Widening = Callable[[NDArray[Any]], NDArray[Any]]
WIDEN: dict[str, tuple[str, Widening]] = {                  # number types that are read, and how each becomes float32
    "F32": ("<f4", lambda x: x),
    "F16": ("<f2", lambda x: x.astype(np.float32)),
    "BF16": ("<u2", lambda x: (x.astype(np.uint32) << 16).view(np.float32)),        # the upper half of a float32
}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "max_position_embeddings", "type_vocab_size")
SPELLINGS = (("", ""), (".weight", ".gamma"), (".bias", ".beta"))       # old BERT files name a norm's gain and shift so


class Tensor(NamedTuple):
    """Where a tensor lies: its file, its name and number type there, its shape, its first byte."""
    file: Path
    name: str
    number: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> NDArray[np.float32]:
        """The tensor in float32. Raises InputError where it has another number type, or an entry that is no number."""
        if self.number not in WIDEN:
            raise InputError(f"{self.file}: tensor {self.name!r} has number type {self.number}: convert it to one of "
                             + ", ".join(WIDEN))
        stored, widen = WIDEN[self.number]
        count = int(np.prod(self.shape))
        raw = np.fromfile(self.file, stored, count, offset=self.start)
        if raw.size != count: raise InputError(f"{self.file}: it ends within tensor {self.name!r}: get the file again")
        array: NDArray[np.float32] = widen(raw).reshape(self.shape)
        if not (finite := np.isfinite(array)).all():
            first = [int(i) for i in np.unravel_index(np.argmin(finite), self.shape)]
            raise InputError(f"{self.file}: tensor {self.name!r} has {array[*first]} at {first}: weights must be "
                             "finite numbers, so get or train it again")
        return array


class Config(dict[str, Any]):
    """config.json. Asking for what it lacks is an InputError that names the key."""

    def __init__(self, path: Path):
        super().__init__(json_object(path))
        self.path = path
        for key in SIZES:
            if key in self and not (type(self[key]) is int and self[key] > 0):
                raise InputError(f"{path}: {key} is {self[key]!r}: it must be a whole number above 0")
        if not (type(eps := self.get("layer_norm_eps", 0)) in (int, float) and 0 <= eps < 1):
            raise InputError(f"{path}: layer_norm_eps is {eps!r}: it must be a number from 0 to 1")

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.path}: {key!r} is missing: take the config.json that belongs to the weights")


@dataclass(frozen=True)
class Checkpoint:
    """A model's directory, opened: its config read and its tensors listed, none of them loaded yet."""
    name: str
    directory: Path
    config: Config
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, directory: str | Path, name: str | None = None) -> "Checkpoint":
        """Raises InputError where the directory, its config.json or its weights are missing or damaged, or where no
        model family is known by the config's `model_type`."""
        from opmatrix.models import FAMILIES
        directory = Path(directory)
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory: give one that holds config.json and {WEIGHTS}")
        config = Config(directory / "config.json")
        if (family := config["model_type"]) not in list(FAMILIES):
            raise InputError(f"{config.path}: model_type {family!r} is unknown: it must be {', '.join(FAMILIES)}")
        return cls(name or directory.resolve().name, directory, config, listing(directory))

    def find(self, name: str) -> Tensor:
        """The tensor of that name, with or without the family's prefix; InputError where there is none."""
        for prefix in ("", f"{self.config['model_type']}."):
            for new, old in SPELLINGS:
                spelt = prefix + (name.removesuffix(new) + old if name.endswith(new) else name)
                if spelt in self.tensors: return self.tensors[spelt]
        raise InputError(f"{self.directory}: tensor {name!r} is missing from the weights: check {self.config.path}, or "
                         "get the weights again")

    def at(self, name: str, *shape: int) -> Data:
        """The tensor in float32, as an attribute for terms. Raises InputError where it is missing, where its shape is
        not the one that the config leads to, or where an entry is not finite."""
        tensor = self.find(name)
        if shape and tensor.shape != shape:
            differ = {size for size, own in zip(shape, tensor.shape, strict=False) if size != own} or set(shape)
            keys = [key for key, size in self.config.items() if type(size) is int and size in differ] or ["its sizes"]
            raise InputError(f"{tensor.file}: tensor {tensor.name!r} is {sized(tensor.shape)}, but {self.config.path} "
                             f"leads to {sized(shape)}: check {', '.join(keys)}")
        return Data(tensor.read(), name)

    def operator(self) -> "Operator":
        """The whole model as an operator. Raises InputError as `at` does, and where the config's sizes do not fit one
        another or leave out layers that the weights hold."""
        from formats.shapes import ShapeError
        from opmatrix.models import build
        used: set[str] = set()

        def at(name: str, *shape: int) -> Data:
            used.add(self.find(name).name)
            return self.at(name, *shape)

        try: model = build(self.config, at)
        except ShapeError as error: raise InputError(f"{self.config.path}: its sizes do not fit: {error}") from error
        except InputError as error:                                     # a family knows the config, but not its file
            raise InputError(re.sub("^config:", lambda _: f"{self.config.path}:", str(error))) from error
        kinds = {numberless(name) for name in used}
        if left := [name for name in self.tensors if name not in used and numberless(name) in kinds]:
            raise InputError(f"{self.directory}: the weights hold {left[0]!r}, which {self.config.path} leaves out: "
                             "check its number of layers")
        return model

    def tokenizer(self) -> Tokenizer:
        """The directory's tokenizer.json, limited to the positions that the model has."""
        return Tokenizer.from_file(self.directory / "tokenizer.json", self.config.get("max_position_embeddings"))


def open_model(model: str | Path) -> Checkpoint:
    """A model by its name (`minilm`, fetched at first use) or by its directory (write ./minilm for one called so)."""
    from opmatrix.fetch import MODELS, fetch
    if model in MODELS: return Checkpoint.open(fetch(MODELS[str(model)]), str(model))
    if not Path(model).is_dir():
        raise InputError(f"{model}: neither a model that opmatrix fetches ({', '.join(MODELS)}) nor a directory with "
                         f"config.json and {WEIGHTS}")
    return Checkpoint.open(model)


def listing(directory: Path) -> dict[str, Tensor]:
    """Every tensor of the directory by name, from one file or from the shards that an index names."""
    if (whole := directory / WEIGHTS).exists(): return header(whole)
    if not (index := directory / INDEX).exists():
        raise InputError(f"{directory}: neither {WEIGHTS} nor {INDEX}: save the model as safetensors into it")
    shard_of = json_object(index).get("weight_map")
    if not (isinstance(shard_of, dict) and all(isinstance(s, str) and s == Path(s).name for s in shard_of.values())):
        raise InputError(f"{index}: weight_map must name a file of this directory for every tensor")
    found: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if not (directory / shard).exists():
            raise InputError(f"{directory / shard}: this shard is missing, and {index} names it: get it too")
        found |= header(directory / shard)
    if lost := [name for name in shard_of if name not in found or found[name].file.name != shard_of[name]]:
        raise InputError(f"{directory / shard_of[lost[0]]}: tensor {lost[0]!r} is missing, {index} puts it there")
    return found


def header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file: eight bytes of length, a JSON header, then the numbers."""
    try:
        with safe_open(file, "np"): pass                                # the library knows every way to be damaged
        with open(file, "rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            entries = json.loads(raw.read(length))
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{file}: {file.stat().st_size} bytes that are no whole safetensors file ({reason}): get it "
                         "again") from error
    return {name: Tensor(file, name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in entries.items() if name != "__metadata__"}


def json_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object, or an InputError that names it."""
    try: found = json.loads(path.read_bytes())
    except OSError as error: raise InputError(f"{path}: {error.strerror}: a model needs it") from error
    except (ValueError, RecursionError) as error: raise InputError(f"{path}: not JSON ({error}): mend it") from error
    if not isinstance(found, dict): raise InputError(f"{path}: {type(found).__name__}, not a JSON object: mend it")
    return found


def numberless(name: str) -> str: return re.sub(r"\d+", "#", name)

def sized(shape: tuple[int, ...]) -> str: return " × ".join(map(str, shape)) or "a single number"
