"""Scoring: the way in which a model with a head scores texts or pairs of texts: its labels, the activation of the
scores, and whether it is told which text of a pair a token is of. Declared as data, so that a program stores it as
JSON."""

import re
from dataclasses import dataclass

import numpy as np

from formats.core.activation import ACTIVATIONS
from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.pooling import check_text, expect, truth
from opmatrix.inference.scores.pair_template import PairTemplate

IDENTITY = "identity"
# classes of torch.nn that files name, with the activations that they are
TORCH_CLASSES = {
    "Identity": IDENTITY,
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Softplus": "softplus",
    "ELU": "elu",
}


@dataclass(frozen=True)
class Scoring:
    """The labels that are scored, the activation of their scores, and, in `kinds`, whether tokens of the second text of
    a pair are of another kind than those of the first. `template`: the text that a pair is put into, if there is
    one."""

    labels: tuple[str, ...]
    activation: str = IDENTITY
    kinds: bool = False
    template: PairTemplate | None = None

    def activate(self, scores: Floats) -> Floats:
        """Return scores (S, labels) behind the activation."""
        return apply_activation(self.activation, scores)

    def described(self) -> dict[str, object]:
        """Return the scoring as JSON, without an entry for a template if there is none, as in earlier versions."""
        entries = {"labels": [*self.labels], "activation": self.activation, "kinds": self.kinds}
        return entries if self.template is None else entries | {"template": self.template.described()}

    @classmethod
    def parsed(cls, value: object, where: str) -> "Scoring | None":
        """Return the scoring that `described` has written; None for None. Raises InputError that names the entry."""
        if value is None:
            return None
        names = [*cls.__dataclass_fields__]
        expect(
            isinstance(value, dict) and {*names} - {"template"} <= value.keys() <= {*names},
            where,
            value,
            f"an object of {', '.join(names)}",
        )
        assert isinstance(value, dict)
        labels, activation = value["labels"], value["activation"]
        expect(isinstance(labels, list) and bool(labels), f"{where}: labels", labels, "a list of names")
        known = activation in TORCH_CLASSES.values()
        expect(known, f"{where}: activation", activation, f"of {', '.join(TORCH_CLASSES.values())}")
        texts = tuple(check_text(label, f"{where}: labels") for label in labels)
        template = PairTemplate.parsed(value.get("template"), f"{where}: template")
        return cls(texts, activation, truth(value["kinds"], f"{where}: kinds"), template)


def apply_activation(name: str, scores: Floats) -> Floats:
    """Return scores behind the activation of that name, computed in float64 and rounded once."""
    if name == IDENTITY:
        return scores
    activated: Floats = ACTIVATIONS[name].function(scores.astype(np.float64)).astype(scores.dtype)
    return activated


def torch_activation(value: object, where: str) -> str:
    """Return the activation that a file names by its class of torch.nn. No class is imported. Raises InputError for any
    other value."""
    named = isinstance(value, str) and re.fullmatch(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)", value)
    if named and named[1] in TORCH_CLASSES:
        return TORCH_CLASSES[named[1]]
    raise InputError(
        f"{where} is {value!r:.80}: it is named, and never run: supported are torch.nn's {', '.join(TORCH_CLASSES)}"
    )
