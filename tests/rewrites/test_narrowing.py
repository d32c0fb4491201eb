"""Attention in bfloat16: only between products that round, only where it is quicker, and then within its bound."""
import numpy as np
import pytest
from searched import RAGGED, Round, found, relative

from formats import BF16, Format
from opmatrix.program import Program
from rewrites.lower.narrowing import narrowed
from rewrites.lower.price import Prices
from rewrites.verify import verify_steps


class Narrow(Round):
    """bfloat16 takes so many times as long."""

    def __init__(self, times): self.times = times
    def seconds(self, kernel, **size):
        return (self.times if kernel.endswith(".bf16") else 1.0) * super().seconds(kernel, **size)


def stored(program, form):
    """The program with all weights that are multiplied by in another format."""
    names = {step.operands["weight"] for step in program.steps if step.kernel == "linear"}
    constants = {name: form.pack(form.fit(each.unpack())) if name in names else each
                 for name, each in program.constants.items()}
    return Program(program.steps, constants, program.output, program.meta)


def types(program):
    return {step.attributes.get("number_type", "float32") for step in program.steps if step.kernel == "attention"}


@pytest.fixture(scope="module")
def exact(): return found()[1]["exact"][1]


def test_exact_programs_stay_as_they_are(exact):
    assert narrowed(exact, Prices(Narrow(0.1), RAGGED.extents())) is exact


def test_attention_after_products_that_round_is_narrowed_where_that_is_quicker(exact):
    rounded = stored(exact, BF16)
    assert narrowed(rounded, Prices(Narrow(2.0), RAGGED.extents())) is rounded
    program = narrowed(rounded, Prices(Narrow(0.5), RAGGED.extents()))
    assert types(rounded) == {"float32"} and types(program) == {"bf16"}
    assert 0 < relative(program.run(RAGGED), rounded.run(RAGGED)) < 2e-2
    assert verify_steps(program, [RAGGED])["nearest"] <= 1


def test_exact_products_keep_it_exact(exact):
    rounded = stored(exact, BF16)
    reads = {name for step in exact.steps if step.kernel == "linear" for name in [step.operands["weight"]]}
    mixed = {name: exact.constants[name] if name in reads else each for name, each in rounded.constants.items()}
    assert types(narrowed(Program(exact.steps, mixed, exact.output),
                          Prices(Narrow(0.5), RAGGED.extents()))) == {"float32"}


def test_it_is_saved_with_the_program(exact, tmp_path):
    program = narrowed(stored(exact, BF16), Prices(Narrow(0.5), RAGGED.extents()))
    program.save(tmp_path / "narrow")
    again = Program.load(tmp_path / "narrow")
    assert types(again) == {"bf16"} and np.array_equal(again.run(RAGGED), program.run(RAGGED))
    assert any(isinstance(each, Format) and each.rounds for each in again.constants.values())
