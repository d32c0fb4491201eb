"""Infinity is the identity of (min, +): an input may be it where a monoid says so; NaN may not."""

import numpy as np
import pytest
import standin
from searched import structure

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import I, given, over, product, relu, row, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.runtime.codegen.infinite import infinite_batches, infinite_inputs
from opmatrix.runtime.program import Program
from rewrites.verify.failure import VerificationError
from rewrites.verify.programs import verify_steps

DISTANCES = np.array([[0, 3, 9], [3, 0, 4], [9, 4, 0]], np.float32)


class minplus(Monoid):
    """The shortest way."""

    identity = np.inf

    def lift(u, w):
        return u + w

    def merge(a, b):
        return np.minimum(a, b)


class maxplus(Monoid):
    """The longest way."""

    identity = -np.inf

    def lift(u, w):
        return u + w

    def merge(a, b):
        return np.maximum(a, b)


class minmax(Monoid):
    """The way whose longest step is the shortest."""

    identity = np.inf

    def lift(u, w):
        return np.maximum(u, w)

    def merge(a, b):
        return np.minimum(a, b)


START, OTHER = given("start", 3, "V"), given("other", 3, "V")
ROADS = weight(DISTANCES)
MODEL = START @ over(ROADS, minplus)


def program_of(model, start):
    batch = Batch(inputs={"start": np.array([start], np.float32)})
    return structure(model, batch=batch).program({})[0], batch


def reached(start, model=MODEL):
    program, batch = program_of(model, start)
    return program.run(batch)


def test_an_input_may_be_the_identity_of_min_plus():
    assert np.array_equal(reached([0, np.inf, np.inf]), DISTANCES[:1])


def test_a_finite_input_of_min_plus_runs():
    assert np.array_equal(reached([0, 100, 100]), DISTANCES[:1])


def test_an_input_may_not_be_nan():
    with pytest.raises(InputError, match="nan"):
        reached([0, np.nan, 1])


@pytest.mark.parametrize(
    "model, wanted",
    [
        (MODEL, {"start": (np.inf,)}),
        (MODEL @ over(ROADS, minplus), {"start": (np.inf,)}),
        (START @ over(ROADS, maxplus), {"start": (-np.inf,)}),
        (START @ monoids.max, {"start": (-np.inf,)}),
        (START @ relu @ over(ROADS, minmax), {"start": (np.inf,)}),
        (row(MODEL, START), {"start": (np.inf,)}),
        (product(START, turn(OTHER), minplus), {"start": (np.inf,), "other": (np.inf,)}),
        (product(START, turn(OTHER), monoids.softmax), {"start": (-np.inf,)}),
        (MODEL + START @ over(ROADS, maxplus), {}),
        (MODEL + START @ ROADS, {}),
        (START @ ROADS @ over(ROADS, minplus), {}),
        (START @ (I + ROADS), {}),
        (START @ relu, {}),
        (product(product(START, turn(OTHER)), OTHER, monoids.softmax), {}),
    ],
)
def test_the_monoids_that_merge_an_input_say_what_it_may_hold(model, wanted):
    assert infinite_inputs([model]) == wanted


@pytest.mark.parametrize(
    "model, start", [(START @ ROADS, [0, np.inf, 1]), (MODEL, [0, -np.inf, 1]), (MODEL + START @ ROADS, [np.inf, 0, 0])]
)
def test_another_infinite_number_is_refused(model, start):
    with pytest.raises(InputError, match=r"start: .*inf, not a finite number, nor the identity of a monoid"):
        reached(start, model)


def test_a_number_beyond_float32_is_no_infinity():
    batch = Batch(inputs={"start": np.array([[0, 1e300, 1]])})
    with pytest.raises(InputError, match=r"1e\+300, beyond the largest float32"):
        program_of(MODEL, [0, 1, 1])[0].run(batch)


def test_a_step_that_makes_nan_of_an_infinite_input_is_named():
    model = START @ over(weight(np.array([[0.0], [1], [1]])), monoids.max)
    with pytest.raises(InputError, match=r"step \w+ = \w+: it is NaN at \[0, 0\], .* input start has at \[0, 0\]"):
        reached([-np.inf, 1, 2], model)


MONOIDS = [minplus, maxplus, minmax]


def drawn_model(rng, over_one):
    """A model of random sizes over a monoid, in one of some forms, and what enters it."""
    n, p, rows = (int(rng.choice(sizes)) for sizes in ((1, 3, 8, 33), (1, 2, 7, 16), (1, 5, 16)))
    x, W = given("start", n, "V"), weight(abs(rng.normal(size=(n, p))))
    y = x @ over(W, over_one)
    again = weight(abs(rng.normal(size=(p, p))))
    forms = [y, y @ over(again, over_one), row(y, x), (x + x) @ over(W, over_one)]
    start = abs(rng.normal(size=(rows, n))).astype(np.float32)
    start[rng.random(start.shape) < 0.4] = over_one.identity
    return forms[rng.integers(len(forms))], Batch(inputs={"start": start})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 12))])
@pytest.mark.parametrize("over_one", MONOIDS)
def test_programs_of_infinite_inputs_give_what_their_models_do(over_one, seed):
    model, batch = drawn_model(np.random.default_rng(seed), over_one)
    program, wanted = structure(model, batch=batch).program({})[0], dense(model, batch)
    assert not np.isfinite(batch.inputs["start"]).all() or seed
    for given_rows in (program.run(batch), program.exact(batch)):
        np.testing.assert_allclose(given_rows, wanted, rtol=1e-5, atol=1e-5)
    verify_steps(program, [batch])


def test_a_saved_program_knows_what_its_inputs_may_hold(tmp_path):
    """A file that says of a port what none is, is refused."""
    model = START @ over(weight(DISTANCES + 1), monoids.min)
    program, batch = program_of(model, [1, np.inf, 2])
    program.save(tmp_path / "p")
    loaded = Program.load(tmp_path / "p")
    assert np.array_equal(loaded.run(batch), program.run(batch)) and loaded.signature == program.signature
    assert "start: V × 3 float32 or inf" in str(loaded)
    for wrong in (["nan"], [], ["inf", "inf"], "inf", [1], ["inf", "-inf"]):
        with pytest.raises(ValueError, match="start: "):
            Port.read("start", ["V", 3, 1, "float32", wrong])


def test_a_model_of_infinite_inputs_is_explored_and_optimized(savings_known):
    batch = Batch(inputs={"start": np.array([[0, np.inf, np.inf], [np.inf, 0, 1]], np.float32)})
    model = MODEL @ over(ROADS, minplus)
    wanted = dense(model, batch)
    assert np.array_equal(om.explore(model, batch, machine="A100").best.run(batch), wanted)
    found = om.optimize(model, workload=batch, machine=standin.machine(), rounds=3)
    assert np.array_equal(found.best.program.run(batch), wanted)


def test_a_kernel_that_is_wrong_for_infinite_numbers_alone_is_reported(monkeypatch):
    """No batch that was given has any: the verification puts them where they may be."""
    program, _ = program_of(MODEL, [1, 2, 3])
    [batch] = infinite_batches(program, [Batch(inputs={"start": np.ones((9, 3), np.float32)})])
    assert np.isinf(batch.inputs["start"]).any() and not np.isinf(batch.inputs["start"]).all()
    call = program.schedule.calls[-1]
    right = call.kernel.function

    def wrong(out, **operands):
        operands = {
            name: np.nan_to_num(each, posinf=0) if isinstance(each, np.ndarray) else each
            for name, each in operands.items()
        }
        right(out, **operands)

    monkeypatch.setattr(call.kernel, "function", wrong)
    with pytest.raises(VerificationError, match="its result differs from the reference of its kernel"):
        verify_steps(program, [Batch(inputs={"start": np.ones((9, 3), np.float32)})])
