"""The parts that encoders are made of: products and norms by their names in files, attention with a bias by
distance."""

from typing import NamedTuple

from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import affine, const, diag, heads, layernorm, product, weight
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import ArraySource


class Parts(NamedTuple):
    """The arrays of a checkpoint, from which parts are built by their names in files; `eps` is that of its norms."""

    at: ArraySource
    eps: float

    def plain(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W of an array that files store as it is, (inputs, outputs)."""
        return weight(self.at(f"{name}.weight", n, p))

    def matrix(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W; files store W as (outputs, inputs)."""
        return weight(self.at(f"{name}.weight", p, n).T)

    def linear(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W + b; files store W as (outputs, inputs)."""
        return affine(self.at(f"{name}.weight", p, n).T, self.at(f"{name}.bias", p))

    def norm(self, name: str, n: LiveSize) -> Operator:
        """Build a layer norm with gain and shift."""
        return layernorm(self.eps) @ diag(self.at(f"{name}.weight", n)) + const(self.at(f"{name}.bias", n))

    def norm_unshifted(self, name: str, n: LiveSize) -> Operator:
        """Build a layer norm with a gain alone."""
        return layernorm(self.eps) @ diag(self.at(f"{name}.weight", n))


def attention_nearby(Q: Operator, K: Operator, V: Operator, h: LiveSize, near: Operator) -> Operator:
    """Build attention within sequences whose scores, behind their division by √d, have a bias by distance: Press et al.
    2022, section 3; Song et al. 2020."""

    def mixed(x: Value) -> Value:
        """Attend: queries, keys and values by heads, then heads side by side."""
        q, k, v = (x @ W @ heads(h) for W in (Q, K, V))
        attended: Value = product(q @ k.T * q.cols**-0.5 + near, v, over=softmax, where=sequence) @ heads(h).T
        return attended

    return formula(mixed)
