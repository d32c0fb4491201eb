"""Sparse blocks of bytes: tiles of the size that registers and vectors take."""

import numpy as np

from formats.core.sizes import T, blocks, ceiling, f4, n, p, u1, u4
from formats.storage.block import Block, tiles
from formats.storage.csr import compression
from formats.storage.format import Format
from formats.storage.pairs.in_bytes import INT8_ERROR, Bytes, shifted, unsound

TILE_INPUTS, TILE_OUTPUTS = TILE_SHAPE = 64, 16  # inputs: a line of a row of bytes; outputs: a vector of sums


class BlockInt8(Bytes, Format, structure=Block, tile=TILE_SHAPE):
    """Nonzero tiles of 64 inputs by 16 outputs in bytes, compressed by columns of tiles.

    W / scale is rounded to whole numbers up to 127, x as for int8; tiles are chosen and stored as in block. Each has 16
    words of 4 inputs, each of 16 outputs, with 128 added."""

    ptr: u4[ceiling(p / 16) + 1]
    idx: u4[blocks]
    w: u1[blocks, 16, 16, 4]
    scale: f4[p]
    flops = 2048 * T * blocks
    work = 1024 * T * blocks, 1024 * blocks * ceiling(T / 256), T * (n + p), T * n

    def arranged(ptr, idx, val):
        """Return ptr, idx and the tiles as bytes, four inputs of an output to a word."""
        return ptr, idx, shifted(val).reshape(-1, TILE_INPUTS // 4, 4, TILE_OUTPUTS).transpose(0, 1, 3, 2)

    def restored(shape, ptr, idx, w):
        """Return ptr, idx and the tiles (blocks, 64, 16) as integers in float32."""
        return ptr, idx, w.transpose(0, 1, 3, 2).reshape(-1, TILE_INPUTS, TILE_OUTPUTS).astype(np.float32) - 128

    def kernel(x, ptr, idx, w, scale, out, epilogue):
        """Write x @ W to `out` by integer sums over the stored tiles, then the epilogue."""
        from formats.kernels import product_byte_blocks

        product_byte_blocks(x, ptr, idx, w, scale, out, epilogue)

    def unsound(self):
        """Describe the fault of the compressed tiles, of too many inputs or of the scales; empty if there is none."""
        return compression(self.ptr, self.idx, -(-self.shape[0] // TILE_INPUTS)) or unsound(self.shape[0], self.scale)

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose half, a quarter and a tenth of the tiles."""
        return [{"density": density} for density in (0.5, 0.25, 0.1)]

    @classmethod
    def predicted(cls, spectrum, *, density):
        """Return the error of the tiles left out, if inputs are orthogonal, and of rounding to bytes."""
        held = np.sort(tiles(spectrum.shares, TILE_SHAPE).sum((2, 3)), axis=None)
        return float(np.hypot(np.sqrt(held[: held.size - round(density * held.size)].sum()), INT8_ERROR))
