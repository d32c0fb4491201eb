"""Latent attention (MLA): keys and values of all heads are products of one narrow row a token, beside one rotated key
that all heads share (DeepSeek-AI 2024, DeepSeek-V2, section 2.1 and appendix C)."""

from typing import NamedTuple

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import I, affine, diag, heads, product, repeat, rmsnorm, row, turn, weight
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import ArraySource, Key, Settings, dimension, flag, optional, real, settings

LATENT_EPS = 1e-6  # of the norms of compressed rows, whatever the config says of others
PAIRED_COLUMNS = Key("an even whole number", lambda said: type(said) is int and said > 0 and said % 2 == 0)
LATENT_KEYS = dict(
    kv_lora_rank=dimension(),
    q_lora_rank=optional(dimension()),
    qk_nope_head_dim=dimension(),
    qk_rope_head_dim=PAIRED_COLUMNS,
    v_head_dim=dimension(),
    rope_interleave=flag(True),
    kv_b_by_head=flag(False),  # GGUF files may have a matrix of keys and one of values for each head
)
SCORE_KEYS = dict(factor=real(1, 1e6, 1.0), mscale_all_dim=optional(real(0, 1e6)))


class CutRows(NamedTuple):
    """Rows that a stored matrix has for each head: `size` of them from `low` on, under a name. `paired`: neighbours
    rotate together, so the first of each pair are put before the second."""

    name: str
    low: LiveSize
    size: LiveSize
    paired: bool = False

    def cut(self, stored: Data, count: LiveSize) -> Data:
        """Return these rows of each of `count` heads, or promise them."""
        name, shape = f"{stored.name}[{self.name}]", (count * self.size, *stored.shape[1:])
        if isinstance(stored, Promised):
            return Promised(name, shape)
        of_heads = stored.array.reshape(count, -1, *stored.shape[1:])
        rows = of_heads[:, self.low : self.low + self.size]
        if self.paired:
            rows = np.concatenate([rows[:, ::2], rows[:, 1::2]], 1)
        return Data(rows.reshape(shape), name)


def join_heads(stored: Data) -> Data:
    """Return the matrices of heads one below another, or promise them."""
    source = stored.base or stored
    name, shape = f"{source.name}[rows]", (stored.shape[0] * stored.shape[1], stored.shape[2])
    if isinstance(source, Promised):
        return Promised(name, shape)
    return Data(stored.array.reshape(shape), name)


class LatentParts(NamedTuple):
    """The operators of latent attention from its input: queries of each head, columns that stay (`stays`) and that turn
    (`turns`); the latent row (`latent`) and the key that all heads share (`shared`); and from the latent row the keys
    and the values of each head."""

    stays: Operator
    turns: Operator
    latent: Operator
    shared: Operator
    keys: Operator
    values: Operator

    def attention(self, h: LiveSize, by: float, where: Pattern) -> Operator:
        """Build attention of h heads whose scores are multiplied by `by`: DeepSeek-V2, equations 40 to 46."""
        queries = row(self.stays, self.turns)
        keys = row(self.latent @ repeat(1) @ self.keys, self.shared @ repeat(1) @ repeat(h))
        scores = product(queries, turn(keys)) * by
        mixed: Operator = product(scores, self.latent @ self.values, over=softmax, where=where) @ heads(h).T
        return mixed


class LatentAttention(NamedTuple):
    """Latent attention of a config, built by the names of a checkpoint; `rotation`: that of the columns that turn, the
    same in all layers."""

    config: Settings
    at: ArraySource
    where: Pattern
    rotation: Operator

    def norm(self, name: str, n: LiveSize) -> Operator:
        """Build the norm of compressed rows, with a gain."""
        return rmsnorm(LATENT_EPS) @ diag(self.at(f"{name}.weight", n))

    def linear(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W, with a bias if the config has them; files store W as (outputs, inputs)."""
        W = self.at(f"{name}.weight", p, n).T
        return affine(W, self.at(f"{name}.bias", p)) if self.config["attention_bias"] else weight(W)

    def compressed(self, name: str) -> tuple[Operator, LiveSize, str]:
        """Build the narrow product that queries begin with, if there is one; return it, its columns, and the name of
        the product behind it."""
        n, rank = self.config["hidden_size"], self.config["q_lora_rank"]
        if rank is None:
            return I, n, f"{name}.q_proj.weight"
        down = self.linear(f"{name}.q_a_proj", n, rank) @ self.norm(f"{name}.q_a_layernorm", rank)
        return down, rank, f"{name}.q_b_proj.weight"

    def shared(self, name: str, columns: LiveSize, *parts: CutRows) -> list[Operator]:
        """Build the products of what all heads share, cut from one of so many columns."""
        W = self.at(f"{name}.weight", columns, self.config["hidden_size"])
        products = [weight(part.cut(W, 1).T) for part in parts]
        if not self.config["attention_bias"]:
            return products
        bias = self.at(f"{name}.bias", columns)
        return [affine(W, part.cut(bias, 1)) for W, part in zip(products, parts, strict=True)]

    def expanding(self, name: str) -> tuple[Data, Data]:
        """Return the rows that make keys and values of each head from a latent row: (heads · columns, latent)."""
        h, rank, stays, values = (
            self.config[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        )
        if self.config["kv_b_by_head"]:
            keys = self.at(f"{name}.k_b_proj.weight", h, rank, stays)
            return join_heads(keys.T), join_heads(self.at(f"{name}.v_b_proj.weight", h, values, rank))
        stored = self.at(f"{name}.kv_b_proj.weight", h * (stays + values), rank)
        return CutRows("keys", 0, stays).cut(stored, h), CutRows("values", stays, values).cut(stored, h)

    def build(self, name: str) -> Operator:
        """Build the attention of this name."""
        h, rank, stays, turns, values = (
            self.config[key]
            for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        turning = CutRows("turns", stays, turns, self.config["rope_interleave"])
        narrow, width, wide = self.compressed(name)
        latent, shared = self.shared(
            f"{name}.kv_a_proj_with_mqa", rank + turns, CutRows("latent", 0, rank), turning._replace(low=rank)
        )
        W = self.at(wide, h * (stays + turns), width)
        rows = CutRows("stays", 0, stays).cut(W, h), turning.cut(W, h), *self.expanding(name)
        queries, turned, keys, expanded = (weight(stored.T) @ heads(h) for stored in rows)
        parts = LatentParts(
            narrow @ queries,
            narrow @ turned @ self.rotation,
            latent @ self.norm(f"{name}.kv_a_layernorm", rank),
            shared @ self.rotation,
            keys,
            expanded,
        )
        by = (stays + turns) ** -0.5 * score_factor(self.config)
        mixed = parts.attention(h, by, self.where)
        return mixed @ self.linear(f"{name}.o_proj", h * values, self.config["hidden_size"])


def score_factor(config: Settings) -> float:
    """Return the square of the factor by which YaRN makes queries and keys larger, `mscale_all_dim`; 1 without it."""
    stated = rope.rotation_settings(config)
    if stated["rope_type"] in (None, "default"):
        return 1.0
    read = settings(stated, SCORE_KEYS)
    return rope.enlarged(read["factor"], read["mscale_all_dim"] or 0.0) ** 2


def latent_positions(config: Settings) -> int:
    """Return how many positions the tables of a model hold."""
    columns = config.get("qk_rope_head_dim") or config.get("head_dim")
    return rope.held_positions({**config} | dict(head_dim=columns))
