"""LoRA adapters (Hu et al. 2022) as PEFT saves them: to a weight W of the model the product of two thin matrices is
added, times a scale. With DoRA (Liu et al. 2024, equation 5) each output column of the sum is then scaled to a stored
length. Tensors are read when they are needed, like the weights."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.algebra.data import Data, Promised
from opmatrix.files.tensors import Tensor, header

if TYPE_CHECKING:
    from opmatrix.algebra.term import Operator

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
STEM, FIRST, SECOND, MAGNITUDES = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
TENSOR_ENDS = FIRST, SECOND, MAGNITUDES
MAX_PATTERN, MAX_REPEATS = 200, 3  # characters; repeats, so that matching a name stays quick
MAX_RANK, MAX_ALPHA = 1 << 16, 1e30
PLAIN: Mapping[str, tuple[Any, ...]] = {  # allowed values: any other would change the results
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "init_lora_weights": (True, False, None, "gaussian"),
}
FREE = frozenset(
    (  # keys about its training, or that are read here
        "rank_pattern alpha_pattern use_dora "
        "auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out inference_mode "
        "layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_config "
        "megatron_core peft_version qalora_group_size r revision target_modules task_type use_rslora velora_config"
    ).split()
)


class LowRankPair(NamedTuple):
    """The addition to one weight: B A times a scale, A (r, in) and B (out, r). `lengths`, (out,): with DoRA, the length
    of each output of the sum."""

    first: Tensor
    second: Tensor
    scale: float
    lengths: Tensor | None = None


@dataclass(frozen=True)
class Adapter:
    """The pairs of an adapter's directory, by PEFT's names of the modules that they belong to."""

    directory: Path
    pairs: Mapping[str, LowRankPair]

    @classmethod
    def read(cls, directory: str | Path) -> "Adapter":
        """Read an adapter. Raises InputError if the directory holds no LoRA adapter, is damaged, or does more than add
        B A to weights."""
        directory = Path(directory)
        config, tensors = AdapterConfig.read(directory / CONFIG), header(directory / MATRICES)
        modules = {
            name.removeprefix(STEM).removesuffix(end): None
            for name in tensors
            for end in TENSOR_ENDS
            if name.startswith(STEM) and name.endswith(end)
        }
        if odd := tensors.keys() - {f"{STEM}{name}{end}" for name in modules for end in TENSOR_ENDS}:
            raise InputError(
                f"{directory / MATRICES}: tensor {min(odd)!r} is not one of LoRA's, {STEM}…{FIRST} and "
                f"{SECOND}: the model would be computed without it"
            )
        pairs = {name: config.pair(name, tensors, directory / MATRICES) for name in modules}
        if not pairs:
            raise InputError(f"{directory / MATRICES}: it holds no tensor: give the directory of an adapter")
        return cls(directory, pairs)


@dataclass(frozen=True)
class AdapterConfig:
    """The keys of an adapter_config.json that change the numbers: rank and alpha, with patterns of module names that
    override them, and two switches."""

    file: Path
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    rooted: bool
    dora: bool

    @classmethod
    def read(cls, file: Path) -> "AdapterConfig":
        """Read an adapter_config.json. Raises InputError, which names the key, for a value that PEFT would not compute
        with."""
        keys = read_config(file)
        return cls(
            file,
            check_rank(file, "r", keys.get("r")),
            check_alpha(file, "lora_alpha", keys.get("lora_alpha")),
            read_pattern(file, "rank_pattern", keys, check_rank),
            read_pattern(file, "alpha_pattern", keys, check_alpha),
            check_switch(file, "use_rslora", keys),
            check_switch(file, "use_dora", keys),
        )

    def pair(self, name: str, tensors: Mapping[str, Tensor], file: Path) -> LowRankPair:
        """Return the matrices of a module and their scale, alpha / r or alpha / √r. Raises InputError if one is missing
        or of another shape."""
        first, second, lengths = (tensors.get(f"{STEM}{name}{end}") for end in TENSOR_ENDS)
        rank, alpha = of_module(self.ranks, name, self.rank), of_module(self.alphas, name, self.alpha)
        if (
            first is None
            or second is None
            or len(first.shape) != 2
            or len(second.shape) != 2
            or not (first.shape[0] == second.shape[1] == rank)
        ):
            sizes = " and ".join(str(tensor and tensor.shape) for tensor in (first, second))
            raise InputError(
                f"{file}: {name!r}: lora_A and lora_B are {sizes}: they must be {rank} x in and out x {rank}"
            )
        if (lengths and lengths.shape) != ((second.shape[0],) if self.dora else None):
            raise InputError(
                f"{file}: {name!r}: lora_magnitude_vector is {lengths and lengths.shape}, with use_dora "
                f"{self.dora} and {second.shape[0]} outputs: one number an output with DoRA, else none"
            )
        return LowRankPair(first, second, alpha / (sqrt(rank) if self.rooted else rank), lengths)


def check_rank(file: Path, key: str, given: object) -> int:
    """Return a rank. Raises InputError for any other value."""
    if type(given) is int and 1 <= given <= MAX_RANK:
        return given
    raise InputError(f"{file}: {key} is {given!r:.40}: it must be a whole number from 1 to {MAX_RANK}")


def check_alpha(file: Path, key: str, given: object) -> float:
    """Return an alpha of an adapter's config, by which its product is scaled. Raises InputError unless its magnitude is
    below MAX_ALPHA."""
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < MAX_ALPHA:
        return given
    raise InputError(f"{file}: {key} is {given!r:.40}: it must be a number, below {MAX_ALPHA:g}")


def check_switch(file: Path, key: str, keys: Mapping[str, object]) -> bool:
    """Return a switch, False if it is left out. Raises InputError for any other value than true and false: readers
    disagree on what 1 means."""
    value = keys.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InputError(f"{file}: {key} is {value!r:.40}: it must be true or false")


RankOrAlpha = TypeVar("RankOrAlpha", int, float)


def read_pattern(
    file: Path, key: str, keys: Mapping[str, object], check: Callable[[Path, str, object], RankOrAlpha]
) -> Mapping[str, RankOrAlpha]:
    """Read numbers by patterns of module names, each a regular expression. Raises InputError for a pattern that could
    match slowly, or is no regular expression."""
    patterns = keys.get(key) or {}
    if not isinstance(patterns, dict):
        raise InputError(f"{file}: {key} is {patterns!r:.40}: it must be an object of modules' names and numbers")
    for pattern in patterns:
        repeats = sum(pattern.count(mark) for mark in "*+{")
        nested = re.search(r"\)[*+?{]", pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            wrong = str(error)
        else:
            wrong = "" if len(pattern) <= MAX_PATTERN and repeats <= MAX_REPEATS and not nested else "too involved"
        if wrong:
            raise InputError(
                f"{file}: {key}: the pattern {pattern!r:.60} is refused ({wrong}): name modules in full, "
                "or merge the adapter by PEFT's merge_and_unload()"
            )
    return {pattern: check(file, f"{key}: {pattern}", number) for pattern, number in patterns.items()}


def of_module(numbers: Mapping[str, RankOrAlpha], name: str, usual: RankOrAlpha) -> RankOrAlpha:
    """Return the number of the first pattern that matches a module's name, or its end behind a dot (PEFT's
    get_pattern_key); `usual` if none does."""
    return next((number for pattern, number in numbers.items() if re.match(rf"(.*\.)?({pattern})$", name)), usual)


class Additions:
    """The pairs of an adapter, to be added to one model. Weights of equal numbers are one node, but a pair belongs to a
    name. So a weight that has a pair is built by its name alone, and replaced by its sum when the model is complete."""

    def __init__(self, adapter: Adapter, prefix: str):
        """`prefix` may come before the names of a family. Raises InputError for two pairs of one weight."""
        self.directory, self.pairs = adapter.directory, dict[str, tuple[str, LowRankPair]]()
        self.weights: dict[str, Data] = {}
        for name, pair in adapter.pairs.items():
            module = name.removeprefix(prefix)
            if module in self.pairs:
                raise InputError(
                    f"{self.directory}: {name!r} and {self.pairs[module][0]!r} are one weight of the "
                    "model: save the adapter with one of them"
                )
            self.pairs[module] = name, pair

    def held(self, tensor: str, weight: Data) -> Data:
        """Return the data that a family is to build with for the tensor of this name: a promise of that name if it has
        a pair, else `weight`."""
        if (module := tensor.removesuffix(".weight")) not in self.pairs:
            return weight
        self.weights[module] = weight
        return Promised(module, weight.shape)

    def put(self, model: "Operator") -> "Operator":
        """Return the model with x @ (W + Aᵀ Bᵀ · scale) for every weight that has a pair. Raises InputError for a pair
        whose weight the model does not have, or has in another shape."""
        from opmatrix.algebra.operators import diag, weight
        from opmatrix.algebra.term import substitute

        holders: dict[str, list[Operator]] = {module: [] for module in self.pairs}
        for node in model.walk():
            for data in (attribute.base or attribute for attribute in node.attributes if isinstance(attribute, Data)):
                if isinstance(data, Promised) and data.name not in holders:
                    raise InputError(
                        f"{self.directory}: it changes what {data.name!r} is made of, a table that is computed when "
                        "the model is read: merge the adapter by PEFT's merge_and_unload()"
                    )
                if isinstance(data, Promised):
                    holders[str(data.name)].append(node)
        instead = {}
        for module, (name, pair) in self.pairs.items():
            nodes, wanted = holders[module], (pair.first.shape[1], pair.second.shape[0])
            if [(node.kind.name, node.args[0].shape) for node in nodes] != [("weight", wanted)]:
                there = " and ".join(" x ".join(map(str, node.args[0].shape)) for node in nodes)
                raise InputError(
                    f"{self.directory}: {name!r} is for a weight of {wanted[0]} x {wanted[1]}, the model "
                    f"has {there or 'none of that name'}: take the adapter of this model"
                )
            A, B = (Data(tensor.read(), f"{name}.lora_{part}") for part, tensor in zip("AB", pair[:2], strict=True))
            scaled = Data(B.array.T.astype(np.float64) * pair.scale, B.name)
            whole = self.weights[module].T if nodes[0].args[0].base else self.weights[module]
            instead[nodes[0]] = weight(whole) + weight(A.T) @ weight(scaled)
            if pair.lengths is not None:
                gains = column_gains(whole.array + A.array.T.astype(np.float64) @ scaled.array, pair.lengths.read())
                instead[nodes[0]] @= diag(Data(gains, f"{name}.lora_magnitude_vector"))
        return substitute(model, instead)


def column_gains(summed: NDArray[np.float64], lengths: NDArray[Any]) -> NDArray[np.float32]:
    """Return the factors (out,) that give each column of `summed`, (in, out), its length. A column of zeros stays
    zero."""
    norms = np.linalg.norm(summed, axis=0)
    gains: NDArray[np.float64] = np.divide(lengths, norms, out=np.zeros(len(norms)), where=norms > 0)
    return gains.astype(np.float32)


def read_config(file: Path) -> dict[str, object]:
    """Read an adapter_config.json. Raises InputError, which names the key, for an adapter that is not plain LoRA."""
    try:
        config = read_json(file)
    except InputError as error:
        raise InputError(f"{error}: give the directory of an adapter") from error
    if not isinstance(config, dict):
        raise InputError(f"{file}: {type(config).__name__}, not a JSON object: mend it")
    for key in sorted(config.keys() - FREE):  # also keys of later versions of PEFT
        if config[key] not in PLAIN.get(key, (None, False, "", [], {})):
            raise InputError(
                f"{file}: {key} is {config[key]!r:.40}: the model would be computed otherwise: save it as "
                "plain LoRA, or merged by PEFT's merge_and_unload()"
            )
    return config
