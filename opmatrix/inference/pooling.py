"""Pooling: the way a model makes one embedding of a text: the prompt before it, its maximum length in tokens, the
function that makes one row of the rows of its tokens, and whether that is normalised to length one. Declared as data,
so that a program stores it as JSON."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError

if TYPE_CHECKING:
    from opmatrix.algebra.term import Operator, Value

HiddenRows = NDArray[np.floating]
Starts = NDArray[np.integer]


# ---- pooling of rows into one


def sum_sentences(hidden: HiddenRows, starts: Starts) -> NDArray[np.float64]:
    """Return the sum of each sentence's rows."""
    sums = np.empty((len(starts) - 1, hidden.shape[1]))
    for row, (low, high) in zip(sums, pairwise(starts.tolist()), strict=True):  # takes a tenth of reduceat's time
        np.add.reduce(hidden[low:high], 0, dtype=np.float64, out=row)
    return sums


def lengths(starts: Starts) -> Starts:
    """Return the number of rows of each sentence, as a column."""
    return np.diff(starts)[:, None]


def weightedmean(hidden: HiddenRows, starts: Starts) -> HiddenRows:
    """Return the mean in which the k-th row of a sentence counts k times (Muennighoff 2022, section 3)."""
    count = lengths(starts)
    place = np.arange(1, starts[-1] + 1) - np.repeat(starts[:-1], count[:, 0])
    return sum_sentences(hidden * place[:, None], starts) / (count * (count + 1) / 2)


MODES: dict[str, Callable[[HiddenRows, Starts], HiddenRows]] = {  # (T, n) rows and S + 1 offsets to (S, n)
    "cls": lambda hidden, starts: hidden[starts[:-1]],
    "max": lambda hidden, starts: np.maximum.reduceat(hidden, starts[:-1], 0),
    "mean": lambda hidden, starts: sum_sentences(hidden, starts) / lengths(starts),
    "mean_sqrt_len_tokens": lambda hidden, starts: sum_sentences(hidden, starts) / np.sqrt(lengths(starts)),
    "weightedmean": weightedmean,
    "lasttoken": lambda hidden, starts: hidden[starts[1:] - 1],
}


def normalise_rows(vectors: HiddenRows) -> HiddenRows:
    """Return rows of length one in the same directions; a row of zeros stays."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalised: HiddenRows = vectors / np.maximum(norms, np.finfo(np.float64).tiny)
    return normalised


# ---- the declaration


@dataclass(frozen=True)
class Pooling:
    """The treatment of texts and rows; by default the mean of the rows, of length one (Reimers and Gurevych 2019,
    section 3).

    Results of several modes are put side by side. `prompt` comes before every text, `lower` makes both lower case, and
    texts are truncated to `max_seq_length` tokens, special ones included."""

    modes: tuple[str, ...] = ("mean",)
    normalise: bool = True
    max_seq_length: int | None = None
    prompt: str = ""
    lower: bool = False

    def __call__(self, hidden: HiddenRows, starts: Starts) -> HiddenRows:
        """Return one embedding a sentence: `hidden` is (T, n), `starts` the S + 1 row offsets of the sentences; the
        result is (S, n), with n times the number of modes if there are several. Raises ValueError for a sentence
        without rows."""
        if (rows := np.diff(starts)).min() < 1:
            raise ValueError(f"pooling: every sentence needs at least one row, but the lengths are {rows.tolist()}")
        pooled: HiddenRows = np.concatenate([MODES[mode](hidden, starts) for mode in self.modes], 1, dtype=np.float64)
        return (normalise_rows(pooled) if self.normalise else pooled).astype(hidden.dtype)

    def operator(self) -> "Operator":
        """Return the pooling as a term of the algebra, from rows of tokens to a row a sequence."""
        from opmatrix.algebra.monoids import max, mean
        from opmatrix.algebra.operators import given, pick, product, row, unit_length
        from opmatrix.algebra.term import formula

        terms: dict[str, Callable[[Value], Value]] = {
            "cls": lambda x: x @ pick("first"),
            "lasttoken": lambda x: x @ pick("last"),
            "max": lambda x: product(given("members"), x, over=max),
            "mean": lambda x: product(given("members"), x, over=mean),
            "mean_sqrt_len_tokens": lambda x: product(given("members_by_root"), x),
            "weightedmean": lambda x: product(given("members_by_place"), x),
        }
        pooled = formula(lambda x: row(*(terms[mode](x) for mode in self.modes)))
        return pooled @ unit_length() if self.normalise else pooled

    def described(self) -> dict[str, object]:
        """Return the pooling as JSON."""
        return asdict(self) | {"modes": [*self.modes]}

    @classmethod
    def parsed(cls, value: Any, where: str) -> "Pooling":
        """Return the pooling that `described` has written; the default for None. Raises InputError that names the
        entry."""
        if value is None:
            return cls()
        names = [*cls.__dataclass_fields__]
        whole = isinstance(value, dict) and sorted(value) == sorted(names)
        expect(whole, where, value, f"an object of {', '.join(names)}")
        at = f"{where}: ".__add__
        return cls(
            modes(value["modes"], at("modes")),
            truth(value["normalise"], at("normalise")),
            check_count(value["max_seq_length"], at("max_seq_length")),
            check_text(value["prompt"], at("prompt")),
            truth(value["lower"], at("lower")),
        )


MEAN, LAST = Pooling(), Pooling(("lasttoken",), normalise=False)  # poolings of encoders; of language models


# ---- allowed values of entries


def expect(holds: bool, where: str, value: object, wanted: str) -> None:
    """Raise InputError unless `holds` is true."""
    if not holds:
        raise InputError(f"{where} is {value!r:.60}, not {wanted}")


def truth(value: object, where: str) -> bool:
    """Check that an entry is a boolean. Raises InputError that names its place."""
    expect(isinstance(value, bool), where, value, "true or false")
    return bool(value)


def check_text(value: object, where: str) -> str:
    """Check that an entry is a text without surrogates. Raises InputError that names its place."""
    expect(isinstance(value, str) and not re.search("[\ud800-\udfff]", value), where, value, "valid Unicode")
    return str(value)


def check_count(value: Any, where: str) -> int | None:
    """Return a number of tokens, given as int or float, or None. Raises InputError for any other value."""
    whole = type(value) in (int, float) and value >= 1 and value % 1 == 0
    expect(value is None or whole, where, value, "a whole number above 0, or null")
    return None if value is None else int(value)


def modes(value: object, where: str) -> tuple[str, ...]:
    """Return one name, or several, as a tuple. Raises InputError for an unknown one."""
    names = value if isinstance(value, list) else [value]
    known = 0 < len(names) <= len(MODES) and all(isinstance(name, str) and name in MODES for name in names)
    expect(known, where, value, f"of {', '.join(MODES)}")
    return tuple(names)
