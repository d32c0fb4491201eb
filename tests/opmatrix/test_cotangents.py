"""Pullbacks of kernels against finite differences of their meanings, and cotangents of whole programs."""

from types import SimpleNamespace

import numpy as np
import pytest
from alone import alone
from checkpoints import CONFIG, arrays
from programs import bert_program, fused_layer, unfused_layer

from formats import Dense
from formats.core.activation import COMPILED
from formats.core.epilogue import Epilogue
from formats.core.stage import NORMS, STAGES, NoPullback, Stage, pullback, reference
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.cotangents import checkpoints, pull_back, random_signs
from opmatrix.runtime.declarations.meanings import widen_arguments
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step

RAGGED = Batch([[3, 4, 5, 6, 7], [8], list(range(9, 26))])
DIFFERENTIABLE = [name for name, kernel in KERNELS.items() if kernel.pullback]
STEP = 1e-6


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def slopes(kernel, arguments, names, g, rng):
    """The change of the meaning along a direction of an operand, by differences and by its cotangent."""
    parts = kernel.pullback(arguments, g)
    for name in names:
        x = getattr(arguments, name)
        along = rng.standard_normal(x.shape) * (x != 0)  # a share that is 0 names no expert
        ends = [kernel.reference(kernel.record(**{**vars(arguments), name: x + way * STEP * along})) for way in (1, -1)]
        change = (ends[0] - ends[1]) / (2 * STEP)
        part = parts.get(name, np.zeros((len(g), *x.shape)))  # scores that choose have none
        yield name, [(each * change).sum() for each in g], [(each * along).sum() for each in part]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_pullback_is_the_transpose_of_the_derivative(name, rng):
    program, kernel = alone(name, rng), KERNELS[name]
    steps = [at for at, step in enumerate(program.steps) if step.kernel == name]
    assert steps
    walked = [*program.schedule.walk(RAGGED)]
    for at in steps:
        call, arguments, result = walked[at]
        wide = widen_arguments(kernel, arguments, RAGGED, rounded=False)
        g = rng.standard_normal((3, *result.shape))
        for operand, wanted, got in slopes(kernel, wide, [*call.values], g, rng):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=f"{name}: {operand}")
        narrow = kernel.pullback(kernel.record(**{**arguments, "batch": RAGGED}), g.astype(np.float32))
        for operand, part in kernel.pullback(wide, g).items():
            assert narrow[operand].dtype == np.float32, "float32 operands give float32 cotangents"
            np.testing.assert_allclose(narrow[operand], part, rtol=1e-3, atol=1e-3 * abs(part).max())


# ---- stages


def test_every_shipped_stage_and_compiled_activation_has_a_derivative(rng):
    assert all(stage.pullback for stage in STAGES) and all(record.derivative for record in COMPILED.values())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ["", *COMPILED])
def test_an_epilogue_is_pulled_back_stage_by_stage(norm, activation, rng):
    y, along = abs(rng.standard_normal((4, 6))) + 0.5, rng.standard_normal((4, 6))
    rows = {name: rng.standard_normal((4, 6)) for name in ("times", "residual")}
    vectors = {name: rng.standard_normal(6) for name in ("bias", "gain", "shift")}
    vectors["bias"] = abs(vectors["bias"])  # the square root of rsqrt
    epilogue = SimpleNamespace(**rows, **vectors, activation=activation, norm=norm, eps=0.1)
    g = rng.standard_normal((2, 4, 6))
    of_y, beside = pullback(y, epilogue, g)

    def slope(one, other):
        return [(each * (one - other)).sum() / (2 * STEP) for each in g]

    ends = [reference(y + way * STEP * along, epilogue) for way in (1, -1)]
    np.testing.assert_allclose([(each * along).sum() for each in of_y], slope(*ends), rtol=1e-5, atol=1e-5)
    for name, row in rows.items():
        ends = [reference(y, SimpleNamespace(**{**vars(epilogue), name: row + way * STEP * along})) for way in (1, -1)]
        np.testing.assert_allclose([(each * along).sum() for each in beside[name]], slope(*ends), rtol=1e-5, atol=1e-5)


def test_a_stage_and_an_activation_without_a_derivative_say_so(monkeypatch):
    class cubed(Stage, bias="columns"):
        operations = 2

        def means(y, e):
            return y**3

        def bound(y, error, value, e, rough):
            return error

    rows = np.ones((2, 3))
    monkeypatch.setattr("formats.core.stage.STAGES", (cubed,))
    with pytest.raises(NoPullback, match="stage cubed"):
        pullback(rows, Epilogue(bias=np.ones(3, np.float32)), rows[None])
    monkeypatch.undo()
    monkeypatch.setitem(COMPILED, "relu", COMPILED["relu"]._replace(derivative=None))
    with pytest.raises(NoPullback, match="activation relu"):
        pullback(rows, Epilogue(activation="relu"), rows[None])


# ---- programs


@pytest.mark.parametrize("layer", [fused_layer, unfused_layer])
def test_cotangents_of_a_program_are_slopes_of_its_output(layer, rng):
    """Of every step: a change of its result changes the output, along each direction, as its cotangent says."""
    program = bert_program(CONFIG, arrays(CONFIG), layer, Dense.pack)
    schedule, wanted = program.schedule, program.run(RAGGED)
    directions = random_signs(rng, 3, wanted.shape)
    pulled = [*pull_back(program, RAGGED, directions, range(len(program.steps)))]
    assert [one.step for one in pulled] == [*reversed(range(len(program.steps)))]
    for one in pulled:
        along = rng.standard_normal(one.result.shape).astype(np.float32)
        step = np.float32(1e-2 * np.linalg.norm(one.result) / np.linalg.norm(along))
        ends = []
        for way in (1, -1):
            values = []
            for _ in schedule.walk(RAGGED, values, one.step + 1):
                pass
            values[one.step] = one.result + way * step * along
            ends.append(schedule.resumed(values, RAGGED).astype(np.float64))
        found = [(each * along).sum() for each in one.cotangents]
        slopes = [(each * (ends[0] - ends[1])).sum() / (2 * step) for each in directions]
        np.testing.assert_allclose(found, slopes, rtol=5e-2, atol=5e-3 * abs(wanted).max() / step)


def test_checkpoints_hold_live_values_alone(rng):
    program = bert_program(CONFIG, arrays(CONFIG), unfused_layer, Dense.pack)
    parts = checkpoints(program.schedule, RAGGED)
    assert [one.start for one in parts][1:] == [one.stop for one in parts][:-1]
    assert parts[-1].stop == len(program.steps) and len(parts) > 2
    assert max(sum(value is not None for value in one.values) for one in parts) <= 4


def test_a_kernel_without_a_pullback_is_named_after_the_steps_behind_it(rng):
    program = alone("interpret", rng)
    last = len(program.steps) - 1
    directions = random_signs(rng, 2, program.run(RAGGED).shape)
    pulled = pull_back(program, RAGGED, directions, range(last + 1))
    assert next(pulled).step == last
    with pytest.raises(NoPullback, match=f"step {program.steps[last].output} = interpret"):
        next(pulled)


def test_steps_that_nothing_reads_and_directions_without_numbers(rng):
    """A step that the output does not depend on is left out; cotangents that are not finite are refused by name."""
    table = {"E": Dense.pack(rng.standard_normal((26, 6)).astype(np.float32))}
    first = Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x")
    program = Program([first, Step("scale", {"x": "x"}, {"factor": 2.0}, "y")], table, "x")
    directions = random_signs(rng, 2, program.run(RAGGED).shape)
    assert [one.step for one in pull_back(program, RAGGED, directions, (0, 1))] == [0]
    assert [*pull_back(program, RAGGED, directions, ())] == []
    with pytest.raises(NoPullback, match="step x: the cotangents"):
        [*pull_back(program, RAGGED, directions * np.inf, (0,))]
