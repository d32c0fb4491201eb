"""Layers left out, and layers side by side, as steps of the search within budgets."""

import json
from functools import reduce
from operator import matmul

import numpy as np
import pytest
import standin
from random_models import random_weights
from searched import relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, attention, relu, rmsnorm, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.routes import noted
from opmatrix.models.experts import best_shares, mixture, renormalised
from opmatrix.models.transformer import transformer
from rewrites import run
from rewrites.approximate.block_errors import ROUNDING, BlockTrials, measure_blocks
from rewrites.approximate.budgets import Budgets
from rewrites.egraph.attempts import Attempts
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.report.results import save
from rewrites.search.search import SearchSpace, search
from rewrites.search.substitutions import (
    BLOCK_DROPPED,
    LAYER_DROPPED,
    PARALLEL,
    list_substitutions,
    part_factors,
    substitute_blocks,
)

N, WORDS, NEARLY = 16, 30, (2, 4)  # width, vocabulary, layers that hardly add anything
FIRST, SECOND = slice(0, N // 2), slice(N // 2, N)
BATCH = Batch([np.random.default_rng(1).integers(0, WORDS, rows) for rows in (5, 9, 16, 16) * 3])


def table(rng):
    return weight(Data(rng.normal(size=(WORDS, N)).astype(np.float32), "table"))


def layer(rng, number, scale=1.0, columns=slice(None), norm=I):
    """x + attention, which reads and writes these columns alone."""

    def one(name, rows=slice(None), writes=slice(None), scale=1.0):
        numbers = np.zeros((N, N), np.float32)
        numbers[rows, writes] = (scale * rng.normal(size=(N, N)) * N**-0.5)[rows, writes]
        return weight(Data(numbers, f"{name}{number}"))

    return I + norm @ attention(*(one(name, rows=columns) for name in "qkv"), 2, sequence) @ one(
        "o", writes=columns, scale=scale
    )


def six():
    """Six layers x + f(x), two of which are nearly the identity."""
    rng = np.random.default_rng(0)
    return reduce(
        matmul,
        [
            table(rng),
            *(layer(rng, number, 1e-3 if number in NEARLY else 1.0, norm=rmsnorm(1e-6)) for number in range(6)),
        ],
    )


def apart(second=SECOND):
    """Two layers, of which the second reads columns that the first does not write."""
    rng = np.random.default_rng(3)
    return table(rng) @ layer(rng, 0, columns=FIRST) @ layer(rng, 1, columns=second)


def budgets(model, most):
    """What a search within budgets is offered that is off by at most this, and the parts of the model."""
    groups = part_factors(model)
    space = SearchSpace(model, EXACT_LAWS, standin.machine(), BATCH.extents([sequence]))
    space.substitutions = measure_blocks(groups, [*list_substitutions(groups)], BATCH, most, Attempts())
    return Budgets(space, Representable()), groups


def searched(offered, error):
    return offered.within(error**2, gap=1e-6)


def test_errors_of_blocks_count_the_rows_that_go_other_ways():
    """A layer that hardly adds anything tips a router that is nearly tied: what is then computed is another mixture,
    and so far off is the program without the layer."""
    rng = np.random.default_rng(0)
    here, to = rng.normal(size=(WORDS, N)), np.zeros((N, 2), np.float32)
    here[:, -1], to[-1] = 0, (1, -1)  # scores are what the layer adds, and tied without
    router = weight(Data(to))
    up, down = (weight(Data(rng.normal(size=size).astype(np.float32))) for size in ((2, N, N), (2, N, N)))
    model = (
        weight(Data(here.astype(np.float32), "table"))
        @ layer(rng, 0, 1e-3)
        @ (I + mixture(router @ best_shares(1) @ renormalised(), up @ relu @ down, 2))
    )
    groups = part_factors(model)
    [dropped] = [
        each for each in list_substitutions(groups) if each.what == BLOCK_DROPPED and each.factors == (groups[1][1],)
    ]
    smaller = substitute_blocks(groups, [dropped])
    found, taken = noted(lambda: dense(smaller, BATCH))
    wanted, _ = noted(lambda: dense(model, BATCH), dict(enumerate(route.taken for route in taken)))
    off = relative(found, dense(model, BATCH))
    assert relative(found, wanted) < 0.01 and off > 0.1  # some rows go elsewhere
    assert not measure_blocks(groups, [dropped], BATCH, 0.99 * off, Attempts())
    [measured] = measure_blocks(groups, [dropped], BATCH, 1.01 * off, Attempts())
    assert measured.error**0.5 == pytest.approx(off, rel=1e-3)


def test_two_layers_that_hardly_add_anything_are_left_out_and_no_program_is_cheaper():
    """Against the exact search on the model without them; within less than both their errors, one of them."""
    model = six()
    offers, groups = budgets(model, 0.01)
    found = searched(offers, 0.01)
    taken = [*found.substitutions.values()]
    assert [(each.what, each.first, each.last) for each in taken] == [(LAYER_DROPPED, 3, 3), (LAYER_DROPPED, 5, 5)]
    smaller = substitute_blocks(groups, taken)
    assert found.cost == pytest.approx(search(smaller, EXACT_LAWS, standin.machine(), BATCH.extents([sequence])).time)
    assert found.bound <= found.cost <= found.bound * (1 + 1e-6)
    program, _ = found.program({})
    assert relative(program.run(BATCH), dense(smaller, BATCH)) < 1e-6
    off = relative(program.run(BATCH), dense(model, BATCH))
    assert 0 < off < 0.01 and off**2 == pytest.approx(found.error, rel=0.5)
    less = searched(offers, 1.01 * max(each.error for each in taken) ** 0.5)
    assert [each.what for each in less.substitutions.values()].count(LAYER_DROPPED) == 1
    assert not searched(offers, ROUNDING).substitutions


def test_layers_run_side_by_side_where_the_second_does_not_see_what_the_first_adds():
    """Kept apart they cost the same here, so they run side by side where the second alone is no way."""
    offers = budgets(model := apart(), 1e-4)[0]
    free = searched(offers, 1e-4)
    offers.stages = [stage for stage in offers.stages if stage.span != (2, 2)]
    found = searched(offers, 1e-4)
    [taken] = found.substitutions.values()
    assert free.cost <= found.cost * (1 + 1e-6) and free.memory <= found.memory
    assert (taken.what, taken.first, taken.last) == (PARALLEL, 1, 2) and taken.error == ROUNDING**2
    assert (
        found.bound == pytest.approx(found.cost)
        and relative(found.program({})[0].run(BATCH), dense(model, BATCH)) < 1e-6
    )
    assert not budgets(apart(FIRST), 1e-4)[0].space.substitutions  # here the second sees it


@pytest.mark.parametrize(
    "pre_norm, kinds",
    [(True, {LAYER_DROPPED: 3, BLOCK_DROPPED: 4, PARALLEL: 3}), (False, {LAYER_DROPPED: 4, BLOCK_DROPPED: 4})],
)
def test_what_may_stand_for_layers(pre_norm, kinds):
    """Of two layers: before the norm that follows the last, and with norms behind residuals, which two layers cannot
    share; what is left out leaves the other factors as they are."""
    config = dict(
        vocab_size=9,
        max_position_embeddings=8,
        hidden_size=4,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=2,
        norm="rms",
        norm_eps=1e-6,
        bias=False,
        hidden_act="relu",
        gated=False,
        mask="sequence",
        pre_norm=pre_norm,
    )
    groups = part_factors(transformer(config, random_weights(config, np.random.default_rng(0))))
    every = [*list_substitutions(groups)]
    whats = [each.what for each in every]
    assert {what: whats.count(what) for what in whats} == kinds
    assert every[0].factors == (() if pre_norm else (*groups[1][1:3], *groups[1][4:]))
    assert substitute_blocks(groups, []) is reduce(matmul, [factor for group in groups for factor in group])


@pytest.mark.deep
def test_a_run_states_what_it_left_out(monkeypatch, tmp_path):
    """The program is verified against the model without the layers, its error against the one that was asked for."""
    standin.know_laws(monkeypatch)
    monkeypatch.setattr("rewrites.verify.lengths.MAX_LENGTH", 64)  # tests/rewrites/test_lengths.py is about it
    found = run.optimize(
        model := six(), error=0.01, workload=BATCH, machine=standin.machine(), rounds=1, number_type="float32"
    )
    point = next(point for point in found.points if point.methods.get(LAYER_DROPPED) == 2)
    assert point.name.startswith(f"{LAYER_DROPPED} x2") and len(point.checks["detours"]) == 2
    assert point.checks["structure"]["worst_row"] < 1e-10 and 0 < point.measured_error <= point.stated_error < 0.01
    assert found.bound == pytest.approx(found.best.predicted_s) and LAYER_DROPPED in found.best.methods
    save(found, tmp_path / "out")
    assert "approximation: layer dropped: part 4" in (tmp_path / "out" / "derivation.txt").read_text()
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["front"][found.chosen]["detours"]) == 2
    assert relative(found.best.program.run(BATCH), dense(model, BATCH)) < 0.01


def test_nothing_is_offered_that_changes_more_than_is_allowed():
    groups, program = (
        part_factors(six()),
        search(six(), (), standin.machine(), BATCH.extents([sequence])).program({})[0],
    )
    few = BlockTrials(groups, program, BATCH).measure_errors(0.01)
    assert few and len(few) < len([*list_substitutions(groups)]) and all(each.error <= 1e-4 for each in few)
    assert not BlockTrials(groups, program, BATCH).measure_errors(0.0)
    assert not BlockTrials([], program, BATCH).measure_errors(0.01)
