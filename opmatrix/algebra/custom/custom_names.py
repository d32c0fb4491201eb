"""The names of custom things in programs and files: a thing's own name, and a digest of what it computes. Two things of
one name are two, and a thing that was changed is another."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from formats.core.errors import InputError

DIGITS_OF_DIGEST = 16
OWN_NAME = re.compile(rf"([^\W\d][\w.()]{{0,59}}):([0-9a-f]{{{DIGITS_OF_DIGEST}}})", re.ASCII)
OWN_THINGS: dict[str, object] = {}  # declared or written here, by name and digest
Thing = TypeVar("Thing")


def enter_own(name: str, digest: str, thing: object) -> str:
    """Enter a custom thing, and return its name in programs; a character that no name has becomes _ there, as in that
    of a lambda."""
    plain = re.sub(r"[^\w.()]", "_", name, flags=re.ASCII)[:60]
    called = f"{plain if OWN_NAME.fullmatch(f'{plain}:{digest}') else f'_{plain[:59]}'}:{digest}"
    OWN_THINGS.setdefault(called, thing)
    return called


def find_named(called: str, kind: type[Thing]) -> Thing:
    """Return the custom thing that has this name in programs, if it is of this kind. Raises ValueError for a name that
    this process has not declared."""
    if isinstance(thing := OWN_THINGS.get(called), kind):
        return thing
    raise ValueError(f"{called.partition(':')[0]!r:.80} is user-defined and not declared in this process")


def is_own_name(word: object) -> bool:
    """True for a text of the form of custom names, which need not be declared."""
    return isinstance(word, str) and bool(OWN_NAME.fullmatch(word))


def list_own_names(attributes: Mapping[str, object]) -> list[str]:
    """List the names of custom things in a step's attributes, each once."""
    texts = [value for value in attributes.values() if isinstance(value, str) and ":" in value]
    return [*dict.fromkeys(match[0] for text in texts for match in OWN_NAME.finditer(text))]


def refuse_collisions(called: Iterable[str], ours: Mapping[str, str]) -> None:
    """Raise InputError for a custom thing that has the name of one of opmatrix, as readers could take it for that
    one."""
    for full_name in called:
        if (name := full_name.partition(":")[0]) in ours:
            raise InputError(
                f"not saved: the user-defined {name} has the name of a {ours[name]} of opmatrix: rename it"
            )
