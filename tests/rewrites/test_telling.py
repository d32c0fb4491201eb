"""Faults that show for some data alone: every step is looked at on operands that tell of them, of the import too."""

from functools import cache

import numpy as np
import pytest
import wrong_for_data
from random_models import random_weights
from searched import KINDS, structure
from test_expert_models import CASES, made

from opmatrix.algebra.batch.batch import Batch, Fields
from opmatrix.models import build
from opmatrix.runtime.declarations.kernel import is_value
from opmatrix.runtime.declarations.telling import (
    LARGEST_DECADE,
    SMALLEST_DECADE,
    every_id,
    telling_rows,
    telling_values,
    tied_rows,
)
from opmatrix.runtime.kernels import KERNELS
from rewrites.metrics import recheck
from rewrites.verify import VerificationError, unrounded, verify_exact, verify_steps
from rewrites.verify.certificate import certify
from rewrites.verify.programs import step_kind

FEW = Batch([[1, 2, 3, 4, 5], [6, 7], [8], [9, 8, 7, 6, 5, 4, 3, 2, 1]])
SMALL = dict(
    vocab_size=41,
    hidden_size=60,
    intermediate_size=36,
    num_attention_heads=2,
    num_hidden_layers=1,
    max_position_embeddings=40,
)
CONFIGS = {
    "bert": SMALL | dict(model_type="bert", type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu"),
    "llama": SMALL | dict(model_type="llama", num_key_value_heads=1),
}


@cache
def program(family, kind="exact"):
    """A small program, and what it is made of."""
    if family in CONFIGS:
        operator = build(CONFIGS[family], random_weights(CONFIGS[family], np.random.default_rng(0)))
    else:
        operator = build(CASES[family][0] | dict(num_hidden_layers=1), made())
    found = structure(operator, *KINDS[kind], batch=FEW)
    return found.program({"model": kind})[0], operator, found


FAULTS = 64


@cache
def programs():
    return [program(family)[0] for family in ("bert", "llama", "mixtral")]


@cache
def faults():
    """Drawn once, and not while tests are collected, which every process does."""
    return [*wrong_for_data.drawn(np.random.default_rng(11), FAULTS, programs())]


@pytest.mark.parametrize("family", ["bert", "llama", "mixtral"])
def test_right_kernels_pass_and_their_bounds_are_said(family):
    found = verify_steps(program(family)[0], [FEW])
    assert 0.1 < found["nearest"] <= 1 and {"embed", "linear"} <= found["kernels"].keys()
    for each in found["kernels"].values():
        assert each["nearest"] <= 1 and 0 < each["allowed"] < 0.01


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_for_some_data_alone_is_found(number):
    """In every program that has the kernel; other kernels are not looked at again."""
    fault = faults()[number]
    others = {
        step_kind(call) for each in programs() for call in each.schedule.calls if call.kernel.name != fault.kernel
    }
    met = [each for each in programs() if wrong_for_data.meets(each, fault)]
    with fault.planted():
        for each in met:
            with pytest.raises(
                VerificationError, match=rf"= {fault.kernel}\(.*differs from the reference of its kernel"
            ):
                verify_steps(each.over(each.steps), [FEW], set(others))
    assert met, fault


def test_a_row_that_is_anothers_and_that_no_text_reads_is_found(monkeypatch):
    """Import and exact program share it, so that neither rounds more than the other."""
    _, operator, found = program("bert")
    right = KERNELS["embed"].function

    def wrong(out, batch, **given):
        tokens = np.where(batch.tokens == 40, 39, batch.tokens)
        fields = {name: getattr(batch, name) for name in ("positions", "kinds", "sequence")}
        right(out, batch=Fields(batch.whole, batch.rows, tokens=tokens, **fields), **given)

    monkeypatch.setattr(KERNELS["embed"], "function", wrong)
    monkeypatch.setattr(KERNELS["embed"], "launches", False)
    anew, emitter = found.program({"model": "exact"})
    assert FEW.tokens.max() < 39
    with pytest.raises(VerificationError, match=r"= embed\("):
        verify_exact(anew, operator, [FEW], anew, unrounded(found, emitter))


def test_a_kernel_that_the_import_alone_has_is_held_to_its_bound(monkeypatch):
    """Its error would else be allowed to the exact program, four times."""
    exact, operator, _ = program("bert")
    imported = program("bert", "imported")[0]
    alone = {step.kernel for step in imported.steps} - {step.kernel for step in exact.steps}
    [kernel, *_] = sorted(
        name
        for name in alone
        if wrong_for_data.by_values(next(call for call in imported.schedule.calls if call.kernel.name == name))
    )
    kept = certify(exact, {"program": {"imported": {}}}, [FEW])
    monkeypatch.setattr(recheck, "verify_laws", lambda laws: {"laws": len(laws)})
    monkeypatch.setattr(recheck, "verify_graphs", lambda templates, laws: {"graphs": 0})
    fault = wrong_for_data.Fault("rows that are whole", kernel, 4)
    with fault.planted():
        failed = {check.what for check in recheck.checks(kept, operator) if check.verdict == recheck.FAILS}
    assert "steps of the import" in failed and "steps within bounds" not in failed


def test_rows_tell_of_every_kind_that_faults_are_made_of(rng):
    """Whatever the threshold is, within what is declared."""
    rows = telling_rows((48,), rng).astype(np.float64)
    for kind, of in wrong_for_data.KINDS.items():
        for drawn in np.linspace(0, 0.999, 40):
            assert of(rows, drawn).any(), (kind, drawn)
    decades = np.floor(np.log10(abs(rows).max(1)[abs(rows).max(1) > 0]))
    assert {*range(SMALLEST_DECADE + 1, LARGEST_DECADE)} <= {*decades.astype(int)}


@pytest.mark.parametrize(
    "shapes", [{"x": (1,)}, {"x": (3,)}, {"x": (2, 5), "by": (7,)}, {"a": (1,), "b": (4,), "c": (1, 2)}]
)
def test_operands_of_several_widths_have_as_many_rows(rng, shapes):
    found = telling_values(shapes, rng)
    assert len({len(each) for each in found.values()}) == 1
    for name, shape in shapes.items():
        assert found[name].shape[1:] == shape and found[name].dtype == np.float32 and np.isfinite(found[name]).all()


def test_every_id_of_every_field_is_read():
    limits = {"tokens": 1000, "positions": 7}
    found = [*every_id(limits, 1 << 16, FEW)]
    assert len(found) > 1
    for name, limit in limits.items():
        assert {*np.concatenate([each.field(name, limit) for each in found])} == {*range(limit)}


def test_ties_lie_on_both_sides_of_whatever_is_kept(rng):
    """For each number of columns kept there are rows of which the last kept and the first left are equal."""
    rows = np.sort(tied_rows((16,), rng), 1)[:, ::-1]
    for kept in range(1, 16):
        assert (rows[:, kept - 1] == rows[:, kept]).any()


def test_short_sequences_are_no_longer_than_a_pattern_knows(rng):
    """Its tables say of so many positions whom they see, and of no more."""
    shapes = {name: rng.standard_normal((9, 1, 4), np.float32) for name in "qkv"}
    a = KERNELS["attention"].record(
        **shapes,
        mask0=np.ones((5, 5), np.float32),
        mask1=None,
        bias=None,
        scale=0.5,
        where="sequence & mask({}, 1)",
        tile=256,
        number_type="float32",
        batch=FEW,
    )
    brought = [each["batch"] for each in KERNELS["attention"].telling(a, rng) if "batch" in each]
    assert brought and max(int(np.diff(each.starts).max()) for each in brought) == 5


def test_every_kernel_of_values_tells():
    """By its own declaration, or by the sorts of its operands."""
    silent = {
        name
        for name, each in KERNELS.items()
        if not each.view and not each.declares_telling and not any(map(is_value, each.operands.values()))
    }
    assert not silent
