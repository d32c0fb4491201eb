"""Attention that sees fewer keys, as a step of the search within budgets: where sentences are long, and errors are
known of sentences as long."""

import json
from functools import cache

import numpy as np
import pytest
import standin
from searched import relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import count_scores
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, attention, const, rmsnorm, rotary, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, coarse, hubs, mask, parse, scattered, sequence, window
from opmatrix.files.loading import load
from rewrites import run
from rewrites.approximate import block_errors
from rewrites.approximate.block_errors import SparseAttentionTrials
from rewrites.laws import EXACT_LAWS
from rewrites.report.results import save
from rewrites.report.retelling import tell_steps
from rewrites.search.search import SearchSpace, cheapest
from rewrites.search.sparse_attention import KEPT, LEFT_OUT, LONG, SPARSE, sparse_attention_candidates, sparser_patterns
from rewrites.search.substitutions import part_factors, substitute_blocks
from rewrites.workload.workload import Workload

N, WORDS, LAYERS = 16, 1000, 2
LENGTHS = np.array([LONG])


@cache
def model(where=sequence & causal, far=None):
    """Two layers of attention: by positions near the query's own, and by what tokens are, wherever."""
    rng = np.random.default_rng(0)

    def one(name, scale=1.0):
        return weight(Data((scale * rng.normal(size=(N, N)) * N**-0.5).astype(np.float32), name))

    near = one("near", 0.1) + const(np.full(N, 6.0))
    turned = rotary(2 * LONG, N // 2, 1000.0)
    return (
        weight(Data(rng.normal(size=(WORDS, N)).astype(np.float32), "table"))
        @ (I + rmsnorm(1e-6) @ attention(near, near, one("v0"), 2, where, turned) @ one("o0"))
        @ (I + rmsnorm(1e-6) @ attention(one("q1", 3.0), one("k1", 3.0), one("v1"), 2, far or where) @ one("o1"))
    )


def tokens(*lengths):
    rng = np.random.default_rng(1)
    return Batch([rng.integers(0, WORDS, length) for length in lengths])


def unseen(timed, chosen=None, stated=None):
    """What is tried on the exact program of the model for a batch, where other sentences choose and state."""
    workload = Workload.drawn(model(), timed)
    workload = Workload(**{**vars(workload), "choose": chosen or workload.choose, "state": stated or workload.state})
    space = SearchSpace(model(), EXACT_LAWS, standin.machine(), workload.extents(model()))
    program, emitter = cheapest(space).program({})
    return SparseAttentionTrials(part_factors(model()), program, emitter.parts, space.prices, workload)


@pytest.mark.parametrize("where", [sequence, sequence & causal], ids=str)
def test_sparser_patterns_leave_out_scores_of_long_sentences_whatever_their_length(where):
    """They hold what they say at any length, tokens see themselves, and their texts say what they are."""
    found = [*sparser_patterns(where, LENGTHS)]
    assert len(found) > 2 and not [*sparser_patterns(where, LENGTHS - 1)]
    assert not [*sparser_patterns(where & window(8), LENGTHS)]
    for each in (where & one for one in SPARSE):
        few, many = each.mask(LONG // 2).unpack(), each.mask(LONG).unpack()
        assert (few == many[: LONG // 2, : LONG // 2]).all() and many.diagonal().all() and each.attends
        assert parse(each.form) == each and (each in found) == (
            count_scores(each, LENGTHS) <= KEPT * count_scores(where, LENGTHS)
        )


@pytest.mark.parametrize("side, near, drawn", [(16, 0, 1), (64, 1, 3), (32, 2, 5)])
def test_bigbird_has_its_blocks(side, near, drawn):
    """Those near by, the first, and so many that each block draws among those before it; nobody else."""
    seen = coarse(window(near) | hubs(1) | scattered(drawn), side).mask(16 * side).unpack()
    blocks = seen.reshape(16, side, 16, side)
    assert (blocks.any((1, 3)) == blocks.all((1, 3))).all() and (seen == seen.T).all()
    i, j = np.indices((16, 16))
    by_chance = np.tril(blocks.any((1, 3)) & ~((abs(i - j) <= near) | (i < 1) | (j < 1))).sum(1)
    assert 0 < by_chance.max() <= drawn


def test_a_part_that_sees_fewer_keys_is_the_part_with_another_pattern():
    """To the node; parts of several patterns, and of others than of positions, stay as they are."""
    groups = part_factors(model())
    every = [*sparse_attention_candidates(groups, LENGTHS)]
    assert len(every) == LAYERS * len([*sparser_patterns(sequence & causal, LENGTHS)])
    assert [each.first for each in every[:LAYERS]] == [1, 2] and len({each.where for each in every[:LAYERS]}) == 1
    for each in every:
        if each.first == LAYERS:
            assert substitute_blocks(groups, [each]) is model(sequence & causal, each.where)
    few = mask(np.eye(2), LONG // 2)
    assert not [*sparse_attention_candidates(part_factors(model(sequence & few & causal & window(3))), LENGTHS)]
    assert not [*sparse_attention_candidates(groups, LENGTHS - 1)]


def test_errors_are_those_of_the_model_with_the_pattern():
    tried = unseen(batch := tokens(LONG), batch, batch)
    groups, found = part_factors(model()), tried.measure_errors(0.5)
    assert not tried.unmeasurable and len(found) == len([*sparse_attention_candidates(groups, LENGTHS)])
    wanted = dense(model(), batch)
    for each in found[::3]:
        off = relative(dense(substitute_blocks(groups, [each]), batch), wanted)
        assert each.error**0.5 == pytest.approx(off, rel=1e-3, abs=1e-6) and str(each.where) in str(each)
    least = min(each.error for each in found) ** 0.5
    assert not tried.measure_errors(0.999 * least) and not tried.measure_errors(0)


def test_nothing_is_tried_where_it_saves_nothing_or_texts_are_too_short_to_say_what_it_changes(monkeypatch):
    long, short = tokens(LONG), tokens(40, 60)
    monkeypatch.setattr(block_errors, "try_steps", lambda *_: pytest.fail("something was measured"))
    quick = unseen(short, long, long)
    assert not quick.measure_errors(0.5) and not quick.unmeasurable
    for tried in (unseen(long, short, long), unseen(long, long, short)):
        assert (
            not tried.measure_errors(0.5) and f"the effect of fewer keys in {LONG}: give --text" in tried.unmeasurable
        )


@pytest.mark.deep
def test_the_search_takes_fewer_keys_where_the_error_allows_it(monkeypatch, tmp_path):
    """In the layer that looks near by, not in the other one. The program is verified against the model with the
    pattern, saved, loaded and named; within next to no error attention sees all keys."""
    standin.know_laws(monkeypatch)
    asked = dict(
        workload=tokens(LONG), machine=standin.machine(), rounds=1, number_type="float32", leave_out=standin.EVERY_LAW
    )
    found = run.optimize(model(), error=0.1, **asked)
    point = min((point for point in found.points if point.stated_error < 0.1), key=lambda point: point.predicted_s)
    assert LEFT_OUT in point.methods
    [taken] = point.structure.substitutions.values()
    assert taken.first == 1 and point.measured_error <= point.stated_error < 0.1
    assert point.checks["structure"]["worst_row"] < 1e-10 and point.predicted_s < 0.8 * found.points[0].predicted_s
    save(found, tmp_path / "out")
    place = tmp_path / "out" / "front" / str(found.points.index(point))
    assert f"which sees {taken.where}" in tell_steps(point, found.laws, found.choices, found.workload.few)
    assert str(taken.where) in str(json.loads((tmp_path / "out" / "report.json").read_text())["front"])
    loaded, batch = load(place), tokens(LONG, 70)
    assert (loaded.run(batch) == point.program.run(batch)).all()
    assert relative(loaded.run(batch), dense(substitute_blocks(part_factors(model()), [taken]), batch)) < 0.1
    assert not any(LEFT_OUT in each.methods for each in run.optimize(model(), error=1e-8, **asked).points)
