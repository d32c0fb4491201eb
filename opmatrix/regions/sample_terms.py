"""Terms whose kernels are timed, so that those of others are priced: of little work and of much, with reductions, with
divisions, with monoids of several numbers."""
<<<<<<< HEAD
import numpy as np

from opmatrix.algebra.monoids import logsumexp, max, mean, moments, rectify, softmax, topk
from opmatrix.algebra.nodes import product, symbol, turn
from opmatrix.algebra.operators import (
    I,
    exp,
    heads,
    magnitude,
    ones,
    over,
    reciprocal,
    rsqrt,
    square,
    tanh,
    weight,
)
=======
from opmatrix.algebra.monoids import logsumexp, max, mean, moments
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import I, exp, magnitude, ones, reciprocal, row, rsqrt, share, square, tanh
>>>>>>> files
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from opmatrix.patterns import causal, sequence, window
from opmatrix.runtime.interpreted import write_term

x: Operator = symbol("x0", Shape(), Shape(1, Shape().rows, 256), ())
TERMS: tuple[Operator, ...] = (
    x @ magnitude, x @ exp, x @ reciprocal, x @ exp @ exp @ tanh, x @ square @ exp @ reciprocal @ tanh @ exp,
    x @ (I * (magnitude @ mean)), x @ (I * (square @ mean @ rsqrt)), x @ max, x @ logsumexp, x @ moments,
    x @ row(I + exp @ mean, tanh), x @ (exp * (exp @ ones @ reciprocal)), x @ share @ tanh @ share)
SAMPLES: tuple[str, ...] = tuple(write_term(term, {x: 0})[0] for term in TERMS)
y = x @ heads(4)
capped = product(y, turn(y)) @ tanh
FOLDED: tuple[Operator, ...] = (
    x @ over(weight(np.ones((256, 64))), max), x @ over(weight(np.ones((256, 24))), rectify),
    x @ over(weight(np.ones((256, 8))), logsumexp), x @ over(weight(np.ones((256, 3))), topk(2)),
    product(capped, y, softmax, sequence), product(capped, y, softmax, sequence & causal),
    product(capped, y, max, sequence), product(capped, y, mean, sequence & window(20)))
FOLDS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = tuple(
    (text, tuple(each.shape for each in arrays)) for text, arrays in (write_term(term, {x: 0}) for term in FOLDED))
