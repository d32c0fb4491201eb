"""Errors of methods by one pullback: against runs with each method, for kinds of storage, outputs and families; of
blocks of models that are drawn, and of what is removed from them, against the models without."""

from math import inf, nan

import numpy as np
import pytest
import standin
from checkpoints import CONFIG, arrays
from programs import bert_program, fused_layer, unfused_layer
from random_models import random_config, random_sentences, random_weights

from formats import FORMATS, Dense
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import window
from opmatrix.algebra.term import substitute
from opmatrix.models.transformer import transformer
from opmatrix.runtime.declarations import pullbacks
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.seen import pattern
from opmatrix.spectra import Limits
from rewrites.approximate import block_errors
from rewrites.approximate.block_errors import (
    FARTHER,
    FIRST_ORDER,
    BlockTrials,
    PredictedBlock,
    SparseAttentionTrials,
    measure_blocks,
    pulled_steps,
    residual_stream,
    settle_predictions,
)
from rewrites.approximate.losses import changes_by_group, fewer_groups, find_readers, predict_curves
from rewrites.approximate.predicted_errors import (
    HALF_PASSES,
    LEAST_PROBES,
    OutputProbe,
    predict_changes,
    sites_with_cotangents,
)
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT
from rewrites.approximate.removing import WHAT, every_coupled
from rewrites.approximate.sites import WeightSite
from rewrites.approximate.structured import UNITS, spread
from rewrites.approximate.trials import half_pass, sample
from rewrites.approximate.weight_errors import TriedWeights
from rewrites.egraph.attempts import Attempts
from rewrites.run import optimize
from rewrites.search.search import SearchSpace, cheapest
from rewrites.search.sparse_attention import LEFT_OUT
from rewrites.search.substitutions import BlockSubstitution, part_factors, residual_branch
from rewrites.verify.differences import difference
from rewrites.workload.workload import Workload

KINDS = {
    "bf16": lambda W: FORMATS["bf16"].approximate(W),
    "int8": lambda W: FORMATS["int8"].approximate(W),
    "csr": lambda W: FORMATS["csr"].approximate(W, density=0.9),
    "lowrank": lambda W: FORMATS["lowrank"].approximate(W, rank=min(W.shape) - 2),
}

LIMITS = Limits(error=0.5, most=6)


@pytest.fixture
def texts():
    rng = np.random.default_rng(3)
    return Batch([rng.integers(1, 26, rng.integers(3, 12)).tolist() for _ in range(24)])


class Reader(WeightSite):
    """A weight of a program that was written by hand: its constant, and the value that it multiplies."""

    def __init__(self, constant, x="x", numbers=None):
        super().__init__(constant, 0, None, x, (0, "full", 0), None)
        object.__setattr__(self, "matrix", numbers)

    @property
    def name(self):
        return self.constant

    def numbers(self):
        return self.matrix


def products(program):
    """The sites of all weights that rows are multiplied by."""
    names = {step.operands["weight"] for step in program.steps if step.kernel == "linear"}
    return {name: Reader(name) for name in sorted(names)}


def instead(program, name, stored):
    """The output of a program with another weight."""
    return Program(program.steps, {**program.constants, name: stored}, program.output)


@pytest.mark.parametrize("layer", [fused_layer, unfused_layer])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_runs(layer, kind, texts):
    program = bert_program(CONFIG, arrays(CONFIG), layer, Dense.pack)
    probe, wanted = OutputProbe(program, texts), program.run(texts)
    predicted, measured = [], []
    for site, readers in sites_with_cotangents(probe, products(program)):
        stored = KINDS[kind](program.constants[site.constant].unpack())
        predicted += predict_changes(probe, site, readers, [lambda stored=stored: stored])
        measured.append(difference(instead(program, site.constant, stored).run(texts), wanted))
    assert len(predicted) == len(products(program)) and min(measured) > 0
    factors = np.array(predicted) / measured
    small = np.array(measured) < 0.1
    assert small.sum() > len(small) / 2, "most of these methods have errors of which a first order says something"
    assert 0.85 < np.median(factors[small]) < 1.15
    assert abs(np.log(factors[small])).max() < np.log(1.6)


def test_the_same_weight_has_no_error_and_a_weight_read_twice_adds_up(texts):
    rng = np.random.default_rng(5)
    W = rng.standard_normal((8, 8)).astype(np.float32)
    constants = {"E": Dense.pack(rng.standard_normal((26, 8)).astype(np.float32)), "w": Dense.pack(W)}
    steps = [
        Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"),
        Step("linear", {"x": "x", "weight": "w"}, {"activation": "tanh"}, "y"),
        Step("linear", {"x": "y", "weight": "w", "residual": "x"}, {}, "z"),
        Step("pool", {"x": "z"}, {"how": "mean"}, "out"),
    ]
    program = Program(steps, constants, "out")
    probe = OutputProbe(program, texts)
    [(site, readers)] = sites_with_cotangents(probe, {"w": Reader("w")})
    assert [reader.step for reader in readers] == [2, 1]
    off = Dense.pack(W * np.float32(1.01))
    same, changed = predict_changes(probe, site, readers, [lambda: constants["w"], lambda: off])
    assert same == 0
    assert changed == pytest.approx(difference(instead(program, "w", off).run(texts), program.run(texts)), rel=0.2)


def test_more_directions_for_fewer_sentences_and_none_for_too_few(texts):
    program = bert_program(CONFIG, arrays(CONFIG), fused_layer, Dense.pack)
    few = Batch([[3, 4, 5]])
    assert OutputProbe(program, texts).directions == 8 and OutputProbe(program, texts).suffices
    assert len(few) * OutputProbe(program, few).directions < LEAST_PROBES and not OutputProbe(program, few).suffices


@pytest.fixture
def made(monkeypatch):
    """Weights whose methods are a list of names, and the ways by which their errors came about."""
    came = []
    monkeypatch.setattr(TriedWeights, "methods", lambda self, site, changes: came.append(changes.func.__name__) or [])
    return came


@pytest.mark.parametrize("last", ["linear", "interpret"])
def test_sites_before_a_step_without_a_derivative_are_measured(last, texts, made):
    from alone import alone

    program = alone(last, np.random.default_rng(7))
    tried = TriedWeights(program, [Reader("w")], None, texts, LIMITS, None, Attempts())
    measured = ERRORS_OF[NEAR_FRONT](tried, lambda *_: None)
    assert [*measured] == ["w"]
    assert made == ["predict_changes" if last == "linear" else "measure_changes"]
    assert len(tried.notes) == (last == "interpret") and all("interpret" in line for line in tried.notes)
    assert not tried.attempts.failed, "errors that are measured are recalled from the cache, too"


def test_sites_before_a_choice_of_experts_are_measured(texts, made):
    """A change of scores may send rows to other experts, which no cotangent sees; experts themselves are predicted."""
    from alone import alone

    program = alone("experts", np.random.default_rng(7))
    tried = TriedWeights(program, [Reader("w"), Reader("up")], None, texts, LIMITS, None, Attempts())
    ERRORS_OF[NEAR_FRONT](tried, lambda *_: None)
    assert made == ["predict_changes", "measure_changes"]
    assert "gate chooses entries" in tried.notes[0]


def test_few_sentences_and_sites_that_nothing_reads_are_measured(made):
    program = bert_program(CONFIG, arrays(CONFIG), fused_layer, Dense.pack)
    name = next(iter(products(program)))
    for batch in (Batch([[3, 4]]), Batch([[3]] * 12)):
        tried = TriedWeights(program, [Reader(name)], None, batch, LIMITS, None, Attempts())
        ERRORS_OF[NEAR_FRONT](tried, lambda *_: None)
    assert made == ["measure_changes", "predict_changes"]


def test_each_way_has_as_many_rows_as_its_trials_can_have(texts, monkeypatch):
    """What is predicted has few passes, so all rows; what is measured beside it has a pass for each of its methods."""
    from alone import alone

    program = alone("experts", np.random.default_rng(7))
    monkeypatch.setattr("rewrites.approximate.trials.WORK", HALF_PASSES * half_pass(program) * texts.rows)
    rows = []
    monkeypatch.setattr(
        TriedWeights, "methods", lambda self, site, changes: rows.append((site.name, self.batch.rows)) or []
    )
    limits = Limits(error=0.5, most=8 * HALF_PASSES)
    tried = TriedWeights(program, [Reader("w"), Reader("up")], None, texts, limits, None, Attempts())
    ERRORS_OF[NEAR_FRONT](tried, lambda *_: None)
    assert dict(rows) == {"up": texts.rows, "w": sample(program, texts, limits.most).rows}
    assert dict(rows)["w"] < texts.rows / 2


def test_an_unknown_choice_is_refused():
    with pytest.raises(Exception, match="measure: 'some': it is near or all"):
        optimize("minilm", measure="some")


# ---- what is no weight


class Drawn:
    """A model of random shape with its factors, its program, the emitter of that, and sentences."""

    def __init__(self, seed, **sizes):
        rng = np.random.default_rng(seed)
        config = random_config(rng) | sizes
        self.model = transformer(config, random_weights(config, rng))
        self.batch = Batch(random_sentences(config, rng, 32))
        self.groups = part_factors(self.model)
        self.workload = Workload.drawn(self.model, self.batch)
        space = SearchSpace(self.model, (), standin.machine(), self.workload.extents(self.model))
        self.program, self.emitter = cheapest(space).program({})
        self.prices = space.prices

    def blocks(self):
        return BlockTrials(self.groups, self.program, self.batch, borders=self.emitter.borders)

    def probe(self):
        return OutputProbe(self.program, self.batch)


@pytest.fixture(scope="module", params=range(4))
def drawn(request):
    return Drawn(request.param)


def fainter(groups, share=0.9):
    """Each part with this share of its residuals, and each two parts."""
    parts = [
        tuple(I + residual_branch(factor) * share if residual_branch(factor) else factor for factor in group)
        for group in groups
    ]
    for first in range(1, len(parts)):
        for last in range(first, min(first + 2, len(parts))):
            factors = tuple(factor for part in parts[first : last + 1] for factor in part)
            if any(residual_branch(factor) for factor in factors):
                yield BlockSubstitution("fainter", first, last, factors, 0)


def close(predicted, measured):
    """Errors of first order, of about 200 probes."""
    factors = np.array(predicted) / np.array(measured)
    assert 0.8 < np.median(factors) < 1.25 and abs(np.log(factors)).max() < np.log(1.6)


def test_parts_hand_on_the_residual_stream(drawn):
    stream, steps = residual_stream(drawn.groups, drawn.batch), drawn.blocks().handing
    results = [result for _, _, result in drawn.program.schedule.walk(drawn.batch)]
    assert [*steps] == [*range(len(drawn.groups))]
    for part, at in steps.items():
        assert difference(results[at], stream[part + 1].array) < 1e-4


def test_errors_of_blocks_are_those_of_the_model_without(drawn):
    """Predicted, by kernels from the rows that a part hands on, and by the factors of the model."""
    trials, tried = drawn.blocks(), [*fainter(drawn.groups)]
    measured = [one.error**0.5 for one in measure_blocks(drawn.groups, tried, drawn.batch, inf, trials.attempts)]
    by_kernels = {(one.first, one.last): one for one in trials.measure_by_kernels(drawn.batch, tried, inf)}
    assert len(by_kernels) == len(tried) and not trials.attempts.failed and not trials.notes
    for one, error in zip(tried, measured, strict=True):
        assert by_kernels[one.first, one.last].error ** 0.5 == pytest.approx(error, rel=1e-3)
    close([change for _, change in trials.predictions(tried, drawn.batch)], measured)


def test_errors_of_fewer_keys_are_those_of_runs(drawn):
    """Of the widest window that leaves out a key: nearer ones leave out more than a first order gives."""
    trials = SparseAttentionTrials(drawn.groups, drawn.program, drawn.emitter.parts, drawn.prices, drawn.workload)
    trials.workload = Workload(**{**vars(drawn.workload), "choose": drawn.batch})
    vars(trials)["sample"] = drawn.batch
    tried = [
        BlockSubstitution(LEFT_OUT, part, part, (), 0, where=pattern(trials.dense_call(at).bound) & window(near))
        for part, at in trials.steps.items()
        for near in range(24)
    ]
    tried = [one for one in tried if 0 < trials.left_out(one, drawn.batch) < 0.2]
    predicted = [change for _, change in trials.predictions(tried, drawn.batch)]
    measured = {(one.first, one.where): one.error**0.5 for one in trials.measure(tried, inf)}
    small = [
        (change, measured[one.first, one.where])
        for change, one in zip(predicted, tried, strict=True)
        if measured[one.first, one.where] < 0.1
    ]
    assert not trials.attempts.failed and len(measured) == len(tried)
    if small:
        close(*zip(*small, strict=True))
    else:
        assert all(one.where.reach for one in tried), "windows of a few keys alone"


def test_scores_of_some_directions_at_a_time_give_the_same_cotangents(drawn, monkeypatch):
    trials, tried = drawn.blocks(), [*fainter(drawn.groups)]
    together = trials.predictions(tried, drawn.batch)
    monkeypatch.setattr(pullbacks, "SCORE_BYTES", 1)
    assert trials.predictions(tried, drawn.batch) == together


@pytest.mark.parametrize("seed", range(8))
def test_predictions_choose_what_is_measured(seed):
    rng = np.random.default_rng(seed)
    most = rng.choice([0.02, 0.1, 0.4])
    changes = [*rng.uniform(0, 2, 12), *rng.uniform(0, 0.1, 4), None, nan]
    tried = [PredictedBlock(BlockSubstitution(str(n), 1, 1, (), 0), change) for n, change in enumerate(changes)]
    asked, notes = [], []

    def measure(those, most):
        asked.extend(int(one.what) for one in those)
        return []

    found, ways = settle_predictions(tried, most, measure, notes)
    doubted = [n for n, change in enumerate(changes) if change is None or FIRST_ORDER < change <= FARTHER * most]
    assert asked == doubted and f"{len(doubted)} of {len(changes)}" in notes[0] and ways == "pullback and runs"
    assert {int(one.what): one.error**0.5 for one in found} == pytest.approx(
        {n: change for n, change in enumerate(changes) if change is not None and change <= min(FIRST_ORDER, most)}
    )
    assert settle_predictions([], most, measure, notes) == ([], "") and len(notes) == 1


@pytest.mark.parametrize("pulled", [0, 99])
def test_blocks_are_predicted_where_that_is_less_work_and_measured_where_nothing_is_predicted(pulled, monkeypatch):
    monkeypatch.setattr(block_errors, "PULLED", pulled)
    model = Drawn(3, num_hidden_layers=1)
    tried = [*fainter(model.groups, 0.99)]
    whole = {"batch": model.batch, "borders": model.emitter.borders}
    for one in whole, whole | {"borders": {}}, whole | {"batch": Batch([[1, 2, 3]])}:
        trials = BlockTrials(model.groups, model.program, **one)
        trials.candidates = lambda: tried
        found = trials.predict_errors(inf)
        assert trials.predicted_by == ("pullback" if one is whole and not pulled else "runs")
        assert len(trials.notes) == (0 if pulled or one is whole else 1 if len(trials.batch) > 1 else 2)
        measured = measure_blocks(model.groups, tried, trials.batch, inf, Attempts())
        close(sorted(each.error**0.5 for each in found), sorted(each.error**0.5 for each in measured))


@pytest.fixture(scope="module")
def removable():
    """A model whose heads and units have biases behind them, with a layer whose units do little."""
    sizes = {"num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 64, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "head_dim": 6, "gated": False, "bias": True, "pre_norm": True}
    return Drawn(11, **sizes, mask="sequence", norm="layer", hidden_act="gelu")


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_changes_of_groups_add_up_to_that_of_the_model_without_them(removable, share):
    """With zeros in the rows of any of them, and their mean in the bias."""
    pairs, probe, batch = every_coupled(removable.model), removable.probe(), removable.batch
    readers, rng = find_readers(removable.program, dict(enumerate(pairs))), np.random.default_rng(0)
    wanted, predicted, measured = dense(removable.model, batch), [], []
    for pulled in pulled_steps(probe, readers, []):
        pair = pairs[readers[pulled.step]]
        gone = rng.permutation(pair.groups)[: max(1, int(share * pair.groups))]
        changes = changes_by_group(pair, probe, pulled, np.ones(len(batch), bool))
        predicted.append(probe.relative(changes[:, :, gone].sum(-1)))
        numbers, rows = pair.weight.array.astype(float), spread(gone, pair.group)
        bias = pair.bias.array + pulled.arguments["x"].mean(0)[rows] @ numbers[rows]
        numbers[rows] = 0
        without = substitute(removable.model, {pair.node: pair.zeroed(numbers, bias)})
        measured.append(difference(dense(without, batch), wanted))
    assert len(predicted) == len(pairs) == 6
    close(predicted, measured)


def test_those_that_change_the_output_least_are_removed_first(removable):
    """Against as many units by chance; more are more numbers, and each pair has the losses of its groups."""
    pairs, probe = every_coupled(removable.model), removable.probe()
    curves, rng = predict_curves(removable.model, WHAT, probe, notes := []), np.random.default_rng(0)
    readers = find_readers(removable.program, dict(enumerate(pairs)))
    assert len(curves) == len(pairs) and not notes
    for pulled in pulled_steps(probe, readers, []):
        pair, curve = pairs[readers[pulled.step]], curves[readers[pulled.step]]
        left, gone = fewer_groups(pair), [loss.gone for loss in curve.losses]
        assert [loss.left for loss in curve.losses] == [pair.groups, *left] and curve.what == pair.what
        assert gone[0] == 0 and gone == sorted({*gone})
        changes = changes_by_group(pair, probe, pulled, np.ones(len(removable.batch), bool))
        middle = len(left) // 2
        drawn = (rng.permutation(pair.groups)[: pair.groups - left[middle]] for _ in range(20))
        by_chance = [probe.relative(changes[:, :, some].sum(-1)) for some in drawn]
        assert 0 < curve.losses[1 + middle].error
        if pair.what == UNITS:  # of four heads there are six choices of two
            assert curve.losses[1 + middle].error ** 0.5 < min(by_chance)
    units = predict_curves(removable.model, [UNITS], probe, [])
    assert [len(curve.losses) > 1 for curve in units] == [curve.what == UNITS for curve in curves]


def test_losses_before_a_weight_that_no_step_reads_are_measured(removable):
    other = Drawn(12, num_hidden_layers=1)
    assert not predict_curves(removable.model, WHAT, other.probe(), notes := [])
    assert "all losses are measured" in notes[-1]
    few = OutputProbe(removable.program, Batch([[1, 2]]))
    assert not predict_curves(removable.model, WHAT, few, notes := []) and "too few" in notes[0]
