"""A[i, j] is a function, given where the homomorphism theorem gives it and refused, naming the factor, elsewhere."""

import numpy as np
import pytest
from test_monoids import minplus

from opmatrix.algebra.monoids import concat, max, mean, moments, rectify, softmax, topk
from opmatrix.algebra.operators import (
    I,
    affine,
    centre,
    cols,
    const,
    diag,
    gelu,
    heads,
    layernorm,
    ones,
    over,
    place,
    relu,
    row,
    rsqrt,
    square,
    symbol,
    tanh,
    total,
    turn,
    weight,
    zero,
)
from opmatrix.algebra.oracles import dense


@pytest.fixture
def W(data):
    return weight(data("W", 4, 3))


@pytest.fixture
def Z(data):
    return weight(data("Z", 3, 5))


def test_kinds(W):
    w = W.args[0].array
    assert relu[0, 0](-3.0) == 0 and relu[0, 0](2.0) == 2 and relu[0, 1](7.0) == 0 and relu[5, 5](7.0) == 7
    assert W[1, 2](2.0) == 2 * w[1, 2] and W[-1, -1](2.0) == 2 * w[3, 2] and W.T[2, 1](2.0) == 2 * w[1, 2]
    assert I[3, 3](2.0) == 2 and I[3, 2](2.0) == 0 and ones[7, 0](2.0) == 2
    assert diag([5.0, 6.0])[1, 1](2.0) == 12 and diag([5.0, 6.0])[0, 1](2.0) == 0
    assert cols(1, 3)[2, 1](2.0) == 2 and cols(1, 3)[0, 0](2.0) == 0 and place(1, 4)[0, 1](2.0) == 2
    np.testing.assert_array_equal(relu[0, 0](np.array([-1.0, 2.0])), [0, 2])


def test_a_constant_has_constant_functions_in_its_first_row():
    b = const([7.0, 8.0])
    assert b[0, 0](123.0) == 7 and b[0, 1](-1.0) == 8 and b[1, 0](123.0) == 0 and zero[0, 0](3.0) == 0


def test_over_a_monoid_an_entry_is_finished(W):
    w = W.args[0].array[1, 2]
    assert over(W, max)[1, 2](2.0) == 2 * w and over(W, minplus)[1, 2](2.0) == 2 + w
    assert over(W, rectify)[1, 2](-2.0 * np.sign(w)) == 0 and over(ones, mean)[4, 0](2.0) == 2
    assert (
        over(I, max)[0, 1](2.0) == -np.inf
        and over(I, minplus)[0, 1](2.0) == np.inf
        and over(ones, moments)[0, 0](2.0) == 0
    )
    assert over(ones, topk(2))[0, 0](2.0) == (2, -np.inf) and over(ones, concat)[0, 0](2.0) == (2,)
    assert over(W, softmax)[1, 2](2.0) == w  # one score alone has all the weight


def test_of_a_stack(data):
    V = weight(data("V", 2, 4, 3))
    assert V[1, 2, 0](2.0) == 2 * V.args[0].array[1, 2, 0] and const(np.arange(6.0).reshape(2, 1, 3))[1, 0, 2](9.0) == 5


def test_a_linear_map_continues_any_matrix(W, Z):
    w, z = W.args[0].array, Z.args[0].array
    np.testing.assert_allclose((W @ Z)[1, 2](2.0), 2 * (w @ z)[1, 2])
    np.testing.assert_allclose((relu @ W @ Z)[1, 2](-2.0), 0)
    np.testing.assert_allclose(
        (affine(w, [1.0, 2.0, 3.0]) @ Z)[0, 2](2.0), 2 * (w @ z)[0, 2] + np.array([1, 2, 3]) @ z[:, 2]
    )
    np.testing.assert_allclose((W @ diag([1.0, 2.0, 3.0]) * 0.5)[1, 2](2.0), 3 * w[1, 2])
    np.testing.assert_allclose(row(W, W @ Z)[1, 5](2.0), 2 * (w @ z)[1, 2])
    np.testing.assert_allclose((W - W * 3)[1, 1](2.0), -4 * w[1, 1])


def test_a_diagonal_needs_only_the_unit_kept(W):
    assert (relu @ tanh)[1, 1](2.0) == np.tanh(2.0) and (relu @ tanh)[0, 1](2.0) == 0
    assert (relu * tanh)[1, 1](2.0) == 2 * np.tanh(2.0) and (relu + tanh)[1, 1](-2.0) == np.tanh(-2.0)
    assert (square @ gelu @ W)[1, 2](2.0) == pytest.approx(
        (4.0 * 0.5 * (1 + np.float64(0.9999366575163338))) * W.args[0].array[1, 2]
    )
    assert (relu @ over(W, rectify))[1, 2](2.0) == np.maximum(2 * W.args[0].array[1, 2], 0)


def test_a_semiring_continues_too(W, Z):
    w, z = W.args[0].array, Z.args[0].array
    assert (over(W, minplus) @ over(Z, minplus))[1, 2](2.0) == (2.0 + w[1] + z[:, 2]).min()
    x = np.arange(8.0).reshape(2, 4)
    paths = over(W, minplus) @ over(Z, minplus)
    np.testing.assert_allclose(np.min([paths[i, 2](x[:, i]) for i in range(4)], 0), dense(paths, x)[:, 2])
    up, most = weight(np.abs(z)), over(W, max)
    np.testing.assert_allclose((most @ over(up, max))[1, 2](2.0), (2 * w[1] * abs(z[:, 2])).max())


def test_a_single_unit_vector_is_the_entry(W, Z):
    """x ⊛ A at a row with one number has that entry: over sum the others add the unit's image, which is 0 here."""
    for A in (W @ Z, relu @ W @ Z, relu @ tanh @ W, row(W, W @ Z @ np.ones((5, 2)))):
        for i in range(4):
            x = np.zeros((1, 4))
            x[0, i] = 1.5
            np.testing.assert_allclose(
                [A[i, j](1.5) for j in range(A.out.cols or 4)] if isinstance(A.out.cols, int) else [A[i, i](1.5)],
                dense(A, x)[0] if isinstance(A.out.cols, int) else dense(A, x)[0, [i]],
            )


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda W, Z: W @ relu @ Z, r"relu is not additive and W is not diagonal"),
        (lambda W, Z: W @ (relu @ Z), r"relu is not additive and W is not diagonal"),
        (lambda W, Z: W @ const([1.0, 2.0]), r"const\(\[1.0, 2.0\]\) is not additive"),
        (lambda W, Z: relu @ rsqrt, r"rsqrt does not map the unit of sum"),
        (lambda W, Z: relu @ const([1.0, 2.0]), r"does not map the unit of sum"),
        (lambda W, Z: square @ mean, r"over\(ones, mean\) does not map the unit of sum to that of mean"),
        (lambda W, Z: over(ones, mean) @ np.ones((1, 2)), r"is no homomorphism of mean"),
        (lambda W, Z: over(W, max) @ Z, r"Z is no homomorphism of max"),
        (lambda W, Z: over(W, max) @ over(weight(-abs(Z.args[0].array)), max), r"is no homomorphism of max"),
        (lambda W, Z: over(W, minplus) + W, r"over\(W, minplus\) is no sum"),
        (lambda W, Z: W * W, r"neither W nor W is constant"),
        (lambda W, Z: layernorm(1e-3) @ np.eye(4), r"no operator matrix|is no sum"),
        (lambda W, Z: turn(I), r"turn is no operator matrix"),
        (lambda W, Z: W @ heads(3), r"heads is no operator matrix"),
        (lambda W, Z: weight(np.ones((2, 4, 3))) @ total, r"total is no operator matrix"),
        (lambda W, Z: symbol("F", 4, 3), r"symbol is no operator matrix"),
        (lambda W, Z: row(W, over(W, max)), r"row is no operator matrix"),
        (lambda W, Z: centre, r"is no sum"),
    ],
)
def test_where_there_is_no_entry_the_factor_is_named(make, words, W, Z):
    with pytest.raises(TypeError, match=words):
        make(W, Z)[0, 0]


@pytest.mark.parametrize(
    "at, words",
    [
        ((4, 0), "W: row 4 is outside its 4"),
        ((0, 3), "column 3 is outside its 3"),
        ((0, -4), "column -4"),
        ((0, 0, 0), "no stack"),
        (0, r"an entry is \[i, j\]"),
        ((slice(None), 0), "an entry is"),
    ],
)
def test_outside(at, words, W):
    with pytest.raises(IndexError, match=words):
        W[at]
