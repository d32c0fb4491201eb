"""Products over monoids whose kernels are timed, to price the kernels of other products: of rows and a stored matrix,
and of scores of pairs of rows, with little work and with much."""

import numpy as np

from opmatrix.algebra.monoids import logsumexp, max, mean, rectify, softmax, topk
from opmatrix.algebra.nodes import product, turn
from opmatrix.algebra.operators import heads, over, tanh, weight
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.algebra.term import Operator
from opmatrix.runtime.codegen.sample_terms import x
from opmatrix.runtime.interpreted import write_term

y = x @ heads(4)
capped = product(y, turn(y)) @ tanh
FOLDED: tuple[Operator, ...] = (
    x @ over(weight(np.ones((256, 64))), max),
    x @ over(weight(np.ones((256, 24))), rectify),
    x @ over(weight(np.ones((256, 8))), logsumexp),
    x @ over(weight(np.ones((256, 3))), topk(2)),
    product(capped, y, softmax, sequence),
    product(capped, y, softmax, sequence & causal),
    product(capped, y, max, sequence),
    product(capped, y, mean, sequence & window(20)),
)
FOLDS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = tuple(
    (text, tuple(array.shape for array in arrays)) for text, arrays in (write_term(term, {x: 0}) for term in FOLDED)
)
