"""Every rule by which a term is split over ranks is proved or checked, and a wrong one is not."""

import re
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from children import ROOT
from split_checks import CHECKS, SplitCheck
from split_rules import CHECKED, PROVED, hold, survive, verdicts, written

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import compose
from opmatrix.algebra.nodes import over as merge
from opmatrix.algebra.operators import (
    I,
    const,
    delta_rule,
    gelu,
    given,
    heads,
    keep_top,
    pick,
    product,
    repeat,
    row,
    scan,
    share,
    shift,
    total,
    turn,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import among, causal, sequence
from opmatrix.algebra.shapes import T
from opmatrix.autodiff.backward_kinds import backwards
from opmatrix.models import build
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.axis_states import all_bounds, mergeable
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.sharding.spreading import Split, SplitOptions
from rewrites.laws import splitting
from rewrites.laws.kinds import right, with_heads
from rewrites.laws.splitting import EQUATIONS, SplitEquation, abreast, grouped, key_of, piled, some_values, statement
from rewrites.verify.failure import VerificationError

KNOWN = {rule for each in (*EQUATIONS, *CHECKS) for rule in each.rules}
RNG = np.random.default_rng(0)


# ---- all of them


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("each", EQUATIONS, ids=lambda each: each.name)
def test_four_pieces(each):
    hold(each, 4)


def test_what_is_proved_and_what_is_checked():
    """Of the rules that multiply, merge or move numbers only those that laws do not reach are merely checked."""
    found = verdicts((2, 3))
    proved = {each.rule for each in found if each.how == PROVED}
    assert {each.rule for each in found} == KNOWN
    assert {rule for rule in KNOWN - proved} == {
        ("split", "heads"),
        ("join", "heads"),
        ("repeat", "heads"),
        ("repeat", "copied heads"),
        ("repeat", "columns"),
        ("total", "columns"),
        ("keep_top", "rows one by one"),
        ("keep_top", "heads"),
        ("pick", "picked rows"),
        ("shift", "sequences"),
        ("shift", "columns"),
        ("shift", "heads"),
        *(("backwards", sharded) for sharded in ("sequences", "columns", "heads")),
        ("product", "sequences"),
        ("scan", "sequences"),
        ("delta_rule", "sequences"),
        ("delta_rule", "heads"),
        ("ring", "ring of keys"),
        ("product", "halo"),
        ("among", "halo"),
        ("pick", "halo"),
        ("move", "halo"),
        ("pick", "rows that are picked"),
        ("dispatch", "rows to their experts"),
        ("visit", "rows to their experts"),
    }
    assert all(each.reason for each in found if each.how == CHECKED)
    assert written(found).count("\n") == len(found) + 1 and "columns of a matrix" in written(found)


@pytest.mark.parametrize("rule", sorted(KNOWN), ids=" ".join)
def test_each_says_an_equation(rule):
    assert "=" in statement(rule) and "{" not in statement(rule, monoids.softmax)


def test_a_rule_without_an_equation_is_an_error():
    with pytest.raises(KeyError):
        statement(("act", "diagonals of a matrix"))


# ---- none is missing


def at(name, *shape):
    return Data(RNG.normal(size=shape), name)


def small(family, **more):
    """A model of two layers."""
    sizes = dict(
        gpt2=dict(n_embd=16, n_positions=16, n_head=4, n_layer=2),
        llama=dict(
            hidden_size=16,
            intermediate_size=12,
            max_position_embeddings=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            rms_norm_eps=1e-5,
        ),
    )[family]
    return build(dict(model_type=family, vocab_size=20, **sizes) | more, at)


MIXTRAL = dict(
    model_type="mixtral",
    vocab_size=20,
    hidden_size=16,
    intermediate_size=12,
    max_position_embeddings=16,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=1,
    num_local_experts=4,
    num_experts_per_tok=2,
    rms_norm_eps=1e-5,
)
MESHES = [
    Mesh.of(tp=(2, name))
    for name in ("data", "tensor", "sequence-vocabulary", "vocabulary", "ring", "ulysses", "keys", "gathered")
] + [Mesh.of(tp=(4, "tensor")), Mesh.of(dp=(2, "data"), tp=(2, "sequence"), cp=(2, "ring"))]
PAIRS = relation("edges", "V", "V")


def splits():
    """Splits in which rules occur: models, sums of heads, a graph, rows that are picked."""
    for model in (small("gpt2"), small("llama")):
        for mesh in MESHES:
            plan = partition(model, mesh, BatchSizes(4, 12))
            yield from {id(split): split for split in plan.splits.values()}.values()
    experts = build(MIXTRAL, at)
    for tensor, kind, node in (("tensor", "experts", 0), ("tensor", "experts", 1), ("sequence", "whole-experts", 0)):
        mesh = replace(Mesh.of(dp=(2, "data"), tp=(2, tensor), ep=(2, kind)), node=node)
        plan = partition(experts, mesh, BatchSizes(4, 12))
        yield from {id(split): split for split in plan.splits.values()}.values()
    data, tensor = Mesh.of(dp=(2, "data")), Mesh.of(tp=(2, "tensor"))
    summed = I @ weight(at("W", 6, 8)) @ heads(4) @ weight(at("H", 4, 2, 3)) @ total
    both = row(I @ weight(at("A", 6, 3)), I @ weight(at("B", 6, 3)))
    added = compose(weight(at("U", 6, 8)), gelu) @ weight(at("D", 8, 6)) + compose(
        weight(at("V", 6, 8)), gelu
    ) @ weight(at("E", 8, 6))
    merged = weight(at("W", 6, 8)) @ merge(weight(at("M", 8, 3)), monoids.max)
    for term in (summed, both, added, merged):
        for mesh in (data, tensor):
            yield Split(term, mesh, BatchSizes(4, 12), SplitOptions(cuts={} if term is summed else {"W": "columns"}))
    scores = I @ weight(at("R", 6, 8))
    for term in (
        keep_top(scores, scores, 2),
        keep_top(scores @ heads(4), scores @ heads(4), 1) @ weight(at("H", 4, 2, 3)) @ total,
        scan(scores, scores @ gelu),
        scan(scores @ heads(4), scores @ heads(4) @ gelu, monoids.softmax, sequence) @ weight(at("H", 4, 2, 3)) @ total,
        delta_rule(*(scores @ heads(4),) * 3, I @ weight(at("B", 6, 1))) @ weight(at("H", 4, 2, 3)) @ total,
        keep_top(const(1.0), I @ weight(at("W", 6, 8)), 3),
    ):
        for mesh in (data, Mesh.of(cp=(2, "ring")), Mesh.of(tp=(2, "tensor"))):
            yield Split(
                term, mesh, BatchSizes(4, 12), SplitOptions(cuts={"R": "columns"} if mesh.axes[0].name == "tp" else {})
            )
    both_ways = [
        term
        for moved in (shift(1), backwards())
        for term in (scores @ moved, scores @ heads(4) @ moved @ weight(at("H", 4, 2, 3)) @ total)
    ]
    for term in both_ways:
        for mesh in (data, Mesh.of(cp=(2, "ring")), tensor):
            yield Split(term, mesh, BatchSizes(4, 12), SplitOptions(cuts={"R": "columns"} if mesh is tensor else {}))
    pooled = product(given(PAIRS), given("features", 3, "V"), over=monoids.mean)
    for mesh in (Mesh.of(cp=(2, "ring")), data):
        yield Split(I @ weight(at("W", 6, 3)) @ pick("last"), mesh, BatchSizes(4, 12))
    graph, by_rows = BatchSizes(1, 1, {"V": 9, "G": 9}), Mesh.of(gp=(2, "rows"))
    yield Split(pooled, by_rows, graph)
    vertices = given("features", 4, "V") @ weight(at("N", 4, 4))
    attended = product(product(vertices, turn(vertices)), vertices, monoids.softmax, among(PAIRS))
    for term in (
        product(given(PAIRS), vertices),
        attended,
        row(vertices, vertices @ pick(relation("back", "V", "V"))),
        vertices @ pick(relation("one", "R", "V")),
    ):
        yield Split(term @ weight(at("P", term.out.cols, 2)), by_rows, graph)


@pytest.fixture(scope="module")
def every_split():
    """Made when a test asks: who only collects tests needs none."""
    return [*splits()]


def test_every_rule_of_every_step_is_known(every_split):
    used = {key_of(step.op, rule) for split in every_split for step in split.steps for _, rule in step.rules}
    assert used <= KNOWN
    assert KNOWN - used <= {("repeat", "columns"), ("total", "columns"), ("stage", "stages")}


def test_every_step_that_is_cut_names_its_rule(every_split):
    for split in every_split:
        for step in split.steps:
            if step.op in ("move", "slice"):
                assert len(step.rules) == 1
            else:
                assert {k for k, _ in step.placement.cuts} <= {k for k, _ in step.rules}, step


def test_every_rule_that_is_written_has_an_equation():
    """As the rules are written in the source: none returns a name that nobody proves."""
    room = ROOT / "opmatrix/parallel/sharding"
    source = "\n".join((room / f"{each}.py").read_text() for each in ("rules", "relating"))
    names = {name for line in source.splitlines() if "return [" in line for name in re.findall(r'"([a-z ]+)"$', line)}
    assert len(names) > 10 and names <= {rule for _, rule in KNOWN}


# ---- wrong ones are refuted


def wrong(*pairs, exact=False):
    return SplitEquation(lambda n: pairs, (), "", exact)


X, W = some_values("x", 3, splitting.M, "k"), some_values("W", 3, "k", splitting.P)
V = some_values("V", 3, splitting.K, "p")
Y = some_values("y", 1, splitting.M, splitting.K)[0]
Q, K = (some_values(name, 2, T, splitting.K, 2) for name in "qk")
PLANTED = {
    "a part is forgotten": (product(abreast(X), piled(W)), product(X[0], W[0]) + product(X[1], W[1])),
    "columns in another order": (product(Y, abreast(V)), abreast([product(Y, each) for each in V[::-1]])),
    "the nonlinear before the sum": (
        compose(product(abreast(X), piled(W)), gelu),
        reduce(lambda a, b: a + b, [compose(product(x, w), gelu) for x, w in zip(X, W, strict=True)]),
    ),
    "a softmax as a sum": (
        product(abreast(X), piled(W), monoids.softmax),
        reduce(lambda a, b: a + b, [product(x, w, monoids.softmax) for x, w in zip(X, W, strict=True)]),
    ),
    "heads exchanged": (
        product(grouped(Q), turn(grouped(K))),
        grouped([product(a, turn(b)) for a, b in zip(Q[::-1], K[::-1], strict=True)]),
    ),
    "one head for two": (
        product(with_heads(Q[0], Q[0]), turn(with_heads(K[0], Q[0]))),
        with_heads(product(Q[0], turn(K[0])), product(Q[0], turn(K[0]))),
    ),
    "a row of shares by its columns": (compose(abreast(X), share), abreast([compose(x, share) for x in X])),
    "another piece": (right(abreast(X[:2]), X[0]), X[0]),
}


@pytest.mark.parametrize("pair", PLANTED.values(), ids=PLANTED)
def test_a_wrong_equation_is_refuted(pair):
    with pytest.raises(VerificationError, match="refuted"):
        hold(wrong(pair), 2)


def test_wrong_equations_of_numbers():
    """Heads repeated one after the other are no heads repeated each by itself, and pieces have an order."""
    two = [splitting.some_heads(lo, hi) for lo, hi in all_bounds(splitting.ALL_HEADS, 2)]
    tiled = splitting.some_heads(0, splitting.ALL_HEADS) @ repeat(2 * splitting.ALL_HEADS), grouped(two * 2)
    for pair in (tiled, (splitting.some_heads(0, splitting.ALL_HEADS), grouped(two[::-1]))):
        with pytest.raises(VerificationError, match="2 pieces differ"):
            hold(wrong(pair, exact=True), 2)


class half_decayed(monoids.softmax):
    """Wrong: only what was there decays."""

    closed = None

    def merge(a, b):
        top = np.maximum(a[0], b[0])
        c = monoids.fall(a[0], top)
        return top, c * a[1] + b[1], c * a[2] + b[2]


class forgetful(Monoid):
    """Wrong: the average of averages, whatever their counts."""

    identity = 0, 0

    def lift(x, w):
        return 1, x * w

    def merge(a, b):
        return b if a[0] == 0 else a if b[0] == 0 else (1, (a[1] + b[1]) / 2)

    def finish(count, mean):
        return mean


class later(Monoid):
    """Not commutative: the last that is there."""

    identity, commutative = 0, False

    def lift(x, w):
        return x * w

    def merge(a, b):
        return b if b != 0 else a


@pytest.mark.parametrize("over", [half_decayed, forgetful])
def test_a_wrong_merge_is_found(over):
    one = next(each for each in CHECKS if each.name == "carriers_in_order")
    with pytest.raises(VerificationError, match=f"carriers_in_order over {over.__name__}: ranks merge"):
        for seed in range(9):
            survive(SplitCheck(one.body, (), "", (over,)), 3, seed)


def test_a_ring_is_for_what_is_commutative():
    """In the order of ranks it merges what it should; from one's own block on it does not."""
    order, ring = (
        next(each for each in CHECKS if each.name == name) for name in ("carriers_in_order", "carriers_in_a_ring")
    )
    for seed in range(9):
        survive(SplitCheck(order.body, (), "", (later,)), 3, seed)
    with pytest.raises(VerificationError):
        for seed in range(9):
            survive(SplitCheck(ring.body, (), "", (later,)), 3, seed)


# ---- rules refuse what their equations do not say

SIZES, DATA = BatchSizes(1, 6), RNG.normal(size=(1, 6, 6))


@pytest.mark.parametrize("over", [monoids.topk(2), monoids.topk(2).indices, monoids.concat], ids=lambda m: m.__name__)
def test_what_has_no_place_to_merge_is_gathered(over):
    """Ranks that see some columns know no index of the whole, and carry no such number of numbers."""
    term = row(I @ weight(at("W", 6, 8)) @ merge(weight(at("E", 8, 3)), over), I)  # one factor
    plan = partition(term, Mesh.of(tp=(2, "tensor")), SIZES, tokens=False, cuts={"W": "columns"})
    steps = [step for split in plan.splits.values() for step in split.steps]
    assert not mergeable(over)
    assert not any("partial" in str(state) for step in steps for _, state in step.placement.cuts)
    assert [step.why for step in steps if step.op == "move"] == ["all_gather"]
    assert np.allclose(run(plan, Feed(DATA)).value, dense(term, DATA[0], Batch([np.zeros(6, int)])))


def test_tokens_of_all_sequences_are_not_computed_one_by_one():
    q, k, v = (I @ weight(at(name, 6, 4)) for name in "QKV")
    linear = product(product(q, turn(k)), v)
    assert Split(linear, Mesh.of(dp=(2, "data")), BatchSizes(1, 6))
    with pytest.raises(InputError, match="a product over sum where everyone merges tokens of all sequences"):
        Split(linear, Mesh.of(dp=(2, "data")), BatchSizes(4, 6))
    assert Split(product(product(q, turn(k)), v, where=sequence & causal), Mesh.of(dp=(2, "data")), BatchSizes(4, 6))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_heads_of_a_sum_stay_with_their_ranks(ranks):
    """A matrix for each head, summed: ranks have heads of both, and the sum alone crosses."""
    term = row(I @ weight(at("W", 6, 8)) @ heads(4) @ weight(at("H", 4, 2, 3)) @ total, I)  # one factor
    plan = partition(term, Mesh.of(tp=(ranks, "tensor")), SIZES, tokens=False)
    assert [step.why for split in plan.splits.values() for step in split.steps if step.op == "move"] == ["all_reduce"]
    assert np.allclose(run(plan, Feed(DATA)).value, dense(term, DATA[0], Batch([np.zeros(6, int)])))
