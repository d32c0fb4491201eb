"""Promises of users' monoids and patterns, tried once before a kernel is written that relies on them."""

from itertools import product

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.positions.patterns import Pattern, Positions
from opmatrix.runtime.codegen.custom_things import digest_monoid

KEPT_PROMISES: set[str] = set()  # digests of monoids that keep their promises
TRIED_POSITIONS = 150  # positions of each sequence that a pattern is tried on
CHECK_SEED = 0  # seed of the random numbers that a monoid is tried on


def check_monoid(over: type[Monoid]) -> None:
    """Raise InputError for a custom monoid that breaks a promise, which it names; each monoid is tried once."""
    if is_known(over) or (digest := digest_monoid(over)) in KEPT_PROMISES:
        return
    name = over.__name__
    try:
        with np.errstate(all="ignore"):
            over.check(np.random.default_rng(CHECK_SEED))
    except AssertionError as error:
        complaint = next(
            (line.strip() for line in str(error).splitlines() if "promise" in line), f"{name} breaks a promise"
        )
        raise InputError(
            f"monoid {complaint}: fix it, or declare by its flags which laws hold ({name}.check reports more)"
        ) from None
    except Exception as error:
        complaint = " ".join(str(error).split())
        raise InputError(
            f"monoid {name}: {type(error).__name__}: {complaint:.160}: lift, merge and finish are "
            "functions of numbers and of arrays"
        ) from None
    KEPT_PROMISES.add(digest)


def check_own_pattern(where: Pattern) -> None:
    """Raise InputError for a custom pattern that sees a position outside its reach, or of another sequence although it
    is `within`."""
    if where.ours:
        return
    at = np.arange(TRIED_POSITIONS if where.limit is None else min(TRIED_POSITIONS, where.limit))
    q, k = at[:, None], at[None]
    for one, other in product((0, 1), repeat=2):
        visible = where.sees(Positions(q, np.array(one)), Positions(k, np.array(other)))
        seen = np.broadcast_to(np.asarray(visible, np.bool_), (len(at), len(at)))
        allowed = np.ones(seen.shape, bool)
        if where.within and one != other:
            allowed[:] = False
        elif where.reach is not None and one == other:
            behind, ahead = where.reach
            allowed = (k >= q - behind) & (k <= q + ahead)
        if one == other and where.within and where.reach is not None:
            wrong = seen != allowed
        else:
            wrong = seen & ~allowed
        if not wrong.any():
            continue
        query, key = (int(axis[0]) for axis in np.nonzero(wrong))
        if one != other:
            raise InputError(
                f"pattern {where}: position {query} sees position {key} of another sequence, although it declares "
                "within=True"
            )
        assert where.reach is not None  # without a reach, all of a sequence is allowed
        what = "sees" if seen[query, key] else "does not see"
        raise InputError(
            f"pattern {where}: position {query} {what} position {key}, though its reach is "
            f"{where.reach[0]} behind and {where.reach[1]} ahead"
        )
