"""Every format, by being in FORMATS: any matrix, any rows; what is saved comes back bit for bit; files are not
trusted."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from formats import FORMATS, FormatError, from_arrays
from formats.storage.check import check_product, saved

every = pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
some = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
few = settings(some, max_examples=10)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
# strips, slices and tiles end here
edges = st.integers(1, 20) | st.sampled_from((24, 31, 33, 48, 63, 64, 65, 80, 130))
rows = st.sampled_from((1, 2, 7, 15, 16, 17, 31, 32, 33, 70))
kinds = st.sampled_from(
    ("random", "sparse", "empty inputs", "empty outputs", "one output", "zero", "dense", "huge", "tiny")
)


def matrix(rng, n, p, kind):
    """A matrix of one of the kinds that formats meet."""
    W, density = rng.standard_normal((n, p), np.float32), rng.random()
    if kind == "random":
        W *= rng.random((n, p)) < density
    if kind == "sparse":
        W *= rng.random((n, p)) < density**6
    if kind == "empty inputs":
        W *= rng.random((n, 1)) < density
    if kind == "empty outputs":
        W *= rng.random((1, p)) < density
    if kind == "one output":
        W *= np.arange(p) == rng.integers(p)
    return W * np.float32({"zero": 0, "huge": 2e3, "tiny": 1e-6}.get(kind, 1))


def few_inputs(rng, T, n):
    """Rows that are 0 but in their first and last inputs, and beside 2^16: little rounds, so little is allowed to be
    off."""
    x, places = (
        np.zeros((T, n), np.float32),
        np.array([0, 1, n - 2, n - 1, *(at for at in (63, 65535, 65536) if at < n)]),
    )
    x[:, places] = rng.standard_normal((T, len(places)))
    return x


def stored(F, W, chosen=0):
    """W as near as F can hold it, by one of its choices, or as it is by default; None where F has nothing for the
    shape."""
    options = [*F.choices(*W.shape), {}]
    try:
        return F.approximate(W, **options[chosen % len(options)])
    except FormatError:
        return None


@pytest.mark.deep(every=6)
@every
def test_a_single_number_and_sides_that_nothing_divides(F):
    """Whatever the options say, what can be stored multiplies; and something can, for every format."""
    rng, found = np.random.default_rng(0), []
    for (n, p), chosen in itertools.product(((1, 1), (1, 5), (5, 1), (17, 33), (40, 1), (1, 70), (48, 65)), range(4)):
        if packed := stored(F, rng.standard_normal((n, p), np.float32), chosen):
            found.append((n, p))
            for T in (1, 3, 40):
                check_product(packed, rng.standard_normal((T, n), np.float32), rng)
    assert (48, 65) in found and len(found) >= 3


@pytest.mark.deep(every=7)
@every
@some
@given(seeds, edges, edges, rows, kinds, st.integers(0, 9))
def test_any_matrix_times_any_rows(F, rng, n, p, T, kind, chosen):
    """Rounding bounds, bytes, both ways to save, and W.T."""
    packed = stored(F, matrix(rng, n, p, kind), chosen)
    assume(packed is not None)
    check_product(packed, rng.standard_normal((T, n), np.float32), rng)
    assert packed.nbytes == F.bytes.subs(packed.sizes) == sum(array.nbytes for array in packed.arrays().values())
    again, turned, back = saved(packed), packed.transpose(), packed.unpack()
    assert type(again) is F and again.meta() == packed.meta() and again.sizes == packed.sizes
    for name, array in packed.arrays().items():
        assert again.arrays()[name].tobytes() == array.tobytes()
    assert turned.shape == (p, n) and np.linalg.norm(turned.unpack().astype(float) - back.T) <= turned.tolerance(back.T)


@every
@few
@given(seeds, edges, edges, kinds)
def test_what_is_packed_is_held_or_refused(F, rng, n, p, kind):
    W = matrix(rng, n, p, kind)
    try:
        packed = F.pack(W)
    except FormatError as refused:
        assert len(str(refused)) > 20
    else:
        assert np.linalg.norm(packed.unpack().astype(float) - W) <= packed.tolerance(W)


@every
@few
@given(seeds, edges, edges)
def test_a_picture_of_any_size(F, rng, n, p):
    packed = stored(F, matrix(rng, n, p, "random"))
    assume(packed is not None)
    first, *lines = packed.show().splitlines()
    assert first == repr(packed) and len(lines) == min(n, 32) and {len(line) for line in lines} == {min(p, 64)}
    assert (set("".join(lines)) == {" "}) == (not packed.unpack().any())


@pytest.mark.deep(every=21)
@every
def test_more_inputs_and_outputs_than_two_bytes_name(F):
    rng = np.random.default_rng(1)
    for n, p in (65600, 8), (8, 65600):
        packed = stored(F, matrix(rng, n, p, "random"))
        for T in (1, 5):
            for x in rng.standard_normal((T, n), np.float32), few_inputs(rng, T, n):
                check_product(packed, x, rng)
        assert packed.nbytes == F.bytes.subs(packed.sizes) and np.array_equal(saved(packed).unpack(), packed.unpack())


# ---- files are not trusted


def plain(F, rng=None, n=48, p=40):
    """meta and arrays, writable, of a matrix that F holds."""
    packed = stored(F, matrix(rng or np.random.default_rng(2), n, p, "random"))
    return json.loads(json.dumps(packed.meta())), {name: array.copy() for name, array in packed.arrays().items()}


def refused(meta, arrays):
    with pytest.raises(FormatError) as error:
        from_arrays(meta, arrays)
    assert len(str(error.value)) > 20
    return True


@every
def test_arrays_of_another_kind_or_shape_are_refused(F):
    for name in F.fields:
        meta, arrays = plain(F)
        wrong = {"f": np.float64, "u": np.int64, "i": np.int64}[arrays[name].dtype.kind]
        assert refused(meta, arrays | {name: arrays[name].astype(wrong)})
        assert refused(meta, arrays | {name: arrays[name][None]}) and refused(
            meta, arrays | {name: arrays[name].reshape(-1)[0]}
        )
        assert refused(meta, {other: array for other, array in arrays.items() if other != name})
        assert refused(meta, arrays | {"more": arrays[name]})
        if arrays[name].dtype.kind == "f":
            assert refused(meta, arrays | {name: np.full_like(arrays[name], np.nan)})


@every
def test_arrays_cut_short_are_refused(F):
    meta, arrays = plain(F)
    for name, array in arrays.items():
        for kept in {0, 1, len(array) // 2, len(array) - 1} - {len(array)}:
            assert refused(meta, arrays | {name: array[:kept].copy()}), (name, kept)


@every
def test_words_about_the_arrays_that_are_wrong_are_refused(F):
    meta, arrays = plain(F)
    for shape in ([], [48], [48, 40, 1], [48.0, 40], ["48", 40], [0, 40], [-48, 40], None, [None, 40], [48, True]):
        assert refused(meta | {"shape": shape}, arrays)
    for form in (None, 3, "", F.name.upper(), [F.name]):
        assert refused(meta | {"format": form}, arrays)
    assert refused({name: value for name, value in meta.items() if name != "shape"}, arrays)
    assert refused(meta | {"colour": 3}, arrays)
    for name in set(meta) - {"format", "shape"}:
        for value in (0, -1, 1.5, "2", None, True):
            assert refused(meta | {name: value}, arrays)
        assert refused({other: value for other, value in meta.items() if other != name}, arrays)


@pytest.mark.deep(every=6)
@every
@some
@given(seeds, st.data())
def test_flipped_bits_are_refused_or_harmless(F, rng, data):
    """Where indices, shape or options are not what was written, either a FormatError, or a matrix: its product is that
    of what it unpacks, so nothing is read from or written to where it should not be."""
    meta, arrays = plain(F, rng, *data.draw(st.sampled_from(((48, 40), (16, 16), (24, 70)))))
    whole = [name for name, array in arrays.items() if array.dtype.kind in "ui" and array.size]
    what = data.draw(st.sampled_from([*whole, "shape", *(set(meta) - {"format", "shape"})]))
    if what in whole:
        raw = arrays[what].reshape(-1).view(np.uint8)
        for at in data.draw(st.lists(st.integers(0, raw.size - 1), min_size=1, max_size=3)):
            raw[at] ^= data.draw(st.integers(1, 255))
    elif what == "shape":
        meta["shape"][data.draw(st.integers(0, 1))] += data.draw(st.integers(-9, 9))
    else:
        meta[what] = data.draw(st.integers(1, 99))
    try:
        packed = from_arrays(meta, arrays)
    except FormatError:
        return
    if abs(packed.unpack()).max() > 1e6:
        return  # bits of a number, which is now beyond what float32 can add
    for T in (1, 5):
        check_product(packed, rng.standard_normal((T, packed.shape[0]), np.float32), rng)


@every
def test_an_index_that_overflows_is_refused(F):
    """What a narrow index cannot say is never wrapped around."""
    meta, arrays = plain(F)
    packed = from_arrays(meta, arrays)
    for name, array in packed.arrays().items():
        if array.dtype.kind != "u" or not array.size:
            continue
        for value in (-1, int(np.iinfo(array.dtype).max) + 1):
            wide = array.astype(np.int64)
            wide.flat[-1] = value
            with pytest.raises(FormatError, match=rf"{F.name}.{name}: .* do not fit into {array.dtype}"):
                F(packed.shape, tuple((packed.arrays() | {name: wide}).values()), **packed.remembered)
