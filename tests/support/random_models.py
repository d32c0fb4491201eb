"""Small transformers of random shape, their weights, and sentences for them."""

import numpy as np

from opmatrix.algebra.data import Data

MASKS = ("sequence", "sequence & causal", "sequence & window({})", "sequence & causal & window({})")


def random_config(rng):
    """A small configuration: 1 to 3 layers, width at most 96."""
    pick = lambda *among: among[rng.integers(len(among))]
    h, d = int(rng.integers(1, 7)), int(pick(2, 4, 5, 8, 12, 16))
    shared = [g for g in range(1, h + 1) if h % g == 0]
    return dict(
        model_type="transformer",
        vocab_size=int(rng.integers(5, 200)),
        max_position_embeddings=64,
        hidden_size=int(pick(h * d, rng.integers(8, 97))),
        intermediate_size=int(rng.integers(8, 193)),
        num_hidden_layers=int(rng.integers(1, 4)),
        num_attention_heads=h,
        num_key_value_heads=int(pick(*shared)),
        head_dim=d,
        norm=pick("layer", "rms"),
        norm_eps=float(pick(1e-12, 1e-6, 1e-5)),
        pre_norm=bool(rng.integers(2)),
        hidden_act=pick("gelu", "gelu_new", "relu", "silu", "tanh"),
        gated=bool(rng.integers(2)),
        bias=bool(rng.integers(2)),
        mask=pick(*MASKS).format(int(rng.integers(0, 9))),
    )


def random_weights(config, rng):
    """`at` for a configuration: random arrays of the size that training starts from, gains about one, kept by name."""
    made = {}

    def at(name, *shape):
        if name not in made:
            scale = shape[-1] ** -0.5 if len(shape) > 1 and "." in name else 0.1 if len(shape) == 1 else 1.0
            numbers = rng.normal(size=shape) * scale + (len(shape) == 1 and name.endswith("weight"))
            made[name] = Data(numbers.astype(np.float32), name)
        return made[name]

    at.made = made
    return at


def random_sentences(config, rng, count=4):
    """Sentences of unequal length, one of a single token, as rows of ids."""
    longest = config["max_position_embeddings"]
    lengths = [1, *rng.integers(1, min(longest, 24) + 1, count - 1)]
    return [rng.integers(0, config["vocab_size"], n) for n in rng.permutation(lengths)]
