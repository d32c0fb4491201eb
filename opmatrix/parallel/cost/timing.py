"""The seconds of one batch on a machine of a data sheet: computation, communication by level, synchronisation. Each is
an expression of the sizes that have no number. They are lower bounds: full rates, no other load, no overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import sympy

from formats.core.errors import InputError
from formats.machine.collectives import collective_seconds
from formats.machine.datasheets import BYTES, Datasheet
from formats.machine.links import Link, levels_among, levels_of
from opmatrix.parallel.cost.formulas import Formulas, busiest
from opmatrix.parallel.sharding.cost_formulas import Crossing, add_up, stored_arrays, stored_dims
from opmatrix.parallel.sharding.mesh import HOST
from opmatrix.parallel.sharding.partition import FactorGroup, Partition
from opmatrix.parallel.sharding.placement import local
from opmatrix.parallel.sharding.weight_storage import Storage

MADE_OF = {"visit": "all_to_all"}  # operation -> the collective by which links time it


class StageSeconds(NamedTuple):
    """Seconds of the busiest rank of a stage. Seconds of bytes (`communication`) and of messages (`synchronisation`)
    are by level of links."""

    computation: sympy.Expr
    communication: dict[str, sympy.Expr]
    synchronisation: dict[str, sympy.Expr]
    supersteps: sympy.Expr

    @property
    def seconds(self) -> sympy.Expr:
        """The sum of computation, bytes and messages over all levels."""
        return self.computation + add_up(self.communication.values()) + add_up(self.synchronisation.values())


@dataclass(frozen=True)
class Timing:
    """A partition on a machine, for number types of values and weights."""

    plan: Partition
    sheet: Datasheet
    number: str = "bf16"
    storage: Storage = "bf16"
    crossing: Mapping[str, float] = field(default_factory=dict)

    def stage(self, stage: int) -> StageSeconds:
        """Return the seconds of a stage for one batch. Raises InputError for a mesh whose ranks are symbols and for a
        machine without links."""
        formulas = Formulas(self.plan, stage, BYTES[self.number], self.storage, crossing=self.crossing)
        names = [link.name for link in self.links]
        moved, waited = ({name: sympy.Integer(0) for name in names} for _ in range(2))
        for count, crossing in self.plan.crossings(stage):
            size = formulas.bytes_of(crossing)
            for name, bytes_, messages in self.levels(crossing, size):
                moved[name] += count * bytes_
                waited[name] += count * messages
        steps = add_up(collective.supersteps for collective in formulas.traffic)
        return StageSeconds(self.computation(stage, formulas), moved, waited, steps)

    @property
    def links(self) -> tuple[Link, ...]:
        """The levels of the machine, and behind them the host where weights are offloaded. Raises InputError for a
        machine that states no link to the host."""
        if self.plan.mesh.offload < 3:
            return self.sheet.links
        if self.sheet.host is not None:
            return (*self.sheet.links, self.sheet.host)
        raise InputError(
            f"{self.sheet.name}: its data sheet declares no link to the host, by which weights are fetched: "
            "add `host` (docs/add_a_machine.md), or offload less"
        )

    def levels(self, crossing: Crossing, size: sympy.Expr) -> Iterator[tuple[str, sympy.Expr, sympy.Expr]]:
        """Yield for each level its name and the seconds of the bytes and of the messages of a collective."""
        if crossing.axis == HOST:
            *_, host = self.links
            yield host.name, size * busiest(crossing.wire) / host.bandwidth, sympy.sympify(host.latency)
            return
        at = self.plan.mesh.index(crossing.axis)
        ranks = [axis.ranks for axis in self.plan.mesh]
        if not all(isinstance(n, int) for n in ranks):
            raise InputError(f"partition: ranks {', '.join(map(str, ranks))} on {self.sheet.name}: give numbers")
        group = self.group(at, 2 if crossing.of == "stage" else int(ranks[at]), crossing)
        value = size * busiest(crossing.payload if crossing.op == "send" else crossing.whole)
        seconds = collective_seconds(MADE_OF.get(crossing.op, crossing.op), value, group, self.sheet.links)
        times = busiest(crossing.messages) if crossing.op == "send" else 1
        for name, moved, waits in zip(*seconds, strict=True):
            yield name, moved, times * waits

    def group(self, at: int, n: int, crossing: Crossing) -> tuple[int, ...]:
        """Return how many of n ranks of an axis meet at each level of links. For expert ranks: the ranks of a node, or
        one of each node where rows visit nodes."""
        mesh, devices = self.plan.mesh, [axis.count for axis in self.plan.mesh.devices]
        if mesh.axes[at] is not mesh.experts:
            return levels_of(prod(devices[at + 1 :]), n, self.sheet.links, float(prod(devices)))
        strides = [prod(devices[k + 1 :]) for k in range(len(devices))]
        meet = mesh.group(mesh.located((0,) * len(devices)), at)
        if mesh.nodes > 1:
            meet = (
                meet[:: mesh.node]
                if crossing.op == "visit"
                else meet[: int(crossing.messages / crossing.supersteps) + 1]
            )
        return levels_among([sum(map(prod, zip(place, strides, strict=False))) for place in meet], self.sheet.links)

    @staticmethod
    def read_share(group: FactorGroup, at: int) -> sympy.Expr:
        """Return the share of a rank's experts that are read: less than 1 where fewer rows arrive than it has
        experts."""
        dispatch, axis = group.booked.steps[group.booked.asked.dispatched(at)], group.booked.asked.axis(at)
        here = sympy.sympify(dispatch.more[0]) / (1 if axis is None else axis.ranks)
        came = busiest(group.booked.asked.came(at))
        return sympy.Min(1, came / here) if (came / here).is_number else sympy.Integer(1)

    def computation(self, stage: int, formulas: Formulas) -> sympy.Expr:
        """Return the seconds of computation. A product takes the time of its operations or of its bytes, whichever is
        more. Elementwise functions are fused with products, and scores are never stored."""
        return add_up(group.count * self.group_seconds(group, formulas) for group in self.plan.stages[stage])

    def group_seconds(self, group: FactorGroup, formulas: Formulas) -> sympy.Expr:
        """Return the seconds of one factor: for each product the time of its operations or of its bytes, whichever is
        more."""
        booked, seconds = group.booked, sympy.Integer(0)
        for at, step in enumerate(booked.steps):
            work = busiest(booked.flops(at))
            if work == 0:
                continue
            touched = [*step.args, at] if step.op != "ring" else [*step.args[:3], at]
            values = add_up(booked.numbers(value) for value in touched if not self.scores(group, value))
            weights = add_up(
                busiest(sympy.sympify(local(stored_dims(data), placement.stored, booked.mesh).numbers))
                for _, data, placement in stored_arrays([step])
            )
            if step.op == "answer":
                weights *= self.read_share(group, at)
            size = BYTES[self.number] * busiest(values) + formulas.weight_size * weights
            seconds += sympy.Max(work / self.sheet.product_rate(self.number)[0], size / self.sheet.memory[-1][2])
        return seconds

    @staticmethod
    def scores(group: FactorGroup, at: int) -> bool:
        """True if a value has tokens on both sides."""
        step = group.booked.steps[at]
        return step.where is not None and step.op != "ring" and step.dims.rows == step.dims.cols != 1
