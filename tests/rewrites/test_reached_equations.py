"""Equations that proofs must reach, at sizes that are names: each is proved, and its false neighbour is not. Over a
monoid or pattern that is a variable a proof needs the flags that make it true."""

import numpy as np
import pytest

from opmatrix.algebra import monoids
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import I, given, mean, product, relu, rsqrt, square, symbol, turn, weight
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import size
from opmatrix.algebra.term import formula
from rewrites.discovery.proved_laws import prove_equation
from rewrites.discovery.small_terms import OPEN_ATTRIBUTES, flagged_name, variable
from rewrites.discovery.stated_laws import StatedEquation, count_operators
from rewrites.proofs.equations import prove
from rewrites.proofs.open_attributes import close_term

N, M, K = (size(name) for name in "nmk")
A, F, G = symbol("A", N, M), symbol("F", M, K), symbol("G", M, K)  # any operators
H = symbol("H", K, M)
W, X = symbol("W", N, M, linear=True), symbol("X", M, K, linear=True)
q, k, v = (symbol(name, N, M, linear=True) for name in "qkv")
s = symbol("s", None, 1, constant=True, uniform=True)
b = symbol("b", None, M, constant=True, uniform=True)
P, Q, R = (np.random.default_rng(at).normal(size=shape) for at, shape in enumerate([(6, 4), (4, 5), (5, 3)], 31))
INVERSE = A @ square @ mean @ rsqrt  # what a norm multiplies a row by


def attend(keys=k, values=v, monoid=softmax):
    """Attention of the queries q."""
    return product(product(q, turn(keys)), values, over=monoid, where=sequence & causal)


def pooled(values):
    """Means over the members of a relation."""
    return formula(lambda x: product(given("members"), values(x), over=monoids.mean))


REACHED = {
    "composition is associative": ((A @ F) @ H, A @ (F @ H), A @ F @ (H @ relu)),
    "A @ (B + C)": (A @ (F + G), A @ F + A @ G, A @ F + A @ relu @ G),
    "(V + W) @ X of a matrix": ((W + A) @ X, W @ X + A @ X, W @ X + A @ relu @ X),
    "p * 2": (A * 2, A + A, A * 3),
    "weight @ weight": (weight(P) @ weight(Q), weight(P @ Q), weight(-P @ Q)),
    "three weights": ((weight(P) @ weight(Q)) @ weight(R), weight(P @ Q @ R), weight(P) @ weight(Q @ R * 2)),
    "a scale moves through a matrix": ((A * s) @ X, (A @ X) * s, A @ X),
    "a scale of scores moves to queries": (
        product(q, turn(k)) * s,
        product(q * s, turn(k)),
        product(q * s, turn(k * s)),
    ),
    "a scale of rows moves through a matrix": ((A * INVERSE) @ X, (A @ X) * INVERSE, A @ X @ relu * INVERSE),
    "late values": (attend(values=v @ X), attend() @ X, attend(values=v @ X @ relu)),
    "late values of a mean": (attend(values=v @ X, monoid=monoids.mean), attend(monoid=monoids.mean) @ X, attend() @ X),
    "late values of a relation": (
        pooled(lambda x: (x @ v) @ X),
        pooled(lambda x: x @ v) @ X,
        pooled(lambda x: x @ v @ relu @ X),
    ),
    "a dropped key shift": (attend(keys=k + b), attend(), attend(keys=k * 2)),
    "a value shift comes out": (attend(values=v + b), attend() + b, attend(values=v + b) + b),
}


@pytest.mark.parametrize("name", REACHED)
def test_equations_are_reached_and_their_neighbours_are_not(name):
    left, right, near = REACHED[name]
    assert prove(left, right).verdict == "proved"
    assert prove(left, near).verdict == "refuted"


# ---- over a monoid and a pattern that are variables

x, y, c, U, B, scores, level = (variable(name) for name in ("x", "y", "c", "U", "A", "s", "t"))
ANY, LINEAR, SHIFTED, NORMAL, SEEN, SELF = map(flagged_name, "MLSNPQ")

BY_FLAGS = {
    "late values": (product(scores, x @ U, LINEAR, SEEN), product(scores, x, LINEAR, SEEN) @ U),
    "values are added": (
        product(scores, x + y, LINEAR, SEEN),
        product(scores, x, LINEAR, SEEN) + product(scores, y, LINEAR, SEEN),
    ),
    "a dropped shift": (product(scores + level, x, SHIFTED, SEEN), product(scores, x, SHIFTED, SEEN)),
    "a bias of values": (product(scores, x + c, NORMAL, SELF), product(scores, x, NORMAL, SELF) + c),
}
WITHOUT_A_FLAG = {
    "late values over any monoid": (product(scores, x @ U, ANY, SEEN), product(scores, x, ANY, SEEN) @ U),
    "late values over a shift invariant one": (
        product(scores, x @ U, SHIFTED, SEEN),
        product(scores, x, SHIFTED, SEEN) @ U,
    ),
    "late functions of values": (product(scores, x @ B, LINEAR, SEEN), product(scores, x, LINEAR, SEEN) @ B),
    "scores are added": (
        product(scores + scores, x, LINEAR, SEEN),
        product(scores, x, LINEAR, SEEN) + product(scores, x, LINEAR, SEEN),
    ),
    "a dropped shift over any monoid": (product(scores + level, x, ANY, SEEN), product(scores, x, ANY, SEEN)),
    "a dropped shift over a normalised one": (
        product(scores + level, x, NORMAL, SEEN),
        product(scores, x, NORMAL, SEEN),
    ),
    "dropped scores": (product(scores + scores, x, SHIFTED, SEEN), product(scores, x, SHIFTED, SEEN)),
    "a bias of values of weights that sum to anything": (
        product(scores, x + c, LINEAR, SELF),
        product(scores, x, LINEAR, SELF) + c,
    ),
    "a bias of values of rows without keys": (
        product(scores, x + c, NORMAL, SEEN),
        product(scores, x, NORMAL, SEEN) + c,
    ),
    "a bias that depends on the row": (product(scores, x + y, NORMAL, SELF), product(scores, x, NORMAL, SELF) + y),
    "another monoid": (product(scores, x, LINEAR, SEEN), product(scores, x, NORMAL, SEEN)),
    "another pattern": (product(scores, x, LINEAR, SEEN), product(scores, x, LINEAR, SELF)),
}


def stated(left, right):
    """The equation of two sides."""
    return StatedEquation(left, right, count_operators(left) + count_operators(right))


@pytest.mark.parametrize("name", BY_FLAGS)
def test_flags_of_a_monoid_prove(name):
    assert prove_equation(stated(*BY_FLAGS[name])) == ("entries as polynomials",)


@pytest.mark.parametrize("name", WITHOUT_A_FLAG)
def test_without_a_flag_nothing_is_proved(name):
    assert prove_equation(stated(*WITHOUT_A_FLAG[name])) == ()


def test_an_open_monoid_has_its_flags_and_no_numbers():
    closed = close_term(product(scores, x, NORMAL, SELF), OPEN_ATTRIBUTES)
    monoid, pattern = closed.attributes
    assert (monoid.normalised, monoid.right_linear, monoid.shift_invariant) == (True, True, False)
    assert pattern.reflexive and not pattern.within
    with pytest.raises(TypeError, match="no numbers"):
        monoid.lift(1.0, 2.0)
    assert close_term(I, OPEN_ATTRIBUTES) is I
