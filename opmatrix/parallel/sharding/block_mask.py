"""Which blocks of keys the blocks of queries of a ring see, so that what nobody reads is neither computed nor sent."""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.positions.patterns import FAR, Pattern, Positions
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import all_bounds

PROBED_TOKENS = 4, 12                                              # tokens a rank, where their number is a symbol
RANKS = 256                                                 # of a ring: blocks are pairs of them
TOKENS = 16_384                                             # whose pairs fit into memory


@lru_cache(256)
def seen_blocks(where: Pattern, tokens: LiveSize, n: int) -> tuple[tuple[bool, ...], ...]:
    """Whether any query of block i sees any key of block j. Raises InputError where that depends on a size that is a
    symbol, and for more ranks than are looked at one by one."""
    if n > RANKS:
        raise InputError(f"mesh: a ring has {n} ranks, and whom each of them sees is looked at block by block: at most "
                         f"{RANKS} ranks")
    if isinstance(tokens, int): return count_blocks(where, tokens, n)
    one, other = (count_blocks(where, n * each, n) for each in PROBED_TOKENS)
    if one == other: return one
    raise InputError(f"partition: which blocks of keys are seen under {where} depends on the number of tokens, "
                     f"{tokens}: give it as a number")


def count_blocks(where: Pattern, tokens: int, n: int) -> tuple[tuple[bool, ...], ...]:
    """A pattern that sees a range of positions is read at its ends, so sequences may have any length; of others all
    positions are looked at."""
    cuts = all_bounds(tokens, n)
    if where.reach is not None:
        back, ahead = where.reach
        return tuple(tuple(c <= b - 1 + ahead and d - 1 >= a - back for c, d in cuts) for a, b in cuts)
    if tokens > TOKENS:
        raise InputError(f"partition: a ring over {tokens} tokens under {where}: whom each sees is looked at one by "
                         f"one: at most {TOKENS} tokens")
    seen = visibility(where, np.arange(tokens), np.arange(tokens))
    return tuple(tuple(bool(seen[a:b, c:d].any()) for c, d in cuts) for a, b in cuts)


def visibility(where: Pattern, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which of these positions see which, within one sequence."""
    if where.relation is not None:
        raise InputError(f"partition: {where} is of a relation of the batch: partition attention within sequences")
    zero = np.zeros((), np.int64)
    found = where.sees(Positions(queries[:, None], zero), Positions(keys[None, :], zero))
    return np.broadcast_to(found, (len(queries), len(keys)))


def sees_all(where: Pattern) -> bool:
    """Whether every token of a sequence sees every other."""
    return where.reach == (FAR, FAR)


def sent_blocks(seen: tuple[tuple[bool, ...], ...], r: int) -> list[int]:
    """Blocks that rank r hands on, in order: what it holds, as long as a rank further on sees it."""
    n = len(seen)
    return [j for d in range(n - 1) if any(seen[(r + 1 + e) % n][j := (r - d) % n] for e in range(n - 1 - d))]
