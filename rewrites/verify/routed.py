"""Two readings side by side where rows are routed: by `keep_top` a row goes where its scores are largest, and scores
that differ by a rounding may send it elsewhere, which no error of the rest would explain. So one reading takes what the
other one took. A row that goes elsewhere than its own scores say must be one whose scores rounding does not tell
apart; such rows are counted. A user compares programs that are each routed by their own scores, so the stated error is
of these, with the rows that go elsewhere in it, and the error along the routes of the program stands beside it."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import UNIT
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import Route, Routes, Taken, noted, noting
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.runtime.program import Program
from rewrites.verify.differences import Change
from rewrites.verify.failure import VerificationError, name
from rewrites.verify.nudged import NUDGES, nudge_along

SCORES = 32 * UNIT                                          # what float32 may move a score by, of what it is made from
RARER, NEAR = 16.0, 0.25                                    # times, at most, that scores are moved by; of a margin
SCORED = 512                                                # rows that scores move as on
SEEDING = 8                                                 # tokens of a batch that its draws follow from
SHOWN_FLIPS = 20                                                 # rows that are listed
Floating = NDArray[np.floating]


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


def describe_routing(flips: Flips, along: float) -> dict[str, object]:
    """The entry of a certificate where rows are routed: the rows that go elsewhere, and the error `along` the routes
    that the program took."""
    return {"routing": {**flips.described(), "along": along}} if flips.of else {}


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

    def along(self, give: Callable[[], Floating]) -> tuple[Floating, Floating]:
        """The rows of another reading, and the reference's where rows go as they went there: what its rounding is
        judged by."""
        found, taken = noted(give)
        return found, self.beside(taken)[0]

    def free(self, give: Callable[[], Floating]) -> tuple[Floating, Floating]:
        """The rows of another reading, and the reference's, each routed by its own scores, as a user compares them:
        what a program is stated to be off by."""
        return give(), self.own[0]


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
    """The rows of a program on some batches; the model's where rows go as they went there (`wanted`), and routed by
    the model's own scores (`alone`); and the rows that these send elsewhere."""
    found: list[Floating]
    wanted: list[Floating]
    alone: list[Floating]
    flips: Flips


def run_beside(program: Program, model: Operator, batches: Sequence[Batch], known: Sequence[Floating] | None = None, *,
               exact: bool, run: Callable[[Program, Batch], Floating] = Program.run, unit: float = SCORES) -> Beside:
    """A program's rows and the model's in float64, routed alike and each by itself; `known` are the model's where they
    are at hand. Of an exact program rows go elsewhere only where rounding explains it; what an approximate one changes,
    it may send elsewhere. Raises VerificationError."""
    if not is_routed([model]):
        wanted = [dense(model, batch) for batch in batches] if known is None else [*known]
        return Beside([run(program, batch) for batch in batches], wanted, wanted, Flips())
    beside = Beside([], [], [], Flips())
    for batch in batches:
        rows, taken = noted(partial(run, program, batch))
        reference = Reference(partial(dense, model, batch))
        along, routes, parted = reference.beside(taken)
        if exact: parted = explain_flips(name(program), model, batch, routes, parted, unit)
        beside.found.append(rows)
        beside.wanted.append(along)
        beside.alone.append(reference.own[0])
        beside = beside._replace(flips=beside.flips + parted)
    return beside


# ---- the rows that other texts would send elsewhere

class ScoreMove(NamedTuple):
    """Movement of a router's scores by a program: the deviation of normal numbers as large on average, and by how
    many times as much they may move and rows that go elsewhere still be near a tie."""
    size: float
    times: float


class Moved(Routes):
    """The routes of a run on texts like those seen: of one row in so many `times` the scores are moved by so many times
    as much as a program moves scores, so rows go elsewhere as often as under the program, and other rows each time:
    scores are as dense about a tie as so near to it."""

    def __init__(self, moves: Sequence[ScoreMove], rng: np.random.Generator) -> None:
        super().__init__()
        self.moves, self.rng = moves, rng

    @property
    def steers(self) -> bool: return True

    def take(self, by: NDArray[Any], k: int) -> Taken:
        """The largest of moved scores."""
        size, times = self.moves[self.next] if self.next < len(self.moves) else ScoreMove(0.0, 1.0)
        drawn = np.asarray(self.rng.random(by.shape[-2]) < 1 / times, np.float64)
        noise = self.rng.standard_normal(by.shape) * (times * size * drawn)[:, None]
        return super().take(by + noise, k)


def score_moves(program: Program, constants: Mapping[str, Floating], batch: Batch) -> list[ScoreMove]:
    """By router, how far a program moves scores, on average, from those of its structure with `constants` as they were
    before anything was rounded, left out or fitted; along the program's routes, on the first sentences of a batch."""
    batch = next(batch.pieces(SCORED))
    _, routes = noted(partial(program.run, batch))
    given = {at: route.taken for at, route in enumerate(routes)}
    _, exact = noted(partial(program.exact, batch, constants, rounded=False), given)
    moves = [(mean_move(route.by - other.by), middle_margin(other)) for route, other in zip(routes, exact, strict=True)]
    return [ScoreMove(size, float(np.clip(NEAR * margin / size, 1.0, RARER)) if size else 1.0)
            for size, margin in moves]


def middle_margin(route: Route) -> float:
    """Distance of the least score that is taken from the highest that is left, in the middle row."""
    least = np.where(route.taken, route.by, np.inf).min(-1)
    margins = least - np.where(route.taken, -np.inf, route.by).max(-1)
    return float(np.nan_to_num(np.median(abs(margins)), nan=0.0, posinf=0.0))


def mean_move(moves: NDArray[Any]) -> float:
    """The deviation of normal numbers whose size is that of moves on average; what moves all scores of a row alike
    routes no row otherwise."""
    finite = np.nan_to_num(np.asarray(moves, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return float(abs(finite - finite.mean(-1, keepdims=True)).mean() * (np.pi / 2) ** 0.5)


def redrawn(program: Program, moves: Sequence[ScoreMove], batch: Batch, wanted: Floating, starts: NDArray[np.integer],
            draws: int) -> Change:
    """Compare a program with the outputs wanted of the sentences of a batch, `draws` times over, with other rows sent
    elsewhere each time."""
    changes = []
    for draw in range(draws):
        seed = [draw, len(wanted), *map(int, batch.tokens[:SEEDING])]
        with noting(Moved(moves, np.random.default_rng(seed))): rows = program.run(batch)
        changes.append(Change.of(rows, wanted, starts))
    return Change.joined(changes)
