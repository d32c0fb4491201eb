"""Attention in bfloat16, and caches: only between products that round, only where it is quicker, and then within its
bound."""

import numpy as np
import pytest
from searched import RAGGED, Round, found, relative
from speakers import SHORT, llama

from formats import BF16, Format
from opmatrix.inference.cached import cached
from opmatrix.runtime.program import Program
from rewrites.lowering.mixed import priced
from rewrites.lowering.narrowing import held_narrow, most_held, narrowed
from rewrites.lowering.phased import Generation
from rewrites.lowering.price import Prices
from rewrites.verify import verify_steps


class Narrow(Round):
    """bfloat16 takes so many times as long."""

    def __init__(self, times):
        self.times = times

    def seconds(self, kernel, **size):
        return (self.times if kernel.endswith(".bf16") else 1.0) * super().seconds(kernel, **size)


def stored(program, form):
    """The program with all weights that are multiplied by in another format."""
    names = {step.operands["weight"] for step in program.steps if step.kernel == "linear"}
    constants = {
        name: form.pack(form.fit(each.unpack())) if name in names else each for name, each in program.constants.items()
    }
    return Program(program.steps, constants, program.output, program.meta)


def types(program):
    return {step.attributes.get("number_type", "float32") for step in program.steps if step.kernel == "attention"}


@pytest.fixture(scope="module")
def exact():
    return found()[1]["exact"][1]


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
    assert types(narrowed(Program(exact.steps, mixed, exact.output), Prices(Narrow(0.5), RAGGED.extents()))) == {
        "float32"
    }


def test_it_is_saved_with_the_program(exact, tmp_path):
    program = narrowed(stored(exact, BF16), Prices(Narrow(0.5), RAGGED.extents()))
    program.save(tmp_path / "narrow")
    again = Program.load(tmp_path / "narrow")
    assert types(again) == {"bf16"} and np.array_equal(again.run(RAGGED), program.run(RAGGED))
    assert any(isinstance(each, Format) and each.rounds for each in again.constants.values())


# ---- caches


def request(times):
    """Prices of a request whose attention over caches of bfloat16 takes so many times as long."""
    return priced(Narrow(times), Generation(6, 4).phases([]))


@pytest.fixture(scope="module")
def speaks():
    return stored(llama().program, BF16)


@pytest.fixture(scope="module")
def halved(speaks):
    return narrowed(speaks, request(0.5))


def numbers(program):
    return {port.number for port in program.inputs}


def test_caches_are_narrow_behind_products_that_round_where_that_is_quicker(speaks, halved):
    """Exact programs keep float32."""
    exact = llama().program
    assert narrowed(exact, request(0.5)) is exact and narrowed(speaks, request(2.0)) is speaks
    assert numbers(halved.decoder) == {"bf16"} and numbers(speaks.decoder) == {"float32"}
    assert "narrow" not in {step.kernel for step in halved.decoder.steps}, "a session rounds what it puts into caches"
    assert halved.decoder.schedule.cached == speaks.decoder.schedule.cached / 2
    layers = [step for step in speaks.steps if step.kernel in ("attention", "attend_once")]
    count, saved = held_narrow(halved, request(0.5))
    assert (count, held_narrow(speaks, request(0.5))) == (len(layers), (0, 0)) and saved == most_held(
        speaks, request(0.5)
    ) > 0
    assert most_held(speaks, request(2.0)) == most_held(speaks, Prices(Narrow(0.5), SHORT.extents())) == 0


def test_a_session_computes_what_its_program_does(speaks, halved, tmp_path):
    """Whole texts round keys and values as caches do, within bounds, so errors are those of sessions."""
    wanted = halved.run(SHORT)
    assert 1e-5 < relative(wanted, speaks.run(SHORT)) < 2e-2 and verify_steps(halved, [SHORT])["nearest"] <= 1
    for decoder, off in ((halved.decoder, 1e-5), (halved.decode_with("float32"), 1e-5), (cached(speaks, "bf16"), 1e-5)):
        session = decoder.start(64)
        rows = session.step({session.join(): each for each in np.split(SHORT.tokens, SHORT.starts[1:-1])})
        assert relative(rows, wanted) < off
    assert numbers(halved.decode_with("float32")) == {"float32"} and numbers(halved.decode_with("bf16")) == {"bf16"}
    halved.save(tmp_path / "halved")
    again = Program.load(tmp_path / "halved")
    assert numbers(again.decoder) == {"bf16"} and np.array_equal(again.run(SHORT), wanted)
    replies = [each.generate([[3, 4]], max_tokens=6)[0].ids for each in (again, halved)]
    assert replies[0] == replies[1] == halved.generate([[3, 4]], max_tokens=6, cache="float32")[0].ids
