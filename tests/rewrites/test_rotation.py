"""RoPE: what the kind means in every reading, what it refuses, and that programs with it are the model."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from searched import Round, relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import (
    I,
    const,
    diag,
    given,
    heads,
    product,
    repeat,
    rmsnorm,
    rotary,
    rotate,
    softmax,
    symbol,
    turn,
    weight,
)
from opmatrix.algebra.oracles import DenseReading, dense, entrywise
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, ShapeError
from opmatrix.algebra.term import formula, read
from opmatrix.runtime.program import Program
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.search.search import search
from rewrites.verify import verify_steps
from rewrites.verify.graphs import check_graph

RAGGED = Batch([[3, 1, 4, 1, 5], [9], [2, 6]])
WIDE, POSITIONS = 6, 9


def numbers(rng, *shape):
    return Data(rng.normal(size=shape) / shape[0] ** 0.5)


def turned(x, positions, base=10000.0):
    """The same as complex numbers: each pair of columns is one, and an angle multiplies it."""
    half = x.shape[-1] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    angles = positions[:, None] * base ** (-np.arange(half) / half)
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], -1)


@pytest.mark.parametrize("shape", [(8, WIDE), (3, 8, WIDE)], ids=["rows", "heads"])
def test_columns_turn_as_complex_numbers_do(rng, shape):
    x, R = rng.normal(size=shape), rotary(POSITIONS, WIDE, 100.0)
    wanted = turned(x, RAGGED.positions, 100.0)
    np.testing.assert_allclose(dense(R, x, RAGGED), wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(read(R, DenseReading(x, RAGGED), {}).array, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(entrywise(R, x, RAGGED).astype(float).reshape(shape), wanted, rtol=1e-13, atol=1e-13)
    assert R(Shape(1, cols=WIDE)) == Shape(1, cols=WIDE)


def test_a_rotation_by_rationals_is_exact(rng):
    """3, 4 and 5: a right angle's sides."""
    R = rotate([[1.0], [0.75], [0.0], [-1.0], [0.5]], [[0.0], [0.5], [1.0], [0.25], [-0.5]])
    x = rng.integers(-4, 5, (8, 2)) / 4
    found = entrywise(R, x, RAGGED, Fraction)
    assert all(isinstance(number, Fraction) for number in found.flat)
    assert (found.astype(float).reshape(8, 2) == dense(R, x, RAGGED)).all()


def test_lengths_and_angles_between_equal_distances_stay(rng):
    """What it is for: the score of a query and a key depends on how far apart they are."""
    R, batch = rotary(POSITIONS, WIDE), Batch([[0] * POSITIONS])
    q, k = (np.repeat(rng.normal(size=(1, WIDE)), POSITIONS, 0) for _ in range(2))
    scores = dense(R, q, batch) @ dense(R, k, batch).T
    for apart in range(-3, 4):
        assert np.ptp(np.diagonal(scores, apart)) < 1e-12
    assert np.ptp(scores[0]) > 0.1


def test_what_it_refuses(rng):
    table = np.ones((4, 3))
    with pytest.raises(ShapeError, match=r"rotate: tables of cosines \(4, 3\) and sines \(4, 2\)"):
        rotate(table, table[:, :2])
    with pytest.raises(ShapeError, match="columns"):
        weight(np.ones((5, 5))) @ rotate(table, table)
    with pytest.raises(ValueError, match=r"positions: id 4 of sentence 0, token 4 .* outside 0..3"):
        dense(rotate(table, table), rng.normal(size=(8, 6)), RAGGED)
    with pytest.raises(TypeError, match="adjoint"):
        rotate(table, table).T  # noqa: B018


# ---- programs


def rope_model(rng, h=4, g=2, d=4, layers=2):
    """Norms of roots before, grouped queries, RoPE, a gate, as LLaMA has them, but with biases of keys and queries."""
    width, table = h * d + 2, rotary(POSITIONS, d, 50.0)

    def layer():
        def mix(x):
            x = x @ (rmsnorm(1e-3) @ diag(rng.normal(size=width)))
            q, k = (
                x @ (weight(numbers(rng, width, many * d)) + const(numbers(rng, many * d))) @ heads(many) @ table
                for many in (h, g)
            )
            v = x @ weight(numbers(rng, width, g * d)) @ heads(g)
            scores = q @ (k @ repeat(h)).T * d**-0.5
            y = product(scores, v @ repeat(h), over=softmax, where=sequence & causal) @ heads(h).T
            return y @ weight(numbers(rng, h * d, width))

        return formula(lambda x: x + mix(x))

    model = weight(numbers(rng, 10, width)) + given("positions", POSITIONS) @ weight(numbers(rng, POSITIONS, width))
    for _ in range(layers):
        model = model @ layer()
    return model


@pytest.mark.parametrize("laws, fusion", [((), False), (EXACT_LAWS, True)], ids=["imported", "exact"])
def test_a_program_with_rope_is_the_model(rng, laws, fusion, tmp_path):
    model = rope_model(rng)
    program, _ = search(model, laws, Round(), RAGGED.extents(patterns(model)), fusion=fusion).program({})
    wanted = dense(model, RAGGED)
    assert relative(program.run(RAGGED), wanted) < 1e-5
    verify_steps(program, [RAGGED])
    kernels = [step.kernel for step in program.steps]
    assert (
        kernels.count("attention" if fusion else "softmax") == 2
        and kernels.count("rotate") == 4
        and "interpret" not in kernels
    )
    assert (len(program.schedule.segments) == 1) == fusion
    program.save(tmp_path / "p")
    assert (Program.load(tmp_path / "p").run(RAGGED) == program.run(RAGGED)).all()


@pytest.mark.parametrize("rest", [0, 4])
def test_bits_depend_on_the_row_alone(rng, rest):
    """A batch and each of its sentences; many groups and one, where rows of a chunk and of a worker are others."""
    table, wide = rotary(POSITIONS, 8, rest=rest), 3 * (8 + rest)
    model = weight(numbers(rng, 10, wide)) @ heads(3) @ table @ heads(3).T @ weight(numbers(rng, wide, wide))
    program, _ = search(model, EXACT_LAWS, Round(), RAGGED.extents()).program({})
    assert [step.kernel for step in program.steps if step.kernel in ("rotate", "interpret")] == ["rotate"]
    many = Batch([rng.integers(0, 10, length) for length in rng.integers(1, POSITIONS + 1, 200)])
    found = program.run(many)
    for low, high in zip(many.starts, many.starts[1:], strict=False):
        assert (program.run([many.tokens[low:high]]) == found[low:high]).all()
    assert relative(found, dense(model, many)) < 1e-6


def test_a_sentence_longer_than_the_tables_is_refused(rng):
    program, _ = search(weight(numbers(rng, 10, 6)) @ rotary(4, 6), EXACT_LAWS, Round(), RAGGED.extents()).program({})
    with pytest.raises(ValueError, match=r"positions: id 4 of sentence 1, token 4 .* is outside 0\.\.3"):
        program.run([[1], [1] * 5])
    more = {"a": np.ones((4, 3), np.float32), "b": np.ones((4, 4), np.float32), "c": np.ones(4, np.float32)}
    for cos, sin in ("ab", "bb", "cc"):
        steps = [
            replace(step, operands={**step.operands, "cos": cos, "sin": sin}) if step.kernel == "rotate" else step
            for step in program.steps
        ]
        with pytest.raises(ValueError, match=r"rotate: (sin|cos): \(4"):
            Program(steps, {**program.constants, **more}, program.output)


@pytest.mark.parametrize("h, d, rest", [(4, 8, 0), (2, 6, 2), (8, 16, 0), (3, 8, 8), (4, 4, 0)])
def test_every_member_of_a_graph_with_rope_agrees(rng, h, d, rest):
    """At shrunken sizes: columns that turn stay twice the columns of the tables, and the others so many more."""
    table = rotary(POSITIONS, d, rest=rest)
    wide, each = h * (d + rest), d + rest
    x = symbol("border", None, wide)
    q, k = (x @ weight(numbers(rng, wide, wide)) @ heads(h) @ table for _ in range(2))
    model = flat(product(product(q, turn(k)) @ (I * each**-0.5), x @ heads(h), softmax, sequence) @ heads(h).T, I)
    template = Template.of({"full": model}, [x])
    small = template.shrunken(lambda shape: np.ones(shape))
    assert max(max(value.shape) for value in small.values() if isinstance(value, Data)) <= min(32, wide)
    template.instance(small)  # or it does not fit
    assert not check_graph(template, EXACT_LAWS)
