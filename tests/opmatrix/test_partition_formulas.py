"""Formulas of a partition: at numbers they are those of the busiest rank, and they can be read as Python, as LaTeX and
as values. Weights that are cut by hand take along what meets them."""

import re

import numpy as np
import pytest
import sympy
from partitioned import BERT, GPT2, LLAMA, TABLES, compared, crossed, gathered, planned, value_at

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.models import build, known, name_sizes, promised
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

MESHES = {
    "tensor": dict(tp=(2, "tensor")),
    "sequence, vocabulary": dict(tp=(2, "sequence-vocabulary")),
    "stored in shards": dict(dp=(3, "zero3"), tp=(2, "tensor")),
    "stages and a ring": dict(pp=(2, "pipeline"), cp=(3, "ring")),
    "heads for rows": dict(cp=(2, "ulysses"), dp=(2, "data")),
}
CONFIGS = {"bert": BERT, "gpt2": GPT2, "llama": LLAMA}


def busiest(plan, stage):
    """The largest of what each formula is on the ranks of a stage."""
    found = {}
    for place in (each for each in plan.mesh.places() if plan.stage(each) == stage):
        counted = {
            "operations": value_at(plan, plan.flops(stage), place),
            "values held at most": plan.peak(place),
            "state": value_at(plan, plan.state(stage, weights=1), place),
        }
        if plan.gathered(stage):
            counted["weights gathered at most"] = gathered(plan, place)
        for table in TABLES:
            counted |= {f"{op} over {axis}, {table}": said for (op, axis), said in crossed(plan, place, table).items()}
        for name, said in counted.items():
            found[name] = max(said, found.get(name, 0))
    return found


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("mesh", MESHES)
def test_at_numbers_they_are_those_of_the_busiest_rank(model, mesh):
    """Of cuts that are not even, too: 11 tokens on 2 and on 3 ranks."""
    plan = planned(promised(CONFIGS[model]), Mesh.of(**MESHES[mesh]))
    for stage in range(len(plan.stages)):
        found = plan.formulas(stage, number=1, storage=1).at()
        del found["supersteps"]
        assert found == busiest(plan, stage)


@pytest.fixture(scope="module")
def symbolic():
    return partition(
        promised(name_sizes(LLAMA)),
        Mesh.of(dp=("d_", "zero3"), tp=("t", "sequence-vocabulary")),
        BatchSizes(),
        name="llama",
    ).formulas(training=True)


SIZES = dict(a=6, b=4, d_=2, f=18, h=12, k=2, p=16, s=12, t=2, v=24)


def test_python_is_the_same_function(symbolic):
    space: dict[str, object] = {}
    exec(compile(symbolic.python(), "costs.py", "exec"), space)
    assert symbolic.sizes == [*SIZES]
    wanted = symbolic.at(**SIZES)
    assert space["costs"](**SIZES) == pytest.approx(wanted, rel=1e-12) and min(wanted.values()) > 0


def test_a_size_without_a_number_is_named(symbolic):
    with pytest.raises(InputError, match=r"^h, s: sizes without a number: give a, b, d_, f, h"):
        symbolic.at(**{name: number for name, number in SIZES.items() if name not in "hs"})


def test_latex_is_balanced(symbolic):
    text = symbolic.latex()
    assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
    assert len(re.findall(r"\\left", text)) == len(re.findall(r"\\right", text)) > 0
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lll}" and lines[-1] == r"\end{tabular}"
    assert all(line.endswith(r"\\") and line.count(" & ") == 2 for line in lines[1:-1])


def test_ranks_that_are_symbols_give_the_formula_of_every_number(symbolic):
    """What is derived for d and t ranks is what is derived for 2 and 2."""
    fixed = partition(
        promised(name_sizes(LLAMA)), Mesh.of(dp=(2, "zero3"), tp=(2, "sequence-vocabulary")), BatchSizes()
    ).formulas(training=True)
    ranks = {s: 2 for s in symbolic.flops.free_symbols | symbolic.state.free_symbols if str(s) in ("d_", "t")}
    for one, other in ((symbolic.flops, fixed.flops), (symbolic.state, fixed.state)):
        assert sympy.expand(one.subs(ranks) - other) == 0


def test_a_configuration_is_partitioned_at_the_front_door():
    plan = om.partition(LLAMA, om.Mesh.of(tp=(2, "tensor")), om.BatchSizes(2, 8), name="tiny")
    assert str(plan).startswith("tiny on 2 ranks: tp 2 (tensor)\n2 sequences of 8 tokens")
    assert "all_reduce over tp" in str(plan)


LAYERS, QUARTERS = ("n_layer", "num_layers", "num_hidden_layers"), om.Mesh.of(tp=(4, "tensor-vocabulary"))


@pytest.mark.deep(every=9)
@pytest.mark.parametrize("name", known.names())
def test_every_known_model_is_partitioned(name):
    """Each rank of four has a quarter of what is cut, experts too, and more than that in all. Two layers are like
    all."""
    shorter = dict.fromkeys(LAYERS, 2) | dict(first_k_dense_replace=1)
    config = {
        key: shorter.get(key, said[:1] if isinstance(said, list) and "experts" in key else said)
        for key, said in known.configuration(name).items()
    }
    model = promised(config)
    plan, whole = (om.partition(model, mesh) for mesh in (QUARTERS, om.Mesh.of()))
    stacks = any(dims.heads != 1 for _, dims, _ in whole.weights())
    assert stacks == ("expert" in str(config))
    assert 0.25 <= float(plan.formulas().weights / whole.formulas().weights) < 0.34
    assert {each.op for each in plan.formulas().traffic} == {"all_reduce"}


# ---- cuts by hand


def cut_of(plan):
    """By the names of weights, their sizes on rank 0."""
    return {
        str(data.cut_of or data): tuple(value_at(plan, each, [0]) for each in (dims.rows, dims.cols))
        for data, dims, _ in plan.weights()
        if dims.rows != 1
    }


HAND = om.Mesh.of(x=(2, "by-hand"))


def test_what_is_cut_by_hand_takes_along_what_meets_it():
    cut = cut_of(planned(promised(LLAMA), HAND, cuts={"*q_proj*": "columns"}))
    whole = cut_of(planned(promised(LLAMA), HAND))
    changed = {
        name.rpartition("self_attn_")[2]: (whole[name], size) for name, size in cut.items() if size != whole[name]
    }
    assert changed == {
        "q_proj_weight": ((12, 12), (12, 6)),
        "k_proj_weight": ((12, 4), (12, 2)),
        "v_proj_weight": ((12, 4), (12, 2)),
        "o_proj_weight": ((12, 12), (6, 12)),
    }


def test_rows_take_along_the_columns_before_them():
    cut = cut_of(planned(promised(LLAMA), HAND, cuts={"*down_proj*": "rows"}))
    assert {name.rpartition("mlp_")[2]: size for name, size in cut.items() if "mlp" in name} == {
        "gate_proj_weight": (12, 9),
        "up_proj_weight": (12, 9),
        "down_proj_weight": (9, 12),
    }


def test_whole_leaves_a_group_whole():
    plan = planned(promised(LLAMA), om.Mesh.of(tp=(2, "tensor")), cuts={"*k_proj*": "whole"})
    assert all(
        size == (12, {"k": 4, "v": 4}.get(name.rpartition("self_attn_")[2][0], 12))
        for name, size in cut_of(plan).items()
        if "self_attn" in name
    )
    assert sum(times for times, each in plan.crossings() if each.op == "all_reduce") == 2  # the MLP of each layer


@pytest.mark.parametrize("cuts", [{"*q_proj*": "columns"}, {"*down_proj*": "rows"}, {"*k_proj*": "whole"}])
def test_what_is_cut_by_hand_computes_the_same(cuts):
    mesh = HAND if "whole" not in cuts.values() else om.Mesh.of(tp=(2, "tensor"))
    rng = np.random.default_rng(0)
    model = build(LLAMA, lambda name, *shape: Data(rng.normal(size=shape) * 0.4, name))
    assert compared(model, mesh, cuts=cuts).agrees


@pytest.mark.parametrize(
    "cuts, words",
    [
        ({"*q_prj*": "columns"}, r"cuts: no weight is called '\*q_prj\*': names are such as "),
        ({"*q_proj*": "cols"}, r"cuts: \*q_proj\*: 'cols': a weight is cut by columns, rows, whole"),
    ],
)
def test_a_cut_that_says_nothing_is_refused(cuts, words):
    with pytest.raises(InputError, match=words):
        planned(promised(LLAMA), HAND, cuts=cuts)


@pytest.mark.parametrize(
    "axis, sequences, tokens, words",
    [
        (dict(dp=(2, "data")), 1, 11, "mesh: dp has 2 ranks and there is 1 sequence: at most 1 rank"),
        (dict(cp=(2, "ring")), 4, 1, "mesh: cp has 2 ranks and there is 1 token: at most 1 rank"),
        (dict(tp=(2, "tensor")), 4, 17, "tokens 17: the model has 16 positions: at most 16 tokens a sequence"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(axis, sequences, tokens, words):
    with pytest.raises(InputError, match=words):
        planned(promised(GPT2), Mesh.of(**axis), sequences, tokens)


def test_a_ring_of_too_many_ranks_is_refused():
    with pytest.raises(InputError, match=r"mesh: a ring has 300 ranks: .* at most 256 ranks"):
        planned(promised(GPT2 | dict(n_positions=1000)), Mesh.of(cp=(300, "ring")), 4, 600)


def test_a_long_ring_of_many_tokens_is_quick():
    """A sequence of a million tokens has as many blocks as one of a hundred."""
    plan = planned(promised(GPT2 | dict(n_positions=2**20)), Mesh.of(cp=(8, "ring")), 1, 2**20)
    assert plan.formulas(number=1).at()["send over cp, payload"] == 2 * 2 * 12 * 2**17 * 7
