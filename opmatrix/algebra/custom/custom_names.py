"""What programs and files call a thing of one's own: its name, and a digest of what it computes. Two of one name are
two, and one that was changed is another."""
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from formats.core.errors import InputError

DIGITS_OF_DIGEST = 16
OWN_NAME = re.compile(rf"([^\W\d][\w.()]{{0,59}}):([0-9a-f]{{{DIGITS_OF_DIGEST}}})", re.ASCII)
OWN_THINGS: dict[str, object] = {}                          # by name and digest: what this process declared or wrote
Thing = TypeVar("Thing")


def enter_own(name: str, digest: str, thing: object) -> str:
    """The name of a thing in programs; a sign that no name has is _ there, as in that of a lambda."""
    plain = re.sub(r"[^\w.()]", "_", name, flags=re.ASCII)[:60]
    called = f"{plain if OWN_NAME.fullmatch(f'{plain}:{digest}') else f'_{plain[:59]}'}:{digest}"
    OWN_THINGS.setdefault(called, thing)
    return called


def find_named(called: str, kind: type[Thing]) -> Thing:
    """The thing of one's own that a program calls so, where it is of this kind. ValueError for one that nobody in this
    process declared."""
    if isinstance(found := OWN_THINGS.get(called), kind): return found
    raise ValueError(f"{called.partition(':')[0]!r:.80} is one's own, and nobody has declared it here")


def is_own_name(word: object) -> bool: return isinstance(word, str) and bool(OWN_NAME.fullmatch(word))


def list_own_names(attributes: Mapping[str, object]) -> list[str]:
    """What a step's attributes call things of one's own, each once."""
    texts = [each for each in attributes.values() if isinstance(each, str) and ":" in each]
    return [*dict.fromkeys(found[0] for text in texts for found in OWN_NAME.finditer(text))]


def refuse_collisions(called: Iterable[str], ours: Mapping[str, str]) -> None:
    """Raises InputError for a thing of one's own that is called as one of opmatrix's, of which it could be taken for
    one where names are read."""
    for each in called:
        if (name := each.partition(":")[0]) in ours:
            raise InputError(f"not saved: {name} is one's own, and opmatrix has a {ours[name]} of that name: give "
                             "yours another name")
