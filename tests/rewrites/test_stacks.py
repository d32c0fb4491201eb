"""Matrices of heads in storage formats: proposed, measured, budgeted, stored and saved like any weight."""

from functools import cache

import numpy as np
import pytest
from searched import Round, relative

from formats import FORMATS, Q4_1, Half, Int8, Stacked, can_stack
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import gelu, heads, total, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import formula
from opmatrix.runtime.program import Program, Step
from opmatrix.spectra import Limits
from opmatrix.spectra.gram import Seen
from rewrites.approximate.budgets import within
from rewrites.approximate.proposals import propose_methods
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method
from rewrites.lowering.price import Prices
from rewrites.lowering.representations import Representable
from rewrites.search.emit import promise
from rewrites.search.fit import Fitter, head_squares
from rewrites.search.search import SearchSpace, cheapest
from rewrites.verify import verify_steps
from rewrites.verify.programs import unrounded, verify_structure

HEADS, WIDE, INNER, SIDE, WORDS = 4, 64, 96, 48, 40
STACKABLE = [F for F in FORMATS.values() if can_stack(F)]
RNG = np.random.default_rng(0)
FIT, PROBE, HELD_OUT = (Batch([RNG.integers(0, WORDS, count) for count in (7, 1, 12, 9)]) for _ in range(3))


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32)


STACK = normal(HEADS, INNER, SIDE, seed=2)


def block_diagonal(stack=None):
    """A layer in which each head has a matrix of its own, behind a table."""
    up, down = normal(WIDE, HEADS * INNER, seed=1), normal(HEADS * SIDE, WIDE, seed=3)
    stack = weight(STACK) if stack is None else stack
    layer = formula(lambda x: x + (x @ weight(up) @ gelu @ heads(HEADS) @ stack @ heads(HEADS).T @ gelu) @ weight(down))
    return weight(normal(WORDS, WIDE, seed=4)) @ layer


def mixture():
    """A layer of experts that all rows ask, behind a table."""
    gate = normal(WIDE, HEADS, seed=3)
    layer = formula(
        lambda x: (
            x
            + (
                (x @ weight(normal(HEADS, WIDE, INNER, seed=5)) @ gelu)
                @ weight(normal(HEADS, INNER, WIDE, seed=6))
                * (x @ weight(gate) @ heads(HEADS))
            )
            @ total
        )
    )
    return weight(normal(WORDS, WIDE, seed=4)) @ layer


@cache
def proposed(made=block_diagonal):
    """The exact program of a model, and its choices within an error."""
    space = SearchSpace(made(), EXACT_LAWS, Round(), FIT.extents())
    exact = cheapest(space)
    program, emitter = exact.program({})
    choices = propose_methods(
        space, exact, program, emitter, Representable(), FIT, PROBE, Limits(error=0.5, narrowest=8), measure="all"
    )
    return space.model, exact, program, emitter, choices


def stacks(program):
    return {name: each for name, each in program.constants.items() if isinstance(each, Stacked)}


def read_by(program, kernel):
    """The stack that a kernel of a program reads."""
    [step] = [step for step in program.steps if step.kernel == kernel]
    return program.constants[step.operands["weight"]]


def test_exact_programs_keep_a_stack_in_panels():
    model, exact, program, *_ = proposed()
    assert read_by(program, "headwise").name == "packed"
    assert relative(program.run(HELD_OUT), dense(model, HELD_OUT)) < 1e-6
    assert abs(exact.memory - program.stored_bytes) < 64


def test_errors_of_a_stack_are_measured_alone():
    """A method's error is the squared change of the output by that stack alone, told anew."""
    _, _, program, _, choices = proposed()
    stack, name = read_by(program, "headwise"), next(iter(stacks(program)))
    [leaf] = [key for key in choices.measured if len(key) == 1 and next(iter(key)) == Data(STACK).key]
    methods = {method.format: method for method in choices.measured[leaf]}
    assert {"half", "bf16", "int8"} & methods.keys() and all(can_stack(FORMATS[name]) for name in methods)
    wanted = program.run(PROBE)
    for method in methods.values():
        if method.fit != "plain":
            continue
        instead = Stacked.approximate(FORMATS[method.format], stack.unpack(), **dict(method.parameters))
        changed = Program(program.steps, {**program.constants, name: instead}, program.output).run(PROBE)
        assert method.error == pytest.approx(relative(changed, wanted) ** 2, rel=1e-3)


def test_the_smallest_program_within_an_error_has_its_stack_in_bytes(tmp_path):
    model, _, _, _, choices = proposed()
    found = choices.choose(0.02, weights=(1e-9, 1, 0))
    program = choices.program(found, {})
    emitter, stack = choices.sources[program], read_by(program, "headwise")
    assert stack.form in (Int8, FORMATS["balancedint8"]) and stack.shape == (HEADS, INNER, SIDE)
    assert stack.nbytes == HEADS * stack.form.bytes.subs(stack.sizes)
    assert abs(found.memory - program.stored_bytes) < 64
    assert found.error**0.5 <= 0.02
    assert 1e-4 < relative(program.run(HELD_OUT), dense(model, HELD_OUT)) < 1.5 * found.error**0.5
    assert verify_steps(program, [HELD_OUT])["nearest"] <= 1
    verify_structure(program, [HELD_OUT], unrounded(found, emitter), [dense(model, HELD_OUT)], model)
    program.save(tmp_path / "p")
    again = Program.load(tmp_path / "p")
    assert again.hash == program.hash and np.array_equal(again.run(HELD_OUT), program.run(HELD_OUT))
    assert read_by(again, "headwise").meta() == stack.meta() and str(again) == str(program)


def test_prices_of_programs_are_those_of_the_search():
    *_, choices = proposed()
    for weights in (1, 0, 0), (1e-9, 1, 0):
        found = choices.choose(0.02, weights=weights)
        seconds = sum(Round().seconds(kernel, **sizes) for kernel, sizes in found.program({})[0].cost(FIT.extents()))
        assert found.time == pytest.approx(seconds, rel=1e-9)


# ---- one kernel, any format


@pytest.mark.parametrize("alike", [False, True], ids=("a value each", "one value"))
@pytest.mark.parametrize("F", STACKABLE, ids=lambda F: F.name)
def test_headwise_reads_any_stack(F, alike, tmp_path):
    """Recorded, in groups and alone; steps are their formats' meanings, within their bounds."""
    count = 1 if alike else 3
    stack = Stacked.approximate(F, normal(3, 32, 40))
    steps = [
        Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x"),
        Step("heads", {"x": "x"}, {"heads": count}, "h"),
        Step("headwise", {"x": "h", "weight": "stack"}, {}, "y"),
        Step("join", {"x": "y"}, {}, "z"),
    ]
    table = FORMATS["dense"].pack(normal(WORDS, 32 * count, seed=5))
    program = Program(steps, {"table": table, "stack": stack}, "z")
    assert [type(each).__name__ for each in program.schedule.segments] == ["Recorded"]
    batch = Batch([RNG.integers(0, WORDS, count) for count in (1, 30, 200, 90)])
    assert verify_steps(program, [batch])["nearest"] <= 1
    x = table.unpack()[np.concatenate([row.tokens for row in batch])].reshape(batch.rows, count, 32)
    assert np.array_equal(program.run(batch), stack.matmul(x).reshape(batch.rows, -1))
    one = Batch([next(iter(batch)).tokens])
    assert np.array_equal(program.run(one), program.run(batch)[:1])
    program.save(tmp_path / "p")
    assert np.array_equal(Program.load(tmp_path / "p").run(batch), program.run(batch))
    assert program.cost(batch.extents())[-3:] == 3 * [
        (f"linear.{F.name}", {"T": batch.rows, **{str(size): value for size, value in stack.sizes.items()}})
    ]


def test_a_stack_is_no_weight_of_rows():
    stack = Stacked.approximate(Half, normal(3, 32, 40))
    table = FORMATS["dense"].pack(normal(WORDS, 32))
    steps = [
        Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x"),
        Step("linear", {"x": "x", "weight": "stack"}, {}, "y"),
    ]
    with pytest.raises(ValueError, match=r"step 1, y = linear: .* weight is 3 × half\(32×40\); it must be Weight"):
        Program(steps, {"table": table, "stack": stack}, "y")


# ---- how it is fitted and promised


def test_each_head_is_fitted_to_its_own_inputs():
    """Where all heads have one value its norms serve all; of what lies within a kernel nothing is known."""
    W = normal(2, 64, 16).astype(np.float64)
    x = normal(90, 128) * np.linspace(1, 9, 128, dtype=np.float32)
    method, key = Method("balancedint8", (("group", 65536),), "wanda"), (0, 1, "stack")
    own = Fitter({key: Seen.by_columns(x)}).store(W, method, key)
    for e, squares in enumerate(head_squares(Seen.of(x), W)):
        alone = FORMATS["balancedint8"].approximate(W[e].astype(np.float32), scale=np.sqrt(squares))
        assert np.array_equal(own[e].unpack(), alone.unpack())
    alike = Fitter({key: Seen.of(x[:, :64])}).store(W, method, key)
    squares = np.sqrt(Seen.of(x[:, :64]).diagonal)
    assert np.array_equal(
        alike[1].unpack(), FORMATS["balancedint8"].approximate(W[1].astype(np.float32), scale=squares).unpack()
    )
    unknown = Fitter({key: Seen.of(x[:, :50])}).store(W, method, key)
    assert np.array_equal(unknown[1].unpack(), FORMATS["balancedint8"].approximate(W[1].astype(np.float32)).unpack())


def test_what_is_seen_by_columns_is_the_diagonal():
    x = normal(300, 24)
    assert np.allclose(Seen.by_columns(x).diagonal, Seen.of(x).diagonal, rtol=1e-12)
    assert not Seen.by_columns(x).whole and Seen.of(x).whole


def test_promised_stacks_have_bytes():
    assert promise((8, 64, 32), Method("int8")).nbytes == 8 * (64 * 32 + 4 * 32)
    assert promise((8, 64, 32)).shape == (8, 64, 32) and isinstance(promise((8, 64, 32)), np.ndarray)


@pytest.mark.parametrize("form", ["dense", "packed", "int8"])
def test_prices_of_stacks_are_those_of_their_heads(form):
    prices = Prices(Round(), PROBE.extents())
    seconds, size = prices.stack(form, 6, 64, 32)
    one = FORMATS[form].bytes.subs(FORMATS[form].expected(64, 32))
    assert size == float(6 * one)
    assert seconds == (
        Round().seconds("headwise", T=PROBE.rows, h=6, n=64, p=32)
        if form == "dense"
        else 6 * Round().seconds(f"linear.{form}", T=PROBE.rows, n=64, p=32)
    )


def test_blocks_of_a_file_stay_what_they_are():
    rng = np.random.default_rng(7)
    blocks = np.zeros((HEADS, SIDE, INNER // 32), [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
    blocks["d"], blocks["m"] = rng.normal(size=(2, *blocks.shape)) / 40
    blocks["q"] = rng.integers(0, 256, blocks["q"].shape)
    numbers = np.stack([Q4_1.of_blocks(each).unpack().T for each in blocks])
    model = block_diagonal(weight(Data(numbers, "down", blocks).T))
    space = SearchSpace(model, EXACT_LAWS, Round(), FIT.extents())
    found = within(space, Representable(4), weights=(1e-9, 1, 0))
    program, _ = found.program({})
    stack = read_by(program, "headwise")
    assert stack.form is Q4_1 and all(np.array_equal(stack[e].unpack(), numbers[e].T) for e in range(HEADS))
    assert relative(program.run(HELD_OUT), dense(model, HELD_OUT)) < 1e-6
