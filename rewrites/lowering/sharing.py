"""What several parts of a model store alike is one constant: what it is, and how much of it each of them pays."""
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from opmatrix.algebra.data import Data
from rewrites.egraph.layers import Part
from rewrites.extraction import Extraction, Node, Problem
from rewrites.lowering.kernel_matches import leaf
from rewrites.lowering.lower import ByPosition, Content, Lowering, Stored, TermArray, Use
from rewrites.lowering.uncovered import read_array


def find_shared(lowering: Lowering, cls: Hashable) -> Hashable:
    """What a stored class holds that another part may read, too: tables of positions, arrays of terms, and where the
    model has leaves in several places, weights; None of what belongs to its part alone."""
    if isinstance(cls, Stored): return lowering.content(cls) if lowering.tied else None
    if isinstance(cls, TermArray): return read_array(lowering.template.values, *cls)
    return tuple(lowering.tables(cls.cls)) if isinstance(cls, ByPosition) else None


def contents(lowering: Lowering, extraction: Extraction) -> dict[Use, Content | None]:
    """What each use of a part's program reads."""
    return {node.cls: lowering.content(lowering.held(node.cls, node.label)) for node in extraction.nodes     # type: ignore[arg-type]
            if isinstance(node.cls, Use)}


def places(found: Sequence[dict[str, Part]]) -> dict[Data, int]:
    """The leaves that a model has as weights in several places, with how many: in several parts, or as they are and
    turned."""
    seen: dict[Data, set[tuple[int, Data]]] = {}
    for number, by_state in enumerate(found):
        for data in {data for part in by_state.values() for data in part.template.weights}:
            seen.setdefault(leaf(data), set()).add((number, data))
    return {data: len(each) for data, each in seen.items() if len(each) > 1}


class Rent(Protocol):
    """How much of the bytes of something stored one part pays; problems of equal `key` pay the same."""

    def key(self, number: int) -> Hashable: ...
    def share(self, number: int, lowering: Lowering, stored: Stored) -> float: ...


class Shares:
    """Each pays one share of as many as there are parts that could read it, so no program pays more than its bytes:
    what is cheapest so bounds every program."""

    def __init__(self, users: Mapping[Hashable, int]) -> None: self.users = users
    def key(self, number: int) -> Hashable: return None

    def share(self, number: int, lowering: Lowering, stored: Stored) -> float:
        content = lowering.content(stored)
        return 1.0 if content is None else 1 / self.users[content]


def users(problems: Iterable[tuple[int, Lowering, Problem]]) -> Counter[Hashable]:
    """How many parts could read what is stored: of the problems of parts, by number."""
    found = {(number, find_shared(lowering, node.cls)) for number, lowering, problem in problems
             for node in problem.nodes}
    return Counter(content for _, content in found if content is not None)


class OtherUses:
    """What another part of a program stores already is there for nothing."""

    def __init__(self, parts: Sequence[dict[Use, Content | None]]) -> None:
        self.there = [frozenset(content for at, part in enumerate(parts) if at != number for content in part.values()
                                if content)
                      for number in range(len(parts))]

    def key(self, number: int) -> Hashable: return self.there[number]

    def share(self, number: int, lowering: Lowering, stored: Stored) -> float:
        return float(lowering.content(stored) not in self.there[number])


def rented(problem: Problem, number: int, lowering: Lowering, rent: Rent) -> Problem:
    """The problem of a part that pays its share."""
    nodes = [node._replace(memory=node.memory * rent.share(number, lowering, node.cls)) if isinstance(node.cls, Stored)
             else node
             for node in problem.nodes]
    return problem._replace(nodes=nodes)


def restore_bytes(extraction: Extraction, problem: Problem) -> Extraction:
    """What was found for shares with the bytes that there are; cost and bound stay those of the shares."""
    true: dict[Hashable, Node] = {node.cls: node for node in problem.nodes if isinstance(node.cls, Stored)}
    nodes: tuple[Node, ...] = tuple(true.get(node.cls, node) for node in extraction.nodes)
    return replace(extraction, nodes=nodes, choice={node.cls: node for node in nodes},
                   memory=sum(node.memory for node in nodes))
