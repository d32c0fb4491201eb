"""Texts of kernels as machine code are what Python makes of them."""

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import numpy as np
import pytest

from formats.kernels.engine import memory, objects
from formats.kernels.engine.compiled import Function, digest_code, provide
from formats.kernels.engine.from_text import TextKernel
from formats.kernels.engine.memory import bytes_at, longs, view_as
from formats.kernels.engine.native import njit
from formats.kernels.generated.folding import fold_lanes

doubles, f4, i8 = view_as(np.float64), np.float32, np.int64
OUT, ASKED = 24, [(0, 0), (1, 5), (7, 2), (64, 63)]  # expressions of a kernel; what it is called with
ENDS = "item", "worker", "a", "b", "out[0]", "-3", "1", "17"


def expression(rng, depth):
    """Random Python over whole numbers: what is divided by is a number, so nothing divides by 0."""
    if depth == 0:
        return ENDS[rng.integers(len(ENDS))]
    x, y, z = (f"({expression(rng, depth - 1)})" for _ in range(3))
    by = rng.choice([-7, -2, 1, 3, 16])
    return rng.choice(
        [
            f"{x} + {y}",
            f"{x} - {y}",
            f"{x} * 3",
            f"{x} // {by}",
            f"{x} % {by}",
            f"min({x}, {y})",
            f"max({x}, {y})",
            f"{x} if {y} < {z} else {z}",
            f"-{x}",
            f"{x} >> 2",
            f"{x} & {y}",
            f"1 if {x} > {y} and {z} != 2 or {y} == {z} else 0",
        ]
    )


def whole_text(rng):
    """A kernel that assigns such numbers, in loops and by tests, and leaves early."""
    lines = [
        "def numbers_of_text(item, worker, arguments):",
        f"    out = longs(arguments, {OUT})",
        "    a, b = item - 8, worker * 5",
        "    item += 1",
    ]
    for k in range(OUT - 2):
        lines.append(f"    out[{k}] = {expression(rng, 3)}")
    lines += [
        "    for i in range(item, item + worker, 3):",
        "        b += i // 2",
        "        out[1] += b",
        "    while a < 3 and b != 0:",
        "        a += 2",
        "        if a > 2: out[2] = a",
        "        else: pass",
        f"    out[{OUT - 2}] = a",
        "    if item % 2 == 0: return",
        f"    out[{OUT - 1}] = b",
        "",
    ]
    return "\n".join(lines)


def test_whole_numbers_loops_and_tests_are_pythons():
    texts = [whole_text(np.random.default_rng(seed)) for seed in range(4)]
    made = [TextKernel(text, fold_lanes.__name__) for text in texts]
    provide(made)
    for text, kernel in zip(texts, made, strict=True):
        for item, worker in ASKED:
            found, wanted = np.zeros((2, OUT), np.int64)
            kernel.call(item, worker, found.ctypes.data)
            words = {"longs": lambda at, count, wanted=wanted: wanted}
            exec(text, words)
            words["numbers_of_text"](item, worker, None)
            assert (found == wanted).all(), (text, item, worker)


def test_numbers_are_compared_as_they_are():
    """Not by their whole parts; what is none is only unequal."""
    tests = "a < b", "a <= b", "a > b", "a >= b", "a == b", "a != b"
    lines = [f"    if {test}: out[{k}] = 1" for k, test in enumerate(tests)]
    head = [
        "def compared_of_text(item, worker, arguments):",
        "    given, out = floats(arguments, 2), longs(item, 6)",
        "    a, b = given[0], given[1]",
    ]
    kernel = TextKernel("\n".join([*head, *lines, ""]), fold_lanes.__name__)
    provide([kernel])
    for pair in [(0.25, 0.5), (0.5, 0.25), (0.5, 0.5), (np.nan, 0.5), (np.inf, np.inf), (-0.0, 0.0)]:
        a, b = given = np.array(pair, np.float32)
        found = np.zeros(6, np.int64)
        kernel.call(found.ctypes.data, 0, given.ctypes.data)
        assert found.tolist() == [a < b, a <= b, a > b, a >= b, a == b, a != b], pair


class Range(NamedTuple):
    """Where a few numbers are, and how many."""

    low: int
    count: int


@njit
def range_of(item, found):
    """Several values, of which one is a number of a known kind; or none where there is nothing."""
    if found is None:
        return Range(item, 0), 0.5
    if not item:
        return Range(0, 0), 0.25
    return Range(found[0] % 5, len(found) - 1), 0.75


@Function.of(4, result=True, rare=True)
def python_of_all(out, given, count, far):
    """What kernels say of Python: leaving loops, tuples, chains of tests, casts, arrays of many kinds."""
    numbers, wide, narrow = longs(given, count), doubles(far, 4), bytes_at(far + 32, 4)
    total, at, put = numbers[0] - numbers[0], -1, longs(out, 8)
    for number in range(count - 1, -1, -1):
        if numbers[number] % 3 == 0:
            continue
        if numbers[number] > 90:
            break
        total += numbers[number]
        at = number
    while True:
        total -= 7
        if not 0 < total <= 40:
            break
    found, part = range_of(total, numbers)
    put[0], put[1], put[2] = total, at, found.low * 100 + found.count
    nothing, half = range_of(count, None)
    put[3] = nothing.count + (nothing.low << 2 | 1) ^ 5
    put[4] = numbers[0] or 11
    put[5] = i8(abs(-part * 8)) + i8(np.sqrt(wide[0])) + max(1, 2, ~at)
    narrow[0], narrow[1] = total + 250, np.uint8(total)
    wide[1] += total / 4 + half
    wide[2] = -np.float64(f4(1) / f4(3))
    put[6] = np.int32(put[5]) if count and total else 0
    for place in range(count - 1, -1, put[0] - put[0] - 2):
        put[6] += 3 * place
    for place in range(0, count, put[0] - put[0] + 3):
        put[6] -= place
    put[7] = narrow[0]
    return total


def test_what_functions_say_is_pythons():
    rng = np.random.default_rng(1)
    for count in (1, 2, 9, 40):
        given = rng.integers(0, 99, count)
        found, wanted = np.zeros((2, 8), np.int64)
        far, like = np.zeros((2, 36), np.uint8)
        for each in (far, like):
            each[:8] = np.array([30.25]).view(np.uint8)
        gave = python_of_all.call(found.ctypes.data, given.ctypes.data, count, far.ctypes.data)
        arrays = {
            "longs": lambda at, many, here=(wanted, given): here[0] if at == 0 else here[1],
            "doubles": lambda at, many, like=like: like[:32].view(np.float64),
            "bytes_at": lambda at, many, like=like: like[32:],
        }
        body = FunctionType(
            python_of_all.body.__code__, python_of_all.body.__globals__ | arrays | {"range_of": range_of.py_func}
        )
        assert gave == body(0, 1, count, 2)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(far, like)


def test_that_function_is_written_without_numbas_inference():
    """A user's kernel may say what only numba knows, so that it would be compiled in any case."""
    code = "from tests.formats.test_text_code import python_of_all as f; compile_written(f)"
    subprocess.run(
        [sys.executable, "-c", f"from formats.kernels.llvm.text_code import compile_written; {code}"],
        env=os.environ | {"OPMATRIX_COMPILES": "1"},
        cwd=Path(__file__).parents[2],
        check=True,
    )


def test_kernels_are_known_by_what_makes_code_of_them(monkeypatch):
    before = digest_code("a kernel")
    assert before == digest_code("a kernel") != digest_code("another")
    monkeypatch.setattr("formats.kernels.engine.compiled.sources", lambda module: "another")
    assert digest_code("a kernel") != before


def test_nothing_is_divided_by_without_end():
    """numba's rule, for a processor would end the process."""
    lines = [
        "def divided_of_text(item, worker, arguments):",
        "    out = longs(arguments, 2)",
        "    out[0], out[1] = item // worker, item % worker",
        "",
    ]
    kernel, found = TextKernel("\n".join(lines), fold_lanes.__name__), np.ones(2, np.int64)
    provide([kernel])
    kernel.call(7, 0, found.ctypes.data)
    assert found.tolist() == [0, 0]


REFUSED = {
    "a list": ("a = [item]", r"\[item\]: not supported in a kernel"),
    "an end of a loop": ("for i in range(3): pass\n    else: item = 1", "not supported in a kernel"),
    "an end of a while": ("while item < 0: item += 1\n    else: item = 1", "not supported in a kernel"),
    "a word of a call": ("a = max(item, worker, default=3)", "not supported in a kernel"),
    "a variable of two kinds": ("a = 1\n    a = a / 2", "float64 assigned to a variable of kind int64"),
    "a test or a number": ("a = item < 2 or worker", "int64 assigned to a variable of kind bool"),
    "tuples that are compared": ("a = (item, 1) == (worker, 1)", "tuples cannot be compared"),
    "a place from the end": ("longs(arguments, 2)[-1] = 3", "index -1 of an array"),
    "a place that is no whole number": ("longs(arguments, 2)[item / 2] = 3", "index"),
    "a number beyond words": ("a = item + 0x8000000000000000", "not a number"),
    "words without signs": ("a = pointer(arguments, np.uint64)[0]", "arrays of .* are not supported"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_texts_do_not_say_is_refused_by_what_it_says(what):
    line, said = REFUSED[what]
    kernel = TextKernel(f"def refused(item, worker, arguments):\n    {line}\n", memory.__name__)
    with pytest.raises(RuntimeError, match=said):
        provide([kernel])


def test_a_loops_body_is_in_the_code_once():
    """Copies of it would take as long to compile as they are many: texts say what is done at a time."""
    text = """RECORD = np.dtype(words('at n'))

def loop_of_text(item, worker, arguments):
    c = record(arguments, RECORD)
    a = get(c.at, None)
    for i in range({}): a = smallest_of(a, get(c.at + 64 * i, None))
    keep(a, c.at, None)
"""
    several, one = (TextKernel(text.format(count), fold_lanes.__name__) for count in ("c.n", "1"))
    provide([several, one])
    sizes = [len(objects.read_code(each.symbol)) for each in (several, one)]
    assert sizes[0] < 1.25 * sizes[1], sizes
