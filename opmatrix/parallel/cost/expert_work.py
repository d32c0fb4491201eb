"""What rows that ask experts take, beside what other steps do: the products that experts make of rows which came to
their rank, forward and back, and what they make on the way."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sympy

from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.shapes import LiveSize
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.step_costs import BackwardBooked
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.train.moe_gradients import BACK

EXPERT_COUNTS = "num_experts", "num_local_experts", "n_routed_experts"
EXPERT_STEPS = "answer", BACK


class ProductSides(NamedTuple):
    """A product rows x inner x cols, so many at once; `again`: forward has made it already, `learns`: it gives a
    gradient of weights."""
    rows: LiveSize
    inner: LiveSize
    cols: LiveSize
    batch: LiveSize
    again: bool = False
    learns: bool = False

    def pairs(self) -> list[LiveSize]:
        """Numbers of both operands and of what comes out, of one of them."""
        return [self.rows * self.inner, self.inner * self.cols, self.rows * self.cols]


def count_experts(config: Settings) -> int:
    """Experts of a layer, 0 where there are none; the fewest of layers that differ."""
    found = next((config[key] for key in EXPERT_COUNTS if config.get(key)), 0)
    return int(min(found) if isinstance(found, list | tuple) else found)


def body_of_step(booked: BackwardBooked, at: int) -> tuple[Sequence[RankStep], list[LiveSize]]:
    """What an expert does in a step, and the columns that a rank has of each of its values."""
    step = booked.steps[at]
    if step.op == BACK: return step.more[3], booked.expert_widths(step)
    return step.more[0], booked.asked.widths(at)


def experts_here(booked: BackwardBooked, at: int) -> sympy.Expr:
    """How many experts a rank has."""
    axis, count = booked.asked.axis(at), booked.steps[booked.asked.dispatched(at)].more[0]
    return sympy.sympify(count) / (1 if axis is None else axis.ranks)


def expert_products(booked: BackwardBooked, at: int) -> Iterator[ProductSides]:
    """The products of a step of experts, each for all experts of a rank at once, with rows that came as evenly as the
    mesh says. Back they go forward again, and then each product has two."""
    body, widths = body_of_step(booked, at)
    here, back = experts_here(booked, at), booked.steps[at].op == BACK
    rows = booked.asked.came(at) / here
    for each, cols in zip(body, widths, strict=True):
        if each.op != "act" or not each.args or not contracts(each.more[0]): continue
        inner = widths[each.args[0]]
        yield ProductSides(rows, inner, cols, here, again=back)
        if not back: continue
        yield ProductSides(rows, cols, inner, here)
        yield ProductSides(inner, rows, cols, here, learns=True)


def made_by_experts(booked: BackwardBooked, at: int) -> sympy.Expr:
    """Numbers that experts of a rank make of the rows that came, which nothing keeps."""
    body, widths = body_of_step(booked, at)
    return booked.asked.came(at) * sum(cols for each, cols in zip(body, widths, strict=True) if each.args)
