"""Pretrained weights: a directory with config.json and safetensors, whole or in shards, read when asked."""
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formats.files import read_json
from opmatrix.data import Data
from opmatrix.declared import declared
from opmatrix.errors import InputError
from opmatrix.pooling import Pooling
from opmatrix.tensors import Tensor, header
from opmatrix.text import Tokenizer

if TYPE_CHECKING:
    from opmatrix.term import Operator

WEIGHTS, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
SPELLINGS = (("", ""), (".weight", ".gamma"), (".bias", ".beta"))       # old BERT files name a norm's gain and shift so
COUNTS = ("position_ids", "token_type_ids")                 # 0, 1, 2 and so on, which old files keep beside the weights


class Config(dict[str, Any]):
    """config.json. Asking for what it lacks is an InputError that names the key."""

    def __init__(self, path: Path):
        super().__init__(json_object(path))
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.path}: {key!r} is missing: take the config.json that belongs to the weights")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of a family, which knows the config but not its file, name the file."""
        try: yield
        except InputError as error:
            raise InputError(re.sub("^config:", lambda _: f"{self.path}:", str(error))) from error


@dataclass(frozen=True)
class Checkpoint:
    """A model's directory, opened: its config read and its tensors listed, none of them loaded yet."""
    name: str
    directory: Path
    config: Config
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, directory: str | Path, name: str | None = None) -> "Checkpoint":
        """Raises InputError where the directory, its config.json or its weights are missing or damaged, where no model
        family is known by the config's `model_type`, or where the config says what the family does not allow."""
        from opmatrix.models import check
        directory = Path(directory)
        if not isdir(directory):                            # a name that cannot be is none
            raise InputError(f"{directory}: no such directory: give one that holds config.json and {WEIGHTS}")
        config = Config(directory / "config.json")
        with config.named(): check(config)
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

    def operator(self, pooled: bool = False) -> "Operator":
        """The whole model as an operator, with its pooling where that is asked for. Raises InputError as `at` does, where the config's
        sizes do not fit one another, and where the weights hold a tensor of the model's own parts that it does not use."""
        from formats.shapes import ShapeError
        from opmatrix.models import build
        used: set[str] = set()

        def at(name: str, *shape: int) -> Data:
            used.add(self.find(name).name)
            return self.at(name, *shape)

        with self.config.named():
            try: model = build(self.config, at)
            except ShapeError as error: raise InputError(f"config: its sizes do not fit: {error}") from error
        self.complete(used)
        return model @ self.pooling().operator() if pooled else model

    def complete(self, used: set[str]) -> None:
        """Raises InputError where a tensor is left over that stands beside a used one: a layer that the config leaves
        out, or a part that the family does not know. Heads on top stand apart, and are left alone."""
        def part(name: str) -> str: return name.removeprefix(f"{self.config['model_type']}.").split(".")[0]
        parts, kinds = {part(name) for name in used}, {numberless(name) for name in used}
        for name, tensor in self.tensors.items():
            if name in used or part(name) not in parts or name.endswith(COUNTS): continue
            if numberless(name) in kinds:
                raise InputError(f"{self.directory}: the weights hold {name!r}, which {self.config.path} leaves out: "
                                 "check its number of layers")
            raise InputError(f"{tensor.file}: tensor {name!r} is no part of a plain {self.config['model_type']}, which "
                             "would be computed without it: convert the model, or take the tensor out")

    def tokenizer(self) -> Tokenizer:
        """The directory's tokenizer.json, limited to the positions that the model has; `pooling` says where texts are
        cut."""
        positions = self.config.get("max_position_embeddings")
        return Tokenizer.from_file(self.directory / "tokenizer.json", positions, self.pooling())

    def pooling(self) -> Pooling:
        """What makes one embedding of a text; see opmatrix.declared."""
        return declared(self.directory, self.config)


def open_model(model: str | Path) -> Checkpoint:
    """A model by its name (`minilm`, fetched at first use) or by its directory (write ./minilm for one called so)."""
    from opmatrix.fetch import MODELS, fetch
    if not isinstance(model, str | Path): raise TypeError(f"a model is a name or a directory, not {model!r:.60}")
    if model in MODELS: return Checkpoint.open(fetch(MODELS[str(model)]), str(model))
    if not isdir(model):
        raise InputError(f"{model}: neither a model that opmatrix fetches ({', '.join(MODELS)}) nor a directory with "
                         f"config.json and {WEIGHTS}; what the hub calls so, transformers brings into a directory: "
                         f"AutoModel.from_pretrained(NAME).save_pretrained(DIR), and so AutoTokenizer")
    return Checkpoint.open(model)


def listing(directory: Path) -> dict[str, Tensor]:
    """Every tensor of the directory by name, from one file or from the shards that an index names."""
    if (whole := directory / WEIGHTS).exists(): return header(whole)
    if not (index := directory / INDEX).exists():
        if (pickled := directory / PICKLED).exists():
            raise InputError(f"{pickled}: reading it would run code from it: convert it to {WEIGHTS}, by transformers' "
                             f"AutoModel.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})")
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
