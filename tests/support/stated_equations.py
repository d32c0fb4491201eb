"""Equations over the whole algebra: true ones that `prove` should prove, and near misses that it should refute. Sizes
are numbers or names; matrices are stored, or symbols of which only properties are known."""

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.nodes import exp, magnitude, reciprocal
from opmatrix.algebra.operators import (
    I,
    affine,
    blocks,
    centre,
    col,
    cols,
    const,
    diag,
    diagonal,
    elu,
    expm1,
    gelu,
    gelu_tanh,
    given,
    heads,
    keep_top,
    layernorm,
    log,
    maximum,
    mean,
    minimum,
    ones,
    over,
    pick,
    place,
    product,
    relu,
    repeat,
    rmsnorm,
    row,
    rsqrt,
    share,
    sigmoid,
    silu,
    softplus,
    square,
    symbol,
    tanh,
    total,
    turn,
    unit_length,
    weight,
    zero,
)
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.algebra.shapes import Shape, size
from opmatrix.algebra.term import formula

RNG = np.random.default_rng(20)


def drawn(*shape):
    return RNG.normal(size=shape)


N, M, K, P, R = (size(name) for name in "nmkpr")
A, B, G = drawn(6, 4), drawn(4, 5), drawn(6)
A2, A3, U, V, LOW, HIGH = drawn(6, 4), drawn(5, 6), drawn(64, 48), drawn(48, 32), drawn(6, 2), drawn(2, 4)
ORDER = np.eye(6)[:, [2, 0, 5, 1, 4, 3]]
W, W2, W3 = (symbol(name, N, M, linear=True) for name in ("W", "W2", "W3"))
X, Y = symbol("X", M, K, linear=True), symbol("Y", K, P, linear=True)
F, F2 = symbol("F", N, M), symbol("F2", N, M)
SQUARE = symbol("Q", N, N, linear=True)
EACH, HOMOGENEOUS = symbol("f", None, None, entrywise=True), symbol("g", N, M, positively_homogeneous=True)
ADDITIVE = symbol("h", N, M, additive=True)
s, t = (symbol(name, None, 1, constant=True, uniform=True) for name in "st")
b, c = (symbol(name, None, M, constant=True, uniform=True) for name in "bc")
a1, a2, b1, b2 = (
    symbol(name, None, Shape(1, rows, cols))
    for name, rows, cols in (("a1", M, K), ("a2", M, K), ("b1", K, P), ("b2", K, P))
)
left4, right3 = symbol("l", None, 4), symbol("r", None, 3)
L, S = symbol("L", 4, 5, linear=True), symbol("S", 3, 5, linear=True)
q, k, v = (symbol(name, 6, 4, linear=True) for name in "qkv")
MINUS, HALF, DOUBLE = I * -1.0, I * 0.5, I * 2.0
NOTHING = I * 0.0
LARGEST, LEAST, AVERAGE = (over(ones, monoid) for monoid in (maximum, minimum, mean))


def scores(x):
    return (x @ q) @ (x @ k).T


def attend(z, over=softmax, where=None, value=lambda x: x @ v):
    more = {} if where is None else dict(where=where)
    return formula(lambda x: product(z(x), value(x), over=over, **more))


class minplus(Monoid):
    "The cheapest way."

    identity = np.inf

    def lift(x, w):
        return x + w

    def merge(a, b):
        return np.minimum(a, b)

    def distributes(w):
        return True


class sharp(softmax):
    "Softmax of twice the scores."

    closed = None

    def lift(z, v):
        return softmax.lift(2 * z, v)


TRUE = {
    # ---- compositions, sums, numbers
    "composition is associative": ((W @ X) @ Y, W @ (X @ Y)),
    "any composition is associative": ((F @ EACH) @ X, F @ (EACH @ X)),
    "a matrix is additive": ((F + F2) @ X, F @ X + F2 @ X),
    "a sum behind": (F @ (EACH + relu), F @ EACH + F @ relu),
    "entries behind": (F @ (EACH * relu), (F @ EACH) * (F @ relu)),
    "sums commute": (W + W2 + W3, W3 + W + W2),
    "entries commute": ((F * F2) * W, W * F2 * F),
    "entries distribute": (F * (W + W2), W * F + F * W2),
    "a square of a sum": ((F + F2) @ square, F @ square + F * F2 * 2.0 + F2 @ square),
    "a difference of squares": ((F + F2) * (F - F2), F @ square - F2 @ square),
    "numbers fold": ((F * 2.0) * 3.0, F * 6.0),
    "decimals fold": ((F * 0.1) * 0.3, F * 0.03),
    "numbers are added": (F * 0.25 + F * 0.75, F),
    "numbers pass a matrix": ((F * 2.0) @ X, (F @ X) * 2.0),
    "a number of symbols passes": ((F * s) @ X @ (I * t), (F @ X) * t * s),
    "cancelled": ((W + F) - W, F),
    "zero times": (NOTHING @ W, W * 0.0),
    "nothing added": (F + F2 * 0.0, F),
    "nothing subtracted": (F - F + F2, F2),
    "the identity": (I @ F @ I * 1.0, F),
    "minus minus": (-MINUS @ F, F),
    "twice and once": (F * 3.0 - F * 2.0, F),
    "additive, declared": ((I * 2.0 + I) @ ADDITIVE, ADDITIVE * 3.0),
    "biases are one": ((W + b) + c, W + (b + c)),
    "a bias through a matrix": ((W + b) @ X, W @ X + b @ X),
    # ---- stored numbers
    "stored matrices fold": (weight(A) @ weight(B), weight(A @ B)),
    "large stored matrices fold": (weight(U) @ weight(V), weight(U @ V)),
    "three stored matrices fold": (weight(A3) @ weight(A) @ weight(B), weight(A3 @ (A @ B))),
    "stored matrices are added": (weight(A) + weight(A2), weight(A + A2)),
    "low rank beside": (weight(A) + weight(LOW) @ weight(HIGH), weight(A + LOW @ HIGH)),
    "a gain folds": (diag(G) @ weight(A), weight(G[:, None] * A)),
    "a bias folds": ((weight(A) + const(A[0])) @ weight(B), weight(A @ B) + const(A[0] @ B)),
    "gains fold": (diag(G) @ diag(G + 1.0), diag(G * (G + 1.0))),
    "a diagonal matrix": (diag(G), weight(np.diag(G))),
    "a stored identity": (weight(np.eye(5)), cols(0, 5, 5)),
    "a permutation": (weight(ORDER) @ relu, relu @ weight(ORDER)),
    "a permutation and its transpose": (weight(ORDER) @ weight(ORDER.T), cols(0, 6, 6)),
    "a scaled matrix": (weight(A) * 3.0, weight(A * 3.0)),
    "a folded transpose": (weight(A).T, weight(A.T)),
    "the transpose of a product": ((weight(A) @ weight(B)).T, weight(B).T @ weight(A).T),
    "two constants": (const(G) + const(G + 1.0), const(2.0 * G + 1.0)),
    "affine after affine": (affine(A, A[0]) @ affine(B, B[0]), affine(A @ B, A[0] @ B + B[0])),
    # ---- transposes and products of values
    "transposed twice": (turn(turn(a1)), a1),
    "the transpose of a product of values": (turn(product(a1, b1)), product(turn(b1), turn(a1))),
    "a product is additive": (product(a1 + a2, b1), product(a1, b1) + product(a2, b1)),
    "four products": (product(a1 + a2, b1 + b2), product(a1, b1) + product(a2, b2) + product(a1, b2) + product(a2, b1)),
    "a product is associative": (product(product(a1, b1), turn(b2)), product(a1, product(b1, turn(b2)))),
    "linear attention": (
        formula(lambda x: ((x @ q) @ (x @ k).T) @ (x @ v)),
        formula(lambda x: (x @ q) @ ((x @ k).T @ (x @ v))),
    ),
    "a key's matrix moves": (
        formula(lambda x: (x @ weight(A)) @ (x @ weight(A2)).T),
        formula(lambda x: product(x @ weight(A @ A2.T), x.T)),
    ),
    "symmetric scores": (formula(lambda x: (x @ x.T).T), formula(lambda x: x @ x.T)),
    "a function of a transpose": (turn(a1 @ gelu), turn(a1) @ gelu),
    "entries of a transpose": (turn(a1 * a2), turn(a2) * turn(a1)),
    "squares are a product": (formula(lambda x: (x * x) @ ones), over(ones, monoids.sumsq)),
    "a number from the scores": (formula(lambda x: scores(x) * 0.5), formula(lambda x: (x @ q * 0.5) @ (x @ k).T)),
    # ---- blocks
    "a row times a column": (row(left4, right3) @ col(L, S), left4 @ L + right3 @ S),
    "a named row times a column": (row(F, W) @ col(X, X), (F + W) @ X),
    "a diagonal of blocks": (row(F, W) @ diagonal(X, X), row(F @ X, W @ X)),
    "rows of blocks": (row(F, W) @ blocks([[X, None], [X, X]]), row((F + W) @ X, W @ X)),
    "a function of a row": (row(F, W) @ relu, row(F @ relu, W @ relu)),
    "rows nest": (row(F, row(W, W2)), row(row(F, W), W2)),
    "rows are added": (row(F, W) + row(W2, F2), row(W2 + F, F2 + W)),
    "rows are scaled": (row(F, W) * 2.0, row(F * 2.0, DOUBLE @ W)),
    "the first part of a row": (row(left4, right3) @ cols(0, 4, 7), left4),
    "the last part of a row": (row(left4, right3) @ cols(4, 7, 7), right3),
    "parts make the whole": (row(cols(0, 2, 5), cols(2, 5, 5)), cols(0, 5, 5)),
    "parts of parts": (cols(1, 6, 7) @ cols(2, 4, 5), cols(3, 5, 7)),
    "placed and cut": (place(2, 7) @ cols(2, 5, 7), cols(0, 3, 3)),
    "a matrix beside a matrix": (row(weight(A), weight(A2)), weight(np.hstack([A, A2]))),
    "a matrix above a matrix": (col(weight(A), weight(A2)), weight(np.vstack([A, A2]))),
    "a shared factor": (F @ X + W @ X, (F + W) @ X),
    # ---- activations
    "relu twice": (relu @ relu, relu),
    "relu is homogeneous": (DOUBLE @ relu, relu * 2.0),
    "relu by halves": (relu - MINUS @ relu, I),
    "relu and magnitude": (relu + MINUS @ relu, magnitude),
    "relu of a magnitude": (magnitude @ relu, magnitude),
    "magnitude is even": (MINUS @ magnitude, magnitude),
    "magnitude is homogeneous": ((I * -3.0) @ magnitude, magnitude * 3.0),
    "a square is even": (MINUS @ square, square),
    "a magnitude squared": (magnitude @ square, square),
    "silu": (silu, I * sigmoid),
    "tanh is odd": (MINUS @ tanh, -tanh),
    "tanh by sigmoid": (tanh, (DOUBLE @ sigmoid) * 2.0 - 1.0),
    "sigmoid by tanh": (sigmoid, (HALF @ tanh) * 0.5 + 0.5),
    "sigmoid of minus": (MINUS @ sigmoid, 1.0 - sigmoid),
    "sigmoids sum to one": (sigmoid + MINUS @ sigmoid, const(1.0) + NOTHING),
    "sigmoid by exp": (sigmoid, (MINUS @ exp + 1.0) @ reciprocal),
    "silu of minus": (silu - MINUS @ silu, I),
    "gelu of minus": (gelu - MINUS @ gelu, I),
    "gelu's approximation of minus": (MINUS @ gelu_tanh, gelu_tanh - I),
    "softplus of minus": (softplus - MINUS @ softplus, I),
    "softplus by log": (softplus, (exp + 1.0) @ log),
    "log of exp": (exp @ log, I),
    "exp of a sum": (formula(lambda x: (x @ W + x @ W2) @ exp), formula(lambda x: (x @ W @ exp) * (x @ W2 @ exp))),
    "exp and its reciprocal": (exp * (MINUS @ exp), const(1.0) + NOTHING),
    "expm1": (expm1 + 1.0, exp),
    "elu of what is positive": (relu @ elu, relu),
    "elu": (elu, relu + (I - relu) @ expm1),
    "relu of exp": (exp @ relu, exp),
    "homogeneous, declared": ((I * 5.0) @ HOMOGENEOUS, HOMOGENEOUS * 5.0),
    "relu by half of all": (relu, (I + magnitude) * 0.5),
    "relu squared": (relu * relu, I * relu),
    # ---- norms
    "centred twice": (centre @ centre, centre),
    "no mean is left": (centre @ mean, zero @ mean),
    "a mean of four": (weight(A) @ mean, weight(A) @ weight(np.full((4, 1), 0.25))),
    "layernorm ignores a shift": (formula(lambda x: (x + s) @ layernorm(1e-5)), layernorm(1e-5)),
    "a layernorm is centred": (layernorm(1e-5) @ centre, layernorm(1e-5)),
    "layernorm by rmsnorm": (layernorm(1e-6), centre @ rmsnorm(1e-6)),
    "rmsnorm of a scaled row": (DOUBLE @ rmsnorm(4e-5), rmsnorm(1e-5)),
    "rmsnorm is odd": (MINUS @ rmsnorm(1e-6), -rmsnorm(1e-6)),
    "a norm's gain folds": (rmsnorm(1e-6) @ diag(G) @ weight(A), rmsnorm(1e-6) @ weight(G[:, None] * A)),
    "a norm may divide last": (
        rmsnorm(1e-6) @ weight(A),
        formula(lambda x: (x @ weight(A)) * (x @ (square @ mean + 1e-6) @ rsqrt)),
    ),
    # ---- products over monoids
    "softmax ignores a shift": (attend(lambda x: scores(x) + x @ q @ ones), attend(scores)),
    "softmax of a constant key": (attend(lambda x: (x @ q) @ (x @ k + const(B[:, 0])).T), attend(scores)),
    "softmax is linear on the right": (
        attend(scores, value=lambda x: x @ v * 2.0 + x @ q),
        attend(scores) * 2.0 + attend(scores, value=lambda x: x @ q),
    ),
    "softmax and a matrix": (
        attend(scores, where=causal) @ L,
        attend(scores, where=causal, value=lambda x: (x @ v) @ L),
    ),
    "a bias of the values": (attend(scores, value=lambda x: x @ v + const(B[:, 1])), attend(scores) + const(B[:, 1])),
    "shares sum to one": (share @ ones, const(1.0) + zero),
    "shares ignore a shift": (formula(lambda x: (x + x @ ones) @ share), share),
    "shares by exp": (share, formula(lambda x: (x @ exp) * (x @ exp @ ones @ reciprocal))),
    "a product of shares": (attend(scores), formula(lambda x: scores(x) @ share @ (x @ v))),
    "the largest of doubles": (DOUBLE @ maximum, LARGEST * 2.0),
    "the largest of negated": (MINUS @ maximum, -LEAST),
    "the largest of shifted": (formula(lambda x: (x + x @ ones) @ maximum), LARGEST + ones),
    "the largest of one": (ones @ maximum, ones),
    "the largest of two": (row(ones, AVERAGE) @ maximum, AVERAGE + (ones - AVERAGE) @ relu),
    "absorption": (row(ones, row(ones, AVERAGE) @ minimum) @ maximum, ones),
    "the largest of equals": (row(AVERAGE, AVERAGE) @ maximum, AVERAGE),
    "largest commutes": (row(left4, right3) @ maximum, row(right3, left4) @ maximum),
    "minimum and maximum": (row(ones, AVERAGE) @ maximum + row(ones, AVERAGE) @ minimum, ones + AVERAGE),
    "relu over a monoid": (over(I, monoids.rectify), relu),
    "a mean is additive": (
        product(turn(a1), a2 + a1, over=monoids.mean),
        product(turn(a1), a1, over=monoids.mean) + product(turn(a1), a2, over=monoids.mean),
    ),
    "logsumexp of shifted": (
        formula(lambda x: (x + x @ mean) @ monoids.logsumexp),
        formula(lambda x: x @ monoids.logsumexp + x @ mean),
    ),
    "a sum of squares": (over(ones, monoids.sumsq), square @ ones),
    "a variance": (over(ones, monoids.moments), centre @ square @ mean),
    "a smooth maximum": (over(ones, monoids.logsumexp), exp @ ones @ log),
    "another softmax ignores a shift": (
        attend(lambda x: scores(x) + x @ q @ ones, over=sharp),
        attend(scores, over=sharp),
    ),
    # ---- heads, choices, rows
    "heads and back": (heads(2) @ heads(2).T @ weight(A), weight(A)),
    "heads are additive": ((weight(A) + weight(A2)) @ heads(2), weight(A2) @ heads(2) + weight(A) @ heads(2)),
    "a function in heads": (weight(A) @ heads(2) @ relu, weight(A) @ relu @ heads(2)),
    "a sum of heads": (weight(A) @ heads(2) @ total, weight(A[:, :2] + A[:, 2:])),
    "repeated heads are summed": (weight(A) @ heads(2) @ repeat(4) @ total, weight(A) @ heads(2) @ total * 2.0),
    "all are kept": (keep_top(cols(0, 3, 3), cols(0, 3, 3), 3), cols(0, 3, 3)),
    "kept by shares": (keep_top(weight(A), weight(A) @ share, 2), keep_top(weight(A), weight(A), 2)),
    "kept and scaled": (keep_top(weight(A) * 2.0, weight(A), 2), keep_top(weight(A), weight(A) * 2.0, 2) * 2.0),
    "picked rows of a sum": ((F + W) @ pick("last"), F @ pick("last") + W @ pick("last")),
    "picked rows of a matrix": ((F @ X) @ pick("last"), (F @ pick("last")) @ X),
    "a table of tokens": (given("tokens", 6) @ weight(A) @ weight(B), given("tokens", 6) @ weight(A @ B)),
    "pooling is linear": (product(given("members"), F @ X), product(given("members"), F) @ X),
    # ---- layers
    "a residual": (formula(lambda x: x + x @ SQUARE), I + SQUARE),
    "a residual of two": ((I + SQUARE) @ (I + SQUARE), I + SQUARE * 2.0 + SQUARE @ SQUARE),
    "a gate": (formula(lambda x: (x @ W @ silu) * (x @ W2)), formula(lambda x: (x @ W2) * (x @ W) * (x @ W @ sigmoid))),
    "low rank, late": (
        F @ (X + symbol("D", M, R, linear=True) @ symbol("E", R, K, linear=True)),
        F @ X + (F @ symbol("D", M, R, linear=True)) @ symbol("E", R, K, linear=True),
    ),
}

CLIP = relu - (I - 1000.0) @ relu  # a number from 0 to 1000
FALSE = {
    # ---- order, sign, transposition
    "composition commutes": (SQUARE @ symbol("Q2", N, N, linear=True), symbol("Q2", N, N, linear=True) @ SQUARE),
    "stored matrices commute": (weight(A @ B @ A3), weight((A @ B @ A3).T)),
    "a matrix before a function": (W @ EACH, W2 @ EACH),
    "functions commute": (gelu @ square, square @ gelu),
    "any operator is additive": ((F + F2) @ symbol("H", M, K), F @ symbol("H", M, K) + F2 @ symbol("H", M, K)),
    "relu is additive": ((F + F2) @ relu, F @ relu + F2 @ relu),
    "relu is linear": (MINUS @ relu, -relu),
    "gelu is homogeneous": (DOUBLE @ gelu, gelu * 2.0),
    "tanh is even": (MINUS @ tanh, tanh),
    "silu is odd": (MINUS @ silu, -silu),
    "sigmoid is odd": (MINUS @ sigmoid, -sigmoid),
    "a square is odd": (MINUS @ square, -square),
    "a square is linear": ((F + F2) @ square, F @ square + F2 @ square),
    "sum for difference": (F - F2, F + F2),
    "a difference commutes": (F - F2, F2 - F),
    "the transpose of a product": (turn(product(a1, turn(a2))), product(a1, turn(a2))),
    "scores are symmetric": (formula(lambda x: (x @ q) @ (x @ k).T), formula(lambda x: (x @ k) @ (x @ q).T)),
    "a transposed matrix": (weight(A @ A2.T), weight(A2 @ A.T)),
    "linear attention of softmax": (attend(scores), formula(lambda x: (x @ q) @ ((x @ k).T @ (x @ v)))),
    "keys for values": (
        formula(lambda x: (x @ q) @ ((x @ k).T @ (x @ v))),
        formula(lambda x: (x @ q) @ ((x @ v).T @ (x @ k))),
    ),
    "entries for a product": (formula(lambda x: (x @ q) * (x @ k)), formula(lambda x: (x @ q) * (x @ v))),
    "a number twice": ((F * 2.0) * 3.0, F * 5.0),
    "a sum of numbers": (F * 2.0 + F, F * 2.0),
    "a bias through relu": ((W + b) @ relu, W @ relu + b),
    "a bias twice": ((W + b) @ X, W @ X + b @ X * 2.0),
    "a product of sums": ((F + W) * (F2 + W2), F * F2 + W * W2),
    "distributing a product over a product": (F * (W * W2), (F * W) * (F * W2)),
    "scaled by a negative number": ((F * s) @ relu, F @ relu * s),
    "homogeneous in negative numbers": (MINUS @ HOMOGENEOUS, -HOMOGENEOUS),
    # ---- blocks, choices
    "columns in another order": (row(F, W), row(W, F)),
    "another part": (row(left4, right3) @ cols(0, 4, 7), left4 @ weight(np.eye(4)[::-1])),
    "blocks crossed": (
        row(F, W) @ col(X, symbol("X2", M, K, linear=True)),
        W @ X + F @ symbol("X2", M, K, linear=True),
    ),
    "a permutation and itself": (weight(ORDER) @ weight(ORDER), cols(0, 6, 6)),
    "a permutation is symmetric": (weight(ORDER), weight(ORDER.T)),
    "a choice before a matrix": (weight(A) @ cols(0, 2, 4), weight(A[:, 1:3])),
    "heads in another order": (weight(A) @ heads(2) @ heads(2).T, weight(A[:, [2, 3, 0, 1]])),
    "a diagonal of others": (diag(G) @ weight(A), weight(A) @ diag(G[:4])),
    # ---- norms
    "layernorm is rmsnorm": (layernorm(1e-5), rmsnorm(1e-5)),
    "rmsnorm ignores a shift": (formula(lambda x: (x + s) @ rmsnorm(1e-5)), rmsnorm(1e-5)),
    "rmsnorm ignores a scale": (DOUBLE @ rmsnorm(1e-5), rmsnorm(1e-5)),
    "layernorm ignores a scale": (DOUBLE @ layernorm(1e-12), layernorm(1e-12)),
    "another eps": (layernorm(1e-12), layernorm(1e-6)),
    "nearly the same eps": (rmsnorm(1e-6), rmsnorm(1.0001e-6)),
    "a norm of a norm": (rmsnorm(1e-5) @ rmsnorm(1e-5), rmsnorm(1e-5)),
    "a root of ones for the mean": (rmsnorm(1e-6), unit_length(1e-6)),
    "a gain before the norm": (diag(G) @ rmsnorm(1e-6), rmsnorm(1e-6) @ diag(G)),
    # ---- monoids
    "softmax ignores a scale": (attend(lambda x: scores(x) * 2.0), attend(scores)),
    "softmax is linear on the left": (attend(lambda x: scores(x) + scores(x) @ I), attend(scores) * 2.0),
    "softmax of keys and queries": (attend(lambda x: (x @ q) @ (x @ k + x @ q).T), attend(scores)),
    "another pattern": (attend(scores, where=causal), attend(scores, where=sequence)),
    "a window for all before": (attend(scores, where=causal & window(1)), attend(scores, where=causal)),
    "softmax of twice": (attend(scores, over=sharp), attend(scores)),
    "the largest is additive": ((F + F2) @ maximum, F @ maximum + F2 @ maximum),
    "the largest of negated": (MINUS @ maximum, -LARGEST),
    "the largest for the sum": (LARGEST, over(ones, monoids.sum)),
    "no absorption": (row(ones, row(ones, AVERAGE) @ maximum) @ maximum, ones),
    "smooth and sharp": (over(ones, monoids.logsumexp), LARGEST),
    "mean for sum": (weight(A) @ mean, weight(A) @ ones),
    "cheapest ways commute": (
        over(weight(A[:4]), minplus) @ over(weight(A[2:]), minplus),
        over(weight(A[2:]), minplus) @ over(weight(A[:4]), minplus),
    ),
    "kept by others": (keep_top(weight(A), weight(A), 2), keep_top(weight(A), -weight(A), 2)),
    "kept more": (keep_top(weight(A), weight(A), 2), keep_top(weight(A), weight(A), 3)),
    "a variance about zero": (over(ones, monoids.moments), square @ mean),
    "shares of doubled": (DOUBLE @ share, share),
    # ---- functions that are nearly alike
    "gelu by tanh": (gelu, gelu_tanh),
    "silu for gelu": (silu, gelu),
    "softplus for relu": (softplus, relu),
    "elu for relu": (elu, relu),
    "log of exp the other way": (log @ exp, I),
    "exp of a sum is a sum": ((W + W2) @ exp, W @ exp + W2 @ exp),
    "sigmoid by another slope": (sigmoid, (I * 0.5000001) @ tanh * 0.5 + 0.5),
    "tanh by sigmoid of once": (tanh, sigmoid * 2.0 - 1.0),
    # ---- for some numbers only
    "clipped far away": (CLIP, relu),
    "clipped farther away": (relu - (I - 1e7) @ relu, relu),
    "clipped below": ((I + 500.0) @ relu - 500.0, I),
    "nothing but far away": ((I - 300.0) @ relu, NOTHING),
    "relu of a square is off": (relu @ square, square),
    "magnitude for the number": (magnitude, I),
    "a tanh of large numbers": ((I * 1e3) @ tanh, (I * 2e3) @ tanh),
    "a saturated sigmoid": ((I + 60.0) @ sigmoid, const(1.0) + NOTHING),
    "softplus far away": ((I + 40.0) @ softplus, I + 40.0),
    "a square and a magnitude": (square, magnitude),
    "cubes and numbers": (I * square, I),
    "small numbers vanish": ((I * 1e-9) @ tanh * 1e9, I),
    # ---- by little
    "off by a millionth of a tenth": (W * (1 + 1e-7), W),
    "off by 1e-9": (weight(A), weight(A * (1 + 1e-9))),
    "one entry off": (weight(A), weight(A + 1e-10 * np.eye(6, 4))),
    "a small bias": (W + 1e-8, W),
    "a small term": (F + F2 * 1e-9, F),
    "off in the tenth digit": (I * 0.3333333333, I / 3),
    "folded carelessly": (weight(A) @ weight(B), weight(np.round(A @ B, 8))),
    "a small eps of a length": (unit_length(1e-12), unit_length(2e-12)),
    # ---- for some sizes only
    "a mean of one": (W @ mean, W @ ones),
    "centred is nothing": (W @ centre, W * 0.0),
    "shares of one column": (W @ share, W * 0.0 + 1.0),
    "the largest of one column": (W @ maximum, W @ minimum),
    "pooled and picked": (product(given("members"), W), W @ pick("last")),
    "first and last": (pick("first"), pick("last")),
    "repeated heads": (weight(A) @ heads(2) @ repeat(4) @ total, weight(A) @ heads(2) @ total),
}
