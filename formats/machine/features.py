"""The position of a call in feature space: its rows, sizes and bytes."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import ceil, log2

import sympy

from formats import FORMATS
from formats.core import sizes
from formats.host.host import caches
from formats.machine.prices import Price

T, n, p = sizes.T.expression, sizes.n.expression, sizes.p.expression
FAR = "far"  # a key of sizes: bytes of the weight that come from memory


@cache
def readings(name: str) -> tuple[tuple[str, ...], Callable[..., tuple[float, float]], tuple[str, ...]]:
    """Return the names of a format's sizes, (bytes, flops a row) as a function of them, and the sizes of its structure
    (tile, group, rank), which are not counts."""
    form = FORMATS[name]
    axes = {symbol for array in form.fields.values() for axis in array.shape for symbol in axis.free_symbols}
    symbols = sorted(axes | {n, p} | (form.flops.free_symbols - {T}) | form.bytes.free_symbols, key=str)
    structure = tuple(str(symbol) for symbol in symbols if symbol.is_positive and symbol not in (n, p))
    function = sympy.lambdify(symbols, (form.bytes, sympy.cancel(form.flops / T)), "math")
    return tuple(map(str, symbols)), function, structure


def weigh_format(name: str, sizes: Mapping[str, float]) -> tuple[float, float]:
    """Return bytes of W in a format, and the number of multiplications for a row of x, at least 1 of each."""
    names, function, _ = readings(name)
    size, flops = function(*(sizes[symbol] for symbol in names))
    return max(float(size), 1.0), max(float(flops) / 2, 1.0)


def locate_call(price: Price, sizes: Mapping[str, float]) -> list[float]:
    """Return the position of a call in feature space: octaves of its rows and sizes; for a product also of its bytes a
    number of W."""
    if not (name := price.product):
        return [log2(max(sizes[symbol], 1)) for symbol in price.compiled[0]]
    share = weigh_format(name, sizes)[0] / (sizes["n"] * sizes["p"])
    return [
        log2(sizes["T"]),
        float(sizes["T"] == 1),
        log2(sizes["n"]),
        log2(sizes["p"]),
        log2(max(share, 1e-3)),
        *(log2(max(sizes[symbol], 1)) for symbol in readings(name)[2]),
    ]


def even(price: Price, sizes: Mapping[str, float], workers: int) -> dict[str, float]:
    """Return the sizes of a call shared by all workers. For a product these are the part of the busiest worker, times
    the workers: rows, or where there are few, columns, are handed out by portions, which do not always divide
    evenly."""
    from formats.kernels.matmul.linear import split_work  # imports the launch code, which few users of prices need

    if workers == 1 or not (name := price.product):
        return dict(sizes)
    T, p = max(ceil(sizes["T"]), 1), int(sizes["p"])
    rows, columns = split_work(T, p, workers, FORMATS[name].portion)
    if rows == T:
        return dict(sizes) | {"p": workers * columns}
    return dict(sizes) | {"T": workers * rows * ceil(T / rows / workers)}


def count_uncached(price: Price, sizes: Mapping[str, float]) -> float:
    """Return the bytes of a product's weight that come from memory: `FAR` if it is among the sizes, as inside a run;
    otherwise the bytes that the second cache does not keep from call to call: nearly none of a small weight, nearly all
    of a large one."""
    if FAR in sizes:
        return sizes[FAR]
    size = weigh_format(price.product, sizes)[0]
    return size * size / (size + second_cache())


@cache
def second_cache() -> int:
    """Return the bytes of one core's second cache, or of the only one."""
    return caches()[:2][-1]


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
