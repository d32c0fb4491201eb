"""Names of custom things: a function of numbers and a monoid are named by the graph of their effect on numbers, however
the Python is written; one that cannot be traced is named by its code."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np

from formats.disk.files import parse_json
from formats.kernels.generated.rowwise.scalar_graphs import name_graph
from formats.kernels.generated.rowwise.scalars import Untraceable
from opmatrix.algebra.custom.code_digests import describe_value, digest_code, digest_text
from opmatrix.algebra.custom.custom_names import enter_own, find_named, is_own_name
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import MONOIDS, is_known
from opmatrix.algebra.nodes import LASTING
from opmatrix.algebra.positions.patterns import NAMED_PATTERNS, NUMBERED_PATTERNS, Pattern
from opmatrix.algebra.term import KINDS, Kind, Operator
from opmatrix.runtime.codegen.merging import trace_monoid
from opmatrix.runtime.codegen.row_reading import traced_function

OUR_PACKAGES = "opmatrix", "rewrites"  # packages of our kinds, those of rewriting and training too
OwnThing: TypeAlias = Kind | type[Monoid] | Pattern


def name_kind(kind: Kind) -> str:
    """Return the name of a kind in programs: one of opmatrix by its name, a custom one with a digest."""
    ours = LASTING.get(kind.name) is kind or kind.body.__module__.partition(".")[0] in OUR_PACKAGES
    return kind.name if ours else enter_own(kind.body.__name__, digest_kind(kind), kind)


def name_monoid(over: type[Monoid]) -> str:
    """Return the name of a monoid in programs: one of opmatrix by its name, a custom one with a digest."""
    return over.__name__ if is_known(over) else enter_own(over.__name__, digest_monoid(over), over)


def find_kind(name: str) -> Kind | None:
    """Return the kind that a text names; None if there is none. Raises ValueError for a custom kind that is not
    declared."""
    return find_named(name, Kind) if is_own_name(name) else KINDS.get(name)


def find_unlasting(attributes: Mapping[str, object]) -> str | None:
    """Return the name of a kind in a step's term that no file may name, as only rewriting and training make it. None if
    there is none."""
    if not isinstance(text := attributes.get("term"), str):
        return None
    try:
        entries = parse_json(text, "term")
    except ValueError:
        return None
    named = [entry[0] for entry in entries if isinstance(entry, list) and entry] if isinstance(entries, list) else []
    return next((name for name in named if isinstance(name, str) and name in KINDS and name not in LASTING), None)


@cache
def digest_kind(kind: Kind) -> str:
    """Return a digest of the function of a kind: from its graph if it is a function of one number, else from its
    code."""
    if kind.matrix and not kind.signature.parameters and Operator(kind).entrywise:
        function = kind.body(0, 0)
        try:
            return name_graph(traced_function(function))
        except Untraceable:
            return digest_code(function)
    return digest_code(kind.body, kind.matrix, kind.dense)


def digest_monoid(over: type[Monoid]) -> str:
    """Return a digest of a monoid's merging, and of whether its order is free, on which bits depend."""
    # these functions are in the key of the cache, as a class may get others later
    return digest_functions(over, over.lift, over.merge, over.finish)  # type: ignore[arg-type]    # a class has a hash


@lru_cache(256)
def digest_functions(over: type[Monoid], lift: object, merge: object, finish: object) -> str:
    """Return a digest of a monoid with these functions."""
    parts = (
        describe_value([float(np.asarray(number)) for number in over.unit()]),
        repr(over.commutative),
        repr(over.width),
    )
    try:
        graphs = trace_monoid(over)
    except Untraceable:
        return digest_text(*parts, digest_code(lift, merge, finish))
    return digest_text(*parts, *map(name_graph, graphs[:3]), repr(graphs.used))


def our_names() -> dict[str, str]:
    """Return the names of opmatrix's kinds, monoids and patterns, with the kind of thing that each is."""
    return (
        dict.fromkeys([*NAMED_PATTERNS, *NUMBERED_PATTERNS, "mask", "coarse", "among"], "pattern")
        | dict.fromkeys([monoid.__name__ for monoid in MONOIDS], "monoid")
        | dict.fromkeys(LASTING, "function")
    )
