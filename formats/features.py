"""What the time of a product depends on, beside its sizes: features of the pattern of W, of its rows and of its bytes."""
from collections.abc import Iterable, Mapping
from functools import cache
from math import log, log2, sqrt
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from formats import FORMATS, sizes

T, n, p = sizes.T.expression, sizes.n.expression, sizes.p.expression
TILES = ((8, 8), (16, 16), (32, 1))                          # inputs by outputs
PATTERN = ("variation", "longest", *(f"fill{r}x{c}" for r, c in TILES))
LINES = (16, 64)                                             # rows and columns come in vectors and tiles of so many


def pattern(W: NDArray[Any]) -> dict[str, float]:
    """Features of the pattern of W (n, p): `nonzero`, the share of all; `variation` and `longest`, the standard deviation
    and the maximum of nonzeros in a column over their mean; `fill…`, how full the tiles are that are not empty."""
    present = W != 0
    counts = present.sum(0)
    mean, total = max(float(counts.mean()), 1e-9), max(int(counts.sum()), 1)
    found = {"nonzero": total / W.size, "variation": float(counts.std()) / mean, "longest": float(counts.max()) / mean}
    for r, c in TILES: found[f"fill{r}x{c}"] = total / (r * c * max(int(tiled(present, r, c).sum()), 1))
    return found


def tiled(present: NDArray[np.bool_], r: int, c: int) -> NDArray[np.bool_]:
    """Whether a tile of r by c holds anything; the last ones are cut at the edge."""
    down = np.logical_or.reduceat(present, range(0, len(present), r), 0)
    return np.logical_or.reduceat(down, range(0, present.shape[1], c), 1) if c > 1 else down


def random_pattern(nonzero: float, inputs: float, outputs: float) -> dict[str, float]:
    """The same features, as expected of a pattern of this density that is random."""
    share = min(max(nonzero, 1e-4), 1.0)
    variation = sqrt((1 - share) / (share * inputs))
    longest = min(1 + variation * sqrt(2 * log(outputs + 1)), 1 / share)
    return {"variation": variation, "longest": longest} | {
        f"fill{r}x{c}": share / (1 - (1 - share) ** (r * c)) if share < 1 else 1.0 for r, c in TILES}


@cache
def readings(name: str) -> tuple[tuple[str, ...], Any, tuple[str, ...]]:
    """Of a format: the names of its sizes, (bytes, flops a row) as a function of them, and the sizes of its structure
    (tile, group, rank), which are not counts."""
    form = FORMATS["dense" if name == "blas" else name]
    found = {symbol for array in form.fields.values() for axis in array.shape for symbol in axis.free_symbols}
    symbols = sorted(found | {n, p} | (form.flops.free_symbols - {T}) | form.bytes.free_symbols, key=str)
    structure = tuple(str(symbol) for symbol in symbols if symbol.is_positive and symbol not in (n, p))
    function = sympy.lambdify(symbols, (form.bytes, sympy.cancel(form.flops / T)), "math")
    return tuple(map(str, symbols)), function, structure


def stored(name: str, sizes: Mapping[str, float]) -> tuple[float, float]:
    """Bytes of W in a format, and numbers that a row of x is multiplied with, at least 1 of each."""
    names, function, _ = readings(name)
    size, flops = function(*(sizes[each] for each in names))
    return max(float(size), 1.0), max(float(flops) / 2, 1.0)


def place(kernel: str, sizes: Mapping[str, float]) -> list[float]:
    """Where a call lies among others: octaves of its rows and sizes; of a product, of its bytes a number of W, too."""
    family, _, name = kernel.partition(".")
    if family != "linear": return [log2(max(sizes[each], 1e-9)) for each in others(kernel)]
    share = stored(name, sizes)[0] / (sizes["n"] * sizes["p"])
    return [log2(sizes["T"]), float(sizes["T"] == 1), log2(sizes["n"]), log2(sizes["p"]), log2(max(share, 1e-3)),
            *(log2(max(sizes[each], 1)) for each in readings(name)[2])]


@cache
def others(kernel: str) -> tuple[str, ...]:
    from formats.machine import compiled
    return compiled(kernel)[0]


def described(kernel: str, sizes: Mapping[str, float]) -> list[float]:
    """What the trained predictor looks at: the place, how full vectors and tiles of rows and columns are, density, bytes
    against the second cache, and the pattern (`pattern`; where it is not given, that of a random one)."""
    size, multiplied = stored(kernel.partition(".")[2], sizes)
    density = min(1.0, multiplied / (sizes["n"] * sizes["p"]))
    expected = random_pattern(sizes.get("nonzero", density), sizes["n"], sizes["p"])
    full = [sizes[axis] / (line * -(-sizes[axis] // line)) for axis in ("T", "p") for line in LINES]
    return [*place(kernel, sizes), *full, density, log2(size / second_cache()),
            log2(4 * sizes["n"] * sizes["T"] / second_cache()), *(sizes.get(each, expected[each]) for each in PATTERN)]


def labels(kernel: str) -> list[str]:
    """The names of what `described` gives."""
    _, _, structure = readings(kernel.partition(".")[2])
    filled = [f"{axis} fills {line}" for axis in ("T", "p") for line in LINES]
    return ["log2 T", "T is 1", "log2 n", "log2 p", "log2 bytes a number", *(f"log2 {each}" for each in structure),
            *filled, "density", "log2 bytes / L2", "log2 bytes of x / L2", *PATTERN]


def beyond(kernel: str, sizes: Mapping[str, float]) -> float:
    """Bytes of a product's weight that the second cache does not keep from call to call: nearly none of a small weight, nearly
    all of a large one."""
    size = stored(kernel.partition(".")[2], sizes)[0]
    return size * size / (size + second_cache())


@cache
def second_cache() -> int:
    """Bytes of one core's second cache; 1 MiB where the system does not say."""
    from pathlib import Path
    file = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    try: return max(1, int(file.read_text().strip().removesuffix("K"))) << 10
    except (OSError, ValueError): return 1 << 20


def quantile(values: Iterable[float], share: float) -> float:
    """The value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
