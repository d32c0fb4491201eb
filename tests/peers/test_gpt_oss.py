"""Logits of random gpt-oss models of transformers, from the files that it saves and from files of MXFP4 experts as the
published ones are; of whole texts, and of steps over caches; one of them of the published widths."""

import json
from itertools import pairwise

import numpy as np
import pytest
import quantised_files
import standin
from safetensors.numpy import save_file
from searched import structure

from formats import Stacked
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS, WORDS, POSITIONS = (1, 7, 33, 60), 90, 64
SIZES = dict(
    vocab_size=WORDS,
    max_position_embeddings=POSITIONS,
    hidden_size=48,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=6,
    num_experts_per_tok=3,
    sliding_window=5,
    rope_parameters=dict(
        rope_type="yarn",
        rope_theta=150000.0,
        factor=4.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=16,
    ),
)
PEERS = {
    "published settings": {},
    "plain rotation, other kinds": dict(
        rope_parameters=dict(rope_type="default", rope_theta=1e4),
        layer_types=["full_attention", "sliding_attention"],
        num_experts_per_tok=1,
    ),
    "all experts, no biases, tied": dict(num_experts_per_tok=6, attention_bias=False, tie_word_embeddings=True),
    "a head of keys for each of queries": dict(num_key_value_heads=4, head_dim=10, num_hidden_layers=3),
}
PUBLISHED = dict(hidden_size=2880, intermediate_size=2880, num_attention_heads=64, num_key_value_heads=8, head_dim=64)
PUBLISHED |= dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=128, num_hidden_layers=2)


def made(config):
    """A model of weights that spread the scores of routers; gains are about 1, units reach their bounds."""
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**config)).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:
                each.copy_(1 + 0.3 * torch.randn_like(each))
            elif each.ndim == 1 or "bias" in name:
                each.copy_(2 * torch.randn_like(each))
            else:
                each.copy_(3 * torch.randn_like(each) * (1 if "embed" in name else max(each.shape[-2:]) ** -0.5))
    return model


def logits(model, batch):
    with torch.no_grad():
        rows = [model(torch.from_numpy(batch.tokens[lo:hi])[None]).logits[0] for lo, hi in pairwise(batch.starts)]
    return np.concatenate([each.numpy() for each in rows])


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


def operator_of(model, directory):
    model.save_pretrained(directory)
    return open_model(directory).operator()


@pytest.mark.parametrize("peer", PEERS)
def test_logits_are_theirs(peer, rng, tmp_path):
    """A row whose two best scores float32 tells apart otherwise than float64 would be far off: there is none here."""
    model = made(SIZES | PEERS[peer])
    batch = Batch([rng.integers(0, WORDS, length) for length in LENGTHS])
    assert relative(dense(operator_of(model, tmp_path), batch), logits(model, batch)) < 1e-4


@pytest.mark.deep
def test_programs_and_steps_are_theirs_at_the_published_widths(rng, tmp_path):
    """Of texts longer than the window, too: 2,880 columns, 64 heads of 64 that share 8 of keys."""
    model = made(SIZES | PUBLISHED | dict(max_position_embeddings=4096))
    check_program(model, operator_of(model, tmp_path), rng.integers(0, WORDS, 150), 140)


def test_programs_and_steps_are_theirs(rng, tmp_path):
    model = made(SIZES)
    check_program(model, operator_of(model, tmp_path), rng.integers(0, WORDS, 20), 12)


def check_program(model, operator, text, prompt):
    """A program of one kernel for attention and one for experts scores a text as transformers does, and so do the steps
    of a session behind a prompt."""
    program = structure(operator, batch=Batch([text])).program({})[0]
    kernels = [step.kernel for step in program.steps]
    layers = model.config.num_hidden_layers
    assert kernels.count("attention") == kernels.count("experts") == layers and "interpret" not in kernels
    wanted = logits(model, Batch([text]))
    assert relative(program.run(Batch([text])), wanted) < 1e-4
    session = program.decoder.start(-(-len(text) // 16) * 16)
    one = session.join()
    steps = [session.step({one: text[:prompt]})]
    steps += [session.step({one: text[at : at + 1]}) for at in range(prompt, len(text))]
    assert relative(np.concatenate(steps), wanted) < 1e-4


def test_generated_tokens_are_theirs(rng, tmp_path):
    """Greedy ones, but for ties of float32."""
    model, prompt = made(SIZES), rng.integers(0, WORDS, 9)
    model.save_pretrained(tmp_path)
    program, _ = structure(open_model(tmp_path).operator(pooled=True), batch=Batch([prompt])).program({})
    session, text = program.decoder.start(64), [*prompt.tolist()]
    scores = session.step({(one := session.join()): prompt})[-1]
    for _ in range(12):
        wanted = logits(model, Batch([text]))[-1]
        assert relative(scores, wanted) < 1e-4
        text.append(int(scores.argmax()))
        scores = session.step({one: text[-1:]})[-1]


def pack_experts(model, directory, rng):
    """Write a model's files with experts in MXFP4, and give the model the numbers that these stand for."""
    state = {name: each.detach().numpy().copy() for name, each in model.state_dict().items()}
    files = dict(state)
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = files.pop(name).shape
        codes, exponents, numbers = quantised_files.float4_groups(rng, count, outputs, inputs)
        files[f"{name}_blocks"] = codes.astype(np.uint8).reshape(count, outputs, inputs // 32, 16)
        files[f"{name}_scales"] = (exponents + 3).astype(np.uint8)
        state[name] = np.ascontiguousarray(8 * numbers.swapaxes(1, 2))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    model.save_pretrained(directory)
    (directory / "model.safetensors").unlink()
    save_file(files, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    kept_plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept_plain}
    (directory / "config.json").write_text(json.dumps(config))


def test_experts_of_float4_as_published(rng, tmp_path):
    model = made(SIZES | dict(hidden_size=64, intermediate_size=96))
    pack_experts(model, tmp_path, rng)
    text = rng.integers(0, WORDS, 40)
    check_program(model, open_model(tmp_path).operator(), text, 30)
    extents = counted([40], patterns(operator := open_model(tmp_path).operator()))
    methods = Representable(in_blocks=True)
    program = search(operator, EXACT_LAWS, standin.machine(), extents, methods=methods).program({})[0]
    stacks = [stored for stored in program.constants.values() if isinstance(stored, Stacked)]
    assert {stack.name for stack in stacks} == {"mxfp4"} and len(stacks) == 6
    assert sum(stack.nbytes for stack in stacks) == 2 * 3 * 6 * 96 * 64 * 17 // 32
    assert relative(program.run(Batch([text])), logits(model, Batch([text]))) < 1e-4
