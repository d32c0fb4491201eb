"""Writes small random BERT checkpoints, in every way that they come: whole or in shards, in three number types, with or
without a prefix, in the old spelling; and a tokenizer that pads and cuts as pretrained ones do."""

import json
from pathlib import Path

import numpy as np

CONFIG = {
    "model_type": "bert",
    "vocab_size": 41,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
NUMBERS = {
    "F32": lambda x: x.astype("<f4"),
    "F16": lambda x: x.astype("<f2"),
    "F64": lambda x: x.astype("<f8"),
    "I32": lambda x: x.astype("<i4"),
    "BF16": lambda x: (x.astype("<f4").view("<u4") >> 16).astype("<u2"),
}  # cut off, not rounded
WORDS = ["the", "bank", "of", "river", "runs", "dry", "##s", "##ing", "?", ".", "a"]


def shapes(config):
    """The tensors of a BERT by name, as its config.json implies them (Devlin et al. 2018; a weight is out by in)."""
    d, f = config["hidden_size"], config["intermediate_size"]
    linear = lambda name, n, p: {f"{name}.weight": (p, n), f"{name}.bias": (p,)}
    norm = lambda name: {f"{name}.LayerNorm.weight": (d,), f"{name}.LayerNorm.bias": (d,)}
    found = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
    } | norm("embeddings")
    for layer in (f"encoder.layer.{l}" for l in range(config["num_hidden_layers"])):
        for part in ("query", "key", "value"):
            found |= linear(f"{layer}.attention.self.{part}", d, d)
        found |= linear(f"{layer}.attention.output.dense", d, d) | norm(f"{layer}.attention.output")
        found |= linear(f"{layer}.intermediate.dense", d, f) | linear(f"{layer}.output.dense", f, d)
        found |= norm(f"{layer}.output")
    return found


def arrays(config, seed=0):
    """Random numbers for every tensor: biases are not zero, gains not one."""
    rng = np.random.default_rng(seed)
    scale = lambda name, shape: 0.1 if len(shape) == 1 else shape[-1] ** -0.5
    gain = lambda name: 1.0 if name.endswith("LayerNorm.weight") else 0.0
    return {
        name: (gain(name) + scale(name, shape) * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes(config).items()
    }


def safetensors(path, tensors, number="F32"):
    """Eight bytes of length, a JSON header, then the numbers."""
    header, parts, at = {}, [], 0
    for name, array in tensors.items():
        part = NUMBERS[number](array).tobytes()
        header[name] = {"dtype": number, "shape": array.shape, "data_offsets": [at, at := at + len(part)]}
        parts.append(part)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def write(directory, *, seed=0, shards=1, number="F32", prefix="", old=False, tokenizer=True, tensors=None, **changed):
    """A checkpoint in a directory. `changed` replaces keys of the config, None removes one; `tensors` are added to the
    weights or replace some. Returns the directory."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in (CONFIG | changed).items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    spelt = lambda n: n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") if old else n
    named = {prefix + spelt(name): array for name, array in (arrays(config, seed) | (tensors or {})).items()}
    if shards == 1:
        safetensors(directory / "model.safetensors", named, number)
    else:
        file = lambda s: f"model-{s % shards + 1:05}-of-{shards:05}.safetensors"
        weight_map = {name: file(s) for s, name in enumerate(named)}
        for s in range(shards):
            safetensors(directory / file(s), {n: a for n, a in named.items() if weight_map[n] == file(s)}, number)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    if tokenizer:
        write_tokenizer(directory / "tokenizer.json")
    return directory


def classify(directory, labels=1, *, files=None, pairs=True, **changed):
    """A BERT that scores texts by a head, in a directory. `files`: entries of files beside it; `pairs`: its tokenizer
    has a template for them, and gives kinds. Returns the directory."""
    rng, d = np.random.default_rng(labels), CONFIG["hidden_size"]
    shapes = {"pooler.dense.weight": (d, d), "pooler.dense.bias": (d,), "classifier.weight": (labels, d)}
    on_top = {name: rng.normal(size=shape).astype("<f4") / 3 for name, shape in shapes.items()}
    on_top["classifier.bias"] = rng.normal(size=labels).astype("<f4")
    usual = dict(architectures=["BertForSequenceClassification"], id2label={str(n): f"L{n}" for n in range(labels)})
    write(directory, tensors=on_top, **(usual | changed))
    if pairs:
        write_pair_tokenizer(directory / "tokenizer.json")
        (directory / "tokenizer_config.json").write_text(json.dumps(KINDS_GIVEN))
    for name, entries in (files or {}).items():
        (directory / name).write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return directory


INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
KINDS_GIVEN = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": INPUTS}


def write_pair_tokenizer(path):
    """The tokenizer of `write_tokenizer` with BERT's template of pairs, the second text of kind 1."""
    from tokenizers import Tokenizer, processors

    write_tokenizer(path)
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path))


def pool(directory, mode="cls", normalise=True, files=None, kind="sentence_transformers.models"):
    """Lays beside a checkpoint what sentence-transformers says about it. `files` adds entries to files, or replaces
    some."""
    modules = ["Transformer", "Pooling", *["Normalize"] * normalise]
    paths = ["", "1_Pooling", "2_Normalize"]
    written = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"{kind}.{name}"}
            for i, (name, path) in enumerate(zip(modules, paths, strict=False))
        ],
        "1_Pooling/config.json": {"embedding_dimension": CONFIG["hidden_size"], "pooling_mode": mode},
    }
    for name, entries in (files or {}).items():
        written[name] = written.get(name, {}) | entries if isinstance(entries, dict) else entries
    for name, entries in written.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return directory


def write_tokenizer(path):
    """Word pieces over a few words and every letter; padding and cutting to 8 tokens switched on."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(c) for c in range(ord("b"), ord("z") + 1)]
    vocabulary = {piece: at for at, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))


def fused(found):
    """Numbers of experts in three axes, gates above ups, as files have them."""
    made = {}
    for name, array in found.items():
        if name.endswith("experts.gate_proj"):
            made[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(
                [array, found[name.replace("gate_proj", "up_proj")]], 1
            )
        elif not name.endswith("experts.up_proj"):
            made[name] = array
    return made
