"""The output of a command: printed text, and files at the places that a user names. A command checks before its work
that they can be written. An error that is not the user's is saved in a file, and one line names the error and the
file."""

import json
import os
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.disk.cache import location
from formats.disk.files import reason, replacing, shown
from opmatrix.display.tables import fit_width

FAULT = 70  # EX_SOFTWARE of sysexits.h
DEBUG = "OPMATRIX_DEBUG"  # if set, the whole traceback is printed, too

CONTROLS = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


def bad_input() -> tuple[type[Exception], ...]:
    """Return the exceptions that end a command with one line and status 2. They are imported only once an error
    occurred."""
    from formats import FormatError
    from rewrites.extraction import Infeasible

    return InputError, Infeasible, FormatError


def interruptions() -> tuple[type[BaseException], ...]:
    """Return the exceptions of an interrupted command."""
    from typer import Abort

    return KeyboardInterrupt, Abort


def misunderstood() -> Any:
    """Return the exception of a command that is not understood; older versions of typer leave it to click."""
    if find_spec("typer.exceptions"):
        from typer.exceptions import TyperException

        return TyperException
    from click import ClickException

    return ClickException


def printable(words: str) -> str:
    """Return words that may come from a file, without characters that a terminal would obey."""
    return words.translate(CONTROLS)


# letters of tables and formulas, by what stands for each, as wide, where an encoding has none
PLAIN_LETTERS = str.maketrans("─│…×µσΣ₁²ᵀ→⇄±‖≤≥≠√·▁▂▃▄▅▆▇█⊙°", "-|.xusS12T>=+|<>!V*__..--==*.")


def encodable(words: str, encoding: str) -> str:
    """Return words as a stream of this encoding can show them. Letters that it lacks become plain ones, the rest
    numbers."""
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        words = words.translate(PLAIN_LETTERS)
    return words.encode(encoding, "backslashreplace").decode(encoding)


def say(words: str) -> None:
    """Print on the standard output; on a terminal tables are fitted to its width."""
    if sys.stdout.isatty():
        words = fit_width(words, shutil.get_terminal_size().columns)
    from typer import echo

    echo(encodable(printable(words), sys.stdout.encoding or "utf-8"))


OutputPlaces = Mapping[str, tuple[Path | None, Callable[[Path], None]]]  # option -> its place and a check of it


def possible(places: OutputPlaces, *reads: object) -> None:
    """Raise InputError, with the option before it, for a place that its check refuses, and for a place where writing
    would replace an input of the command or another output: both are compared as the system resolves them. `reads`:
    arguments of the command that name files or directories, or lists of them; other arguments are ignored."""
    if not any(place for place, _ in places.values()):
        return
    written: dict[Path, str] = {}
    inputs = [path for argument in reads for path in existing(argument)]
    for option, (place, check) in places.items():
        if place is None:
            continue
        try:
            check(place)
            for path in inputs:
                refuse_overwriting(place, path)
            for other in written:
                refuse_overlap(place, other, written[other])
        except InputError as error:
            raise InputError(f"{option} {error}") from error
        written[place] = option


def existing(given: object) -> Iterator[Path]:
    """Yield the paths that an argument names: itself, each of a list, the cached directory of a model that is
    fetched."""
    from opmatrix.files.fetch import MODELS

    for name in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(name, str | Path):
            continue
        path = location() / name if name in MODELS else Path(name)
        with suppress(OSError, ValueError):
            if path.exists():
                yield path


def refuse_overwriting(place: Path, read: Path) -> None:
    """Raise InputError if an input is at the place, or within it, or holds a file there."""
    at, source = place.resolve(), read.resolve()
    held = source in at.parents and at.exists() and not at.is_dir()
    if at == source or at in source.parents or held or (at.exists() and at.samefile(source)):
        raise InputError(f"{shown(place)}: it would replace what is read from {shown(read)}: name another place")


def refuse_overlap(place: Path, other: Path, option: str) -> None:
    """Raise InputError if two places are one, or one is within the other."""
    at, there = place.resolve(), other.resolve()
    if at == there or at in there.parents or there in at.parents:
        raise InputError(f"{shown(place)}: {option} {shown(other)} is written there, too: name another place")


def write_results(found: Mapping[str, object], file: Path | None) -> None:
    """Write results as JSON if a file is given, whole or not at all."""
    if file is None:
        return
    try:
        with replacing(file) as out:
            out.write(json.dumps(found, indent=1).encode())
    except OSError as error:
        raise InputError(f"--json {file}: not written: {reason(error)}") from error


# ---- faults


def report_fault(error: Exception) -> str:
    """Return the line for an error that is not the user's, and write the file that holds all of it."""
    from rewrites.verify.failure import VerificationError

    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    complaint = error.said if isinstance(error, VerificationError) else f"{type(error).__name__}: {error}"
    place = save_fault(error)
    return f"a fault in opmatrix: {complaint[:400]}: " + (
        f"see {place}, and report it" if place else f"set {DEBUG}=1 to see all of it"
    )


def save_fault(error: Exception) -> Path | None:
    """Save an error in a file, in the working directory, else in the directory of temporary files: Python that
    reproduces it if there is some, the command line, and the traceback. Return its path; None if it cannot be
    written."""
    from rewrites.verify.failure import VerificationError

    shown = error.reproducer if isinstance(error, VerificationError) else ""
    lines = [
        f"opmatrix {' '.join(sys.argv[1:])}",
        f"Python {platform.python_version()}, {platform.platform()}",
        "",
        *"".join(traceback.format_exception(error)).replace(f"\n{shown}" if shown else "\0", "").splitlines(),
    ]
    text = "\n".join([*(f"# {line}".rstrip() for line in lines), "", shown, ""] if shown else [*lines, ""])
    for room in (Path.cwd, tempfile.gettempdir):
        try:
            number, name = tempfile.mkstemp(".py" if shown else ".txt", "opmatrix-fault-", room())
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.write(text)
            return Path(name)
        except OSError:
            continue
    return None
