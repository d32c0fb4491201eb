"""The blocks of keys that each block of queries of a ring sees, so that unread blocks are neither computed nor sent."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.positions.patterns import FAR, Pattern, Positions
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import all_bounds

PROBED_TOKENS = 4, 12  # tokens a rank to probe, if their number is a symbol
RANKS = 256  # most ranks of a ring: each pair of ranks is a block
TOKENS = 16_384  # most tokens whose pairs fit into memory


@lru_cache(256)
def seen_blocks(where: Pattern, tokens: LiveSize, n: int) -> tuple[tuple[bool, ...], ...]:
    """Return for each i and j if any query of block i sees any key of block j. Raises InputError if that depends on a
    size that is a symbol, and for more ranks than are checked one by one."""
    if n > RANKS:
        raise InputError(f"mesh: a ring has {n} ranks: its mask is evaluated block by block, for at most {RANKS} ranks")
    if isinstance(tokens, int):
        return count_blocks(where, tokens, n)
    one, other = (count_blocks(where, n * per_rank, n) for per_rank in PROBED_TOKENS)
    if one == other:
        return one
    raise InputError(
        f"partition: which blocks of keys are seen under {where} depends on the number of tokens, "
        f"{tokens}: give it as a number"
    )


def count_blocks(where: Pattern, tokens: int, n: int) -> tuple[tuple[bool, ...], ...]:
    """Return the block mask for a number of tokens. A pattern that sees a range of positions is evaluated at the ends
    of blocks, so sequences may have any length. For other patterns all positions are checked; raises InputError for
    more tokens than TOKENS then."""
    cuts = all_bounds(tokens, n)
    if where.reach is not None:
        back, ahead = where.reach
        return tuple(tuple(c <= b - 1 + ahead and d - 1 >= a - back for c, d in cuts) for a, b in cuts)
    if tokens > TOKENS:
        raise InputError(
            f"partition: a ring over {tokens} tokens under {where}: this mask is evaluated token by token, "
            f"for at most {TOKENS} tokens"
        )
    seen = visibility(where, np.arange(tokens), np.arange(tokens))
    return tuple(tuple(bool(seen[a:b, c:d].any()) for c, d in cuts) for a, b in cuts)


def visibility(where: Pattern, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return which query positions see which key positions within one sequence, as a boolean matrix. Raises InputError
    for the pattern of a relation."""
    if where.relation is not None:
        raise InputError(f"partition: {where} depends on a relation of the batch: partition attention within sequences")
    zero = np.zeros((), np.int64)
    visible = where.sees(Positions(queries[:, None], zero), Positions(keys[None, :], zero))
    return np.broadcast_to(visible, (len(queries), len(keys)))


def sees_all(where: Pattern) -> bool:
    """True if every token of a sequence sees every other."""
    return where.reach == (FAR, FAR)


def sent_blocks(seen: tuple[tuple[bool, ...], ...], r: int) -> list[int]:
    """Return the blocks that rank r hands on, in order: each block that it holds, as long as a later rank sees it."""
    n = len(seen)
    return [j for d in range(n - 1) if any(seen[(r + 1 + e) % n][j := (r - d) % n] for e in range(n - 1 - d))]
