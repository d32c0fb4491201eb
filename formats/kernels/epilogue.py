"""What may follow a product while its rows are in cache: bias, gelu, residual, normalisation, gain and shift."""
from typing import Any

import numpy as np
from numba import njit

from .compiled import FAST, OPTIONS
from .launch import address, step, words
from .maths import gelu_row
from .memory import floats

# bias, residual, gain, shift are addresses (0: absent); across is the step between rows of the residual, in numbers
EPILOGUE = [*words("bias activation residual across normal gain shift"), ("eps", "f8")]
ACTIVATIONS = {"": 0, "gelu": 1}
PARTS = ("bias", "activation", "residual", "eps", "gain", "shift")


@njit(fastmath=FAST, **OPTIONS)
def normalise(y, eps):
    """Subtract the mean, divide by the root of the mean square (Ba et al. 2016, eq. 4)."""
    total = np.float32(0)
    for j in range(y.size): total += y[j]
    mean = total / np.float32(y.size)
    square = np.float32(0)
    for j in range(y.size):
        y[j] -= mean
        square += y[j] * y[j]
    scale = np.float32(1) / np.sqrt(square / np.float32(y.size) + eps)
    for j in range(y.size): y[j] *= scale


@njit(fastmath={"contract"}, **OPTIONS)
def pointwise_part(e, y, row, start):
    """Bias, activation and residual on the columns from start on of one row y."""
    if e.bias:
        bias = floats(e.bias + 4 * start, y.size)
        for j in range(y.size): y[j] += bias[j]
    if e.activation == 1: gelu_row(e.out + 4 * (row * e.step + start), y.size)
    if e.residual:
        residual = floats(e.residual + 4 * (row * e.across + start), y.size)
        for j in range(y.size): y[j] += residual[j]


@njit(fastmath={"contract"}, **OPTIONS)
def affine_part(e, y, start):
    """Gain and shift on the columns from start on of one row y."""
    if e.gain:
        gain = floats(e.gain + 4 * start, y.size)
        for j in range(y.size): y[j] *= gain[j]
    if e.shift:
        shift = floats(e.shift + 4 * start, y.size)
        for j in range(y.size): y[j] += shift[j]


@njit(**OPTIONS)
def finish(e, low, high, left, right):
    """The epilogue on rows low..high and columns left..right of e.out (a record with out, step, p and EPILOGUE).

    Normalisation, and what follows it, is left to finish_rows."""
    if not (e.bias or e.activation or e.residual or (not e.normal and (e.gain or e.shift))): return
    for row in range(low, high):
        y = floats(e.out + 4 * (row * e.step + left), right - left)
        pointwise_part(e, y, row, left)
        if not e.normal: affine_part(e, y, left)


@njit(**OPTIONS)
def finish_rows(e, low, high, left, right):
    """Normalisation, gain and shift, if columns left..right are whole rows."""
    if not e.normal or right - left < e.p: return
    for row in range(low, high):
        y = floats(e.out + 4 * row * e.step, e.p)
        normalise(y, np.float32(e.eps))
        affine_part(e, y, 0)


def epilogue_fields(epilogue: Any, shape: tuple[int, int]) -> tuple[Any, ...]:
    """The values of EPILOGUE for an object with the attributes bias, activation, residual, eps, gain and shift."""
    if epilogue is None: return 0, 0, 0, 0, 0, 0, 0, 0.0
    bias, activation, residual, eps, gain, shift = (getattr(epilogue, part) for part in PARTS)
    if activation not in ACTIVATIONS:
        raise ValueError(f"epilogue: activation {activation!r} is none of {', '.join(map(repr, ACTIVATIONS))}")
    for name, vector in (("bias", bias), ("gain", gain), ("shift", shift)):
        if vector is not None: check_rows(name, vector, (shape[1],))
    if residual is not None: check_rows("residual", residual, shape)
    return (address(bias), ACTIVATIONS[activation], address(residual), 0 if residual is None else step(residual),
            eps is not None, address(gain), address(shift), eps or 0.0)


def check_rows(name: str, array: np.ndarray, shape: tuple[int, ...], kind: type = np.float32) -> np.ndarray:
    """The array, if it has this shape and kind of number and its rows are contiguous; otherwise an error in words."""
    if array.shape != shape or array.dtype != kind:
        wanted = f"{np.dtype(kind).name} of shape {shape}"
        raise ValueError(f"{name}: expected {wanted}, got {array.dtype} of shape {array.shape}")
    if array.size > 1 and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ValueError(f"{name}: rows must be contiguous, got steps of {array.strides} bytes")
    return array
