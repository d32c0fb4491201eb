"""GGUF files of BERT and its kin (llama.cpp, build_bert): their keys as a config and as a pooling."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.files.gguf import CONFIG_NAMES, Header, refuse_parts, refuse_unknown
from opmatrix.inference.pooling import Pooling

NORM = "attention.layer_norm_epsilon"
SIZE_KEYS = "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length"
ENCODER_NAMES = {name: CONFIG_NAMES[name] for name in SIZE_KEYS} | {NORM: "layer_norm_eps"}
POOLING, RANK = "pooling_type", 4
MODES = {1: "mean", 2: "cls", 3: "lasttoken"}  # pooling_type -> the mode; 0: none is declared
CHECKED = "vocab_size", "attention.causal", "attention.head_count_kv", POOLING


class EncoderFile(NamedTuple):
    """The family of an architecture, its class in transformers, the names of its further keys, and settings that its
    files do not hold."""

    family: str
    architecture: str
    names: Mapping[str, str] = MappingProxyType({})
    settings: Mapping[str, object] = MappingProxyType({})


ROTATION_KEYS = MappingProxyType({"rope.freq_base": CONFIG_NAMES["rope.freq_base"]})
ENCODER_FILES = {
    "bert": EncoderFile("bert", "BertModel", settings={"hidden_act": "gelu"}),
    "nomic-bert": EncoderFile(
        "nomic_bert", "NomicBertModel", ROTATION_KEYS, {"hidden_act": "silu", "rope_theta": 10000.0}
    ),
}  # by general.architecture


def holds_encoder(header: Header) -> bool:
    """True if a header describes an encoder of ENCODER_FILES."""
    return header.said.get("general.architecture") in ENCODER_FILES


def config(header: Header, file: Path) -> dict[str, object]:
    """Return the config that a header describes. Raises InputError for an unknown key, a model that looks one way, and
    a table of kinds that is missing."""
    kind = str(header.said["general.architecture"])
    encoder = ENCODER_FILES[kind]
    entries = {
        name.removeprefix(f"{kind}."): value for name, value in header.said.items() if name.startswith(f"{kind}.")
    }
    names = ENCODER_NAMES | encoder.names
    refuse_unknown(entries, {*names, *CHECKED}, kind, file)
    refuse_parts(header.said.get("split.count", 1), file)
    for name, usual in (("attention.causal", False), ("attention.head_count_kv", entries.get("attention.head_count"))):
        if entries.get(name, usual) != usual:
            raise InputError(f"{file}: {kind}.{name} is {entries[name]!r:.40}: it must be {usual}, or left out")
    if entries.get(POOLING) == RANK:
        raise InputError(
            f"{file}: {kind}.{POOLING} is {RANK}: a head that scores texts is not read from a GGUF file: "
            "take the directory that the file was made from"
        )
    tables = {name: header.tensors.get(f"{name}.weight") for name in ("token_embd", "token_types")}
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
    )


def read_pooling(header: Header, file: Path) -> Pooling:
    """Return the pooling that a header declares, normalised as llama.cpp's is by default; the mean where it declares
    none. Raises InputError for another pooling_type."""
    kind = str(header.said["general.architecture"])
    number, longest = (header.said.get(f"{kind}.{name}") for name in (POOLING, "context_length"))
    if number not in (None, 0, *MODES):
        raise InputError(f"{file}: {kind}.{POOLING} is {number!r:.40}: supported are 0 to {max(MODES)}")
    return Pooling((MODES[number] if type(number) is int and number else "mean",), True, int(str(longest)))
