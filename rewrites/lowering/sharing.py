"""Constants that several parts of a model store alike: they are one constant. This file identifies it, and sets the
share of its bytes that each part pays."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from opmatrix.algebra.data import Data
from rewrites.egraph.layers import Part
from rewrites.extraction import Extraction, Node, Problem
from rewrites.lowering.kernel_matches import leaf
from rewrites.lowering.lower import ByPosition, Content, Lowering, Row, Stored, TermArray, Use
from rewrites.lowering.uncovered import read_array


def find_shared(lowering: Lowering, cls: Hashable) -> Hashable:
    """Return the content of a stored class that another part may read, too: tables of positions, arrays of terms, and,
    where the model has leaves in several places, weights and rows. None where it belongs to its part alone."""
    if isinstance(cls, Stored):
        return lowering.content(cls) if lowering.tied else None
    if isinstance(cls, Row):
        return lowering.terms[cls.constant] if lowering.tied else None
    if isinstance(cls, TermArray):
        return read_array(lowering.template.values, *cls)
    return tuple(lowering.tables(cls.cls)) if isinstance(cls, ByPosition) else None


def contents(lowering: Lowering, extraction: Extraction) -> dict[Use, Content | None]:
    """Return the content that each use of a part's program reads."""
    return {
        node.cls: lowering.content(lowering.held(node.cls, node.label))  # type: ignore[arg-type]
        for node in extraction.nodes
        if isinstance(node.cls, Use)
    }


def places(found: Sequence[dict[str, Part]]) -> dict[Data, int]:
    """Return the leaves that a model has as weights in several places, each with the number of places: in several
    parts, or both as it is and transposed."""
    seen: dict[Data, set[tuple[int, Data]]] = {}
    for number, by_state in enumerate(found):
        for data in {data for part in by_state.values() for data in part.template.weights}:
            seen.setdefault(leaf(data), set()).add((number, data))
    return {data: len(uses) for data, uses in seen.items() if len(uses) > 1}


class Rent(Protocol):
    """The share of the bytes of a stored constant that one part pays; problems of equal `key` pay the same."""

    def key(self, number: int) -> Hashable:
        """Return a key that is equal for parts that pay the same."""

    def share(self, number: int, lowering: Lowering, stored: Stored) -> float:
        """Return the share of a constant's bytes that this part pays, 0 to 1."""


class Shares:
    """Equal shares: a part pays one over the number of parts that could read the constant. No program then pays more
    than its bytes, so the cheapest cost under these shares is a lower bound for every program."""

    def __init__(self, users: Mapping[Hashable, int]) -> None:
        self.users = users

    def key(self, number: int) -> Hashable:
        """Return None: all parts pay the same."""
        return None

    def share(self, number: int, lowering: Lowering, stored: Stored) -> float:
        """Return one over the number of parts that could read the constant; 1 for one of a single part."""
        content = lowering.content(stored)
        return 1.0 if content is None else 1 / self.users[content]


def users(problems: Iterable[tuple[int, Lowering, Problem]]) -> Counter[Hashable]:
    """Return the number of parts that could read each stored content, from the problems of parts by number."""
    readers = {
        (number, find_shared(lowering, node.cls)) for number, lowering, problem in problems for node in problem.nodes
    }
    return Counter(content for _, content in readers if content is not None)


class OtherUses:
    """No cost for a constant that another part of the program stores already."""

    def __init__(self, parts: Sequence[dict[Use, Content | None]]) -> None:
        self.there = [
            frozenset(content for at, part in enumerate(parts) if at != number for content in part.values() if content)
            for number in range(len(parts))
        ]

    def key(self, number: int) -> Hashable:
        """Return the constants that other parts store, on which the shares depend."""
        return self.there[number]

    def share(self, number: int, lowering: Lowering, stored: Stored) -> float:
        """Return 0 for a constant that another part stores, else 1."""
        return float(lowering.content(stored) not in self.there[number])


def rented(problem: Problem, number: int, lowering: Lowering, rent: Rent) -> Problem:
    """Return the problem of a part that pays its share."""
    nodes = [
        node._replace(memory=node.memory * rent.share(number, lowering, node.cls))
        if isinstance(node.cls, Stored)
        else node
        for node in problem.nodes
    ]
    return problem._replace(nodes=nodes)


def restore_bytes(extraction: Extraction, problem: Problem) -> Extraction:
    """Return the extraction found under shares with the full bytes of its constants; cost and bound stay those of the
    shares."""
    true: dict[Hashable, Node] = {node.cls: node for node in problem.nodes if isinstance(node.cls, Stored)}
    nodes: tuple[Node, ...] = tuple(true.get(node.cls, node) for node in extraction.nodes)
    return replace(
        extraction, nodes=nodes, choice={node.cls: node for node in nodes}, memory=sum(node.memory for node in nodes)
    )
