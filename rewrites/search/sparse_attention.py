"""Attention that sees fewer keys: block substitutions of one part each, with a pattern whose absent tiles no kernel
computes.

Patterns are functions of positions, so they serve sequences of any length and keep no table."""
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
LONG = 1024                                                 # tokens of a sentence from which scores are what it costs
KEPT = 0.75                                                 # share of the scores that is worth a trial, at most


def bigbird(near: int) -> Pattern:
    """Blocks near by, the first one, which sees all and is seen by all, and three at random (Zaheer et al. 2020)."""
    return coarse(window(near) | hubs(1) | scattered(3), BLOCK)


# a sliding window is Beltagy et al.'s (2020), one with the first keys Xiao et al.'s (2023); the first is tried first
SPARSE = (bigbird(4), bigbird(1), coarse(window(4) | hubs(1), BLOCK), window(2 * BLOCK), window(8 * BLOCK))


def sparser_patterns(where: Pattern, lengths: NDArray[np.int64]) -> Iterator[Pattern]:
    """The patterns within this one that leave out enough of its scores for sentences of these lengths; none of short
    ones."""
    if not where.attends or lengths.max(initial=0) < LONG: return
    whole = count_scores(where, lengths)
    yield from (each for each in (where & one for one in SPARSE) if count_scores(each, lengths) <= KEPT * whole)


def sparse_attention_candidates(groups: Sequence[Sequence[Operator]],
                                lengths: NDArray[np.int64]) -> Iterator[BlockSubstitution]:
    """Every part that attends by one pattern with each sparser one in its place, by the factors of the model's parts:
    all parts with the first pattern, then with the second. The first part makes rows of tokens, and stays."""
    found = [(each, number, tuple(substitute(factor, by) for factor in group))
             for number, group in enumerate(groups) if number and (products := attention_products(group))
             for where in [products[0].attributes[-1]]
             for each in sparser_patterns(where, lengths)
             for by in [{node: node.kind(*node.children, *node.attributes[:-1], each) for node in products}]]
    order = {each: at for at, each in enumerate(dict.fromkeys(each for each, *_ in found))}
    for each, number, factors in sorted(found, key=lambda one: order[one[0]]):
        yield BlockSubstitution(LEFT_OUT, number, number, factors, width_before(groups, number), where=each)


def attention_products(group: Sequence[Operator]) -> list[Operator]:
    """The products of a part under a pattern, where all have the same one."""
    every = [node for node in reduce(matmul, group).walk()
             if node.kind.name == "product" and node.attributes[-1].attends]
    return every if len({node.attributes[-1] for node in every}) == 1 else []
