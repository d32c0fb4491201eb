"""The cost of a partition, as formulas of its busiest rank: operations, bytes sent by collective and axis, state,
values held. They are given as expressions, as LaTeX, and as a Python function of the sizes."""

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
    """The cost formulas of the busiest rank of one stage."""

    plan: Partition
    stage: int = 0
    number: float = 2  # bytes of a value's number
    storage: Storage = 2  # storage of weights
    training: bool = False  # also gradients and optimiser state, mixed precision
    crossing: Mapping[str, float] = field(default_factory=dict)  # bytes of a sent number if not as held, by axis;
    # "weights": stored weights; "*": all values

    @cached_property
    def flops(self) -> sympy.Expr:
        """The operations of the busiest rank of the stage."""
        return busiest(self.plan.flops(self.stage))

    @cached_property
    def traffic(self) -> list[Crossing]:
        """Collectives in bytes, by operation and axis, summed over the layers of the stage."""
        totals: dict[tuple[str, str], list[sympy.Expr]] = {}
        for count, crossing in self.plan.crossings(self.stage):
            size = self.bytes_of(crossing)
            amounts = [
                size * crossing.payload,
                size * crossing.wire,
                size * crossing.whole,
                crossing.messages,
                crossing.supersteps,
            ]
            sums = totals.setdefault((crossing.op, crossing.axis), [sympy.Integer(0)] * 5)
            totals[crossing.op, crossing.axis] = [a + count * b for a, b in zip(sums, amounts, strict=True)]
        return [Crossing(*key, *map(busiest, sums)) for key, sums in totals.items()]

    def bytes_of(self, crossing: Crossing) -> sympy.Expr:
        """Return the bytes of a number in a collective: as `crossing` says for its axis; else a weight as it is stored,
        on average, and a value as it is held. Numbers from the host are sent as they are stored."""
        if crossing.axis == HOST:
            return self.weight_size
        of_weights = crossing.of == "weights"
        declared = self.crossing.get("weights" if of_weights else crossing.axis)
        if declared is None and not of_weights:
            declared = self.crossing.get("*", self.number)
        return self.weight_size if declared is None else sympy.nsimplify(declared)

    @cached_property
    def weight_size(self) -> sympy.Expr:
        """Bytes of a weight's number, on average."""
        held = add_up(count * self.plan.share(dims.numbers, 3) for _, dims, count in self.plan.weights(self.stage))
        return times_another(self.weights, busiest(held))

    @cached_property
    def weights(self) -> sympy.Expr:
        """Bytes of the weights that a rank stores."""
        return busiest(weight_bytes(self.plan, self.stage, self.storage))

    @cached_property
    def state(self) -> sympy.Expr:
        """Bytes on the device of weights and, for training, of gradients and of the optimiser."""
        return self.stored(lambda level: level > self.plan.mesh.offload)

    @cached_property
    def host_state(self) -> sympy.Expr:
        """Bytes of state in the memory of the host."""
        return self.stored(lambda level: level <= self.plan.mesh.offload)

    def stored(self, chosen: Callable[[int], bool]) -> sympy.Expr:
        """Return the bytes of the chosen ZeRO levels of state: 1 optimiser, 2 gradients, 3 weights."""
        gradients, optimiser = (size * self.training * chosen(level) for size, level in ((2, 2), (12, 1)))
        more = self.plan.state(self.stage, 0, gradients, optimiser)
        return (self.weights if chosen(3) else sympy.Integer(0)) + busiest(more)

    @cached_property
    def gathered(self) -> sympy.Expr | None:
        """Bytes of weights that are gathered for one factor, at most; None where no weight is sharded."""
        sizes = self.plan.gathered(self.stage)
        return self.weight_size * Largest(*map(busiest, sizes)) if sizes else None

    @cached_property
    def values(self) -> sympy.Expr:
        """Bytes of values that a rank holds at most, operation by operation."""
        return sympy.nsimplify(self.number) * Largest(*map(busiest, self.plan.held(self.stage)))

    def named(self) -> Iterator[tuple[str, str, sympy.Expr]]:
        """Yield each formula with its name and unit."""
        yield from self.own()
        for crossing in self.traffic:
            yield f"{crossing.name}, payload", "B", crossing.payload
            yield f"{crossing.name}, wire", "B", crossing.wire
            yield f"{crossing.name}, messages", "", crossing.messages

    def own(self) -> Iterator[tuple[str, str, sympy.Expr]]:
        """Yield the formulas of operations, memory and supersteps, each with its name and unit."""
        yield "operations", "flop", self.flops
        yield "state", "B", self.state
        if self.plan.mesh.offload:
            yield "state of the host", "B", self.host_state
        if self.gathered is not None:
            yield "weights gathered at most", "B", self.gathered
        yield "values held at most", "B", self.values
        yield "supersteps", "", add_up(crossing.supersteps for crossing in self.traffic)

    @property
    def sizes(self) -> list[str]:
        """The symbols of the formulas, by name."""
        return sorted({str(s) for _, _, e in self.named() for s in e.free_symbols})

    def at(self, **sizes: float) -> dict[str, float]:
        """Evaluate all formulas. Raises InputError for a size without a number."""
        return self.function()(**sizes)

    def function(self) -> Callable[..., dict[str, float]]:
        """Return the formulas as a function of their sizes, by name. It raises InputError for a missing size."""
        labels, _, expressions = zip(*self.named(), strict=True)
        symbols = {str(s): s for e in expressions for s in e.free_symbols}
        names = sorted(symbols)
        evaluate = sympy.lambdify([symbols[name] for name in names], expressions, "math", cse=True)

        def at(**sizes: float) -> dict[str, float]:
            """Evaluate the formulas at these sizes. Raises InputError for a size without a number."""
            if missing := [name for name in names if name not in sizes]:
                raise InputError(f"{', '.join(missing)}: sizes without a number: give {', '.join(names)}")
            return dict(zip(labels, map(float, evaluate(*(sizes[name] for name in names))), strict=True))

        return at

    def python(self) -> str:
        """Return the text of a Python function of the sizes that gives each formula by name."""
        lines = [f"        {name!r}: {sympy.pycode(e)}," for name, _, e in self.named()]
        return "\n".join(
            [
                f"def costs({', '.join(self.sizes)}):",
                f'    """{self.plan.name}, the busiest rank of stage {self.stage}."""',
                "    return {",
                *lines,
                "    }",
            ]
        )

    def latex(self) -> str:
        """Return a LaTeX table of the formulas."""
        rows = [f"{name.replace('_', '-')} & ${sympy.latex(e)}$ & {unit} \\\\" for name, unit, e in self.named()]
        return "\n".join([r"\begin{tabular}{lll}", *rows, r"\end{tabular}"])


def times_another(one: sympy.Expr, other: sympy.Expr) -> sympy.Expr:
    """Return the quotient of two sums of products. It is a number where they are proportional, since sympy takes long
    to cancel sums of many symbols."""
    if other == 0:
        return sympy.Integer(0)
    term, count = next(iter(other.as_coefficients_dict().items()))
    quotient = one.as_coefficients_dict()[term] / count
    return quotient if sympy.expand(one - quotient * other) == 0 else one / other


def busiest(e: sympy.Expr) -> sympy.Expr:
    """Return an expression on the rank where it is largest. It is exact where sizes are numbers; a shard of a symbolic
    size is taken to be even."""
    e = nameless(sympy.sympify(e))
    while live := [cut for cut in e.atoms(Piece) if not counted(cut)]:
        e = e.xreplace({x: x.even() for x in live})
    ranks = sorted((s for s in e.free_symbols if isinstance(s, Coordinate)), key=str)
    if not ranks:
        return sympy.expand(e)
    outer = {s for cut in e.atoms(Piece) for s in cut.args[0].free_symbols}  # axes whose shards are sharded again
    axis = next((s for s in ranks if s in outer), ranks[0])
    return Largest(*(busiest(e.xreplace({axis: sympy.Integer(r)})) for r in unlike(e, axis)))


def unlike(e: sympy.Expr, axis: sympy.Symbol) -> set[int]:
    """Return coordinates on an axis that represent all ranks: the first of the ranks whose pieces are equally large and
    whose `ByRank` entries are equal."""
    cuts = [cut.args[:2] for cut in e.atoms(Piece) if cut.args[2] == axis]
    entries = [entry.args[1:] for entry in e.atoms(ByRank) if entry.args[0] == axis]
    ranks = max([len(entry) for entry in entries] + [int(n) for _, n in cuts])
    likes = [(*(entry[r] for entry in entries), *(r < units % n for units, n in cuts)) for r in range(ranks)]
    return {*{row: r for r, row in reversed([*enumerate(likes)])}.values()}


def counted(cut: Piece) -> bool:
    """True if a piece is a number on every rank."""
    return all(isinstance(symbol, Coordinate) for symbol in cut.free_symbols)
