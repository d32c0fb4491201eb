"""Writes small random LLaMAs as GGUF files, tokens and all."""

import struct

import numpy as np

WORDS, SIDE = 40, 32  # tokens; columns, a block of every quantisation but the K's
SAID = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": SIDE,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 16,
    "llama.rope.freq_base": 300.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": WORDS,
    "llama.rope.dimension_count": 8,
}
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TOKENS = ["<s>", "</s>", "the", "th", "Ġthe", "12", "Ġ", *"abcdefghijklmnopqrstuvwxyz", *"0123456"]
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3] + [1] * (WORDS - 2),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
}
assert len(TOKENS) == WORDS


def shapes():
    """Of the tensors, rows first."""
    found = {"token_embd.weight": (WORDS, SIDE), "output_norm.weight": (SIDE,)}
    for l in range(2):
        parts = {
            "attn_q": (32, 32),
            "attn_k": (16, 32),
            "attn_v": (16, 32),
            "attn_output": (32, 32),
            "attn_norm": (32,),
            "ffn_gate": (64, 32),
            "ffn_up": (64, 32),
            "ffn_down": (32, 64),
            "ffn_norm": (32,),
        }
        found |= {f"blk.{l}.{part}.weight": shape for part, shape in parts.items()}
    return found


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3) + (len(shape) == 1)).astype(
            "<f4"
        )
        for name, shape in shapes().items()
    }


def text(said):
    return struct.pack("<Q", len(said := said.encode())) + said


def value(said):
    """A value with its type before it."""
    match said:
        case bool():
            return struct.pack("<I?", 7, said)
        case int():
            return struct.pack("<II", 4, said)
        case float():
            return struct.pack("<If", 6, said)
        case str():
            return struct.pack("<I", 8) + text(said)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(said)) + b"".join(map(text, said))
        case [float(), *_]:
            return struct.pack("<IIQ", 9, 6, len(said)) + np.array(said, "<f4").tobytes()
    return struct.pack("<IIQ", 9, 5, len(said)) + np.array(said, "<i4").tobytes()


def write(file, said=None, tensors=None, number=0, version=3, magic=b"GGUF", entries=None):
    """A file of arrays in float32; `said` and `tensors` change some, None takes one away. A tensor may be (type, shape,
    bytes), and `entries` say something else of one: (shape, type, place)."""
    keys = {name: each for name, each in (SAID | VOCABULARY | (said or {})).items() if each is not None}
    arrays_ = {name: each for name, each in (arrays() | (tensors or {})).items() if each is not None}
    header, body = magic + struct.pack("<IQQ", version, len(arrays_), len(keys)), b""
    for name, each in keys.items():
        header += text(name) + value(each)
    for name, each in arrays_.items():
        kind, shape, packed = each if isinstance(each, tuple) else (0, each.shape, each.astype("<f4").tobytes())
        shape, kind, place = (entries or {}).get(name, (shape, kind, len(body)))
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, place)
        body += packed + bytes(-len(packed) % 32)
    file.write_bytes(header + bytes(-len(header) % 32) + body)
    return file
