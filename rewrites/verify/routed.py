"""Two readings side by side where rows are routed. `keep_top` sends a row where its scores are largest, and a rounding
of scores may send it elsewhere, which no error of the rest would explain. So one reading follows the routes of the
other. A row that its own scores would route otherwise must have scores that rounding does not tell apart; such rows
are counted. A user compares programs that are each routed by their own scores, so the stated error is that of these,
rows that go elsewhere included; the error along the routes of the program is reported beside it."""

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

SCORES = 32 * UNIT  # relative change of a score that float32 may cause
RARER, NEAR = 16.0, 0.25  # largest factor on moves of scores; share of a margin
SCORED = 512  # rows on which the moves of scores are measured
SEEDING = 8  # tokens of a batch that seed its draws
SHOWN_FLIPS = 20  # rows that are listed
Floating = NDArray[np.floating]


class Flip(NamedTuple):
    """A row that goes elsewhere: its router, the gap by which its scores prefer another route, and the gap that
    rounding explains (`allowed`)."""

    row: int
    router: int
    gap: float
    allowed: float


@dataclass(frozen=True)
class Flips:
    """The number of rows that one reading routes otherwise than the other (`rows`), the number of rows that routers
    received (`of`), and some of these rows."""

    rows: int = 0
    of: int = 0
    listed: tuple[Flip, ...] = ()

    def __add__(self, other: Flips) -> Flips:
        return Flips(self.rows + other.rows, self.of + other.of, (*self.listed, *other.listed)[:SHOWN_FLIPS])

    def described(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"rows": self.rows, "of": self.of, "listed": [flip._asdict() for flip in self.listed]}


def describe_routing(flips: Flips, along: float) -> dict[str, object]:
    """Return the entry of a certificate for routing: the rows that go elsewhere, and the error `along` the routes that
    the program took; empty if no rows are routed."""
    return {"routing": {**flips.described(), "along": along}} if flips.of else {}


def is_routed(terms: Iterable[Operator]) -> bool:
    """True if a term has a router (`keep_top`)."""
    return any(node.kind is KINDS["keep_top"] for term in terms for node in term.walk())


def pair_routes(own: Sequence[Route], others: Sequence[Route]) -> dict[int, Taken]:
    """Return the routes that another reading took, by the number of this reading's own router: routers may come in
    another order there. Each router is paired with the one whose choices are most alike, and among equal ones with the
    next in order."""
    if not own or not others:
        return {}
    from scipy.optimize import linear_sum_assignment

    def apart(i: int, j: int) -> float:
        """Return the number of choices in which two routers differ, and a little for another place in the order."""
        one, other = own[i].taken, others[j].taken
        return float((one != other).sum()) + abs(i - j) / 1024 if one.shape == other.shape else 1e12

    costs = np.array([[apart(i, j) for j in range(len(others))] for i in range(len(own))])
    return {int(i): others[j].taken for i, j in zip(*linear_sum_assignment(costs), strict=True) if costs[i, j] < 1e12}


@dataclass(frozen=True, eq=False)
class Reference:
    """A reading that programs are compared with: its own result, and its result along the routes of another reading."""

    give: Callable[[], Any]
    known: tuple[Any, list[Route]] | None = None  # its own result and routes, if at hand

    @cached_property
    def own(self) -> tuple[Any, list[Route]]:
        """The reference's own result and routes, computed once."""
        return self.known or noted(self.give)

    def beside(self, others: Sequence[Route]) -> tuple[Any, list[Route], Flips]:
        """Return the result along the routes of another reading, its own routes, and the number of rows that its own
        scores would have routed otherwise."""
        result, routes = self.own
        paired = pair_routes(routes, others)
        if all(np.array_equal(routes[at].taken, taken) for at, taken in paired.items()):
            return result, routes, Flips(of=sum(route.by.shape[1] for route in routes))
        result, routes = noted(self.give, paired)
        return (
            result,
            routes,
            Flips(sum(int((route.gaps() > 0).sum()) for route in routes), sum(route.by.shape[1] for route in routes)),
        )

    def along(self, give: Callable[[], Floating]) -> tuple[Floating, Floating]:
        """Return the rows of another reading, and the reference's rows along its routes; the rounding of the other
        reading is judged by these."""
        rows, taken = noted(give)
        return rows, self.beside(taken)[0]

    def free(self, give: Callable[[], Floating]) -> tuple[Floating, Floating]:
        """Return the rows of another reading, and the reference's, each routed by its own scores, as a user compares
        them. The stated error of a program is that of these rows."""
        return give(), self.own[0]


def score_scales(term: Operator, batch: Batch, routes: Sequence[Route]) -> list[NDArray[np.float64]]:
    """Return, by router and row, the size of the numbers that scores are computed from, as far as they affect the
    scores: the movement of the scores by small relative changes of those numbers, divided by the change."""
    rng, moved = np.random.default_rng(0), [np.zeros(route.by.shape[1]) for route in routes]
    for _ in range(NUDGES):
        with np.errstate(all="ignore"):
            _, nudged = nudge_along(term, batch, routes, UNIT, rng)
            for most, route, near in zip(moved, routes, nudged, strict=True):
                np.maximum(most, np.nan_to_num(abs(near.by - route.by)).max((0, 2)), out=most)
    return [scores / UNIT for scores in moved]


def explain_flips(
    where: str, term: Operator, batch: Batch, routes: Sequence[Route], flips: Flips, unit: float = SCORES
) -> Flips:
    """Return the rows that go elsewhere, each with its gap. Raises VerificationError for a row whose scores are
    further apart than changes of `unit`, on both sides, in the numbers that they are computed from can explain."""
    if not flips.rows:
        return flips
    listed = []
    for router, (route, scale) in enumerate(zip(routes, score_scales(term, batch, routes), strict=True)):
        gaps, allowed = route.gaps(), 2 * unit * scale
        if (wrong := ~(gaps <= allowed)).any():
            row = int(np.argmax(np.where(wrong, gaps, -1.0)))
            raise VerificationError(
                3,
                where,
                "a row is routed elsewhere than its scores select",
                row=row,
                router=router,
                gap=float(gaps[row]),
                allowed=float(allowed[row]),
                rows=int(wrong.sum()),
            )
        listed += [Flip(int(row), router, float(gaps[row]), float(allowed[row])) for row in np.flatnonzero(gaps)]
    return replace(flips, listed=tuple(listed[:SHOWN_FLIPS]))


class Beside(NamedTuple):
    """The rows of a program on some batches; the model's rows along the program's routes (`wanted`), and routed by the
    model's own scores (`alone`); and the rows that these send elsewhere."""

    found: list[Floating]
    wanted: list[Floating]
    alone: list[Floating]
    flips: Flips


def run_beside(
    program: Program,
    model: Operator,
    batches: Sequence[Batch],
    known: Sequence[Floating] | None = None,
    *,
    exact: bool,
    run: Callable[[Program, Batch], Floating] = Program.run,
    unit: float = SCORES,
) -> Beside:
    """Run a program and the model in float64, routed alike and each by itself. `known` are the model's rows if they
    are at hand. In an exact program rows may go elsewhere only if rounding explains it; in an approximate one its
    changes may route rows otherwise. Raises VerificationError."""
    if not is_routed([model]):
        wanted = [dense(model, batch) for batch in batches] if known is None else [*known]
        return Beside([run(program, batch) for batch in batches], wanted, wanted, Flips())
    beside = Beside([], [], [], Flips())
    for batch in batches:
        rows, taken = noted(partial(run, program, batch))
        reference = Reference(partial(dense, model, batch))
        along, routes, parted = reference.beside(taken)
        if exact:
            parted = explain_flips(name(program), model, batch, routes, parted, unit)
        beside.found.append(rows)
        beside.wanted.append(along)
        beside.alone.append(reference.own[0])
        beside = beside._replace(flips=beside.flips + parted)
    return beside


# ---- the rows that other texts would send elsewhere


class ScoreMove(NamedTuple):
    """The movement of a router's scores by a program: the deviation of normal numbers of the same mean size, and the
    largest factor on the movement that still keeps the rows that go elsewhere near a tie."""

    size: float
    times: float


class Moved(Routes):
    """The routes of a run on texts like those seen, with moved scores. The scores of one row in `times` are moved by
    `times` as much as the program moves them, so rows go elsewhere as often as under the program, and other rows each
    time: this close to a tie scores are as dense as at it."""

    def __init__(self, moves: Sequence[ScoreMove], rng: np.random.Generator) -> None:
        super().__init__()
        self.moves, self.rng = moves, rng

    @property
    def steers(self) -> bool:
        """True: routes are chosen by moved scores."""
        return True

    def take(self, by: NDArray[Any], k: int) -> Taken:
        """Choose the largest of the moved scores."""
        size, times = self.moves[self.next] if self.next < len(self.moves) else ScoreMove(0.0, 1.0)
        drawn = np.asarray(self.rng.random(by.shape[-2]) < 1 / times, np.float64)
        noise = self.rng.standard_normal(by.shape) * (times * size * drawn)[:, None]
        return super().take(by + noise, k)


def score_moves(program: Program, constants: Mapping[str, Floating], batch: Batch) -> list[ScoreMove]:
    """Return, by router, how far a program moves scores on average from those of its structure with `constants`, as
    they were before anything was rounded, pruned or fitted. Measured along the program's routes, on the first
    sentences of a batch."""
    batch = next(batch.pieces(SCORED))
    _, routes = noted(partial(program.run, batch))
    taken = {at: route.taken for at, route in enumerate(routes)}
    _, exact = noted(partial(program.exact, batch, constants, rounded=False), taken)
    moves = [(mean_move(route.by - other.by), middle_margin(other)) for route, other in zip(routes, exact, strict=True)]
    return [
        ScoreMove(size, float(np.clip(NEAR * margin / size, 1.0, RARER)) if size else 1.0) for size, margin in moves
    ]


def middle_margin(route: Route) -> float:
    """Return the distance from the least chosen score to the highest score not chosen, in the median row."""
    least = np.where(route.taken, route.by, np.inf).min(-1)
    margins = least - np.where(route.taken, -np.inf, route.by).max(-1)
    return float(np.nan_to_num(np.median(abs(margins)), nan=0.0, posinf=0.0))


def mean_move(moves: NDArray[Any]) -> float:
    """Return the deviation of normal numbers whose mean size is that of the moves. A move that all scores of a row
    share does not count, as it routes no row otherwise."""
    finite = np.nan_to_num(np.asarray(moves, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return float(abs(finite - finite.mean(-1, keepdims=True)).mean() * (np.pi / 2) ** 0.5)


def redrawn(
    program: Program,
    moves: Sequence[ScoreMove],
    batch: Batch,
    wanted: Floating,
    starts: NDArray[np.integer],
    draws: int,
) -> Change:
    """Compare a program with the outputs wanted of the sentences of a batch, `draws` times over, with other rows sent
    elsewhere each time."""
    changes = []
    for draw in range(draws):
        seed = [draw, len(wanted), *map(int, batch.tokens[:SEEDING])]
        with noting(Moved(moves, np.random.default_rng(seed))):
            rows = program.run(batch)
        changes.append(Change.of(rows, wanted, starts))
    return Change.joined(changes)
