"""Random terms: both oracles agree, text reads back, declared and derived properties hold, entries are the operator."""

from fractions import Fraction

import numpy as np
import pytest
from generate import random_batch, random_term
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from opmatrix.algebra.entries import NoMatrix
from opmatrix.algebra.operators import I, attention, compose, const, diag, product, relu, rsqrt, square, tanh, weight
from opmatrix.algebra.oracles import DenseReading, dense, entrywise
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.term import PROPERTIES, Data, formula, read
from opmatrix.display.show import latex, names, text

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=60, deadline=None, derandomize=True)


def drawn(seed, **more):
    """A random term, numbers of few digits for it, and a batch."""
    rng = np.random.default_rng(seed)
    A = random_term(rng, depth=int(rng.integers(1, 4)), **more)
    return A, np.round(rng.normal(size=(6, 5)) * 8) / 8, random_batch(rng), rng


def close(found, wanted, digits=1e-9):
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found, wanted, rtol=digits, atol=digits * (1 + np.abs(wanted[finite]).max(initial=0)))


@few
@forall(seeds)
def test_both_oracles_agree(seed):
    A, x, batch, _ = drawn(seed)
    one = dense(A, x, batch)
    close(one, entrywise(A, x, batch).reshape(one.shape).astype(float))
    close(one, read(A, DenseReading(x, batch), {}).array)  # at once, where dense goes sentence by sentence


@few
@forall(seeds)
def test_exact_rationals_agree(seed):
    A, x, batch, _ = drawn(seed, exact=True)
    exact = entrywise(A, x, batch, Fraction)
    assert all(isinstance(v, Fraction | int) for v in exact.flat)
    one = dense(A, x, batch)
    close(one, exact.reshape(one.shape).astype(float))


def test_whole_numbers_are_exact_however_many_digits(rng, data):
    """Those of numpy overflow."""
    x, A = rng.integers(-3, 4, (3, 4)), weight(data("W", 4, 4)) @ weight(data("V", 4, 4)) @ square
    exact = entrywise(A, x, number=Fraction)
    assert max(v.denominator for v in exact.flat) > 2**64
    assert (exact == entrywise(A, x.astype(float), number=Fraction)).all()


@few
@forall(seeds)
def test_text_reads_back(seed):
    A, _, _, _ = drawn(seed)
    assert eval(text(A), names(A)) is A, text(A)
    assert eval(text(A, short=False), names(A)) is A, text(A, short=False)
    assert latex(A).count("{") == latex(A).count("}") and "<table>" in A._repr_html_()


class Field(int):
    """Numbers modulo a large prime: what is polynomial can be checked in it without any rounding."""

    prime = 2**61 - 1

    def __new__(cls, value):
        numerator, denominator = value.as_integer_ratio()
        return super().__new__(cls, numerator * pow(denominator, -1, cls.prime) % cls.prime)

    def __add__(self, other):
        return Field(int(self) + int(other))

    def __mul__(self, other):
        return Field(int(self) * int(other))

    __radd__, __rmul__ = __add__, __mul__


def test_a_prime_field_is_a_number_type(rng, data):
    x, A = np.round(rng.normal(size=(3, 4)), 2), (I + weight(data("W", 4, 4)) @ square) @ weight(data("V", 4, 2))
    exact = entrywise(A, x, number=Fraction)
    assert [Field(v) for v in exact.flat] == list(entrywise(A, x, number=Field).flat)


def holds(A, name, x, batch, rng):
    """Whether the property is true of the operator at random numbers, in words of its definition."""

    def f(v):
        found = dense(A, v, batch)
        return found.reshape(-1, *found.shape[-2:])

    y = rng.normal(size=x.shape)
    left, right = PROPERTIES[name].sides(f, x, y)
    bound = 1e-8 * (1 + abs(f(x)).max() + abs(f(y)).max())
    return left.shape == right.shape and np.allclose(left, right, rtol=1e-8, atol=bound)


@few
@forall(seeds, st.sampled_from([3, 5]), st.sampled_from(list(PROPERTIES)))
def test_derived_properties_hold(seed, p, name):
    rng = np.random.default_rng(seed)
    batch, x = random_batch(rng), rng.normal(size=(6, 5))
    terms = [random_term(rng, p=p, depth=int(rng.integers(0, 3))) for _ in range(20)]
    for A in terms:
        if getattr(A, name) and np.isfinite(dense(A, x, batch)).all():
            assert holds(A, name, x, batch, rng), f"{A} is not {name}"


# not of 5 columns of a head
@pytest.mark.deep(every=4)
@pytest.mark.parametrize("name", sorted(PROPERTIES.keys() - {"splits", "stacked", "column", "level"}))
def test_random_terms_do_have_each_property_and_not(name):
    """So the test before this one is not empty; and what is not claimed is mostly not so."""
    rng = np.random.default_rng(1)
    claims = [bool(getattr(random_term(rng, p=5, depth=k % 3), name)) for k in range(300)]
    assert 5 < sum(claims) < 295


@pytest.mark.parametrize(
    "name, guarded",
    [
        ("linear", relu),
        ("linear", const([1.0, 2, 3, 4, 5])),
        ("additive", square),
        ("row_wise", formula(lambda x: x @ x.T @ x)),
        ("diagonal", weight(np.ones((5, 5)))),
        ("entrywise", diag([1.0, 2, 3, 4, 5])),
        ("positively_homogeneous", square),
        ("maps_zero_to_zero", I + 1),
        ("constant", tanh),
        ("uniform", None),
    ],
)
def test_what_refutes_each_property(name, guarded, rng):
    """A guard must refuse something: each definition fails where the property is not claimed."""
    from opmatrix.algebra.operators import given

    A, batch, x = guarded or given("positions", 5), random_batch(rng), rng.normal(size=(6, 5))
    assert not getattr(A, name) and not holds(A, name, x, batch, rng)


def test_a_value_of_the_batch_is_no_matrix(rng):
    """x * given is additive and row-wise, but another matrix for each row: it must not license the adjoint law."""
    from opmatrix.algebra.operators import given

    A = I * (given("positions", 5) @ np.ones((5, 5)) @ diag(rng.normal(size=5)) + given("kinds", 5))
    assert (
        A.additive
        and A.row_wise
        and not A.linear
        and not holds(A, "linear", rng.normal(size=(6, 5)), random_batch(rng), rng)
    )


@few
@forall(seeds)
def test_linear_operators_have_adjoints(seed):
    rng = np.random.default_rng(seed)
    for A in (random_term(rng, depth=int(rng.integers(0, 3)), tokens=False) for _ in range(20)):
        if not A.linear or A.into.cols != 5 or A.into.heads == A.out.heads != 1:
            continue
        matrix = dense(A, np.eye(5))
        close(dense(A.T, np.eye(3)), matrix.T)


@few
@forall(seeds)
def test_entries_are_the_operator(seed):
    """Where the theorem gives entries over sum, out[j] is the sum of A[i, j](x[i])."""
    rng = np.random.default_rng(seed)
    x, batch = rng.normal(size=(6, 5)), random_batch(rng)
    for A in (random_term(rng, depth=int(rng.integers(0, 4)), tokens=False) for _ in range(10)):
        try:
            entries = [[A[i, j] for j in range(3)] for i in range(5)]
        except NoMatrix:
            continue
        from opmatrix.algebra import monoids
        from opmatrix.algebra.entries import monoid

        if monoid(A) is monoids.sum:
            close(
                np.stack([sum(entries[i][j](x[:, i]) for i in range(5)) + 0 * x[:, 0] for j in range(3)], -1),
                dense(A, x, batch),
            )


def test_printing_of_odd_terms(data):
    """Terms that operators never make, but kinds do."""
    W, b, I_ = weight(data("lambda", 4, 4)), const(data("I", 4)), weight(data("x", 4, 4))
    odd = [
        compose(I, relu),
        compose(relu, I),
        const(0.5) + W,
        W + 0.5,
        W - 0.5,
        -W,
        -(W + b),
        -const(2.0) + W,
        W - (b - I_),
        W * -1 * -1,
        W @ const(0.5),
        const(0.5) @ np.ones((1, 4)),
        const([1.0, 2, 3, 4]) @ diag(data("I", 4)),
        const(data("W", 1, 4)),
        weight(data("V", 2, 4, 4)),
        const(data("V", 4, 1).T),
        formula(lambda x: (0.5 + x.T).T),
        formula(lambda x: x.T.T @ W @ (x @ b).T),
        formula(lambda x: -x.T),
        formula(lambda x: product(x @ x.T, x @ b, where=sequence)),
        formula(lambda x: b + x.T.T),
        formula(lambda x: (x @ W) @ (-x).T),
        W @ formula(lambda x: x @ x.T @ x),
        const(np.inf) + W,
        const(-0.0) + W,
        attention(W, W @ W.T, W + b, 2, sequence),
        W @ rsqrt @ (W @ W),
    ]
    for A in odd:
        assert eval(str(A), names(A)) is A, str(A)


def test_names_that_are_taken():
    """Two arrays of one name, the name of an operator, a word of Python, no identifier at all."""
    rng = np.random.default_rng(99)
    W, V = Data(rng.normal(size=(4, 4)), "W"), Data(rng.normal(size=(4, 4)), "W")
    A = (
        weight(W)
        @ weight(V)
        @ diag(Data(rng.normal(size=4), "W"))
        @ weight(Data(rng.normal(size=(4, 4)), "relu"))
        @ relu
    )
    A = A @ weight(Data(rng.normal(size=(4, 4)), "if")) @ weight(Data(rng.normal(size=(4, 4)), "0.a/b"))
    assert str(A) == "W @ W_ @ diag(W__) @ relu_ @ relu @ if_ @ _0_a_b" and eval(str(A), names(A)) is A
