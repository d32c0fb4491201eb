"""A kernel that says more than is written without numba: its object has data that is written to, and numba's names."""

from formats.kernels.engine.compiled import Function
from formats.kernels.engine.memory import longs


@Function.of(1, rare=True)
def listed(address):
    """How many numbers from 1 to the one that lies there are no multiples of 3."""
    out = longs(address, 1)
    out[0] = len([number for number in range(1, out[0] + 1) if number % 3])
