"""N of every four in bytes, their places in bits."""

from types import MappingProxyType

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, ceiling, f4, kept, n, p, u1
from formats.storage.format import Format
from formats.storage.nm import NM
from formats.storage.pairs.in_bytes import INT8_ERROR, Bytes, shifted, unsound

PADDED_INPUTS, PANEL_OUTPUTS = 64, 16  # inputs that n is rounded up to; outputs of a panel
GROUP_INPUTS, OFFSET = 4, 128  # inputs of a group, which is a word; offset of numbers
FEW = 1, 2  # numbers of a group that kernels support
PLACES = np.array(
    [
        ([at for at in range(GROUP_INPUTS) if bits >> at & 1] + [0] * GROUP_INPUTS)[:GROUP_INPUTS]
        for bits in range(1 << GROUP_INPUTS)
    ],
    np.uint8,
)
BIT_COUNTS = np.array([bits.bit_count() for bits in range(1 << GROUP_INPUTS)], np.uint8)


class NMInt8(Bytes, Format, structure=NM, m=GROUP_INPUTS):
    """One or two numbers of every four consecutive inputs of each output, in bytes, and four bits that say which.

    W / scale is rounded to whole numbers up to 127, x as for int8. Panels of 16 outputs hold words of four inputs of
    each: `bits` has a bit for each of 64 numbers, `w` the numbers whose bit is set, with 128 added. A word with fewer
    nonzero numbers is filled up with zeros."""

    bits: u1[2 * 64 * ceiling(n / 64) * ceiling(p / 16)]
    w: u1[4 * kept * 64 * ceiling(n / 64) * ceiling(p / 16)]
    scale: f4[p]
    flops = 2 * T * n * p
    work = T * n * p, n * p * (1 + 2 * kept) / 8 * ceiling(T / 256), T * (n + p), T * n, n * p
    named = MappingProxyType({"n": kept})

    def arranged(idx, val, *, n):
        """Arrange the arrays; outputs and words beyond the edge keep their first inputs, which are zero."""
        if n not in FEW:
            raise FormatError(f"nmint8: n = {n!r} of every {GROUP_INPUTS} is not one of {', '.join(map(str, FEW))}")
        across, words = -len(idx) % PANEL_OUTPUTS, -idx.shape[1] // n % (PADDED_INPUTS // GROUP_INPUTS)
        bits = np.bitwise_or.reduce(1 << idx.reshape(len(idx), -1, n), 2)
        bits = np.pad(bits, ((0, across), (0, words)), constant_values=(1 << n) - 1)
        numbers = np.pad(
            shifted(val).reshape(len(idx), -1, n), ((0, across), (0, words), (0, 0)), constant_values=OFFSET
        )
        bits, numbers = (part.reshape(-1, PANEL_OUTPUTS, *part.shape[1:]).swapaxes(1, 2) for part in (bits, numbers))
        return (bits[..., ::2] | bits[..., 1::2] << GROUP_INPUTS).astype(np.uint8).reshape(-1), numbers.reshape(-1)

    def restored(shape, bits, w, *, n):
        """Return the places (p, n / 4 * kept), looked up by the four bits of each group, and the integers there."""
        (inputs, outputs), panels = shape, -(-shape[1] // PANEL_OUTPUTS)
        halves = bits.reshape(panels, -1, PANEL_OUTPUTS // 2, 1)
        bits = np.concatenate([halves & 15, halves >> GROUP_INPUTS], 3).reshape(panels, -1, PANEL_OUTPUTS)
        numbers = w.reshape(panels, -1, PANEL_OUTPUTS, n).astype(np.float32) - OFFSET
        bits, numbers = (
            part.swapaxes(1, 2).reshape(panels * PANEL_OUTPUTS, *part.shape[1:2], *part.shape[3:])[
                :outputs, : inputs // GROUP_INPUTS
            ]
            for part in (bits, numbers)
        )
        return PLACES[bits][..., :n].reshape(outputs, -1), numbers.reshape(outputs, -1)

    def kernel(x, bits, w, scale, out, epilogue, *, n):
        """Write x @ W to `out` by integer sums over the kept inputs, then the epilogue."""
        from formats.kernels import product_pruned_bytes

        product_pruned_bytes(x, bits, w, scale, n, out, epilogue)

    def unsound(self):
        """Describe the fault of n, of bits that keep another number of inputs, or of the scales; empty if there is
        none."""
        if (n := self.remembered["n"]) not in FEW or self.shape[0] % GROUP_INPUTS:
            return f"{n} of every {GROUP_INPUTS} of {self.shape[0]} inputs"
        counted = BIT_COUNTS[self.bits & 15], BIT_COUNTS[self.bits >> GROUP_INPUTS]
        if any((counts != n).any() for counts in counted):
            return f"bits do not keep {n} of every {GROUP_INPUTS}"
        return unsound(self.shape[0], self.scale)

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose the counts of FEW, the largest first, if groups divide the inputs."""
        return [{"n": n} for n in reversed(FEW) if inputs % GROUP_INPUTS == 0]

    @classmethod
    def predicted(cls, spectrum, *, n):
        """Return the error of the numbers left out, if inputs are orthogonal, and of rounding to bytes."""
        held = np.sort(spectrum.shares.reshape(-1, GROUP_INPUTS, spectrum.shape[1]), axis=1)
        return float(np.hypot(np.sqrt(held[:, : GROUP_INPUTS - n].sum()), INT8_ERROR))
