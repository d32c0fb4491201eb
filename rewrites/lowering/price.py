"""Prices: seconds of kernels and bytes of stored weights at the sizes of a workload, on a machine."""
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from formats import FORMATS, Dense, can_stack
from formats.core.arrays import FormatError
from formats.machine.local import learning
from opmatrix.algebra.batch.extents import Extents, PatternPairs
from opmatrix.algebra.batch.signature import FLOAT
from opmatrix.inference.cached import decoder_of, window_attribute
from opmatrix.runtime.declarations.costs import (
    Costs,
    behind_product,
    gather_cost,
    row_width,
    times_experts,
    times_format,
    times_stack,
)
from opmatrix.runtime.declarations.kernel import Arguments, Declared
from opmatrix.runtime.declarations.operands import Cache
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.attend import BEYOND, SEEN
from opmatrix.runtime.scheme import Running
from rewrites.lowering.calls import list_kernels, shapes

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program
    from rewrites.lowering.lower import KernelCall, Lowering, Method, Use


class TimeModel(Protocol):
    """What prices a kernel: formats.machine.model.Machine, or a stand-in."""

    def seconds(self, kernel: str, **sizes: float) -> float: ...


def name_machine(machine: TimeModel) -> str:
    """How a report calls a machine: its own name, else what it is."""
    return str(getattr(machine, "name", type(machine).__name__))


@lru_cache(4096)
def holds(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> bool:
    """Whether a format with these parameters takes n x p matrices."""
    try: FORMATS[name].expected(n, p, **dict(parameters))
    except FormatError: return False
    return True


@lru_cache(4096)
def stacks(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> bool:
    """Whether stacks of n x p matrices have this format with these parameters."""
    return can_stack(FORMATS[name]) and holds(name, n, p, parameters)


@lru_cache(4096)
def stored_bytes(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> float:
    """Bytes of an n x p matrix in a format, from the format's own formula."""
    form = FORMATS[name]
    return float(form.bytes.subs(form.expected(n, p, **dict(parameters))))


@lru_cache(4096)
def count_sizes(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> dict[str, float]:
    """The sizes by name that a format's kernel is priced by."""
    return {str(size): value for size, value in FORMATS[name].expected(n, p, **dict(parameters)).items()}


@dataclass(frozen=True)
class Prices:
    """What a batch of these extents takes on a machine; where it is `cached`, the step of a session: attention reads
    what sequences hold, and new keys and values are put beside it."""

    machine: TimeModel
    extents: Extents
    cached: bool = False

    @cached_property
    def group(self) -> Extents:
        """The extents that the machine is asked about: where a batch runs in groups, those of one."""
        found: Extents = self.machine.group(self.extents) if isinstance(self.machine, Running) else self.extents
        if not self.cached or found is self.extents: return found
        share = found["T"] / self.extents["T"]              # sequences are alike
        return Extents.made({size: count * share for size, count in self.extents.numbers.items()})

    @cached_property
    def live(self) -> dict[str, float]:
        """Rows of each space."""
        return {str(size): count for size, count in self.group.items() if not isinstance(size, PatternPairs)}

    def rows(self, lowering: "Lowering", cls: int) -> float:
        """How many rows a class has."""
        name = str(lowering.matcher.rows[cls])
        return self.live[name] if name in self.live else self.group[name]           # which says what is missing

    @property
    def start(self) -> float:
        """Seconds of a run beside its kernels, as far as the machine knows them."""
        return learning(lambda: float(getattr(self.machine, "start", 0.0)))

    def beside(self, program: "Program") -> float:
        """Seconds of a program's run beside its kernels: each of its recordings begins as a run does; of a session's
        step, its decoder's."""
        return self.start * max(1, (decoder_of(program) or program if self.cached else program).schedule.recordings)

    def seconds(self, costs: Costs) -> float:
        """What the machine predicts for these kernels, after what it lacks was measured."""
        return learning(lambda: sum(self.machine.seconds(name, **sizes) for name, sizes in costs))

    def linear(self, form: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = (),
               rows: float | None = None) -> float:
        """Seconds of x times an n x p matrix in a format; of so many rows, of all tokens where nobody says."""
        return self.seconds(times_format(form, count_sizes(form, n, p, parameters),
                                               self.group["T"] if rows is None else rows))

    def stack(self, form: str, heads: int, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = (),
              rows: float | None = None, most: int | None = None) -> tuple[float, float]:
        """Seconds of x times a matrix n x p for each head, and the bytes of these: of dense ones one kernel, of other
        formats their own once a head; where a row names so many of them at most, once for each that is named."""
        tokens, size = self.group["T"] if rows is None else rows, heads * stored_bytes(form, n, p, parameters)
        if most is not None:
            sizes = count_sizes(form, n, p, parameters)
            return self.seconds(times_experts(form, sizes, heads, min(most, heads), tokens)), size
        if form == Dense.name: return self.seconds(times_stack((heads, n, p), tokens)), size
        return heads * self.linear(form, n, p, parameters, tokens), size

    def product(self, lowering: "Lowering", use: "Use", method: "Method") -> tuple[float, float]:
        """Seconds of x times a weight in this representation, and the bytes of the weight."""
        shape, tokens = lowering.stored(use.weight, use.layout), self.rows(lowering, use.x)
        if len(shape) == 3:
            heads, rows, cols = shape
            return self.stack(method.format, heads, rows, cols, method.parameters, tokens, lowering.routed.get(use))
        rows, cols = shape
        if lowering.gathers(use):
            stored = lowering.stored(use.weight, lowering.held(use, method).layout)
            panels = "" if FORMATS[method.format].rowwise else method.format
            return self.seconds(gather_cost(cols, tokens,
                                               panels)), stored_bytes(method.format, *stored, method.parameters)
        size = stored_bytes(method.format, rows, cols, method.parameters)
        product = self.linear(method.format, rows, cols, method.parameters, tokens)
        if FORMATS[method.format].rounds: product -= self.spared(lowering.epilogues.get(use, ()), tokens, cols)
        return max(product, 0.0), size

    @property
    def parts(self) -> tuple[tuple[float, "Prices"], ...]:
        """Itself, with its share: all; as a mean has several."""
        return ((1.0, self),)

    def gathered(self, p: int) -> float:
        """Seconds of a row of so many columns for each token, from a table."""
        return self.seconds(gather_cost(p, self.live["T"]))

    def spent(self, cost: Callable[[Extents], Costs]) -> float:
        """Seconds of kernels, by their cost at the extents that the machine is asked about."""
        return float(self.seconds(cost(self.group)))

    def spared(self, stages: Sequence[str], rows: float, cols: int) -> float:
        """Seconds that an epilogue takes less behind a product that rounds than its kernel is priced at."""
        plain, narrow = ([(name, {"T": rows, "p": cols}) for name in behind_product(stages, rounds)]
                         for rounds in (False, True))
        return self.seconds(plain) - self.seconds(narrow)

    def kernel(self, lowering: "Lowering", cls: int, call: "KernelCall") -> float:
        """Seconds of a kernel without its products: its epilogue, or the whole where it has no weight; infinitely many
        where no session runs it."""
        if self.cached and not all(map(in_sessions, list_kernels(call))): return inf
        return sum(self.seconds(cost_in_session(kernel, bound, out, self.group) if self.cached
                                else kernel.cost(bound, out, self.group))
                   for kernel, bound, out in shapes(lowering, cls, call))


def in_sessions(kernel: Declared) -> bool:
    """Whether a session runs it: its rows depend on none but new ones, or it has a way over caches."""
    return bool(kernel.cached_variant) or not kernel.row_mixing


def cost_in_session(kernel: Declared, bound: Arguments, out: Any, extents: Extents, number: str = FLOAT) -> Costs:
    """What a kernel costs in a step of a session: attention as the kernel that stands for it there
    (opmatrix.inference.cached), over caches of a number type, and a pass over its keys and values, which are put into
    them."""
    if not kernel.cached_variant: return kernel.cost(bound, out, extents)
    variant, kept = KERNELS[kernel.cached_variant], (bound.k, bound.v)
    rows, (k, v) = "last" if hasattr(bound, "query") else "all", (Cache(x.heads, x.cols, number) for x in kept)
    record = variant.record(q=bound.q, k=k, v=v, scale=1.0, where=SEEN, rows=rows,
                            behind=window_attribute(bound).get("behind", BEYOND))
    put = [("scale", {"T": extents["T"], "p": row_width(each)}) for each in kept]
    return [*variant.cost(record, out, extents), *put]
