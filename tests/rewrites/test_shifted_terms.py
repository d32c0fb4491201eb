"""Terms that read rows before are kernels of their own: right within their bounds, the same rows anywhere, found by
the search, and refused where a term reads further back."""

import json
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from searched import structure
from terms_of_rows import value

import opmatrix as om
from formats.host.threads import limit
from formats.kernels.engine.compiled import provide
from opmatrix.algebra.operators import I, affine, const, conv, exp, heads, ones, row, shift, silu, sum_heads, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.lags import LAGS
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.codegen.growing import find_region, row_kernel_of
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.row_term import find_kernel
from opmatrix.runtime.terms import parse_operator
from rewrites.egraph.borders import FULL
from rewrites.egraph.layers import Explorer, parts
from rewrites.laws import EXACT_LAWS

SHIFTED, COLUMNS = KERNELS["shifted_term"], (1, 3, 16, 33)
RNG = np.random.default_rng(11)
VALUES = {width: value(0, width) for width in COLUMNS}


def lengths_at(k):
    """Lengths of sequences on both sides of a lag."""
    return [1, max(k - 1, 1), k, k + 1, 64]


def numbered(lengths):
    return om.Batch([np.zeros(length, int) for length in lengths])


def terms(width, k):
    """Terms that read rows before: as they are, in functions, in reductions, in heads, in small matrices, beside."""
    x, taps = VALUES[width], const(np.linspace(-1, 1, width))
    yield x @ shift(k)
    yield x + (x @ shift(k)) * taps
    yield row(x @ shift(k) @ exp, x @ shift(k) @ ones, x @ shift(1))
    yield (x @ shift(k)) @ weight(np.linspace(-1, 1, 2 * width).reshape(width, 2))
    yield x @ shift(k) @ heads(width) @ sum_heads
    yield reduce(row, [x @ shift(k) @ heads(width) @ heads(width).T, x @ conv(np.ones((3, width)) / 3) @ silu])


def written(term, width):
    text, arrays = write_term(term, {VALUES[width]: 0})
    return text, [np.atleast_1d(np.asarray(each.array, np.float32)) for each in arrays]


@pytest.fixture(scope="module")
def drawn():
    """Every term at every width, of few lags, compiled together."""
    made = [
        (width, k, *written(term, width))
        for width in COLUMNS
        for k in (LAGS if width == 3 else LAGS[::7])
        for term in [*terms(width, k)][: 2 if width == 3 and k not in LAGS[::7] else None]
    ]
    provide(
        [find_kernel(text, ([np.zeros((1, width), np.float32)], arrays)).function for width, _, text, arrays in made]
    )
    return made


def computed(text, arrays, given, batch):
    """What the kernel gives, and how far it is from its meaning, in bounds."""
    operands = {"x0": given} | {f"c{k}": each for k, each in enumerate(arrays)}
    root = find_kernel(text, ([given], arrays)).root
    out = np.full((len(given), *([root.heads] if root.heads > 1 else []), root.cols), np.nan, np.float32)
    SHIFTED.function(out, batch, **operands, term=text)
    arguments = operands | {"term": text, "batch": batch}
    meant = meaning(SHIFTED, arguments, batch)
    return out, meant, abs(out - meant) / np.maximum(bound(SHIFTED, arguments), 1e-300)


def test_shifted_terms_are_within_their_bounds(drawn):
    for width, k, text, arrays in drawn:
        lengths = lengths_at(k)
        batch, given = numbered(lengths), RNG.normal(size=(sum(lengths), width)).astype(np.float32)
        _, meant, share = computed(text, arrays, given, batch)
        assert (share <= 1).all(), (text, share.max())
        term = parse_operator(text, [Shape(1, T, width)], [np.asarray(array, np.float64) for array in arrays])
        interpreted = meaning(KERNELS["interpret"], {"x0": given, "term": text} | dict_of(arrays), batch)
        np.testing.assert_allclose(meant, interpreted, rtol=1e-6, atol=1e-6, err_msg=str(term))


def dict_of(arrays):
    return {f"c{k}": each for k, each in enumerate(arrays)}


def test_rows_are_the_same_alone_in_a_batch_and_on_other_threads(drawn):
    for width, _, text, arrays in drawn[::3]:
        lengths = [5, 1, 40, 17]
        starts = np.cumsum([0, *lengths])
        given = RNG.normal(size=(sum(lengths), width)).astype(np.float32)
        whole, _, _ = computed(text, arrays, given, numbered(lengths))
        with limit(1):
            one, _, _ = computed(text, arrays, given, numbered(lengths))
        assert whole.tobytes() == one.tobytes()
        for lo, hi in pairwise(starts):
            alone, _, _ = computed(text, arrays, given[lo:hi], numbered([hi - lo]))
            assert alone.tobytes() == whole[lo:hi].tobytes()


def test_a_region_ends_where_rows_before_are_read():
    x = VALUES[16]
    y = x @ silu
    term = y + (y @ shift(2)) * 0.5
    assert find_region(term, {x, y}, lambda part: False) == [y]
    assert row_kernel_of(term, [y]) == "shifted_term" and row_kernel_of(y, [x]) == "row_term"
    assert find_region(term, {x}, lambda part: False) is None  # no step gives y


@pytest.mark.parametrize("k", (0, 17, -1, 2.0, "1", None))
def test_a_term_that_reads_elsewhere_is_refused(k):
    text = json.dumps([["value", 0], ["shift", [], [k]], ["compose", [0, 1], []]])
    with pytest.raises(ValueError, match=r"^term: .*(shift: k is|is no Lag)"):
        parse_operator(text, [Shape(1, T, 4)], [])


def test_positions_are_needed():
    text, arrays = written(VALUES[3] @ shift(1), 3)
    given = np.ones((4, 3), np.float32)
    kernel = find_kernel(text, ([given], arrays))
    for positions in (None, np.arange(3)):
        with pytest.raises(ValueError, match=r"positions: .*, where one for each of 4 rows is needed"):
            kernel([given], arrays, np.empty((4, 3), np.float32), positions)


def model():
    """A layer with a convolution before a gate, as models with scans have it."""
    at = lambda name, *shape: om.Data(np.random.default_rng(len(name)).normal(size=shape) * 0.3, name)
    mixed = weight(at("in", 12, 24)) @ conv(at("taps", 4, 24)) @ silu
    return weight(at("table", 23, 12)) @ (
        I + (mixed * affine(at("gate", 12, 24), at("b", 24)) @ silu) @ weight(at("out", 24, 12))
    )


def test_the_search_writes_a_kernel_for_a_convolution():
    batch = om.Batch([[1, 2, 3, 4, 5, 6], [6], [7, 8]])
    found = structure(model(), EXACT_LAWS, batch=batch)
    program, _ = found.program({})
    kernels = [step.kernel for step in program.steps]
    assert kernels.count("shifted_term") == 1 and "interpret" not in kernels
    wanted = dense(model(), batch)
    assert abs(program.run(batch) - wanted).max() < 1e-5 * abs(wanted).max()
    for one, lo, hi in zip(batch, batch.starts, batch.starts[1:], strict=False):
        np.testing.assert_array_equal(program.run(one), program.run(batch)[lo:hi])


@pytest.mark.deep
def test_a_schedule_of_a_convolution_is_verified():
    schedule = om.schedule(model(), om.Batch([[1, 2, 3, 4, 5], [7]]))
    schedule.verify()


@pytest.mark.parametrize("lags, merged", [((3, 4), True), ((8, 8), True), ((8, 9), False), ((16, 1), False)])
def test_two_shifts_are_one_as_far_as_kernels_read(lags, merged):
    """Behind a product between them; further back they stay two steps, and a program has the same numbers."""
    table, inner = weight(om.Data(RNG.normal(size=(23, 6)), "E")), weight(om.Data(RNG.normal(size=(6, 6)), "W"))
    term = table @ shift(lags[0]) @ inner @ shift(lags[1])
    groups = parts(term)
    fired = {law for states in groups for law in Explorer(EXACT_LAWS).graph(states[FULL]).fired}
    assert "shift_late" in fired and ("shift_twice" in fired) == merged
    batch = om.Batch([RNG.integers(0, 23, 40), [1, 2]])
    schedule = om.schedule(term, batch)
    np.testing.assert_allclose(schedule.run(batch), dense(term, batch), rtol=1e-5, atol=1e-6)


def test_steps_of_a_derivation_are_instances_of_the_laws_of_shifts():
    table, inner = weight(om.Data(RNG.normal(size=(23, 6)), "E")), weight(om.Data(RNG.normal(size=(6, 6)), "W"))
    explored = om.explore(table @ shift(1) @ inner @ shift(2) @ silu, om.Batch([RNG.integers(0, 23, 300), [1, 2]]))
    assert explored.derivation.checked < 1e-9
    assert {"shift_late", "shift_twice"} <= {law for part in explored.derivation.parts for law in part.laws()}
