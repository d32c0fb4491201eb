"""Arrays of every step, alignment, overlap and flag before pages that nobody may touch: right or refused, for every
format and kernel."""

import random
from collections import Counter

import guarded
import numpy as np
import pytest

from formats import FORMATS, Dense, Epilogue, kernels

SAMPLE = 500


@pytest.mark.deep
def test_a_sample_of_all_arrays():
    """benchmarks/faults.py guards runs all of them."""
    sample = random.Random(20240517).sample([*guarded.cases()], SAMPLE)
    found = guarded.run_all(sample)
    total = Counter()
    for (words, result), count in found.items():
        assert result in ("right", "refused"), words
        total[result] += count
    assert total["right"] > SAMPLE / 4 and total["refused"] > SAMPLE / 4


def test_every_format_and_kernel_has_a_door():
    doors = {name.split()[0] for name in guarded.doors()}
    assert set(FORMATS) <= doors
    # embed of one; what leaves a row of out as it is, in test_last_rows.py
    apart = {"gather", "keep_last"}
    assert {name for name in kernels.find_modules() if not name.startswith("product_")} - doors == apart


@pytest.mark.parametrize("door, code", [("touch", "array[-1:].ctypes.data + 4"), ("before", "array.ctypes.data - 4")])
def test_a_crash_has_a_name(monkeypatch, tmp_path, door, code):
    """A child that touches a guard page ends, its case is named, and those after it are run."""
    path = tmp_path / "child.py"
    path.write_text(f"""
import ctypes, json, sys
sys.path.insert(0, {str(guarded.__file__.rpartition("/")[0])!r})
import guarded, numpy as np
for line in sys.stdin:
    case = json.loads(line)
    array = guarded.laid(np.ones(1024, np.float32), "plain", True)
    if case[0] == {door!r}: ctypes.c_float.from_address({code}).value
    print(json.dumps("right"), flush=True)
""")
    monkeypatch.setattr(guarded, "__file__", str(path))
    cases = [("well", 1, "x", "plain", True), (door, 1, "x", "plain", True), ("well", 1, "x", "plain", True)]
    found = guarded.run_all(cases)
    assert found["well", "right"] == 2 and sum(found.values()) == 3
    ((words, _),) = [each for each in found if each[1] == "crashed"]
    assert words.startswith(f"({door!r}")


# ---- in which words

W, X = np.ones((4, 3), np.float32), np.ones((5, 4), np.float32)
SLIDING = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (5, 3), (4, 4))
RECORDS = np.zeros(5, np.dtype([("y", np.float32, 3), ("more", "u2")]))["y"]
FIXED = np.zeros((5, 3), np.float32)
FIXED.flags.writeable = False
WORDS = {
    "step": (
        lambda: kernels.product_dense(X, W, RECORDS),
        r"out: rows must be contiguous and begin at multiples of 4 bytes.*\(14, 4\)",
    ),
    "matmul": (lambda: Dense.pack(W).matmul(X, RECORDS), r"out is float32 \(5, 3\) with strides of \(14, 4\) bytes"),
    "read-only": (lambda: Dense.pack(W).matmul(X, FIXED), "out: it is read-only"),
    "itself": (
        lambda: Dense.pack(W).matmul(X, SLIDING),
        r"out: its elements overlap in memory: shape \(5, 3\), strides of \(4, 4\) bytes",
    ),
    "weight": (
        lambda: kernels.product_dense(np.ones((4, 4), np.float32), w := np.ones((4, 4), np.float32), w),
        "w overlaps out",
    ),
    "bias": (
        lambda: Dense.pack(W).matmul(X, y := np.zeros((5, 3), np.float32), Epilogue(bias=y[2])),
        "bias overlaps out",
    ),
    "part": (
        lambda: kernels.pointwise((y := np.zeros((6, 3), np.float32))[1:], y[:-1], Epilogue(eps=1.0)),
        "x overlaps out",
    ),
    "no numbers": (lambda: X.astype(complex) @ Dense.pack(W), "x: given complex128; give real numbers"),
    "no bias": (lambda: Epilogue(bias=["a"]), "bias: given <U1; give real numbers"),
    "factor": (lambda: kernels.scale(X, 1e39, X), "the factor 1e[+]39 is not a normal float32"),
    "ids": (
        lambda: kernels.gather(np.array([0.5]), W, np.zeros((1, 3), np.float32)),
        "ids: expected 1 whole numbers, got float64",
    ),
    "starts": (
        lambda: kernels.softmax(e := np.zeros(0, np.float32), [0, 2**32], 1, e),
        "starts: 4294967296 rows: give fewer than",
    ),
    "parts of starts": (
        lambda: kernels.softmax(e := np.zeros(0, np.float32), [0, 1.5], 1, e),
        "starts: expected a row of whole numbers",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_is_refused_is_named(name):
    act, words = WORDS[name]
    with pytest.raises(ValueError, match=words):
        act()


def test_masks_are_looked_at():
    """Indices of a mask, which kernels follow, are those of its arrays."""
    from formats import Mask

    q, mask = np.ones((40, 1, 4), np.float32), Mask.window(40, 3, 16)
    for name, place, value, words in (
        ("ptr", 1, 9, "does not rise"),
        ("idx", 0, 3, "block 3 of 16 keys"),
        ("edge", 0, 99, "refers to bits 99"),
    ):
        arrays = {each: array.copy() for each, array in mask.arrays().items()}
        arrays[name][place] = value
        with pytest.raises(ValueError, match=words):
            kernels.attention_blocks(q, q, q, *arrays.values(), np.empty_like(q), 16)


def test_no_rows():
    """Every kernel gives as many; a mask has a query."""
    for name, door in guarded.doors().items():
        if name == "attention_blocks":
            continue
        arrays = door.operands(np.random.default_rng(0), 0)
        door.call(np.empty(door.out(**arrays), np.float32), **arrays)
