"""The parts of a batch that a step reads: the rows that see one another in attention, the pattern from its text and its
tables, the mask that its kernel reads, and the fields and relations of an interpreted term."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from formats.storage.masks import Mask
from opmatrix.algebra.batch.batch import FIELDS, Batch
from opmatrix.algebra.batch.relations import Relation, relation
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.positions.patterns import MAX_TABLES, Pattern, parse
from opmatrix.runtime.declarations.arguments import Arguments

MaskTables = tuple[Numeric, ...]


def tables(a: Arguments) -> MaskTables:
    """Return the tables of a step's pattern."""
    return tuple(table for k in range(MAX_TABLES) if (table := getattr(a, f"mask{k}", None)) is not None)


def pattern(a: Arguments) -> Pattern:
    """Return the pattern of the keys that a step's queries see; in a search the step has the pattern itself."""
    return a.where if isinstance(a.where, Pattern) else parse(a.where, tables(a))


def patterns_seen(a: Arguments) -> tuple[Pattern, ...]:
    """Return the pattern of a step that has one."""
    return (pattern(a),) if hasattr(a, "where") else ()


def check_pattern(a: Arguments) -> None:
    """Raise ValueError if a kernel does not support the pattern of a step: no row may see another sequence, every table
    must be used, and a pattern that is no range of positions needs float32."""
    seen, count = pattern(a), len(tables(a))
    if not seen.within:
        raise ValueError(f"where: {a.where!r} looks beyond sequences")
    if len(seen.data) != count:
        raise ValueError(f"where: {a.where!r} refers to {len(seen.data)} tables, got {count}")
    if seen.reach is None and getattr(a, "number_type", "float32") != "float32":
        raise ValueError(
            f"where: {a.where!r}: the keys that a query sees are not a contiguous range of positions, which "
            f"{a.number_type} attention needs"
        )


def check_reach(a: Arguments) -> None:
    """Raise ValueError if a step's queries see no range of positions, which some kernels require."""
    check_pattern(a)
    if not pattern(a).reach:
        raise ValueError(f"where: {a.where!r}: the keys that a query sees are not a contiguous range of positions")


def fields(a: Arguments) -> dict[str, int]:
    """Return the limit of positions that the tables of a step cover."""
    limit = pattern(a).limit
    return {} if limit is None else {"positions": limit}


def build_mask(where: str, tables: MaskTables, batch: Batch) -> Mask:
    """Return the mask of a pattern for the sentences of a batch. Raises ValueError for a position that its tables do
    not cover."""
    parsed = parse(where, tables)
    if parsed.limit is not None:
        batch.field("positions", parsed.limit)
    return parsed.mask(batch.rows)


def attributes_of_term(a: Arguments) -> Iterator[list[Any]]:
    """Yield the attributes of each node of an interpreted term."""
    yield from (node[2] for node in json.loads(a.term) if len(node) == 3 and isinstance(node[2], list))


def relations_of_term(a: Arguments) -> tuple[Relation, ...]:
    """Return the relations that an interpreted step reads: if no value has rows of their spaces, they give the number
    of rows."""
    relations: dict[Relation, None] = {}
    for attribute in chain.from_iterable(attributes_of_term(a)):
        match attribute:
            case {"relation": [name, rows, cols]}:
                relations[relation(name, rows, cols)] = None
    return tuple(relations)


def fields_of_term(a: Arguments) -> dict[str, int]:
    """Return the fields of the batch that an interpreted step reads, each with the number that all ids must be
    below."""
    least: dict[str, int] = {}
    for attributes in attributes_of_term(a):
        match attributes:
            case [str(name), int(limit), *_] if name in FIELDS:
                least[name] = min(limit, least.get(name, limit))
    return least
