"""Meshes that a model does not fit, in one line each that names what is wrong, its value, and what would do."""

import re

import numpy as np
import pytest
from partitioned import ANY, GPT2, LLAMA, compared, ids_of, made, planned

from formats.core.errors import InputError
from opmatrix.algebra.operators import symbol, weight
from opmatrix.algebra.shapes import size
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh

MODEL, GROUPED = made(ANY), made(LLAMA)


def refused(said, make):
    """Whether it is refused in one line that says so."""
    with pytest.raises(InputError) as found:
        make()
    line = str(found.value)
    assert "\n" not in line and re.search(said, line), line


@pytest.mark.parametrize(
    "ranks, strategy, said",
    [
        (10**20, "tensor", r"x has 10+ ranks, and \S+ gives 6 heads: the nearest that divides is 6$"),
        (7, "tensor", r"x has 7 ranks, and \S+ gives 6 heads: the nearest that divides is 6$"),
        (5, "sequence", r"x has 5 ranks, and \S+ gives 6 heads in groups of 2: the nearest that divides is 2$"),
        (4, "tensor", r"x has 4 ranks, and \S+ gives 6 heads in groups of 2: the nearest that divides is 2$"),
        (7, "ulysses", "x has 7 ranks and attention has 6 heads, at least one for each: at most 6 ranks, or strategy"),
        (12, "ring", "x has 12 ranks and there are 11 rows: at most 11 ranks$"),
        (5, "data", "x has 5 ranks and there are 4 sequences: at most 4 ranks$"),
        (24, "vocabulary", "x has 24 ranks and the table has 23 rows: at most 23 ranks$"),
        (3, "pipeline", "3 stages of 2 layers: at most 2 stages, of a layer each$"),
    ],
)
def test_ranks_that_do_not_fit(ranks, strategy, said):
    """And the number that is named fits."""
    model = GROUPED if "groups" in said else MODEL
    refused("^mesh: " + said, lambda: planned(model, Mesh.of(x=(ranks, strategy))))
    nearest = int(re.findall(r"(?:most|is) (\d+)", said)[-1])
    if strategy != "pipeline":
        assert nearest < ranks
    if nearest <= 8:
        assert compared(model, Mesh.of(x=(nearest, strategy))).agrees


def test_columns_that_are_fewer_than_ranks():
    model = made(ANY, num_attention_heads=24, num_key_value_heads=24)
    refused(
        "x has 19 ranks, and .* gives 18 columns: the nearest that divides is 18$",
        lambda: planned(model, Mesh.of(x=(19, "tensor"))),
    )


def test_heads_that_two_axes_take():
    axes = dict(x=(3, "tensor"), y=(3, "ulysses"))
    refused(
        "y has 3 ranks and attention has 6 heads, at least one for each beside x: at most 2 ranks",
        lambda: planned(MODEL, Mesh.of(**axes)),
    )
    assert compared(MODEL, Mesh.of(**axes | dict(y=(2, "ulysses")))).agrees


def test_an_order_that_does_not_nest():
    """The order that is named does."""
    refused(
        "shard in different orders: give y before x$", lambda: planned(MODEL, Mesh.of(x=(2, "ulysses"), y=(2, "ring")))
    )
    assert compared(MODEL, Mesh.of(y=(2, "ring"), x=(2, "ulysses"))).agrees


@pytest.mark.parametrize("given", [(1, 2), (2,), (0, 2), (1, 1, 0)])
def test_layers_that_are_not_those_of_the_model(given):
    refused(
        r"stages \[.*\]: give 2 numbers of layers, each from 1 on, 2 in all",
        lambda: planned(MODEL, Mesh.of(x=(2, "pipeline")), stages=given),
    )


@pytest.mark.parametrize("ranks", [0, -1, True, 2.0, "", "2", None])
def test_ranks_that_are_no_number(ranks):
    refused(
        f"axis x has {re.escape(repr(ranks))} ranks: give a whole number from 1 on, or a name",
        lambda: Mesh.of(x=(ranks, "data")),
    )


def test_strategies():
    """One that there is not, one twice, two that cut the same."""
    refused("strategy 'tensr': .*tensor", lambda: Mesh.of(x=(2, "tensr")))
    refused("axes x and y both split by data: make them one axis", lambda: Mesh.of(x=(2, "data"), y=(2, "data")))
    refused(
        "axes x and y both split by what tensor and sequence have in common: make them one axis",
        lambda: Mesh.of(x=(2, "tensor"), y=(2, "sequence")),
    )


def test_a_kind_without_a_rule():
    model = weight(np.ones((23, 4))) @ symbol("f", 4, 4)
    refused("there is no sharding rule for symbol f", lambda: planned(model, Mesh.of(x=(2, "data"))))


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: planned(MODEL, Mesh.of(x=("p", "pipeline"))), "axis x has p ranks, a name: a number is needed here"),
        (lambda: run(planned(MODEL, Mesh.of(x=("n", "data")), 2, 3), Feed(ids_of(2, 3))), "axis x has n ranks, a name"),
        (lambda: run(planned(MODEL, Mesh.of(), size("b"), 3), Feed(ids_of(2, 3))), "the partition is for b of 3"),
        (lambda: planned(MODEL, Mesh.of(x=(2, "data")), size("b"), 3).peak((0,)), "b: it is a symbolic size"),
    ],
    ids=["stages", "ranks", "batch", "peak"],
)
def test_names_where_numbers_are_needed(make, said):
    refused(said, make)


@pytest.mark.parametrize("sequences, tokens", [(0, 3), (-1, 3), (2, 0), (2.5, 3), (True, 3), ("b", 3)])
def test_batches_that_are_none(sequences, tokens):
    refused(
        "(sequences|tokens) .*: give a whole number from 1 on, or a name",
        lambda: planned(MODEL, Mesh.of(), sequences, tokens),
    )


def test_batches_that_are_not_as_large_as_planned():
    """A rank would compute something of them, and nobody would see it."""
    refused(
        "batch: 3 sequences of 4 rows, but the partition is for 2 of 3",
        lambda: run(planned(MODEL, Mesh.of(), 2, 3), Feed(ids_of(3, 4))),
    )


def test_ids_that_no_table_has():
    """Of tokens, and of positions where a sequence is longer than a model knows."""
    plan = planned(made(GPT2, n_layer=1), Mesh.of(x=(2, "vocabulary")), 2, 3)
    for wrong in (23, -1):
        ids = np.full((2, 3), wrong)
        refused(f"batch: id {wrong} of tokens is outside 0..22", lambda ids=ids: run(plan, Feed(ids)))
    refused("tokens 20: the model has 16 positions: at most 16 tokens", lambda: planned(MODEL, Mesh.of(), 2, 20))
