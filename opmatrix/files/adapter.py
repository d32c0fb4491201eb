"""LoRA adapters (Hu et al. 2022) as PEFT saves them: beside a weight W of the model the product of two thin matrices,
times a number. Read when asked, like the weights."""
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.algebra.data import Data, Promised
from opmatrix.files.tensors import Tensor, header

if TYPE_CHECKING:
    from opmatrix.algebra.term import Operator

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
STEM, FIRST, SECOND = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
MAX_RANK, MAX_ALPHA = 1 << 16, 1e30
PLAIN: Mapping[str, tuple[Any, ...]] = {                    # keys whose other values change what is computed
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False, None), "modules_to_save": (None, []),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None), "layer_replication": (None, []),
    "lora_bias": (False, None), "use_qalora": (False, None), "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}), "init_lora_weights": (True, False, None, "gaussian")}
FREE = frozenset((                                          # keys that say how it was trained, or are read here
    "auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_config "
    "megatron_core peft_version qalora_group_size r revision target_modules task_type use_rslora velora_config"
    ).split())


class LowRankPair(NamedTuple):
    """What is added to one weight: B A times a scale, A (r, in) and B (out, r)."""
    first: Tensor
    second: Tensor
    scale: float


@dataclass(frozen=True)
class Adapter:
    """A directory's pairs, by what PEFT calls the modules that they belong to."""
    directory: Path
    pairs: Mapping[str, LowRankPair]

    @classmethod
    def read(cls, directory: str | Path) -> "Adapter":
        """Raises InputError where it is no LoRA adapter, is damaged, or does more than add B A to weights."""
        directory = Path(directory)
        file, said = directory / CONFIG, read_config(directory / CONFIG)
        rank, alpha = said.get("r"), said.get("lora_alpha")
        if not (type(rank) is int and 1 <= rank <= MAX_RANK):
            raise InputError(f"{file}: r is {rank!r:.40}: it must be a whole number from 1 to {MAX_RANK}")
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not abs(alpha) < MAX_ALPHA:
            raise InputError(f"{file}: lora_alpha is {alpha!r:.40}: it must be a number, below {MAX_ALPHA:g}")
        scale = alpha / (sqrt(rank) if said.get("use_rslora") is True else rank)
        tensors = header(directory / MATRICES)
        modules = {name.removeprefix(STEM).removesuffix(end): None for name in tensors for end in (FIRST, SECOND)
                   if name.startswith(STEM) and name.endswith(end)}
        if odd := tensors.keys() - {f"{STEM}{name}{end}" for name in modules for end in (FIRST, SECOND)}:
            raise InputError(f"{directory / MATRICES}: tensor {min(odd)!r} is none of LoRA's, {STEM}…{FIRST} and "
                             f"{SECOND}: the model would be computed without it")
        pairs = {}
        for name in modules:
            first, second = (tensors.get(f"{STEM}{name}{end}") for end in (FIRST, SECOND))
            if first is None or second is None or len(first.shape) != 2 or len(second.shape) != 2 or not (
                    first.shape[0] == second.shape[1] == rank):
                sizes = " and ".join(str(each and each.shape) for each in (first, second))
                raise InputError(f"{directory / MATRICES}: {name!r}: lora_A and lora_B are {sizes}: they must be "
                                 f"{rank} x in and out x {rank}")
            pairs[name] = LowRankPair(first, second, scale)
        if not pairs: raise InputError(f"{directory / MATRICES}: it holds no tensor: give the directory of an adapter")
        return cls(directory, pairs)


class Additions:
    """An adapter's pairs on their way into one model. Weights of equal numbers are one node, and a pair belongs to a
    name: so a weight that has one is built by its name alone, and exchanged for its sum when the model is there."""

    def __init__(self, adapter: Adapter, prefix: str):
        """`prefix` may stand before the names of a family. Raises InputError for two pairs of one weight."""
        self.directory, self.pairs = adapter.directory, dict[str, tuple[str, LowRankPair]]()
        self.weights: dict[str, Data] = {}
        for name, pair in adapter.pairs.items():
            module = name.removeprefix(prefix)
            if module in self.pairs:
                raise InputError(f"{self.directory}: {name!r} and {self.pairs[module][0]!r} are one weight of the "
                                 "model: save the adapter with one of them")
            self.pairs[module] = name, pair

    def held(self, tensor: str, weight: Data) -> Data:
        """What a family is to build with in place of a weight that it calls so: its name alone, if it has a pair."""
        if (module := tensor.removesuffix(".weight")) not in self.pairs: return weight
        self.weights[module] = weight
        return Promised(module, weight.shape)

    def put(self, model: "Operator") -> "Operator":
        """The model with x @ (W + Aᵀ Bᵀ · scale) for every weight that has a pair. Raises InputError for a pair whose
        weight the model does not have, or has in another shape."""
        from opmatrix.algebra.operators import weight
        from opmatrix.algebra.term import substitute
        holders: dict[str, list[Operator]] = {module: [] for module in self.pairs}
        for node in model.walk():
            for data in (each.base or each for each in node.attributes if isinstance(each, Data)):
                if isinstance(data, Promised): holders[str(data.name)].append(node)
        instead = {}
        for module, (name, pair) in self.pairs.items():
            nodes, wanted = holders[module], (pair.first.shape[1], pair.second.shape[0])
            if [(node.kind.name, node.args[0].shape) for node in nodes] != [("weight", wanted)]:
                there = " and ".join(" x ".join(map(str, node.args[0].shape)) for node in nodes)
                raise InputError(f"{self.directory}: {name!r} is for a weight of {wanted[0]} x {wanted[1]}, the model "
                                 f"has {there or 'none of that name'}: take the adapter of this model")
            A, B = (Data(each.read(), f"{name}.lora_{part}") for part, each in zip("AB", pair[:2], strict=True))
            scaled = Data(B.array.T.astype(np.float64) * pair.scale, B.name)
            whole = self.weights[module]
            instead[nodes[0]] = weight(whole.T if nodes[0].args[0].base else whole) + weight(A.T) @ weight(scaled)
        return substitute(model, instead)


def read_config(file: Path) -> dict[str, object]:
    """Raises InputError, which names the key, for what is no plain LoRA."""
    try: said = read_json(file)
    except InputError as error: raise InputError(f"{error}: give the directory of an adapter") from error
    if not isinstance(said, dict): raise InputError(f"{file}: {type(said).__name__}, not a JSON object: mend it")
    for key in sorted(said.keys() - FREE):                   # what PEFT may learn later, too, and then switches on
        if said[key] not in PLAIN.get(key, (None, False, "", [], {})):
            raise InputError(f"{file}: {key} is {said[key]!r:.40}: the model would be computed otherwise: save it as "
                             "plain LoRA, or merged by PEFT's merge_and_unload()")
    return said
