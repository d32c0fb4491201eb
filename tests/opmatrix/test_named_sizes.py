"""Sizes may have names: a model of names has, at any numbers for them, the shapes of the model of these numbers."""

import json
from functools import cache
from math import isclose

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.data import Data, LiveNumber, Promised
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, ShapeError, T, size
from opmatrix.display.show import latex, names
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.models import check, normalise_config, promised, tensors
from rewrites.search.planned import planned
from rewrites.search.search import search

n, p, f, h, a, g, d, v = map(size, "n p f h a g d v".split())

LLAMA = dict(
    model_type="llama",
    vocab_size="v",
    hidden_size="h",
    intermediate_size="f",
    num_attention_heads="a",
    num_key_value_heads="g",
    max_position_embeddings="p",
    num_hidden_layers=1,
)
BERT = dict(
    model_type="bert",
    vocab_size="v",
    hidden_size="h",
    intermediate_size="f",
    num_attention_heads="a",
    max_position_embeddings="p",
    type_vocab_size="k",
    num_hidden_layers=1,
    layer_norm_eps=1e-12,
)
GPT2 = dict(model_type="gpt2", vocab_size="v", n_embd="h", n_head="a", n_positions="p", n_layer=1)
SMALL = LLAMA | dict(
    model_type="transformer",
    head_dim="d",
    norm="rms",
    norm_eps=1e-6,
    pre_norm=True,
    gated=True,
    bias=False,
    mask="sequence & causal",
    positions="rotary",
)
DELTA_NETS = dict(linear_num_key_heads=2, linear_num_value_heads=4, num_hidden_layers=2, full_attention_interval=2)
DELTA_NETS |= dict(head_dim="d", partial_rotary_factor=0.5)
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "PanguEmbedded", "cohere", "granite", "olmo2", "phi3", "smollm3")
CASES = {
    "bert": BERT,
    "bert, a decoder": BERT | dict(is_decoder=True),
    "roberta": BERT | dict(model_type="roberta"),
    "xlm-roberta": BERT | dict(model_type="xlm-roberta"),
    "electra": BERT | dict(model_type="electra", embedding_size="f"),
    "albert": BERT | dict(model_type="albert", embedding_size="f", num_hidden_groups=1, inner_group_num=1),
    "mpnet": BERT | dict(model_type="mpnet"),
    "modernbert": BERT | dict(model_type="modernbert"),
    "deberta": BERT | dict(model_type="deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "jina": BERT | dict(model_type="jina_bert", position_embedding_type="alibi"),
    "jina, normed": BERT | dict(model_type="jina_bert_normed", position_embedding_type="alibi"),
    "nomic": BERT | dict(model_type="nomic_bert"),
    "gte": BERT | dict(model_type="gte"),
    "gte, published": BERT
    | dict(model_type="new", type_vocab_size=0, rope_scaling=dict(type="ntk", factor=4.0), rope_theta=7.0),
    "gemma3": LLAMA | dict(model_type="gemma3_text", head_dim="d", sliding_window=5),
    "gemma2": LLAMA | dict(model_type="gemma2", head_dim="d", sliding_window=5, attn_logit_softcapping=50.0),
    "cohere2": LLAMA | dict(model_type="cohere2", sliding_window=5),
    "cohere, query-key norms": LLAMA | dict(model_type="cohere", use_qk_norm=True, attention_bias=True),
    "distilbert": dict(
        model_type="distilbert",
        vocab_size="v",
        dim="h",
        hidden_dim="f",
        n_heads="a",
        n_layers=1,
        max_position_embeddings="p",
    ),
    "gpt2": GPT2,
    "gpt2, wide": GPT2 | dict(n_inner="f"),
    "pangu-alpha": dict(
        model_type="gpt_pangu",
        vocab_size="v",
        hidden_size="h",
        num_heads="a",
        num_layers=2,
        max_position_embeddings="p",
    ),
    "bloom": dict(model_type="bloom", vocab_size="v", hidden_size="h", n_head="a", n_layer=1, seq_length="p"),
    "mamba": dict(model_type="mamba", vocab_size="v", hidden_size="h", num_hidden_layers=1, time_step_rank=3),
    "mamba2": dict(model_type="mamba2", vocab_size="v", hidden_size=96, num_heads=3, n_groups=3, num_hidden_layers=1),
    "t5": dict(model_type="t5", vocab_size="v", d_model="h", d_kv="d", d_ff="f", num_heads="a", num_layers=1),
    **{kind: LLAMA | dict(model_type=kind) for kind in DECODERS},
    "llama, heads of their own width": LLAMA | dict(head_dim="d"),
    "llama, some sizes": LLAMA | dict(hidden_size=96, vocab_size=50),
    "llama, one head of keys": LLAMA | dict(num_key_value_heads=1),
    "llama, keys of each head": LLAMA | dict(num_key_value_heads="a"),
    "llama, turned in part": LLAMA | dict(partial_rotary_factor=0.5, head_dim="d", attention_bias=True, mlp_bias=True),
    "llama, longer": LLAMA | dict(rope_scaling=dict(rope_type="yarn", factor=4.0)),
    "gpt-oss": LLAMA
    | dict(model_type="gpt_oss", num_local_experts="k", num_experts_per_tok=2, head_dim="d", sliding_window=5),
    "mixtral": LLAMA | dict(model_type="mixtral", num_local_experts="k", num_experts_per_tok=2),
    "qwen2_moe": LLAMA
    | dict(
        model_type="qwen2_moe",
        num_experts="k",
        num_experts_per_tok=3,
        norm_topk_prob=True,
        moe_intermediate_size="f",
        shared_expert_intermediate_size="f",
    ),
    "qwen3_5_text": LLAMA | DELTA_NETS | dict(model_type="qwen3_5_text"),
    "qwen3_next": LLAMA
    | DELTA_NETS
    | dict(model_type="qwen3_next", num_experts="k", num_experts_per_tok=3)
    | dict(moe_intermediate_size="f", shared_expert_intermediate_size="f"),
    "transformer": SMALL,
    "transformer, learned": SMALL
    | dict(positions="learned", norm="layer", pre_norm=False, gated=False, bias=True, head="tied"),
}


@st.composite
def numbers(draw):
    """Numbers for the names that divide as they must."""
    g, group, d = draw(st.integers(1, 4)), draw(st.integers(2, 3)), 4 * draw(st.integers(1, 4))
    a = g * group
    draws = {name: draw(st.integers(3, 40)) for name in "vfpk"}
    return draws | dict(a=a, g=g, d=d, h=96 if 96 % (2 * a) == 0 and 96 // a % 4 == 0 else a * d)


def at(said, sizes):
    """A config with numbers for its names."""
    return {key: sizes.get(value, value) if isinstance(value, str) else value for key, value in said.items()}


def fixed(something, sizes):
    """A size, a shape or an attribute with numbers for names."""
    if isinstance(something, Shape):
        return Shape(*(fixed(each, sizes) for each in something))
    if isinstance(something, Data):
        return tuple(fixed(each, sizes) for each in something.shape)
    return evaluated(something, tuple(sizes.items())) if isinstance(something, sympy.Expr) else something


@cache
def evaluated(expression, sizes):
    return expression.subs(sizes)


def in_step(one, other):
    """Every node of two terms of one form, in pairs."""
    seen, todo = set(), [(one, other)]
    while todo:
        if (pair := todo.pop()) in seen:
            continue
        seen.add(pair)
        yield pair
        todo += zip(pair[0].children, pair[1].children, strict=True)


def check_alike(live, plain, sizes):
    """Two terms of the same kinds, shapes and attributes, in every node, at these sizes."""
    sizes = {size(name): number for name, number in sizes.items()}
    for one, other in in_step(live, plain):
        assert one.kind is other.kind
        assert fixed(one.into, sizes) == other.into and fixed(one.out, sizes) == other.out, (one, other)
        for mine, its in zip(one.attributes, other.attributes, strict=True):
            assert fixed(mine, sizes) == fixed(its, {}), (one, other)
            if isinstance(mine, LiveNumber):
                assert isclose(mine.expression.subs(sizes), its[0], rel_tol=1e-14)


@pytest.mark.deep(every=9)
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3, deadline=None)
@given(sizes=numbers())
def test_a_model_of_names_has_the_shapes_of_any_numbers(case, sizes):
    said = CASES[case]
    if case == "llama, some sizes" and 96 % sizes["a"]:
        return
    live, plain = promised(said), promised(at(said, sizes))
    known = {name: number for name, number in sizes.items() if name in said.values()}
    check_alike(live, plain, known)
    x = Shape(1, T, live.into.cols)
    at_numbers = {size(name): number for name, number in known.items()}
    assert fixed(live(x), at_numbers) == plain(fixed(x, at_numbers)) and live.out.cols in (size("h"), 96, size("v"))
    assert {name: tuple(fixed(each, at_numbers) for each in shape) for name, shape in tensors(said).items()} == tensors(
        at(said, sizes)
    )


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("case", CASES)
def test_a_model_of_names_is_one_node_and_reads_back_from_its_text(case):
    model = promised(CASES[case])
    assert model is promised(CASES[case]) and eval(str(model), names(model)) is model
    assert "float(" not in model.kind.name and latex(model) and model.shape[0] in (v, 50)
    assert all(type(getattr(node, each)) is bool for node in model.walk() for each in ("storable", "single", "level"))


def test_names_and_symbols_mean_the_same():
    symbols = {key: size(value) if value in list("vhfagp") else value for key, value in LLAMA.items()}
    assert promised(symbols) is promised(LLAMA)
    whole = promised(LLAMA | dict(hidden_size=a * d, head_dim=None))  # an expression of names
    assert whole is promised(LLAMA | dict(hidden_size=a * d)) and whole.out.cols == a * d
    widths = {node.args[0].shape for node in whole.walk() if node.kind.name == "rotate"}
    assert widths == {(p, d / 2)}


def test_tables_of_other_turns_are_other_tables():
    plain, base, scaled = (
        promised(LLAMA | more)
        for more in ({}, dict(rope_theta=300.0), dict(rope_scaling=dict(rope_type="linear", factor=2.0)))
    )
    tables = [
        {node.args[0].name for node in model.walk() if node.kind.name == "rotate"} for model in (plain, base, scaled)
    ]
    assert tables[0] == {"rotary.cos"} and len(set.union(*tables)) == 3


@pytest.mark.parametrize(
    "change, words",
    [
        (
            dict(num_hidden_layers="l"),
            "num_hidden_layers is 'l': it must be a whole number from 0 to 1000, no name, as ",
        ),
        (dict(hidden_size="64 px"), "hidden_size is '64 px': it must be a whole number from 1 to 2147483647$"),
        (dict(hidden_size="24"), "hidden_size is '24': it must be a whole number from 1 to 2147483647$"),
        (dict(hidden_size="lambda"), "hidden_size is 'lambda': it must be a whole number from 1 to 2147483647$"),
        (dict(hidden_size=2.5), "hidden_size is 2.5: it must be a whole number from 1 to 2147483647$"),
        (dict(hidden_size="N"), "hidden_size is 'N': it must be another name: H, N, S, T are the algebra's own"),
        (dict(vocab_size=T), "vocab_size is T: it must be another name: H, N, S, T are the algebra's own"),
        (dict(vocab_size=sympy.Symbol("v")), "vocab_size is v: it must be a whole number, or a size that opmatrix"),
        (dict(vocab_size=-v), "vocab_size is -v: it must be a whole number, or a size that opmatrix"),
        (dict(rms_norm_eps="e"), "rms_norm_eps is 'e': it must be a number from"),
        (
            dict(num_key_value_heads=2 * d, num_attention_heads=3 * d),
            "num_key_value_heads is 2\\*d: it must be a divisor",
        ),
        (
            dict(num_attention_heads=4, num_key_value_heads=3),
            "num_key_value_heads is 3: it must be a divisor of num_att",
        ),
        (
            dict(head_dim=2 * d + 1),
            "head_dim is 2\\*d \\+ 1: it must be such that an even number of its columns rotate",
        ),
        (
            dict(rope_scaling=dict(rope_type="llama3", factor=2.0, low_freq_factor=4.0, high_freq_factor=1.0)),
            "high_freq_factor is 1.0: it must be more than low_freq_factor",
        ),
    ],
)
def test_what_is_no_size_is_refused(change, words):
    with pytest.raises(InputError, match=words) as caught:
        promised(LLAMA | change)
    assert "\n" not in str(caught.value)


def test_what_needs_numbers_refuses_a_name(tmp_path):
    wanted = "hidden_size is the name h: a number is needed here$"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | dict(vocab_size=50)))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=f"config: {wanted}"):
        check(LLAMA | dict(vocab_size=50))
    with pytest.raises(InputError, match=f"config.json: {wanted}"):
        Checkpoint.open(tmp_path)
    for source, place in ((LLAMA | dict(vocab_size=50), "config"), (tmp_path / "config.json", "config.json")):
        with pytest.raises(InputError, match=f"{place}: {wanted}"):
            planned(source, None)
    with pytest.raises(InputError, match="n_embd is the name h: a number is needed here"):
        check(GPT2 | dict(vocab_size=50))
    assert normalise_config(GPT2)["hidden_size"] == h
    model = promised(LLAMA)
    for needs in (
        lambda: om.dense(model, om.Batch([[1, 2]])),
        lambda: search(model, (), None, None),
        lambda: om.entrywise(model, om.Batch([[1, 2]])),
    ):
        with pytest.raises(InputError, match="embed_tokens_weight: v is the name of a size: a number is needed here"):
            needs()


def promise(name, *shape):
    return Promised(name, shape)


W, B = om.weight(promise("W", n, p)), promise("b", p)
Q, K = om.weight(promise("Q", n, a * d)), om.weight(promise("K", n, g * d))
OPERATORS = {
    "weight": (W, (n, p)),
    "its transpose": (W.T, (p, n)),
    "affine": (om.affine(promise("W", n, p), B), (n, p)),
    "layernorm": (W @ om.layernorm(1e-5) @ om.diag(B) + B, (n, p)),
    "relu": (W @ om.relu @ W.T, (n, n)),
    "heads": (Q @ om.heads(a), (a, n, d)),
    "joined": (Q @ om.heads(a) @ om.heads(a).T, (n, a * d)),
    "repeat": (K @ om.heads(g) @ om.repeat(a), (a, n, d)),
    "cols": (W @ om.cols(0, p / 2, p), (n, p / 2)),
    "place": (W @ om.place(2, p + 3), (n, p + 3)),
    "part": (W @ om.cols(1, g), (n, g - 1)),
    "row": (om.row(W, Q), (n, p + a * d)),
    "col": (om.col(W, om.weight(promise("V", f, p))), (n + f, p)),
    "blocks": (om.blocks([[W, None], [None, Q]]), (2 * n, p + a * d)),
    "attention": (om.attention(Q, Q, Q, a, sequence), (n, a * d)),
    "grouped": (om.grouped(Q, K, K, a, g, sequence & causal, om.rotary(p, d)), (n, a * d)),
    "rotary": (Q @ om.heads(a) @ om.rotary(p, d / 2, 50.0, rest=d / 2), (a, n, d)),
    "scaled": (W * n**-0.5 - 1 / (p + 1), (n, p)),
    "mean": (W @ om.mean, (n, 1)),
    "the algebra's words": (
        om.weight(promise("gelu", size("mean"), size("x"))) @ om.heads(size("x")),
        (size("x"), size("mean"), 1),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_named_sizes_have_shapes_and_texts(name):
    term, shape = OPERATORS[name]
    assert term.shape == shape and eval(str(term), names(term)) is term
    assert latex(term).count("{") == latex(term).count("}") and term._repr_html_()


def test_texts_of_sizes():
    mixed, _ = OPERATORS["grouped"]
    assert str(mixed) == "grouped(Q, K, K, a, g, sequence & causal, rotate(rotary_cos, rotary_sin, 0))"
    assert str(om.heads(size("mean"))) == "heads(mean_)" and str(om.heads(h / a).T) == "heads(h/a).T"
    assert str(OPERATORS["scaled"][0]) == "W * n**(-1/2) - (1/(p + 1))"
    assert latex(om.heads(a)) == "H_{a}" and latex(om.cols(0, h / 2)) == r"P_{0:\frac{h}{2}}"
    assert latex(om.weight(promise("W", n, p)) * d**-0.5) == r"W \odot \frac{1}{\sqrt{d}}"


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: om.heads(3 * n)(Shape(1, T, 2 * n)), "3\\*n heads do not divide"),
        (lambda: W @ om.cols(p, p + 1), "columns p to p \\+ 1 of p"),
        (lambda: om.cols(0, n, 1) @ W, "columns 0 to n of 1"),
        (lambda: om.place(1, 4)(Shape(1, T, n)), "columns 1 to n"),
        (lambda: W @ om.cols(p, p), "columns p to p of N"),
        (lambda: W @ om.weight(promise("V", f, p)), "p ≠ f"),
        (lambda: om.rotary(8, 2 * d + 1), "rotary: 2\\*d \\+ 1 columns: they rotate in pairs"),
    ],
)
def test_what_no_numbers_make_right_is_refused(make, words):
    with pytest.raises(ShapeError, match=words):
        make()


def test_a_number_of_unknown_sizes_is_none():
    """The columns of an input, and rows of a batch, are no sizes of a model."""
    for wrong in (lambda: om.attention(om.I, om.I, om.I, 1, sequence), lambda: om.I * (1 / T)):
        with pytest.raises(TypeError, match="an unknown size is no number"):
            wrong()
    with pytest.raises(TypeError, match=r"1/sqrt\(d\) depends on sizes without a number"):
        _ = Data.of(d**-0.5).array
    assert Data.of(d**-0.5) == Data.of(sympy.sqrt(1 / d)) != Data.of(a**-0.5)
