"""Losses as operators, a number for each row, and a step of Adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.nodes import given, ones, over
from opmatrix.algebra.operators import I, square
from opmatrix.algebra.operators import given as given_input
from opmatrix.algebra.term import Operator

TARGETS = "targets"  # the input with the target of each row


def cross_entropy(n: int, targets: str = TARGETS) -> Operator:
    """Return the loss of each row of scores of n classes: the logarithm of the sum of e to their power, less the score
    of its target, an id that the batch gives as an input of one column of whole numbers."""
    right: Operator = given(targets, n)
    loss: Operator = over(ones(), monoids.logsumexp) - (I * right) @ ones()
    return loss


def squared_error(n: int, targets: str = TARGETS) -> Operator:
    """Return half the squared differences of n columns from an input of as many, summed by row."""
    off: Operator = I - given_input(targets, n, "T")
    return off @ square @ ones() * 0.5


@dataclass
class Adam:
    """Adam with bias correction, over arrays by name in float64 (Kingma and Ba 2015, algorithm 1). It holds two
    numbers a parameter."""

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    steps: int = 0
    first: dict[str, Numeric] = field(default_factory=dict)
    second: dict[str, Numeric] = field(default_factory=dict)

    def step(self, arrays: Mapping[str, Numeric], gradients: Mapping[str, Numeric]) -> dict[str, Numeric]:
        """Return the arrays after one step. Raises InputError for a gradient that is not finite, by the step and the
        array, and for one of another name: terms hold arrays of equal numbers once, under one name."""
        if other := sorted(gradients.keys() - arrays.keys()):
            raise InputError(
                f"step {self.steps + 1}: a gradient of {other[0]}, which is not among the arrays: equal "
                "arrays are merged in a term, so initialise them with different numbers"
            )
        self.steps += 1
        updated: dict[str, Numeric] = dict(arrays)
        for name, g in gradients.items():
            if not np.isfinite(g).all():
                raise InputError(
                    f"step {self.steps}: the gradient of {name} is not finite: a smaller rate than "
                    f"{self.rate:g} may help"
                )
            b, c = self.betas
            self.first[name] = b * self.first.get(name, 0.0) + (1 - b) * g
            self.second[name] = c * self.second.get(name, 0.0) + (1 - c) * g * g
            mean, spread = self.first[name] / (1 - b**self.steps), self.second[name] / (1 - c**self.steps)
            updated[name] = arrays[name] - self.rate * mean / (np.sqrt(spread) + self.eps)
        return updated
