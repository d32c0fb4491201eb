"""Well-known models as they were published: configurations without weights, a table (opmatrix/models/known.json). A
configuration is what a family takes; what programs of it would take is planned like that of any other
(`rewrites.search.planned.planned`)."""
import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.models.config import Settings

FILE = Path(__file__).with_suffix(".json")


class KnownModel(NamedTuple):
    """A published model: where its sizes stand, how many parameters it was said to have, in the words that said so,
    what of it is outside of the operator, and the configuration that its family takes. `activated`: how many parameters
    it was said that a token reads, where these are fewer. `instead`: what the operator has in place of what was
    published, and how many parameters `more` that is."""
    source: str
    published: str
    outside: str
    config: Settings
    activated: str = ""
    instead: str = ""
    more: int = 0


@cache
def load_known() -> dict[str, KnownModel]:
    """The models of the table, by name."""
    return {name: KnownModel(**said) for name, said in json.loads(FILE.read_text("utf-8")).items()}


def names() -> tuple[str, ...]:
    """What the models are called, families together, the smaller ones first."""
    return tuple(load_known())


def is_known(name: str) -> bool:
    """Whether a model of the table is called so, in any case of letters."""
    return name.lower() in load_known()


def find_known(name: str) -> KnownModel:
    """The model of that name, in any case of letters. Raises InputError, which names those there are."""
    if is_known(name): return load_known()[name.lower()]
    raise InputError(f"{name}: no well-known model is called so; {suggest_name(name.lower(), names())}there are "
                     f"{', '.join(names())}; of any other give its config.json")


def configuration(name: str) -> Settings:
    """The configuration of a well-known model, as `promised`, `tensors` and `planned` take it; a copy. Raises
    InputError for a name that there is not."""
    return deepcopy(find_known(name).config)
