"""The collectives of a strategy by name: which each axis runs, among how many ranks, by what algorithm on each level of
links, and how much of what is summed over data runs beside backward."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from opmatrix.parallel.cost.level_seconds import TREES, units_of
from opmatrix.parallel.cost.step_parts import Setting
from opmatrix.parallel.search.plans import PlanChoice

ALGORITHMS = {"all_to_all": "in pairs", "send": "to the next"}          # others go round a ring


class NamedCollective(NamedTuple):
    """What meets, the collective, its ranks, and by level of links: its units there and how they go."""
    what: str
    op: str
    ranks: int
    levels: tuple[tuple[str, int, str], ...]
    beside: float = 0

    def __str__(self) -> str:
        ways = ", ".join(f"{how} of {units} over {link}" for link, units, how in self.levels)
        hidden = f"; {100 * self.beside:.0f} % beside backward" if self.beside else ""
        return f"{self.what}: {self.op} among {self.ranks}: {ways}{hidden}"


def named_collectives(choice: PlanChoice, forward: bool = False) -> Iterator[NamedCollective]:
    """All of a step, or of a forward pass alone, each once."""
    setting, own = choice.prediction.setting, choice.prediction.setting.strategy
    works = [setting.model.first, *(work for work, _ in setting.model.layers), setting.model.last]
    found = {(each.axis, each.op): None for work in works for each in work.crossings
             if not forward or each.during == "forward"}
    for axis, op in found:
        yield from name_collective(setting, axis, op, int(getattr(own, axis)), float(own.stride(axis)))
    yield from name_collective(setting, "pp", "send", int(own.pp), float(own.stride("pp")))
    if forward: return
    over, beside = int(own.dp * own.cp), setting.constants.hidden * own.overlap
    experts = setting.model.asks and own.ep > 1
    groups: Iterable[tuple[str, int, float]] = [("", over, float(own.stride("ep")))]
    if experts: groups = [*groups, (" of experts", over // int(own.ep), float(own.stride("ep") * own.ep))]
    for whose, ranks, stride in groups:
        yield from name_collective(setting, f"gradients{whose}", "all_reduce", ranks, stride, beside)
        if own.zero > 2: yield from name_collective(setting, f"weights{whose}", "all_gather", ranks, stride, beside)


def name_collective(setting: Setting, what: str, op: str, ranks: int, stride: float,
                    beside: float = 0) -> Iterator[NamedCollective]:
    """One collective, if there is more than a rank of it."""
    if ranks == 1: return
    links = setting.machine.links
    levels = tuple((link.name, round(float(units)), "trees" if op in TREES and k else ALGORITHMS.get(op, "a ring"))
                   for k, (link, units) in enumerate(zip(links, units_of(ranks, stride, links), strict=True))
                   if units > 1)
    yield NamedCollective(what, op, ranks, levels, beside)
