"""Parts of kernels' pullbacks. A cotangent has an axis of directions before those of its value: (K, *shape). A pullback
maps the cotangent of a result to those of the values that the kernel reads, by operand."""

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from formats.core.stage import Cotangents as Cotangents
from formats.core.stage import is_given
from formats.core.stage import pullback as pull_stages
from formats.storage.format import Format
from opmatrix.runtime.declarations.arguments import Arguments, Doubles
from opmatrix.runtime.declarations.by_sequence import cap_scores, softened

READING_ROWS = "activation", "times", "eps", "gain"  # operands whose stages' pullbacks read the rows before them
SCORE_BYTES = 2**26  # most bytes of cotangents of scores that are computed together


def dense_numbers(weight: Doubles | Format) -> Doubles:
    """Return a weight as a matrix: an array as it is, a format unpacked in float32."""
    return cast("Doubles", weight if isinstance(weight, np.ndarray) else weight.unpack())


def pull_epilogue(a: Arguments, rows: Callable[[], Doubles], g: Doubles) -> tuple[Doubles, dict[str, Doubles]]:
    """Return the cotangents of the rows before an epilogue, and of its operands by row. The rows are computed only
    where the pullback of a stage reads them."""
    if any(is_given(vars(a).get(name)) for name in READING_ROWS):
        return pull_stages(rows(), a, g)
    return g, {"residual": g} if is_given(vars(a).get("residual")) else {}


def into_groups(g: Doubles, heads: int) -> Doubles:
    """Return the cotangent of a value with `heads` heads that each serve a group: the sums of the groups of g
    (K, n, H, c)."""
    return cast("Doubles", g.reshape(*g.shape[:2], heads, -1, g.shape[3]).sum(3))


def softmax_pullback(shares: Doubles, g: Doubles) -> Doubles:
    """Return the cotangent of scores whose softmax along the last axis is `shares`."""
    return cast("Doubles", shares * (g - (g * shares).sum(-1, keepdims=True)))


class ScaledScores(NamedTuple):
    """The scores of attention as a function of the products q kᵀ (H, n, m): times `scale`, their tanh times `cap`
    unless that is 0, plus numbers by distance, minus infinity where `hidden`. `margin`: those of heads with sinks."""

    scale: float
    near: Doubles | float
    hidden: NDArray[np.bool_]
    cap: float = 0.0
    margin: Doubles | None = None

    def of(self, products: Doubles) -> Doubles:
        """Return the scores (H, n, m)."""
        return np.where(
            self.hidden, products.dtype.type(-np.inf), cap_scores(self.cap, products * self.scale) + self.near
        )

    def slope(self, products: Doubles) -> Doubles | float:
        """Return the derivative of the scores by the products."""
        return self.cap * self.scale * (1 - np.tanh(products * self.scale) ** 2) if self.cap else self.scale


def pull_attention(q: Doubles, k: Doubles, v: Doubles, scores: ScaledScores, g: Doubles) -> list[Doubles]:
    """Return the cotangents of q (n, H, d), k (m, H, d) and v (m, H, e), where softmax(scores) v has the cotangents g
    (K, n, H, e) (Dao et al. 2022, appendix B.4). The cotangents of scores are computed for as many directions at a time
    as SCORE_BYTES hold."""
    queries, keys, values = (x.swapaxes(0, 1) for x in (q, k, v))
    raw = queries @ keys.swapaxes(1, 2)
    shares, slope = softened(scores.of(raw), scores.margin), scores.slope(raw)

    def pull(g: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return the cotangents of q, k and v for some directions, by heads."""
        of_scores = softmax_pullback(shares, g @ values.swapaxes(1, 2)) * slope
        return of_scores @ keys, of_scores.swapaxes(2, 3) @ queries, shares.swapaxes(1, 2) @ g

    most = max(1, SCORE_BYTES // max(1, shares.nbytes))
    parts = [pull(g[lo : lo + most].swapaxes(1, 2)) for lo in range(0, len(g), most)]
    return [np.concatenate(part).swapaxes(1, 2) for part in zip(*parts, strict=True)]
