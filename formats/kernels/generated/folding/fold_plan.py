"""A product over a monoid, as its kernel is written of it: what scores are made of, what is merged, and which part of a
merge is of scores alone, so that it is computed once for all columns."""
from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from formats.kernels.generated.rowwise.scalar_graphs import count_work
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, apply, number

OF_VALUE, OF_ARRAY = "x", "c"                               # what an operand is: rows, or an array that is stored


class FoldOperand(NamedTuple):
    """A value or an array by its number: so many heads, each of so many columns."""
    kind: str
    number: int
    heads: int
    cols: int

    @property
    def word(self) -> str: return f"{self.kind}{self.number}"


class Folding(NamedTuple):
    """What pairs of numbers are merged to: graphs of a score, a number and an index; of two carriers; of one carrier.
    `unit` is the carrier of nothing; `ordinary`: it is the sum of products."""
    lift: NumberGraph
    merge: NumberGraph
    finish: NumberGraph
    unit: tuple[float, ...]
    ordinary: bool = False

    @property
    def width(self) -> int: return len(self.finish.outputs)


class ScoreLeaf(NamedTuple):
    """What scores are made of. `row`: numbers of a query's row, one a key; `query`, `key`, `head`: one number of each;
    `distance`: one of a head's row of a table, by how far the key lies behind the query; `pairs`: a row of the query
    and one of the key, merged column by column."""
    kind: str
    left: FoldOperand
    right: FoldOperand | None = None
    inner: Folding | None = None

    @property
    def operands(self) -> list[FoldOperand]: return [each for each in (self.left, self.right) if each is not None]


class FoldPlan(NamedTuple):
    """Scores, as a graph of leaves, merged with the rows of `right`, which is a value with a row a key, or an array of
    `keys` rows. `masked`: who sees whom is a pattern's, within sequences; `ranged`: its keys lie one behind another;
    `sparse`: scores are the entries of a sparse matrix, and there are no leaves."""
    leaves: tuple[ScoreLeaf, ...]
    score: NumberGraph
    folding: Folding
    right: FoldOperand
    keys: int | None
    masked: bool
    sparse: bool = False
    ranged: bool = False

    @property
    def sole(self) -> StandIn | None:
        """The score, where it is one number for all."""
        [found] = self.score.outputs
        return found if found.op == "literal" else None

    @property
    def fixed(self) -> bool:
        """Whether the score is one number for all queries and keys of a head."""
        return not self.sparse and all(leaf.kind == "head" for leaf in self.leaves)

    @property
    def words(self) -> list[str]:
        """The words of its operands in the record of a call."""
        return [f"{each.word}{what}" for each in self.operands
                for what in (("", "_row", "_head", "_of") if each.kind == OF_VALUE else ("", "_head"))]

    @property
    def operands(self) -> list[FoldOperand]:
        """All that it reads, each once."""
        return [*dict.fromkeys((*(each for leaf in self.leaves for each in leaf.operands), self.right))]

    @property
    def heads(self) -> int: return max(each.heads for each in self.operands)

    @property
    def cols(self) -> int: return self.right.cols * self.folding.width


def same_number(node: StandIn, args: list[StandIn]) -> StandIn: return apply(node.op, *args)


class MergeStep:
    """The carriers after one more pair, as a graph of the carriers before, the score, the number and the index; parted
    into what is of scores alone and what is of the number, too."""

    def __init__(self, folding: Folding, score: StandIn | None = None) -> None:
        self.folding, count = folding, len(folding.unit)
        *carriers, own, self.factor, self.index = (StandIn("input", value=float(k)) for k in range(count + 3))
        self.carriers, self.score = carriers, own if score is None else score
        lifted = folding.lift.fill([self.score, self.factor, self.index], number, same_number)
        self.merged = folding.merge.fill([*carriers, *lifted], number, same_number)
        by_factor: set[int] = set()
        while fresh := {k for k, each in enumerate(self.merged) if k not in by_factor and self.needs(each, by_factor)}:
            by_factor |= fresh
        self.by_factor = [k for k in range(count) if k in by_factor]
        self.by_score = [k for k in range(count) if k not in by_factor]

    def needs(self, node: StandIn, by_factor: Iterable[int]) -> bool:
        """Whether a number is made of the factor, or of carriers that are."""
        wanted = {id(self.factor), *(id(self.carriers[k]) for k in by_factor)}
        return any(id(each) in wanted for each in NumberGraph(0, (node,)).walk())

    @cached_property
    def handed(self) -> list[StandIn]:
        """The numbers of scores alone that what is of factors needs, the outermost ones; no literals."""
        found: dict[int, StandIn] = {}
        todo = [self.merged[k] for k in self.by_factor]
        while todo:
            node = todo.pop()
            if node is self.factor or id(node) in {id(self.carriers[k]) for k in self.by_factor}: continue
            if self.needs(node, self.by_factor): todo += reversed(node.args)
            elif node.op != "literal": found[id(node)] = node
        return [*found.values()]

    @property
    def stored(self) -> list[StandIn]:
        """What is handed over through memory: not the score, which is there, and not the index."""
        return [each for each in self.handed if each is not self.score and each is not self.index]

    @property
    def work(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Simple and slow operations of a pair: of scores alone, and of each number."""
        own = count_work(NumberGraph(0, (*(self.merged[k] for k in self.by_score), *self.stored)))
        return own, count_work(NumberGraph(0, tuple(self.merged[k] for k in self.by_factor)), self.handed)
