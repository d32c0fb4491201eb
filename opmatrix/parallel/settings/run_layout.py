"""A layout as settings of a stack state it: sizes and choices of a strategy, its batch, layers and recomputation by
stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.parallel.cost.strategies import RecomputeKind
from opmatrix.parallel.sharding.axis_states import bounds

LAYOUT_SIZES = "dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual"
LAYOUT_CHOICES = "zero", "sequence", "recompute", "context", "schedule", "whole_experts"


class RunFacts(NamedTuple):
    """Facts that settings leave to the model and to the devices."""

    layers: int  # layers of the model
    devices: int


@dataclass(frozen=True)
class RunLayout:
    """The fields of a strategy that settings state; None where they do not."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    micro_batch: int | None = None  # sequences of a micro-batch
    virtual: int | None = None  # chunks of a stage
    zero: int | None = None
    sequence: bool | None = None
    recompute: RecomputeKind | None = None
    context: str | None = None
    schedule: str | None = None
    whole_experts: bool | None = None
    precision: str | None = None
    batch: int | None = None  # sequences of a step
    seq: int | None = None  # tokens of a sequence
    cut: tuple[int, ...] | None = None  # layers of each chunk; None: as many each
    again: tuple[int, ...] | None = None  # layers of each chunk that are computed again, its first ones; None: all

    @property
    def chunks(self) -> int:
        """The chunks of all stages."""
        return (self.pp or 1) * (self.virtual or 1)

    def layers_of(self, facts: RunFacts) -> tuple[int, ...]:
        """Return the layers of each chunk."""
        return self.cut or even_layers(facts.layers, self.chunks)

    def stated(self) -> dict[str, object]:
        """Return the fields that are stated, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def chosen(self) -> dict[str, object]:
        """Return the sizes and choices that a plan searches, by name."""
        return {name: value for name, value in self.stated().items() if name in (*LAYOUT_SIZES, *LAYOUT_CHOICES)}

    def simplest(self, facts: RunFacts) -> RunLayout:
        """Return the same layout without what has no effect: stages that are even, choices of axes of one rank. Raises
        InputError for layers by stage that do not add up."""
        check_layers(self, facts)
        layers = self.layers_of(facts)
        layout = self
        if self.again is not None and self.again == layers:
            layout = replace(layout, again=None)
        if layout.again is not None and not any(layout.again):
            layout = replace(layout, again=None, recompute="none")
        if layout.recompute == "none":
            layout = replace(layout, again=None)
        if self.cut == even_layers(facts.layers, self.chunks):
            layout = replace(layout, cut=None)
        return replace(layout, **without_effect(layout))  # type: ignore[arg-type]


def without_effect(layout: RunLayout) -> Mapping[str, object]:
    """Return the choices of a layout that belong to axes of one rank, as they are there."""
    usual: dict[str, object] = {}
    if layout.tp == 1:
        usual |= {"sequence": False, "whole_experts": False}
    if layout.ep == 1:
        usual["whole_experts"] = False
    if layout.cp == 1:
        usual["context"] = "ring"
    if layout.pp == 1:
        usual |= {"schedule": "1f1b", "virtual": 1}
    return {name: value for name, value in usual.items() if getattr(layout, name) is not None}


def even_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Return the layers of each chunk; the first chunks have one more where the layers do not divide."""
    return tuple(end - start for start, end in (bounds(layers, chunks, at) for at in range(chunks)))


def check_layers(layout: RunLayout, facts: RunFacts) -> None:
    """Raise InputError for layers by chunk that are not those of the model."""
    cut, again = layout.cut, layout.again
    if cut is not None and (len(cut) != layout.chunks or sum(cut) != facts.layers or min(cut) < 0):
        raise InputError(
            f"layers by stage {spell(cut)}: they are {sum(cut)} layers of {len(cut)} chunks; the model has "
            f"{facts.layers} layers, and the layout {layout.chunks} chunks"
        )
    if again is None:
        return
    layers = layout.layers_of(facts)
    if len(again) != len(layers) or any(not 0 <= n <= most for n, most in zip(again, layers, strict=False)):
        raise InputError(
            f"layers computed again {spell(again)}: give {len(layers)} numbers, each at most that of its chunk: "
            f"{spell(layers)}"
        )


def spell(numbers: tuple[int, ...]) -> str:
    """Write numbers with commas between them."""
    return ",".join(map(str, numbers))
