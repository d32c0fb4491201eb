"""Masks of attention scores, by blocks: the blocks of scores that are computed, and the bits of those that are masked
in part."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import sympy

from formats.core.arrays import FormatError, aligned, picture, read_sizes
from formats.core.sizes import Array, Later, blocks, ceiling, m, n, r, size, total_bytes, u2, u4
from formats.storage.csr import compression

Sees = Callable[[NDArray[np.int64], NDArray[np.int64]], ArrayLike]
BLOCK, MAX_BLOCK_SIDE = 64, 1024
edges = size("edges", 0)  # blocks that are masked in part


class Mask:
    """A mask of attention: the keys (of n) that each of m queries sees, in blocks of r by r.

    Block row i (queries i r to (i + 1) r) owns the range ptr[i] to ptr[i + 1] of idx (blocks of keys of which some
    query sees some, ascending) and of edge: 0 where all is seen, otherwise 1 + the index of the block in `bits`, which
    has a bit for each score. So a kernel skips empty blocks, and reads bits at the edges alone. r is a multiple of
    16."""

    name: ClassVar[str] = "mask"
    ptr: u4[ceiling(m / r) + 1]
    idx: u4[blocks]
    edge: u4[blocks]
    bits: u2[edges, r, r / 16]
    fields: ClassVar[dict[str, Array]]
    bytes: ClassVar["sympy.Expr"]

    def __init__(self, shape: tuple[int, int], arrays: Sequence[np.ndarray], block: int) -> None:
        """Take arrays that are known to be right, in the order of the declaration; `from_arrays` is for all others."""
        self.shape, self.block = shape, block
        self.sizes = read_sizes(
            self.name, self.fields, (array.shape for array in arrays), {m: shape[0], n: shape[1], r: block}
        )
        for (name, array), values in zip(self.fields.items(), arrays, strict=True):
            setattr(self, name, aligned(values, array.number.dtype(self.sizes), f"{self.name}.{name}"))

    # ---- patterns

    @classmethod
    def of(cls, sees: Sees, queries: int, keys: int | None = None, block: int = BLOCK) -> Self:
        """Make a mask by a predicate of integers, evaluated on arrays that broadcast: a column of queries, a row of
        keys. It is called for one block row at a time, so never for all pairs at once."""
        keys = queries if keys is None else keys
        if min(queries, keys) < 1 or not blocked(block):
            raise FormatError(
                f"mask: {queries} queries and {keys} keys in blocks of {block!r}; blocks are multiples "
                f"of 16 up to {MAX_BLOCK_SIDE}"
            )
        idx, edge, bits, counts = [], [], [np.zeros((0, block, block // 16), np.int64)], [0]
        for low in range(0, queries, block):
            there, whole, words = block_row(sees, low, min(low + block, queries), keys, block)
            idx.append(there)
            edge.append(np.where(whole, 0, sum(map(len, bits)) + np.cumsum(~whole)))
            bits.append(words[~whole])
            counts.append(len(there))
        return cls(
            (queries, keys), (np.cumsum(counts), np.concatenate(idx), np.concatenate(edge), np.concatenate(bits)), block
        )

    @classmethod
    def pack(cls, pattern: ArrayLike, block: int = BLOCK) -> Self:
        """Make a mask of an explicit pattern (m, n): not 0 where a query sees a key."""
        seen = np.asarray(pattern) != 0
        if seen.ndim != 2:
            raise FormatError(f"mask.pack: the pattern has shape {seen.shape}; give (queries, keys)")
        return cls.of(lambda q, k: seen[q, k], seen.shape[0], seen.shape[1], block)

    @classmethod
    def causal(cls, length: int, block: int = BLOCK) -> Self:
        """Make a mask where every query sees the keys up to its own position."""
        return cls.of(lambda q, k: k <= q, length, block=block)

    @classmethod
    def window(cls, length: int, width: int, block: int = BLOCK) -> Self:
        """Make a mask of keys at most `width` positions apart (Beltagy et al. 2020, arXiv:2004.05150)."""
        return cls.of(lambda q, k: abs(q - k) <= width, length, block=block)

    @classmethod
    def sentences(cls, lengths: Sequence[int], block: int = BLOCK) -> Self:
        """Make a mask of sentences one after the other, each of which sees itself: blocks along the diagonal, of any
        sizes."""
        of = np.repeat(np.arange(len(lengths)), lengths)
        return cls.of(lambda q, k: of[q] == of[k], len(of), block=block)

    @classmethod
    def bigbird(
        cls, length: int, window: int = 1, everywhere: int = 1, random: int = 3, seed: int = 0, block: int = BLOCK
    ) -> Self:
        """Make a mask by blocks: neighbours at most `window` apart, the first `everywhere` ones that see all and that
        all see, and for each block row `random` more, drawn (Zaheer et al. 2020, arXiv:2007.14062, section 2 and
        appendix D)."""
        rng, count = np.random.default_rng(seed), -(-length // block)
        drawn = np.argsort(rng.random((count, count)), axis=1) < random

        def sees(q: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.bool_]:
            """True for pairs of nearby blocks, blocks that see or are seen by all, and drawn blocks."""
            i, j = q // block, k // block
            return (abs(i - j) <= window) | (i < everywhere) | (j < everywhere) | drawn[i, j]

        return cls.of(sees, length, block=block)

    # ---- out again

    def unpack(self) -> NDArray[np.bool_]:
        """Return the pattern (m, n)."""
        down, across = (-(-side // self.block) for side in self.shape)
        grid = np.zeros((down, across, self.block, self.block), bool)
        whole = np.concatenate([np.ones((1, self.block, self.block), bool), unpack_blocks(self.bits)])
        grid[np.repeat(np.arange(down), np.diff(self.ptr)), self.idx] = whole[self.edge]
        return grid.transpose(0, 2, 1, 3).reshape(down * self.block, -1)[: self.shape[0], : self.shape[1]]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the stored arrays by name, in the order of the declaration (not copies)."""
        return {name: getattr(self, name) for name in self.fields}

    def meta(self) -> dict[str, object]:
        """Return the description beside the arrays, as JSON."""
        return {"format": self.name, "shape": list(self.shape), "block": self.block}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> Self:
        """Invert meta() and arrays(); FormatError names the entry that is not as declared."""
        match dict(meta):
            case {"format": cls.name, "shape": [int(queries), int(keys)], "block": int(block), **more} if not more and (
                min(queries, keys) >= 1 and blocked(block)
            ):
                pass
            case _:
                raise FormatError(f"mask: {dict(meta)} are not the format, the shape and the block of a mask")
        if set(arrays) != set(cls.fields):
            raise FormatError(f"mask: it stores {', '.join(cls.fields)}, given {', '.join(arrays)}")
        for name, declared in cls.fields.items():
            if arrays[name].dtype != (wanted := declared.number.dtype({})):
                raise FormatError(f"mask.{name}: declared {declared}, given {arrays[name].dtype}, not {wanted}")
        mask = cls((queries, keys), tuple(arrays[name] for name in cls.fields), block)
        if complaint := mask.unsound():
            raise FormatError(f"mask: {complaint}: the file is damaged, or not written by opmatrix")
        return mask

    def unsound(self) -> str:
        """Describe the fault of the stored indices; empty if a kernel may follow them without checks."""
        ptr, idx, edge, bits = self.arrays().values()
        complaint: str = compression(ptr, idx, -(-self.shape[1] // self.block))
        known = np.array_equal(np.sort(edge[edge > 0]), np.arange(1, len(bits) + 1))
        return complaint or ("" if known else "edge is not every place in bits once")

    # ---- readings

    def attended(self, length: int) -> int:
        """Count the scores that attention computes for a sequence of `length` tokens, in the blocks of this mask."""
        down = np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))
        rows, columns = (np.clip(length - self.block * at.astype(np.int64), 0, self.block) for at in (down, self.idx))
        return int(rows @ columns)

    @property
    def nbytes(self) -> int:
        """The bytes stored, exactly."""
        return sum(array.nbytes for array in self.arrays().values())

    @property
    def grid(self) -> NDArray[np.bool_]:
        """The blocks that a kernel computes."""
        computed = np.zeros([-(-side // self.block) for side in self.shape], bool)
        computed[np.repeat(np.arange(len(computed)), np.diff(self.ptr)), self.idx] = True
        return computed

    @property
    def share(self) -> float:
        """The share of all blocks that a kernel computes."""
        return float(self.grid.mean())

    def show(self) -> str:
        """Draw the mask: its description, and its pattern in at most 32 lines of 64 characters."""
        return f"{self!r}\n{picture(self.unpack())}"

    def __repr__(self) -> str:
        return f"mask({self.shape[0]}×{self.shape[1]}, r={self.block}, blocks={len(self.idx)}, edges={len(self.bits)})"

    def attention(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        out: NDArray[np.float32] | None = None,
        scale: float = 1.0,
    ) -> NDArray[np.float32]:
        """Compute softmax(scale q kᵀ) v over the keys that are seen: q (m, ·, d), k (n, ·, d), v (n, ·, e) -> (m, h,
        e), heads shared as in `kernels.attention`; a query that sees no key gives zeros. Blocks outside the mask are
        never computed."""
        from formats.kernels import attention_blocks

        if (lengths := (len(q), len(k))) != self.shape:
            raise ValueError(f"{self!r}: got {lengths[0]} queries and {lengths[1]} keys")
        if out is None:
            out = np.empty((len(q), max(q.shape[1], k.shape[1], v.shape[1]), v.shape[2]), np.float32)
        attention_blocks(q, k, v, *self.arrays().values(), out, self.block, scale)
        return out


Mask.fields = {name: array for name, array in inspect.get_annotations(Mask).items() if isinstance(array, Array)}
Mask.bytes = Later(lambda: total_bytes(Mask.fields))


def attended(length: int, behind: int, ahead: int) -> int:
    """Count the scores that attention computes for a sequence where a query sees `behind` keys behind it and `ahead`
    ahead: for each unit of queries (formats/kernels/attentions/attending.py) those with the keys from the first that
    one of them sees to the last."""
    from formats.kernels.attentions.attending import units

    low = np.arange(0, length, side := units(length, 0)[1])
    high = np.minimum(low + side, length)
    keys = np.minimum(high + ahead, length) - np.maximum(low - behind, 0)
    return int((high - low) @ np.maximum(keys, 0))


def blocked(block: object) -> bool:
    """True if scores can come in blocks of this side."""
    return isinstance(block, int) and 16 <= block <= MAX_BLOCK_SIDE and block % 16 == 0


def block_row(
    sees: Sees, low: int, high: int, keys: int, block: int
) -> tuple[np.ndarray, NDArray[np.bool_], np.ndarray]:
    """Return the blocks of keys of which the queries low..high see some, whether they see all of it, and the bits of
    each."""
    queries, columns = np.arange(low, high)[:, None], np.arange(keys)[None]
    seen = np.broadcast_to(np.asarray(sees(queries, columns), bool), (high - low, keys))
    seen, beyond = cut_row(seen, block, False), cut_row(seen, block, True)
    there = np.flatnonzero(seen.any((1, 2)))
    words = seen[there].reshape(len(there), block, block // 16, 16) @ (1 << np.arange(16))
    return there, np.asarray(beyond[there].all((1, 2))), words


def cut_row(pattern: NDArray[np.bool_], block: int, beyond: bool) -> NDArray[np.bool_]:
    """Split a row of blocks, padded with `beyond` at its edges."""
    rows, keys = pattern.shape
    room = (0, block - rows), (0, -keys % block)
    return np.pad(pattern, room, constant_values=beyond).reshape(block, -1, block).swapaxes(0, 1)


def unpack_blocks(bits: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Convert blocks of bits to blocks of booleans."""
    several: NDArray[np.bool_] = (bits[..., None] >> np.arange(16, dtype=np.uint16) & 1).astype(bool)
    return several.reshape(*bits.shape[:2], 16 * bits.shape[2])
