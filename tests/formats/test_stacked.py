"""Stacks: E matrices in one format, equal to E formats one by one; generated from the formats' declarations."""

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from formats import (
    BF16,
    CSR,
    FORMATS,
    NM,
    Dense,
    Format,
    FormatError,
    Half,
    Int8,
    LowRank,
    Packed,
    Stacked,
    can_stack,
    read_stored,
)
from formats.core.arrays import LINE

STACKABLE = [F for F in FORMATS.values() if can_stack(F)]
FORMS = [
    pytest.param(F, options, id=f"{F.name}-{i}") for F in STACKABLE for i, options in enumerate(F.choices(128, 72))
]
NEEDED = {"packed", "half", "bf16", "int8", "int4", "q4_1"}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def saved(stack):
    """The stack after a journey through JSON and safetensors."""
    return read_stored(
        json.loads(json.dumps(stack.meta())),
        load(save({name: np.ascontiguousarray(array) for name, array in stack.arrays().items()})),
    )


def test_what_can_be_stacked_is_read_from_declarations():
    names = {F.name for F in STACKABLE}
    assert names >= NEEDED and not names & {"csr", "csc", "sell", "block", "lowrank", "blockint8", "nm", "vectorwise"}


class Counted(Format):
    """A format with a count of its own for every matrix, declared here alone."""

    from formats.core.sizes import f4, n, nnz, p

    w: f4[nnz]

    def fit(W):
        return W

    def pack(W):
        return W[W != 0]

    def unpack(shape, w):
        return np.zeros(shape)

    def kernel(x, w, out, epilogue):
        out[...] = 0


def test_what_has_a_count_of_its_own_cannot_be_stacked():
    assert not can_stack(Counted)
    with pytest.raises(FormatError, match="counted: its arrays differ in size from matrix to matrix"):
        Stacked.pack(Counted, normal(2, 4, 4))


@pytest.mark.parametrize("F, options", FORMS)
def test_a_stack_is_its_matrices_one_by_one(F, options):
    W, x, shared = normal(8, 128, 72), normal(5, 8, 128, seed=1), normal(5, 1, 128, seed=2)
    each = [F.approximate(one, **options) for one in W]
    products = [(alone.matmul(x[:, e]), alone.matmul(shared[:, 0])) for e, alone in enumerate(each)]
    for count in 1, 3, 8:
        stack = Stacked.approximate(F, W[:count], **options)
        assert stack.shape == (count, 128, 72) and len(stack) == count and stack.nbytes == count * each[0].nbytes
        own, alike, back = stack.matmul(x[:, :count]), stack.matmul(shared), stack.unpack()
        for e, alone in enumerate(each[:count]):
            assert type(stack[e]) is F and stack[e].meta() == alone.meta()
            for name, array in alone.arrays().items():
                assert np.array_equal(stack[e].arrays()[name], array)
                assert np.shares_memory(stack[e].arrays()[name], stack.arrays()[name]), "a view, no copy"
            assert np.array_equal(own[:, e], products[e][0]) and np.array_equal(alike[:, e], products[e][1])
            assert np.array_equal(back[e], alone.unpack())
        again = saved(stack)
        assert (again.meta(), again.nbytes) == (stack.meta(), stack.nbytes)
        assert all(np.array_equal(array, again.arrays()[name]) for name, array in stack.arrays().items())


@pytest.mark.parametrize("F", STACKABLE, ids=lambda F: F.name)
def test_matrices_begin_on_cache_lines_at_a_fixed_step(F):
    """At a width that fills no line, too: 7 scales of 4 bytes."""
    stack = Stacked.approximate(F, normal(3, 64, 7))
    for name, array in stack.arrays().items():
        assert stack.steps[name] == array.strides[0] and stack.steps[name] % LINE == 0
        starts = [stack[e].arrays()[name].ctypes.data for e in range(3)]
        assert starts[0] % LINE == 0 and np.diff(starts).tolist() == [stack.steps[name]] * 2
        assert array[0].flags.c_contiguous and not array.flags.writeable


def test_real_widths():
    """One expert pair of a small mixture: 512 x 1792, bytes as declared, no padding between matrices."""
    stack = Stacked.approximate(Int8, normal(2, 512, 1792))
    assert stack.nbytes == 2 * (512 * 1792 + 4 * 1792) and stack.steps == {"w": 512 * 1792, "scale": 4 * 1792}
    assert all(array.flags.c_contiguous for array in stack.arrays().values())
    x = normal(3, 2, 512, seed=3)
    assert np.array_equal(stack.matmul(x)[:, 1], Int8.approximate(normal(2, 512, 1792)[1]).matmul(x[:, 1]))


def test_arrays_that_lie_well_are_kept_without_a_copy():
    stack = Stacked.pack(Packed, normal(4, 64, 64))
    again = Stacked.from_arrays(Packed, stack.meta(), stack.arrays())
    assert again.arrays()["w"] is stack.arrays()["w"] and np.shares_memory(again[3].w, stack.arrays()["w"])


def test_options_of_single_matrices():
    W, scales = normal(2, 128, 16), [np.full(128, 2.0), np.linspace(1, 9, 128)]
    [F] = [F for F in STACKABLE if "scale" in F.parameters and F.metric() == "wanda" and F.name.startswith("balanced")]
    stack = Stacked.approximate(F, W, [{"scale": scale} for scale in scales])
    for e in range(2):
        assert np.array_equal(stack[e].unpack(), F.approximate(W[e], scale=scales[e]).unpack())
    assert not np.array_equal(stack[1].unpack(), F.approximate(W[1], scale=scales[0]).unpack())


def test_promised_stacks_have_sizes_and_bytes():
    stack = Stacked.promised(Int8, 8, 512, 1792, group=64)
    assert stack.nbytes == 8 * (512 * 1792 + 4 * 8 * 1792) and stack.meta()["group"] == 64
    assert repr(stack) == "8 × int8(512×1792, group=64)" and stack[7].shape == (512, 1792)


# ---- what is refused


def broken(**changes):
    """An int8 stack of three, as a file says it, with that changed."""
    stack = Stacked.approximate(Int8, normal(3, 64, 16))
    meta, arrays = stack.meta() | changes.pop("meta", {}), {name: a.copy() for name, a in stack.arrays().items()}
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    return lambda: read_stored(meta, {name: array for name, array in arrays.items() if array is not None})


def spoil(at, value):
    def change(array):
        array[at] = value
        return array

    return change


REFUSED = {
    "another count": (
        broken(meta={"shape": [4, 64, 16]}),
        r"int8.w: the first axis of a stack of 4 matrices is 4, got shape \[3, ",
    ),
    "a part too short": (broken(w=lambda w: w[:, :-64]), "matrix 0 of a stack: int8.w: declared"),
    "negative scale": (broken(scale=spoil((2, 0, 5), -1)), "matrix 2 of a stack: int8: the scale -1.0 is negative"),
    "not finite": (broken(scale=spoil((1, 0, 3), np.nan)), "matrix 1 of a stack: int8.scale: it holds nan"),
    "another type": (broken(w=lambda w: w.astype(np.uint16)), "matrix 0 of a stack: int8.w: declared u1"),
    "none at all": (broken(meta={"shape": [0, 64, 16]}), r"the shape \[0, 64, 16\] is not three positive integers"),
    "an array lost": (broken(scale=lambda scale: None), "int8: it stores w, scale, given w"),
    "a wrong group": (broken(meta={"group": 3}), "matrix 0 of a stack: "),
    "no stack": (lambda: read_stored({"format": "csr", "shape": [2, 4, 4]}, {}), r"csr: the shape \[2, 4, 4\]"),
    "beyond float16": (
        lambda: Stacked.approximate(Half, spoil((1, 0, 0), 1e5)(normal(2, 4, 4))),
        "matrix 1 of a stack: half.fit",
    ),
    "other shapes": (
        lambda: Stacked.pack(Dense, [normal(4, 4), normal(4, 5)]),
        r"dense: matrix 1 of a stack has shape \(4, 5\)",
    ),
    "no matrix": (lambda: Stacked.pack(Dense, []), "dense: a stack needs at least one matrix"),
    "one matrix alone": (lambda: Stacked.pack(Dense, normal(4, 4)), r"matrix 0 of a stack has shape \(4,\)"),
    "low rank": (lambda: Stacked.approximate(LowRank, normal(2, 8, 8), rank=2), "lowrank: its arrays differ in size"),
    "sparse": (lambda: Stacked.pack(CSR, normal(2, 8, 8)), "csr: its arrays differ in size"),
    "places": (lambda: Stacked.approximate(NM, normal(2, 8, 8)), "nm: its arrays differ in size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    act, words = REFUSED[name]
    with pytest.raises(FormatError, match=words):
        act()


@pytest.mark.parametrize("x", [normal(5, 64), normal(5, 2, 64), normal(5, 3, 63)], ids=str)
def test_rows_that_do_not_fit(x):
    with pytest.raises(ValueError, match=r"x @ 3 × bf16\(64×16\): x has shape .* it must be \(rows, 3 or 1, 64\)"):
        Stacked.approximate(BF16, normal(3, 64, 16)).matmul(x)


def test_there_is_no_fourth_of_three():
    with pytest.raises(IndexError, match=r"3 × half\(4×4\)\[3\]: its matrices are 0 to 2"):
        Stacked.pack(Half, np.ones((3, 4, 4), np.float32))[3]
