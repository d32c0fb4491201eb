"""Families of checkpoints: the float64 reading is plain numpy, programs are the reading, and what is none is refused in
a line."""

from functools import partial

import numpy as np
import plain
import plain_decoders
import plain_encoders
import pytest
import standin
from searched import KINDS, structure

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import pick
from opmatrix.algebra.oracles import dense
from opmatrix.inference.cached import cached
from opmatrix.inference.pooling import LAST
from opmatrix.models import FAMILIES, build, fill_masks, head, layout, normalise_config, rope, tensors
from rewrites.explain.derivations.schedules import schedule
from rewrites.explain.derivations.stages import bf16, half, int8
from rewrites.verify import unrounded, verify_exact

WORDS = 50
EXPERTS = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "PanguProMoE",
    "pr_moe",
    "deepseek_v2",
    "deepseek_v3",
    "qwen3_next",
    "qwen3_5_moe_text",
    "gpt_oss",
)  # test_expert_models.py
RAGGED = Batch([[3, 4, 5, 6, 7, 9, 30, 2, 11], [8], [9, 2, 10, 11, 4, 4, 0, 2, 3]])
BERT = dict(
    vocab_size=WORDS,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=20,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
)
LLAMA = dict(
    vocab_size=WORDS,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=20,
    rms_norm_eps=1e-5,
    rope_theta=300.0,
)
GPT2 = dict(vocab_size=WORDS, n_embd=24, n_layer=2, n_head=3, n_positions=20, n_inner=None, layer_norm_epsilon=1e-5)
PANGU = dict(
    vocab_size=WORDS, hidden_size=24, num_layers=3, num_heads=3, max_position_embeddings=20, layer_norm_epsilon=1e-5
)
BLOOM = dict(vocab_size=WORDS, hidden_size=24, n_layer=2, n_head=4, layer_norm_epsilon=1e-5, seq_length=20)
MAMBA2 = dict(vocab_size=WORDS, hidden_size=24, state_size=4, num_hidden_layers=2, layer_norm_epsilon=1e-5) | dict(
    num_heads=6, head_dim=8, n_groups=2
)
DELTA_NETS = dict(linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=5, linear_value_head_dim=7)
QWEN3_5 = LLAMA | DELTA_NETS | dict(head_dim=8, full_attention_interval=2)
MAMBA = dict(vocab_size=WORDS, hidden_size=24, state_size=4, num_hidden_layers=2, layer_norm_epsilon=1e-5)
T5 = dict(
    vocab_size=WORDS,
    d_model=24,
    d_kv=10,
    d_ff=20,
    num_layers=2,
    num_heads=3,
    layer_norm_epsilon=1e-6,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=16,
    n_positions=20,
)
ALBERT = BERT | dict(embedding_size=10, num_hidden_groups=1, inner_group_num=1, num_hidden_layers=3)
MODERN = dict(
    vocab_size=WORDS,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=20,
    norm_eps=1e-5,
    local_attention=5,
    global_rope_theta=300.0,
    local_rope_theta=10.0,
)
DEBERTA = BERT | dict(relative_attention=True, pos_att_type=["c2p", "p2c"])
JINA = BERT | dict(num_attention_heads=4, position_embedding_type="alibi")
NOMIC = dict(
    vocab_size=WORDS,
    n_embd=24,
    n_inner=20,
    n_layer=2,
    n_head=3,
    n_positions=20,
    type_vocab_size=2,
    layer_norm_epsilon=1e-5,
)  # as it was published
NOMIC_EXPERTS = NOMIC | dict(
    activation_function="gelu",
    qkv_proj_bias=True,
    mlp_fc1_bias=True,
    mlp_fc2_bias=True,
    rotary_emb_base=300.0,
    moe_every_n_layers=2,
    num_experts=5,
    moe_top_k=2,
    moe_normalize_expert_weights=False,
)
GEMMA = LLAMA | dict(
    num_hidden_layers=3,
    head_dim=8,
    query_pre_attn_scalar=6,
    sliding_window=3,
    sliding_window_pattern=2,
    rope_local_base_freq=10.0,
)
COHERE = {"layer_norm_eps" if key == "rms_norm_eps" else key: value for key, value in LLAMA.items()} | dict(
    logit_scale=0.25
)
GEMMA2 = LLAMA | dict(
    num_hidden_layers=3,
    head_dim=8,
    query_pre_attn_scalar=6,
    sliding_window=3,
    attn_logit_softcapping=1.5,
    final_logit_softcapping=30.0,
)
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
TURNS = 300.0 ** (-np.arange(0, 6, 2) / 6)  # of heads of 6 columns


def scaled(kind, factor=4.0, **more):
    return dict(rope_type=kind, factor=factor, original_max_position_embeddings=8, **more)


def llama3():
    """Grattafiori et al. 2024: columns that turn less than once in the original positions turn a quarter as quick."""
    lengths = 2 * np.pi / TURNS
    smooth = (8 / lengths - 1) / (4 - 1)
    return np.where(lengths > 8, TURNS / 4, np.where(lengths < 2, TURNS, (1 - smooth) * TURNS / 4 + smooth * TURNS))


def yarn():
    """Peng et al. 2024, section 3.2, with ramps from 32 to 1 rounds, to whole columns."""
    column = lambda rounds: 6 * np.log(8 / (rounds * 2 * np.pi)) / (2 * np.log(300))
    low, high = max(np.floor(column(32)), 0), min(np.ceil(column(1)), 5)
    ramp = np.clip((np.arange(3) - low) / (high - low), 0, 1)
    return TURNS / 4 * ramp + TURNS * (1 - ramp)


MULTIPLIERS = dict(embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.2, logits_scaling=4.0)
LONGROPE = dict(rope_type="longrope", rope_theta=300.0, factor=4.0, short_factor=[1, 1.5, 2.0])
CASES = {  # a family, its config, and the same in numpy
    "roberta": ("roberta", BERT, plain.roberta),
    "xlm-roberta": ("xlm-roberta", BERT | dict(pad_token_id=0), partial(plain.roberta, first=1)),
    "camembert": ("camembert", BERT, plain.roberta),
    "electra": (
        "electra",
        BERT | dict(embedding_size=10),
        partial(plain_encoders.bert, projection="embeddings_project"),
    ),
    "electra, as wide": ("electra", BERT | dict(embedding_size=24, hidden_act="relu"), plain_encoders.bert),
    "albert": ("albert", ALBERT, plain_encoders.albert),
    "albert, groups": (
        "albert",
        ALBERT | dict(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2),
        plain_encoders.albert,
    ),
    "mpnet": ("mpnet", {key: BERT[key] for key in BERT if key != "type_vocab_size"}, plain_encoders.mpnet),
    "modernbert": ("modernbert", MODERN, plain_encoders.modernbert),
    "modernbert, kinds listed": (
        "modernbert",
        MODERN | dict(layer_types=[SLIDING, FULL, SLIDING], global_attn_every_n_layers=2, norm_bias=True),
        lambda c, w, tokens: plain_encoders.modernbert(c, w, tokens, [SLIDING, FULL, SLIDING]),
    ),
    "deberta": ("deberta-v2", DEBERTA, plain_encoders.deberta),
    "deberta, published": (
        "deberta-v2",
        DEBERTA
        | dict(share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=4, position_biased_input=False)
        | dict(type_vocab_size=0, embedding_size=10),
        plain_encoders.deberta,
    ),
    "deberta, keys alone": ("deberta-v2", DEBERTA | dict(pos_att_type=["p2c"]), plain_encoders.deberta),
    "jina": ("jina_bert", JINA, plain_encoders.jina),
    "jina, three heads": (
        "jina_bert",
        JINA | dict(num_attention_heads=3, feed_forward_type="reglu"),
        plain_encoders.jina,
    ),
    "jina, normed": ("jina_bert_normed", JINA, plain_encoders.jina),
    "nomic": ("nomic_bert", BERT, plain_encoders.nomic),
    "nomic, published": (
        "nomic_bert",
        NOMIC | dict(rotary_emb_base=300, activation_function="geglu"),
        partial(plain_encoders.nomic, base=300.0, act=plain.GELU),
    ),
    "nomic, experts": ("nomic_bert", NOMIC_EXPERTS, plain_encoders.nomic_experts),
    "nomic, experts' shares made one": (
        "nomic_bert",
        NOMIC_EXPERTS | dict(moe_normalize_expert_weights=True, moe_top_k=3),
        plain_encoders.nomic_experts,
    ),
    "gte": ("gte", BERT, plain_encoders.gte),
    "gte, published": (
        "new",
        BERT | dict(type_vocab_size=0, rope_theta=300.0, rope_scaling=dict(type="ntk", factor=8.0)),
        partial(plain_encoders.gte, turns=2400.0 ** (-np.arange(0, 8, 2) / 8) / 8 ** (2 / 8)),
    ),
    "gte, mixed": (
        "new",
        BERT | dict(rope_theta=300.0, rope_scaling=dict(type="ntk", factor=8.0, mixed_b=0.625)),
        partial(
            plain_encoders.gte,
            turns=300.0 ** (-np.arange(0, 8, 2) / 8) / np.exp(np.log(8) / 4**0.625 * np.arange(1, 5) ** 0.625),
        ),
    ),
    "gemma3": (
        "gemma3_text",
        GEMMA,
        partial(plain_encoders.gemma, kinds=["sliding", "full", "sliding"], scale=24**0.5),
    ),
    "gemma3, both ways": (
        "gemma3_text",
        GEMMA
        | dict(use_bidirectional_attention=True, torch_dtype="bfloat16", sliding_window=5, layer_types=[SLIDING] * 3),
        partial(plain_encoders.gemma, kinds=["sliding"] * 3, scale=4.90625),
    ),
    "distilbert": (
        "distilbert",
        dict(vocab_size=WORDS, dim=24, hidden_dim=20, n_heads=3, n_layers=2, max_position_embeddings=20),
        plain.distilbert,
    ),
    "gpt2": ("gpt2", GPT2, plain.gpt2),
    "pangu-alpha": ("gpt_pangu", PANGU, plain.pangu_alpha),
    "bloom": ("bloom", BLOOM, plain.bloom),
    "mamba": ("mamba", MAMBA, plain.mamba),
    "mamba2": ("mamba2", MAMBA2, plain.mamba2),
    "mamba2, other sizes": (
        "mamba2",
        MAMBA2
        | dict(expand=3, state_size=1, conv_kernel=2, num_heads=3, head_dim=24, n_groups=1)
        | dict(use_bias=True, use_conv_bias=False),
        plain.mamba2,
    ),
    "qwen3.5": ("qwen3_5_text", QWEN3_5, plain_decoders.qwen3_next),
    "qwen3.5, other sizes": (
        "qwen3_5_text",
        QWEN3_5
        | dict(layer_types=[FULL, LINEAR], linear_conv_kernel_dim=2, linear_num_key_heads=6, attention_bias=True)
        | dict(partial_rotary_factor=0.5, linear_key_head_dim=1, linear_value_head_dim=1),
        plain_decoders.qwen3_next,
    ),
    "mamba, other sizes": (
        "mamba",
        MAMBA | dict(expand=3, state_size=1, conv_kernel=2, time_step_rank=5, use_bias=True, use_conv_bias=False),
        plain.mamba,
    ),
    "t5": ("t5", T5, plain.t5),
    "t5, gated": ("t5", T5 | dict(feed_forward_proj="gated-gelu"), plain.t5),
    "t5, said twice": ("t5", T5 | dict(feed_forward_proj="silu", dense_act_fn="gelu_new", is_gated_act=True), plain.t5),
    "llama": ("llama", LLAMA, plain.llama),
    "llama, biases": ("llama", LLAMA | dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1), plain.llama),
    "llama, partial": (
        "llama",
        LLAMA | dict(partial_rotary_factor=0.7),
        partial(plain.llama, frequencies=300.0 ** (-np.arange(0, 4, 2) / 4)),
    ),
    "llama, linear": (
        "llama",
        LLAMA | dict(rope_scaling=dict(type="linear", factor=4.0)),
        partial(plain.llama, frequencies=TURNS / 4),
    ),
    "llama, said twice": (
        "llama",
        LLAMA
        | dict(rope_scaling=dict(type="linear", factor=4.0), rope_parameters=dict(rope_type="default", rope_theta=7.0)),
        partial(plain.llama, frequencies=TURNS / 4),
    ),
    "llama, llama3": (
        "llama",
        LLAMA | dict(rope_parameters=scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0)),
        partial(plain.llama, frequencies=llama3()),
    ),
    "llama, yarn": (
        "llama",
        LLAMA | dict(rope_parameters=scaled("yarn")),
        partial(plain.llama, frequencies=yarn(), scale=0.1 * np.log(4) + 1),
    ),
    "mistral": ("mistral", LLAMA | dict(sliding_window=3), partial(plain.llama, windows=[3, 3])),
    "mistral, both ways": (
        "mistral",
        LLAMA | dict(sliding_window=3, is_causal=False),
        partial(plain.llama, windows=[3, 3], causal=False),
    ),
    "qwen2, both ways": ("qwen2", LLAMA | dict(is_causal=False), partial(plain.llama, causal=False)),
    "mistral, no window": ("mistral", LLAMA | dict(sliding_window=None, head_dim=10), plain.llama),
    "qwen2": ("qwen2", LLAMA, plain.llama),
    "qwen2, windows": (
        "qwen2",
        LLAMA | dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
        partial(plain.llama, windows=[99, 4]),
    ),
    "qwen3": ("qwen3", LLAMA | dict(head_dim=8), plain.llama),
    "openpangu": ("PanguEmbedded", LLAMA | dict(bias=True), plain.llama),
    "cohere": ("cohere", COHERE, plain_decoders.cohere),
    "cohere, query-key norms": ("cohere", COHERE | dict(use_qk_norm=True, attention_bias=True), plain_decoders.cohere),
    "cohere2": (
        "cohere2",
        COHERE | dict(sliding_window=3, sliding_window_pattern=2),
        partial(plain_decoders.cohere, windows=[3, None]),
    ),
    "gemma2": ("gemma2", GEMMA2, partial(plain_decoders.gemma2, windows=[3, None, 3])),
    "granite": ("granite", LLAMA | MULTIPLIERS | dict(attention_bias=True), plain.llama),
    "olmo2": ("olmo2", LLAMA, plain.olmo2),
    "olmo2, heads of their own width": ("olmo2", LLAMA | dict(head_dim=8, attention_bias=True), plain.olmo2),
    "phi3, partial": (
        "phi3",
        LLAMA | dict(head_dim=8, partial_rotary_factor=0.5),
        partial(plain.phi3, frequencies=300.0 ** (-np.arange(0, 4, 2) / 4)),
    ),
    "phi3, a window": ("phi3", LLAMA | dict(sliding_window=3), partial(plain.phi3, windows=[3, 3])),
    "smollm3": (
        "smollm3",
        LLAMA | dict(no_rope_layer_interval=2, attention_bias=True),
        partial(plain.llama, rotates=[1, 0]),
    ),
    "smollm3, a window": (
        "smollm3",
        LLAMA | dict(no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=3),
        partial(plain.llama, rotates=[0, 1], windows=[3, 99]),
    ),
    "phi3, longrope": (
        "phi3",
        LLAMA | dict(original_max_position_embeddings=20, rope_parameters=LONGROPE),
        partial(plain.phi3, frequencies=TURNS / [1, 1.5, 2], scale=np.sqrt(1 + np.log(4) / np.log(20))),
    ),
}
VERIFIED = (
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "modernbert",
    "deberta, published",
    "jina",
    "jina, normed",
    "nomic",
    "nomic, experts",
    "gte",
    "gemma3, both ways",
    "gpt2",
    "pangu-alpha",
    "llama, yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "openpangu",
    "cohere, query-key norms",
    "cohere2",
    "gemma2",
    "granite",
    "olmo2",
    "phi3, longrope",
    "smollm3",
    "bloom",
    "t5",
    "mamba",
    "mamba2",
    "qwen3.5",
)


def made(config, seed=0):
    """`at` for a config: matrices three times the size that training starts from, gains 1 ± 0.3, shifts that are not
    zero."""
    rng, found = np.random.default_rng(seed), {}

    def at(name, *shape):
        if name not in found:
            matrix, table = len(shape) > 1, name.split(".")[-2] in ("wte", "wpe", "wqe") or "embed" in name
            numbers = rng.normal(size=shape) * (1.0 if table and matrix else 3 * shape[-1] ** -0.5 if matrix else 0.3)
            found[name] = Data((numbers + (not matrix and name.endswith("weight"))).astype(np.float32), name)
        return found[name]

    at.found = found
    return at


def model(case):
    family, config, numpy = CASES[case]
    config = config | dict(model_type=family)
    at = made(config)
    return config, build(config, at), at, numpy


@pytest.mark.parametrize("case", CASES)
def test_the_reading_is_plain_numpy(case):
    config, operator, at, numpy = model(case)
    w = {name: data.array.astype(np.float64) for name, data in at.found.items()}
    wanted = np.concatenate([numpy(config, w, one.tokens) for one in RAGGED])
    found = dense(operator, RAGGED)
    assert np.abs(found - wanted).max() < 1e-10 * np.abs(wanted).max()


@pytest.mark.parametrize("case", ["llama", "llama, partial", "llama, yarn", "llama, llama3", "qwen2", "mistral"])
def test_of_a_context_of_millions_tables_hold_what_fits(monkeypatch, case):
    """Frequencies are those of the whole context; shorter texts are read as with whole tables."""
    family, config, numpy = CASES[case]
    config = config | dict(model_type=family, max_position_embeddings=2**30)
    turning = 4 if "partial" in case else config.get("head_dim", 6)
    monkeypatch.setattr(rope, "MAX_TABLE_NUMBERS", 20 * turning + 1)
    at = made(config)
    operator = build(config, at)
    w = {name: data.array.astype(np.float64) for name, data in at.found.items()}
    wanted = np.concatenate([numpy(config, w, one.tokens) for one in RAGGED])
    assert np.abs(dense(operator, RAGGED) - wanted).max() < 1e-10 * np.abs(wanted).max()
    assert layout(config).positions(normalise_config(config)) == 20


@pytest.mark.deep(every=11)
@pytest.mark.parametrize("case", VERIFIED)
def test_its_programs_are_the_reading(case):
    verified(model(case)[1])


SPEAKING = (
    "granite",
    "smollm3, a window",
    "olmo2",
    "phi3, longrope",
    "cohere, query-key norms",
    "cohere2",
    "gemma2",
    "gemma3",
)


@pytest.mark.parametrize("case", SPEAKING)
def test_a_session_generates_what_all_rows_anew_score(case):
    """Greedy tokens over caches are those of the whole text by its terms; with factors and caps of scores, too."""
    config, operator, at, _ = model(case)
    speaks = operator @ pick("last") @ head(config, at)
    program, _ = structure(speaks, (), batch=RAGGED).program({"config": config, "pooling": LAST.described()})
    ids = [3, 9, 22]
    (reply,) = program.generate([ids], max_tokens=8)
    for token in reply.ids:
        assert token == int(dense(speaks, Batch([ids]))[-1].argmax())
        ids.append(token)


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("case", ["gpt2", "pangu-alpha", "llama", "mistral", "bloom", "granite", "olmo2", "gemma2"])
def test_programs_of_the_last_row_score_what_comes_next(case):
    """Queries that are rotated are so before the last is picked; all rows behind the last attention are those of
    texts."""
    config, operator, at, _ = model(case)
    exact = verified(operator @ pick("last") @ head(config, at))["exact"]
    attends = max(i for i, step in enumerate(exact.steps) if step.kernel in ("attention", "attend_once"))
    assert {str(call.shape.space) for call in exact.schedule.calls[attends:]} == {"S"}


def verified(operator):
    """Its three programs, verified."""
    structures = {kind: structure(operator, *how, batch=RAGGED) for kind, how in KINDS.items()}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [RAGGED], programs["imported"][0], unrounded(structures[kind], emitter))
    return {kind: program for kind, (program, _) in programs.items()}


def test_layers_of_one_operator_are_stored_and_searched_once():
    """Six layers of ALBERT take the bytes, the graphs and the constants of two, and three times the time of one."""
    config = ALBERT | dict(model_type="albert")
    found = {
        count: structure(build(config | dict(num_hidden_layers=count), made(config)), batch=RAGGED)
        for count in (1, 2, 6)
    }
    programs = {count: one.program({})[0] for count, one in found.items()}
    stored = {count: sum(each.nbytes for each in one.constants.values()) for count, one in programs.items()}
    assert stored[1] == stored[2] == stored[6] == found[6].memory == found[1].memory
    assert len({id(lowering.graph) for lowering in found[6].lowerings}) == 2 and len(found[6].lowerings) == 7
    layer = found[2].time - found[1].time
    assert np.isclose(found[6].time - found[2].time, 4 * layer, rtol=0.05)
    wanted = dense(build(config | dict(num_hidden_layers=6), made(config)), RAGGED)
    assert np.abs(programs[6].run(RAGGED) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_bloom_by_the_names_of_published_configs():
    """As bigscience/bloom-560m says them."""
    older = dict(
        n_embed=24,
        n_layer=2,
        num_attention_heads=4,
        layer_norm_epsilon=1e-5,
        vocab_size=WORDS,
        n_inner=None,
        seq_length=20,
    )
    assert build(older | dict(model_type="bloom"), at := made(BLOOM)) is build(BLOOM | dict(model_type="bloom"), at)


@pytest.mark.parametrize("case", ["llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_scores_the_vocabulary(case, tied):
    """By the table of tokens, or by a matrix of its own."""
    config, operator, at, _ = model(case)
    scores = dense(operator @ head(config | dict(tie_word_embeddings=tied), at), RAGGED)
    table = at.found["lm_head.weight" if not tied else "embed_tokens.weight" if case == "llama" else "wte.weight"].array
    assert ("lm_head.weight" in at.found) != tied
    np.testing.assert_allclose(scores, dense(operator, RAGGED) @ table.T.astype(np.float64), rtol=1e-12)


@pytest.mark.parametrize(
    "keys, biased",
    [
        (dict(), ""),
        (dict(mlp_bias=True), "gate up down"),
        (dict(attention_bias=True), "q k v o"),
        (dict(attention_bias=True, mlp_bias=True), "q k v o gate up down"),
    ],
    ids=str,
)
def test_a_llama_has_the_biases_that_its_config_says(keys, biased):
    names = {name for name in tensors(LLAMA | keys | dict(model_type="llama")) if name.endswith(".bias")}
    assert {name.split(".")[-2].removesuffix("_proj") for name in names} == {*biased.split()}


def test_openpangu_is_a_llama_with_biases():
    config = LLAMA | dict(model_type="PanguEmbedded", bias=True)
    at = made(config)
    assert build(config, at) is build(LLAMA | dict(model_type="llama", attention_bias=True), at)


def test_layers_of_qwen_say_who_has_the_window():
    listed = LLAMA | dict(
        model_type="qwen2",
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention"],
    )
    at = made(listed)
    assert build(listed, at) is build(listed | dict(layer_types=None, max_window_layers=1), at)


@pytest.mark.parametrize("case", ["modernbert", "gemma3"])
def test_configs_of_older_and_newer_versions_build_one_operator(case):
    """Bases and kinds of layers by keys of their own, or in objects and lists, as transformers 5 saves them."""
    family, older, _ = CASES[case]
    wide, near, kinds = {
        "modernbert": ("global_rope_theta", "local_rope_theta", [FULL, SLIDING, SLIDING]),
        "gemma3": ("rope_theta", "rope_local_base_freq", [SLIDING, FULL, SLIDING]),
    }[case]
    spelt = {kind: dict(rope_type="default", rope_theta=older[base]) for kind, base in ((FULL, wide), (SLIDING, near))}
    dropped = (wide, near, "sliding_window_pattern")
    newer = {key: value for key, value in older.items() if key not in dropped}
    newer |= dict(rope_parameters=spelt, layer_types=kinds, model_type=family)
    at = made(older)
    assert build(newer, at) is build(older | dict(model_type=family), at)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("case", ["jina", "jina, normed", "nomic, published", "deberta"])
def test_scores_of_masked_tokens_are_plain_numpy(case, tied):
    """A product with gelu, a norm, the table of tokens or a matrix of the head, a shift."""
    config, operator, at, numpy = model(case)
    scores = dense(operator @ fill_masks(config, at, not tied), RAGGED)
    w = {name: data.array.astype(np.float64) for name, data in at.found.items()}
    x = np.concatenate([numpy(config, w, one.tokens) for one in RAGGED])
    inner = plain.GELU(plain.linear(x, w, "cls.predictions.transform.dense"))
    eps = config.get("layer_norm_eps") or config["layer_norm_epsilon"]
    [norm] = {name.rpartition(".")[0] for name in w if name.lower().startswith("cls.predictions.transform.layer")}
    table = w["embeddings.word_embeddings.weight" if tied else "cls.predictions.decoder.weight"]
    wanted = plain.layernorm(inner, w, norm, eps) @ table.T + w["cls.predictions.bias"]
    assert np.abs(scores - wanted).max() < 1e-10 * np.abs(wanted).max()


def test_every_name_is_asked_for_once():
    for family, config, _ in CASES.values():
        asked = []
        build(config | dict(model_type=family), lambda name, *shape: asked.append(name) or Data(np.ones(shape)))  # noqa: B023
        assert [*tensors(config | dict(model_type=family))] == asked and len({*asked}) == len(asked)
    assert {family for family, _, _ in CASES.values()} == FAMILIES.keys() - {"bert", "transformer", *EXPERTS}


def test_settings_have_one_name_in_all_families():
    for family, config, _ in CASES.values():
        found = normalise_config(config | dict(model_type=family))
        assert (found["hidden_size"], found["vocab_size"]) == (24, WORDS)
        assert found.get("max_position_embeddings", 20) == 20, "a scan alone has no limit of positions"


@pytest.mark.parametrize(
    "family, config, words",
    [
        ("mistral", LLAMA | dict(sliding_window=0), "sliding_window is 0: it must be a whole number from 1"),
        (
            "llama",
            LLAMA | dict(num_attention_heads=5),
            "num_attention_heads is 5: it must be a divisor of hidden_size, 24, where",
        ),
        (
            "llama",
            LLAMA | dict(num_key_value_heads=3),
            "num_key_value_heads is 3: it must be a divisor of num_attention_heads, 4",
        ),
        (
            "llama",
            LLAMA | dict(head_dim=5),
            "head_dim is 5: it must be such that an even number of its columns rotate, not 5",
        ),
        (
            "llama",
            LLAMA | dict(partial_rotary_factor=0.1),
            "head_dim is 6: it must be such that an even number of its columns rotate, not 0",
        ),
        ("llama", LLAMA | dict(rope_parameters=[1]), r"rope_parameters is \[1\]: it must be an object, or left out"),
        (
            "llama",
            LLAMA | dict(rope_scaling=dict(type="su")),
            "rope_type is 'su': it must be one of default, linear, factors, llama3, yarn",
        ),
        ("llama", LLAMA | dict(rope_scaling=dict(type="linear")), "'factor' is missing"),
        (
            "llama",
            LLAMA | dict(rope_scaling=dict(type="ntk", factor=2.0)),
            "rope_type is 'ntk': it must be one of default",
        ),
        (
            "llama",
            LLAMA | dict(rope_scaling=scaled("llama3", low_freq_factor=4.0, high_freq_factor=4.0)),
            "high_freq_factor is 4.0: it must be more than low_freq_factor, 4.0",
        ),
        ("llama", LLAMA | dict(rope_theta="many"), "rope_theta is 'many'"),
        ("llama", LLAMA | dict(quantization_config={"bits": 4}), "quantization_config is .* dequantised"),
        ("qwen2", LLAMA | dict(layer_types=["full_attention"]), "layer_types is .* as long as there are layers, 2"),
        (
            "qwen2",
            LLAMA | dict(layer_types=["half"]),
            "layer_types is .* a list of full_attention and sliding_attention",
        ),
        (
            "qwen2",
            LLAMA | dict(layer_types=["sliding_attention"] * 2),
            "sliding_window is null: it must be a whole number, as",
        ),
        ("gpt2", GPT2 | dict(n_head=5), "n_head is 5: it must be a divisor of n_embd, 24"),
        ("gpt2", GPT2 | dict(n_embd=None), "n_embd is null: it must be a whole number"),
        (
            "gpt2",
            GPT2 | dict(scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx is true: it must be false or left out",
        ),
        ("mamba", MAMBA | dict(conv_kernel=18), "conv_kernel is 18: it must be a whole number from 1 to 17"),
        ("mamba2", MAMBA2 | dict(n_groups=4), "n_groups is 4: it must be a divisor of num_heads, 6"),
        ("mamba2", MAMBA2 | dict(head_dim=9), "head_dim is 9: it must be expand · hidden_size / num_heads, 48 / 6"),
        (
            "mamba2",
            MAMBA2 | dict(time_step_limit=[0, 0.1]),
            "time_step_limit is \\[0, 0.1\\]: it must be \\[0, Infinity\\]",
        ),
        (
            "qwen3_5_text",
            QWEN3_5 | dict(linear_num_key_heads=4),
            "linear_num_key_heads is 4: it must be a divisor of linear_num_value_heads, 6",
        ),
        (
            "qwen3_5_text",
            QWEN3_5 | dict(layer_types=[SLIDING, LINEAR]),
            "layer_types is .* a list of full_attention and linear_attention",
        ),
        ("qwen3_5_text", QWEN3_5 | dict(layer_types=[LINEAR]), "layer_types is .* as long as there are layers, 2"),
        ("qwen3_5_text", QWEN3_5 | dict(attn_output_gate=False), "attn_output_gate is false: it must be true or left"),
        ("qwen3_5_text", QWEN3_5 | dict(is_causal=False), "is_causal is false: it must be true or left out: a gated"),
        (
            "qwen3_5_text",
            QWEN3_5 | dict(linear_conv_kernel_dim=18),
            "linear_conv_kernel_dim is 18: it must be a whole number from 1 to 17",
        ),
        ("mamba", MAMBA | dict(time_step_rank=0), "time_step_rank is 0: it must be a whole number from 1 on, or auto"),
        ("bloom", BLOOM | dict(n_head=5), "n_head is 5: it must be a divisor of hidden_size, 24"),
        (
            "bloom",
            BLOOM | dict(seq_length=2**30),
            "seq_length is 1073741824: it must be at most 16,777,215 for 4 heads",
        ),
        ("bloom", BLOOM | dict(apply_residual_connection_post_layernorm=True), "apply_residual.* is true: it must be"),
        (
            "t5",
            T5 | dict(relative_attention_max_distance=4, relative_attention_num_buckets=32),
            "relative_attention_max_distance is 4: it must be more than 8, as 32 buckets have",
        ),
        ("t5", T5 | dict(feed_forward_proj="swish"), "feed_forward_proj is 'swish': it must be relu or gated-gelu"),
        ("gpt_pangu", PANGU | dict(num_layers=0), "num_layers is 0: it must be a whole number from 1"),
        ("modernbert", MODERN | dict(layer_types=[FULL]), "layer_types is .* as long as there are layers, 3"),
        ("modernbert", MODERN | dict(local_attention=0), "local_attention is 0: it must be a whole number from 1"),
        ("modernbert", MODERN | dict(num_attention_heads=5), "num_attention_heads is 5: it must be a divisor of"),
        (
            "modernbert",
            MODERN | dict(rope_parameters=dict(full_attention=7)),
            "rope_parameters: full_attention is 7: it must be an object",
        ),
        (
            "modernbert",
            MODERN | dict(rope_parameters=dict(full_attention=dict(rope_type="su"))),
            "rope_type is 'su': it must be one of default, linear, factors, llama3, yarn",
        ),
        ("deberta-v2", DEBERTA | dict(conv_kernel_size=3), "conv_kernel_size is 3: it must be 0 or left out: convolut"),
        ("deberta-v2", DEBERTA | dict(pos_att_type="p2p|c2p"), r"pos_att_type is 'p2p\|c2p': it must be a list of c2p"),
        ("deberta-v2", DEBERTA | dict(pos_att_type=[["c2p"]]), "pos_att_type is .*: it must be a list of c2p and p2c"),
        ("deberta-v2", DEBERTA | dict(position_buckets=7), "position_buckets is 7: it must be an even whole number"),
        ("deberta-v2", DEBERTA | dict(position_buckets=38), "position_buckets is 38: it must be less than twice"),
        ("deberta-v2", DEBERTA | dict(norm_rel_ebd="batch"), "norm_rel_ebd is 'batch': it must be none or layer_norm"),
        ("deberta-v2", DEBERTA | dict(pooler_hidden_size=8), "pooler_hidden_size is 8: it must be hidden_size, 24"),
        ("deberta-v2", DEBERTA | dict(max_position_embeddings=2**22), "max_position_embeddings is 4194304: it must be"),
        ("jina_bert", BERT, "'position_embedding_type' is missing"),
        ("jina_bert", JINA | dict(feed_forward_type="original"), "feed_forward_type is 'original': it must be geglu"),
        ("jina_bert", JINA | dict(num_attention_heads=5), "num_attention_heads is 5: it must be a divisor of"),
        (
            "jina_bert_normed",
            JINA | dict(max_position_embeddings=2**30),
            "max_position_embeddings is 1073741824: it must be at most 16,777,215 for 4 heads",
        ),
        ("nomic_bert", NOMIC | dict(moe_every_n_layers=2), "moe_top_k is null: it must be at most num_experts, null"),
        ("nomic_bert", NOMIC_EXPERTS | dict(moe_top_k=6), "moe_top_k is 6: it must be at most num_experts, 5, where"),
        ("nomic_bert", NOMIC_EXPERTS | dict(num_shared_experts=1), "num_shared_experts is 1: it must be 0 or left out"),
        ("nomic_bert", NOMIC | dict(activation_function="mish"), "activation_function is 'mish': it must be one of"),
        ("new", BERT | dict(pack_qkv=False), "pack_qkv is false: it must be true or left out"),
        ("new", BERT | dict(position_embedding_type="absolute"), "position_embedding_type is 'absolute'"),
        ("new", BERT | dict(logn_attention_scale=True), "logn_attention_scale is true: it must be false or left out"),
        ("gemma3_text", GEMMA | dict(sliding_window=None), "sliding_window is null: it must be a whole number, as"),
        ("gemma3_text", GEMMA | dict(attn_logit_softcapping=30.0), "attn_logit_softcapping is 30.0: it must be null"),
        ("gemma2", GEMMA2 | dict(attn_logit_softcapping=0), "attn_logit_softcapping is 0: it must be a number from"),
        ("gemma2", GEMMA2 | dict(use_bidirectional_attention=True), "use_bidirectional_attention is true: it must be"),
        ("cohere", COHERE | dict(logit_scale=0), "logit_scale is 0: it must be a number from"),
        (
            "cohere",
            COHERE | dict(partial_rotary_factor=0.5),
            "partial_rotary_factor is 0.5: it must be 1.0 or left out",
        ),
        ("cohere2", COHERE | dict(use_qk_norm=True), "use_qk_norm is true: it must be false or left out"),
        ("smollm3", LLAMA | dict(no_rope_layers=[1]), "no_rope_layers is .* as long as there are layers, 2"),
        ("smollm3", LLAMA | dict(no_rope_layers=[1, 2]), "no_rope_layers is .* a list of 1, for layers that rotate"),
        ("smollm3", LLAMA | dict(layer_types=[SLIDING] * 2), "sliding_window is null: it must be a whole number, as"),
        ("cohere2", COHERE | dict(sliding_window=None), "sliding_window is null: it must be a whole number, as"),
        ("gemma3_text", GEMMA | dict(num_key_value_heads=3), "num_key_value_heads is 3: it must be a divisor of"),
        ("gemma3_text", GEMMA | dict(torch_dtype="int8"), "torch_dtype is 'int8': it must be one of float32"),
        ("electra", BERT, "'embedding_size' is missing"),
        (
            "albert",
            ALBERT | dict(num_hidden_groups=4),
            "num_hidden_groups is 4: it must be at most num_hidden_layers, 3",
        ),
        ("albert", ALBERT | dict(inner_group_num=0), "inner_group_num is 0: it must be a whole number from 1"),
        (
            "albert",
            ALBERT | dict(num_attention_heads=5),
            "num_attention_heads is 5: it must be a divisor of hidden_size, 24",
        ),
        (
            "mpnet",
            BERT | dict(relative_attention_num_buckets=16),
            "relative_attention_num_buckets is 16: it must be 32 or left out",
        ),
        (
            "mpnet",
            BERT | dict(max_position_embeddings=2),
            "max_position_embeddings is 2: it must be more than 2, as positions begin behind the padding",
        ),
        (
            "roberta",
            BERT | dict(max_position_embeddings=2),
            r"max_position_embeddings is 2: it must be more than pad_token_id \+ 1, 2",
        ),
    ],
)
def test_what_is_none_of_a_family_is_named(family, config, words):
    config = config | dict(model_type=family)
    with pytest.raises(InputError, match=f"^config: {words}") as caught:
        build(config, made(config))
    assert "\n" not in str(caught.value)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("stage, form", [(bf16(), "bf16"), (half(), "half"), (int8(), "int8")])
def test_hybrids_of_narrower_weights_keep_their_error_and_have_sessions(stage, form):
    """Verified as a whole; a step over caches and states computes the rows of the program of whole texts."""
    operator = model("qwen3.5")[1]
    program = schedule(operator, RAGGED, machine=standin.machine()) | stage
    stored = [data for data in program.program.constants.values() if getattr(data, "name", "") == form]
    assert len(stored) == program.applications() > 10 and 0 < program.error < 0.2
    found = program.verify()
    assert found["program"]["float32"]["relative"] <= found["program"]["stated"]
    session, tokens = cached(program.program).start(32), RAGGED.tokens[: RAGGED.starts[1]]
    held = session.join()
    rows = np.concatenate([session.step({held: part}) for part in (tokens[:4], tokens[4:5], tokens[5:])])
    np.testing.assert_allclose(rows, program.run(RAGGED)[: len(tokens)], rtol=1e-4, atol=1e-4)
