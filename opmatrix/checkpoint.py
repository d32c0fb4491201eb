"""Pretrained weights: a directory with config.json and safetensors, whole or in shards, read when asked."""
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formats.files import read_json
from opmatrix.data import Data
from opmatrix.errors import InputError
from opmatrix.tensors import Tensor, header
from opmatrix.text import Tokenizer

if TYPE_CHECKING:
    from opmatrix.term import Operator

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "max_position_embeddings", "type_vocab_size")
SPELLINGS = (("", ""), (".weight", ".gamma"), (".bias", ".beta"))       # old BERT files name a norm's gain and shift so


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
        try: found |= header(directory / shard)
        except InputError as error: raise InputError(f"{error}; {index} names this shard") from error
    if lost := [name for name in shard_of if name not in found or found[name].file.name != shard_of[name]]:
        raise InputError(f"{directory / shard_of[lost[0]]}: tensor {lost[0]!r} is missing, {index} puts it there")
    return found


def json_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object, or an InputError that names it."""
    try: found = read_json(path)
    except InputError as error: raise InputError(f"{error}: a model needs it") from error
    if not isinstance(found, dict): raise InputError(f"{path}: {type(found).__name__}, not a JSON object: mend it")
    return found


def numberless(name: str) -> str: return re.sub(r"\d+", "#", name)

def sized(shape: tuple[int, ...]) -> str: return " × ".join(map(str, shape)) or "a single number"
