"""Levels 1 and 2 of verification shown to catch: wrong laws, facts and kernels, each by the level that should."""

from math import inf

import numpy as np
import pytest
from searched import model

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import I, gelu, heads, layernorm, ones, product, rsqrt, square, total, turn, weight
from opmatrix.algebra.operators import over as overall
from rewrites.egraph.layers import parts
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS, facts, implementation
from rewrites.laws.kinds import by_head
from rewrites.laws.law import (
    SIMPLIFY,
    Sort,
    column,
    constant,
    count,
    find,
    h,
    law,
    matrix,
    n,
    normalised,
    over,
    p,
    q,
    scalar,
    scores,
    value,
    where,
)
from rewrites.verify import VerificationError, check_graph, check_seeded, check_term, graphs, verify_graphs, verify_laws

TEMPLATES = [part.template for by_state in parts(model())[:2] for part in by_state.values()]
rng = lambda: np.random.default_rng(0)


# ---- what is right passes


def test_the_laws_pass_every_level():
    """With the seed that no run has; of others each law is drawn in test_laws.py."""
    assert verify_laws(EXACT_LAWS, 1) == {"laws": len(EXACT_LAWS), "draws": 2, "seed": 1}
    assert verify_graphs(TEMPLATES, EXACT_LAWS, 1) == {"graphs": 3, "seed": 1}


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "changed",
    [
        dict(num_attention_heads=1),
        dict(num_attention_heads=6, type_vocab_size=7),
        dict(hidden_size=40, num_attention_heads=5, intermediate_size=24),
    ],
    ids=str,
)
def test_graphs_of_other_sizes_pass(changed):
    for by_state in parts(model(**changed))[:2]:
        for part in by_state.values():
            assert not check_graph(part.template, EXACT_LAWS)


# ---- level 1 and 2: planted laws


@law(source="planted")
def drops_the_shift(x: value[n], c: constant[n], A: matrix[n, p]):
    return (x + c) @ A, x @ A


@law(source="planted")
def gain_behind_the_matrix(x: value[n], c: constant[n], A: matrix[n, n]):
    return (x @ (I * c)) @ A, (x @ A) @ (I * c)


@law(phase=SIMPLIFY, source="planted")
def drops_the_query_bias(a: value[h, n], b: value[h, n], c: constant[h, n]):
    return product(a + c, turn(b)), product(a, turn(b))


@law(phase=SIMPLIFY, source="planted")
def drops_the_value_bias(s: scores[h], v: value[h, n], c: constant[h, n], M: over[normalised], P: where):
    return product(s, v + c, M, P), product(s, v, M, P)


@law(phase=SIMPLIFY, source="planted")
def drops_any_scores(s: scores[h], t: scores[h], v: value[h, n], M: over, P: where):
    return product(s + t, v, M, P), product(s, v, M, P)


@law(source="planted")
def gelu_is_linear(x: value[n], c: constant[n]):
    return (x + c) @ gelu, x @ gelu + c @ gelu


@law(source="planted")
def gelu_is_nothing(x: value[n]):
    return x @ gelu, x


@law(source="planted")
def scales_by_any_row(x: value[n], r: value[n], A: matrix[n, n]):
    return (x * r) @ A, (x @ A) * r


@law(source="planted")
def a_mean_is_a_sum(x: value[n]):
    return x @ overall(ones, mean), x @ ones


@law(source="planted")
def forgets_the_scale(a: value[h, n], b: value[h, n], s: scalar):
    return product(a, turn(b)) @ (I * s), product(a, turn(b))


@law(source="planted")
def queries_are_keys(a: value[h, n], b: value[h, n]):
    return product(a, turn(b)), product(b, turn(a))


@law(source="planted")
def absorbs_without_turning(a: value[h, n], b: value[n], A: matrix[h, n, n]):
    return product(a, turn(b @ A)), product(a @ A, turn(b))


@law(source="planted")
def counts_heads_twice(x: value[h, q], A: matrix[h * q, p], H: count):
    y = (x @ by_head(A, H)) @ total
    return (x @ heads(H).T) @ A, y + y


@law(phase=SIMPLIFY, source="planted")
def eps_is_nothing(x: value[n], y: value[n], e: scalar):
    m = y @ square @ overall(ones, mean)
    return x * ((m + e) @ rsqrt), x * (m @ rsqrt)


@law(source="planted")
def two_shifts_are_the_first(x: value[n], c: constant[n], d: constant[n]):
    return (x + c) + d, x + c


@law(source="planted")
def a_column_is_level(s: scores[h], r: column, v: value[h, n], M: over[normalised], P: where):
    return product(s * r, v, M, P), product(s, v, M, P)


WRONG = [
    drops_the_shift,
    gain_behind_the_matrix,
    drops_the_query_bias,
    drops_the_value_bias,
    drops_any_scores,
    gelu_is_linear,
    gelu_is_nothing,
    scales_by_any_row,
    a_mean_is_a_sum,
    forgets_the_scale,
    queries_are_keys,
    absorbs_without_turning,
    counts_heads_twice,
    eps_is_nothing,
    two_shifts_are_the_first,
    a_column_is_level,
]


def drawn(*terms):
    return not any(term.kind.name == "symbol" for each in terms for term in each.walk())


# Right where the check looks, wrong as a rule: both sides are one function, so this takes an author who tries.
@law(source="planted")
def honest_when_asked(x: value[n], c: constant[n], A: matrix[n, p]):
    return (x + c) @ A, x @ A + c @ A if drawn(x, c, A) else x @ A


# Right of operators, and without the guard that says so to the graph: a check with matrices alone does not see it.
promised = Sort("matrix", (), (n, p))


@law(source="planted")
def promises_too_little(x: value[n], c: constant[n], A: promised):
    return (x + c) @ A, x @ A + c @ A


SLY = [honest_when_asked, promises_too_little]


@pytest.fixture
def shrunken_a_little(monkeypatch):
    """Nothing is asked of the reproducer."""
    monkeypatch.setattr("rewrites.verify.shrink.MAX_GRAPHS", 10)


@pytest.mark.deep(every=13)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: each.name)
def test_a_wrong_law_fails_alone(wrong, shrunken_a_little):
    assert not wrong.holds(rng())
    with pytest.raises(VerificationError, match=f"level 1: {wrong.name}"):
        verify_laws([wrong, *EXACT_LAWS])


ONLY_SEEDS = drops_any_scores, scales_by_any_row, a_column_is_level  # what they say of a BERT happens to be true


@pytest.mark.deep(every=18)
@pytest.mark.parametrize("wrong", [*WRONG, *SLY], ids=lambda each: each.name)
def test_a_wrong_law_is_found_in_a_graph_and_named(wrong):
    """In a model's graph, and in one that starts from the law's own left side: there even what no model needs."""
    laws = [*EXACT_LAWS, wrong]
    in_model, in_seed = check_graph(TEMPLATES[2], laws), check_seeded([wrong], laws)[0]
    assert bool(in_model) == (wrong not in ONLY_SEEDS) and bool(in_seed) == (wrong is not promises_too_little)
    for disagreements in filter(None, [in_model, in_seed]):
        assert wrong.name in disagreements[0].laws and disagreements[0].difference > 1e-6


@pytest.fixture
def not_shrunken(monkeypatch):
    monkeypatch.setattr("rewrites.verify.shrink.SHRINK_SECONDS", 0)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("wrong", SLY, ids=lambda each: each.name)
def test_some_wrong_laws_are_found_in_graphs_alone(wrong, not_shrunken):
    wrong.check(rng())  # level 1 sees nothing
    with pytest.raises(VerificationError, match=f"level 2: .*made by .*{wrong.name}") as caught:
        verify_graphs(TEMPLATES[2:], [*EXACT_LAWS, wrong])
    assert caught.value.level == 2 and caught.value.values["difference"] > 1e-6


def test_a_wrong_law_is_named_alone_where_it_fails_alone(not_shrunken):
    with pytest.raises(VerificationError, match=r"made by drops_the_shift \("):
        verify_graphs(TEMPLATES[2:], [*EXACT_LAWS, drops_the_shift])


# ---- how it is seen again


@pytest.fixture(autouse=True)
def as_long_as_it_takes(monkeypatch):
    """What is found does not depend on how fast the machine is."""
    monkeypatch.setattr("rewrites.verify.levels.SHRINK_SECONDS", inf)
    monkeypatch.setattr("rewrites.verify.shrink.SHRINK_SECONDS", inf)


def pasted(lines, **instead):
    """Runs the lines of a reproducer as a test would, with other laws in the place of those it names."""
    kept = [line for line in lines.splitlines() if line.split()[-1:] not in [[name] for name in instead]]
    exec(compile("\n".join(kept), "reproducer", "exec"), dict(instead))


@law(source="planted, and right")
def drops_nothing(x: value[n], c: constant[n], A: matrix[n, p]):
    return (x + c) @ A, x @ A + c @ A


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("wrong", [honest_when_asked, counts_heads_twice], ids=lambda each: each.name)
def test_a_reproducer_fails_while_the_law_is_wrong(wrong):
    with pytest.raises(VerificationError, match="To see it again") as caught:
        verify_graphs(TEMPLATES[2:], [*EXACT_LAWS, wrong])
    lines = caught.value.reproducer
    assert (
        lines in str(caught.value) and f"from test_verify import {wrong.name}" in lines and len(lines.splitlines()) < 16
    )
    with pytest.raises(AssertionError, match=wrong.name):
        pasted(lines)
    pasted(lines, **{wrong.name: drops_nothing})  # and passes once it is right


def test_a_reproducer_is_as_small_as_can_be():
    with pytest.raises(VerificationError) as caught:
        verify_laws([drops_the_shift])
    assert caught.value.level == 1
    lines = caught.value.reproducer.splitlines()
    term = next(line for line in lines if line.startswith("term = "))
    assert "+" in term and "@" in term and len(term) < 60 and "array" not in term
    assert lines[-1].startswith("assert not (found := check_term(term, [drops_the_shift], (1,), 0))")


def test_a_reproducer_of_a_wrong_fact_names_no_law(monkeypatch):
    monkeypatch.setattr(facts, "MARKERS", facts.MARKERS + "(rule ((= e (K_gelu))) ((linear e)) :ruleset facts)")
    found_ = check_term(I @ gelu, [])
    assert "gelu is not linear" in str(found_[0])
    with pytest.raises(VerificationError) as caught:
        verify_graphs(TEMPLATES[2:], EXACT_LAWS)
    with pytest.raises(AssertionError, match="gelu"):
        pasted(caught.value.reproducer)
    monkeypatch.undo()
    pasted(caught.value.reproducer)


def test_a_term_that_agrees_has_no_disagreement():
    assert not check_term((I + 2.0) @ by_rows @ gelu, EXACT_LAWS)


by_rows = weight([[1.0, 2.0, 3.0], [0.5, -1.0, 1.0]])


# ---- level 2: planted facts and kernels


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "rule, said",
    [
        ("(rule ((= e (K_gelu))) ((linear e)) :ruleset facts)", "gelu is not linear"),
        ("(rule ((= e (K_compose a f)) (act a) (entrywise f)) ((constant e)) :ruleset facts)", "is not constant"),
        ("(rule ((= e (K_compose a b)) (act a)) ((column e)) :ruleset facts)", "is not column"),
        ("(rule ((= e (K_product a b m w)) (act a)) ((level e)) :ruleset facts)", "is not level"),
        ("(rule ((= e (K_weight w))) ((entrywise e)) :ruleset facts)", "is not entrywise"),
        ("(rule ((= e (K_square))) ((additive e)) :ruleset facts)", "is not additive"),
    ],
)
def test_a_wrong_fact_is_found(monkeypatch, rule, said):
    monkeypatch.setattr(facts, "MARKERS", facts.MARKERS + rule)
    found_ = check_graph(TEMPLATES[1], EXACT_LAWS)
    assert any(said in str(each) for each in found_)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "name, body",
    [
        ("linear_bias_activate", lambda x, weight, bias, activation: x @ weight @ activation + bias),
        (
            "linear_bias_residual_norm_affine",
            lambda x, weight, bias, residual, eps, gain, shift: (
                ((x @ weight + bias + residual) @ layernorm(eps)) @ (I * gain)
            ),
        ),
        ("attention_scaled", lambda q, k, v, scale, where: implementation.attention(q, k, v, where)),
        ("linear_from_heads", lambda x, weight: x @ weight @ total + x @ weight @ total),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_kernel_that_means_something_else_is_found(monkeypatch, name, body):
    """What it is said to compute is compared with every class that it was matched to."""
    right = find([*implementation.implementations()], name)
    assert right.pattern  # it is matched as what it should be
    monkeypatch.setitem(vars(right), "body", body)
    found_ = check_graph(TEMPLATES[1], () if name == "attention_scaled" else EXACT_LAWS)
    assert found_ and {each.kernel for each in found_} == {name} and name in str(found_[0])


@pytest.mark.parametrize(
    "kept, several",
    [
        (monoids.topk(3), True),
        (monoids.topk(1), False),
        (monoids.max, False),
        (monoids.softmax, False),
        ("a word", False),
    ],
    ids=str,
)
def test_relations_are_drawn_whole_where_a_monoid_keeps_several_entries(kept, several):
    """Where there are fewer, what is kept beside them is infinite, and no law of sums holds."""
    assert graphs.keeps_several(kept) == several
    near = Relation("near", "T", "T")
    template = Template("", {"kept": kept, "near": near}, ())
    drawn = graphs.draw_relations(template, np.random.default_rng(0), (3, 4, 5))["near"]
    assert drawn.shape == (12, 12) and (drawn != 0).all() == several and (drawn != 0).any(1).all()
