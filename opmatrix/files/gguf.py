"""GGUF: a magic, counts, keys with their values, the place of each tensor, then the tensors, aligned."""

import os
import struct
from collections.abc import Callable, Mapping
from io import BufferedReader
from math import nextafter, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import open_regular
from opmatrix.files.quantised import STORED
from opmatrix.files.tensors import MAX_AXES, Tensor, is_printable
from opmatrix.inference.pooling import Pooling

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
MAX_HEADER_BYTES, MAX_KEYS, MAX_STRING_BYTES = 1 << 27, 1 << 12, 1 << 20  # bytes of a header; keys; bytes of a string
MAX_PARTS = 1 << 10  # files of a model
SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}  # type number -> format character of struct
TEXT, ARRAY = 8, 9
TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    28: "F64",
    30: "BF16",
    39: "MXFP4",
}
OTHER_TYPES = {  # of ggml (enum ggml_type), which are not read
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
}
CONFIG_NAMES = {  # key of an architecture -> key of a config.json
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
}
EXPERT_NAMES = {  # the same for keys of architectures with experts
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
FREQUENCIES = "rope_freqs.weight"  # factors of a rotation's frequencies
PART_NAME = "{}-{:05d}-of-{:05d}.gguf"  # of a model in several files (llama.cpp, llama_split_path)
SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
DEFAULT_SCALING = "linear"  # the type if a file gives a factor alone; factor 0 means
# no scaling (llama.cpp, load_hparams)
KNOWN_KEYS = "vocab_size", "attention.value_length", "rope.dimension_count", "rope.scaling.finetuned"
REQUIRED = ("attention.layer_norm_rms_epsilon",)  # llama.cpp refuses a file of these families without it
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "command-r": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek2": "DeepseekV2ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
ROUTED = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}  # -> the model_type of transformers
ONE_ROW = "ffn_gate_inp_shexp", "token_types"  # matrices that are stored as vectors where they have one row


LAYER_NORM = "attention.layer_norm_epsilon"


class DecoderKeys(NamedTuple):
    """The family of an architecture, and what its files have beside the common keys: `names`, keys by names of a
    config; `required`, those that must be there; `settings` that no key has, as llama.cpp computes them. A model of
    `wide_layers` layers divides scores by the root of hidden_size / heads, others by that of a head's columns.
    `scaling`: settings of rotations that files scale."""

    family: str
    names: Mapping[str, str]
    required: tuple[str, ...] = REQUIRED
    settings: Mapping[str, object] = MappingProxyType({})
    wide_layers: int = 0
    scaling: Mapping[str, object] = MappingProxyType({})


WINDOW, LOGIT_SCALE = "attention.sliding_window", "logit_scale"
WINDOW_NAMES = {WINDOW: "sliding_window", f"{WINDOW}_pattern": "sliding_window_pattern"}
CENTRED_NAMES = {LAYER_NORM: "layer_norm_eps", LOGIT_SCALE: LOGIT_SCALE}
CAPPED_NAMES = {f"{scores}_logit_softcapping": f"{scores}_logit_softcapping" for scores in ("attn", "final")}
SINGLE_EXPERTS = {  # of models all of whose layers have experts, and no other units
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "intermediate_size",
}
GEMMA_SETTINGS = dict(gains_stored_whole=True, hidden_activation="gelu_pytorch_tanh")
DECODER_KEYS = {
    "gemma2": DecoderKeys(
        "gemma2",
        CAPPED_NAMES | WINDOW_NAMES,
        (*REQUIRED, WINDOW),
        GEMMA_SETTINGS | dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        wide_layers=46,
    ),
    "gemma3": DecoderKeys(
        "gemma3_text",
        CAPPED_NAMES | WINDOW_NAMES | {"rope.freq_base_swa": "rope_local_base_freq"},
        (*REQUIRED, WINDOW),
        GEMMA_SETTINGS,
        wide_layers=62,
    ),
    "command-r": DecoderKeys("cohere", CENTRED_NAMES, (LAYER_NORM, LOGIT_SCALE)),
    "cohere2": DecoderKeys("cohere2", CENTRED_NAMES | WINDOW_NAMES, (LAYER_NORM, LOGIT_SCALE, WINDOW)),
    "gpt-oss": DecoderKeys(
        "gpt_oss",
        {WINDOW: "sliding_window"} | SINGLE_EXPERTS,
        (*REQUIRED, WINDOW, *SINGLE_EXPERTS),
        dict(biases_apart=True),
        scaling={"truncate": False},  # as it was trained; llama.cpp rounds the borders of frequencies
    ),
}  # by general.architecture; files of others have the common keys alone
LATENT = "deepseek2"  # DeepSeek-V2 and V3
LATENT_NAMES = {name: CONFIG_NAMES[name] for name in CONFIG_NAMES if not name.endswith(("_kv", "key_length", "window"))}
LATENT_NAMES |= {
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
GATING, SHARES, LOGISTIC = "expert_gating_func", 1, 2  # how experts are scored
YARN_FACTOR = "rope.scaling.yarn_log_multiplier"  # a tenth of mscale_all_dim
HEAD_LENGTHS = "attention.key_length", "attention.value_length"  # with _mla: of a head; without it then of caches
LATENT_CHECKED = (*HEAD_LENGTHS, *(f"{name}_mla" for name in HEAD_LENGTHS), "attention.head_count_kv", "vocab_size")
SIZE_KEYS = "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length"
ENCODER_NAMES = {name: CONFIG_NAMES[name] for name in SIZE_KEYS} | {LAYER_NORM: "layer_norm_eps"}
POOLING, RANK, LABELS = "pooling_type", 4, "classifier.output_labels"
POOLING_MODES = {1: "mean", 2: "cls", 3: "lasttoken"}  # pooling_type -> the mode; 0: none is declared
CHECKED = "vocab_size", "attention.causal", "attention.head_count_kv", POOLING, LABELS
NOMIC_BIASES = {"attn_qkv": "qkv_proj_bias", "ffn_up": "mlp_fc1_bias", "ffn_down": "mlp_fc2_bias"}


class EncoderFile(NamedTuple):
    """The family of an architecture, its class in transformers, the names of its further keys, settings that its files
    do not hold, and those that their tensors tell, by their names."""

    family: str
    architecture: str
    names: Mapping[str, str] = MappingProxyType({})
    settings: Mapping[str, object] = MappingProxyType({})
    told: Callable[[Mapping[str, object]], dict[str, object]] = lambda tensors: {}


def told_nomic(tensors: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of products that have biases."""
    return {setting: f"blk.0.{part}.bias" in tensors for part, setting in NOMIC_BIASES.items()}


def told_jina(tensors: Mapping[str, object]) -> dict[str, object]:
    """Return the setting of units in two products, and the family of later models, whose queries are normed."""
    apart = {"gates_apart": "blk.0.ffn_gate.weight" in tensors}
    return apart | ({"model_type": "jina_bert_normed"} if "blk.0.attn_q_norm.weight" in tensors else {})


ROTATION_KEYS = MappingProxyType({"rope.freq_base": CONFIG_NAMES["rope.freq_base"]})
MIXTURE_KEYS = {"moe_every_n_layers": "moe_every_n_layers", "expert_count": "num_experts"}
ENCODER_FILES = {
    "bert": EncoderFile("bert", "BertModel", settings={"hidden_act": "gelu"}),
    "nomic-bert": EncoderFile(
        "nomic_bert", "NomicBertModel", ROTATION_KEYS, {"hidden_act": "silu", "rope_theta": 10000.0}
    ),
    "nomic-bert-moe": EncoderFile(
        "nomic_bert",
        "NomicBertModel",
        {**ROTATION_KEYS, **MIXTURE_KEYS, "expert_used_count": "moe_top_k"},
        {"activation_function": "gelu", "rope_theta": 10000.0, "experts_by_outputs": True},
        told_nomic,
    ),
    "jina-bert-v2": EncoderFile(
        "jina_bert", "JinaBertModel", settings={"position_embedding_type": "alibi"}, told=told_jina
    ),
}  # by general.architecture


class UnreadType(Exception):
    """A number type of tensors that is not read, though the file may be whole."""


class Header(NamedTuple):
    """The entries of a file by its own keys, and its tensors by their own names."""

    said: dict[str, object]
    tensors: dict[str, Tensor]


class Cursor:
    """Reads a header, at most MAX_HEADER_BYTES and never past the end of the file. Raises ValueError for more."""

    def __init__(self, raw: BufferedReader, size: int):
        self.raw, self.left, self.at = raw, min(size, MAX_HEADER_BYTES), 0

    def take(self, count: int) -> bytes:
        """Read a number of bytes. Raises ValueError if the header's limit or the file ends before."""
        if count > self.left:
            raise ValueError(f"it ends within the value that begins at byte {self.at}")
        self.left, self.at, data = self.left - count, self.at + count, self.raw.read(count)
        if len(data) != count:
            raise ValueError(f"it ends at byte {self.at}")
        return data

    def scalar(self, code: str) -> Any:
        """Read a number; a float32 as the shortest decimal that is rounded to it."""
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return float(str(np.float32(value))) if code == "f" else value

    def text(self) -> str:
        """Read a text, a length and UTF-8. Raises ValueError for more than MAX_STRING_BYTES."""
        length = self.scalar("Q")
        if length > MAX_STRING_BYTES:
            raise ValueError(f"a text of {length} bytes at byte {self.at}")
        return self.take(length).decode()

    def texts(self, count: int) -> list[str]:
        """Read `count` texts, as `text` reads one, without a call for each: a vocabulary has a hundred thousand."""
        strings, read, number = list[str](), self.raw.read, struct.Struct("<Q")
        for _ in range(count):
            if self.left < number.size:
                return [*strings, self.text()]  # raises with the byte where it ends
            head = read(number.size)
            if len(head) != number.size:
                raise ValueError(f"it ends at byte {self.at + number.size}")
            (length,) = number.unpack(head)
            self.left, self.at = self.left - number.size, self.at + number.size
            if length > MAX_STRING_BYTES:
                raise ValueError(f"a text of {length} bytes at byte {self.at}")
            if length > self.left:
                raise ValueError(f"it ends within the value that begins at byte {self.at}")
            words = read(length)
            self.left, self.at = self.left - length, self.at + length
            if len(words) != length:
                raise ValueError(f"it ends at byte {self.at}")
            strings.append(words.decode())
        return strings

    def value(self) -> object:
        """Read a value of the type that is stored before it: a text, a number, or a list of either. Raises ValueError
        for other types."""
        kind = self.scalar("I")
        if kind == TEXT:
            return self.text()
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind != ARRAY:
            raise ValueError(f"a value of type {kind} at byte {self.at}")
        kind, count = self.scalar("I"), self.scalar("Q")
        if count > self.left:
            raise ValueError(f"{count} values at byte {self.at}")
        if kind == TEXT:
            return self.texts(count)
        if kind not in SCALARS:
            raise ValueError(f"values of type {kind} at byte {self.at}")
        code = SCALARS[kind]
        return np.frombuffer(self.take(count * struct.calcsize(f"<{code}")), f"<{code}").tolist()


def read_header(file: Path) -> Header:
    """Read the header of a GGUF file. Raises InputError if it is no GGUF file, or not whole."""
    with open_regular(file) as raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            return header(Cursor(raw, size), file, size)
        except UnreadType as error:
            raise InputError(f"{file}: {error}") from error
        except (ValueError, OSError, struct.error) as error:
            raise InputError(f"{file}: {size} bytes that are no whole GGUF file ({error}): get it again") from error


def read_whole(file: Path) -> Header:
    """Read the header of a model, of all its files where it has several; `file` is the first. Raises InputError for
    another one, and for a file that is missing or belongs elsewhere."""
    first = read_header(file)
    parts = first.said.get("split.count", 1)
    if type(parts) is not int or not 1 <= parts <= MAX_PARTS:
        raise InputError(f"{file}: split.count is {parts!r:.40}: it must be a whole number from 1 to {MAX_PARTS}")
    if parts == 1:
        return first
    stem = file.name.removesuffix(PART_NAME.format("", 1, parts))
    if file.name != PART_NAME.format(stem, 1, parts):
        raise InputError(
            f"{file}: split.count is {parts}: the tensors of one model are in several files: give the first, called "
            f"{PART_NAME.format('NAME', 1, parts)}, beside the others"
        )
    names = [file.with_name(PART_NAME.format(stem, part, parts)) for part in range(1, parts + 1)]
    tensors = dict(first.tensors)
    for number, other in enumerate(names[1:], 1):
        more = read_header(other)
        place = more.said.get("split.no"), more.said.get("split.count")
        if place != (number, parts) or more.tensors.keys() & tensors:
            raise InputError(
                f"{other}: it is not part {number + 1} of {parts} of {file.name}: get all files of one model"
            )
        tensors |= more.tensors
    return Header(first.said | {"split.count": 1}, tensors)


def header(cursor: Cursor, file: Path, size: int) -> Header:
    """Read the keys and the place of each tensor. Raises ValueError for a wrong magic or version, a name used twice, or
    a tensor beyond the file's end."""
    if (magic := cursor.take(4)) != MAGIC:
        raise ValueError(f"it begins with {magic!r}")
    if (version := cursor.scalar("I")) not in VERSIONS:
        raise ValueError(f"it is of version {version}, not 2 or 3")
    tensors, keys = cursor.scalar("Q"), cursor.scalar("Q")
    if keys > MAX_KEYS or tensors > MAX_KEYS * 16:
        raise ValueError(f"it has {keys} keys and {tensors} tensors")
    entries: dict[str, object] = {}
    for _ in range(keys):
        if (name := cursor.text()) in entries or not is_printable(name):
            raise ValueError(f"a key is called {name[:40]!r}")
        entries[name] = cursor.value()
    tensor_entries = [read_tensor_entry(cursor) for _ in range(tensors)]
    side = entries.get("general.alignment", ALIGNMENT)
    if type(side) is not int or not 1 <= side <= 1 << 16 or side & side - 1:
        raise ValueError(f"its alignment is {side!r:.40}")
    start = -(-cursor.at // side) * side
    placed: dict[str, Tensor] = {}
    for name, number, shape, at in tensor_entries:
        if name in placed:
            raise ValueError(f"it has two tensors {name!r}")
        block = STORED[number]
        if shape[-1] % block.numbers:
            raise ValueError(f"tensor {name!r} has rows of {shape[-1]}, blocks {block.numbers}")
        if start + at + prod(shape) // block.numbers * block.block.itemsize > size:
            raise ValueError(f"it ends within tensor {name!r}")
        placed[name] = Tensor(file, name, number, shape, start + at)
    return Header(entries, placed)


def read_tensor_entry(cursor: Cursor) -> tuple[str, str, tuple[int, ...], int]:
    """Read the name, number type, shape (rows first) and offset of a tensor."""
    name, axes = cursor.text(), cursor.scalar("I")
    if not is_printable(name):
        raise ValueError(f"a tensor is called {name[:40]!r}")
    if not 1 <= axes <= MAX_AXES:
        raise ValueError(f"tensor {name!r} has {axes} axes")
    shape = tuple(cursor.scalar("Q") for _ in range(axes))[::-1]
    number, at = cursor.scalar("I"), cursor.scalar("Q")
    if number not in TENSOR_TYPES:
        known = OTHER_TYPES.get(number, "which no ggml that is known here has")
        raise UnreadType(
            f"tensor {name!r} has number type {number} ({known}), which is not read: quantise the model to one of "
            + ", ".join(TENSOR_TYPES.values())
        )
    if 0 in shape or prod(shape) >= 1 << 40 or at >= 1 << 48:
        raise ValueError(f"tensor {name!r} is {shape} at byte {at}")
    return name, TENSOR_TYPES[number], shape, at


# ---- GGUF keys and names of tensors, converted to those of configs and families


def config(found: Header, file: Path) -> dict[str, object]:
    """Return the config that a header describes. Raises InputError for another architecture, and for an unknown key:
    the model would be computed without it."""
    kind = found.said.get("general.architecture")
    if kind in ENCODER_FILES:
        return encoder_config(found, str(kind), file)
    if kind == LATENT:
        return latent_config(found, file)
    if kind not in FAMILIES:
        raise InputError(
            f"{file}: general.architecture is {kind!r:.40}: it must be one of {', '.join((*FAMILIES, *ENCODER_FILES))}"
        )
    entries, expert_entries = split_entries(found.said, kind)
    check_entries(entries, kind, file)
    settings = {CONFIG_NAMES[name]: value for name, value in entries.items() if name in CONFIG_NAMES}
    settings |= scaling_settings(entries) | factor_settings(found)
    settings |= head_settings(entries, settings, kind, file)
    settings |= decoder_settings(entries, settings, kind)
    routed = kind in ROUTED or expert_entries.get("expert_count", 0) != 0
    if routed:
        settings |= expert_settings(expert_entries, kind)
    family, architecture = transformers_names(kind, routed, "sliding_window" in settings)
    biased = "blk.0.attn_q.bias" in found.tensors
    if family == "qwen2_moe":
        settings["qkv_bias"] = biased
    if family == "cohere":
        settings["use_qk_norm"] = "blk.0.attn_q_norm.weight" in found.tensors
    embedding = found.tensors.get("token_embd.weight")
    return settings | dict(
        model_type=family,
        architectures=[architecture],
        vocab_size=entries.get("vocab_size") if embedding is None else embedding.shape[0],
        tie_word_embeddings="output.weight" not in found.tensors,
        attention_bias=biased,
    )


def encoder_config(opened: Header, kind: str, file: Path) -> dict[str, object]:
    """Return the config of an encoder (llama.cpp, build_bert). Raises InputError for an unknown key, a model that looks
    one way, and a table of kinds that is missing."""
    encoder, (entries, _) = ENCODER_FILES[kind], split_entries(opened.said, kind)
    names = {**ENCODER_NAMES, **encoder.names}
    refuse_unknown(entries, {*names, *CHECKED}, kind, file)
    for name, usual in (("attention.causal", False), ("attention.head_count_kv", entries.get("attention.head_count"))):
        if entries.get(name, usual) != usual:
            raise InputError(f"{file}: {kind}.{name} is {entries[name]!r:.40}: it must be {usual}, or left out")
    tables = {name: opened.tensors.get(f"{name}.weight") for name in ("token_embd", "token_types")}
    if (kinds := tables["token_types"]) is None:
        raise InputError(f"{file}: tensor 'token_types.weight' is missing: take another file")
    words = tables["token_embd"]
    return (
        dict(encoder.settings)
        | {names[name]: value for name, value in entries.items() if name in names}
        | dict(
            model_type=encoder.family,
            architectures=[encoder.architecture],
            vocab_size=entries.get("vocab_size") if words is None else words.shape[0],
            type_vocab_size=kinds.shape[0] if len(kinds.shape) > 1 else 1,
        )
        | encoder.told(opened.tensors)
        | (scoring_config(opened, kind, file) if entries.get(POOLING) == RANK else {})
    )


def scoring_config(opened: Header, kind: str, file: Path) -> dict[str, object]:
    """Return the settings of an encoder that scores texts: its class, and its labels (llama.cpp, build_pooling). Raises
    InputError for another head than a product with tanh and a product behind it."""
    inner, scores = (opened.tensors.get(f"{name}.weight") for name in ("cls", "cls.output"))
    if kind != "bert" or inner is None or scores is None:
        raise InputError(
            f"{file}: {kind}.{POOLING} is {RANK}: a head that scores texts is read of 'bert' with tensors 'cls' and "
            "'cls.output': take the directory that the file was made from"
        )
    count = scores.shape[0] if len(scores.shape) > 1 else 1
    labels = opened.said.get(f"{kind}.{LABELS}", [f"LABEL_{at}" for at in range(count)])
    if not isinstance(labels, list) or len(labels) != count:
        raise InputError(f"{file}: {kind}.{LABELS} is {labels!r:.40}: tensor 'cls.output.weight' has {count} labels")
    return dict(
        architectures=["BertForSequenceClassification"], id2label={str(at): name for at, name in enumerate(labels)}
    )


def latent_config(opened: Header, file: Path) -> dict[str, object]:
    """Return the config of a model of latent attention (llama.cpp, deepseek2.cpp): DeepSeek-V3 where experts are scored
    by a logistic function, else V2. Raises InputError for an unknown key, and for heads without their columns."""
    entries = {name.removeprefix(f"{LATENT}."): value for name, value in opened.said.items() if name.startswith(LATENT)}
    refuse_unknown(entries, {*LATENT_NAMES, *SCALING, *LATENT_CHECKED, GATING, YARN_FACTOR}, LATENT, file)
    if (gating := entries.get(GATING, SHARES)) not in (0, SHARES, LOGISTIC):
        raise InputError(f"{file}: {LATENT}.{GATING} is {gating!r:.40}: it must be {SHARES} or {LOGISTIC}")
    settings = {LATENT_NAMES[name]: value for name, value in entries.items() if name in LATENT_NAMES}
    settings |= scaling_settings(entries) | latent_heads(entries, file)
    if isinstance(scaling := settings.get("rope_scaling"), dict):
        scaling |= {"attention_factor": 1.0, "mscale_all_dim": yarn_multiple(entries, file)}
    groups = settings.get("n_group", 1)
    family = "deepseek_v3" if gating == LOGISTIC else "deepseek_v2"
    chosen: dict[str, object] = dict(n_group=groups, topk_group=settings.get("topk_group", groups))
    if gating != LOGISTIC:
        chosen = dict(topk_method="greedy" if groups == 1 else "group_limited_greedy")
    embedding = opened.tensors.get("token_embd.weight")
    return (
        dict(norm_topk_prob=False)
        | settings
        | chosen
        | dict(
            model_type=family,
            architectures=[FAMILIES[LATENT].replace("V2", family[-2:].upper())],
            kv_b_by_head="blk.0.attn_k_b.weight" in opened.tensors,
            routed_scaling_factor=settings.get("routed_scaling_factor") or 1.0,
            vocab_size=entries.get("vocab_size") if embedding is None else embedding.shape[0],
            tie_word_embeddings="output.weight" not in opened.tensors,
        )
    )


def latent_heads(entries: Mapping[str, object], file: Path) -> dict[str, object]:
    """Return the columns of a head of queries and keys that stay, and those of one of values. Raises InputError for
    columns that are missing, or none that stay."""
    names = [f"{name}_mla" if f"{name}_mla" in entries else name for name in HEAD_LENGTHS]
    columns, values, turning = (entries.get(name) for name in (*names, "rope.dimension_count"))
    if type(columns) is not int or type(turning) is not int or turning >= columns:
        raise InputError(
            f"{file}: {LATENT}.{names[0]} is {columns!r:.40}: it must be more than rope.dimension_count, "
            f"{turning!r:.40}"
        )
    return dict(qk_nope_head_dim=columns - turning, v_head_dim=values)


def yarn_multiple(entries: Mapping[str, object], file: Path) -> float:
    """Return the multiple of the logarithm of the longer length, mscale_all_dim. Raises InputError for no number."""
    stated = entries.get(YARN_FACTOR, 0.0)
    if not isinstance(stated, float):
        raise InputError(f"{file}: {LATENT}.{YARN_FACTOR} is {stated!r:.40}: it must be a number")
    return round(10 * stated, 9)


def read_pooling(found: Header, file: Path) -> Pooling | None:
    """Return the pooling of an encoder, normalised as llama.cpp's is by default, and the mean where none is declared;
    that of a head is the first row, as it is; None for a language model. Raises InputError for another pooling_type."""
    if (kind := str(found.said["general.architecture"])) not in ENCODER_FILES:
        return None
    number, longest = (found.said.get(f"{kind}.{name}") for name in (POOLING, "context_length"))
    if number == RANK:
        return Pooling(("cls",), False, int(str(longest)))
    if number not in (None, 0, *POOLING_MODES):
        raise InputError(f"{file}: {kind}.{POOLING} is {number!r:.40}: supported are 0 to {RANK}")
    return Pooling((POOLING_MODES[number] if type(number) is int and number else "mean",), True, int(str(longest)))


def split_entries(keys: Mapping[str, object], kind: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the entries of an architecture without its name, and those of its experts apart."""
    entries = {name.removeprefix(f"{kind}."): value for name, value in keys.items() if name.startswith(f"{kind}.")}
    if kind not in ROUTED and (kind != "llama" or "expert_count" not in entries):
        return entries, {}
    expert_entries = {name: entries.pop(name) for name in EXPERT_NAMES if name in entries}
    return entries, expert_entries


def check_entries(entries: Mapping[str, object], kind: str, file: Path) -> None:
    """Raise InputError for an entry that is unknown or missing, and for a window in layers that no entry names."""
    declared = DECODER_KEYS.get(kind, DecoderKeys(kind, {}))
    refuse_unknown(entries, {*CONFIG_NAMES, *SCALING, *KNOWN_KEYS, *declared.names}, kind, file)
    for name in declared.required:
        if name not in entries:
            raise InputError(f"{file}: {kind}.{name} is missing: take another file")
    if kind != "llama" and WINDOW in {*entries} - {*declared.names}:  # no file says which layers have the window
        raise InputError(
            f"{file}: {kind}.attention.sliding_window is {entries['attention.sliding_window']!r:.40}: the "
            "model would be computed without it"
        )


def refuse_unknown(entries: Mapping[str, object], known: set[str], kind: str, file: Path) -> None:
    """Raise InputError for an entry of an architecture that is not known."""
    if unknown := entries.keys() - known:
        raise InputError(
            f"{file}: {kind}.{min(unknown)} is {entries[min(unknown)]!r:.40}: the model would be computed without it"
        )


def scaling_settings(entries: Mapping[str, object]) -> dict[str, object]:
    """Return the setting of scaled rotations; none where the entries do not scale them."""
    scaling = {"rope_type": DEFAULT_SCALING} | {
        SCALING[name]: value for name, value in entries.items() if name in SCALING
    }
    if scaling["rope_type"] == "none":
        return {}
    if scaling["rope_type"] == DEFAULT_SCALING and scaling.get("factor", 0) == 0:
        return {}
    return {"rope_scaling": scaling}


def factor_settings(whole: Header) -> dict[str, object]:
    """Return the setting of rotations with a factor for each frequency; none where a file has no such tensor. Raises
    InputError as `Tensor.read`."""
    if (tensor := whole.tensors.get(FREQUENCIES)) is None:
        return {}
    factors = tensor.read().ravel().tolist()
    return {"rope_scaling": {"rope_type": "factors", "frequency_factors": factors}}


def head_settings(
    entries: Mapping[str, object], settings: Mapping[str, object], kind: str, file: Path
) -> dict[str, object]:
    """Return the settings of a head: its columns, and the share of them that rotates; none where a file gives no
    columns. Raises InputError for heads that no family computes."""
    columns = head_columns(settings)
    if type(columns) is not int:
        return {}
    turning, values = (entries.get(name, columns) for name in ("rope.dimension_count", "attention.value_length"))
    if type(turning) is not int or not 1 <= turning <= columns:
        raise InputError(
            f"{file}: {kind}.rope.dimension_count is {turning!r:.40}: it must be a whole number from "
            f"1 to {columns}, a head's columns"
        )
    if kind == "llama" and turning != columns:  # its rows are stored in pairs: llama.cpp takes no other
        raise InputError(
            f"{file}: {kind}.rope.dimension_count is {turning}: it must be {columns}, a head's "
            "columns, in files of this architecture"
        )
    if values != columns:
        raise InputError(
            f"{file}: {kind}.attention.value_length is {values!r:.40}: it must be {columns}, as of queries and keys"
        )
    return {"head_dim": columns, "partial_rotary_factor": turned_share(turning, columns)}


def decoder_settings(entries: Mapping[str, object], settings: Mapping[str, object], kind: str) -> dict[str, object]:
    """Return the settings that an architecture has besides the common ones; none for most."""
    if kind not in DECODER_KEYS:
        return {}
    declared = DECODER_KEYS[kind]
    more = dict(declared.settings) | {declared.names[name]: entries[name] for name in declared.names if name in entries}
    if declared.wide_layers:
        wide = entries.get("block_count") == declared.wide_layers
        columns = head_columns({key: value for key, value in settings.items() if key != "head_dim" or not wide})
        more["query_pre_attn_scalar"] = columns
    if isinstance(scaling := settings.get("rope_scaling"), dict):
        more["rope_scaling"] = scaling | dict(declared.scaling)
    return more


def head_columns(settings: Mapping[str, object]) -> object:
    """Return the columns of a head: as a file gives them, else an equal share of the model's; None without either."""
    if columns := settings.get("head_dim"):
        return columns
    heads, width = settings.get("num_attention_heads"), settings.get("hidden_size")
    if type(heads) is int and type(width) is int and heads:
        return width // heads
    return None


def expert_settings(entries: Mapping[str, object], kind: str) -> dict[str, object]:
    """Return the settings of experts, by the names of the family."""
    settings = {EXPERT_NAMES[name]: value for name, value in entries.items()}
    if kind == "llama":
        settings["num_local_experts"] = settings.pop("num_experts")
    else:
        settings["norm_topk_prob"] = kind == "qwen3moe"  # as llama.cpp computes them
    return settings


def transformers_names(kind: str, routed: bool, windowed: bool) -> tuple[str, str]:
    """Return a model's type and class in transformers: a llama with experts is a Mixtral, one with a window a
    Mistral."""
    if kind in ROUTED:
        return ROUTED[kind], FAMILIES[kind]
    if kind in DECODER_KEYS:
        return DECODER_KEYS[kind].family, FAMILIES[kind]
    if kind == "llama" and routed:
        return "mixtral", "MixtralForCausalLM"
    if kind == "llama" and windowed:
        return "mistral", FAMILIES[kind]
    return kind, FAMILIES[kind]


def turned_share(some: int, of: int) -> float:
    """Return a share s of `of` columns with int(s * of) == `some`, in spite of rounding."""
    near = some / of
    return near if int(near * of) == some else nextafter(near, 1)


def rename_tensors(
    found: Header, called: Mapping[str, str], permuted: tuple[str, ...], heads: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return the tensors by a family's names. Raises InputError for a tensor that the family does not know. The rows of
    queries and keys of a LLaMA are stored in pairs: `heads` gives the number of heads of each."""
    renamed = {}
    for name, tensor in found.tensors.items():
        if name == FREQUENCIES:
            continue
        stem, _, end = name.rpartition(".")
        parts = stem.split(".")
        layer = parts[1] if parts[0] == "blk" and len(parts) > 2 and parts[1].isdecimal() else ""
        pattern = ".".join(["blk", "#", *parts[2:]]) if layer else stem
        if pattern not in called or end not in ("weight", "bias"):
            raise InputError(
                f"{tensor.file}: tensor {name!r} is not part of this model family: the file was made for another model"
            )
        if parts[-1] in ONE_ROW and len(tensor.shape) == 1:
            tensor = tensor._replace(shape=(1, *tensor.shape))
        pairs = heads[parts[-1]] if parts[-1] in permuted else 0
        renamed[f"{called[pattern].replace('#', layer)}.{end}"] = tensor._replace(pairs=pairs)
    return renamed
