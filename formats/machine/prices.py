"""What machines price: one declaration a name, from which fits, the calibration's cases, data sheets and tables are
read. Products and what rides along with them stand here; kernels of programs enter theirs
(opmatrix/runtime/kernel.py)."""
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from formats import FORMATS
from formats.core.epilogue import Epilogue
from formats.core.sizes import T, ceiling, p, size
from formats.core.stage import PER_COLUMN, PER_ROW, STAGES, Stage

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

S2, h, d = map(size, ("S2", "h", "d"))                      # scores of one head; heads, and columns of one
Timed = tuple[dict[str, float], Callable[[], Any]]          # the sizes of a call, and the call
Tile = tuple[int, int, int]                                 # rows, inputs, outputs of a matrix unit
NARROW_SUFFIX = ".narrow"                                   # behind a product that rounds what it multiplies: no more
                                                            # exact than it


class Work(NamedTuple):
    """Operations of the matrix unit, in whole tiles, and of the vector unit; numbers of activations moved; bytes of
    weights."""
    matrix: Any = 0
    vector: Any = 0
    moved: Any = 0
    stored: Any = 0


def untimed(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Of what is timed in another way."""
    return iter(())


@dataclass(frozen=True)
class Price:
    """`features`: what the seconds of a call grow with, expressions in named sizes, or a function that gives them. Each
    gets a coefficient by calibration, and so does the call itself, unless it `rides` along with another. `work` is that
    of one call on a matrix unit of these tiles; `cases` are the calls that a calibration times; `recorded`: they may be
    recorded, as they are inside a run. `product`: the format that it multiplies by, whose prices of one row and of
    weights beyond the caches are apart. `common`: it is measured with all that every search meets, and not alone when
    somebody first asks."""
    features: Any
    work: Callable[[Tile], Work] = lambda tile: Work()
    cases: Callable[["Grid", "Numbers"], Iterator[Timed]] = untimed
    rides: bool = False
    recorded: bool = True
    product: str = ""
    common: bool = True


def staged(stage: type[Stage], x: np.ndarray) -> Epilogue:
    """An epilogue of this stage alone, for rows like these."""
    row = np.ones(x.shape[1], np.float32)
    arrays = {PER_COLUMN: row, PER_ROW: x}
    return Epilogue(**{name: arrays[kind] if isinstance(kind, str) else kind.usual
                       for name, kind in stage.operands.items()})


def stage_cases(stage: type[Stage], grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """A stage as a pass of its own; its epilogue is made anew for each call, as steps do."""
    from formats import kernels
    def call(x: np.ndarray, out: np.ndarray) -> Any: return kernels.pointwise(x, out, staged(stage, x))
    for sizes, x, out in grid.passes(numbers): yield sizes, partial(call, x, out)


EPILOGUE = {stage.price: stage for stage in STAGES}         # by price; of two stages of one price the later is timed


def riding(stage: type[Stage]) -> Price:
    """A stage behind a product."""
    return Price((T * p,), lambda tile: Work(vector=stage.operations * T * p, moved=stage.reads * T * p), rides=True)


def passing(stage: type[Stage]) -> Price:
    """A stage as a pass of its own."""
    return Price((T * p,), lambda tile: Work(vector=stage.operations * T * p, moved=(2 + stage.reads) * T * p),
                 partial(stage_cases, stage))


def price_product(name: str) -> Price:
    """x @ W in a format: what it declares."""
    return Price(lambda: FORMATS[name].work, product=name)


def price_products(common: bool) -> dict[str, Price]:
    """Of the formats that every search meets, or of the others."""
    return {f"linear.{name}": price_product(name) for name, form in FORMATS.items()
            if (form.common and (form.proposed or form.plain)) == common}


PRICES: dict[str, Price] = {
    **price_products(common=True),
    **{f"{name}{behind}": riding(stage) for behind in ("", NARROW_SUFFIX) for name, stage in EPILOGUE.items()},
    **{f"pointwise.{name}": passing(stage) for name, stage in EPILOGUE.items()}}
LATER = price_products(common=False)                        # each timed when somebody first asks what they take
OPTIONAL = {"linear.blas": price_product("dense")}          # timed only where asked for: numpy's product
ALL_PRICES: Mapping[str, Price] = ChainMap(PRICES, LATER, OPTIONAL)


def price(kernel: str) -> Price:
    """The declaration of a price; KeyError names those there are."""
    if kernel not in ALL_PRICES:
        raise KeyError(f"no kernel {kernel!r} has a price; there are {', '.join(PRICES | LATER)}")
    return ALL_PRICES[kernel]


def up(number: Any, side: int) -> Any:
    """A size rounded up to whole tiles."""
    return side * ceiling(number / side)
