"""Axes of parallelism: what their records declare holds for meshes, plans and partitions."""

import re
import subprocess
import sys
from functools import cache
from itertools import product

import numpy as np
import pytest
from children import LIMIT, ROOT
from partitioned import GPT2, LLAMA, random_arrays

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.autodiff.learning import cross_entropy
from opmatrix.models import build, head
from opmatrix.parallel.axes.known_axes import (
    AXES,
    DEVICE_AXES,
    EXPERT_STRATEGIES,
    FOLDED_AXES,
    ORDERS,
    STRATEGIES,
    farthest_first,
    mesh_choices,
    mesh_options,
    strategy_named,
)
from opmatrix.parallel.axes.parallel_axis import CutSizes, ModelLimits
from opmatrix.parallel.cost.layer_work import RANKS, model_work
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.cost.train_formulas import step_crossings
from opmatrix.parallel.launch.jobs import Job, job_mesh
from opmatrix.parallel.search.legal_sizes import SizeColumns
from opmatrix.parallel.sharding.mesh import Mesh, usual_mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.train.requested_steps import TrainAsked, TrainPlan

TIED = GPT2 | dict(n_embd=8, n_head=4)  # the table of tokens scores them, too
EXPERTS = LLAMA | dict(
    model_type="mixtral",
    hidden_size=8,
    intermediate_size=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=1,
)
LIMITS = ModelLimits(layers=5, heads=12, key_heads=4, experts=6, head=8)


def booked(config, **axes):
    """The collectives of a step of training on a mesh, by axis."""
    draw = cache(random_arrays(7))  # the head reads the table of tokens itself
    term = build(config, draw) @ head(config, draw) @ cross_entropy(config["vocab_size"])
    train = TrainPlan(partition(term, Mesh.of(**axes), BatchSizes(4, 5)), TrainAsked())
    ops = [(one.axis, one.op) for k in range(len(train.chunks)) for _, one in step_crossings(train, k)]
    forward = [(one.axis, one.op) for k in range(len(train.chunks)) for _, one in train.plan.crossings(k)]
    return {*ops, *forward}


@pytest.mark.parametrize("name", AXES)
def test_an_axis_brings_the_collectives_that_it_declares(name):
    """All of them, and no other, over its strategies."""
    axis = AXES[name]
    over = {"dp": (2, "data")} if axis.folded else {}
    config = EXPERTS if axis.folded else TIED
    sent = {
        op
        for strategy in axis.strategies
        for on, op in booked(config, **over, **{name: (2, strategy.name)})
        if on == name
    }
    assert sent == {*axis.collectives}


LEGAL = {
    "dp": lambda n: 24 % n == 0,
    "tp": lambda n: n in (1, 2, 4, 12),  # of 12 heads and 4 of keys: 3 and 6 divide the heads alone
    "pp": lambda n: n <= 5,
    "cp": lambda n: n in (1, 2, 4, 5, 10),
    "ep": lambda n: 6 % n == 0,
}


@pytest.mark.parametrize("name", LEGAL)
def test_sizes_are_refused_in_a_line(name):
    sizes = CutSizes(LIMITS, 24, 20, {})
    for n in range(1, 30):
        reason = AXES[name].refused(n, sizes)
        assert bool(reason) != LEGAL[name](n), n
        assert re.fullmatch(r"|\d+ (heads|layers|experts|sequences of 20 tokens)", reason)


def test_a_model_without_experts_has_no_ranks_of_them():
    sizes = CutSizes(ModelLimits(5, 12, 4, 0, 8), 24, 20, {})
    assert [AXES["ep"].refused(n, sizes) for n in (1, 2)] == ["", "no experts"]


def test_a_mesh_has_its_axes_in_their_places():
    mesh = usual_mesh(4, 2, 3, 2, ep=4, zero=1, zero_ranks=2)
    assert [axis.name for axis in mesh] == ["pp", "copies", "dp", "cp", "tp", "ep"]
    places = [axis.place for axis in farthest_first(AXES.values())]
    assert places == sorted({*places})


@pytest.mark.parametrize(
    "options, names",
    [
        (dict(zero=3), {"dp": "zero3"}),
        (dict(sequence=True, vocabulary=True), {"tp": "sequence-vocabulary"}),
        (dict(vocabulary=True), {"tp": "tensor-vocabulary"}),
        (dict(context="keys"), {"cp": "keys"}),
        (dict(whole_experts=True, ep=2), {"ep": "whole-experts"}),
        ({}, {axis.name: axis.strategies[0].name for axis in DEVICE_AXES}),
    ],
)
def test_options_choose_strategies(options, names):
    laid = {axis.name: axis.strategy.name for axis in usual_mesh(2, 2, 2, 2, **options)}
    assert names.items() <= laid.items()


def test_options_have_names_of_their_own():
    names = [option.name for option in mesh_options()]
    assert len({*names}) == len(names) and {*AXES} <= {*names}
    letters = [axis.letter for axis in AXES.values() if axis.letter]
    assert len({*letters}) == len(letters) and not {*letters} & {"b", "s"}


@pytest.mark.parametrize(
    "build_mesh, words",
    [
        (lambda: usual_mesh(sequenc=True), "mesh: sequenc: did you mean sequence"),
        (lambda: usual_mesh(1, 1, 1, 1, 1, 1, 1, 1, 1), "mesh: 9 numbers of ranks: at most"),
        (lambda: usual_mesh(2, zero=4), "zero 4: a stage of ZeRO"),
        (lambda: usual_mesh(cp=2, context="star"), "context 'star': it is one of ring"),
        (lambda: usual_mesh(load=2), "load 2: of no ranks of experts: give ep"),
    ],
)
def test_options_that_do_not_fit_are_refused(build_mesh, words):
    with pytest.raises(InputError, match=words):
        build_mesh()


def test_every_strategy_of_an_axis_has_its_name():
    for axis in AXES.values():
        for strategy in axis.strategies:
            assert strategy_named(strategy.name) == strategy
            assert (strategy.name in EXPERT_STRATEGIES) == axis.folded != (strategy.name in STRATEGIES)


def test_a_job_carries_a_mesh():
    mesh = usual_mesh(4, 2, 1, 1, ep=4, node=2, visits=1, offload=2)
    job = Job.read(Job("model", ids=[[1, 2]], **job_mesh(mesh)).json())
    assert job.mesh == mesh


def test_records_are_read_without_numbers():
    """The help of a command reads them, which is not to wait for sympy and numpy."""
    code = "import sys, opmatrix.parallel.axes.known_axes; print({'numpy', 'sympy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT)
    assert done.stdout.strip() == "set()", done.stderr


# ---- plans


def test_a_strategy_counts_ranks_of_every_axis():
    primes = dict(dp=2, tp=3, pp=5, cp=7, ep=2)
    strategy = Strategy(**primes)
    assert strategy.devices == 2 * 3 * 5 * 7 and strategy.copies == 14 and strategy.token_ranks == 7
    assert strategy.stride("dp") == 21 and strategy.stride("ep") == strategy.stride("cp") == 3
    sizes = SizeColumns(**{name: np.array([n, 1]) for name, n in primes.items()}, micro_batch=1, virtual=np.ones(2))
    assert sizes.ranks_of(["dp", "cp"]).tolist() == [14, 1]


def test_orders_move_stages_alone():
    """The nearest axis stays the nearest, and all other axes stay in the order of the mesh."""
    still = [axis.name for axis in reversed(farthest_first(DEVICE_AXES)) if not axis.anywhere]
    assert all([name for name in order if name != "pp"] == still for order in ORDERS)
    assert [order.index("pp") for order in ORDERS] == [3, 2, 1] and FOLDED_AXES == ["ep"]


@pytest.mark.parametrize("context, sequence", [*product(("ring", "ulysses"), (False, True))])
def test_work_is_read_with_a_letter_an_axis(context, sequence):
    """The formulas of a layer name ranks of the axes that split it; collectives name the axis."""
    work = model_work(LLAMA | dict(num_key_value_heads=3), context, sequence)
    layer = work.layers[0][0]
    letters = {letter for product in layer.products for _, powers in product.rows.terms for letter, _ in powers}
    assert letters <= {"b", "s", *map(str, RANKS.values())} and {"b", "s"} <= letters
    assert {crossing.axis for crossing in layer.crossings} == {"tp", "cp"}
    assert mesh_choices()["context"] == "ring"
