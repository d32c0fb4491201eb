"""Mamba (Gu and Dao 2023): layers of a convolution and a selective scan, gated, with no attention."""

from functools import reduce
from operator import matmul

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    cols,
    const,
    conv,
    decay,
    diag,
    exp,
    heads,
    repeat,
    rmsnorm,
    scan,
    softplus,
    total,
    weight,
)
from opmatrix.algebra.positions.lags import LARGEST_LAG
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import (
    NOT_QUANTISED,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    dimension,
    flag,
    layers,
    one_of,
    real,
    whole,
)

NO_LIMIT = 1 << 30  # positions of a model that has none: a text is as long as memory
BACKBONE = TensorNames(
    "backbone.", table="embeddings.weight", head="lm_head.weight", positions=lambda settings: NO_LIMIT
)
MAMBA_KEYS = dict(
    vocab_size=dimension(),
    hidden_size=dimension(),
    state_size=whole(default=16),
    num_hidden_layers=layers(),
    expand=whole(1, 64, 2),
    conv_kernel=whole(1, LARGEST_LAG + 1, 4),
    time_step_rank=whole(default="auto")._replace(
        allowed="a whole number from 1 on, or auto", holds=lambda v: v == "auto" or (type(v) is int and v > 0)
    ),
    layer_norm_eps=real(1e-20, 1, 1e-5).under("layer_norm_epsilon"),
    hidden_act=one_of(ACTIVATIONS, "silu"),
    use_bias=flag(False),
    use_conv_bias=flag(True),
    tie_word_embeddings=flag(True),
    quantization_config=NOT_QUANTISED,
)


@declares(BACKBONE, **MAMBA_KEYS)
def mamba(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    n, s, k, act = (config[key] for key in ("hidden_size", "state_size", "conv_kernel", "hidden_act"))
    d, r = config["expand"] * n, config["time_step_rank"]
    r = -(-n // 16) if r == "auto" else r

    def linear(name: str, n: LiveSize, p: LiveSize, biased: bool) -> Operator:
        """Build x @ W, with a row to add or without; files store W as (outputs, inputs)."""
        W = at(f"{name}.weight", p, n).T
        return affine(W, at(f"{name}.bias", p)) if biased else weight(W)

    def convolution(name: str) -> Operator:
        """Build the convolution of each column; files store its weights as (columns, 1, rows), the last row first."""
        taps = conv(taps_by_lag(at(f"{name}.weight", d, 1, k)))
        return taps + const(at(f"{name}.bias", d)) if config["use_conv_bias"] else taps

    def selective(name: str) -> Operator:
        """Build the scan of s states for each column, its steps and both sides read from the row: section 3.2,
        algorithm 2."""
        read, rates = linear(f"{name}.x_proj", d, r + 2 * s, False), const(decays(at(f"{name}.A_log", d, s)))
        dt = cols(0, r, r + 2 * s) @ linear(f"{name}.dt_proj", r, d, True) @ softplus
        left, right = (cols(r + i * s, r + (i + 1) * s, r + 2 * s) @ heads(s) for i in range(2))

        def scanned(x: Value) -> Value:
            """Map a row to the sum of its states, each times a number of the row, and itself times a gain."""
            told = x @ read
            step, kept = told @ dt, diag(at(f"{name}.D", d))
            states = scan(step @ repeat(s) * rates @ exp, (step * x) @ repeat(s) * (told @ left), decay)
            mixed: Value = (states * (told @ right)) @ total + x @ kept
            return mixed

        return formula(scanned)

    def mixer(name: str) -> Operator:
        """Build the convolution and the scan behind it, times a gate."""
        into = linear(f"{name}.in_proj", n, 2 * d, config["use_bias"])
        inner = cols(0, d, 2 * d) @ convolution(f"{name}.conv1d") @ ACTIVATIONS[act] @ selective(name)
        gated = into @ (inner * (cols(d, 2 * d, 2 * d) @ ACTIVATIONS["silu"]))
        return gated @ linear(f"{name}.out_proj", d, n, config["use_bias"])

    def norm(name: str) -> Operator:
        """Build a norm by the root mean square, with a gain."""
        return rmsnorm(config["layer_norm_eps"]) @ diag(at(f"{name}.weight", n))

    blocks = (I + norm(f"layers.{l}.norm") @ mixer(f"layers.{l}.mixer") for l in range(config["num_hidden_layers"]))
    embed = weight(at("embeddings.weight", config["vocab_size"], n))
    return reduce(matmul, [embed, *blocks, norm("norm_f")])


def taps_by_lag(taps: Data) -> Data:
    """Return the weights (columns, 1, rows) of a convolution as a row for each row before, the row itself first."""
    d, _, k = taps.shape
    name = f"{taps.name}.T"
    return Promised(name, (k, d)) if isinstance(taps, Promised) else Data(taps.array[:, 0, ::-1].T, name)


def decays(logarithms: Data) -> Data:
    """Return the rates (states, 1, columns) whose logarithms (columns, states) are stored: all are below 0."""
    d, s = logarithms.shape
    name = f"-exp({logarithms.name})"
    if isinstance(logarithms, Promised):
        return Promised(name, (s, 1, d))
    return Data(-np.exp(logarithms.array.astype(np.float64)).T[:, None], name)
