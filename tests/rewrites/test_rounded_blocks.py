"""Blocks of files times rows that are rounded to bytes by groups of 32, as ggml rounds them: on the same arrays, as
approximations with a measured error."""

import numpy as np
import pytest
from test_q4_1 import BATCH, blocks, formats_of, space_of
from test_q8_0 import TYPE, made_bytes

from formats import Q4_1, Q8_0, Q4_1Int8, Q8_0Int8, kernels
from opmatrix.algebra.batch.batch import Batch
from opmatrix.spectra import Limits
from rewrites.approximate.budgets import within
from rewrites.approximate.proposals import propose_methods
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

PAIRS = [(Q4_1, Q4_1Int8, blocks), (Q8_0, Q8_0Int8, made_bytes)]


def rounded(x):
    """Each 32 numbers of a row as whole multiples of their largest / 127, one group after another."""
    found = np.zeros(x.shape)
    for row, out in zip(x, found, strict=True):
        for at in range(0, len(row), 32):
            group = row[at : at + 32]
            scale = np.float32(abs(group).max()) / np.float32(127)
            if scale:
                out[at : at + 32] = np.rint(group * (np.float32(127) / abs(group).max())) * np.float64(scale)
    return found


@pytest.mark.parametrize("exact, form, make", PAIRS)
def test_rows_are_rounded_by_groups_and_multiplied_exactly(rng, exact, form, make):
    """The arrays are those of the exact format; a row's bits are the same alone and among any others."""
    for outputs in (3, 64, 150):
        kept, stored = exact.of_blocks(made := make(rng, outputs, 5)), form.of_blocks(made)
        assert stored.filed_blocks().tobytes() == made.tobytes()
        assert all(np.array_equal(each, stored.arrays()[name]) for name, each in kept.arrays().items())
        x = (rng.standard_normal((40, 160)) * 10.0 ** rng.integers(-3, 3, (40, 160))).astype(np.float32)
        x[3, 32:64] = 0
        wanted, whole = rounded(x) @ kept.wide(), x @ stored
        assert np.array_equal(rounded(x), form.reads(x)) and (abs(whole - wanted) <= stored.bound(x)).all()
        assert np.linalg.norm(stored.bound(x)) < 1e-4 * np.linalg.norm(wanted)
        assert 1e-4 < np.linalg.norm(whole - x @ kept) / np.linalg.norm(wanted) < 2e-2
        for rows in (1, 2, 3, 6, 7, 13):
            assert np.array_equal(x[:rows] @ stored, whole[:rows])


@pytest.mark.parametrize("exact, form, make", PAIRS)
def test_inputs_that_fill_no_group_nor_step(rng, exact, form, make):
    """Of the last group only what there is is rounded: behind it lies NaN."""
    for inputs in (1, 31, 33, 65, 95):
        stored = form.approximate(rng.standard_normal((inputs, 70), np.float32))
        for rows in (1, 7):
            x = np.full((rows, inputs + 40), np.nan, np.float32)
            x[:, :inputs] = rng.standard_normal((rows, inputs))
            found = stored.matmul(x[:, :inputs])
            wanted = rounded(x[:, :inputs]) @ stored.wide()
            assert (abs(found - wanted) <= stored.bound(x[:, :inputs])).all()


@pytest.mark.parametrize("exact, form, make", PAIRS)
def test_what_is_not_finite_stays_in_its_row(rng, exact, form, make):
    """And groups without a normal scale are zeros."""
    stored, x = form.of_blocks(make(rng, 64, 2)), rng.standard_normal((8, 64)).astype(np.float32)
    plain = x @ stored
    for bad in (np.nan, np.inf):
        spoilt = x.copy()
        spoilt[5, 40] = bad
        found = spoilt @ stored
        assert np.isnan(found[5]).any() and np.array_equal(np.delete(found, 5, 0), np.delete(plain, 5, 0))
    x[:, 32:] = 1e-37
    assert np.array_equal(x @ stored, np.where(np.arange(64) < 32, x, 0) @ stored)


def test_rows_of_a_table_are_not_rounded(rng):
    stored = Q8_0Int8.of_blocks(made_bytes(rng, 70, 2))
    ids = rng.integers(0, 70, 9)
    found = kernels.gather(ids, kernels.Columns.of(stored), np.empty((9, 64), np.float32))
    assert np.array_equal(found, stored.unpack().T[ids])


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """Of a model whose matrices, its tied table among them, are blocks of Q8_0; the machine is quick with bytes."""
    made = space_of(tmp_path_factory.mktemp("rounded"), ("blk.", "token_embd."), number=TYPE, make=made_bytes)
    rates = made.machine.coefficients
    rates["linear.q8_0int8"] = [each / 100 for each in rates["linear.q8_0int8"]]
    return made


def test_no_exact_program_rounds(space):
    for methods in (Representable(), Representable(4)):
        found = within(space, methods, weights=(0, 1, 0)).program({})[0]
        assert "q8_0" in formats_of(found) and "q8_0int8" not in formats_of(found)


def test_rounding_has_a_measured_error_and_is_chosen_within_it(space):
    """Of the weights that the exact program keeps in their blocks."""
    structure = search(space.model, EXACT_LAWS, space.machine, space.extents)
    program, emitter = structure.program({})
    rng = np.random.default_rng(1)
    fit, probe = (Batch([rng.integers(0, 40, 12) for _ in range(4)]) for _ in range(2))
    choices = propose_methods(
        space, structure, program, emitter, Representable(), fit, probe, Limits(error=0.2, narrowest=8)
    )
    measured = {method.error for each in choices.measured.values() for method in each if method.format == "q8_0int8"}
    made = choices.program(choices.choose(0.1), {})
    assert "q8_0int8" in formats_of(made) and max(measured) > 0
    off = np.linalg.norm(made.run(probe) - program.run(probe)) / np.linalg.norm(program.run(probe))
    assert 1e-5 < off < 0.2 and np.isfinite(made.run(BATCH)).all()
