"""Terms: equal ones are one, shapes and their errors, block matrices, adjoints, and the classics as small laws."""

import numpy as np
import pytest
import sympy
from test_monoids import both

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoids import mean, softmax, sumsq
from opmatrix.algebra.nodes import scalar_function
from opmatrix.algebra.operators import (
    I,
    affine,
    attention,
    blocks,
    centre,
    col,
    cols,
    compose,
    const,
    diag,
    diagonal,
    gelu,
    given,
    heads,
    layernorm,
    ones,
    over,
    place,
    product,
    relu,
    row,
    square,
    symbol,
    tanh,
    total,
    turn,
    weight,
    zero,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import Shape, ShapeError, T
from opmatrix.algebra.term import Data, formula, substitute


def equal(A, B, x, batch=None):
    np.testing.assert_allclose(both(A, x, batch), both(B, x, batch), rtol=1e-10, atol=1e-11)


def test_equal_terms_are_one(data):
    W = data("W", 6, 4)
    assert weight(W) @ relu is weight(Data(W.array.copy(), "same")) @ relu
    assert formula(lambda x: x @ relu) is relu and I @ relu is relu and relu @ I is relu and compose(I, relu, I) is relu
    assert I * 2 is I * 2.0 and weight(W).T.T is weight(W)


def test_plain_arrays_are_weights(rng):
    x, W, V, b = rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(5, 2)), rng.normal(size=5)
    np.testing.assert_allclose(both(weight(W) @ relu @ V, x), np.maximum(x @ W, 0) @ V)
    np.testing.assert_allclose(both((I @ W + b) * b / 2 - 1, x), (x @ W + b) * b / 2 - 1)
    np.testing.assert_allclose((weight(W) @ relu)(x), np.maximum(x @ W, 0))
    assert I @ W is weight(W) and compose(W, relu) is weight(W) @ relu


def test_a_power_is_depth(rng):
    x, W = rng.normal(size=(3, 4)), weight(rng.normal(size=(4, 4)) / 2)
    equal((I + W @ relu) ** 3, (I + W @ relu) @ (I + W @ relu) @ (I + W @ relu), x)
    assert relu**0 is I and relu**1 is relu and relu ** np.int64(2) is relu @ relu


@pytest.mark.parametrize(
    "power, error",
    [
        (-1, ValueError),
        (np.int32(-2), ValueError),
        (1.5, TypeError),
        (2.0, TypeError),
        (True, TypeError),
        (np.True_, TypeError),
        ("2", TypeError),
        (I, TypeError),
    ],
)
def test_a_power_is_a_whole_number_from_0(power, error):
    with pytest.raises(error, match=r"relu\) \*\* .*a power is"):
        relu**power


def test_numbers_before_an_operator_go_through_it(rng):
    x, W = rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    A, wanted = weight(W) @ relu, np.maximum(x @ W, 0)
    for rows in (x, x.tolist(), x.astype(np.float32).astype(float), [*x]):
        np.testing.assert_allclose(rows @ A, A(rows), rtol=0)
    np.testing.assert_allclose(x @ A, wanted)
    np.testing.assert_allclose(x[0] @ A, wanted[0])
    np.testing.assert_allclose(tuple(x[0]) @ A, wanted[0])
    stack = rng.normal(size=(2, 3, 4)) @ (I + I)
    assert stack.shape == (2, 3, 4) and (x[0] @ heads(2)).shape == (2, 2)
    batch = Batch([[1, 3], [0]])
    np.testing.assert_array_equal(batch @ weight(W), W[[1, 3, 0]])


@pytest.mark.parametrize(
    "x, error, words",
    [
        (np.ones((3, 5)), ShapeError, "5"),
        (np.ones(5), ShapeError, "5"),
        (2.0, ShapeError, r"shape \(\)"),
        (np.ones((1, 1, 1, 4)), ShapeError, r"shape \(1, 1, 1, 4\)"),
        (Data(np.ones((4, 4)), "W"), TypeError, r"weight\(W\)"),
    ],
)
def test_what_does_not_fit_before_an_operator_is_named(rng, x, error, words):
    with pytest.raises(error, match=words):
        x @ weight(rng.normal(size=(4, 5)))


def test_one_row_is_refused_where_it_gives_no_row():
    with pytest.raises(ShapeError, match="at one row"):
        np.ones(4) @ formula(lambda x: x.T)


def test_zero_and_identity(rng, data):
    x, W = rng.normal(size=(3, 4)), weight(data("W", 4, 5))
    equal(W + zero, W, x)
    equal(W * zero, W @ (I - I), x)
    np.testing.assert_array_equal(both(zero @ gelu, x), 0)
    assert zero.linear and zero.maps_zero_to_zero and not const(1.0).linear


def test_shapes_are_found(data):
    A = affine(data("Q", 6, 4), data("b", 4)) @ relu
    assert A.into == Shape(A.into.heads, T, 6) and A.out.cols == 4
    assert (row(I, I) @ weight(data("W", 6, 2))).into.cols == 3
    assert (heads(2) @ weight(data("V", 2, 4, 3)) @ total).into == (1, T, 8)
    stack = I + weight(data("S", 2, 6, 3)) @ relu @ weight(data("U", 2, 3, 6)) @ total
    assert stack.into.heads == 1 and stack.out == (1, T, 6)


def test_a_long_chain_is_no_deep_one(rng, data):
    """Deeper than Python may recurse: a spine of compositions, one of sums."""
    layer = I + weight(Data(rng.normal(size=(4, 4)) * 1e-4, "W")) @ tanh
    model, x = layer**1500, rng.normal(size=(2, 4))
    assert model.out.cols == 4 and np.isfinite(dense(model, x)).all() and str(model).count("A1 @ ") == 1499
    many = I
    for _ in range(1500):
        many = many + layer
    np.testing.assert_allclose(dense(many, x), x + 1500 * dense(layer, x))
    assert str(many).count(" + A1") == 1500


def test_block_matrices(rng, data):
    x = rng.normal(size=(3, 5))
    A, B, C, D = (data(n, *s).array for n, s in dict(A=(2, 3), B=(2, 4), C=(3, 3), D=(3, 4)).items())
    np.testing.assert_allclose(
        both(row(I, I @ relu, centre), x), np.hstack([x, np.maximum(x, 0), x - x.mean(1, keepdims=True)])
    )
    np.testing.assert_allclose(both(col(A, C), x), x @ np.vstack([A, C]))
    np.testing.assert_allclose(both(blocks([[A, B], [C, D]]), x), x @ np.block([[A, B], [C, D]]))
    np.testing.assert_allclose(both(blocks([[A, None], [None, D]]), x), x @ np.block([[A, B * 0], [C * 0, D]]))
    equal(diagonal(A, D), blocks([[A, None], [None, D]]), x)
    equal(col(weight(A) @ relu, C), row(cols(0, 2) @ A @ relu, cols(2, 5) @ C) @ col(cols(0, 3, 3), np.eye(3)), x)


def test_attention_is_row_diagonal_column(rng, data, batch):
    """The paper's heads: [Q K V of head 1, of head 2] @ diagonal(attend, attend) @ [O1; O2]."""
    x, n, d, h = rng.normal(size=(7, 6)), 6, 4, 2
    Q, K, V, O = (data(p, *s) for p, s in dict(Q=(n, h * d), K=(n, h * d), V=(n, h * d), O=(h * d, n)).items())
    whole = attention(weight(Q), weight(K), weight(V), h, sequence) @ weight(O)
    parts = [slice(i * d, i * d + d) for i in range(h)]
    attend = attention(*(cols(i * d, i * d + d) for i in range(3)), 1, sequence)
    each = row(*(row(*(weight(W.array[:, at]) for W in (Q, K, V))) for at in parts))
    attend = I @ np.eye(3 * d) @ attend
    equal(each @ diagonal(*[attend] * h) @ col(*(O.array[at] for at in parts)), whole, x, batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda W, V: W,
        lambda W, V: W @ V,
        lambda W, V: W * 2 + W,
        lambda W, V: W * [1.0, 2.0, 3.0, 4.0],
        lambda W, V: row(W, W @ V),
        lambda W, V: W @ cols(1, 3),
        lambda W, V: W @ place(2, 9),
        lambda W, V: W @ diag([1.0, 2.0, 3.0, 4.0]),
        lambda W, V: centre @ W,
        lambda W, V: W @ ones,
        lambda W, V: cols(1, 4, 5) @ place(2, 6) @ W,
        lambda W, V: over(W, monoids.sum) - W,
        lambda W, V: W @ (mean - I),
        lambda W, V: blocks([[V, None], [None, np.ones((2, 3))]]),
    ],
    ids=lambda f: None,
)
def test_the_adjoint_is_the_transposed_matrix(make, data):
    A = make(weight(data("W", 6, 4)), weight(data("V", 4, 5)))
    matrix = dense(A, np.eye(A.into.cols))
    assert A.linear and A.T.linear
    np.testing.assert_allclose(dense(A.T, np.eye(matrix.shape[1])), matrix.T, atol=1e-15)


def test_turned_values_and_turned_operators_are_two_things(rng, data):
    x, W = rng.normal(size=(3, 6)), weight(data("W", 6, 4))
    equal(formula(lambda x: (x @ W) @ (x @ W).T @ x), formula(lambda x: (x @ (W @ W.T)) @ x.T @ x), x)
    assert formula(lambda x: (x @ W).T).out == (W.out.heads, 4, T)
    assert (W @ heads(2)).T is heads(2).T @ W.T


def test_layernorm_is_centre_times_rsqrt(rng):
    x = rng.normal(size=(3, 5))
    np.testing.assert_allclose(
        both(layernorm(1e-3), x), (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    )
    equal(centre @ square @ mean, over(ones, monoids.moments), x)
    equal(centre @ sumsq * 0.2, centre @ square @ mean, x)


def test_the_classics_are_chains_of_small_laws(rng, data, batch):
    """Every step is a rewrite of one or two nodes: nothing here knows attention."""
    x, s = rng.normal(size=(7, 6)), 0.37
    q, k, v, o = (weight(data(n, 2, *shape)) for n, shape in dict(Q=(6, 4), K=(6, 4), V=(6, 4), O=(4, 6)).items())

    def attend(score, value):
        return formula(lambda x: product(score(x), value(x), over=softmax, where=sequence & causal))

    a = attend(lambda x: (x @ q) @ (x @ k).T * s, lambda x: x @ v) @ o @ total
    b = attend(lambda x: (x @ q * s) @ (x @ k).T, lambda x: x @ v) @ o @ total  # scale moves into q
    c = attend(lambda x: (x @ (q @ k.T) * s) @ x.T, lambda x: x @ v) @ o @ total  # (x K)ᵀ = Kᵀ xᵀ, in every head
    d = attend(lambda x: (x @ q) @ (x @ k).T * s, lambda x: x) @ (v @ o) @ total  # a linear map leaves on the right
    e = (
        attend(lambda x: (x @ q) @ (x @ (k + const(data("b", 4)))).T * s, lambda x: x @ v) @ o @ total
    )  # a key bias shifts
    for other in (b, c, d, e):
        equal(a, other, x, batch)


def test_stacked_weights_are_split_columns(rng, data):
    W, b = data("W", 6, 8), data("b", 8)
    equal(weight(W) @ heads(2), weight(Data(W.array.reshape(6, 2, 4).swapaxes(0, 1))), rng.normal(size=(3, 6)))
    equal(heads(2) @ weight(Data(W.array.T.reshape(2, 4, 6))) @ total, weight(W.T), rng.normal(size=(3, 8)))
    equal((I + const(b)) @ heads(2), heads(2) @ (I + const(b.array.reshape(2, 1, 4))), rng.normal(size=(3, 8)))


def test_symbols_have_shapes_and_no_numbers(rng, data):
    n, p, h = sympy.symbols("n p h", integer=True, positive=True)
    x, W, b = symbol("x", None, n), symbol("W", n, p, linear=True), symbol("b", None, p, constant=True, uniform=True)
    A = x @ W + b
    assert (
        A.out == (1, T, p)
        and symbol("f", None, None, entrywise=True)(Shape(1, T, 3)).cols == 3
        and W.linear
        and b.constant
        and not A.linear
        and str(A) == "x_ @ W + b"
    )
    assert (x @ symbol("V", n, Shape(h, T, p), linear=True)).out == (h, T, p) and (x @ W @ heads(h)).out == (
        h,
        T,
        p / h,
    )
    assert (symbol("A", n, p) @ relu).out.cols == p and symbol("f").out == symbol("f").into
    with pytest.raises(ShapeError, match=r"@ W: \(T × p\) against \(T × n\): columns p ≠ n"):
        x @ W @ W
    with pytest.raises(TypeError, match="symbol W stands for an unknown operator"):
        dense(symbol("W", 3, 4), np.ones((2, 3)))
    with pytest.raises(TypeError, match="linaer"):
        symbol("W", n, p, linaer=True)
    numbers = substitute(
        symbol("W", 3, 4, linear=True) @ relu, {symbol("W", 3, 4, linear=True): weight(data("w", 3, 4))}
    )
    assert numbers is weight(data("w", 3, 4)) @ relu or np.isfinite(dense(numbers, rng.normal(size=(2, 3)))).all()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda Q: Q @ Q, r"@ \w: \(T × 4\) against \(6 × 4\): columns against rows 4 ≠ 6"),
        (lambda Q: Q @ relu + cols(0, 3), r"\+: \(T × 4\) against \(T × 3\): columns 4 ≠ 3"),
        (lambda Q: Q @ heads(3), r"3 heads do not divide"),
        (lambda Q: Q @ heads(2) @ heads(2), r"heads\(2\): 2·\(T × 2\) .*heads 2 ≠ 1"),
        (lambda Q: Q @ heads(0), r"heads\(0\)"),
        (lambda Q: Q @ cols(2, 9), r"@ cols\(2, 9\): columns 2 to 9 of 4"),
        (lambda Q: Q @ place(2, 5), r"@ place\(2, 5\): columns 2 to 6 of 5"),
        (lambda Q: Q @ np.ones((2, 5, 3)), r"columns against rows 4 ≠ 5"),
        (lambda Q: Q + np.ones((6, 4)), r"const: \(6, 4\) is no row of numbers"),
        (
            lambda Q: formula(lambda x: x + Q),
            r"add: a Value cannot be combined with the Operator \w \+ b: apply it first, x @ A",
        ),
        (lambda Q: formula(lambda x: (x @ Q) @ (x @ Q)), r"columns against rows 4 ≠ T"),
        (lambda Q: formula(lambda x: x.T @ Q), r"columns against rows T ≠ 6"),
        (lambda Q: formula(lambda x: x.T @ formula(lambda y: (y @ y.T) @ y)), r"whose rows are not tokens"),
        (lambda Q: Q @ formula(lambda x: x).T.T @ turn(I) @ I @ turn(I), r"whose rows are not tokens"),
        (lambda Q: relu.T, r"\(relu\)\.T: only a linear operator"),
        (lambda Q: I @ cols(0, 2) @ Q.T, r"only a linear operator"),
        (lambda Q: diagonal(relu, Q), r"diagonal: block 0, relu, takes any number of columns"),
        (lambda Q: blocks([[None, Q]]), r"blocks: column 0 is all None"),
        (lambda Q: attention(I, I, I, 2, sequence), r"an unknown size is no number"),
        (lambda Q: weight(["a"]), r"not made of real numbers"),
        (lambda Q: product(relu), r"missing a required argument"),
        (lambda Q: given("positions", 7)(np.ones((2, 3))), r"given\('positions', 7\) depends on the batch"),
    ],
)
def test_errors_say_what_where_and_which_axis(wrong, words, data):
    """The arrays are no other test's: equal ones are one, under the name that was first."""
    with pytest.raises(TypeError, match=words):
        wrong(affine(Data(np.arange(24).reshape(6, 4) / 7, "Q"), data("b", 4)))


@pytest.mark.parametrize("f", [lambda u: 3.0, lambda u: np.sum(u), lambda u: u[:1]])
def test_a_scalar_function_gives_a_number_for_each_entry(f):
    """One's own is refused where it is evaluated, before shapes of the inside are."""

    def mine(u):
        return f(u)

    with pytest.raises(ShapeError, match=r"^mine: for \(2, 3\) entries it returns \(.*\): a scalar function"):
        scalar_function()(mine)(np.ones((2, 3)))


def test_arrays_are_equal_by_their_numbers():
    """Whatever their layout; one that differs where nobody looked first is another one, and a large one that looks like
    no other is never read as a whole."""
    numbers = np.random.default_rng(0).normal(size=(50, 60)).astype(np.float32)
    other = numbers.copy()
    other[1, 3] += 1
    first, same, near = Data(numbers), Data(numbers.copy()), Data(other)
    assert first == same and hash(first) == hash(near) and first != near and len({first, same, near}) == 2
    turned = Data(np.ascontiguousarray(numbers.T))
    assert first.T == turned and hash(first.T) == hash(turned) and Data(np.zeros((0, 3))) == Data(np.zeros((0, 3)))
    far = Data(numbers[::-1])
    assert far != first and "key" not in vars(far)


@pytest.mark.parametrize(
    "made",
    [
        lambda: weight(np.zeros((3, 0))),
        lambda: weight(Data(np.zeros((0, 3)))),
        lambda: const(np.zeros(0)),
        lambda: I * np.zeros((2, 1, 0)),
    ],
)
def test_arrays_without_numbers_are_refused(made):
    """As no columns are, however else they are asked for."""
    with pytest.raises(ValueError, match=r"an array of shape \(.*0.*\) has no numbers: each of its sizes"):
        made()
