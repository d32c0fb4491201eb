"""GGUF files of gpt-oss, by the names of the gguf package, against the directory of the same weights: experts in blocks
of MXFP4, which a program keeps, and in other types."""

import ggufs
import numpy as np
import pytest
import standin
from test_gpt_oss import SIZES, logits, made, pack_experts, relative

from formats import Stacked
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.files.quantised import STORED
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")

FILED = SIZES | dict(vocab_size=ggufs.WORDS, hidden_size=64, intermediate_size=96)
FLOAT4 = gguf.GGMLQuantizationType.MXFP4


def keys_of(config):
    """The keys of a file, as convert_hf_to_gguf.py of llama.cpp writes them."""
    rope = config.rope_parameters
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.intermediate_size,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return {f"gpt-oss.{name}": value for name, value in keys.items()}


def named_parts(name, array):
    """Arrays by the names that llama.cpp's converter gives them: outputs before inputs, gates apart from ups."""
    stem, _, last = name.rpartition(".")
    if last == "sinks":
        return {f"{name}.weight": array}
    if "mlp.experts" not in stem:
        return {name: array}
    biased = last.endswith("_bias")
    part, end = last.removesuffix("_bias"), "bias" if biased else "weight"
    array = array if biased else array.swapaxes(1, 2)
    if part == "down_proj":
        return {f"{stem}.down_proj.{end}": array}
    return {f"{stem}.gate_proj.{end}": array[:, ::2], f"{stem}.up_proj.{end}": array[:, 1::2]}


def float4_entry(array):
    """The entry of a tensor in blocks."""
    return FLOAT4.value, array.shape, gguf.quants.quantize(np.ascontiguousarray(array), FLOAT4).tobytes()


def written(path, model, in_blocks, changed=None):
    """The file of a model; experts `in_blocks` are of numbers that these hold."""
    called, tensors = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, 9), dict.fromkeys(ggufs.shapes())
    for name, tensor in model.state_dict().items():
        for plain, array in named_parts(name, tensor.numpy()).items():
            stem, end = plain.rsplit(".", 1)
            tensors[f"{called.get_name(stem)}.{end}"] = np.ascontiguousarray(array, "<f4")
    if in_blocks:
        tensors |= {name: float4_entry(array) for name, array in tensors.items() if name.endswith("exps.weight")}
    keys = {name: None for name in ggufs.SAID if name.startswith("llama.")}
    keys |= keys_of(model.config) | {"general.architecture": "gpt-oss", "tokenizer.ggml.pre": "gpt-4o"}
    return ggufs.write(path, keys | (changed or {}), tensors)


SCALED = dict(FILED["rope_parameters"], rope_theta=150.0, original_max_position_embeddings=1024)  # turns between
PEERS = {
    "published settings": {},
    "frequencies whose borders are not whole": dict(rope_parameters=SCALED, num_hidden_layers=1),
    "plain rotation": dict(rope_parameters=dict(rope_type="default", rope_theta=1e4), num_experts_per_tok=1),
    "no biases of attention": dict(attention_bias=False, num_hidden_layers=3),
}


@pytest.mark.parametrize("peer", PEERS)
def test_logits_are_theirs(peer, rng, tmp_path):
    model, batch = made(FILED | PEERS[peer]), Batch([rng.integers(0, ggufs.WORDS, length) for length in (1, 7, 40)])
    operator = open_model(written(tmp_path / "one.gguf", model, False)).operator()
    assert relative(dense(operator, batch), logits(model, batch)) < 1e-4


def test_experts_of_float4_are_kept_as_in_the_directory(rng, tmp_path):
    """The same terms lead to the same numbers, to the bit; a program holds the blocks, and no wider stack."""
    model = made(FILED)
    (directory := tmp_path / "plain").mkdir()
    pack_experts(model, directory, rng)
    opened = open_model(written(tmp_path / "one.gguf", model, True))
    batch = Batch([rng.integers(0, ggufs.WORDS, 40)])
    assert np.array_equal(dense(opened.operator(), batch), dense(open_model(directory).operator(), batch))
    extents = counted([40], patterns(operator := opened.operator()))
    methods = Representable(in_blocks=True)
    program = search(operator, EXACT_LAWS, standin.machine(), extents, methods=methods).program({})[0]
    stacks = [stored for stored in program.constants.values() if isinstance(stored, Stacked)]
    assert {stack.name for stack in stacks} == {"mxfp4"} and len(stacks) == 6
    assert sum(stack.nbytes for stack in stacks) == 2 * 3 * 6 * 96 * 64 * 17 // 32
    assert relative(program.run(batch), logits(model, batch)) < 1e-4


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"attention.sliding_window": None}, "attention.sliding_window is missing"),
        ({"expert_count": None}, "expert_count is missing"),
        ({"expert_used_count": 7}, "num_experts_per_tok is 7: .* at most num_local_experts, 6"),
        ({"expert_feed_forward_length": 64}, "ffn_gate_exps.weight' is 6 × 96 × 64, but .* leads to 6 × 64 × 64"),
        ({"attention.value_length": 8}, "attention.value_length is 8: it must be 16"),
        ({"expert_shared_count": 1}, "expert_shared_count is 1: the model would be computed without it"),
    ],
)
def test_what_does_not_fit_is_a_line(changed, words, tmp_path):
    changed = {f"gpt-oss.{name}": value for name, value in changed.items()}
    path = written(tmp_path / "bad.gguf", made(FILED), True, changed)
    with pytest.raises(InputError, match=words) as caught:
        open_model(path).operator()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("exponent", [255, 253])
def test_an_exponent_that_leads_beyond_float32_is_a_line(exponent, tmp_path):
    path, stored = written(tmp_path / "bad.gguf", made(FILED), True), STORED["MXFP4"]
    first = open_model(path).tensors["layers.1.mlp.experts.up_proj.weight"]
    whole = bytearray(path.read_bytes())
    whole[first.start + 3 * stored.block.itemsize] = exponent
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"'blk.1.ffn_up_exps.weight.* has .* at \[1, \d+\]: weights must be finite"):
        open_model(path).operator()
