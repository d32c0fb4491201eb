"""What a partition costs, as formulas of its busiest rank: operations, bytes that cross by operation and axis, state,
values held. They are read as expressions, as LaTeX, and as a Python function of the sizes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import sympy

from formats.core.errors import InputError
from opmatrix.partitions.booked import ByRank, Crossing, total
from opmatrix.partitions.plan import Partition
from opmatrix.partitions.storage import Storage, weight_bytes
from opmatrix.split.cuts import Largest, Piece


class Traffic(NamedTuple):
    """What one rank sends of an operation on an axis, in bytes: handed over, on the wire, and of the values that groups
    make of it; how many messages, how often all wait for each other."""
    op: str
    axis: str
    payload: sympy.Expr
    wire: sympy.Expr
    whole: sympy.Expr
    messages: sympy.Expr
    supersteps: sympy.Expr

    @property
    def name(self) -> str: return f"{self.op} over {self.axis}"


@dataclass(frozen=True)
class Formulas:
    """The busiest rank of one stage, where cuts are even. `number`: bytes of a value's number; `storage`: how weights
    are stored; `training`: gradients and the optimiser's state, too, in mixed precision."""
    plan: Partition
    stage: int = 0
    number: float = 2
    storage: Storage = 2
    training: bool = False

    @cached_property
    def flops(self) -> sympy.Expr: return busiest(self.plan.flops(self.stage))

    @cached_property
    def traffic(self) -> list[Traffic]:
        """By operation and axis, summed over the layers of the stage."""
        found: dict[tuple[str, str], list[sympy.Expr]] = {}
        for count, each in self.plan.crossings(self.stage):
            size = self.bytes_of(each)
            own = [size * each.payload, size * each.wire, size * each.whole, each.messages, each.supersteps]
            sums = found.setdefault((each.op, each.axis), [sympy.Integer(0)] * 5)
            found[each.op, each.axis] = [a + count * b for a, b in zip(sums, own, strict=True)]
        return [Traffic(*key, *map(busiest, sums)) for key, sums in found.items()]

    def bytes_of(self, crossing: Crossing) -> sympy.Expr:
        """Bytes of a number that crosses: of a weight as it is stored, on the mean, else of a value."""
        return self.weight_size if crossing.op == "all_gather" and crossing.at < 0 else sympy.nsimplify(self.number)

    @cached_property
    def weight_size(self) -> sympy.Expr:
        """Bytes that a weight's number takes, on the mean."""
        held = total(count * self.plan.share(dims.numbers, 3) for _, dims, count in self.plan.weights(self.stage))
        return ratio(self.weights, busiest(held))

    @cached_property
    def weights(self) -> sympy.Expr:
        """Bytes of what a rank stores of weights."""
        return busiest(weight_bytes(self.plan, self.stage, self.storage))

    @cached_property
    def state(self) -> sympy.Expr:
        """Bytes of weights and, for training, of gradients and of the optimiser."""
        more = self.plan.state(self.stage, 0, 2, 12) if self.training else sympy.Integer(0)
        return self.weights + busiest(more)

    @cached_property
    def values(self) -> sympy.Expr:
        """Bytes of values that a rank holds at most, one operation after the other."""
        return sympy.nsimplify(self.number) * Largest(*map(busiest, self.plan.held(self.stage)))

    def named(self) -> Iterator[tuple[str, str, sympy.Expr]]:
        """Each formula with its name and unit."""
        yield from self.own()
        for each in self.traffic:
            yield f"{each.name}, payload", "B", each.payload
            yield f"{each.name}, wire", "B", each.wire
            yield f"{each.name}, messages", "", each.messages

    def own(self) -> Iterator[tuple[str, str, sympy.Expr]]:
        """What a rank does and holds."""
        yield "operations", "flop", self.flops
        yield "state", "B", self.state
        yield "values held at most", "B", self.values
        yield "supersteps", "", total(each.supersteps for each in self.traffic)

    @property
    def sizes(self) -> list[str]:
        """The symbols of the formulas, by name."""
        return sorted({str(s) for _, _, e in self.named() for s in e.free_symbols})

    def at(self, **sizes: float) -> dict[str, float]:
        """All formulas at numbers. Raises InputError for a size without one."""
        return self.function()(**sizes)

    def function(self) -> Callable[..., dict[str, float]]:
        """The formulas as a function of their sizes, by name. It raises InputError for one that is missing."""
        names = self.sizes
        symbols = [next(s for _, _, e in self.named() for s in e.free_symbols if str(s) == name) for name in names]
        labels = [name for name, _, _ in self.named()]
        made = sympy.lambdify(symbols, [e for _, _, e in self.named()], "math", cse=True)

        def at(**sizes: float) -> dict[str, float]:
            if missing := [name for name in names if name not in sizes]:
                raise InputError(f"{', '.join(missing)}: sizes without a number: give {', '.join(names)}")
            return dict(zip(labels, map(float, made(*(sizes[name] for name in names))), strict=True))
        return at

    def python(self) -> str:
        """The text of a Python function of the sizes that gives each formula by name."""
        lines = [f"        {name!r}: {sympy.pycode(e)}," for name, _, e in self.named()]
        return "\n".join([f"def costs({', '.join(self.sizes)}):",
                          f'    """{self.plan.name}, the busiest rank of stage {self.stage}."""',
                          "    return {", *lines, "    }"])

    def latex(self) -> str:
        """A LaTeX table of the formulas."""
        rows = [f"{name.replace('_', '-')} & ${sympy.latex(e)}$ & {unit} \\\\" for name, unit, e in self.named()]
        return "\n".join([r"\begin{tabular}{lll}", *rows, r"\end{tabular}"])


def ratio(one: sympy.Expr, other: sympy.Expr) -> sympy.Expr:
    """How many times one sum of products is another; the number where it is one, since sympy takes long to cancel sums
    of many symbols."""
    if other == 0: return sympy.Integer(0)
    term, count = next(iter(other.as_coefficients_dict().items()))
    found = one.as_coefficients_dict()[term] / count
    return found if sympy.expand(one - found * other) == 0 else one / other


def busiest(e: sympy.Expr) -> sympy.Expr:
    """What an expression is on the rank where it is largest, exactly where sizes are numbers. What is cut is taken to
    be even where its size is a symbol."""
    while live := [each for each in e.atoms(Piece) if not counted(each)]:
        e = e.xreplace({each: each.even() for each in live})
    ranks = sorted((s for s in e.free_symbols if is_rank(s)), key=str)
    if not ranks: return sympy.expand(e)
    outer = {s for each in e.atoms(Piece) for s in each.args[0].free_symbols}      # cut before what is cut again
    axis = next((s for s in ranks if s in outer), ranks[0])
    return Largest(*(busiest(e.xreplace({axis: sympy.Integer(r)})) for r in unlike(e, axis)))


def unlike(e: sympy.Expr, axis: sympy.Symbol) -> set[int]:
    """Coordinates on an axis among which every rank has its like: those from which on pieces are one unit smaller, and
    of what is said rank by rank one for each difference."""
    cuts = {0, *(int(units % n) for units, n, r in (each.args for each in e.atoms(Piece)) if r == axis)}
    said = [each.args[1:] for each in e.atoms(ByRank) if each.args[0] == axis]
    if not said: return cuts
    return {*{(*each, *(r < cut for cut in cuts)): r for r, each in enumerate(zip(*said, strict=True))}.values()}


def counted(cut: Piece) -> bool:
    """Whether a piece is a number on every rank."""
    return all(map(is_rank, cut.free_symbols))


def is_rank(symbol: sympy.Symbol) -> bool: return str(symbol).startswith("r_")
