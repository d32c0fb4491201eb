"""GGUF files that the `gguf` package writes and reads; SmolLM2 with its real weights, and its tokens, as transformers
has them."""

import numpy as np
import pytest
import standin
from fetched import data, smollm2

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.files.gguf import TENSOR_TYPES
from opmatrix.files.quantised import STORED
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")
torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")


@pytest.mark.parametrize("number", [number for number in TENSOR_TYPES.values() if number not in ("F32", "F16", "F64")])
def test_blocks_are_widened_to_the_bit(rng, number):
    """Random bytes, scales from zero to large; bytes of exponents from 1 on, below which all is zero here."""
    stored, kind = STORED[number], gguf.GGMLQuantizationType[number]
    blocks = rng.integers(0, 256, (500, stored.block.itemsize), np.uint8).view(stored.block)[:, 0]
    if stored.block.names:
        for name in {"d", "m"} & {*stored.block.names}:
            blocks[name] = rng.normal(size=500) * 10.0 ** rng.integers(-6, 2, 500)
        if stored.exponents:
            blocks["d"] = rng.integers(1, 253, 500)
    else:
        blocks &= 0xBFFF  # no infinities
    wanted = gguf.quants.dequantize(blocks.view(np.uint8).reshape(500, -1), kind)
    ours = stored.widen(blocks).reshape(500, -1)
    if stored.exponents:
        ours = ours + np.float32(0)  # their zero has no sign
    assert np.array_equal(ours.view(np.uint32), wanted.view(np.uint32))


def permuted(array, heads):
    """Rows as llama.cpp's converter lays them."""
    return array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def drawn(array, kind):
    """Random blocks in the shape of an array, whose numbers are about as large: gguf quantises to no such type."""
    block = STORED[kind.name].block
    rng, count = np.random.default_rng(array.size), array.size // 256
    blocks = rng.integers(0, 256, (count, block.itemsize), np.uint8).view(block)[:, 0]
    for name in {"d", "m"} & {*block.names}:
        blocks[name] = rng.uniform(0.5, 1, count)
    size = gguf.quants.dequantize(blocks.view(np.uint8).reshape(count, -1), kind).std()
    for name in {"d", "m"} & {*block.names}:
        blocks[name] *= array.std() / size
    return blocks.view(np.uint8).reshape(len(array), -1)


def written(file, family, number, tied, **more):
    """A random model of transformers, its matrices quantised, as a GGUF file; the model has what the file widens to."""
    sizes = dict(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(
        getattr(transformers, f"{family}Config")(**sizes, **more)
    ).eval()
    writer, arch, kind = gguf.GGUFWriter(file, family.lower()), family.lower(), gguf.GGMLQuantizationType[number]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), 2)
    for key, said in dict(
        block_count=2,
        context_length=64,
        embedding_length=256,
        feed_forward_length=256,
        head_count=4,
        head_count_kv=2,
        layer_norm_rms_eps=1e-5,
        rope_freq_base=1e4,
        **({"key_length": more["head_dim"]} if more else {}),
    ).items():
        getattr(writer, f"add_{key}")(said)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(
                3 * torch.randn_like(each) * each.shape[-1] ** -0.5
                if each.ndim > 1
                else 1 + 0.3 * torch.randn_like(each)
            )
            ours, array = names.get_name(name, (".weight", ".bias")), each.numpy().copy()
            if each.ndim > 1:
                packed = drawn(array, kind) if number.endswith("_K") else gguf.quants.quantize(array, kind)
                array = gguf.quants.dequantize(packed, kind)
                each.copy_(torch.from_numpy(array))
                if arch == "llama" and ("attn_q" in ours or "attn_k" in ours):
                    packed = permuted(packed, 4 if "attn_q" in ours else 2)
                writer.add_tensor(ours, packed, raw_dtype=kind)
            else:
                writer.add_tensor(ours, array)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return model


@pytest.mark.parametrize(
    "family, number, tied, more",
    [
        ("Llama", "Q8_0", True, {}),
        ("Llama", "Q4_1", False, {}),
        ("Llama", "Q5_0", False, {}),
        ("Llama", "Q4_K", True, {}),
        ("Llama", "Q6_K", False, {}),
        ("Qwen2", "Q5_K", False, {}),
        ("Qwen3", "Q3_K", False, dict(head_dim=64)),
        ("Llama", "Q2_K", False, {}),
        ("Qwen2", "Q4_0", False, {}),
        ("Qwen3", "F16", True, dict(head_dim=64)),
    ],
)
def test_scores_are_those_of_transformers(rng, tmp_path, family, number, tied, more):
    model = written(tmp_path / "it.gguf", family, number, tied, **more)
    tokens = rng.integers(0, 64, 60)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = dense(open_model(tmp_path / "it.gguf").operator(), Batch([tokens]))
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


SIZES = dict(
    vocab_size=64,
    hidden_size=128,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
GEMMA = dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=7)
SAID = {
    "embedding_length": 128,
    "feed_forward_length": 96,
    "block_count": 2,
    "context_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
LEAST, CENTRED = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
HEAD = {"attention.key_length": 64, "attention.value_length": 64}
WINDOW = {"attention.sliding_window": 7}
DECODERS = {  # architecture: its class, the config, the keys of its file
    "gemma2": (
        "Gemma2",
        GEMMA | dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
        HEAD | WINDOW | {LEAST: 1e-6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma2, as llama.cpp has it where keys are left out": ("Gemma2", GEMMA, HEAD | WINDOW | {LEAST: 1e-6}),
    "gemma3": (
        "Gemma3",
        GEMMA | dict(num_hidden_layers=7),
        HEAD | WINDOW | {LEAST: 1e-6, "block_count": 7, "rope.freq_base": 1e6},
    ),
    "command-r": ("Cohere", dict(logit_scale=0.5), {CENTRED: 1e-5, "logit_scale": 0.5, "rope.freq_base": 5e5}),
    "command-r, query-key norms": (
        "Cohere",
        dict(logit_scale=0.5, use_qk_norm=True),
        {CENTRED: 1e-5, "logit_scale": 0.5, "rope.freq_base": 5e5},
    ),
    "cohere2": (
        "Cohere2",
        dict(sliding_window=7, logit_scale=0.5, num_hidden_layers=5),
        WINDOW | {CENTRED: 1e-5, "logit_scale": 0.5, "rope.freq_base": 1e4, "block_count": 5},
    ),
}


@pytest.mark.parametrize("case", DECODERS)
def test_decoders_score_as_transformers(rng, tmp_path, case):
    """Matrices in Q8_0; norms of Gemma are stored plus one, as llama.cpp's converter writes them."""
    arch = case.partition(",")[0]
    family, config, said = DECODERS[case]
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**SIZES | config)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    writer, kind = gguf.GGUFWriter(tmp_path / "it.gguf", arch), gguf.GGMLQuantizationType.Q8_0
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper().replace("-", "_")], config.num_hidden_layers)
    for key, number in (SAID | said).items():
        getattr(writer, "add_uint32" if isinstance(number, int) else "add_float32")(f"{arch}.{key}", number)
    with torch.no_grad():
        for name, each in model.named_parameters():
            norm = "norm" in name
            gain = norm and not arch.startswith("gemma")
            scale = 0.3 if norm else 3 * each.shape[-1] ** -0.5
            each.copy_(gain + scale * torch.randn_like(each))
            array = each.numpy().copy()
            if norm:
                writer.add_tensor(names.get_name(name, (".weight",)), array + (not gain))
                continue
            packed = gguf.quants.quantize(array, kind)
            each.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
            writer.add_tensor(names.get_name(name, (".weight",)), packed, raw_dtype=kind)
    for write in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, write)()
    tokens = rng.integers(0, 64, 60)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = dense(open_model(tmp_path / "it.gguf").operator(), Batch([tokens]))
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("number", ["Q4_K", "Q6_K"])
def test_a_program_in_blocks_scores_as_transformers(rng, tmp_path, number):
    """Of the exact search that keeps blocks, by products of blocks and rows of a table in them."""
    model = written(tmp_path / "it.gguf", "Llama", number, True)
    tokens = rng.integers(0, 64, 60)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    operator = open_model(tmp_path / "it.gguf").operator()
    extents, methods = counted([60], patterns(operator)), Representable(in_blocks=True)
    program = search(operator, EXACT_LAWS, standin.machine(), extents, methods=methods).program({})[0]
    assert {each.name for each in program.constants.values() if hasattr(each, "unpack")} == {number.lower()}
    found = program.run(Batch([tokens]))
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


# ---- SmolLM2


@pytest.fixture(scope="module")
def smol():
    return smollm2() / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_smollm2_scores_as_transformers(smol):
    """With the tensors that transformers' own reader of GGUF finds: all of them equal, and so is the likeliest of every
    96 tokens."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    checkpoint = open_model("smollm2")
    config = transformers.LlamaConfig(
        **{key: said for key, said in checkpoint.said.items() if said is not None and "rope" not in key},
        rope_parameters=dict(rope_type="default", rope_theta=1e5),
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    state = load_gguf_checkpoint(str(smol), return_tensors=True, model_to_load=model)["tensors"]
    assert all(
        np.array_equal(checkpoint.find(name.removeprefix("model.")).read(), array) for name, array in state.items()
    )
    model = transformers.LlamaForCausalLM(config).eval()
    lost = model.load_state_dict({name: torch.tensor(array) for name, array in state.items()}, strict=False)
    assert lost.missing_keys == ["lm_head.weight"] and not lost.unexpected_keys
    model.tie_weights()
    tokens = checkpoint.tokenizer().encode(data("wikitext", "wiki.head.raw").read_text("utf-8")[:2000]).tokens[:96]
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = dense(checkpoint.operator(), Batch([tokens]))
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max() and (found.argmax(1) == wanted.argmax(1)).all()


def test_smollm2_tokens_are_those_of_transformers(smol):
    """Of 1,000 lines: its merges hold no two digits, so that transformers cuts none apart beforehand makes no
    difference."""
    theirs = transformers.AutoTokenizer.from_pretrained(str(smol.parent), gguf_file=smol.name)
    lines = [line for line in data("wikitext", "wiki.head.raw").read_text("utf-8").splitlines() if line.strip()][:1000]
    lines += ["<|im_start|>user\nHow old is 1984's été, 東京 🙂?<|im_end|>", "  two  spaces\t\n\n", "it's I'LL we've"]
    ours = open_model("smollm2").tokenizer()
    assert [ours.encode(line).tokens.tolist() for line in lines] == [theirs(line)["input_ids"] for line in lines]
