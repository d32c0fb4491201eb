"""The signs by which files tell their family where `model_type` does not: the classes of published code that they name,
which is never run, the kind of positions, and names of tensors."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.models.config import Settings

TASK = re.compile(r"(?:PreTrained|LMHead)?Model$|For[A-Z]\w*$")  # the end of a class's name, behind its family's word


class FamilySign(NamedTuple):
    """The signs of a family: the word that its classes begin with, an entry of the config that says as much, and the
    ending of a tensor's name that only this one of several families of the word has."""

    word: str
    entry: tuple[str, str]
    tensor: str


FAMILY_SIGNS = {
    "jina_bert": FamilySign("JinaBert", ("position_embedding_type", "alibi"), ".mlp.gated_layers.weight"),
    "jina_bert_normed": FamilySign("JinaBert", ("position_embedding_type", "alibi"), ".mlp.up_gated_layer.weight"),
}


def tell_family(config: Settings, families: Collection[str], tensors: Callable[[], Collection[str]]) -> str | None:
    """Return the family that files are of by other signs than `model_type`, None where they have none. `tensors` lists
    the names of their tensors, where these decide. Raises InputError for code of the files' own that none of the
    families computes."""
    classes = published_classes(config)
    words = [TASK.sub("", name) for name in (*classes.values(), *architectures(config))]
    for family, sign in FAMILY_SIGNS.items():
        key, value = sign.entry
        likely = sign.word in words or config.get(key) == value
        if likely and any(name.endswith(sign.tensor) for name in tensors()):
            return family
    if not classes:
        return None
    known = {letters_of(family): family for family in families}
    place, name = next(iter(classes.items()))
    if letters_of(TASK.sub("", name)) in known:
        return known[letters_of(TASK.sub("", name))]
    raise InputError(
        f"config: auto_map names {place!r:.100}, code of the model's own, which is never run, and no family here "
        f"computes {name!r:.60}: take a model that transformers computes without trust_remote_code"
    )


def published_classes(config: Settings) -> dict[str, str]:
    """Return the places of models' classes in published code, each with the name of its class, AutoModel's first."""
    listed = config.get("auto_map")
    entries = listed if isinstance(listed, Mapping) else {}
    models = sorted(key for key in entries if str(key).startswith("AutoModel"))
    return {place: place.rpartition(".")[2] for place in (entries[key] for key in models) if isinstance(place, str)}


def architectures(config: Settings) -> list[str]:
    """Return the classes that a config names as those of its weights."""
    listed = config.get("architectures")
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []


def letters_of(name: str) -> str:
    """Return a name in small letters and figures alone."""
    return re.sub(r"[\W_]", "", name).lower()
