"""Extents: how large a batch is, in the sizes that shapes, plans and prices depend on.

    Extents({T: 512, S: 4, pairs[sequence & causal]: 143_360})

A live size (T: the rows, S: the sequences) has a number, and so has each pattern: the scores of one head that attention
computes for it, which leaves out tiles that no row sees. Symbols may stand in place of numbers: a price in symbols is a
formula."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Number
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.sizes import S, Size, T, size
from formats.storage.masks import attended
from opmatrix.algebra.batch.relations import Relation, parse_relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.positions.patterns import Pattern, everyone, parse, sequence

if TYPE_CHECKING:
    import sympy

    from opmatrix.algebra.term import Operator

__all__ = ["Extents", "S", "T", "collect_needs", "counted", "entries", "pairs", "patterns"]


@dataclass(frozen=True)
class PatternPairs:
    """The scores of one head that a pattern holds, as attention computes them."""

    pattern: Pattern

    def __str__(self) -> str:
        return f"pairs[{self.pattern}]"

    __repr__ = __str__


@dataclass(frozen=True)
class Entries:
    """The entries of a relation."""

    relation: Relation

    def __str__(self) -> str:
        return f"entries[{self.relation}]"

    __repr__ = __str__


class Each:
    """`pairs[pattern]`, of a pattern or of its text."""

    def __getitem__(self, pattern: Pattern | str) -> PatternPairs:
        return PatternPairs(parse(pattern) if isinstance(pattern, str) else pattern)


class EachRelation:
    """`entries[relation]`, of a relation or of its text."""

    def __getitem__(self, relation: Relation | str) -> Entries:
        return Entries(parse_relation(relation) if isinstance(relation, str) else relation)


pairs, entries = Each(), EachRelation()
WHOLE = pairs[sequence]  # all scores: the sum of squared lengths
ExtentName = Size | PatternPairs | Entries
Amount: TypeAlias = "int | sympy.Expr"  # a number, or an expression of symbols


class Missing(KeyError, ValueError):
    """An error: extents lack an entry. The text names it, and the entries that are there."""

    def __str__(self) -> str:
        return str(self.args[0])


class Extents(Mapping[Any, "Amount"]):
    """A frozen mapping of live sizes, `pairs[pattern]` and `entries[relation]` to whole numbers from 0 on, or to
    expressions of symbols. A size is known by its name. Raises TypeError for a key that is no entry and a value that is
    no number, ValueError for a number that is negative or not whole."""

    __slots__ = ("numbers",)

    def __init__(self, given: Mapping[Any, object]) -> None:
        self.numbers = {(name := as_entry(key)): as_count(name, value) for key, value in given.items()}

    @classmethod
    def made(cls, numbers: dict[ExtentName, Amount]) -> Self:
        """Build extents of entries and numbers that are known to be right, without checks."""
        extents = cls.__new__(cls)
        extents.numbers = numbers
        return extents

    def __getitem__(self, key: Any) -> Amount:
        try:
            return self.numbers[key if type(key) in (Size, PatternPairs, Entries) else as_entry(key)]
        except KeyError:
            known = ", ".join(map(str, self.numbers)) or "nothing"
            raise Missing(
                f"extents: there is no {key}, only {known}: give {{{key}: …}}, or the extents of a batch, "
                "batch.extents(patterns)"
            ) from None

    def __iter__(self) -> Iterator[ExtentName]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __hash__(self) -> int:
        return hash(frozenset(self.numbers.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extents) and self.numbers == other.numbers

    def __repr__(self) -> str:
        return f"Extents({self.numbers})"

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns whose counts of visible pairs are among the sizes."""
        return tuple(key.pattern for key in self.numbers if isinstance(key, PatternPairs))

    def mean(self, of: Iterable[int], parts: int) -> "Extents":
        """Return the mean extents of `parts` parts, whose sentences have these lengths together. Numbers that lengths
        do not determine grow with the rows."""
        whole = counted([*of], [pattern for pattern in self.patterns if pattern.relation is None])
        share = whole[T] / self[T]
        return Extents.made(
            {key: (whole[key] if key in whole else value * share) / parts for key, value in self.numbers.items()}
        )


def as_entry(key: object) -> ExtentName:
    """Return the entry that is meant. A size may be of formats.core.sizes, of opmatrix.algebra.shapes, or a name."""
    if isinstance(key, PatternPairs | Entries):
        return key
    if (getattr(key, "is_Symbol", False) or isinstance(key, str)) and str(key).isidentifier():
        return size(str(key))
    raise TypeError(
        f"extents: {key!r:.80} is not an entry: give a live size, such as T, pairs[pattern] or entries[relation]"
    )


def as_count(name: ExtentName, value: Any) -> Amount:
    """Return a whole number as an int, an expression as it is."""
    symbolic = isinstance(value, Size) or getattr(value, "free_symbols", None)
    if symbolic and not value.is_negative:
        return value
    if symbolic or isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        kind = ValueError if (isinstance(value, Number) and not isinstance(value, bool)) or symbolic else TypeError
        raise kind(
            f"extents: {name} is {value!r:.60}: it must be a whole number from 0 on, or an expression of symbols"
        )
    return int(value)


def counted(lengths: Sequence[int] | NDArray[np.int64], patterns: Iterable[Pattern] = ()) -> Extents:
    """Count the extents of sentences of these lengths, with these patterns."""
    rows = np.asarray(lengths, np.int64)
    numbers: dict[ExtentName, Amount] = {T: int(rows.sum()), S: len(rows), WHOLE: int(rows @ rows)}
    return Extents.made(
        numbers | {pairs[pattern]: count_scores(pattern, rows) for pattern in patterns if pattern != sequence}
    )


def count_scores(pattern: Pattern, lengths: NDArray[np.int64]) -> int:
    """Count the scores of one head that attention computes for sentences of these lengths; all scores where no kernel
    knows the pattern. Raises ValueError for a sentence that is longer than the pattern's tables."""
    if pattern.limit is not None and (longest := lengths.max(initial=0)) > pattern.limit:
        raise ValueError(f"extents: a sentence of {longest} tokens: {pattern} has {pattern.limit} positions")
    if not pattern.attends:
        return int(lengths @ lengths if pattern.within else lengths.sum() ** 2)
    sides, counts = np.unique(lengths, return_counts=True)
    return sum(int(count) * count_attended(pattern, int(side)) for side, count in zip(sides, counts, strict=True))


@lru_cache(4096)
def count_attended(pattern: Pattern, length: int) -> int:
    """Count the scores of one head that attention computes for one sentence of this length."""
    return attended(length, *pattern.reach) if pattern.reach else pattern.mask(length).attended(length)


def patterns(term: "Operator") -> tuple[Pattern, ...]:
    """Return the patterns of a model's products, each once, without `everyone`."""
    distinct = dict.fromkeys(arg for node in term.walk() for arg in node.args if isinstance(arg, Pattern))
    return tuple(pattern for pattern in distinct if pattern != everyone)


def collect_needs(*terms: "Operator") -> tuple[tuple[Pattern, ...], tuple[Port, ...], tuple[Relation, ...]]:
    """Collect the patterns of models, the input matrices that they are given, and the relations of spaces whose number
    of rows a batch does not tell."""
    args = dict.fromkeys(arg for term in terms for node in term.walk() for arg in node.args)
    return (
        tuple(dict.fromkeys(pattern for term in terms for pattern in patterns(term))),
        tuple(arg for arg in args if isinstance(arg, Port)),
        tuple(arg for arg in args if isinstance(arg, Relation) and arg.custom),
    )
