"""Lengths that programs are looked at: what is listed, what shows only there, and what is said beyond them."""

import json
import logging
from unittest import mock

import numpy as np
import pytest
import wrong_kernels

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.meanings import widen_arguments
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.scheme import GROUP_ROWS
from rewrites.metrics.check_table import FAILS, HOLDS
from rewrites.metrics.recheck import checks
from rewrites.verify import VerificationError, verify_lengths, verify_steps
from rewrites.verify.certificate import certify
from rewrites.verify.lengths import MAX_LENGTH, Steps, batches_at, calls, kind_of, lengths_of, rows_looked_at, shortened
from rewrites.verify.programs import Meant

SENTENCES = Batch([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]])
TIMED = Batch([np.arange(60) % 17])


def attending(rng, positions=None, number_type="bf16", form="int8", pooled=False, decodes=False):
    """Attention of two heads over embeddings, a product in some format, perhaps a row a sequence; in a decoder of what
    came before, with rotated queries, after a norm."""

    def array(*shape):
        return rng.standard_normal(shape, np.float32)

    tables, fields, constants = {"table0": "E"}, "tokens", {"E": FORMATS["dense"].pack(array(17, 64))}
    if positions:
        tables, fields = tables | {"table1": "P"}, "tokens,positions"
        constants["P"] = FORMATS["dense"].pack(array(positions, 64))
    constants |= {name: FORMATS[form].approximate(array(64, 64) / 8) for name in "QKVU"} | {"g": 1 + array(64) / 5}
    if decodes:
        constants |= {
            name: turn(np.outer(np.arange(positions), 0.9 ** np.arange(16))).astype(np.float32)
            for name, turn in (("cos", np.cos), ("sin", np.sin))
        }
    x, q, where = ("n", "Qr", "sequence & causal") if decodes else ("x", "Qh", "sequence")
    steps = [
        Step("embed", tables, {"fields": fields}, "x"),
        *[Step("pointwise", {"x": "x", "gain": "g"}, {"eps": 1e-5, "norm": "rms"}, "n")] * decodes,
        *(
            step
            for name in "QKV"
            for step in (
                Step("linear", {"x": x, "weight": name}, {}, name.lower()),
                Step("heads", {"x": name.lower()}, {"heads": 2}, f"{name}h"),
            )
        ),
        *[Step("rotate", {"x": "Qh", "cos": "cos", "sin": "sin"}, {}, "Qr")] * decodes,
        Step(
            "attention", {"q": q, "k": "Kh", "v": "Vh"}, {"scale": 0.2, "number_type": number_type, "where": where}, "a"
        ),
        Step("join", {"x": "a"}, {}, "j"),
        Step("linear", {"x": "j", "weight": "U", "residual": "x", "gain": "g"}, {"eps": 1e-5}, "z"),
    ]
    if pooled:
        steps.append(Step("pool", {"x": "z"}, {"how": "mean"}, "s"))
    return Program(steps, constants, steps[-1].output)


def looked(program, timed=TIMED):
    lengths = lengths_of([program], [timed])
    return verify_lengths(program, batches_at(lengths, SENTENCES), Steps.at(lengths, [program], [timed]))


def test_lengths_cross_what_kernels_declare(rng):
    program = attending(rng, 300)
    found = lengths_of([program], [TIMED])
    alone = {each[0] for each in found if len(each) == 1}
    declared = {border for call in program.schedule.calls for border in call.kernel.borders(call.bound)}
    assert {1, 60, 299, 300} <= alone and max(max(each) for each in found) == 300 and len(declared) > 4
    for border in (*declared, GROUP_ROWS):
        assert {n for n in (border - 1, border, border + 1) if n <= 300} <= alone
    [several] = [each for each in found if len(set(each)) > 1]
    assert sum(several) > 2 * GROUP_ROWS and several[0] == 1  # groups; sequences begin anywhere
    assert [batch.rows for batch in batches_at(found, SENTENCES)] == [*map(sum, found)]


@pytest.mark.parametrize(
    "positions, timed, longest",
    [
        (None, 9, MAX_LENGTH),
        (7, 3, 7),
        (1, 1, 1),
        (5000, 9, MAX_LENGTH),
        (None, 5000, 5000),
        (5000, 5000, 5000),
        (2000, 5, 2000),
    ],
)
def test_the_longest_is_all_positions_or_as_many_as_anybody_needs(rng, positions, timed, longest):
    found = lengths_of([attending(rng, positions, form="dense")], [Batch([np.zeros(timed, int)])])
    assert max(map(max, found)) == longest and (timed,) in found and (1,) in found
    assert any(len(each) > 1 and each[-1] == longest for each in found)  # the longest behind another one


def test_what_a_batch_alone_gives_is_not_made_longer(rng):
    program = attending(rng)
    assert lengths_of([program], [Batch([[1]], relations={"r": np.eye(1)})]) == ()


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "number_type, form, pooled",
    [("bf16", "int8", False), ("float32", "dense", True), ("float32", "csr", False), ("bf16", "bf16", True)],
)
def test_right_kernels_pass(rng, number_type, form, pooled):
    said = looked(attending(rng, 150, number_type, form, pooled))
    assert said["batches"] > 12 and 0 < said["nearest"] <= 1


def test_a_key_lost_by_long_sentences_alone_is_found(rng):
    """In attention in bfloat16, the last of over 40 tokens: no sentence that ships is as long."""
    with wrong_kernels.Fault("key", "attention", 40, 0, narrow=True).planted():
        program = attending(rng, 130)
        verify_steps(program, [SENTENCES])
        with pytest.raises(VerificationError, match=r"= attention\(.*differs from the reference of its kernel.*rows"):
            looked(program)


DECODER = {"attention": [False], "linear": [False], "pointwise": [False], "rotate": [False], "embed": [False]}


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("fault", [*wrong_kernels.drawn(np.random.default_rng(6), 16, 200, DECODER)], ids=str)
def test_a_fault_of_a_decoder_beyond_a_threshold_is_found(rng, fault):
    with fault.planted():
        program = attending(rng, 200, "float32", "balancedint8", decodes=True)
        with pytest.raises(VerificationError, match=rf"= {fault.kernel}\(.*differs from the reference of its kernel"):
            looked(program)


KINDS = {"attention": [False, True], "linear": [False], "pool": [False], "embed": [False]}


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("fault", [*wrong_kernels.drawn(np.random.default_rng(5), 24, 200, KINDS)], ids=str)
def test_a_fault_beyond_a_threshold_is_found(rng, fault):
    with fault.planted():
        program = attending(rng, 200, "bf16" if fault.narrow else "float32", "int8", pooled=True)
        with pytest.raises(VerificationError, match=rf"= {fault.kernel}\(.*differs from the reference of its kernel"):
            looked(program)


def test_a_key_of_the_longest_is_found_by_queries_that_are_drawn(rng):
    """Of 1,024 rows and more some are looked at, and every key shows in each of them."""
    program = attending(rng, 2000)
    call = next(call for call in program.schedule.calls if call.kernel.row_mixing)
    [batch] = batches_at([[2000]], SENTENCES)
    rows = rows_looked_at(call, batch)
    assert {0, 47, 48, 1999} <= {*rows.tolist()} and 64 <= len(rows) < 200
    [[_, arguments, found]] = [each for each in program.schedule.walk(batch) if each[0] is call]
    equal = next(call.kernel.telling(call.kernel.record(**arguments), rng))
    Meant.of(call, arguments, batch, rows).compared("", found, 2000)
    for lost in (1999, 1000, 777):
        given, out = arguments | equal, np.empty_like(found)
        given["v"] = given["v"] * (np.arange(2000) != lost)[:, None, None]
        call.kernel.function(out, **given)
        with pytest.raises(VerificationError, match="differs from the reference of its kernel"):
            Meant.of(call, arguments | equal, batch, rows).compared("", out, 2000)


@pytest.mark.parametrize("number_type", ["float32", "bf16"])
def test_some_rows_mean_what_they_mean_among_all(rng, number_type):
    """Of every kernel that can be asked for some rows."""
    batch, at = Batch([[1, 2, 3], [4], [5, 6, 7, 8]]), np.array([0, 2, 3, 6])
    asked = 0
    for call, arguments, _ in attending(rng, 9, number_type).schedule.walk(batch):
        arguments_at, some = call.kernel.restrict(arguments, [*call.values], batch, at)
        every, few = (
            call.kernel.reference(widen_arguments(call.kernel, given, rows))
            for given, rows in ((arguments, batch), (arguments_at, some))
        )
        np.testing.assert_allclose(few, every[at], rtol=1e-12, atol=1e-12)
        asked += call.by_tokens
    assert asked > 8


def test_kinds_of_steps_are_looked_at_once(rng):
    """And the run of every program all the same."""
    one, other = attending(rng, 60), attending(rng, 60)
    lengths = lengths_of([one], [TIMED])
    batches, steps = batches_at(lengths, SENTENCES), Steps.at(lengths, [one])
    assert 0 < len(steps.fresh(one, batches[0])) < len(one.steps)
    verify_lengths(one, batches, steps)
    assert not any(steps.fresh(other, batch) for batch in batches)
    assert steps.fresh(attending(rng, 60, form="dense"), Batch([[1] * 60]))


def test_a_step_is_looked_at_where_its_kernel_takes_another_path(rng):
    """And at the lengths that count for all; where rows stand for themselves on the longest alone."""
    program = attending(rng, 60, form="dense")
    steps = Steps.at(lengths_of([program], [TIMED]), [program])

    def kernels(length):
        return {program.steps[at].kernel for at in steps.fresh(program, Batch([[1] * length]))}

    assert kernels(60) == {step.kernel for step in program.steps} and kernels(1) == {"embed", "attention"}
    assert kernels(47) == {"attention"} and kernels(16) == set()


@pytest.mark.parametrize("rows", [1, 15, 17, 31, 33, 40, 61, 180])
def test_rows_that_are_multiplied_together_are_looked_at_as_many_as_come(rng, rows):
    """A product that is wrong for one number of rows alone."""
    program = attending(rng, 60)
    lengths = (*lengths_of([program], [TIMED]), (rows,)) if rows <= 60 else ((1,), (60,), (60, 1), (60, 60, 60))
    right = KERNELS["linear"].function

    def wrong(out, x, **given):
        right(out, x=x, **given)
        if len(x) == rows:
            out[-1] *= np.float32(1.01)

    with (
        mock.patch.object(KERNELS["linear"], "function", wrong),
        mock.patch.object(KERNELS["linear"], "launches", False),
    ):
        program = attending(rng, 60)
        steps = Steps.at(tuple(lengths), [program])
        with pytest.raises(VerificationError, match="differs from the reference of its kernel"):
            verify_lengths(program, batches_at(lengths, SENTENCES), steps)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "kernel, left, beyond, longest",
    [
        *((kernel, 1, 192, 200) for kernel in ("linear", "attention", "pointwise", "embed", "rotate")),
        ("linear", 3, 130, 200),
        ("attention", 6, 1000, 1040),
    ],
)
def test_rows_that_a_tile_leaves_over_are_looked_at(rng, kernel, left, beyond, longest):
    """Of more rows than a threshold those alone that leave over so many, which no length listed does."""
    declared = KERNELS[kernel]
    right = declared.function

    def wrong(out, **given):
        right(out, **given)
        if len(out) > beyond and len(out) % 8 == left:
            out[-1] *= np.float32(1.05)

    with mock.patch.object(declared, "function", wrong), mock.patch.object(declared, "launches", False):
        program = attending(rng, longest, "float32", "dense", decodes=True)
        lengths = (1,), (longest - 1,), (longest,)
        with pytest.raises(VerificationError, match=rf"= {kernel}\(.*differs from the reference of its kernel"):
            verify_lengths(program, batches_at(lengths, SENTENCES), Steps.at(lengths, [program]))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("kernel", ["embed", "attention", "pool"])
@pytest.mark.parametrize("lengths", [((1,), (150,), (150,) * 3), ((1,), (1400,), (1, 1400))], ids=["few", "long"])
def test_a_fault_in_long_sentences_behind_another_is_found(rng, kernel, lengths):
    """It shows in batches of several alone, where one that is not the first is long."""
    declared, longest = KERNELS[kernel], max(map(max, lengths))
    right = declared.function

    def wrong(out, batch, **given):
        right(out, batch=batch, **given)
        last = np.arange(len(batch)) if len(out) == len(batch) else batch.starts[1:] - 1
        out[last[1:][np.diff(batch.starts)[1:] >= longest]] *= np.float32(1.01)

    with mock.patch.object(declared, "function", wrong), mock.patch.object(declared, "launches", False):
        program = attending(rng, longest, "float32", "dense", pooled=True)
        with pytest.raises(VerificationError, match=rf"= {kernel}\(.*differs from the reference of its kernel"):
            verify_lengths(program, batches_at(lengths, SENTENCES), Steps.at(lengths, [program]))


def test_a_run_that_is_not_its_steps_at_some_length_is_found(monkeypatch, rng):
    program = attending(rng, 80)
    right = type(program.schedule).run
    monkeypatch.setattr(
        type(program.schedule),
        "run",
        lambda self, batch: [np.roll(each, int(batch.rows > 50), 0) for each in right(self, batch)],
    )
    verify_steps(program, [SENTENCES])
    with pytest.raises(VerificationError, match="its run differs from its steps"):
        looked(program)


@pytest.fixture
def kept(rng):
    """A program with a certificate, which needs no model."""
    program = attending(rng, 130, pooled=True)
    return certify(
        program, {"error": {"stated": 0.5, "relative": 0.1}}, [SENTENCES], lengths=lengths_of([program], [TIMED])
    )


def verdicts(program):
    return {check.what: check.verdict for check in checks(program)}


def test_a_certificate_lists_the_lengths_and_they_are_looked_at_again(kept, tmp_path, monkeypatch):
    kept.save(tmp_path / "program")
    listed = Program.load(tmp_path / "program").meta["certificate"]["lengths"]
    assert [60] in listed and [130] in listed
    assert verdicts(kept)["steps at other lengths"] == HOLDS
    with wrong_kernels.Fault("key", "attention", 40, 0, narrow=True).planted():
        found = verdicts(Program.load(tmp_path / "program"))
        assert found["steps at other lengths"] == FAILS and found["steps within bounds"] == HOLDS


@pytest.mark.parametrize("lengths", [[[0]], [[]], [["1"]], 3, [[True]], [[70000]]])
def test_lengths_that_are_none_are_refused(kept, tmp_path, lengths):
    kept.save(tmp_path / "program")
    file = tmp_path / "program" / "certificate.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lengths": lengths}))
    with pytest.raises(ValueError, match=r"certificate\.json"):
        Program.load(tmp_path / "program")


def test_a_certificate_of_before_has_the_lengths_of_its_inputs(kept, tmp_path):
    old = {name: entry for name, entry in kept.meta["certificate"].items() if name != "lengths"}
    kept.replace(certificate=old).save(tmp_path / "program")
    program = Program.load(tmp_path / "program")
    assert "steps at other lengths" not in verdicts(program)
    assert program.longest_verified == 9


@pytest.mark.parametrize("run", [Program.run, Program.run_all, Program.vectors])
def test_a_longer_text_is_said_once_a_program(rng, caplog, run):
    """However it is run, on ids too; of many short texts nothing is said, and of another program the same is."""
    short, long = Batch([[1] * 130] * 2), Batch([[1], [1] * 131])
    programs = [certify(attending(rng, 131), {}, [SENTENCES], lengths=((1,), (130,))) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for program in programs:
            for batch in (short, long, long):
                run(program, batch)
    assert len(caplog.records) == len(programs)
    for record in caplog.records:
        assert "a text of 131 tokens" in record.getMessage() and "up to 130" in record.message


def test_every_kernel_with_tiles_declares_them():
    """All but the two that sessions alone run."""
    whole = {name for name, each in KERNELS.items() if each.row_mixing and each.launches and each.restrict is None}
    assert whole <= {"attention_cached", "keep_states"}


def stacked_layers(rng, layers, turn=1):
    """Layers of a product with a residual each, and one with other columns between."""

    def packed(*shape):
        return FORMATS["dense"].pack(rng.standard_normal(shape, np.float32) / 5)

    constants, steps, x = {"E": packed(17, 24)}, [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x")], "x"
    for at in range(layers):
        constants |= {f"U{at}": packed(24, 40), f"D{at}": packed(40, 24)}
        other = {"activation": "gelu"} if at == turn else {"activation": "relu"}
        steps += [
            Step("linear", {"x": x, "weight": f"U{at}"}, other, f"u{at}"),
            Step("linear", {"x": f"u{at}", "weight": f"D{at}", "residual": x}, {}, f"y{at}"),
        ]
        x = f"y{at}"
    constants["H"] = packed(24, 9)
    return Program([*steps, Step("linear", {"x": x, "weight": "H"}, {}, "z")], constants, "z")


def test_of_equal_layers_one_is_left(rng):
    """Each kind of step is there once, at least, and what is left runs; values that are still read stay."""
    program = stacked_layers(rng, 8)
    steps = Steps(((40,),), frozenset({40}))
    batch = Batch([np.arange(40) % 17])
    fresh = steps.fresh(program, batch)
    short = shortened(program, fresh)
    assert [step.output for step in short.steps] == ["x", "u0", "y0", "u1", "y1", "z"]
    kinds = [{kind_of(call, batch) for call in calls(each)} for each in (program, short)]
    assert kinds[0] == kinds[1] and short.run(batch).shape == (40, 9)
    assert shortened(program, {*range(len(program.steps))}).steps == program.steps
    assert [step.output for step in shortened(program, {0, len(program.steps) - 1}).steps] == ["x", "z"]


@pytest.mark.parametrize("skips", [1, 2, 5])
def test_values_that_are_read_behind_a_stretch_keep_it(rng, skips):
    """A step behind reads a value of the middle too."""
    program = stacked_layers(rng, 8)
    steps = [*program.steps[:-1], Step("linear", {"x": "y7", "weight": "H"}, {}, "z")]
    steps[-2] = Step("linear", {"x": "u7", "weight": "D7", "residual": f"y{skips}"}, {}, "y7")
    short = shortened(Program(steps, program.constants, "z"), {len(steps) - 1, len(steps) - 2})
    assert short.steps[-2].operands["residual"] in {"x", *(f"y{at}" for at in range(skips + 1))}
    assert short.run(Batch([[1, 2, 3]])).shape == (3, 9)


def test_of_very_many_rows_others_run_without_them(rng):
    """The first program runs as a whole; a fault of a kernel that the second has alone is found all the same."""
    first, second = stacked_layers(rng, 6), stacked_layers(rng, 6, 3)
    steps = [*second.steps]
    at = next(i for i, step in enumerate(steps) if step.attributes.get("activation") == "gelu")
    steps[at] = Step("linear", steps[at].operands, {"activation": "tanh"}, steps[at].output)
    second = second.over(steps)
    lengths = ((1,), (1500,))
    looked = Steps.at(lengths, [first, second])
    with mock.patch.object(Program, "run", autospec=True, side_effect=Program.run) as run:
        for program in (first, second):
            verify_lengths(program, batches_at(lengths, SENTENCES), looked)
    assert [len(each.args[0].steps) for each in run.mock_calls if each.args and each.args[1].rows == 1500] == [14, 4]
