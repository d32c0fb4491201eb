"""Two readings side by side where rows are routed: by `keep_top` a row goes where its scores are largest, and scores
that differ by a rounding may send it elsewhere, which no error of the rest would explain. So one reading takes what the
other one took. A row that goes elsewhere than its own scores say must be one whose scores rounding does not tell
apart; these are counted."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import UNIT
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import Route, Taken, noted
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.batch import Batch
from opmatrix.program import Program
from rewrites.verify.failure import VerificationError, name
from rewrites.verify.nudged import NUDGES, nudge_along

SCORES = 32 * UNIT                                          # what float32 may move a score by, of what it is made from
SHOWN_FLIPS = 20                                                 # rows that are listed
Floating = NDArray[np.floating]
Routed = dict[str, Floating]


class Flip(NamedTuple):
    """A row that goes elsewhere: at which router, by how much its scores say otherwise, and what rounding explains."""
    row: int
    router: int
    gap: float
    allowed: float


@dataclass(frozen=True)
class Flips:
    """The rows that one reading routes otherwise than the other, of so many that routers were given."""
    rows: int = 0
    of: int = 0
    listed: tuple[Flip, ...] = ()

    def __add__(self, other: Flips) -> Flips:
        return Flips(self.rows + other.rows, self.of + other.of, (*self.listed, *other.listed)[:SHOWN_FLIPS])

    def described(self) -> dict[str, object]:
        """As JSON has it."""
        return {"rows": self.rows, "of": self.of, "listed": [flip._asdict() for flip in self.listed]}


def describe_routing(flips: Flips) -> dict[str, object]:
    """An entry of what was found, where rows are routed."""
    return {"routing": flips.described()} if flips.of else {}


def is_routed(terms: Iterable[Operator]) -> bool:
    """Whether some row goes where its scores are largest."""
    return any(node.kind is KINDS["keep_top"] for term in terms for node in term.walk())


def pair_routes(own: Sequence[Route], others: Sequence[Route]) -> dict[int, Taken]:
    """What another reading took, by the number of each of one's own: routers may stand in another order there. Each is
    that which takes most alike, and of equal ones the next in order."""
    if not own or not others: return {}
    from scipy.optimize import linear_sum_assignment

    def apart(i: int, j: int) -> float:
        one, other = own[i].taken, others[j].taken
        return float((one != other).sum()) + abs(i - j) / 1024 if one.shape == other.shape else 1e12
    costs = np.array([[apart(i, j) for j in range(len(others))] for i in range(len(own))])
    return {int(i): others[j].taken for i, j in zip(*linear_sum_assignment(costs), strict=True) if costs[i, j] < 1e12}


@dataclass(frozen=True, eq=False)
class Reference:
    """What programs are compared with: what it gives by itself, and what it gives where rows go as they went in
    another reading."""
    give: Callable[[], Any]
    known: tuple[Any, list[Route]] | None = None            # what it gives by itself, where that is at hand

    @cached_property
    def own(self) -> tuple[Any, list[Route]]: return self.known or noted(self.give)

    def beside(self, others: Sequence[Route]) -> tuple[Any, list[Route], Flips]:
        """What it gives where rows go as they did there, with its own scores, and how many would not have."""
        found, own = self.own
        given = pair_routes(own, others)
        if all(np.array_equal(own[at].taken, taken) for at, taken in given.items()):
            return found, own, Flips(of=sum(route.by.shape[1] for route in own))
        found, own = noted(self.give, given)
        return found, own, Flips(sum(int((route.gaps() > 0).sum()) for route in own),
                                 sum(route.by.shape[1] for route in own))

    def change(self, give: Callable[[], Floating]) -> tuple[Floating, Floating]:
        """What another reading gives, and what this one gives where rows go as they went there."""
        found, taken = noted(give)
        return found, self.beside(taken)[0]


def score_scales(term: Operator, batch: Batch, routes: Sequence[Route]) -> list[NDArray[np.float64]]:
    """By router and row, the size of the numbers that scores are computed from, as far as they count: what small
    changes of them move the scores by, over that."""
    rng, moved = np.random.default_rng(0), [np.zeros(route.by.shape[1]) for route in routes]
    for _ in range(NUDGES):
        with np.errstate(all="ignore"):
            _, found = nudge_along(term, batch, routes, UNIT, rng)
            for most, route, near in zip(moved, routes, found, strict=True):
                np.maximum(most, np.nan_to_num(abs(near.by - route.by)).max((0, 2)), out=most)
    return [each / UNIT for each in moved]


def explain_flips(where: str, term: Operator, batch: Batch, routes: Sequence[Route], flips: Flips,
                  unit: float = SCORES) -> Flips:
    """The rows that go elsewhere, each with its gap. Raises VerificationError for one whose scores are further apart
    than changes of `unit` in what they are computed from explain, on both sides."""
    if not flips.rows: return flips
    found = []
    for router, (route, scale) in enumerate(zip(routes, score_scales(term, batch, routes), strict=True)):
        gaps, allowed = route.gaps(), 2 * unit * scale
        if (wrong := ~(gaps <= allowed)).any():
            row = int(np.argmax(np.where(wrong, gaps, -1.0)))
            raise VerificationError(3, where, "a row goes elsewhere than its scores say", row=row, router=router,
                                    gap=float(gaps[row]), allowed=float(allowed[row]), rows=int(wrong.sum()))
        found += [Flip(int(row), router, float(gaps[row]), float(allowed[row])) for row in np.flatnonzero(gaps)]
    return replace(flips, listed=tuple(found[:SHOWN_FLIPS]))


class Beside(NamedTuple):
    """What a program gave for some batches, what is wanted of it where rows go as they went there, and which rows the
    model itself would send elsewhere."""
    found: list[Floating]
    wanted: list[Floating]
    flips: Flips


def run_beside(program: Program, model: Operator, batches: Sequence[Batch], known: Sequence[Floating] | None = None, *,
               exact: bool, run: Callable[[Program, Batch], Floating] = Program.run, unit: float = SCORES) -> Beside:
    """A program's rows and the model's in float64, routed alike; `known` are the model's where they are at hand. Of an
    exact program rows go elsewhere only where rounding explains it; what an approximate one changes, it may send
    elsewhere. Raises VerificationError."""
    if not is_routed([model]):
        return Beside([run(program, batch) for batch in batches],
                      [dense(model, batch) for batch in batches] if known is None else [*known], Flips())
    found, wanted, flips = [], [], Flips()
    for batch in batches:
        given, taken = noted(partial(run, program, batch))
        rows, routes, parted = Reference(partial(dense, model, batch)).beside(taken)
        if exact: parted = explain_flips(name(program), model, batch, routes, parted, unit)
        found.append(given)
        wanted.append(rows)
        flips += parted
    return Beside(found, wanted, flips)
