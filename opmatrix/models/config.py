"""The keys of a config. A family declares its keys once, each with its allowed values and its default. A size is a
number or a name, `"hidden_size": "h"`: the model then holds for every number."""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from keyword import iskeyword
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.attributes import brief
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import RESERVED, Live, LiveSize, is_named, size
from opmatrix.algebra.term import Operator

Settings: TypeAlias = Mapping[str, Any]  # the settings of a config, by the common names
MISSING = object()  # the default of a key that must be there
INT32_MAX = 2**31 - 1


class ArraySource(Protocol):
    """A function that gives the array that a checkpoint calls `name`, of that shape, or promises it."""

    def __call__(self, name: str, *shape: LiveSize) -> Data: ...


class Key(NamedTuple):
    """A key of a config: its allowed values in words, and as a test. A value that is absent or null is `default`.
    `called` is the key's name in a family's files, where that is not the common one, `older` its former name there.
    `live`: a name may stand for the number; `unnamed` tells why none may."""

    allowed: str
    holds: Callable[[Any], bool]
    default: object = MISSING
    called: str = ""
    live: bool = False
    unnamed: str = ""
    older: str = ""

    def under(self, name: str) -> "Key":
        """Return the key under another name in a family's files."""
        return self._replace(called=name)

    def once(self, name: str) -> "Key":
        """Return the key with its former name in a family's files."""
        return self._replace(older=name)


class StackNames(NamedTuple):
    """The names in files of a weight that has a matrix for each expert. `apart`: the matrix of expert #, by any of
    these names; `fused`: all of them in one tensor, where they are share number `share` of `shares` equal shares of its
    rows; `alone`: all of them in a tensor of their own, as GGUF files have it. `turned`: the fused tensor has the
    matrices transposed, and their shares take turns among its columns."""

    apart: tuple[str, ...]
    fused: str
    share: int = 0
    shares: int = 1
    alone: str = ""
    turned: bool = False


class TensorNames(NamedTuple):
    """The names of a family's tensors in files.

    `prefix` stands before names in files that hold a head, too; `spellings` are endings and their older forms; a name
    that ends with one of `buffers` is no weight. `table` holds the rows of tokens, `head` the scores of the vocabulary
    (unless tie_word_embeddings says that the table does). `trained`: parts on top that only trained it, or that only a
    head reads; any other part on top computes something that rows alone do not. `positions` gives the number of
    positions of a model, from its settings. `gguf`: names in GGUF files to names here, # standing for a layer;
    `permuted`: those whose rows GGUF permutes. `stacks`: endings of names of weights of experts, each with its names in
    files. `copies`: names of weights, each with the name of a copy that goes before it where files hold one.
    `unplaced`: the setting that gives the id of a token that takes no position, which no text may hold. `classifier`:
    the builder of the head that scores texts for a number of labels, if the family has one; `masked`: the head that
    scores the vocabulary in place of a masked token; `decoder`: the one whose first word scores pairs. Settings of
    scores of the vocabulary, where there are some: `divided`, by which they are divided, `multiplied`, by which they
    are multiplied, and `capped`, the bound c of c · tanh(score / c)."""

    prefix: str = ""
    spellings: tuple[tuple[str, str], ...] = ()
    buffers: tuple[str, ...] = ()
    table: str = ""
    head: str = ""
    trained: tuple[str, ...] = ()
    positions: Callable[[Settings], int] = lambda said: int(said["max_position_embeddings"])
    gguf: Mapping[str, str] = MappingProxyType({})
    permuted: tuple[str, ...] = ()
    stacks: Mapping[str, StackNames] = MappingProxyType({})
    copies: Mapping[str, str] = MappingProxyType({})
    unplaced: str = ""
    classifier: "Classifier | None" = None
    masked: "VocabularyHead | None" = None
    decoder: "AnswerDecoder | None" = None
    divided: str = ""
    multiplied: str = ""
    capped: str = ""

    @property
    def answering(self) -> str:
        """The name of the matrix by whose columns pairs are scored."""
        return self.decoder.scores if self.decoder else self.head


def whole(low: int = 1, high: int = INT32_MAX, default: object = MISSING) -> Key:
    """Return the key of a size or a count."""
    return Key(f"a whole number from {low} to {high}", lambda v: type(v) is int and low <= v <= high, default)


def dimension(default: object = MISSING) -> Key:
    """Return the key of a size: a whole number, or a name for one."""
    return whole(default=default)._replace(live=True)


MODEL_SIZES = {  # sizes that most families call alike
    name: dimension()
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings")
}


def layers(low: int = 0) -> Key:
    """Return the key of the number of layers, which is a number and never a name."""
    return whole(low, 1000)._replace(unnamed=", no name, as layers are built one by one")


def real(low: float, high: float, default: object = MISSING) -> Key:
    """Return the key of a number within a range; infinities and NaN are in none."""
    return Key(f"a number from {low:g} to {high:g}", lambda v: type(v) in (int, float) and low <= v <= high, default)


def flag(default: object = MISSING) -> Key:
    """Return the key of true or false; a text that says so is neither."""
    return Key("true or false", lambda v: type(v) is bool, default)


def one_of(names: Collection[str], default: object = MISSING) -> Key:
    """Return the key of a name from a fixed set."""
    words = " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
    return Key(words, lambda v: type(v) is str and v in names, default)


def never(value: object, why: str) -> Key:
    """Return the key of the one value that the family can hold, with the reason why no other."""
    return Key(f"{spelt(value)} or left out: {why}", lambda v: v == value and type(v) is type(value), value)


def optional(key: Key) -> Key:
    """Return the key with None allowed: it may be left out."""
    return key._replace(allowed=f"{key.allowed}, or left out", holds=lambda v: v is None or key.holds(v), default=None)


class AnswerDecoder(NamedTuple):
    """A decoder whose first word says whether a pair of texts fits: the name of its head's matrix, the words for yes
    and no, the pieces of the text that a pair is put into (a role and a text each), and the builder of its first row
    from the encoder's rows."""

    scores: str
    words: tuple[str, str]
    pieces: tuple[tuple[str, str], ...]
    build: Callable[[Settings, ArraySource], Operator]


class VocabularyHead(Protocol):
    """A head from features to a score for each token of the vocabulary; `scores` names its matrix in files, where it is
    not tied to `table`, that of tokens."""

    @property
    def scores(self) -> str:
        """The name of its matrix."""

    @property
    def table(self) -> str:
        """The name of the table of tokens."""

    def build(self, config: Settings, at: ArraySource, stored: bool) -> Operator:
        """Build the head; `stored`: files hold its matrix."""


Family: TypeAlias = Callable[[Settings, ArraySource], Operator]
Classifier: TypeAlias = Callable[[Settings, ArraySource, int], Operator]  # from the rows of a text to its labels


def declares(layout: TensorNames = TensorNames(), /, **keys: Key) -> Callable[[Family], Family]:
    """Declare the keys of a family's config and the names of its tensors in files: its function is given the value of
    every key."""

    def made(family: Family) -> Family:
        """Wrap the family: its config is checked first; keys and layout become its attributes."""

        @wraps(family)
        def checked(config: Settings, at: ArraySource) -> Operator:
            """Check the config against the keys, and build the model."""
            return family(settings(config, keys), at)

        checked.keys, checked.layout = keys, layout  # type: ignore[attr-defined]
        return checked

    return made


def settings(config: Settings, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the value of every key, by the common names. Raises InputError, which names the key, its value, and the
    allowed values."""
    values = {}
    for name, key in keys.items():
        called = key.called or name
        if key.older and config.get(called) is None and config.get(key.older) is not None:
            called = key.older
        value = values[name] = key.default if config.get(called) is None else config[called]
        if value is MISSING and called not in config:
            raise InputError(f"config: {called!r} is missing: take the config.json that belongs to the weights")
        if key.live and (named := read_size(called, value)) is not None:
            values[name] = named
        elif value is MISSING or not key.holds(value):
            raise wrong(called, config.get(called), key.allowed + key.unnamed * is_name(value))
    return values


def is_name(said: object) -> bool:
    """True if a size may have this name."""
    return (type(said) is str and said.isidentifier() and not iskeyword(said)) or isinstance(said, sympy.Expr | Live)


def read_size(key: str, said: object) -> sympy.Expr | None:
    """Return the size that a name, or an expression of named sizes, stands for; None for any other value. Raises
    InputError for a name or an expression that can be no size of a model."""
    if not is_name(said):
        return None
    live: sympy.Expr = size(said) if isinstance(said, str) else said
    if set(map(str, live.free_symbols)) & RESERVED.keys():
        raise wrong(key, said, f"another name: {', '.join(RESERVED)} are the algebra's own")
    if not is_named(live) or live.is_integer is False or live.is_positive is False:
        raise wrong(key, said, "a whole number, or a size that opmatrix.algebra.shapes.size names")
    return live


def refuse_names(config: Settings, keys: Mapping[str, Key]) -> None:
    """Raise InputError, which names it, where a config has a name for a number."""
    for name, value in settings(config, keys).items():
        if isinstance(value, sympy.Expr):
            raise InputError(f"config: {keys[name].called or name} is the name {value}: a number is needed here")


def wrong(name: str, value: object, allowed: str) -> InputError:
    """Return the error about a value that is not allowed."""
    return InputError(f"config: {name} is {brief(spelt(value))}: it must be {allowed}")


def spelt(value: object) -> str:
    """Return a value as JSON has it where Python spells it otherwise."""
    return {None: "null", True: "true", False: "false"}[value] if value is None or type(value) is bool else repr(value)


FULL_ATTENTION, SLIDING_ATTENTION = (
    "full_attention",
    "sliding_attention",
)  # kinds of layers: attention to all, or within a window


def layer_kinds(*kinds: str) -> Key:
    """Return the key of a list that has one of these kinds for each layer, or is left out."""

    def holds(listed: object) -> bool:
        """True for a list of these kinds."""
        return isinstance(listed, list) and all(kind in kinds for kind in listed)

    return optional(Key(f"a list of {' and '.join(kinds)}", holds))


LAYER_TYPES = layer_kinds(FULL_ATTENTION, SLIDING_ATTENTION)


def kinds_of_layers(config: Settings, usual: Callable[[int], str]) -> list[str]:
    """Return the kind of each layer: those that `layer_types` lists, else the `usual` one of its number. Raises
    InputError for a list of another length."""
    kinds: list[str] | None = config["layer_types"]
    layers = config["num_hidden_layers"]
    if kinds is None:
        return [usual(l) for l in range(layers)]
    if len(kinds) != layers:
        raise wrong("layer_types", kinds, f"as long as there are layers, {layers}")
    return kinds


NOT_QUANTISED = never({}, "weights are read as plain numbers, so save the model dequantised")  # quantization_config
ALONE = never(False, "a program has one input, so cross-attention is not supported")  # add_cross_attention
