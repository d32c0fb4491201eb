"""The products within a step of experts: rows, weight and cotangents of each expert that some row names."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from formats.core.stage import pullback as pull_stages
from formats.core.stage import reference as apply_stages
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.cotangents import PulledStep
from opmatrix.runtime.declarations.pullbacks import dense_numbers
from opmatrix.runtime.kernels.gate import in_columns
from opmatrix.runtime.kernels.mixture import Raised, routed


class Product(NamedTuple):
    """Rows x (rows, n), the weight (n, p) that they are multiplied by, and the cotangents (K, rows, p) of the result;
    `suffix` tells the matrices of a stack apart."""

    suffix: str
    x: Numeric
    weight: Numeric
    cotangents: Numeric


def expert_products(pulled: PulledStep, operand: str) -> Iterator[Product]:
    """Yield the product of one operand, `up`, `beside` or `down`, for each expert that some row names."""
    a, g = pulled.call.kernel.record(**pulled.arguments), pulled.cotangents
    gate = in_columns(a.gate)
    for e, rows in routed(gate):
        x, share = a.x[rows], gate[rows, e].reshape(-1, 1)
        up, down = dense_numbers(a.up[e]), dense_numbers(a.down[e])
        stages, raised = Raised.of(a, e), x @ up
        hidden = apply_stages(raised, stages)
        beside = None if a.beside is None else dense_numbers(a.beside[e])
        factor = np.ones_like(hidden) if beside is None else x @ beside
        of_rows = g[:, rows] * share
        of_hidden = of_rows @ down.T
        match operand:
            case "up":
                yield Product(f".expert {e}", x, up, pull_stages(raised, stages, of_hidden * factor)[0])
            case "beside" if beside is not None:
                yield Product(f".expert {e}", x, beside, of_hidden * hidden)
            case "down":
                yield Product(f".expert {e}", hidden * factor, down, of_rows)
