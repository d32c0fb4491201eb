"""What machines price: one declaration a name, from which fits, the calibration's cases, data sheets and tables are
read; and the catalogue of all of them, which is handed to calibrations and to machines. Products and what rides along
with them stand here; the catalogue that has the kernels of programs, too, is opmatrix/runtime/pricing.py's."""
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

S2, h, d, g = map(size, ("S2", "h", "d", "g"))              # scores of one head; heads, and columns of one; key heads
Timed = tuple[dict[str, float], Callable[[], object]]          # the sizes of a call, and the call
StartupCase = Callable[[int], Callable[[], object]]            # for so many sentences, a run of almost nothing
Tile = tuple[int, int, int]                                 # rows, inputs, outputs of a matrix unit
TIMES = "times"                                             # among sizes: how many such calls are made as one
NARROW_SUFFIX = ".narrow"                       # behind a product that rounds what it multiplies: no more exact than it


class Work(NamedTuple):
    """Operations of the matrix unit, in whole tiles, and of the vector unit; numbers of activations moved; bytes of
    weights."""
    matrix: Term = 0
    vector: Term = 0
    moved: Term = 0
    stored: Term = 0


def untimed(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """No cases: a product or a stage is timed in another way."""
    return iter(())


@dataclass(frozen=True, eq=False)
class Price:
    """`features`: what the seconds of a call grow with, expressions in named sizes, or a function that gives them. Each
    gets a coefficient by calibration, and so does the call itself, unless it `rides` along with another. `work` is that
    of one call on a matrix unit of these tiles; `cases` are the calls that a calibration times; `recorded`: they may be
    recorded, as they are inside a run. `product`: the format that it multiplies by, whose prices of one row and of
    weights beyond the caches are apart. `common`: it is measured with all that every search meets, and not alone when
    somebody first asks."""
    features: tuple[Term, ...] | Callable[[], tuple[Term, ...]]
    work: Callable[[Tile], Work] = lambda tile: Work()
    cases: Callable[["Grid", "Numbers"], Iterator[Timed]] = untimed
    rides: bool = False
    recorded: bool = True
    product: str = ""
    common: bool = True

    @property
    def few(self) -> int:
        """Rows up to which a product takes another way than for more: one, at least."""
        return FORMATS[self.product].few if self.product else 1

    @cached_property
    def terms(self) -> "tuple[sympy.Expr, ...]":
        """The features as expressions, 1 for the call among them."""
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
    """What is measured and priced: `prices` by name, and `startup_cases`, which begin as every run does, so that what
    a run takes beside its kernels is known. A value: who declares more makes another one."""
    prices: Mapping[str, Price]
    startup_cases: tuple[StartupCase, ...] = ()
    optional: Mapping[str, Price] = field(default_factory=dict)

    def __contains__(self, kernel: str) -> bool: return kernel in self.prices or kernel in self.optional

    def __getitem__(self, kernel: str) -> Price:
        """The declaration of a price; ValueError names those there are."""
        if kernel in self.prices: return self.prices[kernel]
        if kernel in self.optional: return self.optional[kernel]
        raise ValueError(f"no kernel {kernel!r} has a price; there are {', '.join(self.prices)}")

    @cached_property
    def common(self) -> list[str]:
        """The names of what is measured together, as every search meets it."""
        return [name for name, each in self.prices.items() if each.common]

    @cached_property
    def lazy(self) -> list[str]:
        """The names of what is measured alone, when somebody first asks what it takes."""
        return [name for name, each in self.prices.items() if not each.common]

    def evaluate_features(self, kernel: str, sizes: Mapping[str, float]) -> tuple[float, ...]:
        """The features of a kernel at these sizes; ValueError names a size that is missing."""
        names, function = self[kernel].compiled
        if missing := [name for name in names if name not in sizes]:
            raise ValueError(f"the price of {kernel} needs {', '.join(missing)}; given were {', '.join(sizes)}")
        return tuple(map(float, function(*(sizes[name] for name in names))))


def staged(stage: type[Stage], x: np.ndarray) -> Epilogue:
    """An epilogue of this stage alone, for rows like these."""
    row = np.ones(x.shape[1], np.float32)
    arrays = {PER_COLUMN: row, PER_ROW: x}
    return Epilogue(**{name: arrays[kind] if isinstance(kind, str) else kind.usual
                       for name, kind in stage.operands.items()})


def stage_cases(stage: type[Stage], grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """A stage as a pass of its own; its epilogue is made anew for each call, as steps do."""
    from formats import kernels
    def call(x: np.ndarray, out: np.ndarray) -> object: return kernels.pointwise(x, out, staged(stage, x))
    for sizes, x, out in grid.passes(numbers): yield sizes, partial(call, x, out)


EPILOGUE = {stage.price: stage for stage in STAGES}         # by price; of two stages of one price the later is timed


def riding(stage: type[Stage]) -> Price:
    """A stage behind a product."""
    return Price((T * p,), lambda tile: Work(vector=stage.operations * T * p, moved=stage.reads * T * p), rides=True)


def passing(stage: type[Stage]) -> Price:
    """A stage as a pass of its own."""
    return Price((T * p,), lambda tile: Work(vector=stage.operations * T * p, moved=(2 + stage.reads) * T * p),
                 partial(stage_cases, stage))


def price_product(name: str, common: bool = True) -> Price:
    """x @ W in a format: what it declares."""
    return Price(lambda: FORMATS[name].work, product=name, common=common)


def price_formats(common: bool) -> dict[str, Price]:
    """Prices of the products of formats that every search meets, or of those of the others."""
    return {f"linear.{name}": price_product(name, common) for name, form in FORMATS.items()
            if (form.common and (form.proposed or form.plain)) == common}


# what is priced where there are no programs: products, and stages behind them and alone; numpy's product if asked for
FORMAT_CATALOGUE = Catalogue({
    **price_formats(common=True),
    **{f"{name}{behind}": riding(stage) for behind in ("", NARROW_SUFFIX) for name, stage in EPILOGUE.items()},
    **{f"pointwise.{name}": passing(stage) for name, stage in EPILOGUE.items()},
    **price_formats(common=False)}, optional={"linear.blas": price_product("dense")})


def up(number: Term, side: int) -> Expression:
    """A size rounded up to whole tiles."""
    return side * ceiling(number / side)
