"""Two explorations side by side: the effect of a law, a machine or a length on the program and its price."""

from dataclasses import dataclass

from opmatrix.display.html import html_table
from opmatrix.display.tables import megabytes, micro, table
from rewrites.lowering.lower import KernelCall, Use
from rewrites.search.search import Structure

BRIEF_SECONDS = 1e-5  # seconds: shorter times are printed in microseconds


@dataclass(frozen=True)
class KernelShare:
    """The calls of one kernel in a program, and their seconds, products included."""

    count: int
    seconds: float


def share_by_kernel(structure: Structure) -> dict[str, KernelShare]:
    """Return the share of every kernel of a program, the dearest first."""
    shares: dict[str, KernelShare] = {}
    for extraction in structure.extractions:
        times = {node.cls: node.time for node in extraction.nodes if isinstance(node.cls, Use)}
        for node in extraction.nodes:
            if isinstance(node.label, KernelCall):
                name = node.label.implementation.name
                held = shares.get(name, KernelShare(0, 0.0))
                products = sum(times[child] for child in node.children if isinstance(child, Use))
                shares[name] = KernelShare(held.count + 1, held.seconds + node.time + products)
    return dict(sorted(shares.items(), key=lambda pair: -pair[1].seconds))


@dataclass(frozen=True, repr=False)
class ProgramPrice:
    """The predicted seconds of a program, its stored bytes, and the machine."""

    seconds: float
    stored: float
    machine: str

    def __str__(self) -> str:
        takes = f"{1e3 * self.seconds:.4g} ms" if self.seconds >= BRIEF_SECONDS else f"{micro(self.seconds)} µs"
        return f"{takes} predicted, {megabytes(self.stored)} MB stored, on {self.machine}"

    __repr__ = __str__


CHANGE_COLUMNS = "", "calls", "of the other", "µs", "of the other", "difference"


@dataclass(frozen=True, repr=False)
class ProgramChange:
    """The differences of another exploration from this one. Seconds are of whole programs."""

    names: tuple[str, str]
    prices: tuple[ProgramPrice, ProgramPrice]
    kernels: tuple[dict[str, KernelShare], dict[str, KernelShare]]
    fired: tuple[frozenset[str], frozenset[str]]

    @property
    def seconds(self) -> float:
        """The seconds by which the other program is slower; below 0 if it is faster."""
        return self.prices[1].seconds - self.prices[0].seconds

    @property
    def equal(self) -> bool:
        """True if both programs have the same kernels at the same price."""
        return not self.rows and self.seconds == 0

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The kernels whose number of calls, or whose time, differs."""
        mine, other = self.kernels
        rows = []
        for name in dict.fromkeys([*mine, *other]):
            a, b = mine.get(name, KernelShare(0, 0.0)), other.get(name, KernelShare(0, 0.0))
            if a.count != b.count or abs(b.seconds - a.seconds) > 1e-3 * max(a.seconds, b.seconds):
                rows.append(
                    (
                        name,
                        str(a.count),
                        str(b.count),
                        micro(a.seconds),
                        micro(b.seconds),
                        f"{1e6 * (b.seconds - a.seconds):+.1f}",
                    )
                )
        return sorted(rows, key=lambda row: -abs(float(row[-1])))

    @property
    def said(self) -> str:
        """The prices, and the laws that fire in only one of the two, in lines."""
        share = self.seconds / self.prices[0].seconds if self.prices[0].seconds else 0.0
        lines = [f"{name}: {price}" for name, price in zip(self.names, self.prices, strict=True)]
        lines.append(f"the other takes {1e6 * self.seconds:+.1f} µs, {100 * share:+.2f} %")
        for which, laws in zip(
            ("this one", "the other"), (self.fired[0] - self.fired[1], self.fired[1] - self.fired[0]), strict=True
        ):
            if laws:
                lines.append(f"fires in {which} alone: {', '.join(sorted(laws))}")
        return "\n".join(lines)

    def __str__(self) -> str:
        body = table(self.rows, CHANGE_COLUMNS) if self.rows else "the programs are of the same kernels"
        return f"{self.said}\n\n{body}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(CHANGE_COLUMNS, self.rows, self.said)
