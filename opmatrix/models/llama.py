"""LLaMA (Touvron et al. 2023), which SmolLM is too, and the parts that its descendants are made of."""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from operator import matmul
from typing import NamedTuple

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    attention_sunk,
    cols,
    const,
    diag,
    grouped,
    heads,
    layernorm,
    repeat,
    rmsnorm,
    weight,
)
from opmatrix.algebra.positions.patterns import Pattern, causal, sequence, window
from opmatrix.algebra.shapes import LiveSize, divides, quotient
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import (
    MODEL_SIZES,
    NOT_QUANTISED,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    dimension,
    flag,
    kinds_of_layers,
    layers,
    one_of,
    optional,
    real,
    wrong,
)

QKV, MLP = ("q", "k", "v"), ("gate", "up", "down")  # products that may add a row
GGUF_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{part}_exps": f"mlp.experts.{part}_proj" for part in MLP},
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in MLP},
}
GGUF = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    **{f"blk.#.{theirs}": f"layers.#.{ours}" for theirs, ours in GGUF_PARTS.items()},
}
LAYOUT = TensorNames(
    "model.",
    (),
    ("rotary_emb.inv_freq",),
    "embed_tokens.weight",
    "lm_head.weight",
    positions=rope.held_positions,
    gguf=GGUF,
)
PAIRED = LAYOUT._replace(permuted=("attn_q", "attn_k"))  # for GGUF files of LLaMA and of models under its name

LLAMA_KEYS = dict(
    **MODEL_SIZES,
    num_hidden_layers=layers(),
    num_key_value_heads=optional(dimension()),
    head_dim=optional(dimension()),
    rms_norm_eps=real(1e-20, 1, 1e-6),
    hidden_act=one_of(ACTIVATIONS, "silu"),
    tie_word_embeddings=flag(False),
    is_causal=flag(True),
    **rope.ROPE_KEYS,
    quantization_config=NOT_QUANTISED,
)


class DecoderForm(NamedTuple):
    """The form of a descendant's layers. `behind`: norms stand behind attention and the unit, not before;
    `normed_whole`: queries and keys are normed across all heads; `packed`: files hold queries, keys and values as one
    matrix, both sides of a gated unit as another. Factors of rows of tokens (`embedding`), of each part before it is
    added (`residual`), and of the scores of attention, None: one over the root of a head's columns. `turns`: the types
    of its rotation; `turned`: the layers that rotate, by number, None: all. `parallel`: attention and the unit read one
    norm, and their sum is added. `centred`: norms are layer norms without a shift. `normed_columns`: queries and keys
    are normed in every head, with a gain for each column of all heads. `sinks`: each head
    of attention has a sink, whose score files hold. `mixing` builds what stands in place of grouped attention, by its
    name."""

    behind: bool = False
    normed_whole: bool = False
    packed: bool = False
    embedding: float = 1.0
    residual: float = 1.0
    scores: float | None = None
    turns: rope.RopeTypes = rope.ROPE_TYPES
    turned: Callable[[int], bool] | None = None
    parallel: bool = False
    centred: bool = False
    normed_columns: bool = False
    sinks: bool = False
    mixing: Callable[[str], Operator] | None = None


@declares(PAIRED, **LLAMA_KEYS, attention_bias=flag(False), mlp_bias=flag(False))
def llama(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    return decoder(config, at, (*QKV, "o") * config["attention_bias"] + MLP * config["mlp_bias"])


def decoder(
    config: Settings,
    at: ArraySource,
    biased: Sequence[str] = (),
    normed: bool = False,
    where: Callable[[int], Pattern] | None = None,
    unit: Callable[[int, str], Operator] | None = None,
    form: DecoderForm = DecoderForm(),
) -> Operator:
    """Build layers of grouped attention with RoPE and of gated units, each behind a norm of roots. `biased` names the
    products that add a row; `normed`: queries and keys are normed, in every head; `where`: the pattern of layer l,
    if any looks no further than a window; `unit` builds the part of layer l that stands in place of a gated unit, by
    its name; `form`: what differs from LLaMA's layers."""
    n, act, mixing = config["hidden_size"], ACTIVATIONS[config["hidden_act"]], form.mixing
    unit_norm = (layernorm if form.centred else rmsnorm)(config["rms_norm_eps"])
    where = where or (lambda l: seen_within(None, config["is_causal"]))
    h, g, d = (1, 1, n) if mixing else grouped_sizes(config)
    rotation = I if mixing else rope.rope(config, d, form.turns)

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W, with a bias for the parts that have one; files store W as (outputs, inputs)."""
        W, part = at(f"{name}.weight", p, n).T, name.split(".")[-1].removesuffix("_proj")
        return affine(W, at(f"{name}.bias", p)) if part in biased else weight(W)

    def norm(name: str, n: LiveSize) -> Operator:
        """Build a norm with a gain."""
        return unit_norm @ diag(at(f"{name}.weight", n))

    def normed_heads(part: Operator, name: str, count: LiveSize) -> Operator:
        """Return a product of which each head is normed, and each column has a gain."""
        return part @ heads(count) @ unit_norm @ heads(count).T @ diag(at(f"{name}.weight", d * count))

    def projections(name: str) -> list[Operator]:
        """Build the products of queries, keys and values."""
        counts = {"q": h, "k": g, "v": g}
        if form.packed:
            sizes = [d * count for count in counts.values()]
            return cut_products(linear, f"{name}.qkv_proj", n, sizes)
        return [linear(f"{name}.{part}_proj", n, d * count) for part, count in counts.items()]

    def attending(name: str, l: int) -> Operator:
        """Build grouped attention of layer l, queries and keys turned by position and normed if the family does so."""
        Q, K, V = projections(name)
        turned = rotation if form.turned is None or form.turned(l) else I
        by_q, by_k = (norm(f"{name}.{part}_norm", d) @ turned if normed else turned for part in "qk")
        if form.normed_whole:
            Q, K = Q @ norm(f"{name}.q_norm", d * h), K @ norm(f"{name}.k_norm", d * g)
        if form.normed_columns:
            Q, K = normed_heads(Q, f"{name}.q_norm", h), normed_heads(K, f"{name}.k_norm", g)
        if form.scores is not None:
            by_q = by_q * (form.scores * d**0.5)
        if form.sinks:
            q, k, v = Q @ heads(h) @ by_q, K @ heads(g) @ by_k @ repeat(h), V @ heads(g) @ repeat(h)
            margin = const(sign_changed(at(f"{name}.sinks", h))) @ heads(h)
            mixed = attention_sunk(q, k, v, where(l), margin) @ heads(h).T
        else:
            mixed = grouped(Q, K, V, h, g, where(l), by_q, by_k)
        return mixed @ linear(f"{name}.o_proj", d * h, n)

    def feeding(l: int, name: str) -> Operator:
        """Build the gated unit of a layer."""
        if form.packed:
            f = config["intermediate_size"]
            gate, up = cut_products(linear, f"{name}.gate_up_proj", n, [f, f])
            return (gate @ act * up) @ linear(f"{name}.down_proj", f, n)
        return gated(linear, name, n, config["intermediate_size"], act)

    def layer(l: int) -> Operator:
        """Build layer l: attention, then the unit, each behind a norm and added to its input."""
        if form.parallel:
            both = attending(f"layers.{l}.self_attn", l) + (unit or feeding)(l, f"layers.{l}.mlp")
            return I + norm(f"layers.{l}.input_layernorm", n) @ both
        names = ("post_attention", "post_feedforward") if form.behind else ("input", "post_attention")
        first, second = (norm(f"layers.{l}.{part}_layernorm", n) for part in names)
        name = f"layers.{l}.self_attn"
        mixed, feed = mixing(name) if mixing else attending(name, l), (unit or feeding)(l, f"layers.{l}.mlp")
        if form.behind:
            return (I + mixed @ first) @ (I + feed @ second)
        return (I + times_factor(first @ mixed, form.residual)) @ (I + times_factor(second @ feed, form.residual))

    embed = times_factor(weight(at("embed_tokens.weight", config["vocab_size"], n)), form.embedding)
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("norm", n)])


def grouped_sizes(config: Settings) -> tuple[LiveSize, LiveSize, LiveSize]:
    """Return heads of queries, heads of keys, and columns of a head. Raises InputError for sizes that do not divide."""
    n, h = config["hidden_size"], config["num_attention_heads"]
    g, d = config["num_key_value_heads"] or h, config["head_dim"]
    if d is None and not divides(h, n):
        raise wrong("num_attention_heads", h, f"a divisor of hidden_size, {n}, where there is no head_dim")
    if not divides(g, h):
        raise wrong("num_key_value_heads", g, f"a divisor of num_attention_heads, {h}")
    return h, g, d or quotient(n, h)


def seen_within(seen: int | None, causally: bool = True) -> Pattern:
    """Return the pattern by which a token sees the last `seen` tokens of its sequence up to itself, or all of them. Not
    `causally`, as models that embed are trained: those up to `seen` away on both sides."""
    if not causally:
        return sequence & window(seen) if seen else sequence
    return sequence & causal & window(seen - 1) if seen else sequence & causal


def windowed(
    config: Settings, seen: int | None, usual: Callable[[int], str]
) -> tuple[Sequence[str], Callable[[int], Pattern]]:
    """Return the kind and, by number, the pattern of layers, of which some see the last `seen` tokens; `usual`: the
    kind of layer l where a config says none. Raises InputError for layers of a window without its size."""
    kinds = kinds_of_layers(config, usual)
    if seen is None and SLIDING_ATTENTION in kinds:
        raise wrong("sliding_window", seen, "a whole number, as layer_types require")
    return kinds, lambda l: seen_within(seen if kinds[l] == SLIDING_ATTENTION else None, config["is_causal"])


def times_factor(part: Operator, factor: float) -> Operator:
    """Return an operator times a factor; itself for 1."""
    return part if factor == 1 else part * factor


def sign_changed(stored: Data) -> Data:
    """Return the numbers of a stored array, with their signs changed."""
    name = f"{stored.name}[sign changed]"  # its tensor is named before the bracket
    return Promised(name, stored.shape) if isinstance(stored, Promised) else Data(-stored.array, name)


def cut_products(
    linear: Callable[[str, LiveSize, LiveSize], Operator], name: str, n: LiveSize, sizes: Sequence[LiveSize]
) -> list[Operator]:
    """Build the products that files store as one of this name, each with so many of its columns. `linear` gives a
    product by its name and its sizes."""
    ends = [*accumulate(sizes, initial=0)]
    packed = linear(name, n, ends[-1])
    return [packed @ cols(low, high, ends[-1]) for low, high in pairwise(ends)]


def gated(
    linear: Callable[[str, LiveSize, LiveSize], Operator], name: str, n: LiveSize, f: LiveSize, act: Operator
) -> Operator:
    """Build units that each have another one for a gate: Shazeer 2020, eq. 5 and 6. `linear` gives a product by its
    name and its sizes."""
    gate, up = (linear(f"{name}.{part}_proj", n, f) for part in ("gate", "up"))
    return (gate @ act * up) @ linear(f"{name}.down_proj", f, n)
