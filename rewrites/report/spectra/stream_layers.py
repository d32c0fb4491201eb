"""The layers of a model between two states of its stream: the rows that go in and come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap, takewhile
from operator import matmul

from formats.core.errors import InputError
from opmatrix.algebra.operators import I, symbol
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from rewrites.egraph.layers import outputs, split_model
from rewrites.laws.flat import factors, flat


@dataclass(frozen=True)
class StreamLayer:
    """A layer: its number, from 0 on, and its term."""

    number: int
    term: Operator

    @property
    def flat(self) -> Operator:
        """The layer written out behind rows of which only the width is known."""
        rows = Shape(1, self.term.into.rows, self.term.into.cols)
        return flat(self.term, symbol("stream", rows, rows))


@dataclass(frozen=True)
class Stream:
    """A model as an entrance (embeddings), layers that map rows to rows of the same width, and an exit, which is the
    identity where nothing follows the last layer."""

    entrance: Operator
    layers: list[StreamLayer]
    exit: Operator


def stream_of(model: Operator) -> Stream:
    """Return the layers of a model's first output. A layer begins where rows are mixed and gives rows of the same
    width; the last one has as many factors as the one before it, so that a norm, a pooling or a vocabulary behind it
    belongs to the exit. Raises InputError for a model without layers."""
    parts = [[*factors(part)] for part in split_model(next(iter(outputs(model).values())))]
    first = next((at for at, part in enumerate(parts) if keeps_width(part)), len(parts))
    count = sum(1 for _ in takewhile(keeps_width, parts[first:]))
    if not count:
        raise InputError("this model has no layers: none of its parts mixes rows and keeps their width")
    groups = parts[first : first + count]
    last, behind = cut_last(groups)
    terms: list[Operator] = [reduce(matmul, group) for group in [*groups[:-1], last]]
    rest = [*behind, *(factor for part in parts[first + count :] for factor in part)]
    entrance = [factor for part in parts[:first] for factor in part]
    return Stream(reduce(matmul, entrance, I), [*starmap(StreamLayer, enumerate(terms))], reduce(matmul, rest, I))


def keeps_width(part: Sequence[Operator]) -> bool:
    """True for factors that mix rows and begin with a value as wide as it was."""
    return not all(factor.selective for factor in part) and part[0].out[1:] == part[0].into[1:]


def cut_last(groups: Sequence[list[Operator]]) -> tuple[list[Operator], list[Operator]]:
    """Return the factors of the last layer, and those behind it."""
    last = groups[-1]
    stop = len(last) if len(groups) == 1 else min(len(last), len(groups[-2]))
    while last[stop - 1].out[1:] != last[0].into[1:]:
        stop -= 1
    return last[:stop], last[stop:]
