"""Work of an interpreted term: its products are priced, and the numbers that it makes are counted in peaks,
which bound what verification looks at."""

import tracemalloc

import numpy as np
import pytest
from searched import Round, structure

from formats.core import head_blocks
from opmatrix import formula
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import (
    I,
    by_distance,
    exp,
    heads,
    maximum,
    product,
    reciprocal,
    relu,
    share,
    sigmoid,
    symbol,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.declarations.arguments import Arguments
from opmatrix.runtime.declarations.operands import Rows
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from rewrites.verify import lengths
from rewrites.verify.lengths import lengths_of
from rewrites.verify.nudged import moved

ROWS = 256
FORMS = {
    "scores times scores turned": lambda q, k, v: product(q @ k.T * (q @ k.T).T, v, over=softmax, where=sequence),
    "scores and scores turned": lambda q, k, v: product(q @ k.T + (q @ k.T).T, v, over=softmax, where=sequence),
}


def batch(rows):
    return Batch([np.random.default_rng(rows).integers(0, 41, rows)])


@pytest.fixture(params=FORMS)
def interpreted(request):
    """A program with a step that mixes tokens in every head, and that no kernel computes."""
    rng = np.random.default_rng(0)

    def mixing(x):
        q, k, v = (x @ weight(rng.normal(size=(24, 24)).astype(np.float32)) @ heads(8) for _ in range(3))
        return FORMS[request.param](q, k, v) @ heads(8).T

    model = weight(rng.normal(size=(41, 24)).astype(np.float32)) @ formula(mixing)
    program, _ = structure(model, batch=batch(ROWS)).program({})
    assert "interpret" in {step.kernel for step in program.steps}
    return program


def test_a_peak_has_what_an_interpreted_step_makes(interpreted):
    given = batch(ROWS)
    interpreted.run(given)
    tracemalloc.start()
    interpreted.run(given)
    _, made = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made <= interpreted.peak_bytes(given) <= 4 * made


@pytest.mark.parametrize("memory", [2**20, 2**24])
def test_verification_looks_at_lengths_within_its_memory(interpreted, monkeypatch, memory):
    monkeypatch.setattr(lengths, "MEMORY", memory)
    timed = batch(48)
    every = lengths_of([interpreted], [timed])
    needed = {each: interpreted.peak_bytes(Batch([np.zeros(n, int) for n in each])) for each in every}
    assert (timed.rows,) in needed and (1,) in needed
    assert all(size <= memory for each, size in needed.items() if sum(each) > timed.rows)


@pytest.mark.parametrize("inner, columns", [(64, 64), (64, 1024), (1024, 64)])
def test_an_interpreted_product_costs_more_than_a_kernel(inner, columns):
    x = symbol("x", Shape(1, T, 1), Shape(1, T, inner), linear=False)
    text, arrays = write_term(x @ weight(np.ones((inner, columns), np.float32)), {x: 0})
    given = Arguments(x0=Rows(inner), c0=arrays[0], term=text)
    extents = batch(64).extents()
    interpret = KERNELS["interpret"]
    machine = Round()
    taken = sum(machine.seconds(name, **sizes) for name, sizes in interpret.cost(given, Rows(columns), extents))
    assert taken > machine.seconds("linear.dense", T=64, n=inner, p=columns)


# ---- many heads, some at a time


def time_mix(form, channels, rng):
    """The time mix of RWKV-4 (Peng et al. 2023, eq. 16) with a decay for each channel: scores of all pairs of tokens in
    as many heads as there are channels."""

    def matrix():
        return weight(rng.normal(size=(channels, channels)) / channels**0.5)

    table = Data(-abs(rng.normal(size=(channels, 1))) * np.maximum(0, 7 - np.arange(17)), "decay")

    def mixing(x):
        r, k, v = x @ matrix(), x @ matrix() @ heads(channels), x @ matrix() @ heads(channels)
        s = product(k * 0.0 + 1.0, k.T) + by_distance(table, 8)
        return (r @ sigmoid * (form(s, v) @ heads(channels).T)) @ matrix()

    return weight(rng.normal(size=(41, channels))) @ (I + formula(mixing))


PAST = causal & sequence
MIXES = {
    "softmax": lambda s, v: product(s, v, over=softmax, where=PAST),
    "sums": lambda s, v: product(s @ exp, v, where=PAST) * (product(s @ exp, v * 0.0 + 1.0, where=PAST) @ reciprocal),
    "turned": lambda s, v: product((s + s.T) @ relu, v, where=PAST),
    "shares": lambda s, v: product((s * s.T) @ share, v, where=PAST),
    "of rows": lambda s, v: v * (s @ maximum),
}


def traced(run):
    """What a run gives, and the bytes that it needs at most."""
    tracemalloc.start()
    try:
        return run(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", MIXES)
def test_an_oracle_of_many_heads_holds_some_of_them_and_gives_the_same(form, monkeypatch):
    model = time_mix(MIXES[form], 32, np.random.default_rng(0))
    given = Batch([np.arange(96) % 41, [3, 4]])
    every, needed = traced(lambda: dense(model, given))
    monkeypatch.setattr(head_blocks, "MOST_NUMBERS", 1 << 14)
    some, less = traced(lambda: dense(model, given))
    assert less <= 0.3 * needed
    np.testing.assert_allclose(some, every, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(moved(model, [given], 2.0**-24), moved(model, [given], 2.0**-24))


@pytest.mark.parametrize("most", [1, 1 << 14, 1 << 40])
def test_a_peak_has_the_heads_of_an_interpreted_step_that_are_there_at_once(interpreted, monkeypatch, most):
    monkeypatch.setattr(head_blocks, "MOST_NUMBERS", most)
    given = batch(ROWS)
    interpreted.run(given)
    _, made = traced(lambda: interpreted.run(given))
    assert made <= interpreted.peak_bytes(given) <= 5 * made
