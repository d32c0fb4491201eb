"""A program as a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), which llama.cpp runs: the
tensors of its plain class under the names of that format, blocks byte for byte, and its tokenizer as keys. The file is
read again and compared with the program before it takes its place."""

from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.exports.checkpoints.gguf_encoder import (
    ENCODERS,
    count_positions,
    describe_encoder,
    describe_words,
    note_encoder,
    widen_tables,
)
from opmatrix.exports.checkpoints.gguf_tokens import TokenKeys, check_read_alike, describe_tokens
from opmatrix.exports.checkpoints.plain_class import (
    BLOCKS,
    LayerSizes,
    PlainModel,
    check_uniform,
    describe_sizes,
    is_tied,
    naming,
    no_place,
    read_plain,
)
from opmatrix.exports.checkpoints.plain_files import check_written, compare_plain, narrow_numbers, plain_config
from opmatrix.exports.checkpoints.stored_numbers import StoredNumbers
from opmatrix.exports.exported_files import fresh_files
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.files.gguf import FREQUENCIES
from opmatrix.inference.pooling import Pooling
from opmatrix.models import layout, normalise_config
from opmatrix.models.config import Settings
from opmatrix.models.encoders.masked_head import TOKEN_TABLE
from opmatrix.models.rope import ROPE_TYPES, rotation_settings
from opmatrix.runtime.program import Program

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # family -> the file's name
ORIGINAL = "original_max_position_embeddings"
KEYED_SCALINGS = {"linear": ("factor",), "yarn": ("factor", ORIGINAL)}  # types of rotations with keys of their own
SCALING_KEYS = {"factor": "rope.scaling.factor", ORIGINAL: "rope.scaling.original_context_length"}
SWISH_NAMES = "silu", "swish"  # names of the one that files of these families mean
UNSCALED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}  # settings of a rotation that scale nothing


class FileTensor(NamedTuple):
    """A tensor as a file holds it: its type's name, and its numbers, or the bytes of its rows of blocks."""

    kind: str
    array: NDArray[np.generic]


class FileParts(NamedTuple):
    """Parts of a file beside the tensors of a plain class: keys without the name of its architecture, tokens, further
    tensors."""

    keys: Mapping[str, object]
    tokens: TokenKeys
    tables: dict[str, FileTensor]


def export_gguf(program: Program, target: str | Path) -> str:
    """Write a program of LLaMA's kin, of BERT or of NomicBert as a GGUF file; return what was written, in words. Raises
    InputError without the package gguf, for a program that such a file cannot hold, named by step, tensor or layer, and
    for a target that exists or cannot be written."""
    with naming("--gguf"):
        if find_spec("gguf") is None:
            raise InputError("it needs the package gguf: pip install 'opmatrix[export]'")
        return write_gguf(program, Path(target))


def write_gguf(program: Program, place: Path) -> str:
    """Write a program as `export_gguf`. Raises as it does, without the name of the option."""
    config = plain_config(program)
    family = str(config.get("model_type"))
    written = {**ARCHITECTURES, **ENCODERS}
    if family not in written:
        raise InputError(f"a program of {family}: only {', '.join(written)} are written: give --hf or --onnx")
    pooling = check_written(program)
    model = read_plain(program, family, is_tied(config), [BLOCKS])
    if model.corrections:
        raise InputError(f"{min(model.corrections)} has a low-rank product beside it: give --hf, --onnx or --torch")
    sizes = check_uniform(model.layers)
    settings = {**normalise_config(config), "model_type": family}
    parts = encoder_parts if family in ENCODERS else decoder_parts
    keys, tokens, tables = parts(program, settings, model, sizes, pooling)
    tensors = name_tensors(model, config, sizes) | tables
    with fresh_files(place) as fresh:
        write_file(fresh / place.name, written[family], keys, tokens, tensors)
        difference = compare_plain(program, fresh / place.name)
        check_read_alike(program.meta["tokenizer"], Checkpoint.open(fresh / place.name).tokenizer_text or "")
    return describe_file(place, model, sizes, tensors, tokens.notes, difference)


def encoder_parts(
    program: Program, config: Settings, model: PlainModel, sizes: LayerSizes, pooling: Pooling
) -> FileParts:
    """Return the keys of an encoder, and its word pieces. Raises InputError as `describe_encoder` and
    `describe_words`."""
    keys = describe_encoder(config, model, sizes, pooling)
    tokens = describe_words(program.meta, len(model.tensors[TOKEN_TABLE].numbers))
    widen_tables(model)
    notes = note_encoder(pooling, count_positions(config, model))
    return FileParts(keys, tokens._replace(notes=[*tokens.notes, *notes]), {})


def decoder_parts(
    program: Program, config: Settings, model: PlainModel, sizes: LayerSizes, pooling: Pooling
) -> FileParts:
    """Return the keys of a language model, its tokens, and the tensor of its rotation if it has one. Raises InputError
    for a program without a head, and as `describe_model` and `describe_tokens`."""
    if not model.head:
        raise InputError("the program gives rows, and a GGUF file of its family scores a vocabulary: give --hf")
    if (activation := config["hidden_act"]) not in SWISH_NAMES:
        raise no_place(f"the activation {activation}", f"is none of {', '.join(SWISH_NAMES)}")
    tokens = describe_tokens(program.meta, len(model.tensors["embed_tokens.weight"].numbers))
    keys, factors = describe_model(config, model, sizes)
    tables = {} if factors is None else {FREQUENCIES: FileTensor("F32", factors)}
    return FileParts(keys, tokens._replace(notes=[*tokens.notes, *note_window(config)]), tables)


# ---- keys


def describe_model(
    config: Settings, model: PlainModel, sizes: LayerSizes
) -> tuple[dict[str, int | float | str], Floats | None]:
    """Return the keys of a model, without the name of its architecture, and the factors of its rotation's frequencies
    if it has some. Raises InputError for a rotation or a window that the file cannot hold."""
    words, width = model.tensors["embed_tokens.weight"].numbers.shape
    rotation: Settings = rotation_settings(config)
    turning = int(sizes.columns * rotation.get("partial_rotary_factor", 1.0))
    keys: dict[str, int | float | str] = {
        "vocab_size": words,
        "context_length": config["max_position_embeddings"],
        "embedding_length": width,
        "block_count": len(model.layers),
        "feed_forward_length": sizes.units,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.key_heads,
        "attention.key_length": sizes.columns,
        "attention.value_length": sizes.columns,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": turning,
        "rope.freq_base": float(rotation["rope_theta"]),
    }
    if window := config.get("sliding_window"):
        if config["model_type"] == "mistral":
            keys["attention.sliding_window"] = window
        elif config.get("use_sliding_window"):
            raise no_place(f"a window of {window}", "is that of some layers")
    scaling, factors = describe_scaling(config, turning)
    return keys | scaling, factors


def describe_scaling(config: Settings, turning: int) -> tuple[dict[str, float | str], Floats | None]:
    """Return the keys of a scaled rotation, or a factor for each pair of the columns that turn. Raises InputError for
    one that has neither."""
    said = {name: value for name, value in rotation_settings(config).items() if value is not None}
    stated: Settings = {ORIGINAL: config["max_position_embeddings"], **said}
    kind = str(stated.get("rope_type") or "default")
    if kind in KEYED_SCALINGS:
        names = KEYED_SCALINGS[kind]
        if more := stated.keys() - UNSCALED - {*names, ORIGINAL}:
            raise no_place(f"{min(more)} of a rotation of type {kind}", "has no key")
        return {"rope.scaling.type": kind} | {SCALING_KEYS[name]: stated[name] for name in names}, None
    if kind == "default":
        return {}, None
    turns = stated["rope_theta"] ** (-np.arange(0, turning, 2) / turning)
    scaled, scale = ROPE_TYPES[kind][0](turns, stated["rope_theta"], stated)
    if scale != 1:
        raise no_place(f"a rotation of type {kind}", "scales scores")
    return {}, (turns / scaled).astype(np.float32)


def note_window(config: Settings) -> list[str]:
    """Return a note of a window, which llama.cpp reads of no file of this architecture."""
    if config["model_type"] != "mistral" or not (window := config.get("sliding_window")):
        return []
    return [f"llama.cpp knows no window of {window} in files of llama: there longer texts see all of their tokens"]


# ---- tensors


def name_tensors(model: PlainModel, config: Settings, sizes: LayerSizes) -> dict[str, FileTensor]:
    """Return the tensors by the names of GGUF files. Rows of a LLaMA's queries and keys are stored in pairs."""
    names = layout(config)
    theirs = {ours: name for name, ours in names.gguf.items()}
    heads = {"attn_q": sizes.heads, "attn_k": sizes.key_heads}
    renamed = dict[str, FileTensor]()
    for name, tensor in model.tensors.items():
        stem, _, end = name.rpartition(".")
        layer = next((part for part in stem.split(".") if part.isdecimal()), "")
        called = theirs[stem.replace(f".{layer}.", ".#.") if layer else stem]
        part = called.split(".")[-1]
        stored = file_tensor(tensor)
        if part in names.permuted:
            stored = stored._replace(array=in_pairs(stored.array, heads[part]))
        renamed[f"{called.replace('#', layer)}.{end}"] = stored
    return renamed


def in_pairs(array: NDArray[np.generic], heads: int) -> NDArray[np.generic]:
    """Return rows of heads whose halves turn together as files of LLaMA have them: both columns of a pair side by side
    (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute)."""
    halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def file_tensor(tensor: StoredNumbers) -> FileTensor:
    """Return a tensor as it is stored: blocks as rows of bytes, matrices in their number type, rows in float32."""
    if tensor.blocks is not None:
        return FileTensor(tensor.number, np.ascontiguousarray(tensor.blocks).view(np.uint8))
    if tensor.numbers.ndim < 2:
        return FileTensor("F32", np.ascontiguousarray(tensor.numbers, np.float32))
    return FileTensor(tensor.number, narrow_numbers(tensor.numbers, tensor.number))


# ---- the file


def write_file(
    file: Path, architecture: str, keys: Mapping[str, object], tokens: TokenKeys, tensors: Mapping[str, FileTensor]
) -> None:
    """Write a file by the package gguf."""
    import gguf

    writer = gguf.GGUFWriter(file, architecture)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    entries = {f"{architecture}.{name}": value for name, value in keys.items()} | tokens.keys
    for name, value in entries.items():
        add_entry(writer, name, value)
    for name, (kind, array) in tensors.items():
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, array.view(np.uint8) if kind == "BF16" else array, raw_dtype=number)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def add_entry(writer: "GGUFWriter", name: str, value: object) -> None:
    """Add a key with a value of its type: text, a flag, a number, or a list of either."""
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, list):
        writer.add_array(name, value)


def describe_file(
    place: Path,
    model: PlainModel,
    sizes: LayerSizes,
    tensors: Mapping[str, FileTensor],
    notes: list[str],
    difference: float,
) -> str:
    """Return what was written, in words."""
    counts = Counter(tensor.kind for tensor in tensors.values())
    widened = {name: tensor for name, tensor in model.tensors.items() if tensor.called}
    lines = [
        f"{place}, {place.stat().st_size / 1e6:,.1f} MB: " + ", ".join(f"{kind} x{counts[kind]}" for kind in counts),
        describe_sizes(model, sizes),
        *notes,
    ]
    if widened:
        name, tensor = next(iter(widened.items()))
        lines += [f"{len(widened)} tensors in F32, the first {name}: {tensor.called}"]
    return "\n".join([*lines, f"off by {difference:.1g} of the program, in float64"])
