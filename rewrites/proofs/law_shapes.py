"""Laws of functions by the shapes of their left sides, under which they are looked up."""

from dataclasses import dataclass, field
from functools import cache

from opmatrix.algebra.operators import I
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.law import Law
from rewrites.laws.proving.functions import FUNCTION_LAWS


@dataclass
class LawsByShape:
    """Laws by the shape of their left sides: f(u), f(-u), f(g(u)), f(g(u) + 1), f(u) times g(v)."""

    definitions: dict[Operator, Law] = field(default_factory=dict)
    reflections: dict[Operator, Law] = field(default_factory=dict)
    behind: dict[tuple[Operator, Operator], Law] = field(default_factory=dict)
    behind_one: dict[tuple[Operator, Operator], Law] = field(default_factory=dict)
    products: list[Law] = field(default_factory=list)


@cache
def shaped(laws: tuple[Law, ...] = FUNCTION_LAWS) -> LawsByShape:
    """Return each law under its shape."""
    by_shape = LawsByShape()
    for law in laws:
        (left,), _ = law.sides()
        x = next(node for node in left.walk() if not node.children)
        if left.kind is KINDS["mul"]:
            by_shape.products.append(law)
            continue
        inner, f = left.args
        if inner is x:
            by_shape.definitions[f] = law
        elif inner is x @ (I * -1.0):
            by_shape.reflections[f] = law
        elif inner.kind is KINDS["add"]:
            by_shape.behind_one[f, inner.args[0].args[1]] = law
        else:
            by_shape.behind[f, inner.args[1]] = law
    return by_shape
