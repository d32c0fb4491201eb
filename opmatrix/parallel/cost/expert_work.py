"""The work of the experts of a layer: the products that experts compute on the rows routed to their rank, forward and
backward, and the numbers that they make on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sympy

from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.shapes import LiveSize
from opmatrix.models.config import Settings
from opmatrix.models.encoders.towers import decoder_settings
from opmatrix.parallel.cost.quantities import Quantity, least, most
from opmatrix.parallel.cost.step_costs import BackwardBooked
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.train.moe_gradients import BACK

EXPERT_COUNTS = "num_experts", "num_local_experts", "n_routed_experts"
EXPERT_STEPS = "answer", BACK


class RowRouting(NamedTuple):
    """The experts that a row is routed to, and the groups of neighbouring experts that these are within."""

    experts: int = 1
    groups: int = 1
    reached: int = 1  # groups within which all experts of a row are

    def share_to_nodes(self, nodes: Quantity) -> Quantity:
        """Return how many nodes a row is sent to, over the experts that it is routed to, where nodes have experts of
        their own. All experts are as likely: of V nodes that a row may reach, V (1 − (1 − 1 / V)^k) have one of its k
        experts."""
        within = least(nodes, self.reached * most(nodes / self.groups, 1))
        return within * (1 - (1 - 1 / within) ** self.experts) / self.experts


def row_routing(config: Settings) -> RowRouting:
    """Read the routing of a configuration. Where layers differ it is that of the fewest experts."""
    asked, groups, reached = (config.get(key) for key in ("num_experts_per_tok", "n_group", "topk_group"))
    experts = min(asked) if isinstance(asked, list | tuple) else asked
    return RowRouting(experts or 1, groups or 1, (reached or 1) if groups else 1)


class ProductSides(NamedTuple):
    """A product rows x inner x cols."""

    rows: LiveSize
    inner: LiveSize
    cols: LiveSize
    batch: LiveSize  # products of one batched call
    again: bool = False  # forward has computed it already
    learns: bool = False  # it gives a gradient of weights
    fused: int = 1  # products of one value by different weights

    def pairs(self) -> list[LiveSize]:
        """Return the numbers of both operands and of the result, for one product of the batch."""
        return [self.rows * self.inner, self.inner * self.cols, self.rows * self.cols]


def count_experts(config: Settings) -> int:
    """Return the experts of a layer, 0 where there are none. Where layers differ it is the fewest."""
    config = decoder_settings(config)
    experts = next((config[key] for key in EXPERT_COUNTS if config.get(key)), 0)
    return int(min(experts) if isinstance(experts, list | tuple) else experts)


def body_of_step(booked: BackwardBooked, at: int) -> tuple[Sequence[RankStep], list[LiveSize]]:
    """Return the operations of an expert in a step, and for each value the columns that a rank has of it."""
    step = booked.steps[at]
    if step.op == BACK:
        return step.more[3], booked.expert_widths(step)
    return step.more[0], booked.asked.widths(at)


def experts_here(booked: BackwardBooked, at: int) -> sympy.Expr:
    """Return the number of experts of a rank."""
    axis, count = booked.asked.axis(at), booked.steps[booked.asked.dispatched(at)].more[0]
    return sympy.sympify(count) / (1 if axis is None else axis.ranks)


def expert_products(booked: BackwardBooked, at: int) -> Iterator[ProductSides]:
    """Yield the products of a step of experts, each for all experts of a rank at once. Rows are routed as evenly as the
    mesh says. A backward step runs the experts forward again, and then each product has two more."""
    body, widths = body_of_step(booked, at)
    here, back = experts_here(booked, at), booked.steps[at].op == BACK
    rows = booked.asked.came(at) / here
    shared = Counter(step.args[0] for step in body if is_product(step))
    for step, cols in zip(body, widths, strict=True):
        if not is_product(step):
            continue
        inner, fused = widths[step.args[0]], shared[step.args[0]]
        yield ProductSides(rows, inner, cols, here, again=back, fused=fused)
        if not back:
            continue
        yield ProductSides(rows, cols, inner, here)
        yield ProductSides(inner, rows, cols, here, learns=True, fused=fused)


def is_product(step: RankStep) -> bool:
    """True if an operation of an expert is a product of a value by weights."""
    return step.op == "act" and bool(step.args) and contracts(step.more[0])


def made_by_experts(booked: BackwardBooked, at: int) -> sympy.Expr:
    """Count the numbers that the experts of a rank compute of the rows routed to them, and do not save."""
    body, widths = body_of_step(booked, at)
    return booked.asked.came(at) * sum(cols for step, cols in zip(body, widths, strict=True) if step.args)
