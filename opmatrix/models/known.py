"""Well-known models as they were published: configurations without weights, a table (opmatrix/models/known.json). A
configuration is the input of a family; the cost of its programs is planned like that of any other
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
    """A published model: the source of its sizes, its number of parameters in the words of the publication, the parts
    of it that are outside of the operator, and the configuration that its family takes. `activated`: the published
    number of parameters that a token reads, where these are fewer. `planned_only`: plans of devices take it, and no
    operator is the whole model."""

    source: str
    published: str
    outside: str
    config: Settings
    activated: str = ""
    planned_only: bool = False


@cache
def load_known() -> dict[str, KnownModel]:
    """Return the models of the table, by name."""
    return {name: KnownModel(**fields) for name, fields in json.loads(FILE.read_text("utf-8")).items()}


def names(planned_only: bool = False) -> tuple[str, ...]:
    """Return the names of the models, families together, the smaller ones first; or those of models that only plans
    take: decoders behind a tower, and encoders with a decoder."""
    return tuple(name for name, model in load_known().items() if model.planned_only == planned_only)


def is_known(name: str) -> bool:
    """True if a model of the table has this name, in any case of letters."""
    return name.lower() in load_known()


def find_known(name: str) -> KnownModel:
    """Return the model of that name, in any case of letters. Raises InputError, which lists the known names."""
    if is_known(name):
        return load_known()[name.lower()]
    raise InputError(
        f"{name}: there is no well-known model of this name; {suggest_name(name.lower(), load_known())}there are "
        f"{', '.join(load_known())}; for any other, give its config.json"
    )


def configuration(name: str) -> Settings:
    """Return the configuration of a well-known model, as `promised`, `tensors` and `planned` take it; a copy. Raises
    InputError for an unknown name."""
    return deepcopy(find_known(name).config)
