"""Prices of machines: one declaration a name, which fits, the calibration's cases, data sheets and tables read; and the
catalogue of all of them, which is handed to calibrations and to machines. Products and the stages that ride along with
them are declared here; the catalogue with the kernels of programs, too, is in opmatrix/runtime/pricing.py."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from formats import FORMATS
from formats.core.epilogue import Epilogue
from formats.core.sizes import Expression, T, Term, ceiling, p, size
from formats.core.stage import PER_COLUMN, PER_ROW, STAGES, Stage

if TYPE_CHECKING:
    import sympy

    from formats.machine.calibration import Grid, Numbers

S2, h, d, g = map(size, ("S2", "h", "d", "g"))  # scores of one head; heads, and columns of one; key heads
Timed = tuple[dict[str, float], Callable[[], object]]  # the sizes of a call, and the call
StartupCase = Callable[[int], Callable[[], object]]  # makes a minimal run for a number of sentences
Tile = tuple[int, int, int]  # rows, inputs, outputs of a matrix unit
TIMES = "times"  # a key of sizes: the number of calls made as one
NARROW_SUFFIX = ".narrow"  # stages behind a product that rounds x, and is as inexact


class Work(NamedTuple):
    """Operations of the matrix unit, in full tiles, and of the vector unit; numbers of activations moved; bytes of
    weights."""

    matrix: Term = 0
    vector: Term = 0
    moved: Term = 0
    stored: Term = 0


def untimed(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Return no cases: a product or a stage is timed in another way."""
    return iter(())


@dataclass(frozen=True, eq=False)
class Price:
    """`features`: the terms of the seconds of a call, expressions in named sizes, or a function that returns them. Each
    gets a coefficient by calibration, and so does the call itself, unless it `rides` along with another. `work` is that
    of one call on a matrix unit of these tiles; `cases` are the calls that a calibration times; `recorded`: they may be
    recorded, as they are inside a run. `product`: the format that it multiplies by, whose prices for one row and for
    weights beyond the caches are separate. `common`: it is measured with all prices that every search uses, and not
    alone on first use."""

    features: tuple[Term, ...] | Callable[[], tuple[Term, ...]]
    work: Callable[[Tile], Work] = lambda tile: Work()
    cases: Callable[["Grid", "Numbers"], Iterator[Timed]] = untimed
    rides: bool = False
    recorded: bool = True
    product: str = ""
    common: bool = True

    @property
    def few(self) -> int:
        """The largest number of rows with the code path for few rows: one, at least."""
        return FORMATS[self.product].few if self.product else 1

    @cached_property
    def terms(self) -> "tuple[sympy.Expr, ...]":
        """The features as expressions, with 1 for the call."""
        from sympy import sympify

        declared = self.features() if callable(self.features) else self.features
        return tuple(map(sympify, declared if self.rides else (*declared, 1)))

    @cached_property
    def compiled(self) -> tuple[tuple[str, ...], Callable[..., tuple[float, ...]]]:
        """The names of the sizes that the features need, and a function of them."""
        from sympy import lambdify

        symbols = sorted({symbol for term in self.terms for symbol in term.free_symbols}, key=str)
        return tuple(map(str, symbols)), lambdify(symbols, self.terms, "math")


@dataclass(frozen=True)
class Catalogue:
    """The kernels that are measured and priced: `prices` by name, and `startup_cases`, which begin as every run does,
    so that the time of a run beside its kernels is known. It is immutable: to declare more, make another one."""

    prices: Mapping[str, Price]
    startup_cases: tuple[StartupCase, ...] = ()
    optional: Mapping[str, Price] = field(default_factory=dict)

    def __contains__(self, kernel: str) -> bool:
        return kernel in self.prices or kernel in self.optional

    def __getitem__(self, kernel: str) -> Price:
        """Return the declaration of a price; ValueError lists the known names."""
        if kernel in self.prices:
            return self.prices[kernel]
        if kernel in self.optional:
            return self.optional[kernel]
        raise ValueError(f"no kernel {kernel!r} has a price; there are {', '.join(self.prices)}")

    @cached_property
    def common(self) -> list[str]:
        """The names of kernels that are measured together, as every search uses them."""
        return [name for name, price in self.prices.items() if price.common]

    @cached_property
    def lazy(self) -> list[str]:
        """The names of kernels that are measured alone, on first use."""
        return [name for name, price in self.prices.items() if not price.common]

    def evaluate_features(self, kernel: str, sizes: Mapping[str, float]) -> tuple[float, ...]:
        """Evaluate the features of a kernel at these sizes; ValueError names a size that is missing."""
        names, function = self[kernel].compiled
        if missing := [name for name in names if name not in sizes]:
            raise ValueError(f"the price of {kernel} needs {', '.join(missing)}, got {', '.join(sizes)}")
        return tuple(map(float, function(*(sizes[name] for name in names))))


def staged(stage: type[Stage], x: np.ndarray) -> Epilogue:
    """Make an epilogue of this stage alone, for rows like these."""
    row = np.ones(x.shape[1], np.float32)
    arrays = {PER_COLUMN: row, PER_ROW: x}
    return Epilogue(
        **{name: arrays[kind] if isinstance(kind, str) else kind.usual for name, kind in stage.operands.items()}
    )


def stage_cases(stage: type[Stage], grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls of a stage as a pass of its own; its epilogue is made anew for each call, as steps do."""
    from formats import kernels

    def call(x: np.ndarray, out: np.ndarray) -> object:
        """Run the stage as a pass of its own over x, into `out`."""
        return kernels.pointwise(x, out, staged(stage, x))

    for sizes, x, out in grid.passes(numbers):
        yield sizes, partial(call, x, out)


EPILOGUE = {stage.price: stage for stage in STAGES}  # by price; of two stages with one price the later


def riding(stage: type[Stage]) -> Price:
    """Make the price of a stage behind a product."""
    return Price((T * p,), lambda tile: Work(vector=stage.operations * T * p, moved=stage.reads * T * p), rides=True)


def passing(stage: type[Stage]) -> Price:
    """Make the price of a stage as a pass of its own."""
    return Price(
        (T * p,),
        lambda tile: Work(vector=stage.operations * T * p, moved=(2 + stage.reads) * T * p),
        partial(stage_cases, stage),
    )


def price_product(name: str, common: bool = True) -> Price:
    """Make the price of x @ W in a format, with the features that it declares."""
    return Price(lambda: FORMATS[name].work, product=name, common=common)


def price_formats(common: bool) -> dict[str, Price]:
    """Make the prices of the products of formats that every search uses, or of the other formats."""
    return {
        f"linear.{name}": price_product(name, common)
        for name, form in FORMATS.items()
        if (form.common and (form.proposed or form.plain)) == common
    }


# prices without programs: products, and stages behind them and alone; numpy's product only on request
FORMAT_CATALOGUE = Catalogue(
    {
        **price_formats(common=True),
        **{f"{name}{behind}": riding(stage) for behind in ("", NARROW_SUFFIX) for name, stage in EPILOGUE.items()},
        **{f"pointwise.{name}": passing(stage) for name, stage in EPILOGUE.items()},
        **price_formats(common=False),
    },
    optional={"linear.blas": price_product("dense")},
)


def up(number: Term, side: int) -> Expression:
    """Round a size up to full tiles."""
    return side * ceiling(number / side)
