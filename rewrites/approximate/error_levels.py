"""The front: programs that no other beats in time, memory and error at once, found over several levels of error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import isnan, nan

import numpy as np

from formats.host.freed_memory import release_memory
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.progress import unheard
from opmatrix.runtime.program import Program
from rewrites.approximate.proposals import Choices, chosen_methods, undominated
from rewrites.approximate.trials import LARGE
from rewrites.egraph.attempts import Attempts
from rewrites.extraction import Infeasible
from rewrites.lowering.lower import is_plain
from rewrites.search.approximation import by
from rewrites.search.search import Structure
from rewrites.verify.differences import Change
from rewrites.verify.programs import unrounded
from rewrites.verify.routed import Reference, ScoreMove, redrawn, score_moves
from rewrites.workload.phases import Tell

ERROR_LEVELS = (0.005, 0.05, 0.15, 0.4)  # errors at which the front is searched, beside the budget
OBJECTIVES = ((1.0, 0.0, 0.0), (1e-3, 1e-12, 0.0))  # seconds, bytes, error: for the fastest, the smallest
CLOSEST = (1e-3, 0.0, 1.0)  # weights for the most exact
MEASURED_POINTS = 7  # points of the front that are verified and measured
FEWER = 4  # measured points of a large program
TRUST = 1.2  # planned error over its sure value on rows that choose
SPARE = 4096  # bytes of Python's own objects that are not planned
TRIES = 4  # most searches, with budgets tightened by the excess
REDRAWN = 4  # random draws of other rows that move
FALLS = 2  # power for the excess of a budget where rows are routed


@dataclass
class Front:
    """Programs of a space within budgets that hold for the program itself, not for a sum over its parts. Its planned
    error is measured on the first of the rows that choose, then on all. Its bytes are stored and working ones; `peak`
    returns the bytes that a call of a program needs."""

    choices: Choices
    exact: Program
    rows: Sequence[Batch]
    peak: Callable[[Program], float]
    meta: dict[str, object]
    attempts: Attempts = field(default_factory=Attempts)

    def __post_init__(self) -> None:
        self.wanted = [Reference(partial(self.exact.run, batch)) for batch in self.rows]
        for reference in self.wanted:
            _ = reference.own
        self.found: dict[int, tuple[Program, float, float]] = {}  # id of a structure -> program, errors
        self.bound: float | None = None  # lower bound of the seconds within the error

    @cached_property
    def falls(self) -> int:
        """Power of the excess by which a budget is tightened. Where rows are routed, the number of rows that move is
        proportional to the change of scores, and each moves entirely, so the norm of the change falls only with the
        square root of the storage error."""
        return FALLS if self.routed else 1

    def errors(self, program: Program, most: float, structure: Structure | None = None) -> tuple[float, float]:
        """Return the error of a program and its planned error: on the first rows if that is too much already, else on
        all rows. For a structure whose rows are routed, the planned error includes other rows that may move on other
        texts."""
        moves = self.score_moves(program, structure) if structure is not None and self.routed else []
        for batch, wanted in zip(self.rows, self.wanted, strict=True):
            starts = program.starts(batch)
            change = Change.of(*wanted.free(partial(program.run, batch)), starts)
            planned = change.surely
            if moves:
                others = redrawn(program, moves, batch, wanted.own[0], starts, REDRAWN)
                planned = max(planned, others.surely_of(len(change.off)))
            errors = change.relative, TRUST * planned
            if errors[1] > most:
                break
        return errors

    def score_moves(self, program: Program, structure: Structure) -> list[ScoreMove]:
        """Return the changes of scores by a program, for each router."""
        return score_moves(program, unrounded(structure, self.choices.sources[program]), self.rows[-1])

    @cached_property
    def routed(self) -> bool:
        """True if the model routes rows, so that errors depend on routes."""
        return any(reference.own[1] for reference in self.wanted)

    def points(self, error: float, memory: float | None, progress: Tell = unheard) -> list[Structure]:
        """Return the fastest and the smallest program at every level of error and at the requested one. At the latter
        the bound of the fastest is proved. If no error is allowed, only exact programs."""
        large = self.exact.stored_bytes > LARGE
        limits = sorted({*(ERROR_LEVELS[1::2] if large else ERROR_LEVELS), error}) if error else []
        asked = [
            (limit, memory, weights, limit == error and memory is None and weights == OBJECTIVES[0])
            for limit in limits
            for weights in OBJECTIVES
        ]
        if memory is not None:  # the fastest that fits, with any error
            asked += [
                (limit, room, OBJECTIVES[0], False)
                for limit, room in ((1.0, memory), (0.0, memory), (error, memory - SPARE))
            ]
        structures = list[Structure | None]()
        for limits_of in asked:
            progress(len(structures), len(asked))
            structures.append(self.within(*limits_of))
        return thin(
            [*undominated([structure for structure in structures if structure is not None])],
            FEWER if large else MEASURED_POINTS,
            error,
        )

    def nearest(self, error: float, memory: float) -> str:
        """Return the error text for budgets that no program keeps: the smallest program within the error, and the least
        error within the memory."""
        small = self.within(error, None, OBJECTIVES[1], False) if error else None
        size = min(self.bytes(program) for program in (self.exact, *([self.found[id(small)][0]] if small else [])))
        close = self.within(1.0, memory, CLOSEST, False)
        least = (
            f"the least error within the memory is {self.found[id(close)][2]:.3g}"
            if close is not None
            else "no program fits the memory"
        )
        return (
            f"no program within --memory {memory / 1e6:g} and --error {error:g}: the smallest within the error "
            f"needs {size / 1e6:.3g} MB, {least}"
        )

    def bytes(self, program: Program) -> float:
        """Return stored and working bytes, for the batch that is timed."""
        return program.stored_bytes + self.peak(program)

    def within(
        self, error: float, memory: float | None, weights: tuple[float, float, float], prove: bool
    ) -> Structure | None:
        """Return the cheapest structure that keeps both budgets, or None. Squared errors add only approximately, and
        the working bytes are known only after planning, so the budgets of the search are tightened by the excess of the
        program."""
        budget = error
        room = None if memory is None else memory - self.peak(self.exact)
        for _ in range(TRIES):
            try:
                structure = self.choices.choose(budget, room, weights, prove)
            except Infeasible:
                return None
            if prove and budget == error and 0 < structure.bound < np.inf:
                self.bound = structure.bound  # the bound of a tightened budget does not hold here
            stated = nan
            with self.attempts.leave_out(f"the program {describe_methods(structure)} at an error of {error:g}"):
                program = self.choices.program(structure, self.meta)
                joint, stated = self.errors(program, error, structure) if structure.error else (0.0, 0.0)
            release_memory()  # of weights that were fitted, in several threads
            if isnan(stated):
                return None
            over = 0.0 if memory is None else self.bytes(program) - memory
            if stated <= error and over <= 0:
                self.found[id(structure)] = program, joint, stated
                return structure
            budget *= min(1.0, 0.95 * error / stated if stated else 1.0) ** self.falls
            room = None if room is None else room - max(0.0, over)
        return None


def describe_methods(structure: Structure) -> str:
    """Return the methods of a program in words, the most frequent first."""
    counts = count_methods(structure)
    return (
        " + ".join(f"{name} x{count}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "exact"
    )


def count_methods(structure: Structure) -> dict[str, int]:
    """Return the number of block substitutions of each kind, and of weights stored by each format that is not plain, or
    by each approximation of a user."""
    formats = [
        *(substitution.what for substitution in structure.substitutions.values()),
        *map(by, chosen_methods(structure)),
    ]
    return {name: formats.count(name) for name in dict.fromkeys(formats) if not is_plain(name)}


def thin(points: Sequence[Structure], most: int, error: float) -> list[Structure]:
    """Return at most `most` points: the fastest and the smallest within the error first, then points spread over the
    errors."""
    points = [p for p in points if p.error > 0]
    inside = [p for p in points if p.error <= error**2]
    first = [min(inside, key=key) for key in ((lambda p: p.time), (lambda p: p.memory))] if inside else []
    rest = [p for p in sorted(points, key=lambda p: p.error) if all(p is not f for f in first)]
    step = max(1, -(-len(rest) // max(1, most - len(first))))
    return list({id(p): p for p in [*first, *rest[::step]]}.values())[:most]
