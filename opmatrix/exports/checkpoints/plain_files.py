"""A program as a directory that transformers and sentence-transformers open as the plain class: configuration, weights,
tokenizer, modules, pooling and prompts. It is read again and compared with the program before it takes its place."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from formats.core.errors import InputError
from formats.storage.bf16 import nearest
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.exports.checkpoints.compressed import (
    SAFETENSORS,
    Scheme,
    compress,
    decompress,
    describe_schemes,
    part_names,
)
from opmatrix.exports.checkpoints.peft_adapter import ADAPTER, describe_adapter, write_adapter
from opmatrix.exports.checkpoints.plain_class import (
    CLASSES,
    INTEGERS,
    PACKING_FAMILIES,
    LayerSizes,
    PlainModel,
    check_uniform,
    describe_sizes,
    is_tied,
    naming,
    no_place,
    read_plain,
)
from opmatrix.exports.checkpoints.stored_numbers import StoredNumbers
from opmatrix.exports.exported_files import fresh_files
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.files.directory.declared import KNOWN
from opmatrix.files.directory.model_files import (
    CONFIG,
    GENERATION,
    MODULES,
    PROMPTS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TRANSFORMER,
    WEIGHTS,
)
from opmatrix.files.mapped import write_entries
from opmatrix.inference.pooling import Pooling
from opmatrix.models import spelling
from opmatrix.models.config import Settings
from opmatrix.runtime.program import Program

DIFFERENCE = 1e-5  # largest relative difference of the directory's model from the program, in float64
COMPARED_LENGTHS = 7, 1, 4  # tokens of the texts that both are compared on
TORCH_NUMBERS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SPECIAL = {
    "unk_token": ("[UNK]", "<unk>"),
    "sep_token": ("[SEP]", "</s>"),
    "cls_token": ("[CLS]", "<s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "pad_token": ("[PAD]", "<pad>"),
}  # roles of tokens, with the texts that they have in vocabularies
ALIGNED = 8  # bytes that a header of safetensors is a multiple of
SENTENCE_MODULES = "sentence_transformers.models"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"


def export_plain(program: Program, target: str | Path) -> str:
    """Write a program as a directory of its plain class; return what was written, in words. Raises InputError for a
    program that its class cannot hold, named by step, tensor or layer, and for a target that exists or cannot be
    written."""
    with naming("--hf"):
        return write_plain(program, Path(target))


def write_plain(program: Program, place: Path) -> str:
    """Write a program as `export_plain`. Raises as it does, without the name of the option."""
    config = plain_config(program)
    family, pooling = str(config.get("model_type")), check_written(program)
    model = read_plain(program, family, is_tied(config), [] if family in PACKING_FAMILIES else [INTEGERS])
    sizes = check_uniform(model.layers)
    settings = describe_config(config, family, model, sizes)
    tensors = name_tensors(model, family, settings)
    with fresh_files(place) as fresh:
        folder, widened = fresh / place.name, fresh / "widened"
        folder.mkdir()
        schemes = describe_schemes(tensors)
        write_json(folder / CONFIG, {**settings, "quantization_config": schemes} if schemes else settings)
        write_weights(folder / WEIGHTS, tensors)
        write_text_files(folder, program, pooling, settings)
        if model.corrections:
            write_adapter(folder / ADAPTER, model.corrections, model.head)
        if schemes:
            widened.mkdir()
            write_json(widened / CONFIG, settings)
            write_weights(widened / WEIGHTS, read_widened(folder / WEIGHTS, tensors))
            write_text_files(widened, program, pooling, settings)
        adapter = folder / ADAPTER if model.corrections else None
        difference = compare_plain(program, widened if schemes else folder, adapter)
    return describe(place, settings, model, sizes, difference)


def plain_config(program: Program) -> Settings:
    """Return the configuration of the model that a program was made of. Raises InputError if there is none."""
    config = program.meta.get("config")
    if not isinstance(config, Mapping):
        raise InputError("the program names no configuration: only one made of a checkpoint has a plain class")
    return dict(config)


def check_written(program: Program) -> Pooling:
    """Return the pooling of a program. Raises InputError for one that scores texts or has parts behind its pooled
    rows."""
    pooling = Pooling.parsed(program.meta.get("pooling"), "meta: pooling")
    if not program.plain:
        raise InputError("the program has inputs, state or several outputs, and its plain class has none")
    if program.meta.get("scoring"):
        raise InputError("the program scores texts, and its head is not written: give --onnx or --torch")
    if pooling.layers or pooling.sparse:
        behind = ", ".join(pooling.layers) or "a head of sparse rows"
        raise InputError(f"{behind} behind pooled rows is not written: give --onnx or --torch")
    return pooling


# ---- configuration and weights


def describe_config(source: Settings, family: str, model: PlainModel, sizes: LayerSizes) -> Settings:
    """Return the configuration of the class with the program's sizes. Raises InputError for heads that it cannot
    have."""
    config, heads = dict(source), spelling(source, "num_attention_heads")
    table = next(iter(model.tensors.values()))  # of tokens
    if "embed_tokens.weight" in model.tensors:
        config |= {"num_key_value_heads": sizes.key_heads, "head_dim": sizes.columns}
        config["tie_word_embeddings"] = model.tied
    elif sizes.heads * sizes.columns != table.numbers.shape[1]:
        raise no_place(f"{sizes.heads} heads of {sizes.columns}", "are fewer columns than the model has")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) != len(model.layers):
        if len({*kinds}) > 1:
            raise no_place("a layer that was left out", f"is one of several kinds ({', '.join(sorted({*kinds}))})")
        config["layer_types"] = kinds[: len(model.layers)]
    if (positions := model.tensors.get("embeddings.position_embeddings.weight")) is not None:
        config["max_position_embeddings"] = len(positions.numbers) + first_position(config, family)
    plain = CLASSES[family]
    return config | {
        heads: sizes.heads,
        spelling(config, "intermediate_size"): sizes.units,
        spelling(config, "num_hidden_layers"): len(model.layers),
        "architectures": [f"{plain.removesuffix('Model')}ForCausalLM" if model.head else plain],
        "dtype": "float32",
    }


def first_position(config: Settings, family: str) -> int:
    """Return the row of the first position in the table of a family."""
    if CLASSES[family].removesuffix("Model") not in ("Roberta", "XLMRoberta", "Camembert"):
        return 0
    return int(config.get("pad_token_id", 1)) + 1


def name_tensors(model: PlainModel, family: str, config: Settings) -> dict[str, StoredNumbers]:
    """Return the tensors by their names in files: rows before the first position are zeros, as no text has them."""
    name = "embeddings.position_embeddings.weight"
    if name in model.tensors and (first := first_position(config, family)):
        table = model.tensors[name]
        model.tensors[name] = StoredNumbers(
            np.concatenate([np.zeros((first, table.numbers.shape[1]), np.float32), table.numbers]), table.number
        )
    if not model.head:
        return model.tensors
    return {key if key == "lm_head.weight" else f"model.{key}": tensor for key, tensor in model.tensors.items()}


def write_weights(file: Path, tensors: Mapping[str, StoredNumbers]) -> None:
    """Write tensors as transformers reads them, each in the number type that holds it exactly, whole numbers as
    compressed-tensors has them."""
    stored = dict[str, tuple[str, np.ndarray]]()
    for name, tensor in tensors.items():
        if tensor.whole is None:
            stored[name] = tensor.number, narrow_numbers(tensor.numbers, tensor.number)
        else:
            parts = compress(name, tensor.whole)
            stored |= {part: (SAFETENSORS[array.dtype.name], array) for part, array in parts.items()}
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (number, array) in stored.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": number, "shape": array.shape, "data_offsets": (begin, end)}
    write_entries(file, entries, (array.data for _, array in stored.values()), ALIGNED)


def read_widened(file: Path, tensors: Mapping[str, StoredNumbers]) -> dict[str, StoredNumbers]:
    """Return tensors as a written file widens them."""
    from safetensors import safe_open

    whole = {name: tensor.whole for name, tensor in tensors.items() if tensor.whole is not None}
    with safe_open(file, "np") as written:
        parts = {part: written.get_tensor(part) for name in whole for part in part_names(name, whole[name])}
    return {**tensors} | {name: StoredNumbers(decompress(name, parts, whole[name].bits)) for name in whole}


def narrow_numbers(numbers: np.ndarray, number: str) -> np.ndarray:
    """Return numbers in the type that holds them; bfloat16 by its bits."""
    if number == "BF16":
        bits: np.ndarray = nearest(np.ascontiguousarray(numbers, np.float32))  # type: ignore[no-untyped-call]
        return bits
    return np.ascontiguousarray(numbers, np.float16 if number == "F16" else np.float32)


# ---- texts


def write_text_files(place: Path, program: Program, pooling: Pooling, config: Settings) -> None:
    """Write the tokenizer, and the modules of a model that embeds or the tokens that end a text."""
    text = program.meta.get("tokenizer")
    if isinstance(text, str):
        (place / TOKENIZER).write_text(text, "utf-8")
        limit = pooling.max_seq_length or config[spelling(config, "max_position_embeddings")]
        write_json(place / TOKENIZER_CONFIG, name_special(text, config) | {"model_max_length": limit})
    if ends := program.meta.get("ends"):
        write_json(place / GENERATION, {"eos_token_id": ends})
    if "ForCausalLM" not in config["architectures"][0]:
        write_modules(place, pooling, config)


def name_special(text: str, config: Settings) -> dict[str, str]:
    """Return the entries of a tokenizer_config.json by which tokens have roles: those that the configuration gives ids
    of, and those of the usual texts."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(text)
    entries = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, usual in SPECIAL.items():
        if (word := next((word for word in usual if tokenizer.token_to_id(word) is not None), None)) is not None:
            entries[role] = word
    for role in ("pad", "bos", "eos"):
        number = config.get(f"{role}_token_id")
        if type(number) is int and (word := tokenizer.id_to_token(number)) is not None:
            entries[f"{role}_token"] = word
    return entries


def write_modules(place: Path, pooling: Pooling, config: Settings) -> None:
    """Write the files by which sentence-transformers embeds."""
    folders = {"Transformer": "", "Pooling": POOLING} | ({"Normalize": NORMALIZE} if pooling.normalise else {})
    assert folders.keys() <= KNOWN.keys()
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"{SENTENCE_MODULES}.{kind}"}
        for at, (kind, path) in enumerate(folders.items())
    ]
    for path in folders.values():
        (place / path).mkdir(exist_ok=True)
    width = config[spelling(config, "hidden_size")]
    modes: str | list[str] = pooling.modes[0] if len(pooling.modes) == 1 else [*pooling.modes]
    prompts = dict(pooling.prompts)
    default = next((name for name, prompt in prompts.items() if prompt == pooling.prompt), "default")
    if pooling.prompt:
        prompts |= {default: pooling.prompt}
    beside = {
        "model_type": "SentenceTransformer",
        "prompts": prompts,
        "default_prompt_name": default if pooling.prompt else None,
        "similarity_fn_name": pooling.similarity,
    }
    write_json(place / MODULES, listed)
    write_json(
        place / POOLING / CONFIG,
        {"word_embedding_dimension": width, "pooling_mode": modes, "include_prompt": pooling.include_prompt},
    )
    limit = pooling.max_seq_length or config[spelling(config, "max_position_embeddings")]
    write_json(place / TRANSFORMER[0], {"max_seq_length": limit, "do_lower_case": pooling.lower})
    write_json(place / PROMPTS, beside | ({"truncate_dim": pooling.width} if pooling.width else {}))


def write_json(file: Path, content: object) -> None:
    """Write JSON."""
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


# ---- the comparison


def compare_plain(program: Program, place: Path, adapter: Path | None = None) -> float:
    """Return the relative difference of the directory's model, with its adapter if it has one, from the program, both
    in float64, on a few texts. Raises InputError for a difference that rounding to float32 does not explain."""
    checkpoint = open_model(Checkpoint.open(place), adapter)
    batch = sample(checkpoint)
    found, wanted = dense(checkpoint.operator(program.pooled), batch), program.exact(batch, rounded=False)
    difference = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) if found.shape == wanted.shape else 1.0
    if not difference <= DIFFERENCE:
        raise InputError(
            f"the plain class would be off by {difference:.2g} of the program, above {DIFFERENCE:g}: its steps "
            "are of a form that is not read: give --onnx or --torch"
        )
    return difference


def sample(checkpoint: Checkpoint) -> Batch:
    """Return short texts of random tokens, none of which the model gives no position."""
    rng, words = np.random.default_rng(0), np.arange(checkpoint.said["vocab_size"])
    words = words[words != checkpoint.unplaced] if checkpoint.unplaced is not None else words
    return Batch([rng.choice(words, min(length, checkpoint.positions)) for length in COMPARED_LENGTHS])


def describe(place: Path, config: Settings, model: PlainModel, sizes: LayerSizes, difference: float) -> str:
    """Return what was written, in words."""
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    exact = [tensor for tensor in model.tensors.values() if tensor.whole is None]
    kinds = sorted({TORCH_NUMBERS[tensor.number] for tensor in exact})
    return "\n".join(
        [
            f"{place}, {size / 1e6:,.1f} MB: {config['architectures'][0]}, numbers in {' and '.join(kinds)}",
            describe_sizes(model, sizes),
            *describe_whole(model),
            *describe_adapter(model.corrections),
            f"off by {difference:.1g} of the program, in float64",
        ]
    )


def describe_whole(model: PlainModel) -> list[str]:
    """Return lines on weights of whole numbers: their schemes, rows that are not rounded, tables that are widened."""
    schemes = Counter(Scheme.of(tensor.whole) for tensor in model.tensors.values() if tensor.whole is not None)
    lines = [
        f"{count} weights {scheme.format}, {scheme.bits} bits, a scale for {scheme.group or 'all'} inputs: "
        f"rows {'are rounded to bytes by the runtime' if scheme.rounds else 'are not rounded'}"
        for scheme, count in schemes.items()
    ]
    tables = {name: tensor for name, tensor in model.tensors.items() if tensor.called and tensor.whole is None}
    return lines + [f"{name} in float32: {tensor.called}" for name, tensor in tables.items()]
