"""Bytes whose inputs are balanced: what is large in x for few inputs is taken to W (Xiao et al. 2022, SmoothQuant,
arXiv:2211.10438, equation 4)."""
from types import MappingProxyType
from typing import Self

import numpy as np

from formats.core.arrays import ROUNDED_TOGETHER, as_matrix
from formats.core.layout import PANEL
from formats.core.sizes import T, ceiling, f4, n, p, u1
from formats.core.sizes import group as size
from formats.format import Format
from formats.int8 import COLUMN, Int8, bound_error, by_row, row_rounding, unsound
from formats.packed import Packed

LARGEST = 2.0 ** 20                                          # of a factor, and one over the smallest


class BalancedInt8(Format):
    """x @ W as (x * turn) @ (W / turn), by a factor of each input; W / turn in bytes as in int8.

    x * turn is rounded row by row on the way. A row of x has one scale, so an input that is far larger than the others
    leaves them few steps. The factor of an input is the root of W's norm over x's, in which both have one norm; without
    norms of x all are 1. `group`: as for int8."""
    turn: f4[n]
    w: u1[64 * ceiling(n / 64) * 16 * ceiling(p / 16)]
    scale: f4[ceiling(n / size), p]
    unit = "int8"
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p), T * n, T * p * ceiling(n / size)
    named = MappingProxyType({"group": size})

    def fit(W, *, group=COLUMN, scale=None):
        """The nearest whole multiples of scales, in balance. scale: the norms of inputs, (n,)."""
        return BalancedInt8.approximate(W, group=group, scale=scale).unpack()

    def pack(W, *, group=COLUMN): return np.ones(len(W), np.float32), *Int8.declared.pack(W, group=group)

    def unpack(shape, turn, w, scale, *, group):
        return Int8.declared.unpack(shape, w, scale, group=group) * turn[:, None]

    def kernel(x, turn, w, scale, out, epilogue, *, group):
        from formats.kernels import product_balanced_bytes
        product_balanced_bytes(x, turn, w, scale, group, out, epilogue)

    @classmethod
    def approximate(cls, W, *, group=COLUMN, scale=None) -> Self:
        """W (n, p) by norms of its inputs (n,): the factors that balance both, then bytes."""
        W = as_matrix(W, "balancedint8")
        turn = np.ones(len(W), np.float32) if scale is None else balancing(W, scale)
        return cls(W.shape, (turn, *Int8.declared.pack(W / turn[:, None], group=group)),
                   group=group)

    def turned(self, x): return np.asarray(x, np.float32) * self.turn
    def reads(self, x): return by_row(self.turned(x)) / self.turn

    def operands(self, x):
        """Both in balance."""
        return by_row(self.turned(x)), Int8.declared.unpack(self.shape, self.w, self.scale, **self.remembered).astype(
            np.float64)

    def bound(self, x, operands=None):
        return bound_error(self.turned(x), *operands or self.operands(x), len(self.scale))

    def tolerance(self, W): return 8 * 2.0 ** -24 * float(np.linalg.norm(W.astype(np.float64)))
    def transpose(self): return Packed.pack(self.unpack().T)             # scales of outputs are none of inputs

    def unsound(self):
        if not ((self.turn >= 1 / LARGEST) & (self.turn <= LARGEST)).all():
            return f"a factor is {self.turn.min()} or {self.turn.max()}, beyond {LARGEST:g} and its inverse"
        return unsound("balancedint8", self.scale, self.remembered["group"])

    @classmethod
    def rounding(cls, spectrum, *, group=COLUMN):
        return row_rounding(spectrum, balancing(spectrum.weight, np.sqrt(spectrum.squares)))

    @classmethod
    def choices(cls, inputs, outputs): return Int8.choices(inputs, outputs)
    @classmethod
    def counts(cls, inputs, outputs, *, group=COLUMN, scale=None): return Int8.counts(inputs, outputs, group=group)


def balancing(W, scale):
    """The root of W's norm over x's for each input, float32; within bounds, around 1, where an input is seldom met."""
    some = max(1, ROUNDED_TOGETHER // W.shape[1])
    own = [np.linalg.norm(W[at:at + some].astype(np.float64), axis=1) for at in range(0, len(W), some)]
    norms = np.concatenate(own), np.asarray(scale, np.float64)
    both = (norms[0] > 0) & (norms[1] > 0)
    found = np.sqrt(np.divide(norms[0], norms[1], out=np.ones(len(W)), where=both))
    middle = np.exp(np.log(found[both]).mean()) if both.any() else 1.0
    return np.clip(np.where(both, found / middle, 1.0), 1 / LARGEST, LARGEST).astype(np.float32)
