"""Prices: seconds of kernels and bytes of stored weights at the sizes of a workload, on a machine."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from formats import FORMATS
from formats.machine import NARROW
from formats.pooling import PICKS
from opmatrix.extents import WHOLE, Extents, Pairs, pairs
from opmatrix.runtime.costs import READING, Costs
from opmatrix.runtime.scheme import Running

if TYPE_CHECKING:
    from rewrites.lower import Call, Lowering, Method, Use

PASSES = {"repeat": "scale", "rotate": "rotate", "unit": "scale", "pool": "scale", "link": "gather", "pick": "gather"}
BLOCK = {"attention", "scores", "weigh"}           # their work grows with scores


class Machine(Protocol):
    """What prices a kernel: formats.machine.Machine, or a stand-in."""

    def seconds(self, kernel: str, **sizes: float) -> float: ...


@lru_cache(4096)
def stored_bytes(name: str, n: int, p: int, parameters: tuple[tuple[str, Any], ...]) -> float:
    """Bytes of an n x p matrix in a format, from the format's own formula."""
    form = FORMATS[name]
    return float(form.bytes.subs(form.expected(n, p, **dict(parameters))))


@lru_cache(4096)
def counts(name: str, n: int, p: int, parameters: tuple[tuple[str, Any], ...]) -> dict[str, float]:
    """The sizes by name that a format's kernel is priced by."""
    return {str(size): value for size, value in FORMATS[name].expected(n, p, **dict(parameters)).items()}


@dataclass(frozen=True)
class Prices:
    """What a batch of these extents takes on a machine."""

    machine: Machine
    extents: Extents

    @cached_property
    def group(self) -> Extents:
        """The extents that the machine is asked about: where a batch runs in groups, those of one."""
        found: Extents = self.machine.group(self.extents) if isinstance(self.machine, Running) else self.extents
        return found

    @cached_property
    def live(self) -> dict[str, Any]:
        """Rows of each space."""
        return {str(size): count for size, count in self.group.items() if not isinstance(size, Pairs)}

    def rows(self, lowering: "Lowering", cls: int) -> Any:
        """How many rows a class has."""
        name = str(lowering.matcher.rows[cls])
        return self.live[name] if name in self.live else self.group[name]           # which says what is missing

    @property
    def start(self) -> float:
        """Seconds of a run beside its kernels, as far as the machine knows them."""
        return float(getattr(self.machine, "start", 0.0))

    def linear(self, form: str, n: int, p: int, parameters: tuple[tuple[str, Any], ...] = (), rows: Any = None) -> float:
        """Seconds of x times an n x p matrix in a format; of so many rows, of all tokens where nobody says."""
        return self.machine.seconds(f"linear.{form}", T=self.group["T"] if rows is None else rows, **counts(form, n, p, parameters))

    def product(self, lowering: "Lowering", use: "Use", method: "Method") -> tuple[float, float]:
        """Seconds of x times a weight in this representation, and the bytes of the weight."""
        shape, tokens = lowering.stored(use.weight, use.layout), self.rows(lowering, use.x)
        if use.layout == "stack": return self.headwise(tokens, *shape)
        rows, cols = shape
        size = stored_bytes(method.format, rows, cols, method.parameters)
        if use.x in lowering.graph.facts["given"]:
            return self.machine.seconds("gather", T=tokens, p=cols), size
        product = self.linear(method.format, rows, cols, method.parameters, tokens)
        if FORMATS[method.format].rounds: product -= self.spared(lowering.epilogues.get(use, ()), tokens, cols)
        return max(product, 0.0), size

    @property
    def parts(self) -> tuple[tuple[float, "Prices"], ...]:
        """Itself, with its share: all; as a mean has several."""
        return ((1.0, self),)

    def gathered(self, p: int) -> float:
        """Seconds of a row of so many columns for each token, from a table."""
        return self.machine.seconds("gather", T=self.live["T"], p=p)

    def spent(self, cost: Callable[[Extents], Costs]) -> float:
        """Seconds of kernels, by their cost at the extents that the machine is asked about."""
        return float(sum(self.machine.seconds(name, **sizes) for name, sizes in cost(self.group)))

    def headwise(self, rows: Any, heads: int, n: int, p: int) -> tuple[float, float]:
        """The same where every head has a matrix of its own."""
        return self.machine.seconds("headwise", T=rows, h=heads, n=n, p=p), 4.0 * heads * n * p

    def spared(self, stages: Sequence[str], rows: Any, cols: int) -> float:
        """Seconds that an epilogue takes less behind a product that rounds than its kernel is priced at."""
        sizes = {"T": rows, "p": cols}
        return sum(self.machine.seconds(name, **sizes) - self.machine.seconds(name + NARROW, **sizes) for name in stages)

    def kernel(self, lowering: "Lowering", cls: int, call: "Call") -> float:
        """Seconds of a kernel without its products: its epilogue, or the whole where it has no weight."""
        implementation, bound = call.implementation, dict(call.bound)
        kernel, rows = implementation.kernel, self.rows(lowering, cls)
        if kernel in ("view", "columns"):
            return 0.0
        if kernel in BLOCK:
            operands = [bound[name] for name in ("q", "k", "v") if name in bound]
            widths = [lowering.columns(each) / int(lowering.matcher.heads[each]) for each in operands]
            held = pairs[lowering.template.values[bound["where"]]] if kernel == "attention" else WHOLE
            block = {"T": rows, "S2": self.group[held], "h": int(lowering.matcher.heads[cls]), "d": (widths[0] + widths[-1]) / 2}
            names = {"weigh": ("softmax", "values")}.get(kernel, (kernel,))
            return sum(self.machine.seconds(name, **block) for name in names)
        sizes = {"T": rows, "p": lowering.columns(cls)}
        if kernel == "interpret":
            return READING * self.machine.seconds("pointwise.norm", **sizes)
        if kernel == "attend_once":                         # every head passes over its keys and values
            each = sum(int(lowering.terms[bound[name]].out.cols) for name in "kv")
            return self.machine.seconds("scale", T=self.group["T"], p=int(lowering.matcher.heads[cls]) * each)
        if kernel == "pool" and implementation.attributes["how"] not in PICKS:
            return self.machine.seconds("scale", T=self.group["T"], p=sizes["p"])
        if kernel in PASSES:
            return self.machine.seconds(PASSES[kernel], **sizes)
        stages = parts(implementation.variables)
        if kernel == "pointwise":                           # a pass costs what its first stage does: the others ride
            stages[0] = f"pointwise.{stages[0]}"
        return sum(self.machine.seconds(name, **sizes) for name in stages)


def parts(variables: Any) -> list[str]:
    """The stages of an epilogue, as the machine prices them: any activation like gelu, a factor like a residual."""
    stages = [("bias", "bias" in variables), ("gelu", "activation" in variables), ("residual", "times" in variables),
              ("residual", "residual" in variables), ("norm", "eps" in variables), ("affine", "gain" in variables)]
    return [name for name, present in stages if present]
