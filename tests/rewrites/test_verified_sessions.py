"""Sessions as they are verified: right ones hold, planted faults are found by `verify` and by `optimize`."""

from functools import cache

import numpy as np
import pytest
import wrong_sessions

from formats import FORMATS
from formats.host.threads import available, limit, threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from rewrites.metrics.check_table import FAILS, HOLDS
from rewrites.metrics.recheck import checks
from rewrites.verify import VerificationError, verify_lengths, verify_steps
from rewrites.verify.certificate import certify
from rewrites.verify.lengths import Steps, batches_at
from rewrites.verify.sessions.miniature import SPREAD_SHARES, find_attention, ties
from rewrites.verify.sessions.verified_sessions import (
    Sessions,
    verify_all_sessions,
    verify_sessions,
    verify_steps_over_caches,
)

SEED = 47
SENTENCES = Batch([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]])
LONGEST = 150


@cache
def decoding(
    where="sequence & causal", heads=4, shared=2, d=8, e=8, last=False, bias=False, rotated=False, cap=0.0, sunk=False
):
    """Attention over embeddings and positions, and a product; perhaps of the last row of a text alone, or of keys that
    were rotated before."""
    rng, constants = np.random.default_rng(5), {}

    def array(*shape):
        return rng.standard_normal(shape, np.float32)

    for name, width in (("E", 24), ("P", 24)):
        constants[name] = FORMATS["dense"].pack(array(400, width))
    steps = [Step("embed", {"table0": "E", "table1": "P"}, {"fields": "tokens,positions"}, "x")]
    for name, width in (("K", shared * d), ("V", shared * e), ("Q", heads * d)):
        constants[name] = FORMATS["dense"].pack(array(24, width) / 5)
        x = "first" if last and name == "Q" else "x"
        if x == "first":
            steps.append(Step("pool", {"x": "x"}, {"how": "last"}, x))
        steps += [
            Step("linear", {"x": x, "weight": name}, {}, name.lower()),
            Step("heads", {"x": name.lower()}, {"heads": heads if name == "Q" else shared}, f"{name}h"),
        ]
        if rotated and name == "K":
            constants |= {"cos": array(400, d // 2), "sin": array(400, d // 2)}
            steps.append(Step("rotate", {"x": "Kh", "cos": "cos", "sin": "sin"}, {}, "Kr"))
    operands, attributes = {"q": "Qh", "k": "Kr" if rotated else "Kh", "v": "Vh"}, {"scale": 0.3, "where": where}
    if cap:
        attributes["cap"] = cap
    if bias:
        constants["B"], operands = array(heads, 41), operands | {"bias": "B"}
    if sunk:
        constants["M"], operands = array(heads), operands | {"margin": "M"}
    if last:
        attributes["query"] = "last"
    steps += [
        Step("attend_once" if last else "attention", operands, attributes, "a"),
        Step("join", {"x": "a"}, {}, "j"),
    ]
    constants["U"] = FORMATS["dense"].pack(array(heads * e, 24) / 5)
    return Program([*steps, Step("linear", {"x": "j", "weight": "U"}, {}, "z")], constants, "z")


def certified(program):
    return certify(program, {}, [SENTENCES], lengths=((1,), (LONGEST,)))


def rebound(program):
    return program.over(program.steps)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(where="sequence & causal & window(20)"),
        dict(last=True, rotated=True),
        dict(cap=2.0),
        dict(sunk=True),
        *(
            pytest.param(each, marks=pytest.mark.deep)
            for each in (
                dict(where="sequence & causal & window(0)"),
                dict(where="sequence & causal & window(16)"),
                dict(where="sequence & causal & window(999)"),
                dict(heads=3, shared=1, d=5, e=3),
                dict(heads=1, shared=1),
                dict(heads=2, shared=2, d=64, e=64),
                dict(last=True),
                dict(sunk=True, where="sequence & causal & window(20)"),
                dict(last=True, sunk=True, heads=3, shared=1),
                dict(last=True, cap=2.0, where="sequence & causal & window(20)"),
                dict(last=True, where="sequence & window(9)"),
                dict(bias=True),
                dict(bias=True, where="sequence & causal & window(20)"),
            )
        ),
    ],
    ids=str,
)
def test_right_sessions_hold(changed):
    sessions = Sessions.of([[300]])
    assert verify_sessions(decoding(**changed), SENTENCES, sessions)
    said = sessions.described()
    assert said["kinds"] == 1 and said["threads"] == (*range(1, available() + 1),)
    assert said["numbers"] == ("float32", "bf16") and 0 <= said["nearest"] < 0.2 and said["rows"] > 1000


@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_steps_that_round_their_rows_hold(form):
    """Read in float64 nothing is rounded, over caches or whole; attention in bfloat16 neither."""
    program, rng = decoding(), np.random.default_rng(1)
    weights = {
        name: FORMATS[form].approximate(rng.standard_normal(program.constants[name].shape, np.float32))
        for name in "QKVU"
    }
    steps = [
        step
        if step.kernel != "attention"
        else Step(step.kernel, step.operands, {**step.attributes, "number_type": "bf16"}, step.output)
        for step in program.steps
    ]
    verify_steps_over_caches(
        rounding := program.over(steps, {**program.constants, **weights}), rounding.decoder, SENTENCES, 9
    )


@pytest.mark.parametrize("longest", [1, 2, 15, 16, 17, 33])
def test_texts_as_short_as_any_hold(longest):
    assert verify_sessions(decoding(), SENTENCES, Sessions.of([[longest]]))


def test_what_has_no_session_is_passed_by():
    program = decoding("sequence")
    assert not verify_sessions(program, SENTENCES, Sessions.of([[20]]))
    assert "sessions" not in {check.what for check in checks(certified(program))}


def test_a_program_with_state_is_verified_as_it_is():
    state = decoding("sequence & causal & window(20)").decode_with("bf16")
    [(attention, _)] = find_attention(state)
    assert attention.where == "sequence & causal & window(20)"
    assert verify_sessions(state, SENTENCES, Sessions.of([[60]]))


FAULTS = [*wrong_sessions.drawn(np.random.default_rng(SEED), 2 * len(wrong_sessions.FAULTS), LONGEST, True)]


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_found(fault, tmp_path):
    """By `verify` of the saved program, and by what `optimize` does with its programs; thresholds are drawn."""
    print(f"seed {SEED}: {fault}")
    where = "sequence & causal & window(20)" if fault.place % 2 or fault.windowed else "sequence & causal"
    right = certified(decoding(where))
    right.save(tmp_path / "p")
    with fault.planted():
        found = {check.what: check for check in checks(Program.load(tmp_path / "p"))}
        assert found["sessions"].verdict == FAILS and found["steps within bounds"].verdict == HOLDS, fault
        with pytest.raises(VerificationError):
            verify_all_sessions([rebound(right)], SENTENCES, Sessions.of([[LONGEST]]))


def test_sessions_that_are_right_hold_in_verify_and_in_optimize():
    found = {check.what: check for check in checks(certified(decoding()))}
    assert found["sessions"].verdict == HOLDS and "on 1" in found["sessions"].found
    sessions = Sessions.of([[LONGEST]])
    assert verify_all_sessions([decoding()], SENTENCES, sessions) == [True]
    assert sessions.described()["longest"] == LONGEST and sessions.rows


def test_values_between_two_of_bfloat16_show_what_is_rounded_twice():
    """Rounded to any number of bits between first, each kind of them goes the other way."""
    values, reads = ties(60), FORMATS["bf16"].reads
    for bits in range(9, 23):
        part, power = np.frexp(values)
        twice = reads(np.ldexp(np.round(part * 2.0**bits) / 2.0**bits, power).astype(np.float32))
        assert (twice != reads(values)).any(), bits
    assert set(np.sign(reads(values) - values)) == {-1, 1}
    [(attention, tables)] = find_attention(decoding())
    miniature = attention.miniature(SPREAD_SHARES, 40, tables)
    assert np.array_equal(miniature.rows("v", np.zeros(1, np.int64)).ravel(), ties(16))


# ---- threads


def on_two(right):
    """On two threads the last number is off by a bit."""

    def wrong(out, **given):
        right(out, **given)
        if threads() == 2:
            out.reshape(-1).view(np.uint32)[-1] ^= 1

    return wrong


@pytest.mark.skipif(available() < 2, reason="one thread")
@pytest.mark.parametrize("name", ["linear", "attention", "embed"])
def test_a_kernel_that_is_wrong_on_two_threads_only_is_found(name, monkeypatch):
    """By the steps of short sentences, and by those of other lengths; as whoever runs it on two meets it."""
    declared = KERNELS[name]
    monkeypatch.setattr(declared, "function", on_two(declared.function))
    monkeypatch.setattr(declared, "launches", False)
    program = rebound(decoding())
    with limit(1), pytest.raises(VerificationError, match="threads"):
        verify_steps(program, [SENTENCES])
    lengths = ((1,), (5,), (LONGEST,))
    with pytest.raises(VerificationError, match=r"threads|its run is not|differs from the reference of its kernel"):
        verify_lengths(program, batches_at(lengths, SENTENCES), Steps.at(lengths, [program]))
