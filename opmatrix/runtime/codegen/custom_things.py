"""Things of one's own, named: a function of numbers and a monoid by the graph of what they do to numbers, whatever
Python says it; what cannot be followed so, by its code."""
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

OUR_PACKAGES = "opmatrix", "rewrites"                       # whose kinds are ours, those of rewriting and training too
OwnThing: TypeAlias = Kind | type[Monoid] | Pattern


def name_kind(kind: Kind) -> str:
    """What programs call a kind: one of opmatrix's by its name, one's own with a digest."""
    ours = LASTING.get(kind.name) is kind or kind.body.__module__.partition(".")[0] in OUR_PACKAGES
    return kind.name if ours else enter_own(kind.body.__name__, digest_kind(kind), kind)


def name_monoid(over: type[Monoid]) -> str:
    """What programs call a monoid: one of opmatrix's by its name, one's own with a digest."""
    return over.__name__ if is_known(over) else enter_own(over.__name__, digest_monoid(over), over)


def find_kind(name: str) -> Kind | None:
    """The kind that a text names; None where there is none. ValueError for one's own that nobody has declared."""
    return find_named(name, Kind) if is_own_name(name) else KINDS.get(name)


def find_unlasting(attributes: Mapping[str, object]) -> str | None:
    """A kind that a step's term names, and that no file may name: what only rewriting and training make. None where
    there is none."""
    if not isinstance(text := attributes.get("term"), str): return None
    try: entries = parse_json(text, "term")
    except ValueError: return None
    named = [entry[0] for entry in entries if isinstance(entry, list) and entry] if isinstance(entries, list) else []
    return next((name for name in named if isinstance(name, str) and name in KINDS and name not in LASTING), None)


@cache
def digest_kind(kind: Kind) -> str:
    """A digest of what a kind computes: of one number, or by its code."""
    if kind.matrix and not kind.signature.parameters and Operator(kind).entrywise:
        function = kind.body(0, 0)
        try: return name_graph(traced_function(function))
        except Untraceable: return digest_code(function)
    return digest_code(kind.body, kind.matrix, kind.dense)


def digest_monoid(over: type[Monoid]) -> str:
    """A digest of what a monoid merges to, and of whether its order is free, on which bits depend."""
    # others may have been put in their place
    return digest_functions(over, over.lift, over.merge, over.finish)  # type: ignore[arg-type]    # a class has a hash


@lru_cache(256)
def digest_functions(over: type[Monoid], lift: object, merge: object, finish: object) -> str:
    """A digest of a monoid with these functions."""
    said = describe_value([float(np.asarray(each)) for each in over.unit()]), repr(over.commutative), repr(over.width)
    try: found = trace_monoid(over)
    except Untraceable: return digest_text(*said, digest_code(lift, merge, finish))
    return digest_text(*said, *map(name_graph, found[:3]), repr(found.used))


def our_names() -> dict[str, str]:
    """The names of opmatrix's kinds, monoids and patterns, and what each is."""
    return (dict.fromkeys([*NAMED_PATTERNS, *NUMBERED_PATTERNS, "mask", "coarse", "among"], "pattern")
            | dict.fromkeys([each.__name__ for each in MONOIDS], "monoid") | dict.fromkeys(LASTING, "function"))
