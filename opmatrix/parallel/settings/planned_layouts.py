"""Settings beside a plan: a layout that they state, to be judged; a strategy of a plan, to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from opmatrix.parallel.cost.strategies import BLOCK_AGAIN
from opmatrix.parallel.questions.layouts import StatedLayout
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.stage_times import StageCut, even_cut, even_stages
from opmatrix.parallel.settings.known_settings import form_of, read_settings, settings_of, write_settings
from opmatrix.parallel.settings.run_layout import LAYOUT_CHOICES, LAYOUT_SIZES, RunFacts, RunLayout
from opmatrix.parallel.settings.spellings import ArgumentValue, ReadSettings, StackSettings

READ_OPTION, WRITE_OPTION = "--settings", "--write-settings"


@dataclass(frozen=True)
class PlannedSettings:
    """Settings of a stack for a model on devices, and those that were read, if any."""

    settings: StackSettings
    facts: RunFacts
    read: ReadSettings | None = None
    path: Path | None = None

    @property
    def layout(self) -> RunLayout:
        """The layout that was read; one that states nothing without a file."""
        return RunLayout() if self.read is None else self.read.layout

    def stated(self) -> StatedLayout:
        """Return the layout that was read, for a plan to judge. State that one rank has is stored whole by any ZeRO."""
        fixed = self.layout.chosen()
        if copies_of(self.layout, self.facts) == 1:
            fixed["zero"] = 0
        if self.layout.cut == even_cut(self.facts.layers, self.layout.chunks, 1, 1):
            fixed["balanced"] = True
        return StatedLayout(f"of {self.path}", fixed)

    def stages(self) -> StageCut | None:
        """Return the layers of each chunk with those that are computed again, where they are not alike."""
        layout = self.layout
        if layout.cut is None and layout.again is None:
            return None
        layers = layout.layers_of(self.facts)
        return StageCut(layers, (layout.recompute or "none",) * len(layers), layout.again)

    def lines(self) -> Iterator[str]:
        """Yield what was read beside the layout: arguments nobody knows, arguments without a price, and those that
        would be written otherwise."""
        if self.read is None:
            return
        arguments = self.read.arguments
        for name in self.read.unknown:
            suggestion = self.settings.nearest(name)
            yield f"  not known, and kept: {name}{suggestion and f' ({suggestion})'}"
        for name in self.read.unpriced:
            yield f"  known, and not in the prediction: {name} {arguments[name]}"
        for name in self.read.otherwise:
            yield f"  taken for what is nearest: {name} {arguments[name]}"

    def text(self, choice: PlanChoice, batch: int, seq: int, out: Path) -> str:
        """Return a strategy as settings, with the other arguments of those that were read. Raises InputError for what
        the stack has no setting for."""
        layout = layout_of(choice, batch, seq)
        if not layout.zero and copies_of(layout, self.facts) == 1:
            layout = replace(layout, zero=self.layout.zero or 0)  # of one rank any stage is the same
        if (cut := self.stages()) is not None and cut.layers == (
            layout.cut or even_cut(self.facts.layers, layout.chunks)
        ):
            layout = replace(layout, cut=cut.layers, again=cut.counts)
        return write_settings(layout, self.settings, self.facts, form_of(out, self.settings), self.read)

    def unstated(self, choice: PlanChoice, batch: int, seq: int) -> str:
        """Return what a strategy needs that the stack's settings do not state; empty where they state all."""
        return ", ".join(self.settings.beside(layout_of(choice, batch, seq)))


def copies_of(layout: RunLayout, facts: RunFacts) -> int:
    """Return the ranks that have the same weights: those that share sequences and tokens."""
    others = (layout.tp or 1) * (layout.pp or 1)
    return max(facts.devices // others, 1)


def layout_of(choice: PlanChoice, batch: int, seq: int) -> RunLayout:
    """Return a strategy of a plan as a layout."""
    strategy = choice.prediction.setting.strategy
    fields: dict[str, ArgumentValue] = {name: int(choice.sizes[name]) for name in LAYOUT_SIZES}
    fields |= {name: getattr(choice.form, name) for name in LAYOUT_CHOICES}
    stages = even_stages(choice)
    cut = stages.layers if strategy.balanced else None
    layout = RunLayout(**fields, precision=strategy.precision, batch=batch, seq=seq, cut=cut)
    return layout if strategy.recompute != BLOCK_AGAIN else replace(layout, recompute="full", again=stages.counts)


def planned_settings(stack: str | None, path: Path | None, facts: RunFacts) -> PlannedSettings:
    """Return the settings of a stack, read from a file if there is one. Raises InputError for a stack without settings
    and for a file that cannot be read."""
    settings = settings_of(stack, WRITE_OPTION if path is None else READ_OPTION)
    read = None if path is None else read_settings(path, settings, facts)
    return PlannedSettings(settings, facts, read, path)
