"""Experts on an axis of their own: what ranks give is what one rank gives with every answer and zeros in the gate; what
they compute, send, store and hold is what the formulas say where routing is even, and what the gates say where it is
not."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf, prod

import numpy as np
import pytest
import sympy
from partitioned import BERT, compared, differences, ids_of, made, planned, random_arrays

import opmatrix as om
from formats.core.errors import InputError
from formats.machine.links import Link
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.operators import I, const, gelu, heads, keep_top, share, total, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.models import build
from opmatrix.models.experts import best_shares
from opmatrix.parallel.cost.timing import Timing
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh, usual_mesh
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.runtime.pricing import datasheet

GIVEN = dict(
    vocab_size=23,
    hidden_size=12,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=1,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
)
MIXTRAL = GIVEN | dict(model_type="mixtral", intermediate_size=7, num_local_experts=4, num_experts_per_tok=2)
SHARED = GIVEN | dict(
    model_type="qwen2_moe",
    intermediate_size=9,
    moe_intermediate_size=5,
    num_experts=8,
    num_experts_per_tok=2,
    shared_expert_intermediate_size=6,
)
GROUPS = GIVEN | dict(
    model_type="PanguProMoE",
    moe_intermediate_size=5,
    num_experts=8,
    num_experts_per_tok=4,
    shared_expert_intermediate_size=6,
)
BIASED = dict(model_type="pr_moe", vocab_size=23, n_embd=12, n_positions=32, n_head=6, n_layer=2, num_experts=[4])
LIMITED = GIVEN | dict(
    model_type="deepseek_v3",
    intermediate_size=9,
    n_routed_experts=8,
    num_experts_per_tok=4,
    n_shared_experts=1,
    moe_intermediate_size=5,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=0,
)
FAMILIES = dict(mixtral=MIXTRAL, shared=SHARED, groups=GROUPS, biased=BIASED, limited=LIMITED)
TOKENS = 8  # times experts asked, a multiple of the experts of all


@cache
def model(name):
    return build(FAMILIES[name], random_arrays())


def drawn_mesh(rng):
    """Data and context axes in any order, a tensor axis, and one of experts over them."""
    axes = dict(dp=(int(rng.integers(1, 4)), str(rng.choice(["data", "zero1", "zero3"]))))
    if rng.random() < 0.4:
        axes["cp"] = 2, str(rng.choice(["ulysses", "gathered"]))
    if rng.random() < 0.6:
        axes["tp"] = 2, str(rng.choice(["tensor", "sequence", "tensor-vocabulary"]))
    axes = {name: axes[name] for name in rng.permutation([*axes])}
    if "tp" in axes:
        axes["tp"] = axes.pop("tp")  # rows that two axes cut nest in one order
    whole = "tp" in axes and rng.random() < 0.4
    over = prod(n for name, (n, _) in axes.items() if name != "tp" or whole)
    fits = [n for n in (1, 2, 4) if over % n == 0]
    return Mesh.of(**axes, ep=(int(rng.choice(fits[-2:])), "whole-experts" if whole else "experts"))


def even(plan):
    """What is counted where rows ask experts in turn, beside the formulas."""
    ids = ids_of(plan.sizes.sequences, plan.sizes.tokens)
    return differences(plan, run(plan, Feed(ids, even=True)).meters)


def off(term, plan):
    """How far the output is from one rank's, relative to its largest entry."""
    b, s = plan.sizes.sequences, plan.sizes.tokens
    ids = ids_of(b, s)
    wanted = dense(term, Batch(list(ids))).reshape(b, 1, s, -1)
    return float(np.abs(run(plan, Feed(ids)).value - wanted).max() / np.abs(wanted).max())


@pytest.mark.deep(every=8)
@pytest.mark.parametrize("seed", range(12))
def test_random_meshes(seed):
    rng = np.random.default_rng(seed)
    term, mesh = model([*FAMILIES][seed % 5]), drawn_mesh(rng)
    plan = planned(term, mesh, int(rng.integers(3, 6)), 4 * TOKENS)
    assert off(term, plan) <= 1e-12
    assert even(plan) == [], mesh


def test_stages_and_experts():
    """Layers of a pipeline beside ranks of experts, with and without the weights that ZeRO stores once."""
    term = made(MIXTRAL, num_hidden_layers=2)
    for kind in ("data", "zero3"):
        plan = planned(term, Mesh.of(pp=(2, "pipeline"), dp=(2, kind), ep=(2, "experts")), 4, 8)
        assert off(term, plan) <= 1e-12 and even(plan) == []


EVERY = Mesh.of(dp=(2, "data"), cp=(2, "gathered"), tp=(2, "sequence"), ep=(4, "experts"))


@pytest.fixture(scope="module")
def every():
    """A plan on all axes, and what its ranks count where routing is even."""
    plan = planned(model("mixtral"), EVERY, 2, 8)
    return plan, run(plan, Feed(ids_of(2, 8), even=True)).meters


def test_a_crossing_that_is_left_out_is_found(every, monkeypatch):
    """Rows on their way, and answers on theirs: either, and nothing else, is missed."""
    plan, meters = every
    assert differences(plan, meters) == []
    whole = Partition.crossings
    crossing = [at for at, (_, each) in enumerate(plan.crossings()) if each.axis == "ep"]
    assert len(crossing) == 2
    for at in crossing:
        with monkeypatch.context() as patched:
            patched.setattr(
                Partition,
                "crossings",
                lambda self, of=0, at=at: (each for k, each in enumerate(whole(self, of)) if k != at),
            )
            assert {what for what, *_ in differences(plan, meters)} == {"payload", "wire", "messages"}


def test_a_load_is_a_factor(every):
    """Of what the busiest rank computes and hands back; what rows ask is what they ask."""
    plan, meters = every
    uneven = Partition(
        Mesh(EVERY.axes, load=sympy.Symbol("L")), plan.sizes, plan.chain, plan.cuts, plan.stages, splits=plan.splits
    )
    loaded = planned(model("mixtral"), Mesh(EVERY.axes, load=2), 2, 8)
    assert uneven.mesh.load.name == "L"
    assert {what for what, *_ in differences(loaded, meters)} == {"flops", "payload", "wire", "peak"}
    one, two = ([each for _, each in each.crossings() if each.axis == "ep"] for each in (plan, loaded))
    (to, back), (same, twice) = [[plan.on(each.payload, (0,) * 4) for each in found] for found in (one, two)]
    assert to == same and 2 * back == twice


def test_counts_are_what_gates_say():
    """With a model's own routing: rows of each rank to each other one, and the operations of those that came."""
    term, mesh = model("shared"), Mesh.of(dp=(4, "data"), ep=(2, "experts"))
    plan, ids = planned(term, mesh, 4, 8), ids_of(4, 8)
    _, routes = noted(lambda: dense(term, Batch(list(ids))))
    asked = routes[0].taken[0].reshape(4, 8, 2, 4).sum((1, 3))  # rank x rank of its pair that has the experts
    [n], f = [12], 5
    ran = run(plan, Feed(ids))
    base = {place: meter.flops for place, meter in run(plan, Feed(ids, even=True)).meters.items()}
    for place, meter in ran.meters.items():
        r, own = place
        pair = [place[0] - own, place[0] - own + 1]
        came = asked[pair, own].sum()
        assert asked[r].sum() == 8 * 2
        assert meter.payload["all_to_all", "ep"] == n * (asked[r].sum() + came)
        assert meter.wire["all_to_all", "ep"] == n * (asked[r, 1 - own] + asked[pair[1 - own], own])
        assert meter.flops - base[place] == 6 * n * f * (came - 16)
    assert len({meter.flops for meter in ran.meters.values()}) > 1


# ---- rows once a node


def noded(name, node, visits=0, tokens=8, **axes):
    """A model on four ranks of experts, so many of them a node, and the plan."""
    mesh = replace(Mesh.of(dp=(4, "data"), **axes, ep=(4, "experts")), node=node, visits=visits)
    return model(name), planned(model(name), mesh, 4, tokens)


@pytest.mark.parametrize(
    "name, node, visits, axes",
    [
        ("limited", 2, 1, {}),
        ("groups", 2, 0, dict(tp=(2, "tensor"))),
        ("groups", 1, 2, {}),
        ("shared", 2, 2, {}),
        ("mixtral", 1, 0, {}),
    ],
)
def test_rows_that_visit_nodes_find_what_one_rank_finds(name, node, visits, axes):
    """And what crosses, is computed and held is as formulas say where routing is even."""
    term, plan = noded(name, node, visits, **axes)
    assert off(term, plan) <= 1e-12 and even(plan) == []
    assert {each.op for _, each in plan.crossings() if each.axis == "ep"} == {"visit", "all_to_all"}


def test_a_row_goes_to_a_node_once():
    """By the model's own routing: as many rows as there are nodes that each asks, which is fewer than experts; one way
    with a gate for each expert there, back without."""
    term, plan = noded("shared", 2)
    ids, [n, nodes, experts] = ids_of(4, 8), [12, 2, 8]
    _, routes = noted(lambda: dense(term, Batch(list(ids))))
    asked = routes[0].taken[0].reshape(4, 8, nodes, -1)  # rank x row x node x expert
    came, once = run(plan, Feed(ids)).meters, asked.any(-1).sum((1, 2))
    assert once.sum() < asked.sum()
    handed = sum(meter.payload["visit", "ep"] for meter in came.values())
    assert handed == once.sum() * (n + experts // nodes + n)
    crossing = sum(meter.wire["visit", "ep"] for meter in came.values())
    away = sum(asked[r].any(-1)[:, 1 - r // 2].sum() for r in range(4))
    assert crossing == away * (n + experts // nodes + n)
    assert sum(meter.payload["all_to_all", "ep"] for meter in came.values()) == 2 * n * asked.sum()


def test_a_way_to_nodes_that_is_left_out_is_found(monkeypatch):
    _, plan = noded("groups", 2)
    meters, whole = run(plan, Feed(ids_of(4, 8), even=True)).meters, Partition.crossings
    ways = [at for at, (_, each) in enumerate(plan.crossings()) if each.axis == "ep"]
    assert differences(plan, meters) == [] and len(ways) == 4
    for at in ways:
        with monkeypatch.context() as patched:
            patched.setattr(
                Partition,
                "crossings",
                lambda self, of=0, at=at: (each for k, each in enumerate(whole(self, of)) if k != at),
            )
            assert {what for what, *_ in differences(plan, meters)} == {"payload", "wire", "messages"}


def test_links_between_nodes_carry_visits_alone():
    """On machines of two devices a node: what is sent on stays there."""
    seconds = {}
    for node in (0, 2):
        sheet = replace(datasheet("A100"), links=(Link("near", 2, 3e11, 1e-6), Link("far", inf, 25e9, 3e-6)))
        seconds[node] = Timing(noded("groups", node)[1], sheet).stage(0).communication
    n, k, gates, rows = 12, 4, 4, 8
    visits = 2 * rows * (2 * n + gates) / 2  # of two nodes the other one
    assert float(seconds[2]["far"]) == pytest.approx(2 * visits / 25e9)
    assert float(seconds[0]["far"]) == pytest.approx(2 * 2 * k * rows * n / 2 / 25e9)


# ---- formulas


def test_the_payload_is_k_rows_a_token():
    """There and back; experts are stored once over their axis, and all else as often as there are ranks of data."""
    sizes = dict(k=2, n=12, f=7, E=4)
    b, s = sympy.symbols("b s", integer=True, positive=True)
    plan = om.partition(model("mixtral"), Mesh.of(dp=(4, "data"), ep=(4, "experts")), BatchSizes())
    formulas = plan.formulas()
    [sent] = formulas.traffic
    rows = sizes["k"] * b * s / 4
    assert (sent.op, sent.axis, sent.supersteps) == ("all_to_all", "ep", 2)
    assert str(sympy.expand(sent.payload)) == str(2 * 2 * rows * sizes["n"])
    assert str(sympy.expand(sent.wire)) == str(2 * 2 * rows * sizes["n"] * 3 / 4)
    whole = om.partition(model("mixtral"), Mesh.of(dp=(4, "data"))).formulas()
    experts = 2 * 3 * sizes["E"] * sizes["n"] * sizes["f"]
    assert whole.weights - formulas.weights == experts * 3 // 4
    assert str(whole.flops) == str(formulas.flops)


def test_tensor_cuts_each_expert():
    """By columns and by rows, and one part of a sum is merged."""
    one, two = (
        om.partition(model("mixtral"), Mesh.of(dp=(2, "data"), ep=(2, "experts"), **tensor)).formulas()
        for tensor in ({}, dict(tp=(2, "tensor")))
    )
    assert 0.5 < float(two.weights / one.weights) < 0.8
    assert {each.name for each in two.traffic} == {"all_to_all over ep", "all_reduce over tp"}


def test_state_of_copies():
    """ZeRO stores gradients and the optimiser of an expert once over its copies, of which there are as many as groups
    of ranks have all experts."""

    def training(dp, ep, zero):
        return om.partition(model("mixtral"), usual_mesh(dp, ep=ep, zero=zero)).formulas(training=True).state

    experts, rest = 3 * 4 * 12 * 7, training(4, 4, 0) - 16 * 3 * 12 * 7
    for ep, copies in ((2, 2), (4, 1)):
        found = training(4, ep, 2) - (2 + 14 / copies) * experts / ep
        assert float(found) == pytest.approx(float(rest * (2 + 14 / 4) / 16), abs=16)


def test_latex_and_python():
    formulas = om.partition(model("mixtral"), Mesh.of(dp=("d", "data"), ep=("e", "experts"))).formulas()
    assert "all-to-all over ep, payload" in formulas.latex()
    space: dict = {}
    exec(formulas.python(), dict(math=__import__("math")), space)  # what is written is run
    found = space["costs"](b=8, s=16, d=4, e=2)
    assert found["all_to_all over ep, payload"] == 2 * 2 * 2 * 8 * 16 // 4 * 12


# ---- what is no mixture, and what is one


def test_kept_numbers_of_gates():
    """Shares and gains keep zeros; what a gate has not is taken to be asked."""
    x = I @ weight(np.ones((6, 4)))
    stack = weight(np.ones((4, 6, 6)))
    answers = stack @ gelu @ weight(np.ones((4, 6, 5)))
    for gate, k in ((x @ best_shares(3), 3), (keep_top(x, x, 2) * const(np.ones(4)), 2), (x @ share, 4)):
        plan = om.partition(
            (answers * (gate @ heads(4))) @ total,
            Mesh.of(dp=(2, "data"), ep=(2, "experts")),
            BatchSizes(2, 4),
            tokens=False,
        )
        [sent] = [step for step in plan.splits[0].steps if step.op == "dispatch"]
        assert sent.more[1] == k


def test_answers_that_something_else_reads_are_computed():
    answers = weight(np.ones((4, 6, 5)))
    gate = I @ weight(np.ones((6, 4))) @ best_shares(2)
    term = (answers * (gate @ heads(4))) @ total + answers @ total
    plan = om.partition(term, Mesh.of(dp=(2, "data")), BatchSizes(2, 4), tokens=False)
    assert not any(split.mixtures for split in plan.splits.values())
    assert np.allclose(
        run(plan, Feed(x := np.random.default_rng(0).normal(size=(2, 4, 6)))).value.reshape(8, 5),
        dense(term, x.reshape(8, 6), Batch([np.zeros(4, int)] * 2)),
    )


# ---- where ranks lie


def test_ranks_of_experts_are_neighbours():
    """Groups that have all experts are neighbours in number, whatever axes they are of."""
    mesh = Mesh.of(dp=(3, "data"), cp=(2, "ring"), tp=(2, "tensor"), ep=(3, "experts"))
    assert mesh.ranks == 12 and len([*mesh.places()]) == 12
    numbers = [[mesh.number(each) for each in mesh.group(place, 3)] for place in mesh.places()]
    assert {tuple(each) for each in numbers} == {(0, 1, 2), (3, 4, 5)}
    assert all(b - a == 1 for each in numbers for a, b in pairwise(each))
    for place in mesh.places():
        assert place in mesh.group(place, 3) and place[2] == mesh.group(place, 3)[0][2]
        assert mesh.group(place, 0) == tuple(mesh.located((r, *place[1:3])) for r in range(3))


def test_an_axis_of_experts_is_the_last():
    mesh = Mesh.of(ep=(2, "experts"), dp=(2, "data"))
    assert [axis.name for axis in mesh] == ["dp", "ep"] and mesh.ranks == 2
    assert compared(model("mixtral"), mesh, 2, 8).error <= 1e-12


# ---- bad input


@pytest.mark.parametrize(
    "make, said",
    [
        (
            lambda: planned(model("mixtral"), Mesh.of(dp=(3, "data"), ep=(3, "experts"))),
            "mesh: ep has 3 ranks and there are 4 experts: the nearest that divides is 2$",
        ),
        (
            lambda: planned(made(BERT), Mesh.of(dp=(2, "data"), ep=(2, "experts")), name="bert"),
            "mesh: ep has 2 ranks for experts, and bert has no experts: leave ep out$",
        ),
        (
            lambda: Mesh.of(dp=(2, "data"), cp=(2, "ring"), ep=(8, "experts")),
            "mesh: ep has 8 ranks, and dp × cp, over which experts lie, 4: the nearest that divides is 4$",
        ),
        (lambda: Mesh.of(dp=(6, "data"), ep=(4, "experts")), "the nearest that divides is 3$"),
        (lambda: Mesh.of(tp=(2, "tensor"), ep=(2, "experts")), "no axis cuts sequences or tokens, .* such as dp=2$"),
        (lambda: Mesh.of(dp=(4, "data"), ep=(2, "experts"), eq=(2, "whole-experts")), "axes ep and eq both split by"),
        (lambda: Mesh.of(dp=(2, "data"), ep=(0, "experts")), "axis ep has 0 ranks: give a whole number"),
        (
            lambda: usual_mesh(4, ep=4, node=3),
            "node 3: ep has 4 ranks, of which as many lie in each node: a divisor of 4$",
        ),
        (lambda: usual_mesh(4, ep=4, node=2, visits=3), "visits 3: there are 2 nodes: from 1 to 2$"),
        (lambda: usual_mesh(4, node=2), "node 2: of no ranks of experts: give ep$"),
        (lambda: usual_mesh(4, ep=4, visits=2), "visits 2: of no nodes: give node$"),
        (lambda: noded("mixtral", 1, 3), "visits 3: a row asks 2 experts, as many on each node: give a divisor of 2$"),
        (lambda: Mesh(load=0.5), "load 0.5: times the mean that the busiest has: a number from 1 on"),
        (lambda: usual_mesh(2, load=2), "load 2: of no ranks of experts: give ep$"),
        (lambda: usual_mesh(2, whole_experts=True), "whole experts: of no ranks of experts: give ep$"),
        (
            lambda: planned(model("mixtral"), Mesh.of(dp=(2, "data"), tp=(11, "tensor"), ep=(2, "experts"))),
            "tp has 11 ranks, and ",
        ),
        (
            lambda: om.partition(model("mixtral"), usual_mesh(2, cp=6, ep=4, zero=2)).formulas(training=True).state,
            "mesh: ep has 4 ranks, which end within cp and go on beyond it: give a multiple of 6, or a divisor",
        ),
    ],
    ids=[
        "experts",
        "none",
        "axes",
        "divisor",
        "no axis",
        "twice",
        "ranks",
        "node",
        "visits",
        "no experts",
        "no node",
        "as many",
        "load",
        "no load",
        "whole",
        "units",
        "ends",
    ],
)
def test_meshes_that_do_not_fit(make, said):
    with pytest.raises(InputError, match=said) as found:
        make()
    assert "\n" not in str(found.value)


def test_as_many_ranks_of_data_as_experts_need():
    assert [axis.ranks for axis in usual_mesh(ep=8)] == [8, 8]
    assert [axis.ranks for axis in usual_mesh(ep=8, cp=4)] == [2, 4, 8]
    assert [axis.ranks for axis in usual_mesh(ep=8, tp=4, whole_experts=True)] == [2, 4, 8]
