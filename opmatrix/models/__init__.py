"""Model families: a config and the tensors of a checkpoint in, an operator out."""
from typing import Any

from formats.core.errors import InputError
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import weight
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models.bert import bert, distilbert, roberta
from opmatrix.models.config import ArraySource, Family, Settings, TensorNames, one_of, refuse_names, settings
from opmatrix.models.gpt2 import gpt2
from opmatrix.models.llama import llama
from opmatrix.models.mistral import mistral
from opmatrix.models.pangu import pangu_alpha, pangu_embedded
from opmatrix.models.qwen import qwen2, qwen3
from opmatrix.models.transformer import transformer

__all__ = ["FAMILIES", "build", "promised"]


FAMILIES: dict[str, Family] = {        # by the config's model_type
    "bert": bert, "roberta": roberta, "distilbert": distilbert, "gpt2": gpt2, "gpt_pangu": pangu_alpha, "llama": llama,
    "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "PanguEmbedded": pangu_embedded, "transformer": transformer}


def family_of(config: Settings) -> str:
    """The family of a config. Raises InputError where it names none that is known, lacks a key, or says what the
    family does not allow."""
    family: str = settings(config, {"model_type": one_of(FAMILIES)})["model_type"]
    settings(config, getattr(FAMILIES[family], "keys", {}))
    return family


def check(config: Settings) -> str:
    """The family of a config whose sizes are all numbers. Raises InputError as `family_of` does, and for a name."""
    refuse_names(config, getattr(FAMILIES[family := family_of(config)], "keys", {}))
    return family


def normalise_config(config: Settings) -> dict[str, Any]:
    """What a config says, by everybody's names, whatever its family calls things. Raises InputError as `family_of`
    does."""
    return settings(config, getattr(FAMILIES[family_of(config)], "keys", {}))


def layout(config: Settings) -> TensorNames:
    """What the files of a config's family are called."""
    found: TensorNames = getattr(FAMILIES[family_of(config)], "layout", TensorNames())
    return found


def build(config: Settings, at: ArraySource) -> Operator:
    """The model of a config as an operator, from one-hot tokens to features. Raises InputError as `family_of` does, and
    where sizes do not divide one another."""
    try: return FAMILIES[family_of(config)](config, at)
    except KeyError as error: raise InputError(f"config: {error} is missing") from error


def head(config: Settings, at: ArraySource) -> Operator:
    """From features to a score for each token of the vocabulary, by the table of tokens where it is tied (Press, Wolf
    2017)."""
    sizes, names = normalise_config(config), layout(config)
    table = at(names.table if sizes["tie_word_embeddings"] else names.head, sizes["vocab_size"], sizes["hidden_size"])
    found: Operator = weight(table.T)
    return found


def promised(config: Settings) -> Operator:
    """The model of a config with weights of which only names and shapes are known: for
    `rewrites.compiler.planned.planned`. A name stands for every number:

        >>> mlp = dict(hidden_size="h", intermediate_size="f", num_attention_heads="a", num_key_value_heads="g")
        >>> model = promised(mlp | dict(model_type="llama", vocab_size="v", max_position_embeddings="p",
        ...                             num_hidden_layers=2))
        >>> model.shape
        (v, h)"""
    return build(config, lambda name, *shape: Promised(name, shape))


def tensors(config: Settings) -> dict[str, tuple[LiveSize, ...]]:
    """The name and shape of every tensor that the model of a config is made of."""
    found: dict[str, tuple[LiveSize, ...]] = {}

    def at(name: str, *shape: LiveSize) -> Data:
        found[name] = shape
        return Promised(name, shape)

    build(config, at)
    return found
