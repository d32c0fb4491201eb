"""A workload of several batches, each with its share of the calls. Cost is linear in the steps that run, so a price is
the mean of the batches' prices.

    optimize(model, workload=[(0.7, "1x16"), (0.3, "8x128")])

A batch is a Batch, or the lengths of its sentences as COUNTxTOKENS, several of them joined by +."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, T
from opmatrix.runtime.declarations.costs import Costs
from rewrites.lowering.phased import Generation, Phases, is_phases, parse_generation
from rewrites.lowering.price import Prices, TimeModel

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program
    from rewrites.lowering.lower import KernelCall, Lowering, Method, Use

Mix = Sequence[tuple[float, Any]]  # shares, each with a batch, lengths as a word, or extents
Sized = Extents | Mix | Phases  # sizes of one batch, of several, of a request
EXAMPLE = '[(0.7, "1x16"), (0.3, "8x128")]'
OFF = 1e-6  # largest difference of the sum of shares from 1
MAX_BATCH_TOKENS = 1 << 20  # most tokens of a batch
MIXED = re.compile(r"\s*[-+.\deE]+\s*:.*|.*:\s*\d+x\d.*")  # text with a number first, or a batch behind a share


@dataclass(frozen=True)
class Mean:
    """Prices of several batches: every method of Prices, as the mean weighted by shares. For the steps of a request the
    weights are counts, so the result is the sum. `parts` has a weight and the prices for each batch."""

    parts: tuple[tuple[float, Prices], ...]

    def of(self, asked: Callable[[Prices], float]) -> float:
        """Return the mean of a price, weighted by the shares of the batches."""
        return sum(share * asked(prices) for share, prices in self.parts)

    @property
    def extents(self) -> Extents:
        """The sizes of the batch with the most rows: buffers are ordered and planned for it."""
        return max((prices.extents for _, prices in self.parts), key=lambda extents: extents[T])

    @property
    def start(self) -> float:
        """The mean seconds of a run outside its kernels, as far as machines know them."""
        return self.of(lambda each: each.start)

    def beside(self, program: "Program") -> float:
        """Return the mean seconds of a program's run outside its kernels."""
        return self.of(lambda each: each.beside(program))

    def linear(self, form: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = ()) -> float:
        """Return the mean seconds of a product with an n × p weight in this format."""
        return self.of(lambda each: each.linear(form, n, p, parameters))

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
        """Return the mean seconds of a product for each head, and the bytes of the matrices, which no batch changes."""
        [(_, size), *_] = [prices.stack(form, heads, n, p, parameters, rows, most) for _, prices in self.parts]
        return self.of(lambda each: each.stack(form, heads, n, p, parameters, rows, most)[0]), size

    def gathered(self, p: int) -> float:
        """Return the mean seconds of gathering rows of p columns."""
        return self.of(lambda each: each.gathered(p))

    def spent(self, cost: Callable[[Extents], Costs]) -> float:
        """Return the mean seconds of kernels, from their cost at the sizes of each batch."""
        return self.of(lambda each: each.spent(cost))

    def product(self, lowering: "Lowering", use: "Use", method: "Method") -> tuple[float, float]:
        """Return the mean seconds of x times a weight in this representation, and the bytes of the weight."""
        costs = [prices.product(lowering, use, method) for _, prices in self.parts]
        return sum(share * seconds for (share, _), (seconds, _) in zip(self.parts, costs, strict=True)), costs[0][1]

    def kernel(self, lowering: "Lowering", cls: int, call: "KernelCall") -> float:
        """Return the mean seconds of a kernel without its products."""
        return self.of(lambda each: each.kernel(lowering, cls, call))


def priced(machine: TimeModel | Sequence[TimeModel], extents: Sized) -> Prices | Mean:
    """Return the prices of a batch of these extents, of several, [(share, extents), ..], or of the phases of a request.
    `machine` is one machine for all, or a sequence with one for each. Raises InputError for invalid shares."""
    if isinstance(extents, Extents):
        return Prices(machine, extents)  # type: ignore[arg-type]
    machines = machine if isinstance(machine, list | tuple) else [machine] * len(extents)
    if is_phases(extents):
        return Mean(
            tuple(
                (float(phase.times), Prices(model, phase.extents, phase.cached))
                for model, phase in zip(machines, extents, strict=True)
            )
        )
    check_shares(mix := cast(Mix, extents))
    return Mean(
        tuple((float(share), Prices(model, sizes)) for model, (share, sizes) in zip(machines, mix, strict=True))
    )


def check_shares(mix: Mix, where: str = "workload") -> None:
    """Raise InputError, which names the entry, unless these are shares above 0 that add to 1, each with a batch."""
    if (
        isinstance(mix, str)
        or not isinstance(mix, Sequence)
        or not all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in mix)
    ):
        raise InputError(f"{where} {mix!r:.80}: it is not a list of shares, such as {EXAMPLE}")
    if not mix:
        raise InputError(f"{where}: it is empty: give shares that add to 1, such as {EXAMPLE}")
    for share, of in mix:
        check_share(share, of, where)
    if abs((total := fsum(share for share, _ in mix)) - 1) > OFF:
        raise InputError(
            f"{where}: shares {', '.join(f'{share:g}' for share, _ in mix)} add to {total:g}, and must add to 1"
        )


def check_share(share: object, of: object, where: str) -> None:
    """Raise InputError for a share of a batch that is not a number above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{where}: the share of {of!s:.60} is {share!r:.40}: it must be a number above 0, at most 1")


def parse_mix(text: str) -> str | list[tuple[float, str]] | Generation:
    """Parse a workload of the command line: shares and lengths, `0.7:1x16,0.3:8x128`, or a request, `generate:512+128`;
    any other text names a file and is returned. Raises InputError, which names the part that is wrong."""
    if Path(text).exists():
        return text
    if generation := parse_generation(text, "--workload"):
        return generation
    if not MIXED.fullmatch(text):
        return text
    mix, option = list[tuple[float, str]](), f"--workload {text:.80}"
    for i, part in enumerate(text.split(","), 1):
        where, (share, _, word) = f"{option}: part {i}, {part!r:.40}", part.partition(":")
        try:
            mix.append((float(share), word.strip()))
        except ValueError:
            raise InputError(
                f"{where}: {share.strip()!r:.40} is not a share: write SHARE:COUNTxTOKENS,..., such as "
                "0.7:1x16,0.3:8x128"
            ) from None
        lengths(mix[-1][1], where)
        check_share(*mix[-1], where)
    check_shares(mix, option)
    return mix


def lengths(word: object, where: str = "workload") -> list[int]:
    """Return the lengths of sentences that a word names: `1x16`, or `8x128+1x16`. Raises InputError."""
    parts = (
        [re.fullmatch(r"(\d{1,9})x(\d{1,9})", part.strip(), re.ASCII) for part in word.split("+")]
        if isinstance(word, str)
        else [None]
    )
    counts = [(int(part[1]), int(part[2])) for part in parts if part]
    if len(counts) < len(parts) or any(0 in count for count in counts):
        raise InputError(f"{where}: {word!r:.60} is not a batch: write COUNTxTOKENS, such as 8x128, or 8x128+1x16")
    if (rows := sum(count * tokens for count, tokens in counts)) > MAX_BATCH_TOKENS:
        raise InputError(
            f"{where}: {word:.60} has {rows:,} tokens; a batch that is timed may have {MAX_BATCH_TOKENS:,}"
        )
    return [tokens for count, tokens in counts for _ in range(count)]


def format_lengths(batch: Batch) -> str:
    """Return the lengths of a batch's sentences, in the form that `lengths` reads."""
    tokens = (int(b - a) for a, b in zip(batch.starts, batch.starts[1:], strict=False))
    return "+".join(f"{len([*same])}x{length}" for length, same in groupby(tokens))


def list_batches(mix: Mix, drawn: Callable[[Sequence[int]], Batch]) -> tuple[tuple[float, Batch], ...]:
    """Return shares with their batches; `drawn` builds a batch of given lengths. Raises InputError."""
    check_shares(mix)
    return tuple((float(share), of if isinstance(of, Batch) else drawn(lengths(of))) for share, of in mix)


def describe_mix(mix: Sequence[tuple[float, Batch]]) -> str:
    """Return a mix in words."""
    return (
        ", ".join(f"{100 * share:g} % {format_lengths(batch)[:40]}" for share, batch in mix) + " (sentences x tokens)"
    )
