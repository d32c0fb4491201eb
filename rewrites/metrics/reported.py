"""The entries of report.json of `opmatrix optimize`, read back with mistrust: no hash covers the file, so no file that
it names is opened. Files of the user are recorded as path and SHA-256, and are named again on the command line."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from formats.core.errors import InputError
from formats.disk.files import open_regular, read_json, shown
from rewrites.lowering.mixed import check_shares, lengths
from rewrites.lowering.phased import Generation, parse_generation
from rewrites.lowering.representations import NUMBER_TYPES

INPUTS = {"laws": "--laws", "text": "--text", "texts": "--workload"}  # entries of a report, and their options
FIGURES = ("measured_s", "measured_bytes", "predicted_error", "measured_error")
MAX_PROGRAMS = 100  # programs of a front


class Named(NamedTuple):
    """A file and its digest when it was read."""

    file: str
    sha256: str

    @classmethod
    def of(cls, file: str | Path | None) -> "Named | None":
        """Return the file as it is now. Raises InputError if it cannot be read."""
        return None if file is None else cls(str(Path(file).absolute()), sha256_hex(file))


def sha256_hex(file: str | Path) -> str:
    """Return the SHA-256 of a regular file."""
    with open_regular(file) as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


@dataclass(frozen=True)
class Reported:
    """The search that a report describes, and the front that it found."""

    tokens: int | None
    mix: tuple[tuple[float, str], ...] | None
    number_type: str
    without: tuple[str, ...]
    inputs: Mapping[str, Named | None]
    front: tuple[Mapping[str, Any], ...]
    chosen: int
    error: float = 0.0
    memory: float | None = None
    generation: Generation | None = None

    @classmethod
    def read(cls, file: Path) -> "Reported":
        """Read a report. Raises InputError, which names the file and the entry, for an entry that no run would have
        written."""
        try:
            return cls.parsed(read_json(file))
        except TypeError as error:
            raise InputError(f"{file}: {error}: create the program again") from None

    @classmethod
    def parsed(cls, found: object) -> "Reported":
        """Return a report from its JSON value. Raises TypeError, which names the entry."""
        if not isinstance(found, dict):
            raise no("it", found)
        tokens, number_type = found.get("tokens"), found.get("number_type")
        if tokens is not None and not (type(tokens) is int and tokens > 0):
            raise no("tokens", tokens)
        if number_type not in tuple(NUMBER_TYPES):
            raise no("number_type", number_type)
        if not texts(without := found.get("without")):
            raise no("without", without)
        if not isinstance(front := found.get("front"), list) or not 0 < len(front) <= MAX_PROGRAMS:
            raise no("front", front)
        if type(chosen := found.get("chosen")) is not int or not 0 <= chosen < len(front):
            raise no("chosen", chosen)
        inputs = {name: parse_named(name, found.get(name)) for name in INPUTS}
        if not positive(error := found.get("error")):
            raise no("error", error)
        if not ((memory := found.get("memory")) is None or positive(memory)):
            raise no("memory", memory)
        return cls(
            tokens,
            mix(found.get("mix")),
            number_type,
            tuple(without),
            inputs,
            tuple(map(point, front)),
            chosen,
            error,
            memory,
            generation(found.get("generate")),
        )

    def same(self, given: Mapping[str, Path | None]) -> None:
        """Raise InputError if the passed files, by entry, differ from the files of the report."""
        for name, option in INPUTS.items():
            file, recorded = given.get(name), self.inputs[name]
            if file is None and recorded:
                raise InputError(
                    f"the program was made with your own file: give it again: {option} {shown(recorded.file)}"
                )
            if file is None:
                continue
            if not recorded:
                raise InputError(f"{option} {file}: the program was made without one: leave it out")
            if (now := sha256_hex(file)) != recorded.sha256:
                raise InputError(
                    f"{option} {file}: its SHA-256 is {now}, the program was made with {recorded.sha256}: "
                    "give that file"
                )


def no(name: str, value: object) -> TypeError:
    """Return the error of an entry that no run writes."""
    return TypeError(f"{name} is {value!r:.80}, which no run writes")


def positive(found: object) -> TypeGuard[float]:
    """True for a finite number from 0 on; no boolean is one."""
    return (type(found) is int or type(found) is float) and 0 <= found < inf


def texts(found: object) -> TypeGuard[list[str]]:
    """True for a list of texts."""
    return isinstance(found, list) and all(isinstance(text, str) for text in found)


def mix(found: object) -> tuple[tuple[float, str], ...] | None:
    """Return shares of batches, with lengths in words; None for None."""
    if found is None:
        return None
    if not isinstance(found, list) or not 0 < len(found) <= MAX_PROGRAMS:
        raise no("mix", found)
    if not all(isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], str) for entry in found):
        raise no("mix", found)
    shares = tuple((share, word) for share, word in found)
    try:
        check_shares(shares)
        for _, word in shares:
            lengths(word)
    except InputError:
        raise no("mix", found) from None
    return shares


def generation(found: object) -> Generation | None:
    """Return a request for generated text, from its words; None for None."""
    if found is None:
        return None
    try:
        request = parse_generation(found) if isinstance(found, str) else None
    except InputError:
        request = None
    if request is None:
        raise no("generate", found)
    return request


def parse_named(name: str, found: object) -> Named | None:
    """Return a file and its digest; None for None."""
    if found is None:
        return None
    if not isinstance(found, dict) or found.keys() != {*Named._fields} or not texts([*found.values()]):
        raise no(name, found)
    return Named(**found)


def point(found: object) -> dict[str, Any]:
    """Return the shown entries of a program: its name and figures, any of which may be missing."""
    if not isinstance(found, dict):
        raise no("front", found)
    if not isinstance(name := found.get("name"), str):
        raise no("front: name", name)
    for key in FIGURES:
        value = found.get(key)
        if value is not None and not (type(value) in (int, float) and value >= 0):
            raise no(f"front: {key}", value)
    return {"name": name, "smaller": found.get("removed") is not None, **{key: found.get(key) for key in FIGURES}}
