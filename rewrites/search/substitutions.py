"""Other ways through a model than part by part, each with an error: residuals left out, so that x + f(x) is x,
residuals side by side, x + f(x) + g(x), and attention that sees fewer keys (sparse_attention.py). A block substitution
leads from the full value before a part to the full value behind the same or the next one, so the search takes it, or
not, as it takes a method of a weight."""
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import add, matmul

from opmatrix.algebra.operators import I, symbol
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator
from rewrites.egraph.borders import FULL
from rewrites.egraph.layers import Model, Part, group_factors
from rewrites.egraph.template import Template
from rewrites.laws.flat import factors as spine
from rewrites.laws.flat import flat

LAYER_DROPPED, BLOCK_DROPPED, PARALLEL = "layer dropped", "block dropped", "side by side"


@dataclass(frozen=True)
class BlockSubstitution:
    """`factors` in place of the parts first to last. `error` is the squared relative change of the model's output that
    this alone brings about; `where`: whom its attention sees, where that is what makes it another way."""

    what: str
    first: int
    last: int
    factors: tuple[Operator, ...]
    width: int
    error: float = 0.0
    where: Pattern | None = None

    @property
    def term(self) -> Operator: return reduce(matmul, self.factors, I)

    @cached_property
    def part(self) -> Part:
        """A part between full border states."""
        x = symbol("border", rows := Shape(1, T, self.width), rows)
        return Part(Template.of({FULL: flat(self.term, x), "border": x}, [x]), "$border", {FULL: f"${FULL}"})

    def __str__(self) -> str:
        where = f"part {self.first + 1}" + f" to {self.last + 1}" * (self.last > self.first)
        seen = f", which sees {self.where}" if self.where else ""
        return f"{self.what}: {where}{seen}, off by {100 * self.error ** 0.5:.3g} %"


def part_factors(model: Model) -> list[list[Operator]]:
    """The factors of every part, as parts() has them, each taken apart as far as it goes; none of a model of several
    outputs, which has no substitutions."""
    groups = group_factors([*spine(model)]) if isinstance(model, Operator) else []
    return [[each for factor in group for each in factors(factor)] for group in groups]


def substitute_blocks(groups: Sequence[Sequence[Operator]], taken: Iterable[BlockSubstitution]) -> Operator:
    """The model that a program with these substitutions computes."""
    taking: list[Operator] = []
    by_first, number = {each.first: each for each in taken}, 0
    while number < len(groups):
        each = by_first.get(number)
        taking += groups[number] if each is None else each.factors
        number = 1 + (number if each is None else each.last)
    return reduce(matmul, taking)


def residual_branch(factor: Operator) -> Operator | None:
    """The f of a factor x + f(x); None of any other."""
    if factor.kind.name != "add" or I not in factor.children: return None
    others = [child for child in factor.children if child is not I]
    return reduce(add, others) if others else None


def list_substitutions(groups: Sequence[Sequence[Operator]]) -> Iterator[BlockSubstitution]:
    """Layers and blocks of a model left out or side by side, by the factors of its parts. The first part makes rows of
    tokens, and stays."""
    for number, group in enumerate(groups):
        if not number or group[0].into.rows is not T: continue
        width = width_before(groups, number)
        seen: set[Operator] = set()
        for what, left in (*drop_residuals(group, width), *parallel_residuals(group)):
            each = BlockSubstitution(what, number, number, tuple(left), width)
            if each.term not in seen:
                seen.add(each.term)
                yield each
        if number + 1 < len(groups) and (both := parallel_parts(group, groups[number + 1])) is not None:
            yield BlockSubstitution(PARALLEL, number, number + 1, tuple(both), width)


def width_before(groups: Sequence[Sequence[Operator]], number: int) -> int:
    """The columns of what a part is given; the factor of a norm takes any."""
    return next(cols for before in reversed(groups[:number]) for factor in reversed(before)
                if isinstance(cols := factor.out.cols, int))


def drop_residuals(group: Sequence[Operator], width: int) -> Iterator[tuple[str, list[Operator]]]:
    """A part without its residuals; without all that keeps the width, norms too; without one of several residuals."""
    at = [i for i, factor in enumerate(group) if residual_branch(factor) is not None]
    if not at: return
    yield LAYER_DROPPED, [factor for i, factor in enumerate(group) if i not in at]
    kept = next((i for i, factor in enumerate(group) if factor.out.rows is not T
                 or (isinstance(factor.out.cols, int) and factor.out.cols != width)), len(group))
    if kept > at[-1]: yield LAYER_DROPPED, [*group[kept:]]
    if len(at) > 1: yield from ((BLOCK_DROPPED, [*group[:i], *group[i + 1:]]) for i in at)


def parallel_residuals(group: Sequence[Operator]) -> Iterator[tuple[str, list[Operator]]]:
    """A part with two residuals that follow one another side by side."""
    for i, (one, other) in enumerate(pairwise(group)):
        f, g = residual_branch(one), residual_branch(other)
        if f is not None and g is not None: yield PARALLEL, [*group[:i], I + f + g, *group[i + 2:]]


def parallel_parts(group: Sequence[Operator], after: Sequence[Operator]) -> list[Operator] | None:
    """Two parts side by side, residual by residual; none where the first is more than residuals."""
    left, right = ([residual_branch(factor) for factor in each] for each in (group, after))
    count = len(left)
    if None in left or len(right) < count or None in right[:count] or any(f is not None for f in right[count:]):
        return None
    return [*(I + f + g for f, g in zip(left, right, strict=False)), *after[count:]]
