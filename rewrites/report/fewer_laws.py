"""A program with fewer laws that the rounds show to be faster than the exact one: it then becomes the exact program,
and the price that misled the search is named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from formats.machine.model import identity
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import ms
from rewrites.lowering.price import TimeModel
from rewrites.opened import Searched
from rewrites.report.by_operator import describe_operators
from rewrites.report.choice import bound_ratio
from rewrites.report.points import Point

SURELY_FASTER = 1.02  # ratio of seconds; nearer programs are equal
OperatorRows = Sequence[Mapping[str, Any]]  # rows of operators, as in the report


class PricedStep(NamedTuple):
    """A kind of step, its predicted seconds, and its seconds measured in a run."""

    what: str
    predicted_s: float
    measured_s: float


class Misled(NamedTuple):
    """The program that the search took for the fastest, and the faster one with fewer laws, with predicted and
    measured seconds of both; and the price with the largest error between them, or None if native code has no clock."""

    searched: PricedStep
    faster: PricedStep
    price: PricedStep | None

    def described(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "searched": self.searched._asdict(),
            "faster": self.faster._asdict(),
            "price": self.price and self.price._asdict(),
        }


def is_priced_here(machine: TimeModel) -> bool:
    """True if prices were measured on the machine on which programs are timed."""
    return getattr(machine, "identity", None) == identity()


def find_faster(exact: Point, fewer: Sequence[Point]) -> Point | None:
    """Return the fastest of the programs with fewer laws that the rounds show to be faster than the exact one; None if
    there is none."""
    faster = [
        point
        for point in fewer
        if point.program.hash != exact.program.hash and bound_ratio(exact, point)[0] > SURELY_FASTER
    ]
    return min(faster, key=lambda point: point.measured_s or 0.0, default=None)


def tell_misled(exact: Point, faster: Point, batch: Batch, machine: TimeModel) -> Misled:
    """Return both programs, and the price between them with the largest error."""
    rows, others = (describe_operators(point.program, batch, machine) for point in (exact, faster))
    one, other = (PricedStep(point.name, point.predicted_s, point.measured_s or 0.0) for point in (exact, faster))
    return Misled(one, other, find_price(rows, others))


def find_price(rows: OperatorRows, others: OperatorRows) -> PricedStep | None:
    """Return the kind of step of a program whose measured time exceeds its price by most, relative to the same kind in
    another program."""

    def beyond(row: Mapping[str, Any]) -> float:
        """Return the seconds by which the measured time of a row exceeds its price."""
        return float(row["measured_s"] - row["predicted_s"])

    if any(row["measured_s"] is None for row in (*rows, *others)):
        return None
    alike = {row["what"]: beyond(row) for row in others}
    worst = max(rows, key=lambda row: beyond(row) - alike.get(row["what"], 0.0), default=None)
    return None if worst is None else PricedStep(worst["what"], worst["predicted_s"], worst["measured_s"])


def with_fewer_laws(searched: Searched, name: str) -> Searched:
    """Return a search in which a program with fewer laws is the exact one."""
    structure = searched.structures[name]
    program, emitter = structure.program(searched.opened.meta, fitted=searched.emitter.shared)
    return replace(
        searched,
        structures={**searched.structures, "exact": structure},
        programs={**searched.programs, "exact": program},
        emitter=emitter,
    )


def describe_misled(told: Mapping[str, Any] | None) -> str:
    """Return the line of a report, from its figures."""
    if not told:
        return ""
    exact, faster, price = told["searched"], told["faster"], told["price"]
    named = (
        ""
        if price is None
        else (
            f"; the price that misled is that of {price['what']}: {ms(price['predicted_s'])} ms predicted, "
            f"{ms(price['measured_s'])} measured"
        )
    )
    took = f"{ms(exact['predicted_s'])} ms and measured {ms(exact['measured_s'])}"
    return (
        f"\nmisled    the search's exact program is predicted {took}, slower than `{faster['what']}`,\n          "
        f"{ms(faster['measured_s'])}, which is taken for the exact one{named}"
    )
