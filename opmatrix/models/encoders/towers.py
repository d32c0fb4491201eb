"""Towers that stand before a decoder: stacks of layers over patches of an image or frames of a sound, which see each
other in both directions, and the product that leads into the decoder's columns. CLIP's (Radford et al. 2021) in LLaVA
(Liu et al. 2023), Qwen2-VL's (Wang et al. 2024, without its rotations, which store no weights), Whisper's (Radford et
al. 2022) in Qwen2-Audio (Chu et al. 2024)."""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import matmul
from typing import Any, NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import ACTIVATIONS, I, attention, given, heads, weight
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models.config import Key, Settings, dimension, layers, refuse_names, settings, whole, wrong
from opmatrix.models.encoders.parts import EncoderParts

TOWER_GELU = ACTIVATIONS["gelu"]
TOWER_EPS = 1e-5
NEAR_FRAMES = 3  # neighbours that a convolution over frames meets
POOLED_FRAMES = 2  # frames of Qwen2-Audio that become one row of the decoder
TOWER_SIZES = dict(
    hidden_size=dimension(), intermediate_size=dimension(), num_attention_heads=dimension(), num_hidden_layers=layers(1)
)
PICTURES = dict(image_size=dimension(), patch_size=dimension())
CLIP_KEYS = dict(**TOWER_SIZES, **PICTURES, num_channels=dimension(3))
QWEN_KEYS = dict(
    hidden_size=dimension().under("embed_dim"),
    mlp_ratio=whole(1, 64, 4),
    num_attention_heads=dimension().under("num_heads"),
    num_hidden_layers=layers(1).under("depth"),
    **PICTURES,
    num_channels=dimension(3).under("in_channels"),
    temporal_patch_size=dimension(2),
    spatial_merge_size=dimension(2),
)
AUDIO_KEYS = dict(
    hidden_size=dimension().under("d_model"),
    intermediate_size=dimension().under("encoder_ffn_dim"),
    num_attention_heads=dimension().under("encoder_attention_heads"),
    num_hidden_layers=layers(1).under("encoder_layers"),
    num_mel_bins=dimension(),
    max_source_positions=dimension(),
)


class Tower(NamedTuple):
    """A tower as operators, with weights of which only names and shapes are known: before its layers, one of its equal
    layers, and behind them all."""

    first: Operator  # from patches or windows of frames, (rows, inputs), to features (rows, n)
    layer: Operator  # features to features
    last: Operator  # features to rows of the decoder, (last_rows, columns of the decoder)
    layers: int
    heads: int
    rows: int  # patches or frames of a sequence
    last_rows: int  # rows of the decoder that they become
    ids: bool = False  # its input is ids of tokens


def promise_array(name: str, *shape: LiveSize) -> Data:
    """Promise an array of a tower."""
    return Promised(f"tower.{name}", shape)


TOWER_PARTS = EncoderParts(promise_array, TOWER_EPS)


def tower_layer(sizes: Settings, key_bias: bool = True) -> Operator:
    """Build a layer: attention, then a perceptron, each behind a norm and added to its input."""
    n, f, h = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_attention_heads"]
    if n % h:
        raise wrong("attention heads", h, f"a divisor of the {n} columns")
    Q, K, V = (TOWER_PARTS.linear_if(key_bias or part != "k", part, n, n) for part in "qkv")
    F = attention(Q, K, V, h, sequence) @ TOWER_PARTS.linear("o", n, n)
    G = TOWER_PARTS.linear("up", n, f) @ TOWER_GELU @ TOWER_PARTS.linear("down", f, n)
    return (I + TOWER_PARTS.norm("norm_1", n) @ F) @ (I + TOWER_PARTS.norm("norm_2", n) @ G)


def grid_side(sizes: Settings) -> int:
    """Return the patches along a side of an image. Raises InputError where patches do not divide it."""
    image, patch = sizes["image_size"], sizes["patch_size"]
    if image % patch:
        raise wrong("image_size", image, f"a multiple of patch_size, {patch}")
    return int(image // patch)


def table_of_positions(rows: int, n: int) -> Operator:
    """Build a table of positions, which adds a row of its own to each."""
    return given("positions", rows) @ weight(promise_array("positions", rows, n))


def clip_tower(sizes: Settings, width: int) -> Tower:
    """Build CLIP's. A row more stands for the whole image: its input is a column that is 1 there, whose weights are its
    embedding. The decoder takes the rows of patches, through a perceptron."""
    n, patches = sizes["hidden_size"], grid_side(sizes) ** 2
    inputs = sizes["num_channels"] * sizes["patch_size"] ** 2 + 1
    first = weight(promise_array("patches", inputs, n)) + table_of_positions(patches + 1, n)
    last = [
        TOWER_PARTS.norm("post", n),
        TOWER_PARTS.linear("projector_1", n, width),
        TOWER_GELU,
        TOWER_PARTS.linear("projector_2", width, width),
    ]
    return Tower(
        first @ TOWER_PARTS.norm("pre", n),
        tower_layer(sizes),
        reduce(matmul, last),
        sizes["num_hidden_layers"],
        sizes["num_attention_heads"],
        patches + 1,
        patches,
    )


def qwen_tower(sizes: Settings, width: int) -> Tower:
    """Build Qwen2-VL's: patches of `temporal_patch_size` frames, squares of which become one row of the decoder."""
    n, side, merged = sizes["hidden_size"], grid_side(sizes), sizes["spatial_merge_size"]
    if side % merged:
        raise wrong("image_size", sizes["image_size"], f"{merged} patches, or a multiple, to a side")
    inputs = sizes["num_channels"] * sizes["temporal_patch_size"] * sizes["patch_size"] ** 2
    several, m = merged**2, merged**2 * n
    normed = heads(several) @ TOWER_PARTS.norm("merged", n) @ heads(several).T
    return Tower(
        weight(promise_array("patches", inputs, n)),
        tower_layer({**sizes, "intermediate_size": sizes["mlp_ratio"] * n}),
        normed @ TOWER_PARTS.linear("merger_1", m, m) @ TOWER_GELU @ TOWER_PARTS.linear("merger_2", m, width),
        sizes["num_hidden_layers"],
        sizes["num_attention_heads"],
        side**2,
        side**2 // several,
    )


def audio_stem(sizes: Settings) -> Operator:
    """Build two convolutions and a table of positions. A row comes in as the windows of frames that it meets: the first
    convolution of three frames each, the second, of every other row, of these three. Neighbours compute shared windows
    twice, which is a thousandth of a tower's work."""
    n, mel = sizes["hidden_size"], sizes["num_mel_bins"]
    near = heads(NEAR_FRAMES) @ TOWER_PARTS.linear("conv_1", NEAR_FRAMES * mel, n) @ TOWER_GELU @ heads(NEAR_FRAMES).T
    return near @ TOWER_PARTS.linear("conv_2", NEAR_FRAMES * n, n) @ TOWER_GELU + table_of_positions(
        sizes["max_source_positions"], n
    )


def audio_tower(sizes: Settings, width: int) -> Tower:
    """Build Whisper's encoder, whose frames are the decoder's rows in pairs, by their mean."""
    n, frames = sizes["hidden_size"], sizes["max_source_positions"]
    return Tower(
        audio_stem(sizes),
        tower_layer(sizes, key_bias=False),
        TOWER_PARTS.norm("post", n) @ TOWER_PARTS.linear("projector", n, width),
        sizes["num_hidden_layers"],
        sizes["num_attention_heads"],
        frames,
        frames // POOLED_FRAMES,
    )


class TowerFamily(NamedTuple):
    """A model with a tower: the object of its config that describes the tower, the keys of the object, the builder of
    the tower, and the family of the decoder."""

    described: str
    keys: Mapping[str, Key]
    build: Callable[[dict[str, Any], int], Tower]
    decoder: str


TOWERS = {  # families by the config's model_type
    "llava": TowerFamily("vision_config", CLIP_KEYS, clip_tower, "llama"),
    "qwen2_vl": TowerFamily("vision_config", QWEN_KEYS, qwen_tower, "qwen2"),
    "qwen2_audio": TowerFamily("audio_config", AUDIO_KEYS, audio_tower, "qwen2"),
}
DECODER_OBJECT = "text_config"


def has_tower(config: Settings) -> bool:
    """True if a config is of a decoder behind a tower. Raises InputError for a tower of a family that is not known."""
    if (family := config.get("model_type")) in TOWERS:
        return True
    if described := {"vision_config", "audio_config"} & config.keys():
        known = ", ".join(TOWERS)
        raise InputError(
            f"config: {min(described)} is a tower, and model_type {family!r} has none here: "
            f"{suggest_name(str(family), TOWERS)}it is one of {known}"
        )
    return False


def decoder_settings(config: Settings) -> Settings:
    """Return the config of the decoder behind a tower; any other config as it is."""
    if not has_tower(config):
        return config
    family = TOWERS[config["model_type"]]
    text = config.get(DECODER_OBJECT, {key: value for key, value in config.items() if key != family.described})
    if not isinstance(text, Mapping):
        raise wrong(DECODER_OBJECT, text, "an object: the config of the decoder")
    return {**text, "model_type": family.decoder}


def read_tower(config: Settings, width: int) -> Tower:
    """Build the tower of a config; `width`: columns of its decoder. Raises InputError, which names the object, for a
    tower that is not described, or wrongly."""
    family = TOWERS[config["model_type"]]
    described = config.get(family.described)
    if not isinstance(described, Mapping):
        raise InputError(f"config: {family.described!r} is missing: {config['model_type']} has a tower: describe it")
    try:
        refuse_names(described, family.keys)
        return family.build(settings(described, family.keys), width)
    except InputError as error:
        raise InputError(f"{family.described}: {error}") from None
