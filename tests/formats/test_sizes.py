"""Sizes: they evaluate by themselves, exactly, and are expressions of sympy where one asks for these."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sympy
from children import ROOT
from hypothesis import given
from hypothesis import strategies as st

from formats import FORMATS, Format, FormatError
from formats.core.arrays import read_sizes
from formats.core.sizes import (
    Max,
    Min,
    T,
    blocks,
    ceiling,
    f4,
    floor,
    group,
    kept,
    m,
    n,
    nnz,
    p,
    size,
    u1,
    u4,
    unsigned,
)

NAMES = n, p, T, nnz
WHOLE = st.integers(1, 1000)
LEAVES = st.sampled_from(NAMES) | st.integers(1, 64)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from("+*/-"), inner, inner).map(lambda t: joined(*t))
        | inner.map(ceiling)
        | inner.map(floor)
        | st.tuples(inner, inner).map(lambda t: Max(*t))
    ),
    max_leaves=8,
)


def joined(mark, a, b):
    if mark == "/":
        return sympy.Rational(a, b) if isinstance(a, int) and isinstance(b, int) else a / b
    return a + b if mark == "+" else a * b if mark == "*" else a - b


@given(TREES, st.tuples(WHOLE, WHOLE, WHOLE, WHOLE))
def test_a_size_is_what_its_expression_is(tree, numbers):
    sizes = dict(zip(NAMES, numbers, strict=True))
    wanted = sympy.sympify(tree).subs(sizes)
    if not hasattr(tree, "at"):
        return  # numbers, and what sympy made of numbers
    try:
        found = tree.at(sizes)
    except ZeroDivisionError:
        assert wanted.has(sympy.zoo, sympy.nan, sympy.oo)
    else:
        assert found == Fraction(int(wanted.p), int(wanted.q))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_declared_sizes_are_what_their_expressions_are(form):
    packed = form.approximate(np.random.default_rng(0).standard_normal((64, 72), np.float32))
    for array in form.fields.values():
        for axis in array.shape:
            assert axis.at(packed.sizes) == sympy.sympify(axis).subs(packed.sizes) >= 0
    assert all(isinstance(each, sympy.Basic) for each in (form.bytes, form.flops, *form.work))
    assert form.bytes is form.bytes


def test_they_are_exact():
    assert (n / group * kept).at({n: 12, group: 8, kept: 2}) == 3 and (n / 3 * 3).at({n: 10}) == 10
    assert (n / 4).at({n: 10}) == Fraction(5, 2) and ceiling(n / 4).at({n: 10}) == 3 and floor(n / 4).at({n: 10}) == 2
    assert (ceiling(n / 2) / ceiling(p / 2)).at({n: 5, p: 4}) == Fraction(3, 2)
    assert Min(1 + ceiling(T / 8), 4).at({T: 9}) == 3 and (n % 4 + n // 4 + n**2 - 1).at({n: 10}) == 2 + 2 + 100 - 1
    with pytest.raises(KeyError):
        (n + p).at({n: 1})


def test_what_is_asked_of_an_expression_is_answered():
    assert str(u4[ceiling(p / 16) + 1]) == "u4[ceiling(p/16) + 1]" and repr(n * p) == "n*p"
    assert n * p == p * n and n != p and n == size("n") and hash(n * p) == hash(p * n) and n != size("n", 0)
    assert (n * p).free_symbols == {sympy.sympify(n), sympy.sympify(p)} and (2 * n).subs(n, 3) == 6
    assert n.is_positive and nnz.is_nonnegative and not nnz.is_positive and (n * p).is_positive
    other = sympy.Symbol("q", positive=True)
    assert (n * other, other * n, n + other, other - n) == tuple(
        map(sympy.sympify, (n * other, n * other, other + n, other - n))
    )
    assert str(n <= 5) == "n <= 5" and sympy.expand(n * (p + 1)) == n * p + n and ceiling(other).func is sympy.ceiling
    with pytest.raises(AttributeError):
        _ = n.nonsense


class Doubled(Format):
    """Each number twice, declared by expressions of sympy."""

    w: f4[sympy.Symbol("n", integer=True, positive=True), 2 * sympy.sympify(p)]
    flops = 2 * sympy.sympify(T) * sympy.Symbol("n", integer=True, positive=True) * p

    def fit(W):
        return W

    def pack(W):
        return np.repeat(W, 2, 1)

    def unpack(shape, w):
        return w[:, ::2]

    def kernel(x, w, out, epilogue):
        out[...] = epilogue.reference(x @ w[:, ::2])


def test_a_format_may_be_declared_by_sympy():
    Doubled.check(np.random.default_rng(0))
    assert Doubled.bytes == 8 * n * p and Doubled.flops == 2 * T * n * p
    with pytest.raises(FormatError, match=r"doubled.w: declared f4\[n, 2\*p\] = \[4, 6\], given \[4, 5\]"):
        Doubled((4, 3), (np.zeros((4, 5), np.float32),))


def test_a_size_that_nothing_says_is_named():
    with pytest.raises(FormatError, match=r"declared u1\[p, n/4\] = \[3, 5/2\], given \[3, 2\]"):
        read_sizes("odd", {"w": u1[p, n / 4]}, ((3, 2),), {n: 10, p: 3})
    with pytest.raises(FormatError, match=r"declared f4\[m \+ 1\] = \[m \+ 1\], given \[3\]"):
        read_sizes("odd", {"w": f4[m + 1]}, ((3,),), {n: 10})
    assert unsigned(n)[blocks].bytes.subs({n: 3, blocks: 5}) == 10


def test_importing_sizes_imports_no_sympy():
    code = (
        "import sys, formats; from formats.core.sizes import n; W = formats.CSR.pack([[1, 0], [0, 2]]); "
        "formats.from_arrays(W.meta(), W.arrays()); print('sympy' in sys.modules, formats.CSR.bytes)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.startswith("False nnz*"), run.stdout + run.stderr
