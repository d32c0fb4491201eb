"""Sparse blocks: tiles of any size, dense inside."""

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, blocks, c, ceiling, f4, n, p, r, u4
from formats.storage.csr import compression
from formats.storage.format import Format
from formats.storage.pruning import count_kept, highest, importance

TILE, MAX_TILE_SIDE = (16, 16), 1 << 16  # the usual sides of a tile, and the longest
TILES = TILE, (8, 8), (1, 16), (1, 32)  # wide ones suit a pattern shared by adjacent outputs


class Block(Format):
    """Nonzero tiles of r inputs by c outputs, compressed by columns of tiles.

    Tile column j (outputs j c to (j + 1) c) owns the range ptr[j] to ptr[j + 1] of idx (the tile row, that is inputs
    idx r to (idx + 1) r, ascending) and of val. Where r or c does not divide the matrix, the last tiles reach over its
    edge and hold zeros there (block compressed rows: Saad 2003, section 3.4; pruned so: Gray et al. 2017)."""

    ptr: u4[ceiling(p / c) + 1]
    idx: u4[blocks]
    val: f4[blocks, r, c]
    prunes = True
    work = blocks * r * c * ceiling(T / 32), blocks * r * c, T * (n + p)

    def fit(W, *, density=0.25, tile=TILE, scale=None):
        """Keep the tiles of largest Frobenius norm (of W times scale: see `importance`), a share `density` of them."""
        norms = np.square(tiles(importance(W, scale, "block.fit"), tile)).sum((2, 3))
        mask = highest(norms, Block.counts(*W.shape, density=density, tile=tile)[blocks])
        return W * untiled(np.broadcast_to(mask[..., None, None], (*mask.shape, *tile)), W.shape)

    def pack(W, *, tile=TILE):
        """Return (ptr, idx, val): the tiles with a nonzero number, one column of tiles after the other."""
        grid = tiles(W, tile)
        present = grid.any((2, 3))
        return np.append(0, present.sum(1).cumsum()), present.nonzero()[1], grid[present]

    def unpack(shape, ptr, idx, val):
        """Put the stored tiles at their places in a matrix of zeros."""
        tile = val.shape[1:]
        grid = np.zeros((len(ptr) - 1, -(-shape[0] // tile[0]), *tile), np.float32)
        grid[np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)), idx] = val
        return untiled(grid, shape)

    def kernel(x, ptr, idx, val, out, epilogue):
        """Write x @ W to `out` from the stored tiles alone, then the epilogue."""
        from formats.kernels import product_block

        product_block(x, ptr, idx, val, out, epilogue)

    def transpose(self):
        """Store W.T in tiles of c by r."""
        return Block.pack(self.unpack().T, tile=self.val.shape[:0:-1])

    def unsound(self):
        """Describe the fault of the tile's sides, or of the compressed columns of tiles; empty if there is none."""
        try:
            check_tile(self.val.shape[1:])
        except FormatError as error:
            return str(error)
        return compression(self.ptr, self.idx, -(-self.shape[0] // self.val.shape[1]))

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose half, a quarter and a tenth of the tiles, at the default size."""
        return [{"density": density, "tile": TILE} for density in (0.5, 0.25, 0.1)]

    @classmethod
    def layouts(cls, inputs, outputs):
        """Offer every size of TILES."""
        return [{"tile": tile} for tile in TILES]

    @classmethod
    def proposed_by(cls, spectrum):
        """Propose, for the tile sizes of the choices, the densities that the spectrum of such tiles suggests."""
        tiles = dict.fromkeys(choice["tile"] for choice in cls.choices(*spectrum.shape))
        return [{"density": density, "tile": tile} for tile in tiles for density in spectrum.densities(tile)]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.25, tile=TILE, scale=None):
        """Count the tiles that a density keeps; FormatError for a tile that no kernel takes."""
        rows, columns = check_tile(tile)
        return {r: rows, c: columns, blocks: count_kept(density, -(-inputs // rows) * -(-outputs // columns), "block")}


def check_tile(tile):
    """Return the two sides of a tile. FormatError if it has not two, or if one is so large that a kernel has no room
    for it."""
    match tile:
        case [int(rows), int(columns)] if 0 < rows <= MAX_TILE_SIDE and 0 < columns <= MAX_TILE_SIDE:
            return rows, columns
    raise FormatError(
        f"block: tile = {tile!r} is not a pair of positive integers up to {MAX_TILE_SIDE:,}, (inputs, outputs)"
    )


def tiles(W, tile):
    """Reshape W (n, p) to (tile columns, tile rows, r, c), with zeros beyond the edge."""
    rows, columns = check_tile(tile)
    (inputs, outputs), down, across = W.shape, -(-len(W) // rows), -(-W.shape[1] // columns)
    padded = np.pad(W, ((0, down * rows - inputs), (0, across * columns - outputs)))
    return padded.reshape(down, rows, across, columns).transpose(2, 0, 1, 3)


def untiled(grid, shape):
    """Invert `tiles`."""
    across, down, rows, columns = grid.shape
    return grid.transpose(1, 2, 0, 3).reshape(down * rows, across * columns)[: shape[0], : shape[1]]
