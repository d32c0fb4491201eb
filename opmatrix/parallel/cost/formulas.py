"""What a partition costs, as formulas of its busiest rank: operations, bytes that cross by operation and axis, state,
values held. They are read as expressions, as LaTeX, and as a Python function of the sizes."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import sympy

from formats.core.errors import InputError
from opmatrix.parallel.sharding.axis_states import Coordinate, Largest, Piece
from opmatrix.parallel.sharding.cost_formulas import ByRank, Crossing, add_up
from opmatrix.parallel.sharding.haloed import nameless
from opmatrix.parallel.sharding.mesh import HOST
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.weight_storage import Storage, weight_bytes


@dataclass(frozen=True)
class Formulas:
    """The busiest rank of one stage. `number`: bytes of a value's number; `storage`: how weights are stored;
    `crossing`: bytes of a number that crosses, by axis, where it is not as it is held, of stored weights under
    "weights", of all values under "*"; `training`: gradients and the optimiser's state, too, in mixed precision."""
    plan: Partition
    stage: int = 0
    number: float = 2
    storage: Storage = 2
    training: bool = False
    crossing: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def flops(self) -> sympy.Expr: return busiest(self.plan.flops(self.stage))

    @cached_property
    def traffic(self) -> list[Crossing]:
        """In bytes, by operation and axis, summed over the layers of the stage."""
        found: dict[tuple[str, str], list[sympy.Expr]] = {}
        for count, each in self.plan.crossings(self.stage):
            size = self.bytes_of(each)
            own = [size * each.payload, size * each.wire, size * each.whole, each.messages, each.supersteps]
            sums = found.setdefault((each.op, each.axis), [sympy.Integer(0)] * 5)
            found[each.op, each.axis] = [a + count * b for a, b in zip(sums, own, strict=True)]
        return [Crossing(*key, *map(busiest, sums)) for key, sums in found.items()]

    def bytes_of(self, crossing: Crossing) -> sympy.Expr:
        """Bytes of a number that crosses: as is said of its axis, else of a weight as it is stored, on the mean, and of
        a value as it is held. What comes from the host is as it is stored."""
        if crossing.axis == HOST: return self.weight_size
        of_weights = crossing.of == "weights"
        said = self.crossing.get("weights" if of_weights else crossing.axis)
        if said is None and not of_weights: said = self.crossing.get("*", self.number)
        return self.weight_size if said is None else sympy.nsimplify(said)

    @cached_property
    def weight_size(self) -> sympy.Expr:
        """Bytes that a weight's number takes, on the mean."""
        held = add_up(count * self.plan.share(dims.numbers, 3) for _, dims, count in self.plan.weights(self.stage))
        return times_another(self.weights, busiest(held))

    @cached_property
    def weights(self) -> sympy.Expr:
        """Bytes of what a rank stores of weights."""
        return busiest(weight_bytes(self.plan, self.stage, self.storage))

    @cached_property
    def state(self) -> sympy.Expr:
        """Bytes on the device of weights and, for training, of gradients and of the optimiser."""
        return self.stored(lambda level: level > self.plan.mesh.offload)

    @cached_property
    def host_state(self) -> sympy.Expr:
        """Bytes of state that lies in the memory of the host."""
        return self.stored(lambda level: level <= self.plan.mesh.offload)

    def stored(self, chosen: Callable[[int], bool]) -> sympy.Expr:
        """Bytes of what these stages of ZeRO name: 1 optimiser, 2 gradients, 3 weights."""
        gradients, optimiser = (size * self.training * chosen(level) for size, level in ((2, 2), (12, 1)))
        more = self.plan.state(self.stage, 0, gradients, optimiser)
        return (self.weights if chosen(3) else sympy.Integer(0)) + busiest(more)

    @cached_property
    def gathered(self) -> sympy.Expr | None:
        """Bytes of weights that are there whole for one factor, at most; None where all are all the time."""
        found = self.plan.gathered(self.stage)
        return self.weight_size * Largest(*map(busiest, found)) if found else None

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
        if self.plan.mesh.offload: yield "state of the host", "B", self.host_state
        if self.gathered is not None: yield "weights gathered at most", "B", self.gathered
        yield "values held at most", "B", self.values
        yield "supersteps", "", add_up(each.supersteps for each in self.traffic)

    @property
    def sizes(self) -> list[str]:
        """The symbols of the formulas, by name."""
        return sorted({str(s) for _, _, e in self.named() for s in e.free_symbols})

    def at(self, **sizes: float) -> dict[str, float]:
        """All formulas at numbers. Raises InputError for a size without one."""
        return self.function()(**sizes)

    def function(self) -> Callable[..., dict[str, float]]:
        """The formulas as a function of their sizes, by name. It raises InputError for one that is missing."""
        labels, _, found = zip(*self.named(), strict=True)
        symbols = {str(s): s for e in found for s in e.free_symbols}
        names = sorted(symbols)
        made = sympy.lambdify([symbols[name] for name in names], found, "math", cse=True)

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


def times_another(one: sympy.Expr, other: sympy.Expr) -> sympy.Expr:
    """How many times one sum of products is another; the number where it is one, since sympy takes long to cancel sums
    of many symbols."""
    if other == 0: return sympy.Integer(0)
    term, count = next(iter(other.as_coefficients_dict().items()))
    found = one.as_coefficients_dict()[term] / count
    return found if sympy.expand(one - found * other) == 0 else one / other


def busiest(e: sympy.Expr) -> sympy.Expr:
    """What an expression is on the rank where it is largest, exactly where sizes are numbers. What is cut is taken to
    be even where its size is a symbol."""
    e = nameless(sympy.sympify(e))
    while live := [each for each in e.atoms(Piece) if not counted(each)]: e = e.xreplace({x: x.even() for x in live})
    ranks = sorted((s for s in e.free_symbols if isinstance(s, Coordinate)), key=str)
    if not ranks: return sympy.expand(e)
    outer = {s for each in e.atoms(Piece) for s in each.args[0].free_symbols}      # cut before what is cut again
    axis = next((s for s in ranks if s in outer), ranks[0])
    return Largest(*(busiest(e.xreplace({axis: sympy.Integer(r)})) for r in unlike(e, axis)))


def unlike(e: sympy.Expr, axis: sympy.Symbol) -> set[int]:
    """Coordinates on an axis among which every rank has its like: the first of those whose pieces are as large, and of
    which the same is said."""
    cuts = [each.args[:2] for each in e.atoms(Piece) if each.args[2] == axis]
    said = [each.args[1:] for each in e.atoms(ByRank) if each.args[0] == axis]
    ranks = max([len(each) for each in said] + [int(n) for _, n in cuts])
    likes = [(*(each[r] for each in said), *(r < units % n for units, n in cuts)) for r in range(ranks)]
    return {*{each: r for r, each in reversed([*enumerate(likes)])}.values()}


def counted(cut: Piece) -> bool:
    """Whether a piece is a number on every rank."""
    return all(isinstance(each, Coordinate) for each in cut.free_symbols)
