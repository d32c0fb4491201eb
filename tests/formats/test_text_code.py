"""Texts of kernels as machine code are what Python makes of them."""
import numpy as np
import pytest

from formats.folding import fold_lanes
from formats.kernels.engine import objects
from formats.kernels.engine.compiled import provide
from formats.kernels.engine.from_text import TextKernel

OUT, ASKED = 24, [(0, 0), (1, 5), (7, 2), (64, 63)]         # expressions of a kernel; what it is called with
ENDS = "item", "worker", "a", "b", "out[0]", "-3", "1", "17"


def expression(rng, depth):
    """Random Python over whole numbers: what is divided by is a number, so nothing divides by 0."""
    if depth == 0: return ENDS[rng.integers(len(ENDS))]
    x, y, z = (f"({expression(rng, depth - 1)})" for _ in range(3))
    by = rng.choice([-7, -2, 1, 3, 16])
    return rng.choice([f"{x} + {y}", f"{x} - {y}", f"{x} * 3", f"{x} // {by}", f"{x} % {by}", f"min({x}, {y})",
                       f"max({x}, {y})", f"{x} if {y} < {z} else {z}", f"-{x}", f"{x} >> 2", f"{x} & {y}",
                       f"1 if {x} > {y} and {z} != 2 or {y} == {z} else 0"])


def whole_text(rng):
    """A kernel that assigns such numbers, in loops and by tests, and leaves early."""
    lines = ["def numbers_of_text(item, worker, arguments):", f"    out = longs(arguments, {OUT})",
             "    a, b = item - 8, worker * 5", "    item += 1"]
    for k in range(OUT - 2): lines.append(f"    out[{k}] = {expression(rng, 3)}")
    lines += ["    for i in range(item, item + worker, 3):", "        b += i // 2", "        out[1] += b",
              "    while a < 3 and b != 0:", "        a += 2", "        if a > 2: out[2] = a", "        else: pass",
              f"    out[{OUT - 2}] = a", "    if item % 2 == 0: return", f"    out[{OUT - 1}] = b", ""]
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
    kernel = TextKernel("\n".join(["def compared_of_text(item, worker, arguments):",
                                   "    given, out = floats(arguments, 2), longs(item, 6)", "    a, b = given[0], given[1]",
                                   *lines, ""]), fold_lanes.__name__)
    provide([kernel])
    for pair in [(0.25, 0.5), (0.5, 0.25), (0.5, 0.5), (np.nan, 0.5), (np.inf, np.inf), (-0.0, 0.0)]:
        a, b = given = np.array(pair, np.float32)
        found = np.zeros(6, np.int64)
        kernel.call(found.ctypes.data, 0, given.ctypes.data)
        assert found.tolist() == [a < b, a <= b, a > b, a >= b, a == b, a != b], pair


def test_what_texts_do_not_say_is_refused_by_what_it_says():
    kernel = TextKernel("def refused(item, worker, arguments):\n    a = [item]\n", fold_lanes.__name__)
    with pytest.raises(RuntimeError, match=r"\[item\]: no text of a kernel says this"): provide([kernel])


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
