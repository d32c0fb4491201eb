"""One layout that is stated: its time and memory, whether it fits, and the parts by which others are better."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.display.tables import table
from opmatrix.parallel.axes.context_axis import CONTEXTS
from opmatrix.parallel.axes.known_axes import AXES, DEVICE_AXES
from opmatrix.parallel.cost.legality import check_legal, check_named_choices
from opmatrix.parallel.cost.memory_parts import driver_bytes
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, RECOMPUTES, Strategy
from opmatrix.parallel.schedules.named import SCHEDULES
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.plan_text import GIGA, interval_cell, lost, stages_text
from opmatrix.parallel.search.plans import PlanChoice, StrategyPlan
from opmatrix.parallel.search.stage_times import StageCut, best_cut, even_stages, run_stages
from opmatrix.parallel.search.strategy_search import PlanQuestion, search_strategies

NUMBERED = {"micro-batch": "micro_batch", "micro_batch": "micro_batch", "virtual": "virtual", "zero": "zero"}
LAYOUT_WORDS = re.compile(r"[\s;,×=]+")
FixedChoices = dict[str, object]


class StatedLayout(NamedTuple):
    """A layout that is stated: sizes and choices by name; all others are free."""

    text: str
    fixed: FixedChoices


def read_layout(text: str, option: str) -> StatedLayout:
    """Read a layout, such as "tp 8 pp 16 zero 1 interleaved norms cut", or as a plan prints it. Raises InputError for a
    word that names nothing, with the option that it stood in."""
    fixed: FixedChoices = {}
    words = [word for word in LAYOUT_WORDS.split(text.strip()) if word]
    at = 0
    while at < len(words):
        at += read_words(words[at:], fixed, option)
    if not fixed:
        raise InputError(f'{option} {text!r}: it states nothing: give a layout, such as "tp 8 pp 4 micro-batch 1"')
    return StatedLayout(text, fixed)


def read_words(words: list[str], fixed: FixedChoices, option: str) -> int:
    """Read what the first words state, and return how many they are."""
    word, following = words[0].lower(), words[1].lower() if len(words) > 1 else ""
    if word.isdigit() and following == "chunks":
        fixed["virtual"] = int(word)
        return 4 if [each.lower() for each in words[2:4]] == ["a", "stage"] else 2
    for name in (word, NUMBERED.get(word)):
        if name in AXES or name in NUMBERED.values():
            fixed[str(name)] = whole_after(word, following, option)
            return 2
    if word in SCHEDULES or word in CONTEXTS:
        fixed["schedule" if word in SCHEDULES else "context"] = word
        return 1
    if word in (*RECOMPUTES, BLOCK_AGAIN) and following == "again":
        fixed["recompute"] = word
        return 6 if [each.lower() for each in words[3:6]] == ["%", "of", "layers"] else 2  # as the room asks for
    if (both := f"{word} {following}") in WORD_PAIRS:
        fixed[WORD_PAIRS[both]] = True
        return 2
    if word in NAMED_CHOICES and following:
        fixed[word] = following
        return 2
    known = [*AXES, *NUMBERED, *NAMED_CHOICES, *SCHEDULES, *CONTEXTS, *WORD_PAIRS]
    raise InputError(f"{option}: {words[0]}: {suggest_name(word, known)}a layout has {', '.join(known)}")


WORD_PAIRS = {"norms cut": "sequence", "whole experts": "whole_experts", "ends counted": "balanced"}
NAMED_CHOICES = "recompute", "schedule", "context"


def whole_after(word: str, text: str, option: str) -> int:
    """Read the number behind a word. Raises InputError for anything else."""
    if text.isdigit():
        return int(text)
    raise InputError(f"{option}: {word} {text}: give a whole number")


def find_layout(question: PlanQuestion, layout: StatedLayout) -> PlanChoice:
    """Return the fastest strategy of a layout that fits the memory; if none does, the one that needs the least. Raises
    InputError for a layout that is not legal, or that the question rules out."""
    ruled = replace(question, fixed=tuple(layout.fixed.items()))
    if not len(ruled.sizes) or not ruled.forms:
        refuse_layout(question, layout)
    found = search_strategies(ruled)
    if found.fit:
        row = found.best_rows(1)[0]
        form = ruled.forms[found.forms[row]]
    else:
        form, row, _ = found.least
    sizes = found.sizes.row(row)
    return PlanChoice(form, sizes, question.predicted(form, sizes))


def refuse_layout(question: PlanQuestion, layout: StatedLayout) -> None:
    """Raise InputError for a layout without strategies: by the rule that it breaks, else by what is not offered."""
    ranks = {axis.name: int(str(layout.fixed.get(axis.name, 1))) for axis in DEVICE_AXES}
    taken = prod(ranks.values())
    if "dp" not in layout.fixed and question.devices % taken == 0:
        ranks["dp"], taken = question.devices // taken, question.devices
    if taken != question.devices:
        spelled = " x ".join(f"{name} {number}" for name, number in ranks.items())
        raise InputError(f"{layout.text!r}: {spelled} are {taken} ranks on {question.devices} devices: give others")
    fields = {**layout.fixed, **ranks}
    strategy = Strategy(**fields, flash=question.flash, precision=question.precision)  # type: ignore[arg-type]
    try:
        check_stated(question, strategy)
    except InputError as error:
        raise InputError(f"{layout.text!r}: {error}") from None
    by = f"{question.stack.title} has" if question.stack else "a plan tries"
    raise InputError(f"{layout.text!r}: {by} no such strategy for this model, these devices and these options")


def check_stated(question: PlanQuestion, strategy: Strategy) -> None:
    """Raise InputError for a strategy that breaks a rule."""
    check_named_choices(strategy)
    work = question.work(StrategyForm(context=strategy.context, sequence=strategy.sequence))
    check_legal(work, strategy, question.batch, question.mix.divided)


def layout_lines(plan: StrategyPlan, layout: StatedLayout, choice: PlanChoice) -> str:
    """Return the text of a layout: whether it fits, its time, and why it is not the first; where stages have layers of
    a tower and of a decoder, the same of an even cut of them and of the fastest."""
    first, room = plan.best[0], plan.question.room
    seconds, sizes = (
        cell[0] if cell else "" for cell in map(interval_cell, plan.intervals, (choice.seconds, choice.bytes / GIGA))
    )
    over = (choice.bytes - room) / GIGA
    fits = f"does not fit, by {over:.1f} GB" if over > 0 else f"fits, with {-over:.1f} GB to spare"
    largest = max(choice.prediction.memory, key=lambda name: float(choice.prediction.memory[name]))
    lines = [
        f"the layout {layout.text}:",
        f"  it is {choice}",
        f"  {choice.seconds:.4g} s a step{seconds and f' ({seconds})'}, MFU {100 * plan.utilisation(choice):.1f} %",
        f"  {choice.bytes / GIGA:.1f} GB{sizes and f' ({sizes})'} of {room / GIGA:g}: it {fits}; "
        f"{float(choice.prediction.memory[largest]) / GIGA:.1f} GB are {largest}",
        f"  beside the first, {first}: {lost(first, choice)}",
    ]
    if choice.prediction.setting.model.tower and choice.sizes["pp"] > 1:
        cuts = [even_stages(choice), best_cut(choice, room)]
        lines += [stages_line(plan, choice, cut) for cut in cuts if cut is not None]
    return "\n".join(lines)


def stages_line(plan: StrategyPlan, choice: PlanChoice, cut: StageCut) -> str:
    """Return the time and memory of a layout whose stages are not alike, run task by task."""
    try:
        ran = run_stages(choice, cut)
    except InputError as error:
        return f"  with stages of {stages_text(cut)}: {error}"
    size, room = float(driver_bytes(choice.prediction.setting, ran.allocated)), plan.question.room
    fits = "fits" if size <= room else f"does not fit, by {(size - room) / GIGA:.1f} GB"
    return f"  with stages of {stages_text(cut)}: {ran.seconds:.4g} s a step, {size / GIGA:.1f} GB: it {fits}"


def against_table(one: PlanChoice, other: PlanChoice) -> str:
    """Return the table of two layouts, part by part: seconds of a step and bytes of the fullest device."""
    difference = f"{(other.bytes - one.bytes) / GIGA:+.3g}"
    rows = [
        *part_rows("s", one.prediction.seconds, other.prediction.seconds, 1),
        ["s a step", f"{one.seconds:.4g}", f"{other.seconds:.4g}", f"{other.seconds - one.seconds:+.3g}"],
        *part_rows("GB", one.prediction.memory, other.prediction.memory, GIGA),
        ["GB by the driver", *(f"{size / GIGA:.4g}" for size in (one.bytes, other.bytes)), difference],
    ]
    return table(rows, ["part", "one", "other", "difference"], (0,))


def part_rows(unit: str, one: Mapping[str, object], other: Mapping[str, object], scale: float) -> Iterator[list[str]]:
    """Yield a row for each part that either layout has."""
    for name in dict.fromkeys([*one, *other]):
        numbers = [float(str(parts.get(name, 0))) / scale for parts in (one, other)]
        if any(numbers):
            yield [f"{unit} of {name}", *(f"{number:.4g}" for number in numbers), f"{numbers[1] - numbers[0]:+.3g}"]
