"""Names of attributes in graphs, trees and laws: an object of the algebra has its own unique name; any other has a
number behind its name, which is for reading. Equal objects have equal names, different ones never."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import product

from opmatrix.algebra.batch.relations import Relation, parse_relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.positions.lags import LAGS, Lag
from opmatrix.algebra.positions.patterns import Pattern

NUMBERS: dict[tuple[type, Hashable], int] = {}  # numbers of attributes, for the life of the process


def spelled(attribute: Hashable) -> str:
    """Return the name of an attribute that is no variable, in nodes."""
    match attribute:
        case Lag():
            return f"{int(attribute)} rows"
        case None | str() | bool() | int() | float() | tuple():
            return repr(attribute)
        case Data():
            return f"data {attribute.key}"
        case Pattern() if attribute.stated:
            return attribute.text.format(*(data.key for data in attribute.data))
        case Relation() if is_relation(attribute):
            return str(attribute)
        case type() if is_known(attribute):
            return attribute.__name__
    number = NUMBERS.setdefault((type(attribute), attribute), len(NUMBERS) + 1)
    return f"{describe_attribute(attribute)} #{number}"


def describe_attribute(attribute: object) -> str:
    """Return a name of an attribute for reading: it need not be unique."""
    return getattr(attribute, "__name__", None) or str(attribute)


def is_relation(relation: Relation) -> bool:
    """True if the text of a relation parses to an equal relation."""
    try:
        return parse_relation(str(relation)) == relation
    except ValueError:
        return False


def list_lag_sums() -> Iterator[tuple[str, str, str]]:
    """Yield the names of two lags and of their sum, where that is a lag, too."""
    for one, other in product(LAGS, LAGS):
        if one + other in LAGS:
            yield spelled(one), spelled(other), spelled(Lag(one + other))


def add_spelled(names: Sequence[str]) -> str:
    """Return the name of the sum of lags, by their names."""
    return spelled(Lag(sum(int(name.split()[0]) for name in names)))
