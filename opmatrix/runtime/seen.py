"""What of a batch a step reads: who sees whom in attention, the pattern that its text and its tables make, the mask
that its kernel reads, and the fields and relations of an interpreted term."""
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
    """The tables that a step's pattern speaks of."""
    return tuple(table for k in range(MAX_TABLES) if (table := getattr(a, f"mask{k}", None)) is not None)


def pattern(a: Arguments) -> Pattern:
    """Whom a step's queries see; a search knows the pattern itself."""
    return a.where if isinstance(a.where, Pattern) else parse(a.where, tables(a))


def patterns_seen(a: Arguments) -> tuple[Pattern, ...]:
    """The pattern of a step that says one."""
    return (pattern(a),) if hasattr(a, "where") else ()


def check_pattern(a: Arguments) -> None:
    """Raises ValueError where a kernel does not know the pattern of a step: nobody may see another sequence, every
    table is spoken of, and what is no range of positions is in float32."""
    found, given = pattern(a), len(tables(a))
    if not found.within: raise ValueError(f"where: {a.where!r} looks beyond sequences")
    if len(found.data) != given:
        raise ValueError(f"where: {a.where!r} speaks of {len(found.data)} tables, given {given}")
    if found.reach is None and getattr(a, "number_type", "float32") != "float32":
        raise ValueError(f"where: {a.where!r}: whom a query sees is no range of positions, which {a.number_type} "
                         "attention needs")


def check_reach(a: Arguments) -> None:
    """Raises ValueError where a step's queries see no ranges of positions, which is all that some kernels know."""
    check_pattern(a)
    if not pattern(a).reach: raise ValueError(f"where: {a.where!r}: whom a query sees is no range of positions")


def fields(a: Arguments) -> dict[str, int]:
    """The positions that the tables of a step know."""
    limit = pattern(a).limit
    return {} if limit is None else {"positions": limit}


def build_mask(where: str, tables: MaskTables, batch: Batch) -> Mask:
    """The mask of a pattern for the sentences of a batch. ValueError for a position that its tables do not know."""
    found = parse(where, tables)
    if found.limit is not None: batch.field("positions", found.limit)
    return found.mask(batch.rows)


def attributes_of_term(a: Arguments) -> Iterator[list[Any]]:
    """The attributes of each node of an interpreted term."""
    yield from (node[2] for node in json.loads(a.term) if len(node) == 3 and isinstance(node[2], list))


def relations_of_term(a: Arguments) -> tuple[Relation, ...]:
    """The relations that an interpreted step reads: where no value has rows of their spaces, they tell how many."""
    found: dict[Relation, None] = {}
    for attribute in chain.from_iterable(attributes_of_term(a)):
        match attribute:
            case {"relation": [name, rows, cols]}: found[relation(name, rows, cols)] = None
    return tuple(found)


def fields_of_term(a: Arguments) -> dict[str, int]:
    """The fields of the batch that an interpreted step reads, each with the number that all must be below."""
    least: dict[str, int] = {}
    for attributes in attributes_of_term(a):
        match attributes:
            case [str(name), int(limit), *_] if name in FIELDS: least[name] = min(limit, least.get(name, limit))
    return least
