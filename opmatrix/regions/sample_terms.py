"""Terms whose kernels are timed, so that those of others are priced: of little work and of much, with reductions, with
divisions, with monoids of several numbers."""
from opmatrix.algebra.monoids import logsumexp, max, mean, moments
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import I, exp, magnitude, ones, reciprocal, row, rsqrt, share, square, tanh
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from opmatrix.runtime.interpreted import write_term

x: Operator = symbol("x0", Shape(), Shape(1, Shape().rows, 256), ())
TERMS: tuple[Operator, ...] = (
    x @ magnitude, x @ exp, x @ reciprocal, x @ exp @ exp @ tanh, x @ square @ exp @ reciprocal @ tanh @ exp,
    x @ (I * (magnitude @ mean)), x @ (I * (square @ mean @ rsqrt)), x @ max, x @ logsumexp, x @ moments,
    x @ row(I + exp @ mean, tanh), x @ (exp * (exp @ ones @ reciprocal)), x @ share @ tanh @ share)
SAMPLES: tuple[str, ...] = tuple(write_term(term, {x: 0})[0] for term in TERMS)
