"""Level 3 of verification: programs that are what they say pass, those that are not are refused."""

from dataclasses import replace

import numpy as np
import pytest
from searched import RAGGED, found, relative, structure

from formats import CSR, Dense, kernels
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import given, tanh, weight
from opmatrix.algebra.oracles import dense
from opmatrix.runtime.program import Program, Step
from rewrites.lowering.lower import Method
from rewrites.verify import (
    Errors,
    VerificationError,
    unrounded,
    verify_approximate,
    verify_exact,
    verify_steps,
    verify_structure,
)
from rewrites.verify.programs import Meant, compare_bits, run_groups


@pytest.mark.parametrize("kind", ["imported", "fused", "exact"])
def test_an_exact_program_passes(kind):
    operator, made = found()
    structure_, program, emitter = made[kind]
    constants = unrounded(structure_, emitter)
    assert constants.keys() == program.constants.keys()
    said = verify_exact(program, operator, [RAGGED, Batch([[1]])], made["imported"][1], constants)
    assert said["float64"]["relative"] < 1e-14 and said["float32"]["relative"] < 1e-6 and said["float32"]["rows"] == 22
    assert said["steps"]["count"] == len(program.steps) and 0 < said["steps"]["nearest"] <= 1


def test_constants_are_rounded_once():
    operator, made = found()
    structure_, program, emitter = made["exact"]
    for name, exact in unrounded(structure_, emitter).items():
        kept = program.constants[name]
        stored = kept.unpack() if hasattr(kept, "unpack") else kept
        assert exact.dtype == np.float64 and np.array_equal(exact.astype(np.float32), stored)
    assert relative(program.exact(RAGGED), dense(operator, RAGGED)) > 1e-9  # with the stored ones, rounding shows


def changed(program, at, **new):
    """The program with another step at that place."""
    steps = list(program.steps)
    steps[at] = replace(steps[at], **new)
    return Program(steps, program.constants, program.output, dict(program.meta))


def first(program, kernel, **having):
    return next(
        i
        for i, step in enumerate(program.steps)
        if step.kernel == kernel
        and all(name in step.operands or name in step.attributes for name in having.get("names", ()))
    )


def test_a_program_that_is_not_the_model_is_refused():
    operator, made = found()
    structure_, program, emitter = made["exact"]
    constants, imported = unrounded(structure_, emitter), made["imported"][1]
    at = first(program, "linear", names=["bias"])
    operands = {name: ref for name, ref in program.steps[at].operands.items() if name != "bias"}
    embed = first(program, "embed")
    for wrong in (
        changed(program, at, operands=operands),
        changed(program, first(program, "attention"), attributes={"scale": 0.9}),
        changed(program, embed, attributes=program.steps[embed].attributes | {"eps": 1e-4}),
    ):
        said = r"level 3: program exact .*evaluated in float64 it differs from the model"
        with pytest.raises(VerificationError, match=said) as caught:
            verify_exact(wrong, operator, [RAGGED], imported, constants)
        assert caught.value.values["worst_row"] > 1e-10


def test_a_program_that_rounds_too_much_is_refused():
    """Half as storage is exact to read, and rounds more than float32."""
    operator, made = found()
    structure_ = structure(operator, methods=lambda lowering, use: (Method("half"),))
    program, emitter = structure_.program({"model": "half"})
    with pytest.raises(VerificationError, match="it rounds more than the imported program"):
        verify_exact(program, operator, [RAGGED], made["imported"][1], unrounded(structure_, emitter))


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("pointwise", lambda x, out, e: np.copyto(out, replace(e, activation="").reference(x))),
        ("attention", lambda q, k, v, starts, out, *_, **options: np.copyto(out, v)),
        ("softmax", lambda x, starts, heads_, out, reach: np.copyto(out, np.exp(x))),
        ("values", lambda p_, v, starts, out: np.copyto(out, v)),
        ("scores", lambda q, k, starts, out, scale, bias: kernels.__getattr__("scores")(q, k, starts, out, 1.0, bias)),
        ("embed", lambda fields, out, e: np.copyto(out, 0.0)),
    ],
)
def test_a_wrong_kernel_is_found_at_its_step(monkeypatch, name, wrong):
    program = found()[1]["fused" if name == "attention" else "imported"][1]
    monkeypatch.setattr(kernels, name, wrong)
    with pytest.raises(
        VerificationError, match=rf"level 3: h\d+ = {name}\(.*differs from the reference of its kernel"
    ) as caught:
        verify_steps(program, [RAGGED])
    assert caught.value.values["off"] > caught.value.values["allowed"]


def test_a_kernel_that_is_only_a_little_off_is_found(monkeypatch):
    """A product whose every entry is off by a thousandth of itself."""
    program, right = found()[1]["exact"][1], Dense.matmul

    def matmul(self, x, out=None, epilogue=None):
        found_ = right(self, x, out, epilogue)
        found_ *= np.float32(1.001)
        return found_

    monkeypatch.setattr(Dense, "matmul", matmul)
    with pytest.raises(VerificationError, match=r"= linear.*differs from the reference of its kernel"):
        verify_steps(program, [RAGGED])


def test_what_float32_does_not_tell_from_nothing_is_no_fault(rng):
    """A product times factors, all of them numbers like any other, that is below its smallest number."""
    x, W, r = (rng.normal(size=shape) * 2.0**-50 for shape in ((7, 12), (12, 3), (7, 3)))
    batch = Batch([[0]] * 7, inputs={"x": x.astype(np.float32), "r": r.astype(np.float32)})
    term = given("x", 12, "T") @ weight(W) * given("r", 3, "T")
    program = structure(term, batch=batch).program({})[0]
    assert 0 < abs(program.exact(batch)).max() < 2**-145
    verify_steps(program, [batch])


def test_a_number_that_is_none_is_found(monkeypatch):
    monkeypatch.setattr(kernels, "pointwise", lambda x, out, e: np.copyto(out, np.nan))
    with pytest.raises(VerificationError, match="= pointwise"):
        verify_steps(found()[1]["imported"][1], [RAGGED])


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    "meant, found, right",
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (1.0, 1.0, True),
        (NAN, 0.0, False),
        (1.0, NAN, False),
        (INF, NAN, False),
        (NAN, INF, False),
        (INF, -INF, False),
        (INF, 1e38, False),
        (0.0, 1.0, False),
    ],
)
def test_what_is_no_number_is_so_on_both_sides(meant, found, right):
    """0/0 of a sentence is what its kernel means there, and no fault; a number in its place is one, and so is what is
    none in the place of a number."""
    numbers = np.array([[0.0, meant], [2.0, 3.0]])
    step = Meant(numbers, np.where(np.isnan(numbers), np.nan, 1e-6), None)
    own = np.array([[0.0, found], [2.0, 3.0]], np.float32)
    if right:
        assert 0 <= step.compared("", own, 2) < 1
    else:
        with pytest.raises(VerificationError, match=r"differs from the reference of its kernel.*entry \[0, 1\]"):
            step.compared("", own, 2)


def test_steps_of_large_scores_stay_within_their_bounds():
    """Shares that are flushed to zero, and maxima far apart."""
    table = Dense.pack(20 * np.random.default_rng(0).standard_normal((41, 24)).astype(np.float32))
    steps = [
        Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"),
        Step("heads", {"x": "x"}, {"heads": 3}, "h"),
        Step("scores", {"q": "h", "k": "h"}, {"scale": 0.1}, "s"),
        Step("softmax", {"x": "s"}, {}, "p"),
        Step("values", {"p": "p", "v": "h"}, {}, "v"),
        Step("attention", {"q": "h", "k": "h", "v": "v"}, {"scale": 0.1}, "a"),
        Step("join", {"x": "a"}, {}, "j"),
        Step("scale", {"x": "j"}, {"factor": 0.3}, "z"),
    ]
    said = verify_steps(Program(steps, {"E": table}, "z"), [RAGGED])
    assert said["count"] == 8 and said["nearest"] <= 1


def test_an_approximate_program_keeps_its_word():
    operator, made = found()
    program, _ = made["exact"][0].program({"model": "half"}, lambda part, use, method: Method("half"))
    wanted = [dense(operator, RAGGED)]
    error = relative(program.run(RAGGED), wanted[0])
    said = verify_approximate(program, operator, [RAGGED], 1.01 * error)
    assert abs(said["float32"]["relative"] / error - 1) < 1e-6
    assert said["float32"]["worst_row"] >= error and said["stated"] > error
    with pytest.raises(VerificationError, match="its error is above the stated one"):
        verify_approximate(program, operator, [RAGGED], 0.99 * error, wanted)


@pytest.mark.parametrize("form", ["half", "bf16", "int8", "int4"])
def test_the_structure_of_an_approximate_program_is_the_model(form):
    """Read with the numbers from before anything was rounded; a lost bias, which its error could hide, is found."""
    operator, made = found()
    structure_ = made["exact"][0]

    def decide(part, use, method):
        return (
            method
            if use.layout == "stack" or use.x in structure_.lowerings[part].graph.facts["given"]
            else Method(form)
        )

    program, emitter = structure_.program({}, decide)
    at = [i for i, step in enumerate(program.steps) if step.kernel == "attention"]
    for i in at if form != "half" else ():
        program = changed(program, i, attributes=program.steps[i].attributes | {"number_type": "bf16"})
    constants, wanted = unrounded(structure_, emitter), [dense(operator, RAGGED)]
    assert constants.keys() == program.constants.keys()
    assert relative(program.exact(RAGGED), wanted[0]) > 1e-5
    assert verify_structure(program, [RAGGED], constants, wanted)["relative"] < 1e-12
    at = first(program, "linear", names=["bias"])
    operands = {name: ref for name, ref in program.steps[at].operands.items() if name != "bias"}
    with pytest.raises(VerificationError, match="evaluated in float64 it differs from the model"):
        verify_structure(changed(program, at, operands=operands), [RAGGED], constants, wanted)


def test_a_run_of_kernels_that_sum_by_rows_is_its_steps(rng):
    """csr sums in another order for few rows, and a batch may be cut into groups of few."""
    W = rng.standard_normal((32, 64), np.float32) * (rng.random((32, 64)) < 0.25)
    constants = {"E": Dense.pack(rng.standard_normal((41, 32), np.float32)), "W": CSR.pack(W.astype(np.float32))}
    program = Program(
        [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"), Step("linear", {"x": "x", "weight": "W"}, {}, "y")],
        constants,
        "y",
    )
    assert (
        verify_steps(program, [RAGGED, Batch([[i % 41 for i in range(n)] for n in (7, 7, 5, 90, 200)])])["count"] == 2
    )


def test_errors_are_of_the_whole_and_of_the_worst_row():
    wanted = [np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[1.0, 0.0]])]
    got = [wanted[0] + [[0.0, 0.0], [0.0, 1.0]], wanted[1]]
    errors = Errors.of(got, wanted)
    assert errors == Errors(1 / np.sqrt(30), 0.5, 3)
    assert Errors.of([np.full((2, 2), np.nan), wanted[1]], wanted).relative == np.inf
    same = [np.array([[3.0, INF], [NAN, -INF]]), wanted[1]]
    assert Errors.of(same, same) == Errors(0, 0, 3)
    for row in ([3.0, -INF], [3.0, 0.0], [3.0, NAN]):
        assert Errors.of([np.array([row, same[0][1]]), wanted[1]], same).relative == np.inf


@pytest.mark.parametrize("space, rows", [("T", 24), ("S", 6)])
def test_groups_of_a_run_have_their_rows_of_inputs(space, rows):
    """Of tokens and of sequences: bits are compared on each number of threads."""
    rng = np.random.default_rng(0)
    operator = given("x", 4, space) @ weight(rng.normal(size=(4, 3))) @ tanh
    batch = Batch([rng.integers(0, 5, n) for n in (3, 5, 4, 4, 6, 2)], inputs={"x": rng.normal(size=(rows, 4))})
    program = structure(operator, batch=batch).program({})[0]
    for workers in (1, 2, 3):
        parts = run_groups(program, batch, workers)
        assert len(parts) == workers, "as many groups as workers"
        assert np.array_equal(np.concatenate([part.inputs["x"] for part in parts]), batch.inputs["x"])
        compare_bits(program, batch, workers)
    assert verify_steps(program, [batch])["nearest"] <= 1
