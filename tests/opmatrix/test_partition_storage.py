"""What a rank stores of weights, in number types and formats at the sizes that it has, and what a low rank sends."""

import numpy as np
import pytest
import sympy
from partitioned import LLAMA

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.data import Data, Promised
from opmatrix.models import name_sizes, promised
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.weight_storage import StoredIn

CONFIG = LLAMA | dict(vocab_size=24, hidden_size=16, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2)
TENSOR = om.Mesh.of(tp=(2, "tensor"))
LOCAL = [(16, 8), (16, 4), (16, 4), (8, 16), (16, 16), (16, 16), (16, 16)]  # of a layer: q, k, v, o, gate, up, down
ROTARY = 2 * 2  # columns of two tables, rows for 16 positions
TABLE, NORMS = 24 * 16, 5 * 16


def stored_bytes(storage, config=CONFIG, mesh=TENSOR, **how):
    return om.partition(config, mesh, om.BatchSizes(2, 8)).formulas(storage=storage, **how).weights


@pytest.mark.parametrize("kind, size", [("int8", 1), ("bf16", 2), ("float16", 2), ("float32", 4), (0.5, 0.5)])
def test_number_types_are_bytes_of_every_number(kind, size):
    numbers = 2 * sum(n * p for n, p in LOCAL) + TABLE + NORMS + ROTARY * 16
    assert float(stored_bytes(kind)) == size * numbers


@pytest.mark.parametrize(
    "method, parameters",
    [
        ("nm", dict(n=2, m=4)),
        ("csr", dict(density=0.25)),
        ("block", {}),
        ("vectorwise", {}),
        ("lowrank", dict(rank=2)),
        ("int4", {}),
        ("nmint8", {}),
    ],
)
def test_formats_are_counted_at_the_sizes_of_a_rank(method, parameters):
    """Of the layers' matrices alone: what is stored otherwise is left out by storing it in no bytes."""
    form = FORMATS[method]
    by_hand = 2 * sum(form.bytes.subs(form.expected(n, p, **parameters)) for n, p in LOCAL)
    assert stored_bytes({"*proj*": StoredIn(method, parameters), "*": 0}) == by_hand > 0


def test_two_of_four_is_five_bytes_a_number_that_is_kept():
    assert stored_bytes({"*proj*": StoredIn("nm", dict(n=2, m=4)), "*": 0}) == 5 * sum(n * p for n, p in LOCAL)


def test_the_first_pattern_that_fits_decides():
    down = 2 * 16 * 16
    assert stored_bytes({"*down_proj*": 1, "*proj*": 2, "*": 0}) == down + 2 * 2 * sum(n * p for n, p in LOCAL[:-1])
    assert stored_bytes({"*down_proj*": 1}) == stored_bytes(2) - down


def test_formats_of_named_sizes_are_formulas():
    plan = om.partition(promised(name_sizes(CONFIG)), TENSOR)
    found = plan.formulas(storage={"*proj*": StoredIn("csr", dict(density=0.25)), "*": 0}).weights
    sizes = dict(h=16, f=32, a=4, k=2)
    at_numbers = found.subs({s: sizes[str(s)] for s in found.free_symbols})
    assert {*map(str, found.free_symbols)} == {*sizes}
    assert at_numbers == stored_bytes({"*proj*": StoredIn("csr", dict(density=0.25)), "*": 0})


def test_what_shards_store_is_shared_out():
    """Gradients and the optimiser, too: 16 bytes a number in mixed precision, over two ranks."""
    shards = om.Mesh.of(dp=(2, "zero3"))
    whole = om.partition(CONFIG, om.Mesh.of(), om.BatchSizes(2, 8)).parameters()
    assert om.partition(CONFIG, shards, om.BatchSizes(2, 8)).formulas(training=True).state == 16 * whole / 2


@pytest.mark.parametrize("level, size", [(0, 16), (1, 2 + 2 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)])
def test_stages_of_zero_are_those_of_the_paper(level, size):
    """Rajbhandari et al. 2020, figure 1: with K = 12, of a model whose numbers four ranks share evenly."""
    mesh = om.Mesh.of(dp=(4, f"zero{level}" if level else "data"))
    plan = om.partition(CONFIG, mesh, om.BatchSizes(4, 8))
    assert plan.formulas(training=True).state == sympy.nsimplify(size) * plan.parameters()


# ---- low rank

N, R, P = 12, 2, 10


def low_rank(made=lambda name, *shape: Promised(name, shape)):
    return om.weight(made("A", N, R)) @ om.weight(made("B", R, P))


def by_rows(term, **how):
    return om.partition(term, om.Mesh.of(x=(2, "by-hand")), om.BatchSizes(3, 5), tokens=False, **how)


def test_a_low_rank_stores_and_computes_its_factors():
    """As one factor of a model, beside x: the first by columns, the second by rows."""
    A, B = om.weight(Promised("A", (N, R))), om.weight(Promised("B", (R, N)))
    plan = om.partition(om.formula(lambda x: x + x @ A @ B), TENSOR, om.BatchSizes(3, 5), tokens=False)
    assert plan.formulas(storage=1).at()["state"] == N * R
    assert plan.formulas().at()["operations"] == 2 * 15 * N * R
    assert [each.payload for each in plan.formulas(number=1).traffic] == [15 * N]


def test_a_low_rank_sends_its_rank_where_rows_are_cut():
    plan = by_rows(low_rank(), cuts={"A": "rows"})
    assert [(each.op, each.payload) for each in plan.formulas(number=1).traffic] == [("all_reduce", 15 * R)]


def test_a_low_rank_that_is_run_sends_what_is_said():
    rng = np.random.default_rng(0)
    term = low_rank(lambda name, *shape: Data(rng.normal(size=shape), name))
    x = rng.normal(size=(3, 5, N))
    ran = run(by_rows(term, cuts={"A": "rows"}), Feed(x))
    np.testing.assert_allclose(ran.value[:, 0], np.asarray([term(each) for each in x]), rtol=1e-12)
    assert {meter.payload["all_reduce", "x"] for meter in ran.meters.values()} == {15 * R}


@pytest.mark.parametrize(
    "storage, words",
    [
        ("int3", r"^int3: weights are stored in float32, bf16, float16, int8, or in a format: dense, "),
        (StoredIn("nm", dict(k=2)), "^nm: it has no k; it has density, m, n"),
        (
            {"*embed*": StoredIn("nm", dict(n=1, m=7))},
            "embed_tokens_weight, of which a rank has 24 × 16: nm: 24 inputs are",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused(storage, words):
    with pytest.raises(InputError, match=words):
        stored_bytes(storage)


def test_blocks_of_named_sizes_are_refused():
    plan = om.partition(promised(name_sizes(CONFIG)), TENSOR)
    with pytest.raises(InputError, match=r"^block of v × h: its .* follow from h, v: give these sizes"):
        _ = plan.formulas(storage="block").weights
