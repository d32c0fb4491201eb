"""Small random LLaMAs whose matrices a quantisation method stores: each method packs level by level, as its publishers
say, and tells the numbers that the levels stand for, in float64 and rounded once."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from formats.storage.block_layouts import LAYOUTS

WIDTH, INNER, WORDS, KEYS = 256, 384, 64, 128
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
LINEAR = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KEYS, WIDTH),
    "self_attn.v_proj": (KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
WIDER = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "i1", "F8_E4M3": "u1"}


class Packed(NamedTuple):
    """The tensors of a matrix by the endings of their names, each with its number type, and the matrix (p, n)."""

    parts: dict
    numbers: np.ndarray


def rounded(numbers):
    """Rounded to float32, once."""
    return np.asarray(numbers, np.float64).astype(np.float32)


def scales(rng, shape, size, number="F16"):
    """Scales of about a size, which numbers of this type hold; as stored, and as they are."""
    drawn = (size * rng.uniform(0.5, 1, shape)).astype(np.float32)
    if number == "BF16":
        stored = (drawn.view(np.uint32) >> 16).astype(np.uint16)
        return stored, (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    stored = drawn.astype(WIDER[number])
    return stored, stored.astype(np.float64)


def words(levels, bits, places=None):
    """Levels (r, c) as int32 (r, c bits / 32): level k of a word at bit `bits` places[k]."""
    each = 32 // bits
    filled = np.pad(levels, ((0, 0), (0, -levels.shape[1] % each)))
    made = np.zeros((len(filled), filled.shape[1] // each), np.uint64)
    for k in range(each):
        made |= filled[:, k::each].astype(np.uint64) << np.uint64(bits * (k if places is None else places[k]))
    return made.astype(np.uint32).view(np.int32)


def drawn_levels(rng, p, n, bits, groups, sym):
    """Levels (p, n), and those of zero (p, groups): the middle one, or any from 1 on."""
    zeros = np.full((p, groups), 1 << bits - 1) if sym else rng.integers(1, 1 << bits, (p, groups))
    return rng.integers(0, 1 << bits, (p, n)), zeros


def gptq(rng, p, n, *, bits=4, group=128, sym=True, act=False, version="gptq", number="F16"):
    """AutoGPTQ: the first version stores zeros less one; with `act` inputs are in groups in any order."""
    groups = 1 if group < 0 else n // group
    q, z = drawn_levels(rng, p, n, bits, groups, sym)
    stored, s = scales(rng, (groups, p), n**-0.5 / 2 ** (bits - 2), number)
    order = np.arange(n) // (n // groups)
    if act:
        rng.shuffle(order)
    numbers = rounded(s.T[:, order] * (q - z[:, order]))
    parts = {
        "qweight": ("I32", words(q, bits).T),
        "qzeros": ("I32", words(z.T - (version == "gptq"), bits)),
        "scales": (number, stored),
        "g_idx": ("I32", order.astype(np.int32)),
    }
    return Packed(parts, numbers)


def awq(rng, p, n, *, group=128):
    """AutoAWQ, gemm: of eight outputs of a word the even ones come first."""
    places = [0, 4, 1, 5, 2, 6, 3, 7]
    q, z = drawn_levels(rng, p, n, 4, n // group, False)
    stored, s = scales(rng, (n // group, p), n**-0.5 / 4)
    numbers = rounded(np.repeat(s.T, group, 1) * (q - np.repeat(z, group, 1)))
    parts = {
        "qweight": ("I32", words(q.T, 4, places)),
        "qzeros": ("I32", words(z.T, 4, places)),
        "scales": ("F16", stored),
    }
    return Packed(parts, numbers)


def packed_words(rng, p, n, *, bits=4, group=128, sym=True, number="BF16"):
    """compressed-tensors, pack-quantized: signed levels, to which half of the levels is added when they are packed;
    zero points are packed along outputs."""
    groups = 1 if group < 0 else n // group
    q, z = drawn_levels(rng, p, n, bits, groups, sym)
    stored, s = scales(rng, (p, groups), n**-0.5 / 2 ** (bits - 2), number)
    parts = {
        "weight_packed": ("I32", words(q, bits)),
        "weight_scale": (number, stored),
        "weight_shape": ("I64", np.array([p, n])),
    }
    if not sym:
        parts["weight_zero_point"] = ("I32", words(z.T, bits).T)
    numbers = rounded(np.repeat(s, n // groups, 1) * (q - np.repeat(z, n // groups, 1)))
    return Packed(parts, numbers)


def signed_bytes(rng, p, n, *, group=-1, sym=True, number="BF16"):
    """compressed-tensors, int-quantized."""
    groups = 1 if group < 0 else n // group
    q, z = rng.integers(-128, 128, (p, n)), np.zeros((p, groups), int) if sym else rng.integers(-50, 50, (p, groups))
    stored, s = scales(rng, (p, groups), n**-0.5 / 64, number)
    parts = {"weight": ("I8", q), "weight_scale": (number, stored)}
    if not sym:
        parts["weight_zero_point"] = ("I8", z)
    numbers = rounded(np.repeat(s, n // groups, 1) * (q - np.repeat(z, n // groups, 1)))
    return Packed(parts, numbers)


def float8(code):
    """The number of a byte: (-1)^s 2^(e - 7) 1.m, or 2^-6 0.m where e is 0."""
    sign, e, m = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    return sign * (2.0 ** (e - 7) * (1 + m / 8) if e else 2.0**-6 * m / 8)


def float8_codes(rng, p, n):
    """Bytes that are numbers, and these."""
    codes = rng.integers(0, 256, (p, n), np.uint8)
    codes[(codes & 127) == 127] = 0x80
    return codes, np.array([float8(code) for code in range(256)])[codes]


def float8_blocks(rng, p, n, *, sides=(128, 128)):
    """DeepSeek-V3: scales of blocks of outputs and inputs, the last ones cut off."""
    codes, wide = float8_codes(rng, p, n)
    rows, columns = sides
    stored, s = scales(rng, (-(-p // rows), -(-n // columns)), n**-0.5 / 128, "F32")
    numbers = rounded(wide * np.repeat(np.repeat(s, rows, 0)[:p], columns, 1)[:, :n])
    return Packed({"weight": ("F8_E4M3", codes), "weight_scale_inv": ("F32", stored)}, numbers)


def float8_scaled(rng, p, n, *, shape, number="F32", more=()):
    """Scales of outputs (p, 1) or of all numbers."""
    codes, wide = float8_codes(rng, p, n)
    sides = tuple({"p": p}.get(side, side) for side in shape)
    stored, s = scales(rng, sides, n**-0.5 / 128, number)
    parts = {"weight": ("F8_E4M3", codes), "weight_scale": (number, stored)}
    parts |= {ending: ("F32", np.ones(1, np.float32)) for ending in more}
    return Packed(parts, rounded(wide * (s if s.ndim == 2 else s.reshape(1, 1))))


FLOAT4 = [sign * number for sign in (1.0, -1.0) for number in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]


def float4_groups(rng, *shape):
    """MXFP4: codes (..., n / 2), two to a byte, the first low; exponents (..., n / 32), 127 for 1; and the numbers."""
    codes = rng.integers(0, 16, shape)
    exponents = rng.integers(119, 123, (*shape[:-1], shape[-1] // 32))
    numbers = np.array(FLOAT4)[codes] * 2.0 ** (np.repeat(exponents, 32, -1) - 127)
    return codes[..., ::2] | codes[..., 1::2] << 4, exponents, rounded(numbers)


def float4_words(rng, p, n):
    """compressed-tensors, mxfp4-pack-quantized."""
    codes, exponents, numbers = float4_groups(rng, p, n)
    return Packed({"weight_packed": ("U8", codes), "weight_scale": ("U8", exponents)}, numbers)


def normal_float4(rng, p, n, *, nested=False, run=64, kind="nf4", usual=True):
    """bitsandbytes: codes of a table, two to a byte, the first high, of a matrix row by row; scales of runs, or codes
    of scales, with scales of runs of 256 and an offset, in float32."""
    codes, table = rng.integers(0, 16, p * n), np.array(LAYOUTS[f"{kind}_64"].table, np.float32)
    if not usual:
        table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    state = {"quant_type": kind, "blocksize": run, "dtype": "bfloat16", "shape": [p, n]}
    count = -(-p * n // run)
    absmax = rng.uniform(0.05, 0.1, count).astype(np.float32)
    parts = {"weight.absmax": ("F32", absmax)}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0625}
        scale_codes, scale_table = rng.integers(0, 256, count), rng.uniform(-1, 1, 256).astype(np.float32)
        steps = rng.uniform(0.01, 0.02, -(-count // 256)).astype(np.float32)
        absmax = scale_table[scale_codes] * np.repeat(steps, 256)[:count] + np.float32(0.0625)
        parts = {
            "weight.absmax": ("U8", scale_codes),
            "weight.nested_absmax": ("F32", steps),
            "weight.nested_quant_map": ("F32", scale_table),
        }
    told = np.frombuffer(json.dumps(state).encode(), np.uint8)
    parts |= {
        "weight": ("U8", (codes[::2] << 4 | codes[1::2])[:, None]),
        "weight.quant_map": ("F32", table),
        f"weight.quant_state.bitsandbytes__{kind}": ("U8", told),
    }
    numbers = rounded(table[codes].astype(np.float64) * np.repeat(absmax, run)[: p * n].astype(np.float64))
    return Packed(parts, numbers.reshape(p, n))


def of_weights(form, **weights):
    """The settings of compressed-tensors."""
    rows = {"num_bits": 8, "dynamic": True, "strategy": "token", "type": "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": rows, "weights": weights}},
    }


def of_gptq(**more):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False} | more


def of_tables(kind):
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}


class Scheme(NamedTuple):
    """A method's settings, the function that packs a matrix with its options, and the format that holds it; dense where
    none does."""

    settings: dict
    pack: object
    options: Mapping = MappingProxyType({})
    format: str = "dense"


SCHEMES = {
    "gptq": Scheme(of_gptq(), gptq, {}, "w4_128"),
    "gptq in groups of 32": Scheme(of_gptq(group_size=32), gptq, dict(group=32), "q4_0"),
    "gptq in groups of 64": Scheme(of_gptq(group_size=64), gptq, dict(group=64), "w4_64"),
    "gptq by column": Scheme(of_gptq(group_size=-1), gptq, dict(group=-1), "w4_128"),
    "gptq with zeros": Scheme(of_gptq(sym=False), gptq, dict(sym=False), "z4_128"),
    "gptq with zeros, 32": Scheme(of_gptq(sym=False, group_size=32), gptq, dict(sym=False, group=32), "z4_32"),
    "gptq in order of activations": Scheme(of_gptq(desc_act=True), gptq, dict(act=True)),
    "gptq, second version": Scheme(
        of_gptq(sym=False, checkpoint_format="gptq_v2"), gptq, dict(sym=False, version="gptq_v2"), "z4_128"
    ),
    "gptq of 8 bits": Scheme(of_gptq(bits=8), gptq, dict(bits=8), "w8_128"),
    "gptq of 8 bits, 32": Scheme(of_gptq(bits=8, group_size=32), gptq, dict(bits=8, group=32), "q8_0"),
    "gptq of 8 bits with zeros": Scheme(of_gptq(bits=8, sym=False), gptq, dict(bits=8, sym=False), "z8_128"),
    "gptq of bfloat16": Scheme(of_gptq(), gptq, dict(number="BF16"), "w4_128"),
    "gptq of float32": Scheme(of_gptq(), gptq, dict(number="F32")),
    "awq": Scheme(
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, awq, {}, "z4_128"
    ),
    "awq in groups of 64": Scheme(
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, awq, dict(group=64), "z4_64"
    ),
    "int4": Scheme(
        of_weights("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=128),
        packed_words,
        {},
        "w4_128",
    ),
    "int4 with zeros": Scheme(
        of_weights("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=128),
        packed_words,
        dict(sym=False, number="F16"),
        "z4_128",
    ),
    "int4 by channel": Scheme(
        of_weights("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="channel"),
        packed_words,
        dict(group=-1),
        "w4_128",
    ),
    "int8 in words": Scheme(
        of_weights("pack-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        packed_words,
        dict(bits=8, group=-1),
        "w8_128",
    ),
    "int8 by channel": Scheme(
        of_weights("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        signed_bytes,
        {},
        "w8_128",
    ),
    "int8 in groups": Scheme(
        of_weights("int-quantized", num_bits=8, type="int", symmetric=True, strategy="group", group_size=128),
        signed_bytes,
        dict(group=128),
        "w8_128",
    ),
    "int8 with zeros": Scheme(
        of_weights("int-quantized", num_bits=8, type="int", symmetric=False, strategy="channel"),
        signed_bytes,
        dict(sym=False),
        "z8_128",
    ),
    "int8 of float32": Scheme(
        of_weights("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        signed_bytes,
        dict(number="F32"),
    ),
    "float8 by channel": Scheme(
        of_weights("float-quantized", num_bits=8, type="float", symmetric=True, strategy="channel"),
        float8_scaled,
        dict(shape=("p", 1), number="BF16"),
        "e4m3_128",
    ),
    "float8 by tensor": Scheme(
        of_weights("float-quantized", num_bits=8, type="float", symmetric=True, strategy="tensor"),
        float8_scaled,
        dict(shape=(1,), more=("input_scale",)),
        "e4m3_128",
    ),
    "fp8 in blocks": Scheme(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        float8_blocks,
        format="e4m3_128",
    ),
    "fp8 in blocks that are cut": Scheme(
        {"quant_method": "fp8", "weight_block_size": [160, 96]}, float8_blocks, dict(sides=(160, 96))
    ),
    "fp8 by tensor": Scheme(
        {"quant_method": "fp8", "activation_scheme": "static"},
        float8_scaled,
        dict(shape=(), more=("input_scale",)),
        "e4m3_128",
    ),
    "fbgemm": Scheme(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, float8_scaled, dict(shape=("p", 1)), "e4m3_128"
    ),
    "mxfp4 in words": Scheme(
        of_weights("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        float4_words,
        format="mxfp4",
    ),
    "nf4": Scheme(of_tables("nf4"), normal_float4, format="nf4_64"),
    "nf4 of nested scales": Scheme(of_tables("nf4"), normal_float4, dict(nested=True), "nf4_64"),
    "nf4 of longer runs": Scheme(of_tables("nf4"), normal_float4, dict(run=512), "nf4_64"),
    "nf4 of shorter runs": Scheme(of_tables("nf4"), normal_float4, dict(run=32)),
    "nf4 of another table": Scheme(of_tables("nf4"), normal_float4, dict(usual=False)),
    "fp4": Scheme(of_tables("fp4"), normal_float4, dict(kind="fp4"), "fp4_64"),
}


def drawn(scheme, seed=0):
    """The tensors of a LLaMA that a scheme stores, by name, each with its number type; and its plain ones."""
    rng = np.random.default_rng(seed)
    stored, plain = {}, {}
    tables = {"model.embed_tokens.weight": (WORDS, WIDTH), "lm_head.weight": (WORDS, WIDTH)}
    gains = ["model.norm.weight"]
    for layer in range(2):
        stem = f"model.layers.{layer}"
        gains += [f"{stem}.input_layernorm.weight", f"{stem}.post_attention_layernorm.weight"]
        for name, (p, n) in LINEAR.items():
            packed = scheme.pack(rng, p, n, **scheme.options)
            stored |= {f"{stem}.{name}.{ending}": part for ending, part in packed.parts.items()}
            plain[f"{stem}.{name}.weight"] = packed.numbers
    for name, shape in tables.items():
        plain[name] = rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
    for name in gains:
        plain[name] = (1 + 0.3 * rng.standard_normal(WIDTH)).astype(np.float32)
    return stored | {name: ("F32", plain[name]) for name in (*tables, *gains)}, plain


def filed_bytes(scheme):
    """The bytes that a checkpoint of a scheme takes for its quantised matrices."""
    stored = drawn(scheme)[0].items()
    return sum(np.size(array) * np.dtype(WIDER[number]).itemsize for name, (number, array) in stored if "_proj" in name)


def safetensors(path, tensors):
    """A file of tensors (number type, array)."""
    header, parts, at = {}, [], 0
    for name, (number, array) in tensors.items():
        part = np.ascontiguousarray(array).astype(WIDER[number]).tobytes()
        header[name] = {"dtype": number, "shape": [*array.shape], "data_offsets": [at, at := at + len(part)]}
        parts.append(part)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def write(directory, scheme, change=lambda tensors, settings: None, seed=0):
    """A checkpoint of a scheme in a directory; `change` spoils its tensors or settings. Returns its plain tensors."""
    tensors, plain = drawn(scheme, seed)
    settings = json.loads(json.dumps(scheme.settings))
    change(tensors, settings)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": settings}))
    safetensors(directory / "model.safetensors", tensors)
    return plain
