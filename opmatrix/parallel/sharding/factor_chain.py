"""A model as a chain: what x goes through, one factor after the other, of which many are alike. Those are split once.
Layers begin where rows are mixed, and stages of a pipeline are runs of layers."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from math import prod
from operator import matmul
from typing import Any, NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.traced import trace
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.shapes import H, Shape
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import all_bounds
from opmatrix.parallel.sharding.carrying import Cuttable, asked_of


class Factor(NamedTuple):
    """One factor of a model: its term, what it looks like without the names of its arrays, and these arrays."""
    term: Operator
    signature: tuple[Any, ...]
    arrays: tuple[Data, ...]


def chain(model: Operator, cuts: Mapping[str, str] | None = None) -> list[Factor]:
    """The factors of a model, from its input on; those whose columns one hands to the next cut are one, but where
    `cuts` say how the next is cut."""
    own, found, at = [Factor(term, *signature_of(term)) for term in factors(model)], list[Factor](), 0
    known: dict[tuple[Any, ...], bool] = {}
    while at < len(own):
        end = carried_on(own, at, known, cuts or {})
        found.append(own[at] if end == at + 1 else joined(own[at:end]))
        at = end
    return found


def joined(own: Sequence[Factor]) -> Factor:
    term = reduce(matmul, (each.term for each in own))
    return Factor(term, *signature_of(term))


def carried_on(own: Sequence[Factor], at: int, known: dict[tuple[Any, ...], bool], cuts: Mapping[str, str]) -> int:
    """Behind which factor the columns that one gives are merged by a weight, where what lies between passes them on;
    the next one where they are not."""
    for end in range(at + 2, len(own) + 1):
        if any(asked_of(data, cuts) for data in own[end - 1].arrays): break
        key = tuple(each.signature for each in own[at:end])
        if key not in known: known[key] = carries(own[at:end])
        if known[key]: return end
        last = own[end - 1].term
        if not (last.entrywise or last.additive): break
    return at + 1


def carries(own: Sequence[Factor]) -> bool:
    """Whether columns of a weight of the first of some factors can be cut for the others, and not for it alone."""
    both = joined(own).term
    x = Shape(1 if both.into.heads is H else both.into.heads, both.into.rows, both.into.cols)
    alone, together = (Cuttable(trace(term, x)[0]) for term in (own[0].term, both))
    return any(together.carry[at] and not alone.carry[at] for at, line in enumerate(alone.lines)      # both begin alike
               if line.op == "act" and contracts(line.more[0]))


def signature_of(term: Operator) -> tuple[tuple[Any, ...], tuple[Data, ...]]:
    """The nodes of a term with shapes in place of arrays, and the arrays in order."""
    places, nodes, arrays = dict[Operator, int](), list[Any](), list[Data]()
    for node in term.walk():
        places[node] = len(places)
        attributes = []
        for each in node.attributes:
            if isinstance(each, Data):
                arrays.append(each.base or each)
                single = None if isinstance(each, Promised) or prod(each.shape) != 1 else each.array.item()
                first = arrays.index(arrays[-1])            # equal arrays are stored once
                attributes.append(("array", each.shape, each.base is not None, single, first))
            else: attributes.append(each)
        nodes.append((node.kind, tuple(places[c] for c in node.children), tuple(attributes)))
    return tuple(nodes), tuple(arrays)


def mixes(term: Operator) -> bool:
    """Whether rows of x meet each other in it."""
    return any(node.kind.name == "product" and not all(c.constant for c in node.children) for node in term.walk())


def layers(model: Sequence[Factor]) -> list[tuple[int, int]]:
    """From which factor to which each layer is: from one that mixes rows up to the next. The last is as long as the one
    before it, and what is left belongs to no layer."""
    starts = [at for at, factor in enumerate(model) if mixes(factor.term)]
    found = [*pairwise([*starts, len(model)])]
    if len(found) > 1:
        lo, hi = found[-1]
        found[-1] = lo, min(hi, lo + found[-2][1] - found[-2][0])
    return found


def cut_stages(model: Sequence[Factor], count: int, given: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """From which factor to which each stage is: as many layers each, the first ones one more, or as many as are given;
    what comes before the first layer is of the first stage, what comes behind the last of the last. Raises InputError
    for more stages than layers."""
    if count == 1 and given is None: return [(0, len(model))]
    found = layers(model)
    if given is not None and (len(given) != count or sum(given) != len(found) or min(given) < 1):
        raise InputError(f"stages {[*given]}: give {count} numbers of layers, each from 1 on, {len(found)} in all")
    if count > len(found):
        raise InputError(f"mesh: {count} stages of {len(found)} layers: at most {len(found)} stages, of a layer each")
    ends = [*accumulate(given)] if given else [hi for _, hi in all_bounds(len(found), count)]
    cuts = [0, *(found[end][0] for end in ends[:-1]), len(model)]
    return [*pairwise(cuts)]
