"""Any small transformer: the operator is plain numpy, and its imported, fused and exact programs are the operator."""

from itertools import product

import numpy as np
import pytest
from random_models import MASKS, random_config, random_sentences, random_weights
from searched import KINDS, structure

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import ACTIVATIONS
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import causal, mask, parse, sequence, window
from opmatrix.models import build
from opmatrix.runtime.program import Program
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.verify import check_graph, unrounded, verify_exact

BASE = random_config(np.random.default_rng(0)) | dict(
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=12,
    max_position_embeddings=16,
    norm="rms",
    norm_eps=1e-5,
    pre_norm=True,
    hidden_act="silu",
    gated=True,
    bias=False,
    mask="sequence & causal",
)
RAGGED = Batch([[3, 4, 5, 6, 7], [8], [9, 1, 2, 10, 11, 4, 4, 0, 1, 2, 3]])


def model(config, seed=0):
    at = random_weights(config, np.random.default_rng(seed))
    return build(config, at), at


# ---- the operator


def plain(config, w, tokens):
    """One sentence through the transformer, in arrays alone."""
    n, h, g, d = len(tokens), config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    at = np.arange(n)
    seen = np.broadcast_to(
        {
            "sequence": True,
            "sequence & causal": at <= at[:, None],
            "sequence & window(2)": abs(at - at[:, None]) <= 2,
            "sequence & causal & window(2)": (at <= at[:, None]) & (at >= at[:, None] - 2),
        }[config["mask"]],
        (n, n),
    )

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + (w[f"{name}.bias"] if config["bias"] else 0)

    def norm(x, name):
        x = x - x.mean(1, keepdims=True) if config["norm"] == "layer" else x
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + config["norm_eps"]) * w[f"{name}.weight"]
        return x + w[f"{name}.bias"] if config["norm"] == "layer" else x

    def turned(x):
        angles = np.outer(at, config["rope_theta"] ** (-np.arange(0, d, 2) / d))
        pairs = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angles)[:, None]
        return np.concatenate([pairs.real, pairs.imag], -1)

    def mixing(x, l):
        q, k, v = (linear(x, f"{l}.{part}").reshape(n, -1, d) for part in ("query", "key", "value"))
        if config.get("positions") == "rotary":
            q, k = turned(q), turned(k)
        found = []
        for i in range(h):
            s = np.where(seen, q[:, i] @ k[:, i * g // h].T / np.sqrt(d), -np.inf)
            p = np.exp(s - s.max(1, keepdims=True))
            found.append(p / p.sum(1, keepdims=True) @ v[:, i * g // h])
        return linear(np.concatenate(found, 1), f"{l}.output")

    def feeding(x, l):
        act = lambda u: np.asarray(dense(ACTIVATIONS[config["hidden_act"]], u))
        up = linear(x, f"{l}.up")
        return linear(act(linear(x, f"{l}.gate")) * up if config["gated"] else act(up), f"{l}.down")

    x = w["tokens"][tokens] + (0 if config.get("positions") == "rotary" else w["positions"][:n])
    for l in (f"layer.{i}" for i in range(config["num_hidden_layers"])):
        if config["pre_norm"]:
            x = x + mixing(norm(x, f"{l}.norm1"), l)
            x = x + feeding(norm(x, f"{l}.norm2"), l)
        else:
            x = norm(x + mixing(x, l), f"{l}.norm1")
            x = norm(x + feeding(x, l), f"{l}.norm2")
    x = norm(x, "norm") if config["pre_norm"] else x
    return (
        x @ {"tied": w["tokens"], "own": w.get("head")}[config["head"]].T if config.get("head", "none") != "none" else x
    )


LLAMA = dict(norm="rms", pre_norm=True, hidden_act="silu", gated=True, bias=False, positions="rotary", rope_theta=300.0)
CHOICES = [
    dict(norm=norm, pre_norm=pre, mask=mask.format(2), num_key_value_heads=g, gated=gated, bias=bias)
    for norm, pre, mask, g, gated, bias in product(
        ("layer", "rms"), (True, False), MASKS, (1, 2, 4), (True, False), (True, False)
    )
][::7]
CHOICES += [
    LLAMA,
    LLAMA | dict(num_key_value_heads=4, bias=True),
    LLAMA | dict(num_key_value_heads=1, head="tied"),
    dict(head="own", pre_norm=False),
]


@pytest.mark.parametrize("changed", CHOICES, ids=str)
def test_a_transformer_is_plain_numpy(changed):
    config = BASE | changed
    operator, at = model(config)
    w = {name: data.array.astype(np.float64) for name, data in at.made.items()}
    wanted = np.concatenate([plain(config, w, one.tokens) for one in RAGGED])
    np.testing.assert_allclose(dense(operator, RAGGED), wanted, rtol=1e-10, atol=1e-11)


def test_both_oracles_agree():
    operator, _ = model(BASE | dict(hidden_size=6, head_dim=2, intermediate_size=3))
    batch = Batch([[1, 2, 3], [4]])
    np.testing.assert_allclose(entrywise(operator, batch)[0].astype(float), dense(operator, batch), atol=1e-12)


@pytest.mark.parametrize(
    "mask, said",
    [
        ("causal", "looks within sequences"),
        ("sequence & often", "'often' of"),
        ("sequence & (causal", "a bracket is not closed"),
    ],
)
def test_a_mask_that_is_none_is_named(mask, said):
    with pytest.raises(InputError, match=rf"config: mask.*{said}"):
        model(BASE | dict(mask=mask))


@pytest.mark.parametrize(
    "changed, said",
    [
        (dict(num_key_value_heads=3), "num_key_value_heads is 3: it must be a divisor of num_attention_heads, 4"),
        (dict(head_dim=5, positions="rotary"), "head_dim is 5: it must be even, as pairs of columns are rotated"),
        (dict(head="both"), "head is 'both': it must be one of none, tied, own"),
        (dict(head_dim=0), "head_dim is 0: it must be a whole number from 1"),
        (dict(vocab_size=2.5), "vocab_size is 2.5"),
        (dict(hidden_act="sine"), "hidden_act is 'sine': it must be one of"),
        (dict(norm="batch"), "norm is 'batch': it must be layer or rms"),
    ],
)
def test_a_choice_that_is_none_is_named(changed, said):
    with pytest.raises(InputError, match=said):
        model(BASE | changed)


@pytest.mark.parametrize(
    "pattern",
    [
        sequence & causal & window(3),
        sequence & (causal | window(1)),
        window(-1),
        mask(np.eye(3)) & sequence,
        (mask(np.eye(3)) | causal) & mask(np.tri(3)),
    ],
    ids=str,
)
def test_a_pattern_is_its_text(pattern):
    assert parse(pattern.form, [data.array for data in pattern.data]) == pattern


# ---- its programs


def verified(operator, batch):
    """Its three programs, verified."""
    made = {kind: structure(operator, *how, batch=batch) for kind, how in KINDS.items()}
    programs = {kind: each.program({"model": kind}) for kind, each in made.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [batch], programs["imported"][0], unrounded(made[kind], emitter))
    return {kind: program for kind, (program, _) in programs.items()}


@pytest.mark.deep(every=14)
@pytest.mark.parametrize("changed", [*CHOICES[:-4:3], *CHOICES[-4:]], ids=str)
def test_its_programs_are_the_model(changed):
    verified(model(BASE | changed)[0], RAGGED)


@pytest.mark.deep(every=23)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False])
def test_programs_with_every_activation(activation, gated):
    programs = verified(model(BASE | dict(hidden_act=activation, gated=gated))[0], RAGGED)
    for program in programs.values():
        assert "interpret" not in [step.kernel for step in program.steps]


@pytest.mark.deep(every=12)
@pytest.mark.parametrize("seed", range(12))
def test_random_transformers(seed):
    rng = np.random.default_rng(1000 + seed)
    config = random_config(rng)
    operator, batch = build(config, random_weights(config, rng)), Batch(random_sentences(config, rng))
    verified(operator, batch)
    for part in parts(operator)[1].values():
        assert not check_graph(part.template, EXACT_LAWS)


def test_kernels_fuse_what_a_layer_is_made_of():
    """No pass of its own but the norms; keys and values are read by their groups, and never copied."""
    programs = verified(model(BASE | dict(mask="sequence & causal & window(2)"))[0], RAGGED)
    fused = [step.kernel for step in programs["fused"].steps]
    assert fused.count("attention") == 1 and not {"repeat", "scores", "softmax", "scale"} & {*fused}
    (gate,) = (step for step in programs["fused"].steps if "times" in step.operands)
    (attend,) = (step for step in programs["fused"].steps if step.kernel == "attention")
    assert gate.kernel == "linear" and attend.attributes["where"] == "sequence & causal & window(2)"
    assert [step.kernel for step in programs["imported"].steps].count("repeat") == 2


def test_a_program_is_saved_and_loaded(tmp_path):
    program = verified(model(BASE)[0], RAGGED)["exact"]
    program.save(tmp_path / "it")
    again = Program.load(tmp_path / "it")
    assert (again.run(RAGGED) == program.run(RAGGED)).all() and again.hash == program.hash


def test_where_heads_are_wide_their_matrices_are_absorbed():
    """Wq·Wkᵀ and Wv·Wo of a head are narrower than its columns here: x itself is key and value of every head."""
    operator, _ = model(BASE | dict(hidden_size=8, head_dim=32, num_attention_heads=2, num_key_value_heads=2))
    steps = {step.output: step for step in verified(operator, RAGGED)["exact"].steps}
    (attend,) = (step for step in steps.values() if step.kernel == "attention")
    assert [steps[attend.operands[name]].attributes["heads"] for name in "qkv"] == [2, 1, 1]
