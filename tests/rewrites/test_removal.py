"""Hidden units and heads removed: the closed form, the algebra around it, whole models, and a run that chooses among
them."""

from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import matmul

import checkpoints
import numpy as np
import optimized
import pytest
import standin
from random_models import random_config, random_sentences, random_weights

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, affine, gelu, weight
from opmatrix.algebra.oracles import dense, factors
from opmatrix.algebra.term import substitute
from opmatrix.files.checkpoint import open_model
from opmatrix.models.transformer import transformer
from opmatrix.runtime.program import Program
from opmatrix.spectra.removal import DAMPING, DELAY, removals, remove
from rewrites import run
from rewrites.approximate import losses
from rewrites.approximate.losses import STEPS, Curve, Loss, cheapest_level, curves, fewer_groups, levels, uniform_levels
from rewrites.approximate.removing import Level, check_fit, check_removal, every_coupled, kinds_removed, remove_groups
from rewrites.approximate.structured import HEADS, UNITS, coupled_weights, spread
from rewrites.laws import CHOOSING_LAWS
from rewrites.report.results import save
from rewrites.verify.failure import VerificationError
from rewrites.workload.phases import Report

# ---- the closed form


def activations(rng, rows, n, rank):
    return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, n)) + 0.1 * rng.normal(size=(rows, n))


def refitted(weight, gram, left):
    """The best weights of some inputs, by the normal equations."""
    return np.linalg.solve(gram[np.ix_(left, left)], gram[left] @ weight)


def lost(weight, gram, left):
    off = weight.copy()
    off[left] -= refitted(weight, gram, left)
    return np.einsum("ij,ij->", off, gram @ off)


@pytest.mark.parametrize("group", [1, 3])
def test_each_time_the_group_goes_whose_loss_is_least_and_the_rest_is_the_best_there_is(group):
    """Against trying every group and solving the normal equations anew."""
    rng = np.random.default_rng(group)
    n, count = 18, 18 // group // 2
    X, W = activations(rng, 200, n, 8), rng.normal(size=(n, 5))
    gram = X.T @ X
    damped, left = gram + DAMPING * np.trace(gram) / n * np.eye(n), np.arange(n // group)
    for _ in range(count):
        without = [np.delete(left, at) for at in range(len(left))]
        left = min(without, key=lambda each: lost(W, damped, spread(each, group)))
    found = remove(W, count, gram, group)
    assert found.left.tolist() == spread(left, group).tolist()
    np.testing.assert_allclose(found.weight, refitted(W, damped, found.left), rtol=1e-8)
    np.testing.assert_allclose(found.error, np.linalg.norm(X @ (W - found.whole(n))) / np.linalg.norm(X @ W), rtol=1e-8)


def test_corrections_that_waited_are_those_made_at_once():
    rng = np.random.default_rng(0)
    n = 2 * DELAY + 40
    X, W = activations(rng, 400, n, 60), rng.normal(size=(n, 9))
    found = remove(W, n - 20, X.T @ X)
    assert n - 20 > DELAY
    damped = X.T @ X + DAMPING * np.square(X).sum() / n * np.eye(n)
    np.testing.assert_allclose(found.weight, refitted(W, damped, found.left), rtol=1e-6)


def test_a_diagonal_metric_is_wanda_and_none_is_magnitude():
    rng = np.random.default_rng(3)
    X, W = rng.normal(size=(90, 12)) * rng.uniform(0.1, 3, 12), rng.normal(size=(12, 4))
    for gram, scores in ((None, np.square(W).sum(1)), (np.square(X).sum(0), np.square(W).sum(1) * np.square(X).sum(0))):
        found = remove(W, 7, gram)
        assert found.left.tolist() == sorted(np.argsort(scores)[7:])
        np.testing.assert_allclose(found.weight, W[found.left], rtol=1e-12)  # nothing can be corrected


@pytest.mark.parametrize("constant", [0.0, 2.5])
def test_inputs_that_never_change_and_weights_of_zeros_can_be_removed(constant):
    rng = np.random.default_rng(1)
    X, W = rng.normal(size=(40, 10)), rng.normal(size=(10, 3))
    X[:, 4:8], W[1] = constant, 0.0
    found = remove(W, 4, X.T @ X)
    assert 1 not in found.left and np.isfinite(found.weight).all()
    assert found.error < 0.02 and len({4, 5, 6, 7} & {*found.left}) <= 1  # of four equal ones three go
    assert np.isfinite(remove(np.zeros((6, 2)), 3, np.zeros((6, 6))).weight).all()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="6 of 6 groups"):
        remove(np.ones((6, 2)), 6)
    with pytest.raises(InputError, match="6 inputs in groups of 4"):
        remove(np.ones((6, 2)), 1, None, 4)


# ---- the algebra


@pytest.mark.parametrize("each", CHOOSING_LAWS, ids=lambda law: law.name)
def test_laws_of_chosen_columns(each):
    each.check(np.random.default_rng(0))


def small(seed, **changed):
    rng = np.random.default_rng(seed)
    config = random_config(rng) | changed
    return transformer(config, random_weights(config, rng)), Batch(random_sentences(config, rng, 40)), config


FAMILIES = [
    dict(
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        positions="rotary",
        pre_norm=True,
        gated=True,
        norm="rms",
        bias=False,
    ),
    dict(num_attention_heads=3, num_key_value_heads=3, head_dim=5, pre_norm=False, gated=False, bias=True),
    dict(num_attention_heads=6, num_key_value_heads=2, head_dim=4, pre_norm=True, gated=True, bias=True),
]


@pytest.mark.parametrize("seed, family", [*enumerate(FAMILIES)])
def test_a_weight_with_rows_of_zeros_is_a_smaller_model(seed, family):
    """Whatever is left and by whatever numbers: columns are chosen before gates, functions of entries, rotations,
    shared heads."""
    model, batch, config = small(seed, num_hidden_layers=2, **family)
    rng, small_, zeroed, whats = np.random.default_rng(seed), [], [], []
    for factor in factors(model):
        less = factor
        for at in range(sum(1 for _ in coupled_weights(factor))):
            pair, twin = ([*coupled_weights(each)][at] for each in (less, factor))
            left = spread(np.sort(rng.permutation(pair.groups)[: pair.groups // 2]), pair.group)
            numbers = np.zeros(pair.weight.shape)
            numbers[left] = rng.normal(size=(len(left), numbers.shape[1]))
            bias = pair.bias and rng.normal(size=numbers.shape[1])
            less = substitute(less, {pair.node: pair.cut(left, numbers[left], bias)})
            factor = substitute(factor, {twin.node: twin.zeroed(numbers, bias)})
            whats.append((pair.what, pair.group))
        small_.append(less)
        zeroed.append(factor)
    shared = config["num_attention_heads"] // config["num_key_value_heads"]
    assert whats == [(HEADS, config["head_dim"] * shared), (UNITS, 1)] * 2
    found, wanted = (dense(reduce(matmul, each), batch) for each in (small_, zeroed))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_nothing_is_removed_before_what_columns_do_not_pass():
    """The inputs of a weight behind a residual, a norm or nothing are the model's own."""
    rng = np.random.default_rng(0)
    W, D = (Data(rng.normal(size=(6, 6))) for _ in range(2))
    assert not [*coupled_weights((I + weight(W) @ gelu) @ affine(D, np.zeros(6)))]
    assert not [*coupled_weights(weight(W) @ weight(D))]
    assert len([*coupled_weights((weight(W) @ gelu) @ weight(D))]) == 1


# ---- whole models


def test_layers_are_fitted_on_what_is_already_smaller_and_beat_wanda_and_magnitude():
    model, batch, _ = small(
        7,
        num_hidden_layers=2,
        hidden_size=24,
        intermediate_size=64,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=8,
        gated=False,
        norm="layer",
        pre_norm=False,
        bias=True,
        mask="sequence",
        hidden_act="gelu",
    )
    wanted, off = dense(model, batch), {}
    for metric in ("gram", "diagonal", "none"):
        found = remove_groups(model, Level(0.5, 0.4), batch, metric)
        assert [(cut.what, cut.left, cut.groups) for cut in found.cuts] == [(HEADS, 2, 3), (UNITS, 32, 64)] * 2
        assert found.checked(batch) < 1e-12
        off[metric] = np.linalg.norm(dense(found.model, batch) - wanted)
    assert off["gram"] < off["diagonal"] and off["gram"] < off["none"]
    first = [*factors(remove_groups(model, Level(0.5, 0.4), batch).model)]
    alone = [
        *factors(remove_groups(reduce(matmul, [*factors(model)][: len(first) // 2]), Level(0.5, 0.4), batch).model)
    ]
    assert first[: len(alone)] == alone  # of what comes later nothing is known


def test_a_smaller_model_that_is_another_one_is_named():
    model, batch, _ = small(3, num_hidden_layers=1)
    found = remove_groups(model, Level(0.5), batch)
    wrong = replace(found, model=model)
    with pytest.raises(VerificationError, match="rows of zeros"):
        wrong.checked(batch)


def test_too_little_text_is_refused_before_a_search():
    """By the weights that would lose inputs alone: 24 for heads, 40 hidden units."""
    model, batch, _ = small(
        5, num_hidden_layers=1, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=5
    )
    enough, few = (Batch([np.resize(batch.tokens, count)]) for count in (40, 39))
    check_fit(model, [UNITS, HEADS], None, enough)
    check_fit(model, [HEADS], None, few)
    check_fit(model, [UNITS], "lines.txt", few)
    check_fit(model, [], None, few)
    with pytest.raises(
        InputError, match=r"^removing units: the 39 tokens of the text are too few to fit the 40 inputs"
    ):
        check_fit(model, [UNITS], None, few)


def test_too_little_text_is_refused_and_what_cannot_go_too():
    model, batch, _ = small(5, num_hidden_layers=1, intermediate_size=160)
    few = Batch([batch.tokens[:2]])
    with pytest.raises(InputError, match="2 tokens are too few for the"):
        remove_groups(model, Level(0.5), few)
    with pytest.raises(InputError, match="--remove layers: it is one of units, heads"):
        check_removal(["layers"], None)
    with pytest.raises(InputError, match="none to remove"):
        levels([*curves(model, [], batch, batch)], [UNITS])


def test_constant_activations_are_said():
    model, _, _ = small(5, num_hidden_layers=1, intermediate_size=16, num_attention_heads=1, num_key_value_heads=1)
    same = Batch([[1]] * 120)
    assert "singular, so it was damped" in remove_groups(model, Level(0.5), same).told()


def test_levels_leave_sizes_that_kernels_take():
    model, _, _ = small(
        0, num_hidden_layers=1, intermediate_size=1536, num_attention_heads=12, num_key_value_heads=12, head_dim=2
    )
    [heads, units] = [pair for factor in factors(model) for pair in coupled_weights(factor)]
    assert {Level(share).left(units) % 64 for share in STEPS} == {0} and fewer_groups(heads) == [10, 9, 8, 6, 4, 3, 2]
    assert [Level(share).left(units) for share in (0, 0.2, 0.5)] == [1536, 1216, 768]
    assert Level(0, 0.1).left(heads) == 11


# ---- which layer loses how much


@pytest.mark.parametrize("group", [1, 4])
def test_one_sweep_removes_as_each_count_alone(group):
    rng = np.random.default_rng(group)
    X, W = activations(rng, 300, 96, 20), rng.normal(size=(96, 7))
    counts = [0, 3, 64 // group, 80 // group]
    for count, found in zip(counts, removals(W, counts, X.T @ X, group), strict=True):
        alone = remove(W, count, X.T @ X, group)
        assert np.array_equal(found.left, alone.left) and found.error == pytest.approx(alone.error)
        np.testing.assert_allclose(found.weight, alone.weight, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_a_level_is_the_cheapest_of_all(seed):
    """Against every combination of steps."""
    rng = np.random.default_rng(seed)
    found = [
        Curve(
            UNITS,
            8,
            (
                Loss(8, 0, 0.0),
                *(Loss(8 - 2 * k, 2 * k * size, error) for k, error in enumerate(np.sort(rng.uniform(0, 1, 3)), 1)),
            ),
        )
        for size in rng.integers(1, 5, 4).tolist()
    ]
    least = rng.uniform(0.1, 0.9) * sum(curve.losses[-1].gone for curve in found)
    every = [each for each in product(*(curve.losses for curve in found)) if sum(one.gone for one in each) >= least]
    level = cheapest_level(found, least)
    taken = [
        next(each for each in curve.losses if each.left == left) for curve, left in zip(found, level.kept, strict=True)
    ]
    assert sum(each.gone for each in taken) >= least
    assert sum(each.error for each in taken) == pytest.approx(min(sum(one.error for one in each) for each in every))
    assert level.units == pytest.approx(1 - sum(level.kept) / 32) and level.heads == 0


def test_the_layer_whose_units_do_little_loses_them():
    """In one of three layers units count for a hundredth. Errors measured alone add up to what is measured together,
    and it is less than where every layer loses as much."""
    model, batch, _ = small(
        11,
        num_hidden_layers=3,
        hidden_size=24,
        intermediate_size=64,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=8,
        gated=False,
        norm="layer",
        pre_norm=True,
        bias=True,
        mask="sequence",
        hidden_act="gelu",
    )
    units = [pair for pair in every_coupled(model) if pair.what == UNITS]
    quiet = units[1].zeroed(units[1].weight.array / 100, units[1].bias.array)
    model = substitute(model, {units[1].node: quiet})
    wanted, found = dense(model, batch), [*curves(model, [UNITS], batch, batch)]
    [level] = levels(found, [UNITS], [0.25])
    assert level.kept[0::2] == (3, 3, 3) and level.heads == 0 and level.kept[3] < min(level.kept[1], level.kept[5])
    predicted = (
        sum(
            next(each.error for each in curve.losses if each.left == left)
            for curve, left in zip(found, level.kept, strict=True)
        )
        ** 0.5
    )
    off, even = (
        np.linalg.norm(dense(remove_groups(model, each, batch).model, batch) - wanted) / np.linalg.norm(wanted)
        for each in (level, Level(level.units))
    )
    assert off < even / 2 and 0.7 < off / predicted < 1.4


def curve(what, groups, *steps):
    """A curve of losses (left, gone, error), behind the one of nothing removed."""
    return Curve(what, groups, (Loss(groups, 0, 0.0), *(Loss(*step) for step in steps)))


def test_uniform_levels_leave_every_layer_as_many():
    """The least sum of errors among sizes that all layers have; more is removed than asked for where none fits."""
    every = [
        curve(UNITS, 8, (6, 20, 0.1), (4, 40, 0.5)),
        curve(HEADS, 4, (3, 10, 0.2), (2, 20, 0.9)),
        curve(UNITS, 8, (6, 20, 0.4), (5, 30, 0.45), (4, 40, 0.6)),
        curve(HEADS, 4, (3, 10, 0.2), (2, 20, 0.9)),
    ]
    kept = [level.kept for level in uniform_levels(every, [UNITS, HEADS], [0.1, 0.3, 0.5, 0.9])]
    assert kept == [(8, 3, 8, 3), (6, 4, 6, 4), (6, 3, 6, 3), (4, 2, 4, 2)]
    [level] = uniform_levels(every, [UNITS, HEADS], [0.3])
    assert level[:2] == (0.25, 0.0)
    apart = [curve(UNITS, 8, (6, 20, 0.1)), curve(UNITS, 8, (5, 20, 0.1))]
    for none in (lambda: uniform_levels(apart, [UNITS]), lambda: uniform_levels([apart[0], curve(UNITS, 8)], [UNITS])):
        with pytest.raises(InputError, match="--uniform: layers have no smaller number of units in common"):
            none()
    with pytest.raises(InputError, match="none to remove"):
        uniform_levels([curve(UNITS, 8)], [UNITS])


def test_uniform_alone_removes_units():
    assert [*kinds_removed((), True)] == [UNITS] and not kinds_removed((), False)
    assert [*kinds_removed((HEADS,), True)] == [HEADS]


# ---- a run that chooses


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """One run on a small BERT whose units are mostly redundant, with a text for what is left."""
    place = tmp_path_factory.mktemp("removal")
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = checkpoints.CONFIG | sizes
    up = checkpoints.arrays(config)["encoder.layer.0.intermediate.dense.weight"]
    up[32:] = up[:32]  # every unit twice
    bias = np.tile(checkpoints.arrays(config)["encoder.layer.0.intermediate.dense.bias"][:32], 2)
    model = checkpoints.write(
        place / "model",
        tensors={"encoder.layer.0.intermediate.dense.weight": up, "encoder.layer.0.intermediate.dense.bias": bias},
        **config,
    )
    lines, text = place / "lines.txt", place / "text.txt"
    lines.write_text("\n".join(optimized.LINES * 5))
    text.write_text("\n".join(" ".join(np.random.default_rng(i).permutation(checkpoints.WORDS[:6])) for i in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "calibrated", lambda progress, *batches: standin.machine())
        patch.setattr(run, "ForkedTask", lambda *_: nullcontext())  # laws are verified by tests of their own
        patch.setattr(run, "take_judgement", lambda *_: ({}, []))
        patch.setattr(losses, "SHARES", (0.4, 0.5))
        result = run.optimize(
            str(model),
            error=0.2,
            text=str(lines),
            remove=("units", "heads"),
            calibrate=text,
            rounds=1,
            report=Report(quiet=True),
            leave_out=standin.EVERY_LAW,
        )
        save(result, place / "out")
    return result, place


@pytest.mark.deep
def test_units_that_are_there_twice_go_for_nothing(run_of):
    """The run composes what is removed with number types, and its stated error is of the model that was asked for."""
    result, place = run_of
    smaller = [point for point in result.points if point.variant]
    assert smaller and any(point.methods.keys() - {UNITS, HEADS} for point in smaller)
    assert result.best.variant is not None and result.best.methods[UNITS] == 1
    loaded = Program.load(place / "out")
    kept = loaded.meta["certificate"]["verified"]
    assert kept["removed"]["difference"] < 1e-10
    batch, model = result.workload.verify, open_model(str(place / "model")).operator(True)
    wanted = dense(model, batch)
    off = np.linalg.norm(loaded.run(batch) - wanted) / np.linalg.norm(wanted)
    assert 1e-4 < off <= kept["error"]["stated"] <= 0.2
    assert loaded.stored_bytes < 0.8 * result.points[0].program.stored_bytes
    told = (place / "out" / "derivation.txt").read_text()
    left = kept["removed"]["cuts"][0]["left"]
    assert left <= 32 and told.startswith(f"removal: {100 - 100 * left / 64:.3g} % of units")
    assert f"{left} of 64 units left, off by" in told and "every one checked" in told


@pytest.mark.deep
def test_what_judges_is_not_calibrated_with(run_of):
    result, place = run_of
    from rewrites.workload.workload import calibration

    tokenizer = open_model(str(place / "model")).tokenizer()
    assert len(calibration(place / "text.txt", tokenizer, result.workload, ["the bank of river runs dry"])) <= 40
    with pytest.raises(InputError, match="all its lines also choose or judge programs"):
        calibration(place / "lines.txt", tokenizer, result.workload, optimized.LINES)


def test_calibrate_needs_remove(tmp_path):
    with pytest.raises(InputError, match="it is used with --remove or --uniform only"):
        run.optimize("minilm", calibrate=tmp_path / "text")
