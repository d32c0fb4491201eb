"""Extents: how large a batch is, in the sizes that shapes, plans and prices depend on.

    Extents({T: 512, S: 4, pairs[sequence & causal]: 143_360})

A live size (T: the rows, S: the sequences) has a number, and so has each pattern: the scores of one head that attention
computes for it, which leaves out tiles that nobody sees. In place of numbers may stand symbols: what is priced with
them is a formula."""
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

    def __str__(self) -> str: return f"pairs[{self.pattern}]"
    __repr__ = __str__


@dataclass(frozen=True)
class Entries:
    """The entries of a relation."""
    relation: Relation

    def __str__(self) -> str: return f"entries[{self.relation}]"
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
WHOLE = pairs[sequence]                                     # all scores: the sum of squared lengths
ExtentName = Size | PatternPairs | Entries
Amount: TypeAlias = "int | sympy.Expr"                       # a number, or an expression of symbols


class Missing(KeyError, ValueError):
    """Extents lack an entry: names it, and what is there."""
    def __str__(self) -> str: return str(self.args[0])


class Extents(Mapping[Any, "Amount"]):
    """A frozen mapping of live sizes, `pairs[pattern]` and `entries[relation]` to whole numbers from 0 on, or to
    expressions of symbols. A size is known by its name. Raises TypeError for what is no entry or no number, ValueError
    for a number that is negative or no whole one."""

    __slots__ = ("numbers",)

    def __init__(self, given: Mapping[Any, object]) -> None:
        self.numbers = {(name := as_entry(key)): as_count(name, value) for key, value in given.items()}

    @classmethod
    def made(cls, numbers: dict[ExtentName, Amount]) -> Self:
        """Extents of entries and numbers that are known to be right: nothing is checked."""
        made = cls.__new__(cls)
        made.numbers = numbers
        return made

    def __getitem__(self, key: Any) -> Amount:
        try: return self.numbers[key if type(key) in (Size, PatternPairs, Entries) else as_entry(key)]
        except KeyError:
            known = ", ".join(map(str, self.numbers)) or "nothing"
            raise Missing(f"extents: there is no {key}, only {known}: give {{{key}: …}}, or those of a batch, "
                          "batch.extents(patterns)") from None

    def __iter__(self) -> Iterator[ExtentName]: return iter(self.numbers)
    def __len__(self) -> int: return len(self.numbers)
    def __hash__(self) -> int: return hash(frozenset(self.numbers.items()))
    def __eq__(self, other: object) -> bool: return isinstance(other, Extents) and self.numbers == other.numbers
    def __repr__(self) -> str: return f"Extents({self.numbers})"

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return tuple(key.pattern for key in self.numbers if isinstance(key, PatternPairs))

    def mean(self, of: Iterable[int], parts: int) -> "Extents":
        """The mean extents of so many parts, which have sentences of these lengths together. What lengths do not say
        grows with the rows."""
        whole = counted([*of], [each for each in self.patterns if each.relation is None])
        share = whole[T] / self[T]
        return Extents.made({key: (whole[key] if key in whole else value * share) / parts
                             for key, value in self.numbers.items()})


def as_entry(key: object) -> ExtentName:
    """The entry that is meant. A size may be of formats.core.sizes, of opmatrix.algebra.shapes, or a name."""
    if isinstance(key, PatternPairs | Entries): return key
    if (getattr(key, "is_Symbol", False) or isinstance(key, str)) and str(key).isidentifier(): return size(str(key))
    raise TypeError(f"extents: {key!r:.80} is no entry: give a live size, such as T, pairs[pattern] or "
                    "entries[relation]")


def as_count(name: ExtentName, value: Any) -> Amount:
    """A whole number as an int, an expression as it is."""
    symbolic = isinstance(value, Size) or getattr(value, "free_symbols", None)
    if symbolic and not value.is_negative: return value
    if symbolic or isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        kind = ValueError if (isinstance(value, Number) and not isinstance(value, bool)) or symbolic else TypeError
        raise kind(f"extents: {name} is {value!r:.60}: it must be a whole number from 0 on, or made of symbols")
    return int(value)


def counted(lengths: Sequence[int] | NDArray[np.int64], patterns: Iterable[Pattern] = ()) -> Extents:
    """The extents of sentences of these lengths, with these patterns."""
    rows = np.asarray(lengths, np.int64)
    found: dict[ExtentName, Amount] = {T: int(rows.sum()), S: len(rows), WHOLE: int(rows @ rows)}
    return Extents.made(found | {pairs[each]: count_scores(each, rows) for each in patterns if each != sequence})


def count_scores(pattern: Pattern, lengths: NDArray[np.int64]) -> int:
    """How many scores of one head attention computes for sentences of these lengths; all where no kernel knows the
    pattern. ValueError for a sentence that is longer than the pattern's tables."""
    if pattern.limit is not None and (longest := lengths.max(initial=0)) > pattern.limit:
        raise ValueError(f"extents: a sentence of {longest} tokens: {pattern} knows {pattern.limit} positions")
    if not pattern.attends: return int(lengths @ lengths if pattern.within else lengths.sum() ** 2)
    sides, counts = np.unique(lengths, return_counts=True)
    return sum(int(count) * count_attended(pattern, int(side)) for side, count in zip(sides, counts, strict=True))


@lru_cache(4096)
def count_attended(pattern: Pattern, length: int) -> int:
    """How many scores of one head attention computes for one sentence of this length."""
    return attended(length, *pattern.reach) if pattern.reach else pattern.mask(length).attended(length)


def patterns(term: "Operator") -> tuple[Pattern, ...]:
    """The patterns of a model's products, each once; `everyone` is none."""
    found = dict.fromkeys(each for node in term.walk() for each in node.args if isinstance(each, Pattern))
    return tuple(each for each in found if each != everyone)


def collect_needs(*terms: "Operator") -> tuple[tuple[Pattern, ...], tuple[Port, ...], tuple[Relation, ...]]:
    """The patterns of models, the matrices that they are given, and the relations of spaces whose rows a batch does not
    tell."""
    args = dict.fromkeys(each for term in terms for node in term.walk() for each in node.args)
    return (tuple(dict.fromkeys(each for term in terms for each in patterns(term))),
            tuple(each for each in args if isinstance(each, Port)),
            tuple(each for each in args if isinstance(each, Relation) and each.custom))
