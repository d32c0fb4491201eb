"""Small sizes that fit one another as a template's own do: whatever shape rules ask, whatever the widths; and where
there are none, a template is verified at its own."""

import gc

import numpy as np
import pytest
from test_families import CASES

from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import (
    I,
    attention,
    cols,
    diag,
    gelu,
    grouped,
    heads,
    over,
    place,
    relu,
    rotate,
    row,
    square,
    symbol,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.models import FAMILIES, known, promised
from rewrites.egraph import sizing
from rewrites.egraph.layers import parts
from rewrites.egraph.sizing import ask_shapes
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.verify.graphs import check_graph

HEADS, EACH, INNER = (3, 5, 8, 12, 14, 16), (48, 64, 80, 96, 128), (100, 768, 1000, 2048, 3072)


class Sizes:
    """Draws operators at real widths, of what ties sizes: each part takes so many columns."""

    def __init__(self, rng):
        self.rng = rng

    def one(self, among):
        return int(self.rng.choice(among))

    def numbers(self, *shape):
        """An array of which nobody needs the numbers."""
        return Promised(f"w{self.rng.integers(1 << 60)}", shape)

    def matrix(self, n, p):
        return weight(self.numbers(n, p))

    def rotated(self, columns):
        rest = self.one([0, 8, columns // 2])
        return rotate(*(self.numbers(2048, (columns - rest) // 2) for _ in range(2)), rest)

    def wide(self, n):
        """Heads of so many columns each, beside n or not; some turn."""
        h, each = self.one(HEADS), self.one(EACH)
        return self.matrix(n, h * each) @ heads(h) @ self.rotated(each) @ heads(h).T @ self.matrix(h * each, n)

    def cut(self, n):
        """Three parts of one product, as c_attn has them, and a piece of another."""
        Q, K, V = (self.matrix(n, 3 * n) @ cols(part * n, (part + 1) * n, 3 * n) for part in range(3))
        return attention(Q, K, V, next(h for h in (12, 8, 5, 3, 1) if n % h == 0), sequence & causal)

    def piece(self, n):
        low = self.one(range(1, n - 1))
        high = self.one(range(low + 1, n + 1))
        return cols(low, high, n) @ place(self.one(range(n - high + low + 1)), n)

    def beside(self, n):
        """Columns side by side, taken apart again."""
        a, b, c = (self.one(INNER) for _ in range(3))
        return row(self.matrix(n, a) @ gelu, self.matrix(n, b) @ square, self.matrix(n, c)) @ (
            cols(a, a + b, a + b + c) @ self.matrix(b, n) + cols(0, a + b, a + b + c) @ self.matrix(a + b, n)
        )

    def shared(self, n):
        """Grouped queries, heads wider or narrower than n / heads."""
        g, times, each = self.one([1, 2, 4]), self.one([1, 2, 3, 7]), self.one(EACH)
        h, turned = g * times, self.rotated(each)
        Q, K, V = self.matrix(n, h * each), self.matrix(n, g * each), self.matrix(n, g * each)
        return grouped(Q, K, V, h, g, sequence & causal, turned) @ self.matrix(h * each, n)

    def most(self, n):
        """The k largest of a row, for each of some columns."""
        k, columns = self.one([2, 3, 6, 20]), self.one([1, 5, 24])
        return over(self.matrix(n, columns), monoids.topk(k)) @ self.matrix(columns * k, n)

    def each_beside(self, n):
        return over(self.matrix(n, 7), monoids.concat) @ self.matrix(7 * n, n)

    def scaled(self, n):
        return diag(self.numbers(n)) @ self.matrix(n, f := self.one(INNER)) @ relu @ self.matrix(f, n)

    def drawn(self):
        """A template of three parts, behind a border."""
        n = self.one(HEADS) * self.one(EACH)
        drawn = self.rng.choice(
            [self.wide, self.cut, self.piece, self.beside, self.shared, self.most, self.each_beside, self.scaled], 3
        )
        term = I
        for part in drawn:
            term = term @ (I + part(n))
        return template(term, n)


def template(term, n):
    x = symbol("border", Shape(1, T, n), Shape(1, T, n))
    return Template.of({"full": flat(term, x), "border": x}, [x])


def held(template, small):
    """Raises AssertionError unless these sizes stand for the template's own: other ones for others, no larger ones, the
    same answers, and terms whose every size is the small one of its own."""
    assert len({*small.values()}) == len(small) and all(2 <= to <= size for size, to in small.items())
    answers = ask_shapes(template.values, template.instance)
    every = {size: small.get(size, size) for size in answers.sizes}
    assert all(question.answer(every) == answer for question, answer in answers.items())
    own, built = template.instance(template.values), template.instance(template.shrunken(np.ones))
    for name, term in own.items():
        for a, b in zip((*term.into, *term.out), (*built[name].into, *built[name].out), strict=True):
            if isinstance(a, int):
                assert b == small.get(a, a), (str(term)[:80], a, b)


@pytest.mark.deep
def test_sizes_that_are_tied_shrink_together():
    """Heads and columns, sums, cuts, grouped keys, turning columns with a rest, the k largest, all at real widths."""
    left = 0
    for seed in range(40):
        made = Sizes(np.random.default_rng(seed)).drawn()
        held(made, small := made.small_sizes())
        left += not small or max(small.values()) > 256
    assert left <= 1, "but for a few that are tied in too many ways"


def test_what_is_never_small_stays_alone():
    """Of 300 columns the 200 largest: 300 stay, all else is small."""
    made = template(weight(np.ones((2000, 300))) @ over(I, monoids.topk(200)), 2000)
    small = made.small_sizes()
    held(made, small)
    assert small[300] == 300 and small[2000] < 10


AT_OWN = [  # operators of some columns
    (20, lambda n: weight(n(20, 26)) @ heads(13) @ relu @ heads(13).T),
    (26, lambda n: heads(13) @ weight(n(13, 2, 3)) @ relu @ heads(13).T @ weight(n(39, 4))),
    (24, lambda n: weight(n(24, 45)) @ (cols(30, 45) @ relu @ place(17, 40) + cols(0, 40) @ square)),
    (16, lambda n: attention(weight(n(16, 30)), weight(n(16, 30)), weight(n(16, 30)), 15, sequence & causal)),
    (
        24,
        lambda n: grouped(
            weight(n(24, 98)), weight(n(24, 14)), weight(n(24, 14)), 14, 2, sequence, rotate(n(5, 3), n(5, 3), 1)
        ),
    ),
]


@pytest.mark.parametrize("number", range(len(AT_OWN)))
def test_where_no_small_sizes_are_found_a_template_is_verified_at_its_own(rng, monkeypatch, number):
    """Of operators that take any number of columns some need more than a few."""
    monkeypatch.setattr("rewrites.egraph.template.shrink", lambda answers: {})
    n, term = AT_OWN[number]
    made = template(term(lambda *shape: Data(rng.normal(size=shape))), n)
    assert not made.small_sizes()
    assert [each.shape for each in made.shrunken(np.ones).values() if isinstance(each, Data)] == [
        each.shape for each in made.values.values() if isinstance(each, Data)
    ]
    assert not check_graph(made, EXACT_LAWS)


def test_a_shape_rule_that_cannot_be_followed_leaves_sizes_as_they_are(monkeypatch):
    """One that makes sizes by other means than arithmetic gives plain numbers, which fit nothing."""
    monkeypatch.setattr(KINDS["diag"], "matrix", lambda n, g: (int(str(g.shape[0])),) * 2)
    made = template(weight(np.ones((30, 48))) @ diag(np.ones(48)) @ heads(12) @ heads(12).T, 30)
    assert made.instance(made.shrunken(np.ones))


# ---- families

BERT_BASE = dict(
    vocab_size=30522,
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=1,
    num_attention_heads=12,
    max_position_embeddings=512,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
)
SMOL = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=1,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
)
GPT2_BASE = dict(vocab_size=50257, n_embd=768, n_layer=1, n_head=12, n_positions=1024)
ENCODERS = {family: config for family, config, _ in reversed(CASES.values())}
WIDE = dict(
    vocab_size=30522, hidden_size=768, intermediate_size=3072, num_attention_heads=12, max_position_embeddings=514
)
MORE = {  # encoders beside BERT, with what their models of that width have besides
    **{family: {} for family in ("xlm-roberta", "camembert", "mpnet", "nomic_bert", "gte", "new")},
    **{family: {} for family in ("jina_bert", "jina_bert_normed")},
    **{family: {"embedding_size": 128} for family in ("electra", "albert")},
    "deberta-v2": dict(max_position_embeddings=512, position_buckets=256),
    "modernbert": dict(intermediate_size=1152, max_position_embeddings=8192),
    "gemma3_text": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=256, intermediate_size=1152),
}
NEXT = dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=2, head_dim=256)
NEXT |= dict(moe_intermediate_size=512, shared_expert_intermediate_size=512, full_attention_interval=2)
REAL = [  # families at the widths that people have
    *((family, ENCODERS[family] | WIDE | more) for family, more in MORE.items()),
    ("bert", BERT_BASE),
    ("bert", BERT_BASE | dict(hidden_size=384, intermediate_size=1536)),
    ("bert", BERT_BASE | dict(hidden_size=64, num_attention_heads=1, intermediate_size=64)),
    ("roberta", BERT_BASE | dict(type_vocab_size=1, max_position_embeddings=514)),
    (
        "distilbert",
        dict(vocab_size=30522, dim=768, hidden_dim=3072, n_heads=12, n_layers=1, max_position_embeddings=512),
    ),
    ("gpt2", GPT2_BASE),
    ("gpt2", GPT2_BASE | dict(n_embd=1280, n_head=20, n_inner=2048)),
    ("gpt2", GPT2_BASE | dict(n_embd=64, n_head=1)),
    ("bloom", dict(vocab_size=250880, hidden_size=1024, n_layer=1, n_head=16, seq_length=2048)),
    ("t5", dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=1, num_heads=8)),
    (
        "t5",
        dict(
            vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=1, num_heads=6, feed_forward_proj="gated-gelu"
        ),
    ),
    ("gpt_pangu", dict(vocab_size=40000, hidden_size=2560, num_layers=2, num_heads=32, max_position_embeddings=1024)),
    ("llama", SMOL),
    ("llama", SMOL | dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)),
    (
        "llama",
        SMOL
        | dict(hidden_size=768, num_attention_heads=12, num_key_value_heads=4, head_dim=80, partial_rotary_factor=0.7),
    ),
    ("llama", SMOL | dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1, head_dim=32)),
    (
        "mistral",
        SMOL | dict(hidden_size=1024, num_attention_heads=8, num_key_value_heads=2, head_dim=128, sliding_window=4096),
    ),
    ("qwen2", SMOL | dict(hidden_size=896, intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2)),
    ("qwen3", SMOL | dict(hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, intermediate_size=3072)),
    (
        "cohere",
        SMOL
        | dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=16)
        | dict(use_qk_norm=True),
    ),
    ("cohere2", SMOL | dict(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, sliding_window=4096)),
    (
        "gemma2",
        SMOL
        | dict(hidden_size=2304, intermediate_size=9216, num_attention_heads=8, num_key_value_heads=4, head_dim=256)
        | dict(sliding_window=4096, attn_logit_softcapping=50.0),
    ),
    (
        "granite",
        SMOL
        | dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8)
        | dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=8.0),
    ),
    ("olmo2", SMOL | dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=16)),
    ("phi3", SMOL | dict(hidden_size=3072, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=32)),
    ("smollm3", SMOL | dict(hidden_size=2048, num_attention_heads=16, num_key_value_heads=4, num_hidden_layers=4)),
    (
        "deepseek_v2",
        SMOL
        | dict(hidden_size=2048, intermediate_size=10944, num_attention_heads=16, num_key_value_heads=16)
        | dict(kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
        | dict(n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1408, num_experts_per_tok=6)
        | dict(first_k_dense_replace=1, num_hidden_layers=2),
    ),
    (
        "gpt_oss",
        SMOL
        | dict(vocab_size=201088, hidden_size=2880, intermediate_size=2880, num_attention_heads=64, head_dim=64)
        | dict(num_key_value_heads=8, num_hidden_layers=2, num_local_experts=32, num_experts_per_tok=4)
        | dict(sliding_window=128, max_position_embeddings=4096),
    ),
    ("mamba", dict(vocab_size=50280, hidden_size=768, num_hidden_layers=2)),
    ("mamba2", dict(vocab_size=50288, hidden_size=768, num_heads=24, n_groups=1, num_hidden_layers=2)),
    (
        "qwen3_5_text",
        SMOL
        | dict(hidden_size=1024, intermediate_size=3584, num_attention_heads=8, num_key_value_heads=2, head_dim=256)
        | dict(linear_num_value_heads=16, full_attention_interval=2),
    ),
    ("qwen3_next", SMOL | NEXT | dict(num_experts=512, num_experts_per_tok=10)),
    ("qwen3_5_moe_text", SMOL | NEXT | dict(num_experts=256, num_experts_per_tok=8)),
    ("PanguEmbedded", SMOL | dict(hidden_size=1536, num_attention_heads=12, num_key_value_heads=12, bias=True)),
    *(
        (config["model_type"], config | {"num_hidden_layers": 2} if "num_hidden_layers" in config else config)
        for config in map(known.configuration, known.names())
        if "expert" in str(config)
    ),
]


def templates(family, config):
    """One for each part and state, without numbers."""
    model = promised(dict(config) | dict(model_type=family))
    return [part.template for states in parts(model) for part in states.values()]


def test_families_shrink_from_the_widths_that_people_have():
    """To 64 at most, but for products of two sizes: DeepSeek-V2 has 128 heads of 64 columns, here 7 of 12."""
    assert {family for family, _ in REAL} == FAMILIES.keys() - {"transformer"}
    for family, config in REAL:
        for made in templates(family, config):
            held(made, small := made.small_sizes())
            products = {n * m for n in small for m in small}
            assert small and max(small[n] for n in small.keys() - products) <= 64, (family, small)
            assert max(small.values()) <= 100, (family, small)


def test_nothing_that_was_asked_stays_in_terms():
    """Terms without sizes, such as relu, are those of every template."""
    for made in templates("gpt2", GPT2_BASE):
        made.small_sizes()
    gc.collect()
    assert not [
        shape
        for node in [*Operator.nodes.values()]
        for shape in [*node.shapes, node.into, node.out]
        if any(isinstance(size, sizing.Traced) for size in shape)
    ]
