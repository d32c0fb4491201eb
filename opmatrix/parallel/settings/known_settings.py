"""`read_settings` and `write_settings`: files of settings of the stacks that have a declaration here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.settings.deepspeed import DEEPSPEED_SETTINGS
from opmatrix.parallel.settings.megatron import MEGATRON_SETTINGS
from opmatrix.parallel.settings.mindformers import MINDFORMERS_SETTINGS
from opmatrix.parallel.settings.mindspeed import MINDSPEED_SETTINGS
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout
from opmatrix.parallel.settings.settings_text import MOST_FILE_LETTERS, SETTINGS_FORMS, SUFFIXES
from opmatrix.parallel.settings.spellings import ReadSettings, StackSettings
from opmatrix.parallel.settings.torchtitan import TORCHTITAN_SETTINGS

SETTINGS: Mapping[str, StackSettings] = {
    settings.stack: settings
    for settings in (
        MEGATRON_SETTINGS,
        MINDSPEED_SETTINGS,
        TORCHTITAN_SETTINGS,
        DEEPSPEED_SETTINGS,
        MINDFORMERS_SETTINGS,
    )
}


def settings_of(stack: str | None, option: str) -> StackSettings:
    """Return the declaration of a stack's settings. Raises InputError where none is stated, or it has none."""
    known = ", ".join(SETTINGS)
    if stack is None:
        raise InputError(f"{option}: settings are those of a stack: give --stack: {known}")
    if stack in SETTINGS:
        return SETTINGS[stack]
    raise InputError(f"{option}: stack {stack!r}: {suggest_name(stack, SETTINGS)}it has no settings here: {known} have")


def form_of(path: Path, settings: StackSettings) -> str:
    """Return the form of a file by its name; the usual one of the stack for any other name."""
    form = SUFFIXES.get(path.suffix.lower(), "script")
    return form if form in settings.forms else settings.forms[0]


def read_settings(path: Path, settings: StackSettings, facts: RunFacts) -> ReadSettings:
    """Read a file of settings of a stack. Raises InputError with the file's name for one that cannot be read, that is
    not of its form, that contradicts itself or the model."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or 'it is no text of UTF-8'}") from None
    if len(text) > MOST_FILE_LETTERS:
        raise InputError(f"{path}: {len(text):,} letters: settings have at most {MOST_FILE_LETTERS:,}")
    return read_text(text, form_of(path, settings), settings, facts, str(path))


def read_text(text: str, form: str, settings: StackSettings, facts: RunFacts, place: str = "settings") -> ReadSettings:
    """Read settings from text. Raises InputError as `read_settings` does, and where no argument is one of the stack."""
    try:
        stated = SETTINGS_FORMS[form].read(text, settings.declared.arguments, settings.names)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    if not any(settings.knows(name) for name in stated):
        raise InputError(f"{place}: it has no argument of {settings.declared.version}: give its settings")
    return settings.read(stated, facts, place)


def write_settings(
    layout: RunLayout, settings: StackSettings, facts: RunFacts, form: str | None = None, beside: object = None
) -> str:
    """Write a layout as settings of a stack. `beside`: settings that were read, whose other arguments are kept. Raises
    InputError for what the stack has no setting for."""
    written = settings.write(layout, facts)
    if isinstance(beside, ReadSettings):
        others = {name: value for name, value in beside.arguments.items() if not settings.states(name)}
        written = {**others, **written}
    return SETTINGS_FORMS[form or settings.forms[0]].write(written, settings.title)
