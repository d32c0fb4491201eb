"""Block-diagonal: every range of outputs has its own range of inputs."""
import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, blocks, ceiling, f4, n, p
from formats.format import Format

BLOCKS = 4


class BlockDiagonal(Format):
    """So many dense blocks along the diagonal, all of one size: a product for each group (grouped products: Krizhevsky
    et al. 2012, section 3.2; butterfly factors are made of them: Dao et al. 2022, arXiv:2204.00595).

    Block b takes the inputs from b ceil(n / blocks) on to the outputs from b ceil(p / blocks) on; what reaches over the
    edge is zero."""
    val: f4[blocks, ceiling(n / blocks), ceiling(p / blocks)]
    work = T * n * p / blocks, n * p / blocks, T * (n + p), blocks * ceiling(T / 16)
    proposed = False

    def fit(W, *, blocks=BLOCKS):
        """Nothing but the blocks is kept."""
        return undivided(divided(W, blocks), W.shape)

    def pack(W, *, blocks=BLOCKS): return divided(W, blocks)
    def unpack(shape, val): return undivided(val, shape)

    def kernel(x, val, out, epilogue):
        from formats.kernels import product_blockdiagonal
        product_blockdiagonal(x, val, out, epilogue)

    def transpose(self):
        """W.T: each block turned."""
        return BlockDiagonal(self.shape[::-1], (self.val.transpose(0, 2, 1),))

    def unsound(self):
        blocks, *sides = self.val.shape
        down, across = (np.arange(blocks * side).reshape(blocks, side) >= whole
                        for side, whole in zip(sides, self.shape, strict=True))
        beyond = self.val[down].any() or self.val.transpose(0, 2, 1)[across].any()
        return "a block holds numbers beyond the edge of the matrix" if beyond else ""

    @classmethod
    def choices(cls, inputs, outputs): return [{"blocks": blocks} for blocks in (2, 4, 8)]

    @classmethod
    def counts(cls, inputs, outputs, *, blocks=BLOCKS): return {BlockDiagonal.fields["val"].shape[0]: several(blocks)}


def several(blocks):
    """How many blocks; FormatError if that is no positive integer."""
    if isinstance(blocks, int) and blocks > 0: return blocks
    raise FormatError(f"blockdiagonal: blocks = {blocks!r} is not a positive integer")


def divided(W, blocks):
    """The blocks along the diagonal of W (n, p), with zeros beyond its edge."""
    rows, columns = (-(-side // several(blocks)) for side in W.shape)
    padded = np.pad(W, ((0, rows * blocks - len(W)), (0, columns * blocks - W.shape[1])))
    return padded.reshape(blocks, rows, blocks, columns)[np.arange(blocks), :, np.arange(blocks)]


def undivided(val, shape):
    """The inverse of `divided`: a matrix of this shape, zero outside its blocks."""
    blocks, rows, columns = val.shape
    W = np.zeros((blocks, rows, blocks, columns), np.float32)
    W[np.arange(blocks), :, np.arange(blocks)] = val
    return W.reshape(blocks * rows, blocks * columns)[:shape[0], :shape[1]]
