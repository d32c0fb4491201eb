"""Block substitutions, ways through a model other than part by part, each with an error: residuals left out, so that x
+ f(x) is x; residuals side by side, x + f(x) + g(x); and attention that sees fewer keys (sparse_attention.py). A block
substitution leads from the full value before a part to the full value behind the same or the next one, so the search
chooses it in the same way as a method of a weight."""

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
    """`factors` in place of the parts first to last. `error` is the squared relative change of the model's output by
    this substitution alone; `where` is the pattern of its attention, for a substitution that changes the pattern."""

    what: str
    first: int
    last: int
    factors: tuple[Operator, ...]
    width: int
    error: float = 0.0
    where: Pattern | None = None

    @property
    def term(self) -> Operator:
        """The factors composed to one operator."""
        return reduce(matmul, self.factors, I)

    @cached_property
    def part(self) -> Part:
        """The substitution as a part between full border states."""
        x = symbol("border", rows := Shape(1, T, self.width), rows)
        return Part(Template.of({FULL: flat(self.term, x), "border": x}, [x]), "$border", {FULL: f"${FULL}"})

    def __str__(self) -> str:
        where = f"part {self.first + 1}" + f" to {self.last + 1}" * (self.last > self.first)
        seen = f", which sees {self.where}" if self.where else ""
        return f"{self.what}: {where}{seen}, off by {100 * self.error**0.5:.3g} %"


def part_factors(model: Model) -> list[list[Operator]]:
    """Return the factors of every part, in the order of parts(), each split as far as possible; empty for a model of
    several outputs, which has no substitutions."""
    groups = group_factors([*spine(model)]) if isinstance(model, Operator) else []
    return [[inner for factor in group for inner in factors(factor)] for group in groups]


def substitute_blocks(groups: Sequence[Sequence[Operator]], taken: Iterable[BlockSubstitution]) -> Operator:
    """Return the model that a program with these substitutions computes."""
    taking: list[Operator] = []
    by_first, number = {substitution.first: substitution for substitution in taken}, 0
    while number < len(groups):
        substitution = by_first.get(number)
        taking += groups[number] if substitution is None else substitution.factors
        number = 1 + (number if substitution is None else substitution.last)
    return reduce(matmul, taking)


def residual_branch(factor: Operator) -> Operator | None:
    """Return the f of a factor x + f(x); None for any other factor."""
    if factor.kind.name != "add" or I not in factor.children:
        return None
    others = [child for child in factor.children if child is not I]
    return reduce(add, others) if others else None


def list_substitutions(groups: Sequence[Sequence[Operator]]) -> Iterator[BlockSubstitution]:
    """Yield layers and blocks of a model left out or side by side, from the factors of its parts. The first part
    computes rows of tokens, and stays."""
    for number, group in enumerate(groups):
        if not number or group[0].into.rows is not T:
            continue
        width = width_before(groups, number)
        seen: set[Operator] = set()
        for what, left in (*drop_residuals(group, width), *parallel_residuals(group)):
            substitution = BlockSubstitution(what, number, number, tuple(left), width)
            if substitution.term not in seen:
                seen.add(substitution.term)
                yield substitution
        if number + 1 < len(groups) and (both := parallel_parts(group, groups[number + 1])) is not None:
            yield BlockSubstitution(PARALLEL, number, number + 1, tuple(both), width)


def width_before(groups: Sequence[Sequence[Operator]], number: int) -> int:
    """Return the columns of the input of a part; the factor of a norm takes any width."""
    return next(
        cols
        for before in reversed(groups[:number])
        for factor in reversed(before)
        if isinstance(cols := factor.out.cols, int)
    )


def drop_residuals(group: Sequence[Operator], width: int) -> Iterator[tuple[str, list[Operator]]]:
    """Yield a part without its residuals; without all factors that keep the width, norms too; without one of several
    residuals."""
    at = [i for i, factor in enumerate(group) if residual_branch(factor) is not None]
    if not at:
        return
    yield LAYER_DROPPED, [factor for i, factor in enumerate(group) if i not in at]
    start = next(
        (
            i
            for i, factor in enumerate(group)
            if factor.out.rows is not T or (isinstance(factor.out.cols, int) and factor.out.cols != width)
        ),
        len(group),
    )
    if start > at[-1]:
        yield LAYER_DROPPED, [*group[start:]]
    if len(at) > 1:
        yield from ((BLOCK_DROPPED, [*group[:i], *group[i + 1 :]]) for i in at)


def parallel_residuals(group: Sequence[Operator]) -> Iterator[tuple[str, list[Operator]]]:
    """Yield a part with two consecutive residuals side by side."""
    for i, (one, other) in enumerate(pairwise(group)):
        f, g = residual_branch(one), residual_branch(other)
        if f is not None and g is not None:
            yield PARALLEL, [*group[:i], I + f + g, *group[i + 2 :]]


def parallel_parts(group: Sequence[Operator], after: Sequence[Operator]) -> list[Operator] | None:
    """Return two parts side by side, residual by residual; None if the first has other factors than residuals."""
    left, right = ([residual_branch(factor) for factor in part] for part in (group, after))
    count = len(left)
    if None in left or len(right) < count or None in right[:count] or any(f is not None for f in right[count:]):
        return None
    return [*(I + f + g for f, g in zip(left, right, strict=False)), *after[count:]]
