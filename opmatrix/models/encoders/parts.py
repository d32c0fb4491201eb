"""The parts that encoders are made of: products and norms by their names in files, embeddings, attention with a bias
by distance."""

from typing import NamedTuple

from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import affine, cols, const, diag, given, heads, layernorm, product, weight
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import LiveSize, divides, quotient
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import ArraySource, Settings, wrong


class EncoderParts(NamedTuple):
    """The arrays of a checkpoint, from which parts are built by their names in files; `eps` is that of its norms."""

    at: ArraySource
    eps: float

    def plain(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W of an array that files store as it is, (inputs, outputs)."""
        return weight(self.at(f"{name}.weight", n, p))

    def matrix(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W; files store W as (outputs, inputs)."""
        return weight(self.at(f"{name}.weight", p, n).T)

    def linear(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W + b; files store W as (outputs, inputs)."""
        return affine(self.at(f"{name}.weight", p, n).T, self.at(f"{name}.bias", p))

    def linear_if(self, biased: bool, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W + b, or x @ W where files hold no bias."""
        return self.linear(name, n, p) if biased else self.matrix(name, n, p)

    def norm(self, name: str, n: LiveSize) -> Operator:
        """Build a layer norm with gain and shift."""
        return layernorm(self.eps) @ diag(self.at(f"{name}.weight", n)) + const(self.at(f"{name}.bias", n))

    def norm_unshifted(self, name: str, n: LiveSize) -> Operator:
        """Build a layer norm with a gain alone."""
        return layernorm(self.eps) @ diag(self.at(f"{name}.weight", n))

    def norm_if(self, shifted: bool, name: str, n: LiveSize) -> Operator:
        """Build a layer norm with a gain, and a shift if files hold one."""
        return self.norm(name, n) if shifted else self.norm_unshifted(name, n)


def attention_nearby(Q: Operator, K: Operator, V: Operator, h: LiveSize, near: Operator) -> Operator:
    """Build attention within sequences whose scores, behind their division by √d, have a bias by distance: Press et al.
    2022, section 3; Song et al. 2020."""

    def mixed(x: Value) -> Value:
        """Attend: queries, keys and values by heads, then heads side by side."""
        q, k, v = (x @ W @ heads(h) for W in (Q, K, V))
        attended: Value = product(q @ k.T * q.cols**-0.5 + near, v, over=softmax, where=sequence) @ heads(h).T
        return attended

    return formula(mixed)


def packed_products(packed: Operator, count: int, n: LiveSize) -> list[Operator]:
    """Return the products that files store as one: its columns, n of them for each of `count` products."""
    return [packed @ cols(share * n, (share + 1) * n, count * n) for share in range(count)]


def words_and_kinds(config: Settings, parts: EncoderParts, norm: str) -> Operator:
    """Build embeddings of tokens and of kinds, if there are any, behind the norm of this name. Positions have no
    table."""
    n, kinds = config["hidden_size"], config["type_vocab_size"]
    embed = parts.plain("embeddings.word_embeddings", config["vocab_size"], n)
    if kinds:
        embed = embed + given("kinds", kinds) @ parts.plain("embeddings.token_type_embeddings", kinds, n)
    return embed @ parts.norm(norm, n)


def head_columns(config: Settings) -> LiveSize:
    """Return the columns of a head: `head_dim`, or a share of hidden_size for each head. Raises InputError where heads
    do not divide it."""
    n, h = config["hidden_size"], config["num_attention_heads"]
    if not divides(h, n):
        raise wrong("num_attention_heads", h, f"a divisor of hidden_size, {n}")
    return config.get("head_dim") or quotient(n, h)
