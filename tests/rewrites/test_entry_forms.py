"""Equality by entries: laws of functions hold, equal terms have one form, near misses are refuted."""

from fractions import Fraction

import numpy as np
import pytest
from stated_equations import FALSE, TRUE

from opmatrix.algebra.nodes import exp, reciprocal
from opmatrix.algebra.operators import I, const, gelu, log, relu, sigmoid, square, symbol, tanh, weight
from opmatrix.algebra.shapes import size
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import law, n, value
from rewrites.laws.proving.functions import FUNCTION_LAWS
from rewrites.proofs.entry_proofs import compare_entries
from rewrites.proofs.equations import prove
from rewrites.proofs.law_shapes import shaped
from rewrites.proofs.polynomials import GaveUp, Ring, as_polynomial
from rewrites.proofs.refute import SCENES, refute

EVERY = [pytest.param(name, id=name) for name in TRUE]
SOME = 12  # of the equations, in a run that is not deep


# ---- laws of functions


@pytest.mark.parametrize("each", FUNCTION_LAWS, ids=lambda law: law.name)
def test_laws_of_functions_hold(each):
    each.check(np.random.default_rng(0))


def test_each_law_of_functions_is_used():
    """Each has a shape by which it is found, which is its own."""
    found = shaped()
    tables = [found.definitions, found.reflections, found.behind, found.behind_one]
    assert sum(map(len, tables)) + len(found.products) == len(FUNCTION_LAWS)


@pytest.mark.parametrize("each", FUNCTION_LAWS, ids=lambda law: law.name)
def test_laws_of_functions_prove_themselves(each):
    (left,), (right,) = each.sides()
    assert compare_entries(left, right).proved


# ---- equations over the algebra


@pytest.mark.deep(every=len(TRUE) // SOME)
@pytest.mark.parametrize("name", EVERY)
def test_true_equations_are_proved(name):
    assert prove(*TRUE[name]).verdict == "proved"


@pytest.mark.deep(every=len(FALSE) // SOME)
@pytest.mark.parametrize("name", FALSE)
def test_false_equations_are_refuted(name):
    proof = prove(*FALSE[name])
    assert proof.verdict == "refuted" and str(proof).startswith(("refuted: entry ", "refuted: the shape "))


@pytest.mark.parametrize("name", FALSE)
def test_false_equations_have_two_forms(name):
    assert not compare_entries(*FALSE[name]).proved


@pytest.mark.deep(every=len(TRUE) // SOME)
@pytest.mark.parametrize("name", EVERY)
def test_true_equations_are_not_refuted(name):
    assert refute(*TRUE[name]) is None


# ---- polynomials


def test_bound_indices_have_one_order():
    """A product of three matrices in any order, with indices in any order, is one monomial."""
    ring, size_of = Ring(), size("n")
    heads = [ring.head(name) for name in "abc"]
    made = set()
    for first, last in ((-1, -2), (-2, -1)):
        line = [(heads[0], (0, first)), (heads[1], (first, last)), (heads[2], (last, 1))]
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
            made.add(ring.simple([line[k] for k in order], (size_of, size_of), Fraction(1)).key)
    assert len(made) == 1


def test_numbers_are_exact_where_they_cancel():
    """A number next to 1e15 is not lost, and a sum of one is the size."""
    ring = Ring()
    a = ring.atom(ring.head("a"), ())
    big = a.scaled(Fraction(10) ** 15)
    assert ring.add(big, big.scaled(Fraction(-1)), a).key == a.key
    with pytest.raises(GaveUp):
        ring.add(a, big)  # equal to `big`, as numbers are told apart
    assert ring.summed(as_polynomial(2), 0, 5).number == 10


@pytest.mark.parametrize("off, verdict", [(0.0, "proved"), (4e-16, "proved"), (1e-13, "not found"), (1e-10, "refuted")])
def test_stored_numbers_are_equal_within_rounding(off, verdict):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(9, 7)), rng.normal(size=(7, 11))
    proof = prove(weight(A) @ weight(B), weight(A @ B * (1 + off)))
    assert proof.verdict == verdict
    if proof:
        assert "stored numbers were evaluated" in str(proof)


def test_small_numbers_beside_large_ones_are_told_apart():
    one, other = weight([[1.0, 1e-14]]), weight([[1.0, 2e-14]])
    assert not compare_entries(one, other).proved and prove(one, other).verdict == "not found"


# ---- properties are asked, not names


def test_declared_properties_decide():
    """A function of one's own has what it declares, and no more."""
    from opmatrix.algebra.nodes import scalar_function

    @scalar_function(positively_homogeneous=True, maps_zero_to_zero=True)
    def leaky(u):
        return np.maximum(u, 0.1 * u)

    @scalar_function()
    def bumped(u):
        return u + 1 / (1 + u * u)

    assert prove((I * 3.0) @ leaky, leaky * 3.0) and prove((I * 3.0) @ bumped, bumped * 3.0).verdict == "refuted"
    assert prove((I * 0.0) @ leaky, I * 0.0) and prove((I * 0.0) @ bumped, I * 0.0).verdict == "refuted"
    assert prove((I * -1.0) @ leaky, -leaky).verdict == "refuted"


def test_symbols_of_one_name_are_two():
    a, b = symbol("a", 4, 4), symbol("a", 4, 4, linear=True)
    assert not compare_entries(a, b).proved and compare_entries(a @ b, a @ b).proved


# ---- more laws lose no proof


def test_laws_of_the_search_are_tried_by_themselves():
    """prove knows what they know with them, without them, and with others beside them."""

    @law()
    def useless(x: value[n]):
        return x @ gelu @ tanh, x @ gelu @ tanh @ I

    W, V = symbol("W", 6, 4, linear=True), symbol("V", 4, 3, linear=True)
    c = const(np.arange(4.0))
    one, other = (W + c) @ V, W @ V + c @ V
    for laws in (None, EXACT_LAWS, (*EXACT_LAWS, useless)):
        assert prove(one, other, laws=laws)


def test_what_a_canonical_law_hides_is_found():
    """A law that hides its left side loses no proof of another."""

    @law(canonical=True)
    def hides(x: value[n]):
        return x @ relu @ gelu, x @ gelu @ relu

    @law()
    def needs(x: value[n]):
        return (x @ relu @ gelu) @ tanh, x @ tanh

    sides = relu @ gelu @ tanh, tanh
    for laws in ((needs,), (hides, needs), (needs, hides)):
        assert prove(*sides, laws=laws)


# ---- verdicts


def test_a_verdict_says_what_was_tried():
    found = prove(I @ tanh, I @ tanh @ sigmoid)
    assert str(found).startswith("refuted: entry ") and [each.way for each in found.tried] == [
        "the laws of values",
        "entries as polynomials",
        "the laws of the search",
        "numbers",
    ]
    proved = prove(tanh, (I * 2.0) @ sigmoid * 2.0 - 1.0)
    assert str(proved) == "proved by entries as polynomials (by tanh_is)"


@pytest.mark.parametrize("one, other", [(log @ exp, I), (I @ log, (I * -1.0) @ log)])
def test_what_has_no_value_is_refuted(one, other):
    """A logarithm of a negative number is none, where the other side is one."""
    found = prove(one, other)
    assert found.verdict == "refuted" and np.isnan([found.at.left, found.at.right]).any()


def test_overflow_refutes_nothing():
    """Numbers that float64 cannot hold are no difference."""
    assert refute(exp * ((I * -1.0) @ exp), const(1.0) + I * 0.0) is None
    fourth = square @ square @ square
    assert refute(fourth @ square @ reciprocal, fourth @ reciprocal @ square) is None


@pytest.mark.parametrize("single", range(len(SCENES)))
def test_each_scene_draws(single):
    """Every way in which inputs are drawn gives finite ones."""
    x = SCENES[single].draw(np.random.default_rng(0), (3, 4), (1000.0, 1e-6))
    assert x.shape == (3, 4) and np.isfinite(x).all()
