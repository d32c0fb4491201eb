"""Work of an interpreted term: its products are priced, and the numbers that it makes are counted in peaks,
which bound what verification looks at."""
import tracemalloc

import numpy as np
import pytest
from searched import Round, structure

from opmatrix import formula
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import heads, product, symbol, weight
from opmatrix.algebra.shapes import Shape, T
from opmatrix.batch import Batch
from opmatrix.patterns import sequence
from opmatrix.runtime.arguments import Arguments
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.operands import Rows
from rewrites.verify import lengths
from rewrites.verify.lengths import lengths_of

ROWS = 256
FORMS = {"scores times scores turned": lambda q, k, v: product(q @ k.T * (q @ k.T).T, v, over=softmax, where=sequence),
         "scores and scores turned": lambda q, k, v: product(q @ k.T + (q @ k.T).T, v, over=softmax, where=sequence)}


def batch(rows): return Batch([np.random.default_rng(rows).integers(0, 41, rows)])


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


@pytest.mark.parametrize("memory", [2 ** 20, 2 ** 24])
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
