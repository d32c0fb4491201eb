"""What attributes are called in graphs, trees and laws: a thing of the algebra by its name, which nothing else has; any
other by a number of its own beside its name, which is for reading. Equal things are called alike, others never."""
from collections.abc import Hashable

from opmatrix.algebra.batch.relations import Relation, parse_relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.positions.patterns import Pattern

NUMBERS: dict[tuple[type, Hashable], int] = {}              # of all that was ever called so, for as long as the process


def spelled(attribute: Hashable) -> str:
    """What nodes call an attribute that is no variable."""
    match attribute:
        case None | str() | bool() | int() | float() | tuple(): return repr(attribute)
        case Data(): return f"data {attribute.key}"
        case Pattern() if attribute.stated: return attribute.text.format(*(data.key for data in attribute.data))
        case Relation() if is_relation(attribute): return str(attribute)
        case type() if is_known(attribute): return attribute.__name__
    number = NUMBERS.setdefault((type(attribute), attribute), len(NUMBERS) + 1)
    return f"{describe_attribute(attribute)} #{number}"


def describe_attribute(attribute: object) -> str:
    """An attribute for reading: others may be called so, too."""
    return getattr(attribute, "__name__", None) or str(attribute)


def is_relation(relation: Relation) -> bool:
    """Whether the text of a relation is that of this one."""
    try: return parse_relation(str(relation)) == relation
    except ValueError: return False
