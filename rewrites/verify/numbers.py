"""The numbers of classes: what one member denotes, at one random input for values, at its own for operators."""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.oracles import DenseReading
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, read
from opmatrix.batch import Batch

FREE_COLUMNS = 12                                           # of an input that may have any: heads divide it
TRIED: tuple[int, ...] = (*range(FREE_COLUMNS, 0, -1), *range(FREE_COLUMNS + 1, 257),
                          *(FREE_COLUMNS << more for more in range(5, 13)))
Float64s = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AtBorder(DenseReading):
    """Whole arrays, where the border of a part stands for the input itself."""

    def symbol(self, name: str, into: Shape, out: Shape) -> "AtBorder":
        return self


TermReadings = dict[tuple[Operator, AtBorder], AtBorder]    # what terms give at inputs


def widest(term: Operator) -> int:
    """So many columns that an operator takes which takes any: a place in n columns takes n at most, heads what they
    divide, a cut what it lies within."""
    for columns in TRIED:
        try:
            term(Shape(1, T, columns))
            return columns
        except TypeError:
            continue
    return FREE_COLUMNS


class Drawn:
    """Terms read at random inputs. One input and one memory serve all values of a graph, so what they share is read
    once; operators get an input of the size they take."""

    def __init__(self, width: int, batch: Batch, rng: np.random.Generator) -> None:
        self.width, self.batch, self.rng = width, batch, rng
        self.inputs: dict[tuple[int, int, int], tuple[AtBorder, TermReadings]] = {}

    def at(self, heads: int, columns: int, number: int = 0) -> tuple[AtBorder, TermReadings]:
        """An input of this size and what is known of terms there; another one for each number."""
        key = heads, columns, number
        if key not in self.inputs:
            shape = (heads, self.batch.rows, columns)[heads == 1:]
            self.inputs[key] = AtBorder(self.rng.normal(size=shape), self.batch), {}
        return self.inputs[key]

    def of_value(self, term: Operator, number: int = 0) -> Float64s:
        """A value of the graph, at the border."""
        return self.read(term, *self.at(1, self.width, number))

    def of_operator(self, term: Operator, number: int = 0) -> tuple[Float64s, Float64s]:
        """An operator's input and what it gives there."""
        x, memo = self.at(*self.sizes(term), number)
        return x.array, self.read(term, x, memo)

    @staticmethod
    def sizes(term: Operator) -> tuple[int, int]:
        """Heads and columns of an input that it takes."""
        heads, columns = (size if isinstance(size, int) else free for size, free in
                          ((term.into.heads, 1), (term.into.cols, widest(term))))
        return heads, columns

    def of_property(self, term: Operator, value: bool) -> tuple[Callable[[Float64s], Float64s], Float64s, Float64s]:
        """A term as a function of arrays, and two inputs that it takes."""
        known: list[tuple[Float64s, Float64s]] = []

        def f(x: Float64s) -> Float64s:
            found = next((y for given, y in known if given is x), None)
            if found is None: known.append((x, found := self.apply(term, x)))
            return found
        heads, columns = (1, self.width) if value else self.sizes(term)
        return f, self.at(heads, columns)[0].array, self.at(heads, columns, 1)[0].array

    def apply(self, term: Operator, x: Float64s) -> Float64s:
        """An operator at this input."""
        return self.read(term, AtBorder(x, self.batch), {})

    @staticmethod
    def read(term: Operator, x: AtBorder, memo: TermReadings) -> Float64s:
        """Heads x rows x columns, in float64."""
        with np.errstate(all="ignore"):
            found = read(term, x, memo).array
        return np.asarray(found.reshape(-1, *found.shape[-2:]))
