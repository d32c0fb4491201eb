"""Latent attention (MLA): keys and values of all heads are products of one narrow row a token, beside one rotated key
that all heads share (DeepSeek-AI 2024, DeepSeek-V2, section 2.1 and appendix C)."""

from math import log
from typing import NamedTuple

import numpy as np

from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import affine, cols, diag, heads, product, repeat, rmsnorm, row, turn, weight
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import ArraySource, Settings, dimension, flag, optional, whole, wrong

LATENT_EPS = 1e-6  # of the norms of compressed rows, whatever the config says of others
LATENT_KEYS = dict(
    kv_lora_rank=dimension(),
    q_lora_rank=optional(dimension()),
    qk_nope_head_dim=dimension(),
    qk_rope_head_dim=whole(),
    v_head_dim=dimension(),
    rope_interleave=flag(True),
)


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
        keys = row(self.latent @ self.keys, self.shared @ repeat(h))
        scores = product(queries, turn(keys)) * by
        mixed: Operator = product(scores, self.latent @ self.values, over=softmax, where=where) @ heads(h).T
        return mixed


class LatentAttention:
    """Builds latent attention of a config, by the names of a checkpoint."""

    def __init__(self, config: Settings, at: ArraySource, where: Pattern) -> None:
        self.config, self.at, self.where = config, at, where
        self.rank, self.stays, self.values = (
            config[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        )
        self.turning = config["qk_rope_head_dim"]
        if self.turning % 2:
            raise wrong("qk_rope_head_dim", self.turning, "even, as pairs of columns rotate")
        rotation = rope.rope({**config} | dict(head_dim=self.turning), self.turning)
        self.turned = pairs_apart(self.turning) @ rotation if config["rope_interleave"] else rotation

    def linear(self, name: str, n: LiveSize, p: LiveSize, biased: bool = False) -> Operator:
        """Build x @ W, with a bias if it is `biased`; files store W as (outputs, inputs)."""
        W = self.at(f"{name}.weight", p, n).T
        return affine(W, self.at(f"{name}.bias", p)) if biased else weight(W)

    def norm(self, name: str, n: LiveSize) -> Operator:
        """Build the norm of compressed rows, with a gain."""
        return rmsnorm(LATENT_EPS) @ diag(self.at(f"{name}.weight", n))

    def queries(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build the product of the queries, behind a narrow one where they are compressed."""
        if (rank := self.config["q_lora_rank"]) is None:
            return self.linear(f"{name}.q_proj", n, p)
        down = self.linear(f"{name}.q_a_proj", n, rank, self.config["attention_bias"])
        return down @ self.norm(f"{name}.q_a_layernorm", rank) @ self.linear(f"{name}.q_b_proj", rank, p)

    def __call__(self, name: str) -> Operator:
        """Build the attention of this name."""
        n, h, biased = (self.config[key] for key in ("hidden_size", "num_attention_heads", "attention_bias"))
        head, narrow, expanded = self.stays + self.turning, self.rank + self.turning, self.stays + self.values
        of_heads = self.queries(name, n, h * head) @ heads(h)
        compressed = self.linear(f"{name}.kv_a_proj_with_mqa", n, narrow, biased)
        up = self.linear(f"{name}.kv_b_proj", self.rank, h * expanded) @ heads(h)
        parts = LatentParts(
            of_heads @ cols(0, self.stays, head),
            of_heads @ cols(self.stays, head, head) @ self.turned,
            compressed @ cols(0, self.rank, narrow) @ self.norm(f"{name}.kv_a_layernorm", self.rank),
            compressed @ cols(self.rank, narrow, narrow) @ self.turned,
            up @ cols(0, self.stays, expanded),
            up @ cols(self.stays, expanded, expanded),
        )
        by = head**-0.5 * score_factor(self.config)
        return parts.attention(h, by, self.where) @ self.linear(f"{name}.o_proj", h * self.values, n, biased)


def pairs_apart(columns: int) -> Operator:
    """Return the matrix that puts the first columns of neighbouring pairs before the second ones: what rotates by
    pairs then rotates by halves."""
    return weight(np.eye(columns, dtype=np.float32)[:, np.r_[0:columns:2, 1:columns:2]])


def score_factor(config: Settings) -> float:
    """Return the square of the factor by which YaRN makes queries and keys larger, `mscale_all_dim`; 1 without it."""
    stated = rope.rotation_settings(config)
    by, factor = stated.get("mscale_all_dim"), stated.get("factor")
    if stated["rope_type"] in (None, "default") or not by or factor <= 1:
        return 1.0
    return float(0.1 * by * log(factor) + 1) ** 2


def held_positions(config: Settings) -> int:
    """Return how many positions the tables of a model hold."""
    columns = config.get("qk_rope_head_dim") or config.get("head_dim")
    return rope.held_positions({**config} | dict(head_dim=columns))
