"""RoPE as configs define it: the frequencies of Su et al. 2021, section 3.2.2, or those by which texts became
longer."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import sympy
from numpy.typing import NDArray

from opmatrix.algebra.operators import DEFAULT_BASE, promised_tables, rotate
from opmatrix.algebra.shapes import LiveSize, as_int, certain, divides, expression
from opmatrix.algebra.term import Operator
from opmatrix.models.config import Key, Settings, dimension, flag, one_of, optional, real, settings, wrong

Frequencies: TypeAlias = NDArray[np.float64]
MAX_TABLE_NUMBERS = 1 << 25  # most numbers of a table: positions × columns that turn
OBJECT = optional(Key("an object", lambda said: isinstance(said, dict)))
ROPE_KEYS = dict(
    rope_theta=real(1, 1e12, DEFAULT_BASE),
    partial_rotary_factor=real(0, 1, 1.0),
    rope_scaling=OBJECT,
    rope_parameters=OBJECT,
    original_max_position_embeddings=optional(dimension()),
)


# keys of a rotation that families do not have whose kinds of layers each have an object of their own
PLAIN_ROPE = dict(partial_rotary_factor=1.0, rope_scaling=None, original_max_position_embeddings=None)


def keep_turns(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Return the frequencies as they are, with scores scaled by 1."""
    return turns, 1.0


def interpolate(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Move positions closer together: Chen et al. 2023, eq. 4."""
    return turns / said["factor"], 1.0


def llama3(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Turn slow columns slower, quick ones as before, those between by a mean: LLaMA 3.1 (Grattafiori et al. 2024)."""
    low, high = said["low_freq_factor"], said["high_freq_factor"]
    if low >= high:
        raise wrong("high_freq_factor", high, f"more than low_freq_factor, {low}")
    rounds = said["original_max_position_embeddings"] * turns / (2 * np.pi)
    share = np.clip((rounds - low) / (high - low), 0, 1)
    return turns * (share + (1 - share) / said["factor"]), 1.0


def enlarged(factor: float, by: float = 1) -> float:
    """Return the factor of queries and keys for texts that are `factor` times as long, and a multiple of its logarithm:
    YaRN (Peng et al. 2024), eq. 22."""
    return float(0.1 * by * np.log(factor) + 1)


def yarn(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Scale frequencies by a ramp over the columns, and scores a little larger: YaRN (Peng et al. 2024), eq. 17 to
    22."""
    columns, original = 2 * len(turns), said["original_max_position_embeddings"]
    if base <= 1:
        raise wrong("rope_theta", base, "more than 1")

    def column(rounds: float) -> float:
        """Return the column, a real number, that turns this many rounds over the original length."""
        return float(columns * np.log(original / (rounds * 2 * np.pi)) / (2 * np.log(base)))

    low, high = column(said["beta_fast"]), column(said["beta_slow"])
    if said["truncate"]:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, columns - 1)
    slow = np.clip((np.arange(len(turns)) - low) / (high - low or 0.001), 0, 1)

    scale, factor = said["attention_factor"], said["factor"]
    if scale is None:
        both = said["mscale"] and said["mscale_all_dim"]
        scale = (
            enlarged(factor, said["mscale"]) / enlarged(factor, said["mscale_all_dim"]) if both else enlarged(factor)
        )
    return turns * (1 - slow + slow / said["factor"]), scale


def ntk(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Turn each column slower than the one before, the last one by the factor: a larger base (bloc97 2023), of which
    the first column gets its share, too. With `mixed_b` logarithms of these factors grow by that power of the column's
    number."""
    number = np.arange(1, len(turns) + 1) / len(turns)
    return turns / said["factor"] ** number ** (said["mixed_b"] or 1), 1.0


def by_factors(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Divide the frequency of each pair of columns by a factor of its own, as GGUF files give them for LLaMA 3.1."""
    factors = said["frequency_factors"]
    if len(turns) > 1 and len(factors) != len(turns):
        raise wrong("frequency_factors", len(factors), f"as many numbers as pairs of columns turn, {len(turns)}")
    return turns / np.array(factors[: len(turns)]), 1.0


def is_positive(said: object) -> bool:
    """True for a number above 0."""
    return type(said) in (int, float) and said > 0  # type: ignore[operator]


def longrope(turns: Frequencies, base: float, said: Settings) -> tuple[Frequencies, float]:
    """Turn each column slower by a factor of its own, those for texts up to the original length, and scale scores:
    LongRoPE (Ding et al. 2024, section 3.3). Raises InputError for another number of factors."""
    if len(said["short_factor"]) != len(turns):
        raise wrong("short_factor", said["short_factor"], f"{len(turns)} numbers, one for each pair of columns")
    scale, factor = said["attention_factor"], said["factor"]
    if scale is None:
        scale = float(np.sqrt(1 + np.log(factor) / np.log(said["original_max_position_embeddings"])))
    return turns / np.asarray(said["short_factor"], np.float64), scale


FACTOR = dict(factor=real(1, 1e6))
LONGROPE = "longrope"
FACTORS = Key(
    "a list of positive numbers",
    lambda said: isinstance(said, list) and said != [] and all(map(is_positive, said)) and max(said) < 1e9,
)
Scaling: TypeAlias = Callable[[Frequencies, float, Settings], tuple[Frequencies, float]]
RopeTypes: TypeAlias = Mapping[str, tuple[Scaling, dict[str, Key]]]
ROPE_TYPES: RopeTypes = {  # rope_type -> function of the frequencies, its keys
    "default": (keep_turns, {}),
    "linear": (interpolate, FACTOR),
    "factors": (by_factors, dict(frequency_factors=FACTORS)),
    "llama3": (llama3, FACTOR | dict(low_freq_factor=real(1e-6, 1e6), high_freq_factor=real(1e-6, 1e6))),
    "yarn": (
        yarn,
        FACTOR
        | dict(
            beta_fast=real(1e-6, 1e6, 32),
            beta_slow=real(1e-6, 1e6, 1),
            truncate=flag(True),
            **{name: optional(real(1e-6, 1e6)) for name in ("attention_factor", "mscale", "mscale_all_dim")},
        ),
    ),
}
LONG_TYPES = {
    LONGROPE: (longrope, FACTOR | dict(short_factor=FACTORS, attention_factor=optional(real(1e-6, 1e6))))
}  # of families whose positions end at the original length
NTK = {"ntk": (ntk, FACTOR | dict(mixed_b=optional(real(1e-6, 1e6))))}  # a type of families that were published with it
POSITIONS_READ = 1  # positions of tables where only shapes are read


def rope(config: Settings, d: LiveSize, types: RopeTypes = ROPE_TYPES) -> Operator:
    """Build the rotation of heads of d columns, by `ROPE_KEYS` and max_position_embeddings of a config, and by the
    family's `types`. Its tables are promised where a size that they depend on has a name."""
    stated, positions = rotation_settings(config), config["max_position_embeddings"]
    original = config["original_max_position_embeddings"] or positions
    kind = settings(stated, dict(rope_type=one_of(types, "default")))["rope_type"]
    frequencies, keys = types[kind]
    plain = {name: ROPE_KEYS[name] for name in ("rope_theta", "partial_rotary_factor")}
    if config["original_max_position_embeddings"]:
        stated["original_max_position_embeddings"] = original
    values = settings(stated, keys | plain | dict(original_max_position_embeddings=dimension(original)))
    turning = share_of(d, values["partial_rotary_factor"])
    if not turning or not divides(2, turning):
        raise wrong("head_dim", d, f"such that an even number of its columns rotate, not {turning}")
    if certain(positions * turning > MAX_TABLE_NUMBERS):
        positions = MAX_TABLE_NUMBERS // turning
    base = values["rope_theta"]
    rotation: Operator
    if not all(isinstance(number, int) for number in (positions, turning, values["original_max_position_embeddings"])):
        frequencies(np.ones(1), base, values | dict(original_max_position_embeddings=1))  # it may raise
        rotation = rotate(*promised_tables(positions, turning, **tell_apart(values, kind, keys)), as_int(d - turning))
        return rotation
    turns, scale = frequencies(base ** (-np.arange(0, turning, 2) / turning), base, values)
    angles = np.outer(np.arange(positions), turns)
    rotation = rotate(scale * np.cos(angles), scale * np.sin(angles), d - turning)
    return rotation


def rope_of(config: Settings, d: LiveSize, kind: str, base: float) -> Operator:
    """Build the rotation of heads of d columns in layers of a kind: by the object under its name in `rope_parameters`,
    or with this base. Raises InputError as `rope`."""
    stated = (config["rope_parameters"] or {}).get(kind)
    if not OBJECT.holds(stated):
        raise wrong(f"rope_parameters: {kind}", stated, OBJECT.allowed)
    return rope({**config} | dict(rope_theta=base, **PLAIN_ROPE) | dict(rope_parameters=stated), d)


def rotation_settings(config: Settings) -> dict[str, object]:
    """Return the settings of a rotation, from wherever a config has them."""
    stated = {name: config[name] for name in ("rope_theta", "partial_rotary_factor")}
    stated |= config["rope_scaling"] or config["rope_parameters"] or {}
    stated.setdefault("rope_type", stated.get("type"))  # its older name
    return stated


def held_positions(config: Settings) -> int:
    """Return how many positions of a model its tables hold: of contexts of millions of tokens the first, as many as fit
    into memory, which serve shorter texts as well."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = rotation_settings(config)["partial_rotary_factor"] if "partial_rotary_factor" in config else 1
    turning = int(width * (share or 1))
    return int(min(config["max_position_embeddings"], MAX_TABLE_NUMBERS // max(turning, 1)))


def with_few_positions(config: Settings) -> Settings:
    """Return a configuration whose tables of rotations have few rows, for work and parameters, which do not depend
    on their number: of 131,072 positions they take a second."""
    positions = config.get("max_position_embeddings")
    if "rope_theta" not in config or not isinstance(positions, int) or positions <= POSITIONS_READ:
        return config
    return {"original_max_position_embeddings": positions, **config, "max_position_embeddings": POSITIONS_READ}


def share_of(d: LiveSize, factor: float) -> LiveSize:
    """Return the share `factor` of d columns, as a whole number."""
    if isinstance(d, int):
        return int(d * factor)
    if factor == 1:
        return d  # a head's columns are whole, if h/a is not known to be
    return as_int(sympy.floor(expression(d) * sympy.Rational(str(factor))))


def tell_apart(found: Settings, kind: str, keys: Mapping[str, Key]) -> dict[str, object]:
    """Return the settings that the numbers of tables depend on besides their shape; empty for the usual ones."""
    unusual = {} if found["rope_theta"] == DEFAULT_BASE else dict(rope_theta=found["rope_theta"])
    if kind == "default":
        return unusual
    return unusual | dict(rope_type=kind) | {name: found[name] for name in (*keys, "original_max_position_embeddings")}
