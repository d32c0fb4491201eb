"""Stages of a schedule by hand: compositions of laws, methods to store weights, tiles."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from formats.core.errors import InputError
from rewrites.explain.derivations.by_hand import Kinds, Rewrite
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law, find
from rewrites.search.approximation import Approximation


@dataclass(frozen=True)
class Store:
    """A stage that stores weights in a format; with `only`, the weights whose name contains one of these words."""

    name: str
    format: str
    parameters: dict[str, Hashable] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    own: Approximation | None = None  # of a user: the cheapest format that holds it is used


@dataclass(frozen=True)
class TileStage:
    """A stage that splits the contracted axis of attention: `keys` keys are merged at a time. It is exact for every
    monoid with an associative merge, whatever the split."""

    name: str
    keys: int


ScheduleStage = Rewrite | Store | TileStage


def rewrite(name: str, *laws: str, needed: tuple[str, ...] = (), kinds: dict[str, Kinds] | None = None) -> Rewrite:
    """Return a composition of laws, by their names. `kinds` narrows where a law applies: alternatives of the kinds
    that its variables may have."""
    return Rewrite(name, tuple(find(EXACT_LAWS, law) for law in laws), needed, kinds or {})


def prune(density: float, *only: str) -> Store:
    """Keep the largest entries of weights, a share `density` of them."""
    return Store(f"prune({density:g})", "csr", {"density": density}, only)


def prune_blocks(density: float, *only: str, tile: tuple[int, int] = (16, 1)) -> Store:
    """Keep the largest tiles of weights."""
    return Store(f"prune_blocks({density:g})", "block", {"density": density, "tile": tile}, only)


def keep(n: int, m: int, *only: str) -> Store:
    """Keep the n largest of every m entries in a row of inputs."""
    return Store(f"keep({n}, {m})", "nm", {"n": n, "m": m}, only)


def low_rank(rank: int, *only: str) -> Store:
    """Store the best factors of `rank` columns and rows."""
    return Store(f"low_rank({rank})", "lowrank", {"rank": rank}, only)


def half(*only: str) -> Store:
    """Store weights in float16."""
    return Store("half()", "half", {}, only)


def bf16(*only: str) -> Store:
    """Store weights in bfloat16; their products round their input to it, too."""
    return Store("bf16()", "bf16", {}, only)


def int8(*only: str) -> Store:
    """Store weights in 8 bits, with a scale for each output; their products round every row of x to 8 bits, too."""
    return Store("int8()", "int8", {}, only)


def nearest(approximation: Approximation, *only: str, **parameters: Hashable) -> Store:
    """Store weights by an approximation that a user declared; a parameter that is not passed is the first that the
    declaration tries."""
    chosen = {key: parameters.get(key, values[0]) for key, values in approximation.grid.items()}
    narrowed = replace(approximation, grid={key: (value,) for key, value in chosen.items()})
    return Store(narrowed.label(chosen), "", chosen, only, narrowed)


def tile(keys: int) -> TileStage:
    """Split attention into tiles of `keys` keys (Dao et al. 2022); without this stage tiles have 256."""
    return TileStage(f"tile({keys})", keys)


def find_law(name: str) -> Law:
    """Return the law of a name. Raises InputError, which lists the laws."""
    try:
        return find(EXACT_LAWS, name)
    except KeyError as error:
        raise InputError(str(error.args[0])) from error


SPLIT = "split_shift", "stack_columns"
SCALE_LAWS = "scale_scores", *SPLIT, "spread", "associate"
MATRIX, DIAGONAL = ("weight", "compose"), ("mul",)
SCALED: dict[str, Kinds] = {"spread": ({"A": DIAGONAL},), "associate": ({"B": DIAGONAL},)}
GAINED: dict[str, Kinds] = {"spread": ({"A": MATRIX},), "associate": ({"A": DIAGONAL, "B": MATRIX},)}
MOVED: dict[str, Kinds] = {"spread": ({"c": ("compose",), "A": ("weight",)},)}
BOTH: dict[str, Kinds] = {"spread": (*SCALED["spread"], *MOVED["spread"]), "associate": SCALED["associate"]}

fold_scale = rewrite("fold_scale", *SCALE_LAWS, needed=("scale_scores",), kinds=SCALED)
drop_key_bias = rewrite("drop_key_bias", *SCALE_LAWS, "split_keys", "shift_scores", kinds=SCALED)
move_value_bias = rewrite(
    "move_value_bias", *SPLIT, "value_bias", "join_shift", "spread", "merge_shifts", needed=("value_bias",), kinds=MOVED
)
fold_norm = rewrite("fold_norm", "merge_shifts", "spread", "associate", kinds=GAINED)
join_qkv = rewrite(
    "join_qkv",
    *SCALE_LAWS,
    "split_keys",
    "shift_scores",
    "value_bias",
    "join_shift",
    "merge_shifts",
    "join_bias",
    "join",
    needed=("join", "join_bias"),
    kinds=BOTH,
)
