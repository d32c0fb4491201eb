"""The numbers of classes: the value of one member, at one random input for values, and at an input of its own size for
operators."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import DenseReading
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, read

FREE_COLUMNS = 12  # columns of an input with any number: heads divide it
TRIED: tuple[int, ...] = (
    *range(FREE_COLUMNS, 0, -1),
    *range(FREE_COLUMNS + 1, 257),
    *(FREE_COLUMNS << more for more in range(5, 13)),
)
Float64s = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AtBorder(DenseReading):
    """Whole arrays, where the border of a part is the input itself."""

    def symbol(self, name: str, into: Shape, out: Shape) -> "AtBorder":
        """Return the input: the border of a part is the only symbol."""
        return self


TermReadings = dict[tuple[Operator, AtBorder], AtBorder]  # the results of terms at inputs


def widest(term: Operator) -> int:
    """Return a number of columns that an operator takes which accepts several: a position in n columns takes n at
    most, heads need a number that they divide, a slice one that contains it."""
    for columns in TRIED:
        try:
            term(Shape(1, T, columns))
            return columns
        except TypeError:
            continue
    return FREE_COLUMNS


class Drawn:
    """Terms read at random inputs. Equal inputs share one memory, so a shared part of several terms is read once at
    each input. Operators get an input of the size that they take."""

    def __init__(self, width: int, batch: Batch, rng: np.random.Generator) -> None:
        self.width, self.batch, self.rng = width, batch, rng
        self.drawn: dict[tuple[int, int, int], Float64s] = {}
        self.inputs: dict[tuple[tuple[int, ...], bytes], tuple[AtBorder, TermReadings]] = {}
        self.taken: dict[Operator, tuple[int, int]] = {}  # heads and columns of the input that each operator takes

    def at(self, heads: int, columns: int, number: int = 0) -> Float64s:
        """Return an input of this size; another one for each `number`."""
        key = heads, columns, number
        if key not in self.drawn:
            self.drawn[key] = self.rng.normal(size=(heads, self.batch.rows, columns)[heads == 1 :])
        return self.drawn[key]

    def of_value(self, term: Operator) -> Float64s:
        """Return the value of a term of the graph, with the input at the border."""
        return self.apply(term, self.at(1, self.width))

    def input_of(self, term: Operator) -> Float64s:
        """Return an input of an operator."""
        return self.at(*self.sizes(term))

    def sizes(self, term: Operator) -> tuple[int, int]:
        """Return the heads and columns of an input that an operator takes. The result is stored, as every property of
        a term needs it."""
        if term not in self.taken:
            heads, columns = term.into.heads, term.into.cols
            self.taken[term] = (
                heads if isinstance(heads, int) else 1,
                columns if isinstance(columns, int) else widest(term),
            )
        return self.taken[term]

    def of_property(self, term: Operator, value: bool) -> tuple[Callable[[Float64s], Float64s], Float64s, Float64s]:
        """Return a term as a function of arrays, and two inputs that it takes."""
        heads, columns = (1, self.width) if value else self.sizes(term)
        return partial(self.apply, term), self.at(heads, columns), self.at(heads, columns, 1)

    def apply(self, term: Operator, x: Float64s) -> Float64s:
        """Return the output of an operator at this input, heads x rows x columns, in float64."""
        key = x.shape, x.tobytes()
        if key not in self.inputs:
            self.inputs[key] = AtBorder(x, self.batch), {}
        with np.errstate(all="ignore"):
            output = read(term, *self.inputs[key]).array
        return np.asarray(output.reshape(-1, *output.shape[-2:]))
