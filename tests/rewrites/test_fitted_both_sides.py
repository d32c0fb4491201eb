"""Weights stored in the metric of both sides: cotangents of products behind their epilogues, low rank and pruning by
them, and the ways without them as they were."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from programs import bert_program, fused_layer

from formats import FORMATS, Dense
from formats.host.threads import in_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime import cotangents
from opmatrix.runtime.cotangents import product_gram, pull_back, random_signs
from opmatrix.runtime.program import Program, Step
from opmatrix.spectra.gram import Seen, Symmetric
from opmatrix.spectra.two_sided import two_sided_energy
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.approximate.proposals import GramSums, repeated_rows
from rewrites.lowering.lower import Method
from rewrites.search import fit
from rewrites.search.fit import Fitter

KEY = 0, 0, "columns"
PRUNED = [
    Method("csr", (("density", 0.3),), "wanda"),
    Method("nm", (("n", 2), ("m", 4)), "wanda"),
    Method("block", (("density", 0.5), ("tile", (4, 4))), "wanda"),
    Method("sell", (("density", 0.25),), "wanda"),
    Method("nmint8", (("n", 2),), "wanda"),
]
LOW = [Method("lowrank", (("rank", 4),), "whitened"), Method("lowrankint8", (("rank", 4),), "whitened")]


@pytest.fixture
def sides():
    """A weight, the rows that it multiplies, and cotangents of its outputs, some directions of each far larger."""
    rng = np.random.default_rng(11)
    x, g = (
        rng.standard_normal((300, size)) * 10.0 ** rng.uniform(-1, 1, size) @ rng.standard_normal((size, size))
        for size in (16, 24)
    )
    return rng.standard_normal((16, 24)), Seen.of(x.astype(np.float32)), g.T @ g


def energies(sides, method, **limits):
    """What a method loses in the metric of both sides, fitted to inputs alone and to both."""
    W, seen, s = sides
    ways = Fitter({KEY: seen}), Fitter({KEY: seen}, cotangents={KEY: s})
    stored = [fitter.store(W.copy(), method, KEY) for fitter in ways]
    assert all(type(each) is FORMATS[method.format] for each in stored)
    assert stored[0].nbytes == stored[1].nbytes, "the same is stored, other numbers"
    return [two_sided_energy(W - each.unpack(), seen.gram, s) for each in stored]


@pytest.mark.parametrize("method", [*LOW, *PRUNED], ids=str)
def test_both_sides_lose_less(sides, method):
    one, both = energies(sides, method)
    assert both < 0.9 * one


@pytest.mark.parametrize("method", PRUNED, ids=str)
def test_large_weights_are_refitted_to_inputs_alone_or_not_at_all(sides, method, monkeypatch):
    W, seen, s = sides
    lost = []
    for work in (1e12, 16 * 16 * 24 * 4, 0):
        monkeypatch.setattr(fit, "REFIT_WORK", work)
        stored = Fitter({KEY: seen}, cotangents={KEY: s}).store(W.copy(), method, KEY)
        lost.append(two_sided_energy(W - stored.unpack(), seen.gram, s))
    assert lost[0] < lost[1] and lost[0] < lost[2]
    if "int8" not in method.format:
        kept = stored.unpack()
        assert np.array_equal(kept[kept != 0], W.astype(np.float32)[kept != 0])


def test_other_formats_and_weights_without_cotangents_are_as_before(sides):
    W, seen, s = sides
    both = Fitter({KEY: seen}, cotangents={KEY: s})
    for method in (Method("int8"), Method("balancedint8", (), "wanda"), Method("csr", (("density", 0.3),), "plain")):
        one = Fitter({KEY: seen}).store(W.copy(), method, KEY)
        assert np.array_equal(both.store(W.copy(), method, KEY).unpack(), one.unpack())
    elsewhere = 1, 0, "columns"
    assert np.array_equal(
        both.store(W.copy(), LOW[0], elsewhere).unpack(), Fitter().store(W.copy(), LOW[0], elsewhere).unpack()
    )


def test_all_ranks_share_one_decomposition(sides, monkeypatch):
    W, seen, s = sides
    calls = []
    whole = fit.two_sided
    monkeypatch.setattr(fit, "two_sided", lambda *given: calls.append(1) or whole(*given))
    fitter = Fitter({KEY: seen}, cotangents={KEY: s})
    lost = [
        two_sided_energy(W - fitter.store(W, Method("lowrank", (("rank", r),)), KEY).unpack(), seen.gram, s)
        for r in (1, 4, 8, 16)
    ]
    assert len(calls) == 1 and lost == sorted(lost, reverse=True) and lost[3] < 1e-9 * lost[0]


def test_cotangents_are_those_before_the_epilogue():
    """Against finite differences of the product, moved by a bias of one row."""
    rng = np.random.default_rng(5)
    E, W, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 6), (6, 5), (5,)))
    constants = {"E": Dense.pack(E), "w": Dense.pack(W), "b": b, "gain": np.linspace(1, 2, 5, dtype=np.float32)}
    epilogue = {"activation": "tanh", "eps": 1e-6}
    steps = [
        Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"),
        Step("linear", {"x": "x", "weight": "w", "bias": "b", "gain": "gain"}, epilogue, "y"),
    ]
    batch, program = Batch([[1, 2, 3], [4, 5]]), Program(steps, constants, "y")
    signs = random_signs(rng, 3, (5, 5))
    [pulled] = pull_back(program, batch, signs, [1])
    g, step = np.zeros((3, 5, 5)), 1e-2
    for row, token in enumerate([1, 2, 3, 4, 5]):
        for j in range(5):
            out = []
            for sign in (step, -step):
                moved = E.copy()
                moved[token] += sign * np.linalg.pinv(W.astype(float))[j]  # x @ W moves at j alone
                out.append(Program(steps, {**constants, "E": Dense.pack(moved)}, "y").run(batch))
            g[:, row, j] = np.einsum("kij,ij->k", signs, out[0] - out[1]) / (2 * step)
    rows = g.reshape(-1, 5)
    np.testing.assert_allclose(product_gram(pulled, batch), rows.T @ rows, rtol=0.02, atol=0.02)


def test_wide_products_have_a_diagonal_and_steps_without_one_nothing(monkeypatch):
    program = bert_program(CONFIG, arrays(CONFIG), fused_layer, Dense.pack)
    batch = Batch([[3, 4, 5], [6, 7]])
    steps = range(len(program.steps))
    signs = random_signs(np.random.default_rng(1), 2, program.run(batch).shape)
    whole = {p.step: product_gram(p, batch) for p in pull_back(program, batch, signs, steps)}
    products = {at for at, step in enumerate(program.steps) if step.kernel == "linear"}
    assert {at for at, gram in whole.items() if gram is not None} == products
    monkeypatch.setattr(cotangents, "WIDEST", 1)
    for pulled in pull_back(program, batch, signs, products):
        np.testing.assert_allclose(product_gram(pulled, batch), whole[pulled.step].diagonal(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("n", (1, 2, 7))
def test_half_of_a_symmetric_matrix_is_enough(n):
    rows = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    whole = rows.T @ rows
    held = Symmetric.of(whole)
    assert len(held) == n and held.half.size == n * (n + 1) // 2 and held.half.dtype == np.float32
    assert np.array_equal(np.asarray(held, np.float64), whole.astype(np.float64))
    assert np.array_equal(np.asarray(held + held), 2 * whole.astype(np.float64))


@pytest.mark.parametrize("widest", (2048, 5))
def test_halves_of_the_sentences_are_weighed_in_two_threads(monkeypatch, widest):
    """The sum of both halves, each pulled back alone, to the bit; wide products by their diagonal."""
    monkeypatch.setattr(cotangents, "WIDEST", widest)
    program = bert_program(CONFIG, arrays(CONFIG), fused_layer, Dense.pack)
    batch = Batch([[3, 4, 5], [6, 7], [8], [9, 3, 2, 1]])
    products = [at for at, step in enumerate(program.steps) if step.kernel == "linear"]
    places = {str(at): FakeSite(str(at), at) for at in products}
    sums = GramSums()
    halves = [OutputProbe(program, half, 8) for half in (batch.sentences(0, 2), batch.sentences(2, 4))]
    in_threads(partial(sums.add_products, half, places) for half in halves)
    for at in products:
        parts = [
            product_gram(pulled, half.batch).astype(np.float32)
            for half in halves
            for pulled in pull_back(program, half.batch, half.signs(), [at])
        ]
        assert np.array_equal(np.asarray(sums.by_name[str(at)]), parts[0] + parts[1])


class FakeSite(NamedTuple):
    """A weight that one step reads."""

    name: str
    step: int

    def readers(self, program):
        return [self.step]


def test_rows_that_are_fitted_again_count():
    """A text that repeats itself would say that what is fitted to it errs little."""
    fit = Batch([[1, 2, 3], [4, 5]])
    assert repeated_rows(fit, fit) == 1
    assert repeated_rows(fit, Batch([[1, 2], [4, 5, 6]])) == 0
    assert repeated_rows(fit, Batch([[4, 5], [4, 6], [1, 2, 3], [7]])) == 5 / 8
