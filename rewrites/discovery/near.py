"""Terms that are nearly equal on a model's own activations: proposals with measured errors, never laws. What a function
of the model reads at each place is computed, and small terms over it are compared with the function."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.display.tables import table
from rewrites.discovery.fingerprints import DrawnVariables, round_off
from rewrites.discovery.small_terms import FOLLOWS, VALUE, Bank, SmallTerm, list_functions, variable
from rewrites.discovery.written import spell_side
from rewrites.laws.flat import flat

COMBINED = "add", "mul", "compose"  # kinds that small terms are built of, beside functions
ROWS_READ = 32  # most rows of each place
TOO_CLOSE = 1e-9  # relative: terms that are closer are equal, and of no interest here
NEAR_COLUMNS = "instead of", "nearly equal", "error", "places", "errors"


@dataclass(frozen=True)
class FunctionPlace:
    """A function of a model, and what it reads there: (T, n)."""

    function: str
    activations: NDArray[np.float64]


@dataclass(frozen=True)
class NearlyEqual:
    """A term that may stand for a function, and its error at each place of the function: the norm of the difference
    over that of the function's result."""

    function: str
    instead: Operator
    errors: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest error of a place."""
        return max(self.errors)

    def row(self) -> tuple[str, ...]:
        """Return the row of a table."""
        spread = f"{min(self.errors):.2g} to {self.worst:.2g}"
        return f"x @ {self.function}", spell_side(self.instead), f"{self.worst:.2g}", str(len(self.errors)), spread


def find_function_places(model: Operator, batch: Batch) -> Iterator[FunctionPlace]:
    """Yield each place of a model at which a named function is applied, with what it reads in a batch."""
    functions = {*list_functions()} - {"I", "ones"}
    for node in flat(model, I).walk():
        if node.kind.name == "compose" and (name := node.children[1].kind.name) in functions:
            yield FunctionPlace(name, np.asarray(dense(node.children[0], batch), np.float64))


def list_candidates(functions: Sequence[str], size: int) -> Iterator[Operator]:
    """Yield the values over x of at most so many operators, of these functions, sums and products."""
    bank = Bank(COMBINED)
    bank.add(SmallTerm(variable("x"), VALUE, 0))
    for name in functions:
        bank.add(SmallTerm(KINDS[name](), FOLLOWS, 0))
    yield variable("x")
    for number in range(1, size + 1):
        for entry in [*bank.list_terms(number)]:
            bank.add(entry)
            if entry.role == VALUE:
                yield entry.term


def propose_near(
    model: Operator, batch: Batch, bound: float, functions: Sequence[str] = (), size: int = 2
) -> list[NearlyEqual]:
    """Return the terms that differ from a function of the model by at most `bound` at every place of it, and are not
    equal, the closest first; of terms that are equal there the smallest."""
    places = list(find_function_places(model, batch))
    names = dict.fromkeys(place.function for place in places)
    candidates = list(list_candidates(functions or [one for one in list_functions() if one not in ("I", "ones")], size))
    near = [one for name in names for one in find_near(name, places, candidates, bound)]
    return sorted(near, key=lambda one: one.worst)


def find_near(
    name: str, places: Sequence[FunctionPlace], candidates: Sequence[Operator], bound: float
) -> Iterator[NearlyEqual]:
    """Yield the candidates that stand for one function within the bound, each result once."""
    read = [draw_place(place) for place in places if place.function == name]
    wanted = [draw.run(Operator(KINDS["compose"], variable("x"), KINDS[name]())) for draw in read]
    known = set[bytes]()
    for term in candidates:
        first = read[0].run(term)
        if first.shape != wanted[0].shape or not TOO_CLOSE < measure_error(first, wanted[0]) <= bound:
            continue
        errors = [measure_error(draw.run(term), result) for draw, result in zip(read, wanted, strict=True)]
        if max(errors) <= bound and (mark := round_off(first)) not in known:
            known.add(mark)
            yield NearlyEqual(name, term, tuple(errors))


def draw_place(place: FunctionPlace) -> DrawnVariables:
    """Return the variable x as what a place reads, of at most ROWS_READ rows from first to last."""
    rows = np.unique(np.linspace(0, len(place.activations) - 1, ROWS_READ).astype(int))
    return DrawnVariables({"x": I}, place.activations[rows], Batch([np.zeros(len(rows), int)]))


def measure_error(result: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    """Return the norm of the difference over that of the wanted result; infinite where a number is not finite."""
    with np.errstate(all="ignore"):
        error = float(np.linalg.norm(result - wanted) / max(np.linalg.norm(wanted), np.finfo(float).tiny))
    return error if np.isfinite(error) else np.inf


def tell_near(proposals: Sequence[NearlyEqual]) -> str:
    """Return a table of proposals."""
    if not proposals:
        return "no term is that close at every place"
    return str(table([one.row() for one in proposals], NEAR_COLUMNS, left=(0, 1)))
