"""A program with fewer laws that the rounds show to be faster than the exact one: it is the exact program then, and the
price that misled the search is named."""
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

SURELY_FASTER = 1.02                                               # of seconds: nearer programs are equal
OperatorRows = Sequence[Mapping[str, Any]]                          # of operators, as the report has them


class PricedStep(NamedTuple):
    """A kind of step, its predicted seconds and those measured in a run."""
    what: str
    predicted_s: float
    measured_s: float


class Misled(NamedTuple):
    """The program that the search took for the fastest, the one with fewer laws that is faster, predicted and measured
    seconds of both, and the price that is off by most between them; None where native code finds no clock."""
    searched: PricedStep
    faster: PricedStep
    price: PricedStep | None

    def described(self) -> dict[str, object]:
        """As JSON has it."""
        return {"searched": self.searched._asdict(), "faster": self.faster._asdict(),
                "price": self.price and self.price._asdict()}


def is_priced_here(machine: TimeModel) -> bool:
    """Tell whether prices were measured on the machine that programs are timed on, the one that rounds speak of."""
    return getattr(machine, "identity", None) == identity()


def find_faster(exact: Point, fewer: Sequence[Point]) -> Point | None:
    """The fastest of programs with fewer laws that the rounds show to be faster than the exact one; None where none
    is."""
    faster = [point for point in fewer if point.program.hash != exact.program.hash
              and bound_ratio(exact, point)[0] > SURELY_FASTER]
    return min(faster, key=lambda point: point.measured_s or 0.0, default=None)


def tell_misled(exact: Point, faster: Point, batch: Batch, machine: TimeModel) -> Misled:
    """Both programs, and the price between them that is off by most."""
    rows, others = (describe_operators(point.program, batch, machine) for point in (exact, faster))
    one, other = (PricedStep(point.name, point.predicted_s, point.measured_s or 0.0) for point in (exact, faster))
    return Misled(one, other, find_price(rows, others))


def find_price(rows: OperatorRows, others: OperatorRows) -> PricedStep | None:
    """The kind of step of a program that takes longest beyond its price, less that of another program's like steps."""
    def beyond(row: Mapping[str, Any]) -> float: return float(row["measured_s"] - row["predicted_s"])
    if any(row["measured_s"] is None for row in (*rows, *others)): return None
    alike = {row["what"]: beyond(row) for row in others}
    worst = max(rows, key=lambda row: beyond(row) - alike.get(row["what"], 0.0), default=None)
    return None if worst is None else PricedStep(worst["what"], worst["predicted_s"], worst["measured_s"])


def with_fewer_laws(searched: Searched, name: str) -> Searched:
    """A search in which a program with fewer laws is the exact one."""
    structure = searched.structures[name]
    program, emitter = structure.program(searched.opened.meta, fitted=searched.emitter.shared)
    return replace(searched, structures={**searched.structures, "exact": structure},
                   programs={**searched.programs, "exact": program}, emitter=emitter)


def describe_misled(told: Mapping[str, Any] | None) -> str:
    """The line of a report, from its figures."""
    if not told: return ""
    exact, faster, price = told["searched"], told["faster"], told["price"]
    named = "" if price is None else (
        f"; the price that misled is that of {price['what']}: {ms(price['predicted_s'])} ms predicted, "
        f"{ms(price['measured_s'])} measured")
    took = f"{ms(exact['predicted_s'])} ms and measured {ms(exact['measured_s'])}"
    return (f"\nmisled    the search's exact program is predicted {took}, slower than `{faster['what']}`,\n          "
            f"{ms(faster['measured_s'])}, which is taken for the exact one{named}")
