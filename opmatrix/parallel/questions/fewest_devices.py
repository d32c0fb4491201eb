"""The fewest devices on which some strategy fits the memory, and is fast enough where a time is stated."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.strategy_search import FormPrograms, PlanQuestion, search_strategies

COUNT_FACTORS = 1, 3  # counts that are tried are these times powers of two


class FewestDevices(NamedTuple):
    """The fewest devices of those that were tried."""

    tried: tuple[int, ...]  # counts, the smallest first
    within: float | None  # seconds that a step may take
    devices: int | None  # None where none of them do
    choice: PlanChoice | None  # the fastest strategy on them

    def __str__(self) -> str:
        wanted = "a strategy fits" if self.within is None else f"a step takes at most {self.within:g} s"
        counts = f"of {', '.join(map(str, self.tried))} devices"
        if self.choice is None:
            return f"the fewest devices where {wanted}: none {counts}"
        size = self.choice.bytes / 1e9
        return (
            f"the fewest devices where {wanted}: {self.devices}, {counts}\n"
            f"  {self.choice}; {self.choice.seconds:.4g} s a step, {size:.1f} GB"
        )


def counts_up_to(most: int) -> list[int]:
    """Return the counts that are tried, up to `most`, which is one of them.

    >>> counts_up_to(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]"""
    powers = range(most.bit_length())
    return sorted({most, *(step << power for step in COUNT_FACTORS for power in powers if step << power <= most)})


def fewest_devices(question: PlanQuestion, within: float | None = None) -> FewestDevices:
    """Return the fewest devices, up to those of a question, on which a strategy fits, and takes at most `within`
    seconds a step. Raises InputError for a time that is none."""
    if within is not None and not 0 < within < inf:
        raise InputError(f"--within {within:g}: seconds, more than 0")
    counts = counts_up_to(question.devices)
    for at, devices in enumerate(counts, 1):
        choice = fastest_on(replace(question, devices=devices))
        if choice is not None and (within is None or choice.seconds <= within):
            return FewestDevices(tuple(counts[:at]), within, devices, choice)
    return FewestDevices(tuple(counts), within, None, None)


def fastest_on(question: PlanQuestion, programs: FormPrograms | None = None) -> PlanChoice | None:
    """Return the fastest strategy of a question that fits; None where there is none. `programs`: those of a question
    with the same formulas."""
    try:
        strategies = search_strategies(question, programs=programs)
    except InputError:
        return None
    if not strategies.fit:
        return None
    row = strategies.best_rows(1)[0]
    forms = question.forms if programs is None else programs.forms
    form, sizes = forms[strategies.forms[row]], strategies.sizes.row(row)
    return PlanChoice(form, sizes, question.predicted(form, sizes))
