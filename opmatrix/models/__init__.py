"""Model families: a config and the tensors of a checkpoint in, an operator out."""
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from opmatrix.data import Data, Promised
from opmatrix.errors import InputError
from opmatrix.models.bert import bert
from opmatrix.models.config import one_of, settings
from opmatrix.models.transformer import transformer
from opmatrix.term import Operator

__all__ = ["FAMILIES", "build", "promised"]


class At(Protocol):
    """Gives the array that a checkpoint calls `name`, of that shape."""
    def __call__(self, name: str, *shape: int) -> Data: ...


FAMILIES: dict[str, Callable[[Mapping[str, Any], At], Operator]] = {
    "bert": bert, "transformer": transformer}               # by the config's model_type


def check(config: Mapping[str, Any]) -> str:
    """The family of a config. Raises InputError where it names none that is known, lacks a key, or says what the
    family does not allow."""
    family: str = settings(config, {"model_type": one_of(FAMILIES)})["model_type"]
    settings(config, getattr(FAMILIES[family], "keys", {}))
    return family


def build(config: Mapping[str, Any], at: At) -> Operator:
    """The model of a config as an operator, from one-hot tokens to features. Raises InputError as `check` does, and where
    sizes do not divide one another."""
    try: return FAMILIES[check(config)](config, at)
    except KeyError as error: raise InputError(f"config: {error} is missing") from error


def promised(config: Mapping[str, Any]) -> Operator:
    """The model of a config with weights of which only names and shapes are known: for `rewrites.planned.planned`."""
    return build(config, lambda name, *shape: Promised(name, shape))


def tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor that the model of a config is made of."""
    found: dict[str, tuple[int, ...]] = {}

    def at(name: str, *shape: int) -> Data:
        found[name] = shape
        return Promised(name, shape)

    build(config, at)
    return found
