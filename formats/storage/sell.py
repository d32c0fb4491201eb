"""SELL-C-σ: slices of C outputs, as long as their longest, sorted by length within σ outputs."""

from types import MappingProxyType

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, c, ceiling, f4, group, n, nnz, p, u4, unsigned
from formats.storage.format import Format
from formats.storage.pruning import count_kept, highest, importance

CHUNK, SIGMA = 16, 64


class SELL(Format):
    """Slices of c outputs whose k-th numbers lie side by side, so that one row of x is multiplied c at a time.

    Of every `group` outputs, `order` names the longest first (σ of the paper; c divides it). Slice s owns the columns
    ptr[s] to ptr[s + 1] of c numbers and inputs each; a shorter output ends in zeros (Kreutzer et al. 2014,
    arXiv:1307.6209). With c = σ = p it is ELL: one slice (Saad 2003, section 3.4)."""

    order: unsigned(p)[p]
    ptr: u4[ceiling(p / c) + 1]
    idx: unsigned(n)[nnz]
    val: f4[nnz]
    prunes = True
    work = nnz * ceiling(T / 16), nnz, T * (n + p), p
    named = MappingProxyType({"chunk": c, "sigma": group})
    proposed = False

    def fit(W, *, density=0.1, scale=None):
        """Keep the highest |W| (times scale: see `importance`), a share `density` of each output, so none is padded."""
        score, count = importance(W, scale, "sell.fit"), count_kept(density, len(W), "sell")
        return W * np.column_stack([highest(column, count) for column in score.T])

    def pack(W, *, chunk=CHUNK, sigma=SIGMA):
        """Return (order, ptr, idx, val): outputs sorted by length within windows of `sigma`, padded to the longest of
        their slice."""
        sliced(chunk, sigma)
        lengths = (W != 0).sum(0)
        order = np.concatenate(
            [at + np.argsort(-lengths[at : at + sigma], kind="stable") for at in range(0, W.shape[1], sigma)]
        )
        ends = np.append(0, lengths[order].cumsum())
        ptr = np.append(0, np.pad(np.diff(ends), (0, -len(order) % chunk)).reshape(-1, chunk).max(1).cumsum())
        slots, inputs = (W.T[order] != 0).nonzero()
        places = (ptr[slots // chunk] + np.arange(len(slots)) - ends[slots]) * chunk + slots % chunk
        idx, val = np.zeros(ptr[-1] * chunk, np.int64), np.zeros(ptr[-1] * chunk, np.float32)
        idx[places], val[places] = inputs, W[inputs, order[slots]]
        return order, ptr, idx, val

    def unpack(shape, order, ptr, idx, val, *, chunk, sigma):
        """Put the nonzero stored numbers back, each at its input and at the output of its slot."""
        W, there = np.zeros(shape, np.float32), val != 0
        W[idx[there], order[slot_of(ptr, chunk)[there]]] = val[there]
        return W

    def kernel(x, order, ptr, idx, val, out, epilogue, *, chunk, sigma):
        """Write x @ W to `out`, `chunk` outputs at a time, then the epilogue."""
        from formats.kernels import product_sell

        product_sell(x, order, ptr, idx, val, out, chunk, sigma, epilogue)

    def unsound(self):
        """Describe the fault of slices, order, indices or padding; empty if there is none."""
        try:
            sliced(**self.remembered)
        except FormatError as error:
            return str(error)
        (inputs, outputs), chunk, sigma = self.shape, self.remembered["chunk"], self.remembered["sigma"]
        ptr, idx, there = self.ptr.astype(np.int64), self.idx.astype(np.int64), self.val != 0
        if ptr[0] != 0 or int(ptr[-1]) * chunk != len(idx):
            return f"ptr goes from {ptr[0]} to {ptr[-1]}, there are {len(idx)} indices in slices of {chunk}"
        if (np.diff(ptr) < 0).any():
            return f"ptr falls at {np.diff(ptr).argmin()}"
        windows = (np.sort(self.order[at : at + sigma]) for at in range(0, outputs, sigma))
        if not np.array_equal(np.concatenate([*windows]), np.arange(outputs)):
            return f"order is not every output once, in windows of {sigma}"
        if len(idx) and idx.max() >= inputs:
            return f"idx[{idx.argmax()}] = {idx.max()} is not below {inputs}"
        if (slot_of(ptr, chunk)[there] >= outputs).any():
            return "a slot beyond the last output holds a number"
        same = np.repeat(np.diff(np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))) == 0, chunk)
        after = there[chunk:] & same & (~there[:-chunk] | (np.diff(idx.reshape(-1, chunk), axis=0).ravel() <= 0))
        return f"idx does not ascend at {after.argmax()}" if after.any() else ""

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose a quarter of the numbers, and a tenth in slices of 4 and in one slice of all outputs."""
        return [
            {"density": 0.25},
            {"density": 0.1, "chunk": 4, "sigma": 8},
            {"density": 0.1, "chunk": outputs, "sigma": outputs},
        ]

    @classmethod
    def layouts(cls, inputs, outputs):
        """Offer the default windows, and windows four times as long."""
        return [{}, {"chunk": CHUNK, "sigma": 4 * SIGMA}]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.1, scale=None, chunk=CHUNK, sigma=SIGMA):
        """Count the stored places as if every output kept its share of inputs, in full slices."""
        sliced(chunk, sigma)
        return {c: chunk, group: sigma, nnz: -(-outputs // chunk) * chunk * count_kept(density, inputs, "sell")}


def sliced(chunk, sigma):
    """Raise FormatError unless slices of `chunk` fill windows of `sigma`."""
    if not (isinstance(chunk, int) and isinstance(sigma, int) and chunk > 0 and sigma > 0) or sigma % chunk:
        raise FormatError(f"sell: chunk = {chunk!r} does not divide sigma = {sigma!r}; both are positive integers")


def slot_of(ptr, chunk):
    """Return the slot (its place in `order`) that every stored number belongs to."""
    if not ptr[-1]:
        return np.zeros(0, np.int64)
    return (np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))[:, None] * chunk + np.arange(chunk)).ravel()
