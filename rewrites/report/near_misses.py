"""The nearest sparse and low-rank methods that no program took: the weight, the number type that was cheaper there, by
how much, and the rows or the machine at which it would be the other way round."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

from formats import FORMATS
from opmatrix.spectra.propose import Parameters, count_declared
from rewrites.approximate.proposals import Choices
from rewrites.lowering.lower import Lowering, Method, Use
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices, stored_bytes
from rewrites.lowering.representations import only_narrows
from rewrites.report.weight_spectra import called
from rewrites.search.search import Structure

SPARSITY, RANK = "sparsity", "rank"
MISSED_KINDS = {SPARSITY: "prunes", RANK: "projected"}  # of methods, and what their formats declare
TRIED_ROWS = tuple(2**power for power in range(13))  # rows of a product that are looked at
FewestRows = Callable[[], int | None]


class NearMiss(NamedTuple):
    """A method of a kind at the weight where it is nearest to the fastest number type of no larger error: its seconds,
    multiplications and bytes over those of this `rival`; its error alone, and the error allowed; and the fewest rows at
    which it is the faster, None for none up to the last of TRIED_ROWS."""

    kind: str
    weight: str
    shape: tuple[int, int]
    method: str
    rival: str
    seconds: float
    multiplications: float
    bytes: float
    error: float
    allowed: float
    rows: int | None


def near_misses(structure: Structure, choices: Choices, prices: Prices | Mean, allowed: float) -> list[NearMiss]:
    """Return the nearest method of each kind, of the weights of an exact program; none of a kind that no price repaid
    against dense. A method that errs more than allowed is the nearest only where all of its kind do."""
    nearest = dict[str, tuple[NearMiss, FewestRows]]()
    for _, lowering, use, _ in structure.uses():
        if len(lowering.stored(use.weight, use.layout)) == 2 and not lowering.gathers(use):
            for miss, rows in misses(lowering, use, choices.methods(lowering, use), heaviest_batch(prices), allowed):
                if miss.kind not in nearest or nearness(miss) < nearness(nearest[miss.kind][0]):
                    nearest[miss.kind] = miss, rows
    return [nearest[kind][0]._replace(rows=nearest[kind][1]()) for kind in MISSED_KINDS if kind in nearest]


def nearness(miss: NearMiss) -> tuple[bool, float]:
    """Return the order of near misses: within the error allowed first, then by seconds over the rival's."""
    return miss.error > miss.allowed, miss.seconds


def heaviest_batch(prices: Prices | Mean) -> Prices:
    """Return the prices of the batch that weighs most."""
    return max(prices.parts, key=lambda part: part[0])[1]


def misses(
    lowering: Lowering, use: Use, methods: Sequence[Method], prices: Prices, allowed: float
) -> Iterator[tuple[NearMiss, FewestRows]]:
    """Yield the sparse and low-rank methods of a weight, each beside the fastest number type that errs no more, and
    with a function that finds its rows: many products are priced for it."""
    n, p = lowering.stored(use.weight, use.layout)
    narrow = [method for method in methods if only_narrows([method.format])]
    for method in methods:
        kind = next(
            (kind for kind, flag in MISSED_KINDS.items() if getattr(FORMATS.get(method.format), flag, False)), None
        )
        rivals = [rival for rival in narrow if rival.error <= method.error]
        if kind is None or not rivals or not method.error:
            continue
        rival = min(rivals, key=lambda rival: lowering.price(use, rival)[0])
        if not lowering.price(use, rival)[0]:
            continue  # a product of no rows takes no time in any format
        names = [called(data) for data in lowering.arrays(use.weight)]
        miss = NearMiss(
            kind,
            ", ".join(dict.fromkeys(names)),
            (n, p),
            str(method),
            str(rival),
            lowering.price(use, method)[0] / lowering.price(use, rival)[0],
            count_operations(method, n, p) / count_operations(rival, n, p),
            stored_bytes(method.format, n, p, method.parameters) / stored_bytes(rival.format, n, p, rival.parameters),
            method.error**0.5,
            allowed,
            None,
        )
        yield miss, partial(fewest_rows, prices, method, rivals, (n, p))


def count_operations(method: Method, n: int, p: int) -> int:
    """Count the operations of a row times a weight (n, p) without zeros, as the method's format declares."""
    return count_declared(method.format, cast("Parameters", dict(method.parameters)), n, p)[0]


def fewest_rows(prices: Prices, method: Method, rivals: Sequence[Method], shape: tuple[int, int]) -> int | None:
    """Return the fewest of TRIED_ROWS at which a method beats its rivals; None for none."""
    return next((rows for rows in TRIED_ROWS if beats_rivals(prices, method, rivals, shape, rows)), None)


def beats_rivals(prices: Prices, method: Method, rivals: Sequence[Method], shape: tuple[int, int], rows: int) -> bool:
    """True if a product of so many rows takes less time by a method than by each of its rivals."""
    taken, *others = (prices.linear(each.format, *shape, each.parameters, rows) for each in (method, *rivals))
    return taken < min(others)


def tell_misses(missed: Sequence[dict[str, object]]) -> list[str]:
    """Return a line for each near miss of a report."""
    return [tell_miss(NearMiss(**entry)) for entry in missed]  # type: ignore[arg-type]


def tell_miss(miss: NearMiss) -> str:
    """Return a near miss in words."""
    over = f"{miss.seconds:.2g} x the seconds of {miss.rival}, which errs no more"
    error = f"alone it errs {100 * miss.error:.2g} % of {100 * miss.allowed:.2g} % allowed"
    lengths = f"the faster here from {miss.rows} rows" if miss.rows is not None else "slower here at every length tried"
    bound = [
        f"{what} ({share:.2g} x)"
        for what, share in (("multiplications", miss.multiplications), ("bytes of weights", miss.bytes))
        if share < 1
    ]
    machine = f"pays where {' or '.join(bound)} limit a product" if bound else "no machine is faster with it"
    return f"{miss.kind}: nearest at {miss.weight} by {miss.method}: {over}; {error}; {lengths}; {machine}"
