"""What a command prints, and the files that it writes where a user says: whether they can be written is known before
the work."""
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from formats.core.errors import InputError
from formats.disk.files import reason, replacing

CONTROLS = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


def printable(words: str) -> str:
    """Words that may come from a file, without characters that a terminal would obey."""
    return words.translate(CONTROLS)


def say(words: str) -> None:
    """On the standard output."""
    typer.echo(printable(words))


def possible(option: str, check: Callable[[Path], None], place: Path | None) -> None:
    """Raises what the check of a place raises, an InputError, with the option before it."""
    if place is None: return
    try: check(place)
    except InputError as error: raise InputError(f"{option} {error}") from error


def write_results(found: dict[str, Any], file: Path | None) -> None:
    """Writes results as JSON where that was asked for, whole or not at all."""
    if file is None: return
    try:
        with replacing(file) as out: out.write(json.dumps(found, indent=1).encode())
    except OSError as error: raise InputError(f"--json {file}: not written: {reason(error)}") from error
