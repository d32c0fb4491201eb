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
from opmatrix.runtime.kernels.attend import BEYOND
from opmatrix.runtime.kernels.attend_cached import SEEN
from opmatrix.runtime.scheme import Running
from rewrites.lowering.calls import list_kernels, shapes

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program
    from rewrites.lowering.lower import KernelCall, Lowering, Method, Use


class TimeModel(Protocol):
    """A model that prices kernels: formats.machine.model.Machine, or a stand-in."""

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predict the seconds of a kernel at these sizes."""


def name_machine(machine: TimeModel) -> str:
    """Return the name of a machine for reports: its own, else that of its type."""
    return str(getattr(machine, "name", type(machine).__name__))


@lru_cache(4096)
def holds(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> bool:
    """True if a format with these parameters takes n x p matrices."""
    try:
        FORMATS[name].expected(n, p, **dict(parameters))
    except FormatError:
        return False
    return True


@lru_cache(4096)
def stacks(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> bool:
    """True if stacks of n x p matrices can have this format with these parameters."""
    return can_stack(FORMATS[name]) and holds(name, n, p, parameters)


@lru_cache(4096)
def stored_bytes(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> float:
    """Return the bytes of an n x p matrix in a format, from the format's own formula."""
    form = FORMATS[name]
    return float(form.bytes.subs(form.expected(n, p, **dict(parameters))))


@lru_cache(4096)
def count_sizes(name: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...]) -> dict[str, float]:
    """Return the sizes, by name, that a format's kernel is priced by."""
    return {str(size): value for size, value in FORMATS[name].expected(n, p, **dict(parameters)).items()}


@dataclass(frozen=True)
class Prices:
    """Seconds of a batch of these extents on a machine. If `cached`, seconds of a session's step: attention reads the
    cached rows of sequences, and new keys and values are written to the caches."""

    machine: TimeModel
    extents: Extents
    cached: bool = False

    @cached_property
    def group(self) -> Extents:
        """The extents that the machine predicts: of one group, where a batch runs in groups; else of the batch."""
        extents: Extents = self.machine.group(self.extents) if isinstance(self.machine, Running) else self.extents
        if not self.cached or extents is self.extents:
            return extents
        share = extents["T"] / self.extents["T"]  # sequences are alike
        return Extents.made({size: count * share for size, count in self.extents.numbers.items()})

    @cached_property
    def live(self) -> dict[str, float]:
        """The number of rows of each space."""
        return {str(size): count for size, count in self.group.items() if not isinstance(size, PatternPairs)}

    def rows(self, lowering: "Lowering", cls: int) -> float:
        """Return the number of rows of a class."""
        name = str(lowering.matcher.rows[cls])
        return self.live[name] if name in self.live else self.group[name]  # its error names the missing size

    @property
    def start(self) -> float:
        """Seconds of a run outside its kernels, as far as the machine knows them."""
        return learning(lambda: float(getattr(self.machine, "start", 0.0)))

    def beside(self, program: "Program") -> float:
        """Return the seconds of a program's run outside its kernels. Each recording starts as a run does; for a
        session's step the recordings of its decoder count."""
        return self.start * max(1, (decoder_of(program) or program if self.cached else program).schedule.recordings)

    def seconds(self, costs: Costs) -> float:
        """Return the seconds that the machine predicts for these kernels. Kernels that it has no data for are measured
        first."""
        return learning(lambda: sum(self.machine.seconds(name, **sizes) for name, sizes in costs))

    def linear(
        self, form: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = (), rows: float | None = None
    ) -> float:
        """Return the seconds of x times an n x p matrix in a format, for `rows` rows or by default all tokens."""
        return self.seconds(
            times_format(form, count_sizes(form, n, p, parameters), self.group["T"] if rows is None else rows)
        )

    def stack(
        self,
        form: str,
        heads: int,
        n: int,
        p: int,
        parameters: tuple[tuple[str, Hashable], ...] = (),
        rows: float | None = None,
        most: int | None = None,
    ) -> tuple[float, float]:
        """Return the seconds of x times an n x p matrix for each head, and the bytes of these matrices. Dense ones take
        one kernel, other formats one for each head. If each row names `most` matrices at most, one for each that is
        named."""
        tokens, size = self.group["T"] if rows is None else rows, heads * stored_bytes(form, n, p, parameters)
        if most is not None:
            sizes = count_sizes(form, n, p, parameters)
            return self.seconds(times_experts(form, sizes, heads, min(most, heads), tokens)), size
        if form == Dense.name:
            return self.seconds(times_stack((heads, n, p), tokens)), size
        return heads * self.linear(form, n, p, parameters, tokens), size

    def product(self, lowering: "Lowering", use: "Use", method: "Method") -> tuple[float, float]:
        """Return the seconds of x times a weight in this representation, and the bytes of the weight."""
        shape, tokens = lowering.stored(use.weight, use.layout), self.rows(lowering, use.x)
        if len(shape) == 3:
            heads, rows, cols = shape
            return self.stack(method.format, heads, rows, cols, method.parameters, tokens, lowering.routed.get(use))
        rows, cols = shape
        if lowering.gathers(use):
            stored = lowering.stored(use.weight, lowering.held(use, method).layout)
            panels = "" if FORMATS[method.format].rowwise else method.format
            return self.seconds(gather_cost(cols, tokens, panels)), stored_bytes(
                method.format, *stored, method.parameters
            )
        size = stored_bytes(method.format, rows, cols, method.parameters)
        product = self.linear(method.format, rows, cols, method.parameters, tokens)
        if FORMATS[method.format].rounds:
            product -= self.spared(lowering.epilogues.get(use, ()), tokens, cols)
        return max(product, 0.0), size

    @property
    def parts(self) -> tuple[tuple[float, "Prices"], ...]:
        """A sequence of these prices alone, with the share 1, in the form of a mean's parts."""
        return ((1.0, self),)

    def gathered(self, p: int) -> float:
        """Return the seconds to gather a row of `p` columns from a table for each token."""
        return self.seconds(gather_cost(p, self.live["T"]))

    def spent(self, cost: Callable[[Extents], Costs]) -> float:
        """Return the seconds of kernels, from their cost at the extents that the machine predicts."""
        return float(self.seconds(cost(self.group)))

    def spared(self, stages: Sequence[str], rows: float, cols: int) -> float:
        """Return the seconds that an epilogue takes less than its kernel's price when it follows a product that
        rounds."""
        plain, narrow = (
            [(name, {"T": rows, "p": cols}) for name in behind_product(stages, rounds)] for rounds in (False, True)
        )
        return self.seconds(plain) - self.seconds(narrow)

    def kernel(self, lowering: "Lowering", cls: int, call: "KernelCall") -> float:
        """Return the seconds of a kernel without its products: of its epilogue, or of the whole where it has no weight;
        infinite where no session can run it."""
        if self.cached and not all(map(in_sessions, list_kernels(call))):
            return inf
        return sum(
            self.seconds(
                cost_in_session(kernel, bound, out, self.group) if self.cached else kernel.cost(bound, out, self.group)
            )
            for kernel, bound, out in shapes(lowering, cls, call)
        )


def in_sessions(kernel: Declared) -> bool:
    """True if a session can run a kernel: its rows depend on new rows only, or it has a variant over caches."""
    return bool(kernel.cached_variant or kernel.carried_variant) or not kernel.row_mixing


def cost_in_session(kernel: Declared, bound: Arguments, out: Any, extents: Extents, number: str = FLOAT) -> Costs:
    """Return the cost of a kernel in a step of a session. A recurrence passes its rows once more, to leave its state.
    Attention costs as much as its variant
    (opmatrix.inference.cached) over caches of the number type `number`, and a pass that writes its keys and values to
    them. Keys that are the values, too, have one cache."""
    if kernel.kept_variant:
        return [*kernel.cost(bound, out, extents), *KERNELS[kernel.kept_variant].cost(bound, out, extents)]
    if not kernel.cached_variant:
        return kernel.cost(bound, out, extents)
    variant, rows = KERNELS[kernel.cached_variant], "last" if hasattr(bound, "query") else "all"
    stored = (bound.k,) if bound.k is bound.v else (bound.k, bound.v)
    k, *others = (Cache(x.heads, x.cols, number) for x in stored)
    v = others[0] if others else k
    record = variant.record(
        q=bound.q,
        k=k,
        v=v,
        scale=1.0,
        cap=bound.cap,
        margin=bound.margin,
        where=SEEN,
        rows=rows,
        behind=window_attribute(bound).get("behind", BEYOND),
        values=0,
    )
    put = [("scale", {"T": extents["T"], "p": row_width(operand)}) for operand in stored]
    return [*variant.cost(record, out, extents), *put]
