"""Pooling: the way a model makes one embedding of a text: the prompt before it, its maximum length in tokens, the
function that makes one row of the rows of its tokens, and whether that is normalised to length one. Declared as data,
so that a program stores it as JSON."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.inference.scores.late_rows import LateRows

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


def weightedmean(hidden: HiddenRows, starts: Starts, left: int) -> HiddenRows:
    """Return the mean in which the k-th row of a sentence counts k times (Muennighoff 2022, section 3). `left`: the
    number of rows that were left out in front of each."""
    count = lengths(starts)
    place = np.arange(1, starts[-1] + 1) - np.repeat(starts[:-1], count[:, 0]) + left
    return sum_sentences(hidden * place[:, None], starts) / (count * (count + 1) / 2 + left * count)


# (T, n) rows, S + 1 offsets, and the number of rows left out before each sentence, to (S, n)
MODES: dict[str, Callable[[HiddenRows, Starts, int], HiddenRows]] = {
    "cls": lambda hidden, starts, left: hidden[starts[:-1]],
    "max": lambda hidden, starts, left: np.maximum.reduceat(hidden, starts[:-1], 0),
    "mean": lambda hidden, starts, left: sum_sentences(hidden, starts) / lengths(starts),
    "mean_sqrt_len_tokens": lambda hidden, starts, left: sum_sentences(hidden, starts) / np.sqrt(lengths(starts)),
    "weightedmean": weightedmean,
    "lasttoken": lambda hidden, starts, left: hidden[starts[1:] - 1],
}
# names of prompts for queries and for documents, of which the first that there is counts
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
SIMILARITIES = "cosine", "dot", "euclidean", "manhattan"
LATE_SIMILARITIES = "maxsim", "meanmaxsim"  # of rows of tokens with rows of tokens
STRATEGIES = "max", "sum"  # poolings of scores of the vocabulary
SPARSE_FORMS = {"relu": 1, "log1p_relu": 2}  # logarithms of 1 + relu that scores of the vocabulary go through


def leave_out(hidden: HiddenRows, starts: Starts, left: int) -> tuple[HiddenRows, Starts]:
    """Return rows and offsets without the first `left` rows of each sentence. Raises InputError for one that has no
    more."""
    if not left:
        return hidden, starts
    if (rows := np.diff(starts)).min() <= left:
        raise InputError(
            f"a text has {rows.min()} tokens, and the prompt, which is not pooled here, has {left} of them: "
            "take a shorter prompt, or a greater max_seq_length"
        )
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], rows)
    return hidden[place >= left], starts - left * np.arange(len(starts))


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
    texts are truncated to `max_seq_length` tokens, special ones included. `prompts` are others, by name;
    `include_prompt` is false where the rows of a prompt are not pooled. `layers` names layers behind the pooled rows,
    which only a program that pools has. `width` is the number of columns that are kept, and `similarity` the function
    that embeddings are compared by, if files declare them. `sparse` is one of SPARSE_FORMS where rows are scores of the
    vocabulary and embeddings are sparse, of which the `active` greatest numbers are kept; else empty. `late`: rows of
    tokens stay rows, for late interaction."""

    modes: tuple[str, ...] = ("mean",)
    normalise: bool = True
    max_seq_length: int | None = None
    prompt: str = ""
    lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    include_prompt: bool = True
    layers: tuple[str, ...] = ()
    width: int | None = None
    similarity: str | None = None
    sparse: str = ""
    active: int | None = None
    late: LateRows | None = None

    def __call__(self, hidden: HiddenRows, starts: Starts, left: int = 0) -> HiddenRows:
        """Return one embedding a sentence: `hidden` is (T, n), `starts` the S + 1 row offsets of the sentences; the
        result is (S, n), with n times the number of modes if there are several. The first `left` rows of each sentence
        are not pooled. Raises ValueError for a sentence without rows, InputError for layers behind the pooled rows."""
        if self.late:
            raise InputError("a model of rows for late interaction has no embedding of a text: om.MultiVectorEncoder")
        if self.layers or self.sparse:
            behind = ", ".join(self.layers) or "the head of sparse rows"
            raise InputError(
                f"{behind}: it comes behind the pooled rows, and this program gives a row for each "
                "token: optimize again with --output pooled"
            )
        if (rows := np.diff(starts)).min() < 1:
            raise ValueError(f"pooling: every sentence needs at least one row, but the lengths are {rows.tolist()}")
        rest, offsets = leave_out(hidden, starts, left)
        each_mode = [MODES[mode](rest, offsets, left) for mode in self.modes]
        pooled: HiddenRows = np.concatenate(each_mode, 1, dtype=np.float64)
        return (normalise_rows(pooled) if self.normalise else pooled).astype(hidden.dtype)

    def named_prompt(self, name: str) -> str:
        """Return the prompt of that name. Raises InputError, which lists the names, if there is none."""
        if name in self.prompts:
            return self.prompts[name]
        raise InputError(
            f"prompt {name!r:.60}: there is none of this name: there are {', '.join(self.prompts) or 'none'}"
        )

    def operator(self, *behind: "Operator") -> "Operator":
        """Return the pooling as a term of the algebra, from rows of tokens to a row a sequence. `behind`: layers that
        the pooled rows go through before they are normalised."""
        from opmatrix.algebra.monoids import max, mean
        from opmatrix.algebra.operators import I, given, pick, product, row, unit_length
        from opmatrix.algebra.term import formula

        terms: dict[str, Callable[[Value], Value]] = {
            "cls": lambda x: x @ pick("first"),
            "lasttoken": lambda x: x @ pick("last"),
            "max": lambda x: product(given("members"), x, over=max),
            "mean": lambda x: product(given("members"), x, over=mean),
            "mean_sqrt_len_tokens": lambda x: product(given("members_by_root"), x),
            "weightedmean": lambda x: product(given("members_by_place"), x),
            "sum": lambda x: product(given("members"), x),
        }
        if self.sparse:
            return self.sparse_rows(formula(terms[self.modes[0]]))
        pooled = I if self.late else formula(lambda x: row(*(terms[mode](x) for mode in self.modes)))
        for layer in behind:
            pooled = pooled @ layer
        return pooled @ unit_length() if self.normalise else pooled

    def sparse_rows(self, pooled: "Operator") -> "Operator":
        """Return the logarithms of scores of the vocabulary, pooled (Formal et al. 2021, arXiv:2107.05720, 2109.10086).
        The maximum of logarithms is the logarithm of the maximum, which is one for each token of the vocabulary."""
        from opmatrix.algebra.operators import I, log1p_relu

        logarithms = I
        for _ in range(SPARSE_FORMS[self.sparse]):
            logarithms = logarithms @ log1p_relu
        return pooled @ logarithms if self.modes[0] == "max" else logarithms @ pooled

    def described(self) -> dict[str, object]:
        """Return the pooling as JSON. Entries that programs of earlier versions have not are left out if they have
        their defaults."""
        entries = asdict(self) | {"modes": [*self.modes], "layers": [*self.layers]}
        entries["late"] = self.late.described() if self.late else None
        usual = asdict(Pooling()) | {"layers": []}
        return {name: entry for name, entry in entries.items() if name not in LATER or entry != usual[name]}

    @classmethod
    def parsed(cls, value: Any, where: str) -> "Pooling":
        """Return the pooling that `described` has written; the default for None. Raises InputError that names the
        entry."""
        if value is None:
            return cls()
        names = [entry.name for entry in fields(cls)]
        whole = isinstance(value, dict) and {*names} - LATER <= value.keys() <= {*names}
        expect(whole, where, value, f"an object of {', '.join(names)}")
        at = f"{where}: ".__add__
        sparse = check_sparse(value.get("sparse", ""), at("sparse"))
        late = LateRows.parsed(value.get("late"), at("late"))
        return cls(
            modes(value["modes"], at("modes"), STRATEGIES if sparse else MODES),
            truth(value["normalise"], at("normalise")),
            check_count(value["max_seq_length"], at("max_seq_length")),
            check_text(value["prompt"], at("prompt")),
            truth(value["lower"], at("lower")),
            check_prompts(value.get("prompts", {}), at("prompts")),
            truth(value.get("include_prompt", True), at("include_prompt")),
            check_names(value.get("layers", []), at("layers")),
            check_count(value.get("width"), at("width")),
            check_similarity(value.get("similarity"), at("similarity"), LATE_SIMILARITIES if late else SIMILARITIES),
            sparse,
            check_count(value.get("active"), at("active")),
            late,
        )


# entries of 0.21 and later
LATER = frozenset({"prompts", "include_prompt", "layers", "width", "similarity", "sparse", "active", "late"})
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


def check_prompts(value: object, where: str) -> dict[str, str]:
    """Check prompts by name; null is an empty one. Raises InputError that names the place."""
    expect(isinstance(value, dict), where, value, "an object of texts")
    assert isinstance(value, dict)
    return {name: check_text("" if text is None else text, f"{where}: {name}") for name, text in value.items()}


def check_names(value: object, where: str) -> tuple[str, ...]:
    """Check a list of names. Raises InputError that names its place."""
    expect(isinstance(value, list), where, value, "a list of names")
    assert isinstance(value, list)
    return tuple(check_text(name, where) for name in value)


def check_similarity(value: object, where: str, known: Collection[str] = SIMILARITIES) -> str | None:
    """Check the name of a similarity, or None. Raises InputError that names its place."""
    expect(value is None or value in known, where, value, f"of {', '.join(known)}")
    return None if value is None else str(value)


def check_sparse(value: object, where: str) -> str:
    """Check the name of a form of sparse rows, or an empty one. Raises InputError that names its place."""
    expect(value == "" or value in SPARSE_FORMS, where, value, f"of {', '.join(SPARSE_FORMS)}")
    return str(value)


def check_count(value: Any, where: str) -> int | None:
    """Return a number of tokens, given as int or float, or None. Raises InputError for any other value."""
    whole = type(value) in (int, float) and value >= 1 and value % 1 == 0
    expect(value is None or whole, where, value, "a whole number above 0, or null")
    return None if value is None else int(value)


def modes(value: object, where: str, every: Collection[str] = MODES.keys()) -> tuple[str, ...]:
    """Return one name, or several, as a tuple. Raises InputError for an unknown one."""
    names = value if isinstance(value, list) else [value]
    known = 0 < len(names) <= len(every) and all(isinstance(name, str) and name in every for name in names)
    expect(known, where, value, f"of {', '.join(every)}")
    return tuple(names)
