"""A product over a monoid, as its kernel is written from it: the leaves of scores, the merge, and the part of a merge
that depends on scores alone, so that it is computed once for all columns."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from formats.kernels.generated.rowwise.scalar_graphs import count_work
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, apply, number

OF_VALUE, OF_ARRAY = "x", "c"  # kinds of operand: rows of a value, or a stored array


class FoldOperand(NamedTuple):
    """A value or an array, by its number, with its heads and the columns of a head."""

    kind: str
    number: int
    heads: int
    cols: int

    @property
    def word(self) -> str:
        return f"{self.kind}{self.number}"


class Folding(NamedTuple):
    """A merge of pairs of numbers, as graphs: `lift` of a score, a number and an index; `merge` of two carriers;
    `finish` of one carrier. `unit` is the carrier of no pairs; `ordinary`: the merge is the sum of products."""

    lift: NumberGraph
    merge: NumberGraph
    finish: NumberGraph
    unit: tuple[float, ...]
    ordinary: bool = False

    @property
    def width(self) -> int:
        return len(self.finish.outputs)


class ScoreLeaf(NamedTuple):
    """One input of the scores. `row`: numbers of a query's row, one for each key; `query`, `key`, `head`: one number
    for each of them; `distance`: a number of a head's row of a table, by the distance of the key behind the query;
    `pairs`: a row of the query and a row of the key, merged column by column."""

    kind: str
    left: FoldOperand
    right: FoldOperand | None = None
    inner: Folding | None = None

    @property
    def operands(self) -> list[FoldOperand]:
        return [operand for operand in (self.left, self.right) if operand is not None]


class FoldPlan(NamedTuple):
    """Scores, as a graph of leaves, merged with the rows of `right`, which is a value with a row for each key, or an
    array of `keys` rows. `masked`: a pattern says which query sees which key, within sequences; `ranged`: the keys of a
    query are consecutive; `sparse`: scores are the entries of a sparse matrix, and there are no leaves."""

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
        """The score, if it is one number for all queries and keys; else None."""
        [score] = self.score.outputs
        return score if score.op == "literal" else None

    @property
    def fixed(self) -> bool:
        """True if the score is one number for all queries and keys of a head."""
        return not self.sparse and all(leaf.kind == "head" for leaf in self.leaves)

    @property
    def words(self) -> list[str]:
        """The words of its operands in the record of a call."""
        return [
            f"{operand.word}{what}"
            for operand in self.operands
            for what in (("", "_row", "_head", "_of") if operand.kind == OF_VALUE else ("", "_head"))
        ]

    @property
    def operands(self) -> list[FoldOperand]:
        """All operands that it reads, each once."""
        return [*dict.fromkeys((*(operand for leaf in self.leaves for operand in leaf.operands), self.right))]

    @property
    def heads(self) -> int:
        return max(operand.heads for operand in self.operands)

    @property
    def cols(self) -> int:
        return self.right.cols * self.folding.width


def same_number(node: StandIn, args: list[StandIn]) -> StandIn:
    return apply(node.op, *args)


class MergeStep:
    """The carriers after one more pair, as a graph of the carriers before, the score, the number and the index. It is
    split into the carriers that depend on scores alone and those that depend on the number, too."""

    def __init__(self, folding: Folding, score: StandIn | None = None) -> None:
        self.folding, count = folding, len(folding.unit)
        *carriers, score_input, self.factor, self.index = (StandIn("input", value=float(k)) for k in range(count + 3))
        self.carriers, self.score = carriers, score_input if score is None else score
        lifted = folding.lift.fill([self.score, self.factor, self.index], number, same_number)
        self.merged = folding.merge.fill([*carriers, *lifted], number, same_number)
        by_factor: set[int] = set()
        while fresh := {k for k, node in enumerate(self.merged) if k not in by_factor and self.needs(node, by_factor)}:
            by_factor |= fresh
        self.by_factor = [k for k in range(count) if k in by_factor]
        self.by_score = [k for k in range(count) if k not in by_factor]

    def needs(self, node: StandIn, by_factor: Iterable[int]) -> bool:
        """True if a number is computed from the factor, or from the carriers `by_factor`."""
        wanted = {id(self.factor), *(id(self.carriers[k]) for k in by_factor)}
        return any(id(part) in wanted for part in NumberGraph(0, (node,)).walk())

    @cached_property
    def handed(self) -> list[StandIn]:
        """The outermost numbers of scores alone that the carriers of factors need; no literals."""
        outermost: dict[int, StandIn] = {}
        todo = [self.merged[k] for k in self.by_factor]
        while todo:
            node = todo.pop()
            if node is self.factor or id(node) in {id(self.carriers[k]) for k in self.by_factor}:
                continue
            if self.needs(node, self.by_factor):
                todo += reversed(node.args)
            elif node.op != "literal":
                outermost[id(node)] = node
        return [*outermost.values()]

    @property
    def stored(self) -> list[StandIn]:
        """The numbers of `handed` that are passed through memory: all but the score, which is in memory already, and
        the index."""
        return [node for node in self.handed if node is not self.score and node is not self.index]

    @property
    def work(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Simple and slow operations of a pair: those of scores alone, and those of each number."""
        of_scores = count_work(NumberGraph(0, (*(self.merged[k] for k in self.by_score), *self.stored)))
        return of_scores, count_work(NumberGraph(0, tuple(self.merged[k] for k in self.by_factor)), self.handed)
