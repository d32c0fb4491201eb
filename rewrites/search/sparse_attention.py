"""Attention that sees fewer keys: block substitutions of one part each, with a pattern whose absent tiles no kernel
computes.

Patterns are functions of positions, so they serve sequences of any length and need no table."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import matmul

import numpy as np
from numpy.typing import NDArray

from formats.storage.masks import BLOCK
from opmatrix.algebra.batch.extents import count_scores
from opmatrix.algebra.positions.patterns import Pattern, coarse, hubs, scattered, window
from opmatrix.algebra.term import Operator, substitute
from rewrites.search.substitutions import BlockSubstitution, width_before

LEFT_OUT = "keys left out"
LONG = 1024  # tokens of a sentence from which scores dominate its cost
KEPT = 0.75  # largest share of the scores that is worth a trial


def bigbird(near: int) -> Pattern:
    """Return blocks near by, the first one, which sees all and is seen by all, and three at random (Zaheer et al.
    2020)."""
    return coarse(window(near) | hubs(1) | scattered(3), BLOCK)


# sliding window: Beltagy et al. (2020); with the first keys: Xiao et al. (2023); patterns are tried in this order
SPARSE = (bigbird(4), bigbird(1), coarse(window(4) | hubs(1), BLOCK), window(2 * BLOCK), window(8 * BLOCK))


def sparser_patterns(where: Pattern, lengths: NDArray[np.int64]) -> Iterator[Pattern]:
    """Yield the patterns within this one that leave out enough of its scores for sentences of these lengths; none for
    short ones."""
    if not where.attends or lengths.max(initial=0) < LONG:
        return
    whole = count_scores(where, lengths)
    yield from (
        sparser for sparser in (where & one for one in SPARSE) if count_scores(sparser, lengths) <= KEPT * whole
    )


def sparse_attention_candidates(
    groups: Sequence[Sequence[Operator]], lengths: NDArray[np.int64]
) -> Iterator[BlockSubstitution]:
    """Yield every part whose attention has one pattern, with each sparser one in its place, from the factors of the
    model's parts: all parts with the first pattern, then with the second. The first part computes rows of tokens, and
    stays."""
    candidates = [
        (sparser, number, tuple(substitute(factor, by) for factor in group))
        for number, group in enumerate(groups)
        if number and (products := attention_products(group))
        for where in [products[0].attributes[-1]]
        for sparser in sparser_patterns(where, lengths)
        for by in [{node: node.kind(*node.children, *node.attributes[:-1], sparser) for node in products}]
    ]
    order = {sparser: at for at, sparser in enumerate(dict.fromkeys(sparser for sparser, *_ in candidates))}
    for sparser, number, factors in sorted(candidates, key=lambda one: order[one[0]]):
        yield BlockSubstitution(LEFT_OUT, number, number, factors, width_before(groups, number), where=sparser)


def attention_products(group: Sequence[Operator]) -> list[Operator]:
    """Return the products of a part under a pattern, if all have the same one; else an empty list."""
    every = [
        node for node in reduce(matmul, group).walk() if node.kind.name == "product" and node.attributes[-1].attends
    ]
    return every if len({node.attributes[-1] for node in every}) == 1 else []
