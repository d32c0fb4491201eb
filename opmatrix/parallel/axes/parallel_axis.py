"""An axis of parallelism, declared once, a file each. Meshes, the planner, the launcher, the command line and
docs/tables.md read the declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from opmatrix.parallel.axes.axis_strategy import AxisStrategy

MeshChoices: TypeAlias = Mapping[str, Any]  # option -> value, for the options of all axes
LaidAxes: TypeAlias = dict[str, tuple[int, str]]  # axis of a mesh -> its ranks and strategy


@dataclass(frozen=True)
class ModelLimits:
    """The sizes of a model that axes divide."""

    layers: int
    heads: int
    key_heads: int  # heads of keys
    experts: int  # experts of a layer; 0: none
    head: int  # columns of a head

    def cuts_heads(self, tp: int) -> bool:
        """True if `tp` ranks have whole heads of queries, and each has whole heads of keys, or copies of one."""
        return self.heads % tp == 0 and (self.key_heads % tp == 0 or tp % self.key_heads == 0)


class CutSizes(NamedTuple):
    """The sizes that axes divide: those of a model and of a batch, and the ranks of axes that are chosen already."""

    limits: ModelLimits
    sequences: int
    tokens: int  # tokens of each sequence
    ranks: Mapping[str, int]

    def with_ranks(self, name: str, ranks: int) -> CutSizes:
        return self._replace(ranks={**self.ranks, name: ranks})


@dataclass(frozen=True)
class AxisOption:
    """An argument of `usual_mesh`, which is an option of the command line, too."""

    name: str  # the argument; the option has dashes
    kind: object  # int, float, bool or str, or one of them | None
    usual: object  # default
    help: str
    least: int | None = None  # smallest legal number
    run: bool = True  # `launch` has it; False: `partition` alone

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def no_complaint(choices: MeshChoices) -> str:
    """Return no complaint: the options of an axis fit together."""
    return ""


@dataclass(frozen=True)
class ParallelAxis:
    """A set of ranks that split a model, by one of several strategies. An axis that is `folded` adds no ranks: it
    factors the ranks of the axes that share sequences and tokens once more."""

    name: str  # axis of a mesh, and the option of its ranks
    title: str  # its name in full
    cuts: str  # the dimension that its ranks share
    help: str  # of the option of its ranks
    place: int  # in the order of the mesh: the farthest axis has the least
    strategies: tuple[AxisStrategy, ...]  # the usual one first
    collectives: tuple[str, ...]  # those that any of its strategies brings, forward and backward
    refused: Callable[[int, CutSizes], str]  # the sizes that a number of ranks does not divide; empty if it is legal
    legal: str  # the same in words
    usual: int | None = 1  # ranks, if they are not stated
    options: tuple[AxisOption, ...] = ()  # options besides its ranks
    illegal: Callable[[MeshChoices], str] = no_complaint  # the complaint about options that do not fit together
    laid: Callable[[MeshChoices], LaidAxes] | None = None  # axes of the mesh, the outermost first, by the options
    letter: str = ""  # its ranks in the planner's formulas of a layer; empty: they are in none
    folded: bool = False  # its ranks are those of other axes
    anywhere: bool = False  # `plan` tries it at any distance but the nearest
    planned: bool = True  # `plan` tries it

    @property
    def ranks_option(self) -> AxisOption:
        """The option of its number of ranks."""
        return AxisOption(self.name, int if self.usual is not None else int | None, self.usual, self.help, 1)

    def axes(self, choices: MeshChoices) -> LaidAxes:
        """Return the axes that a mesh has of it, with their ranks and strategies."""
        if self.laid is not None:
            return self.laid(choices)
        return {self.name: (choices[self.name], self.strategies[0].name)}
