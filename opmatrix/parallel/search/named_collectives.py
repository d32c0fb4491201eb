"""The collectives of a strategy by name: those that each axis runs, among how many ranks, by which algorithm on each
level of links, and the share of data-parallel sums that runs beside backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from opmatrix.parallel.cost.level_seconds import TREES, units_of
from opmatrix.parallel.cost.step_parts import Setting
from opmatrix.parallel.search.plans import PlanChoice

ALGORITHMS = {"all_to_all": "in pairs", "send": "to the next"}  # all others use a ring


class NamedCollective(NamedTuple):
    """A collective of a strategy."""

    what: str  # the axis, or the values that are summed
    op: str  # the collective
    ranks: int  # ranks of its group
    levels: tuple[tuple[str, int, str], ...]  # (level of links, units that meet there, algorithm)
    beside: float = 0  # share that runs beside backward

    def __str__(self) -> str:
        ways = ", ".join(f"{how} of {units} over {link}" for link, units, how in self.levels)
        hidden = f"; {100 * self.beside:.0f} % beside backward" if self.beside else ""
        return f"{self.what}: {self.op} among {self.ranks}: {ways}{hidden}"


def named_collectives(choice: PlanChoice, forward: bool = False) -> Iterator[NamedCollective]:
    """Yield all collectives of a step, or of a forward pass alone, each once."""
    setting, strategy = choice.prediction.setting, choice.prediction.setting.strategy
    works = [setting.model.first, *(work for work, _ in setting.model.layers), setting.model.last]
    collectives = {
        (crossing.axis, crossing.op): None
        for work in works
        for crossing in work.crossings
        if not forward or crossing.during == "forward"
    }
    for axis, op in collectives:
        yield from name_collective(setting, axis, op, int(getattr(strategy, axis)), float(strategy.stride(axis)))
    yield from name_collective(setting, "pp", "send", int(strategy.pp), float(strategy.stride("pp")))
    if forward:
        return
    over, beside = int(strategy.copies), setting.constants.hidden * strategy.overlap
    experts = setting.model.asks and strategy.ep > 1
    groups: Iterable[tuple[str, int, float]] = [("", over, float(strategy.copies_stride))]
    if experts:
        groups = [
            *groups,
            (" of experts", int(strategy.expert_ranks / strategy.ep), float(strategy.stride("ep") * strategy.ep)),
        ]
    for whose, ranks, stride in groups:
        yield from name_collective(setting, f"gradients{whose}", "all_reduce", ranks, stride, beside)
        if strategy.zero > 2:
            yield from name_collective(setting, f"weights{whose}", "all_gather", ranks, stride, beside)


def name_collective(
    setting: Setting, what: str, op: str, ranks: int, stride: float, beside: float = 0
) -> Iterator[NamedCollective]:
    """Yield one collective, if its group has more than one rank."""
    if ranks == 1:
        return
    links = setting.machine.links
    levels = tuple(
        (link.name, round(float(units)), "trees" if op in TREES and k else ALGORITHMS.get(op, "a ring"))
        for k, (link, units) in enumerate(zip(links, units_of(ranks, stride, links), strict=True))
        if units > 1
    )
    yield NamedCollective(what, op, ranks, levels, beside)
