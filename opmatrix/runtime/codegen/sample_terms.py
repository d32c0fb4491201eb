"""Terms whose kernels are timed, to price the kernels of other terms: with little work and with much, with reductions,
with divisions, with monoids of several numbers, of one value and of several."""

from opmatrix.algebra.monoids import logsumexp, max, mean, moments, topk
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import I, exp, gelu, magnitude, ones, over, reciprocal, row, rsqrt, share, square, tanh
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from opmatrix.runtime.interpreted import write_term

x, y, z = TAKEN = [symbol(f"x{k}", Shape(), Shape(1, Shape().rows, 256), ()) for k in range(3)]
TERMS: tuple[Operator, ...] = (
    x @ magnitude,
    x @ exp,
    x @ reciprocal,
    x @ exp @ exp @ tanh,
    x @ square @ exp @ reciprocal @ tanh @ exp,
    x @ (I * (magnitude @ mean)),
    x @ (I * (square @ mean @ rsqrt)),
    x @ max,
    x @ logsumexp,
    x @ moments,
    x @ row(I + exp @ mean, tanh),
    x @ (exp * (exp @ ones @ reciprocal)),
    x @ share @ tanh @ share,
    x * y,
    x + y * z,
    (x + y) @ gelu @ mean,
    x @ tanh * y @ over(ones, topk(2)),
)


def count_taken(term: Operator) -> int:
    """Count the stand-ins for values that a sample term takes."""
    return sum(any(node is value for value in TAKEN) for node in term.walk())


SAMPLES: tuple[tuple[str, int], ...] = tuple(
    (write_term(term, {value: k for k, value in enumerate(TAKEN)})[0], count_taken(term)) for term in TERMS
)
