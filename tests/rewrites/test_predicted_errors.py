"""Errors of methods by one pullback: against runs with each method, for kinds of storage, outputs and families."""

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from programs import bert_program, fused_layer, unfused_layer

from formats import FORMATS, Dense
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Program, Step
from opmatrix.spectra import Limits
from rewrites.approximate.predicted_errors import (
    HALF_PASSES,
    LEAST_PROBES,
    OutputProbe,
    predict_changes,
    sites_with_cotangents,
)
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT
from rewrites.approximate.sites import WeightSite
from rewrites.approximate.trials import half_pass, sample
from rewrites.approximate.weight_errors import TriedWeights
from rewrites.egraph.attempts import Attempts
from rewrites.run import optimize
from rewrites.verify.differences import difference

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
