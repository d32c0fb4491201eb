"""Bytes of balanced and mixed inputs: inputs that are large in x are scaled down, and their rows of W up (Xiao et al.
2022, SmoothQuant, arXiv:2211.10438, equation 4); remaining large values are spread over their neighbours by an
orthogonal matrix (Ashkboos et al. 2024, QuaRot, arXiv:2404.00456)."""

from types import MappingProxyType
from typing import Self

import numpy as np

from formats.core.arrays import ROUNDED_TOGETHER, as_matrix
from formats.core.layout import MIXED, PANEL, VECTOR
from formats.core.sizes import T, ceiling, f4, n, p, u1
from formats.core.sizes import group as size
from formats.storage.format import Format, RowTurn
from formats.storage.int8 import COLUMN, STEP_INPUTS, Int8, bound_error, by_row, check_size, row_rounding, unsound
from formats.storage.packed import Packed

LARGEST = 2.0**20  # the largest factor; the least is its inverse


class BalancedInt8(Format):
    """x @ W as ((x * factor) H) @ W', a factor of each input; W' = H (W / factor) over H² in bytes as in int8.

    (x * factor) H is rounded row by row on the way. A row of x has one scale, so numbers that are far larger than the
    others leave them few steps. Where an input is large in every row, its factor helps: the root of W's norm over x's,
    after which both have one norm; without norms of x all are equal. Where it is large in some rows, H helps, a
    Hadamard matrix (sums and differences) of 16 inputs that are 16 apart, or of 8 or 4 at the end; columns of W gain.
    `group`: as for int8."""

    factor: f4[n]
    w: u1[64 * ceiling(n / 64) * 16 * ceiling(p / 16)]
    scale: f4[ceiling(n / size), p]
    unit = "int8"
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p), T * n, T * p * ceiling(n / size)
    named = MappingProxyType({"group": size})

    def fit(W, *, group=COLUMN, scale=None):
        """Round to the nearest integer multiples of scales, in balance. scale: the norms of inputs, (n,)."""
        return BalancedInt8.approximate(W, group=group, scale=scale).unpack()

    def pack(W, *, group=COLUMN):
        """Return the arrays of W with all factors 1: mixed, but not balanced."""
        return stored(W, np.ones(len(W)), group)

    def unpack(shape, factor, w, scale, *, group):
        """Mix W' back by H and multiply each input by its factor."""
        return mixed(unpacked(shape, w, scale, group))[: shape[0]] * factor[:, None]

    def kernel(x, factor, w, scale, out, epilogue, *, group):
        """Write x @ W to `out`: x balanced, mixed and rounded to bytes, then integer sums and the epilogue."""
        from formats.kernels import product_balanced_bytes

        product_balanced_bytes(x, factor, w, scale, group, out, epilogue)

    def integers(self):
        """Return W' as whole numbers, with the turn of rows before it."""
        inputs, outputs = self.shape
        whole = Int8((-(-inputs // STEP_INPUTS) * STEP_INPUTS, outputs), (self.w, self.scale), **self.remembered)
        found, groups = orders(inputs), []
        for order in MIXED:
            if count := int((found == order).sum()) // (VECTOR * order):
                groups.append((mixed(np.eye(VECTOR * order))[::VECTOR, ::VECTOR].astype(np.float32), count))
        turn = RowTurn(self.factor, tuple(groups), VECTOR)
        return (whole.integers()[0]._replace(turn=turn),)

    @classmethod
    def approximate(cls, W, *, group=COLUMN, scale=None) -> Self:
        """Store W (n, p) by norms of its inputs (n,): the factors that balance both, then bytes."""
        W = as_matrix(W, "balancedint8")
        return cls(W.shape, stored(W, np.ones(len(W)) if scale is None else balancing(W, scale), group), group=group)

    def turned(self, x):
        """Return x (T, n) balanced and mixed, (T, n filled up), by the kernel's float32 operations, one by one."""
        return np.ascontiguousarray(mixed((np.asarray(x, np.float32) * self.factor).T).T)

    def reads(self, x):
        """Return the numbers whose product with W is that of the kernel: x balanced, mixed, rounded, and back."""
        n = self.shape[0]
        return mixed((by_row(self.turned(x)) / orders(n)).T)[:n].T / self.factor

    def operands(self, x):
        """Return both operands balanced and mixed."""
        return by_row(self.turned(x)), unpacked(self.shape, self.w, self.scale, **self.remembered).astype(np.float64)

    def bound(self, x, operands=None):
        """Bound the roundings around integer sums, for x balanced and mixed by the kernel's own float32 operations."""
        return bound_error(self.turned(x), *operands or self.operands(x), len(self.scale))

    def tolerance(self, W):
        """Allow for the roundings of mixing and scaling: 16 unit roundoffs of W's norm."""
        return 16 * 2.0**-24 * float(np.linalg.norm(W.astype(np.float64)))

    def transpose(self):
        """Store W.T as float32 in panels, as its scales and factors belong to the outputs and inputs of W."""
        return Packed.pack(self.unpack().T)  # scales of outputs are none of inputs

    def unsound(self):
        """Describe the fault of a factor out of bounds, of the group or of the scales; empty if there is none."""
        if not ((self.factor >= 1 / LARGEST / MIXED[0]) & (self.factor <= LARGEST)).all():
            return f"a factor is {self.factor.min()} or {self.factor.max()}, beyond {LARGEST:g} and its inverse"
        return unsound("balancedint8", self.scale, self.remembered["group"])

    @classmethod
    def rounding(cls, spectrum, *, group=COLUMN):
        """Estimate the error: a mixed input has the mean square of its group, if they are independent."""
        turn = balancing(spectrum.weight, np.sqrt(spectrum.squares)).astype(np.float64)
        seen = spectrum.squares * np.square(turn)
        shared = [np.resize(part.mean(0), part.size) for part in mixing_groups(topped_up(seen[:, None]))]
        return row_rounding(spectrum, np.concatenate(shared), spectrum.weight / turn[:, None])

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose the groups of int8."""
        return Int8.choices(inputs, outputs)

    @classmethod
    def counts(cls, inputs, outputs, *, group=COLUMN, scale=None):
        """Return the inputs of a group, as for int8."""
        return Int8.counts(inputs, outputs, group=group)


def balancing(W, scale):
    """Return the root of W's norm over x's for each input, float32; within bounds, around 1, also where an input is
    rare."""
    some = max(1, ROUNDED_TOGETHER // W.shape[1])
    row_norms = [np.linalg.norm(W[at : at + some].astype(np.float64), axis=1) for at in range(0, len(W), some)]
    norms = np.concatenate(row_norms), np.asarray(scale, np.float64)
    both = (norms[0] > 0) & (norms[1] > 0)
    factors = np.sqrt(np.divide(norms[0], norms[1], out=np.ones(len(W)), where=both))
    middle = np.exp(np.log(factors[both]).mean()) if both.any() else 1.0
    return np.clip(np.where(both, factors / middle, 1.0), 1 / LARGEST, LARGEST).astype(np.float32)


def orders(inputs):
    """Return the order of H for each input, including those that pad to full steps."""
    vectors, result = -(-inputs // STEP_INPUTS) * STEP_INPUTS // VECTOR, []
    for order in MIXED:
        result += [order] * (vectors // order * order * VECTOR)
        vectors %= order
    return np.array(result)


def topped_up(rows):
    """Pad rows (n, m) with zeros to full steps."""
    return np.pad(rows, ((0, -len(rows) % STEP_INPUTS), (0, 0)))


def mixing_groups(rows):
    """Yield views of rows that are mixed with one another: (order, 16, m)."""
    at, order = 0, orders(len(rows))
    while at < len(rows):
        yield rows[at : at + VECTOR * order[at]].reshape(order[at], VECTOR, -1)
        at += VECTOR * order[at]


def mixed(rows):
    """Return H times rows (n, m), padded: Walsh and Hadamard's sums and differences, in the kernel's order."""
    result = topped_up(rows)
    for part in mixing_groups(result):
        order = len(part)
        for apart in (2**stage for stage in range(order.bit_length() - 1)):
            pairs = part.reshape(-1, 2, apart, *part.shape[1:])
            pairs[:, 0], pairs[:, 1] = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
    return result


def stored(W, balance, group):
    """Return the arrays of W (n, p) with inputs balanced by these factors. Factors make H a multiple of an orthogonal
    matrix, by which no number grows beyond the largest of its group, so that none overflows."""
    order = orders(len(W))
    factor = (balance / np.sqrt(MIXED[0] * order[: len(W)])).astype(np.float32)
    with np.errstate(over="ignore"):
        balanced = W / factor[:, None]
    check_size(abs(balanced).max())  # before sums of infinities become NaN
    return factor, *Int8.declared.pack(mixed(balanced) / order[:, None].astype(np.float32), group=group)


def unpacked(shape, w, scale, group):
    """Return W' (n filled up, p)."""
    return Int8.declared.unpack((-(-shape[0] // STEP_INPUTS) * STEP_INPUTS, shape[1]), w, scale, group=group)
