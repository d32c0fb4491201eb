"""Linear attention by torch.compile: all scores, the state of a whole sequence, and states between chunks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from formats.host.threads import threads

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64


def linear_peers(q: np.ndarray, k: np.ndarray, v: np.ndarray, whole: bool) -> dict[str, Callable[[], np.ndarray]]:
    """Calls that return what rows (T, heads, d) read of all rows of their sequence, or of those up to each."""
    import torch

    torch.set_num_threads(threads())
    parts = [torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1))) for x in (q, k, v)]

    def scored(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
        scores = q @ k.mT
        return (scores if whole else scores.tril()) @ v

    def summed(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
        return q @ (k.mT @ v)

    def chunked(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
        """As flash-linear-attention's torch functions do it: states before each chunk by a cumulative sum."""
        q, k, v = (x.unflatten(1, (-1, CHUNK)) for x in (q, k, v))
        states = k.mT @ v
        before = states.cumsum(1) - states
        return (q @ before + (q @ k.mT).tril() @ v).flatten(1, 2)

    states = {"torch states": summed if whole else chunked} if whole or len(q) % CHUNK == 0 else {}

    def bound(form: Callable[..., "Tensor"]) -> Callable[[], np.ndarray]:
        compiled = torch.compile(form, dynamic=False)

        def call() -> np.ndarray:
            with torch.inference_mode():
                return compiled(*parts).numpy().swapaxes(0, 1)

        return call

    return {name: bound(form) for name, form in ({"torch scores": scored} | states).items()}
