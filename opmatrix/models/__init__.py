"""Model families: a config and the tensors of a checkpoint in, an operator out."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import capped, pick, weight
from opmatrix.algebra.shapes import LiveSize, as_int, expression
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Family, Settings, TensorNames, one_of, refuse_names, settings
from opmatrix.models.decoders.cohere import cohere, cohere2
from opmatrix.models.decoders.gemma2 import gemma2
from opmatrix.models.decoders.gpt_oss import gpt_oss
from opmatrix.models.decoders.granite import granite
from opmatrix.models.decoders.olmo import olmo2
from opmatrix.models.decoders.phi import phi3
from opmatrix.models.decoders.smollm import smollm3
from opmatrix.models.deepseek import deepseek_v2, deepseek_v3
from opmatrix.models.encoders.bert import bert, distilbert, roberta
from opmatrix.models.encoders.deberta import deberta_v2
from opmatrix.models.encoders.gemma import gemma3_text
from opmatrix.models.encoders.gte import gte, gte_published
from opmatrix.models.encoders.jina import jina_bert, jina_bert_normed
from opmatrix.models.encoders.modernbert import modernbert
from opmatrix.models.encoders.mpnet import mpnet
from opmatrix.models.encoders.narrow_tables import albert, electra
from opmatrix.models.encoders.nomic import nomic_bert
from opmatrix.models.encoders.t5 import t5
from opmatrix.models.experts import read_shares
from opmatrix.models.gpt2 import bloom, gpt2
from opmatrix.models.llama import llama
from opmatrix.models.mistral import mistral, mixtral
from opmatrix.models.pangu import pangu_alpha, pangu_embedded, pangu_pro
from opmatrix.models.pr_moe import pr_moe
from opmatrix.models.qwen import qwen2, qwen3
from opmatrix.models.qwen_moe import qwen2_moe, qwen3_moe
from opmatrix.models.rope import with_few_positions
from opmatrix.models.scans.mamba import mamba
from opmatrix.models.scans.mamba2 import mamba2
from opmatrix.models.scans.qwen3_next import qwen3_5_moe_text, qwen3_5_text, qwen3_next
from opmatrix.models.transformer import transformer

__all__ = ["FAMILIES", "build", "promised"]


FAMILIES: dict[str, Family] = {  # families by the config's model_type
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "distilbert": distilbert,
    "electra": electra,
    "albert": albert,
    "mpnet": mpnet,
    "deberta-v2": deberta_v2,
    "modernbert": modernbert,
    "jina_bert": jina_bert,
    "jina_bert_normed": jina_bert_normed,
    "nomic_bert": nomic_bert,
    "gte": gte,
    "new": gte_published,
    "gemma3_text": gemma3_text,
    "gpt2": gpt2,
    "gpt_pangu": pangu_alpha,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "cohere": cohere,
    "cohere2": cohere2,
    "gemma2": gemma2,
    "gpt_oss": gpt_oss,
    "granite": granite,
    "olmo2": olmo2,
    "phi3": phi3,
    "smollm3": smollm3,
    "PanguEmbedded": pangu_embedded,
    "transformer": transformer,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "PanguProMoE": pangu_pro,
    "pr_moe": pr_moe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "bloom": bloom,
    "t5": t5,
    "mamba": mamba,
    "mamba2": mamba2,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_5_moe_text": qwen3_5_moe_text,
}


SIZES = dict(
    vocab_size="v",
    hidden_size="h",
    intermediate_size="f",
    num_attention_heads="a",
    num_key_value_heads="k",
    head_dim="d",
    max_position_embeddings="p",
    num_experts="e",
    moe_intermediate_size="m",
    shared_expert_intermediate_size="u",
)  # names of sizes in formulas


def family_of(config: Settings) -> str:
    """Return the family of a config. Raises InputError where it names no known family, lacks a key, or has a value that
    the family does not allow."""
    family = named_family(config)
    settings(config, getattr(FAMILIES[family], "keys", {}))
    return family


def named_family(config: Settings) -> str:
    """Return the family that a config names. Raises InputError where it names none that is known."""
    family: str = settings(config, {"model_type": one_of(FAMILIES)})["model_type"]
    return family


def older_names(config: Settings) -> dict[str, str]:
    """Return the keys of a config's family that had another name in files once, with their older names."""
    keys = getattr(FAMILIES[named_family(config)], "keys", {})
    return {key.called or name: key.older for name, key in keys.items() if key.older}


def check(config: Settings) -> str:
    """Return the family of a config whose sizes are all numbers. Raises InputError as `family_of` does, and for a
    name."""
    refuse_names(config, getattr(FAMILIES[family := family_of(config)], "keys", {}))
    return family


def normalise_config(config: Settings) -> dict[str, Any]:
    """Return the settings of a config by the common names, whatever its family calls them. Raises InputError as
    `family_of` does."""
    return settings(config, getattr(FAMILIES[family_of(config)], "keys", {}))


def spelling(config: Settings, name: str) -> str:
    """Return the name, in a config's family, of a setting with this common name. Raises InputError as `family_of`
    does."""
    key = getattr(FAMILIES[family_of(config)], "keys", {}).get(name)
    return name if key is None else key.called or name


def layout(config: Settings) -> TensorNames:
    """Return the names of tensors in the files of a config's family."""
    names: TensorNames = getattr(FAMILIES[family_of(config)], "layout", TensorNames())
    return names


def build(config: Settings, at: ArraySource) -> Operator:
    """Build the model of a config as an operator, from one-hot tokens to features. Raises InputError as `family_of`
    does, and where sizes do not divide one another."""
    try:
        return FAMILIES[family_of(config)](config, at)
    except KeyError as error:
        raise InputError(f"config: {error} is missing") from error


def head(config: Settings, at: ArraySource, stored: bool = False) -> Operator:
    """Build the operator from features to a score for each token of the vocabulary, by the table of tokens where it is
    tied (Press, Wolf 2017). `stored`: files hold a matrix for the head, whatever the config says of ties."""
    sizes, names = normalise_config(config), layout(config)
    tied = sizes["tie_word_embeddings"] and not stored
    scores: Operator = weight(at(names.table if tied else names.head, sizes["vocab_size"], sizes["hidden_size"]).T)
    return finish_scores(scores, sizes, names)


def finish_scores(scores: Operator, sizes: Settings, names: TensorNames) -> Operator:
    """Return scores of tokens with what a family does to them behind their product."""
    if names.divided:
        scores = scores * (1 / sizes[names.divided])
    if names.multiplied:
        scores = scores * sizes[names.multiplied]
    cap = sizes[names.capped] if names.capped else None
    return scores if cap is None else capped(scores, cap)


def answer(config: Settings, at: ArraySource, stored: bool, yes: int, no: int | None) -> Operator:
    """Build the operator from features to one score a text: that of the token `yes` behind its last one, or of a
    decoder's first step, less that of `no`. Only these columns of the head are read. `stored`: as in `head`."""
    sizes, names = normalise_config(config), layout(config)
    tied = sizes["tie_word_embeddings"] and not stored
    table = at(names.table if tied else names.answering, sizes["vocab_size"], sizes["hidden_size"])
    columns = table.array[[yes] if no is None else [yes, no]].T
    row = names.decoder.build(sizes, at) if names.decoder else pick("last")
    scored = row @ finish_scores(weight(Data(columns, "answer")), sizes, names)
    return scored if no is None else scored @ weight(np.array([[1.0], [-1.0]], np.float32))


def classify(config: Settings, at: ArraySource, labels: int) -> Operator:
    """Build the operator from features to a score for each label, a row a text. Raises InputError for a family without
    a head that scores texts."""
    classifier = layout(config).classifier
    if classifier is None:
        raise InputError(f"config: {family_of(config)} has no head that scores texts")
    return classifier(normalise_config(config), at, labels)


def fill_masks(config: Settings, at: ArraySource, stored: bool) -> Operator:
    """Build the operator from features to a score for each token of the vocabulary, in place of a masked one. `stored`:
    files hold a matrix for it beside the table of tokens. Raises InputError for a family without such a head."""
    masked = layout(config).masked
    if masked is None:
        raise InputError(f"config: {family_of(config)} has no head here that scores masked tokens")
    return masked.build(normalise_config(config), at, stored)


def promised(config: Settings, scores: bool = False) -> Operator:
    """The model of a config with weights of which only names and shapes are known: for
    `rewrites.search.planned.planned`. With `scores` the head of its vocabulary is behind it, which for an encoder is
    that of masked tokens. A name stands for every number:

        >>> mlp = dict(hidden_size="h", intermediate_size="f", num_attention_heads="a", num_key_value_heads="g")
        >>> model = promised(mlp | dict(model_type="llama", vocab_size="v", max_position_embeddings="p",
        ...                             num_hidden_layers=2))
        >>> model.shape
        (v, h)"""

    def at(name: str, *shape: LiveSize) -> Data:
        """Promise an array of this name and shape."""
        return Promised(name, shape)

    if not scores:
        return build(config, at)
    names = layout(config)
    if not names.head and names.masked is None:
        raise InputError(f"config: {family_of(config)} has no head that scores a vocabulary")
    return build(config, at) @ (head(config, at) if names.head else fill_masks(config, at, stored=False))


def name_sizes(config: Settings) -> dict[str, Any]:
    """Return a config with names for its sizes, those of SIZES; sizes that are equal where they must be have one
    name."""
    keys, named = getattr(FAMILIES[family_of(config)], "keys", {}), dict(config)
    heads = normalise_config(config).get("num_attention_heads")
    for size, name in SIZES.items():
        called = keys[size].called or size if size in keys else size
        if named.get(called) is None or not keys[size].live:
            continue
        alike = size == "num_key_value_heads" and named[called] == heads
        named[called] = SIZES["num_attention_heads"] if alike else name
    return named


def tensors(config: Settings) -> dict[str, tuple[LiveSize, ...]]:
    """Return the name and shape of every tensor that the model of a config is made of."""
    return ask_for(lambda at: build(config, at))


def parameters(config: Settings) -> int:
    """Count the parameters of the model of a config: those of its operator, and of the head where it is a matrix of its
    own. A pooler and other parts on top are not counted."""
    return sum(map(prod, ask_for(lambda at: with_head(with_few_positions(config), at)).values()))


def activated(config: Settings) -> LiveSize:
    """Count the parameters of the model of a config that are active for one row: of experts those that it is routed to,
    of everything else all, tables of tokens and heads too, as publications count."""
    models = list[Operator]()
    shapes = ask_for(lambda at: models.append(with_head(with_few_positions(config), at)))
    count = sum(map(prod, shapes.values()), expression(0))
    for data, share in read_shares(*models).items():
        if (data.name or "").partition("[")[0] in shapes:  # a matrix, or rows that were cut of one
            count -= (1 - share) * prod(data.shape)
    return as_int(count)


def with_head(config: Settings, at: ArraySource) -> Operator:
    """Build the model, and the head of its vocabulary behind it where it has one."""
    model = build(config, at)
    return model @ head(config, at) if layout(config).head else model


def ask_for(made: Callable[[ArraySource], object]) -> dict[str, tuple[LiveSize, ...]]:
    """Return the name and shape of every tensor that `made` requests; each is promised."""
    shapes: dict[str, tuple[LiveSize, ...]] = {}

    def at(name: str, *shape: LiveSize) -> Data:
        """Note the shape that is requested, and promise the array."""
        shapes[name] = shape
        return Promised(name, shape)

    made(at)
    return shapes
