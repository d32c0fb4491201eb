"""A workload of several batches, each with its share of the calls: cost is linear in what runs, so a price is the mean
of theirs.

    optimize(model, workload=[(0.7, "1x16"), (0.3, "8x128")])

A batch is one, or the lengths of its sentences as COUNTxTOKENS, several of them joined by +."""
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

Mix = Sequence[tuple[float, Any]]                           # shares, each of a batch, of lengths as a word, or of
                                                            # extents
Sized = Extents | Mix | Phases                              # of one batch, of several, of a request
EXAMPLE = '[(0.7, "1x16"), (0.3, "8x128")]'
OFF = 1e-6                                                  # that shares may add to more or less than 1
MAX_BATCH_TOKENS = 1 << 20                                  # tokens of a batch
MIXED = re.compile(r"\s*[-+.\deE]+\s*:.*|.*:\s*\d+x\d.*")     # what begins with a number, or has a batch behind a share


@dataclass(frozen=True)
class Mean:
    """Prices of several batches, by their shares: what is asked of Prices, as the mean; of the steps of a request, by
    how many there are, as the sum. `parts` has those of each."""

    parts: tuple[tuple[float, Prices], ...]

    def of(self, asked: Callable[[Prices], float]) -> float:
        return sum(share * asked(each) for share, each in self.parts)

    @property
    def extents(self) -> Extents:
        """The sizes of the batch with the most rows: buffers are ordered and planned for it."""
        return max((each.extents for _, each in self.parts), key=lambda extents: extents[T])

    @property
    def start(self) -> float: return self.of(lambda each: each.start)

    def beside(self, program: "Program") -> float: return self.of(lambda each: each.beside(program))

    def linear(self, form: str, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = ()) -> float:
        return self.of(lambda each: each.linear(form, n, p, parameters))

    def stack(self, form: str, heads: int, n: int, p: int, parameters: tuple[tuple[str, Hashable], ...] = (),
              rows: float | None = None, most: int | None = None) -> tuple[float, float]:
        [(_, size), *_] = [each.stack(form, heads, n, p, parameters, rows, most) for _, each in self.parts]
        return self.of(lambda each: each.stack(form, heads, n, p, parameters, rows, most)[0]), size

    def gathered(self, p: int) -> float: return self.of(lambda each: each.gathered(p))

    def spent(self, cost: Callable[[Extents], Costs]) -> float: return self.of(lambda each: each.spent(cost))

    def product(self, lowering: "Lowering", use: "Use", method: "Method") -> tuple[float, float]:
        found = [each.product(lowering, use, method) for _, each in self.parts]
        return sum(share * seconds for (share, _), (seconds, _) in zip(self.parts, found, strict=True)), found[0][1]

    def kernel(self, lowering: "Lowering", cls: int, call: "KernelCall") -> float:
        return self.of(lambda each: each.kernel(lowering, cls, call))


def priced(machine: TimeModel | Sequence[TimeModel], extents: Sized) -> Prices | Mean:
    """The prices of a batch of these extents, or of several, [(share, extents), ..], or of the phases of a request: on
    one machine, or each on its own. Raises InputError for shares that are none."""
    if isinstance(extents, Extents): return Prices(machine, extents)      # type: ignore[arg-type]
    machines = machine if isinstance(machine, list | tuple) else [machine] * len(extents)
    if is_phases(extents):
        return Mean(tuple((float(each.times), Prices(own, each.extents, each.cached))
                          for own, each in zip(machines, extents, strict=True)))
    check_shares(mix := cast(Mix, extents))
    return Mean(tuple((float(share), Prices(own, each)) for own, (share, each) in zip(machines, mix, strict=True)))


def check_shares(mix: Mix, where: str = "workload") -> None:
    """Raises InputError, which names the entry, unless these are shares above 0 that add to 1, each of something."""
    if isinstance(mix, str) or not isinstance(mix, Sequence) or not all(isinstance(each, tuple | list)
                                                                        and len(each) == 2 for each in mix):
        raise InputError(f"{where} {mix!r:.80}: it is no list of shares, such as {EXAMPLE}")
    if not mix: raise InputError(f"{where}: it is empty: give shares that add to 1, such as {EXAMPLE}")
    for share, of in mix: check_share(share, of, where)
    if abs((total := fsum(share for share, _ in mix)) - 1) > OFF:
        raise InputError(f"{where}: shares {', '.join(f'{share:g}' for share, _ in mix)} add to {total:g}, and must "
                         "add to 1")


def check_share(share: object, of: object, where: str) -> None:
    """Raises InputError for what is no share of a batch."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{where}: the share of {of!s:.60} is {share!r:.40}: it must be a number above 0, at most 1")


def parse_mix(text: str) -> str | list[tuple[float, str]] | Generation:
    """A workload as the command line has it: shares and lengths, `0.7:1x16,0.3:8x128`, or a request,
    `generate:512+128`; any other text names a file. Raises InputError, which names the part that is wrong."""
    if Path(text).exists(): return text
    if made := parse_generation(text, "--workload"): return made
    if not MIXED.fullmatch(text): return text
    found, given = list[tuple[float, str]](), f"--workload {text:.80}"
    for i, part in enumerate(text.split(","), 1):
        where, (share, _, word) = f"{given}: part {i}, {part!r:.40}", part.partition(":")
        try: found.append((float(share), word.strip()))
        except ValueError:
            raise InputError(f"{where}: {share.strip()!r:.40} is no share: write SHARE:COUNTxTOKENS,..., such as "
                             "0.7:1x16,0.3:8x128") from None
        lengths(found[-1][1], where)
        check_share(*found[-1], where)
    check_shares(found, given)
    return found


def lengths(word: object, where: str = "workload") -> list[int]:
    """The lengths of sentences that a word names: `1x16`, or `8x128+1x16`. Raises InputError."""
    parts = [re.fullmatch(r"(\d{1,9})x(\d{1,9})", part.strip(), re.ASCII)
             for part in word.split("+")] if isinstance(word, str) else [None]
    counts = [(int(part[1]), int(part[2])) for part in parts if part]
    if len(counts) < len(parts) or any(0 in each for each in counts):
        raise InputError(f"{where}: {word!r:.60} is no batch: write COUNTxTOKENS, such as 8x128, or 8x128+1x16")
    if (rows := sum(count * tokens for count, tokens in counts)) > MAX_BATCH_TOKENS:
        raise InputError(f"{where}: {word:.60} has {rows:,} tokens; a batch that is timed may have "
                         f"{MAX_BATCH_TOKENS:,}")
    return [tokens for count, tokens in counts for _ in range(count)]


def format_lengths(batch: Batch) -> str:
    """The lengths of a batch's sentences, as `lengths` reads them."""
    each = (int(b - a) for a, b in zip(batch.starts, batch.starts[1:], strict=False))
    return "+".join(f"{len([*same])}x{length}" for length, same in groupby(each))


def list_batches(mix: Mix, drawn: Callable[[Sequence[int]], Batch]) -> tuple[tuple[float, Batch], ...]:
    """Shares with their batches; `drawn` makes one of lengths. Raises InputError."""
    check_shares(mix)
    return tuple((float(share), of if isinstance(of, Batch) else drawn(lengths(of))) for share, of in mix)


def describe_mix(mix: Sequence[tuple[float, Batch]]) -> str:
    """A mix in words."""
    return ", ".join(f"{100 * share:g} % {format_lengths(batch)[:40]}"
                     for share, batch in mix) + " (sentences x tokens)"
