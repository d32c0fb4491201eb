"""A model as a chain: the factors that x goes through, many of which are alike and are split once. A layer begins at a
factor that mixes rows, and a stage of a pipeline is a run of layers."""

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
    """One factor of a model."""

    term: Operator  # its operator
    signature: tuple[Any, ...]  # its nodes, without the names of its arrays
    arrays: tuple[Data, ...]  # its arrays, in order


def chain(model: Operator, cuts: Mapping[str, str] | None = None) -> list[Factor]:
    """Return the factors of a model, from its input on. Factors that hand sharded columns to the next are joined into
    one, unless `cuts` declare the sharding of the next."""
    singles, links, at = [Factor(term, *signature_of(term)) for term in factors(model)], list[Factor](), 0
    known: dict[tuple[Any, ...], bool] = {}
    while at < len(singles):
        end = carried_on(singles, at, known, cuts or {})
        links.append(singles[at] if end == at + 1 else joined(singles[at:end]))
        at = end
    return links


def joined(own: Sequence[Factor]) -> Factor:
    """Compose factors to one, with the signature of the whole."""
    term = reduce(matmul, (factor.term for factor in own))
    return Factor(term, *signature_of(term))


def carried_on(own: Sequence[Factor], at: int, known: dict[tuple[Any, ...], bool], cuts: Mapping[str, str]) -> int:
    """Return the end of the run of factors from `at` on in which a weight merges the columns that the first one gives,
    and the factors between pass them on; at + 1 if there is none."""
    for end in range(at + 2, len(own) + 1):
        if any(asked_of(data, cuts) for data in own[end - 1].arrays):
            break
        key = tuple(factor.signature for factor in own[at:end])
        if key not in known:
            known[key] = carries(own[at:end])
        if known[key]:
            return end
        last = own[end - 1].term
        if not (last.entrywise or last.additive):
            break
    return at + 1


def carries(own: Sequence[Factor]) -> bool:
    """True if columns of a weight of the first factor can be sharded only together with the other factors."""
    both = joined(own).term
    x = Shape(1 if both.into.heads is H else both.into.heads, both.into.rows, both.into.cols)
    alone, together = (Cuttable(trace(term, x)[0]) for term in (own[0].term, both))
    return any(
        together.carry[at] and not alone.carry[at]
        for at, line in enumerate(alone.lines)  # both begin alike
        if line.op == "act" and contracts(line.more[0])
    )


def signature_of(term: Operator) -> tuple[tuple[Any, ...], tuple[Data, ...]]:
    """Return the nodes of a term with shapes in place of arrays, and the arrays in order."""
    places, nodes, arrays = dict[Operator, int](), list[Any](), list[Data]()
    for node in term.walk():
        places[node] = len(places)
        attributes = []
        for entry in node.attributes:
            if isinstance(entry, Data):
                arrays.append(entry.base or entry)
                single = None if isinstance(entry, Promised) or prod(entry.shape) != 1 else entry.array.item()
                first = arrays.index(arrays[-1])  # equal arrays are stored once
                attributes.append(("array", entry.shape, entry.base is not None, single, first))
            else:
                attributes.append(entry)
        nodes.append((node.kind, tuple(places[c] for c in node.children), tuple(attributes)))
    return tuple(nodes), tuple(arrays)


def mixes(term: Operator) -> bool:
    """True if the term combines different rows of x."""
    return any(node.kind.name == "product" and not all(c.constant for c in node.children) for node in term.walk())


def layers(model: Sequence[Factor]) -> list[tuple[int, int]]:
    """Return the first factor and the end of each layer: it runs from a factor that mixes rows to the next such factor.
    The last layer is as long as the one before it; factors behind it belong to no layer."""
    starts = [at for at, factor in enumerate(model) if mixes(factor.term)]
    spans = [*pairwise([*starts, len(model)])]
    if len(spans) > 1:
        lo, hi = spans[-1]
        spans[-1] = lo, min(hi, lo + spans[-2][1] - spans[-2][0])
    return spans


def cut_stages(model: Sequence[Factor], count: int, given: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Return the first factor and the end of each stage. Stages have equally many layers, the first ones one more, or
    the `given` numbers of layers. Factors before the first layer belong to the first stage, factors behind the last
    layer to the last. Raises InputError for more stages than layers, and for given numbers that do not fit."""
    if count == 1 and given is None:
        return [(0, len(model))]
    spans = layers(model)
    if given is not None and (len(given) != count or sum(given) != len(spans) or min(given) < 1):
        raise InputError(f"stages {[*given]}: give {count} numbers of layers, each from 1 on, {len(spans)} in all")
    if count > len(spans):
        raise InputError(f"mesh: {count} stages of {len(spans)} layers: at most {len(spans)} stages, of a layer each")
    ends = [*accumulate(given)] if given else [hi for _, hi in all_bounds(len(spans), count)]
    cuts = [0, *(spans[end][0] for end in ends[:-1]), len(model)]
    return [*pairwise(cuts)]
