"""Models of transformers and sentence-transformers in memory, opened as the directories that they would save. Their own
libraries write the small files (configuration, tokenizer, pooling) to a temporary directory, and name the tensors as
files do. The numbers stay where they are: float32 is shared with torch, and narrower types are widened when read."""

import sys
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import read_text
from opmatrix.files.directory.model_files import CONFIG
from opmatrix.files.mapped import hash_program, pieces
from opmatrix.files.tensors import HeldBytes, Tensor

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer
    from torch.nn import Module
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NUMBER_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}  # number types of torch, by their names in files
KNOWN_HOMES = "torch", "transformers", "sentence_transformers"  # packages whose modules compute what they say
PUBLISHED_CODE = "transformers_modules"  # the package of code that came with a checkpoint
QUANTISING = "torch.ao."  # modules that round
SENTENCE_CLASSES = "SentenceTransformer", "CrossEncoder", "SparseEncoder"


def is_module(model: object) -> "TypeGuard[Module]":
    """True for a module of torch. Nobody holds one before torch is imported, so this imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@dataclass(frozen=True, eq=False)
class HeldModel:
    """A model in memory: its tensors by their names in files, and the directory of its small files, which is removed
    with this record."""

    folder: TemporaryDirectory[str]
    directory: Path
    tensors: dict[str, Tensor]

    def list_tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, as `listing` does for a directory."""
        return self.tensors

    @cached_property
    def digest(self) -> str:
        """The hash of configuration and weights, by which programs name the model."""
        arrays = (
            (name, tensor.number, tensor.shape, pieces(tensor.held.numbers))
            for name, tensor in sorted(self.tensors.items())
            if tensor.held is not None
        )
        return hash_program(read_text(self.directory / CONFIG), arrays)


def hold_model(model: "Module", tokenizer: "PreTrainedTokenizerBase | None" = None) -> HeldModel:
    """Return a model with the files that it would save. Raises InputError for a model of another class, on another
    device, without numbers (meta), with quantised modules, forward hooks, or code of its own."""
    name = type(model).__name__
    if not is_module(model):
        raise InputError(f"from_torch: {model!r:.60}: a model of transformers or sentence-transformers is needed")
    network = find_network(model, name)
    check_modules(model, name, bool(getattr(network.config, "auto_map", None)))
    check_tensors(model, name)
    folder = TemporaryDirectory(prefix="opmatrix-")
    directory = Path(folder.name) / name
    write_files(model, network, tokenizer, directory, name)
    tensors = {key: hold(key, tensor, name) for key, tensor in name_as_files(network).items()}
    return HeldModel(folder, directory, tensors)


# ---- what is refused


def find_network(model: "Module", name: str) -> "PreTrainedModel":
    """Return the model of transformers within a model: itself, or the first part of one of sentence-transformers.
    Raises InputError for any other class."""
    if is_of(model, "sentence_transformers", SENTENCE_CLASSES):
        first = next(iter(model.children()), None)
        network: PreTrainedModel | None = getattr(first, "model", None)
        if network is not None and is_of(network, "transformers", ("PreTrainedModel",)):
            return network
        raise InputError(f"{name}: it begins with a {type(first).__name__}: only one with a Transformer is supported")
    if is_of(model, "transformers", ("PreTrainedModel",)):
        return cast("PreTrainedModel", model)
    raise InputError(
        f"{name}: a module of {type(model).__module__}, no model of transformers or sentence-transformers: give one of "
        "these, or build the operator from `om.weight`, `om.attention` and others"
    )


def is_of(model: object, package: str, classes: tuple[str, ...]) -> bool:
    """True for an instance of one of a package's classes, where the package was imported."""
    known = (getattr(sys.modules.get(package), name, None) for name in classes)
    return any(isinstance(model, kind) for kind in known if isinstance(kind, type))


def check_modules(model: "Module", name: str, published: bool) -> None:
    """Raise InputError for a part of the model that may compute something else than its files say: of another package,
    quantised, or with a hook. `published`: the configuration names published code, whose class tells the family."""
    homes = {*KNOWN_HOMES, PUBLISHED_CODE} if published else {*KNOWN_HOMES}
    for path, module in model.named_modules():
        kind, place = type(module), f"{name}: its part {path!r}" if path else name
        if kind.__module__.startswith(QUANTISING) or getattr(module, "hf_quantizer", None) is not None:
            raise InputError(f"{place}, a {kind.__name__}, is quantised: give the model in floating point")
        if kind.__module__.partition(".")[0] not in homes:
            raise InputError(
                f"{place} is a {kind.__name__} of {kind.__module__}, a class that is not known here: give the plain "
                "model (of an adapter: merge_and_unload())"
            )
        if "forward" in vars(module) or (hook := find_hook(module)) is not None:
            altered = "a forward of its own" if "forward" in vars(module) else f"the forward hook {hook!r:.60}"
            raise InputError(f"{place} has {altered}, which no file holds: remove it, or give a fresh model")


def find_hook(module: "Module") -> object | None:
    """Return a hook that may change the values of a module; None if it has none. Those of transformers only record."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    recording = "transformers.utils."
    return next((hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith(recording)), None)


def check_tensors(model: "Module", name: str) -> None:
    """Raise InputError for a tensor that is no plain array on the CPU."""
    import torch

    for key, tensor in model.state_dict().items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            kind = type(tensor).__name__
            raise InputError(f"{name}: {key!r} is a {kind}, no plain tensor: give the model in floating point")
        if tensor.is_meta:
            raise InputError(f"{name}: {key!r} is on the meta device, which has no numbers: load its weights first")
        if tensor.device.type != "cpu":
            raise InputError(f"{name}: {key!r} is on {tensor.device}: move the model first, model.cpu()")
        if str(tensor.dtype).removeprefix("torch.") not in NUMBER_NAMES:
            raise InputError(f"{name}: {key!r} is of {tensor.dtype}: give the model in float32, bfloat16 or float16")


# ---- the files and tensors of a model


def write_files(
    model: "Module", network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None", directory: Path, name: str
) -> None:
    """Write the files that a model's `save_pretrained` writes, but no weights of the network. Raises InputError where
    its library refuses, or the disk is full."""
    try:
        directory.mkdir()
        if network is not model:
            if tokenizer is not None:
                raise InputError(f"{name}: it has a tokenizer of its own: give it alone")
            without_weights(model, network).save(str(directory), create_model_card=False)
            return
        SmallFiles(network).save_pretrained(directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: its configuration cannot be written to {directory} ({error!s:.200})") from error


@dataclass(frozen=True)
class SmallFiles:
    """The network in a copy of a model that is saved: it writes its configuration alone."""

    network: "PreTrainedModel"

    def save_pretrained(self, directory: str | Path, **options: object) -> None:
        """Write config.json, and generation_config.json for a model that generates."""
        config = deepcopy(self.network.config)
        config.architectures = [type(self.network).__name__]
        config.dtype = str(self.network.dtype).removeprefix("torch.")
        config.save_pretrained(directory)
        if self.network.can_generate():
            self.network.generation_config.save_pretrained(directory)


def without_weights(model: "Module", network: "PreTrainedModel") -> "SentenceTransformer":
    """Return a model of sentence-transformers that shares all parts with this one, except that its network saves no
    weights. The model stays as it is."""
    light, (place, first) = cast("SentenceTransformer", copy(model)), next(iter(model.named_children()))
    shell = copy(first)
    vars(shell)["_modules"] = {**vars(first)["_modules"], "model": SmallFiles(network)}
    vars(light)["_modules"] = {**vars(model)["_modules"], place: shell}
    return light


def name_as_files(network: "PreTrainedModel") -> "Mapping[str, torch.Tensor]":
    """Return the tensors of a network by their names in files. Fused weights of experts are read as they are; all
    others are renamed by transformers, which keeps some models otherwise in memory since version 5."""
    held: dict[str, torch.Tensor] = network.state_dict()
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return held
    fused = {name: tensor for name, tensor in held.items() if ".experts." in name}
    return fused | dict(revert_weight_conversion(network, {name: held[name] for name in held if name not in fused}))


def hold(name: str, tensor: "torch.Tensor", owner: str) -> Tensor:
    """Return a tensor of torch as one of files, which shares its numbers; one that is not contiguous is copied."""
    import torch

    numbers: NDArray[np.uint8] = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    number = NUMBER_NAMES[str(tensor.dtype).removeprefix("torch.")]
    return Tensor(Path(f"{owner} in memory"), name, number, tuple(tensor.shape), 0, held=HeldBytes(numbers))
