"""An approximation declared by a function from a weight and parameters to a matrix near the weight. Every format that
holds the result exactly may store it, so no more has to be declared."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from formats import FORMATS, Format
from rewrites.laws.law import APPROXIMATE, FunctionDeclaration
from rewrites.lowering.lower import Method
from rewrites.lowering.representations import forms

Fit = Callable[..., ArrayLike | tuple[ArrayLike, ...]]  # a weight and parameters: a matrix, or two factors


@dataclass(frozen=True, eq=False, repr=False)
class Approximation(FunctionDeclaration):
    """An approximation of weights: `body(W, **parameters)` returns an array shaped as W (in x out, float64), or two
    factors of such an array. `grid` has the values to try for each parameter."""

    body: Fit
    grid: dict[str, tuple[Hashable, ...]] = field(default_factory=dict)
    source: str = ""
    kind: str = APPROXIMATE

    def options(self) -> Iterator[dict[str, Hashable]]:
        """Yield every choice of parameters to try."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def label(self, parameters: Mapping[str, Hashable]) -> str:
        """Return the name with parameters, such as largest(density=0.5)."""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in parameters.items())})"

    def fitted(self, weight: np.ndarray, parameters: Mapping[str, Hashable]) -> tuple[np.ndarray, ...]:
        """Return the approximate matrix, or two factors. Raises TypeError, with the shape, for any other result."""
        result = self.body(np.array(weight, np.float64), **parameters)
        factors = tuple(
            np.asarray(factor, np.float64) for factor in (result if isinstance(result, tuple) else (result,))
        )
        shapes = [factor.shape for factor in factors]
        whole = shapes[0] if len(shapes) == 1 else (*shapes[0][:1], *shapes[-1][1:])
        inner = len(shapes) == 1 or (
            len(shapes) == 2 and all(len(s) == 2 for s in shapes) and shapes[0][1] == shapes[1][0]
        )
        if whole != weight.shape or not inner:
            raise TypeError(
                f"{self.label(parameters)} of a {weight.shape} matrix gave "
                f"{' and '.join(map(str, shapes))}: return a matrix of that shape, or two factors of such a matrix"
            )
        if not all(np.isfinite(factor).all() for factor in factors):
            raise TypeError(f"{self.label(parameters)} gave numbers that are not finite")
        return factors

    def methods(self, weight: np.ndarray, parameters: Mapping[str, Hashable] | None = None) -> Iterator[Method]:
        """Yield each format, except dense, that holds the approximation of a weight, for each choice of parameters."""
        for choice in self.options() if parameters is None else [parameters]:
            factors, label = self.fitted(weight, choice), self.label(choice)
            if len(factors) == 2:
                yield Method("lowrank", (("rank", factors[0].shape[1]),), label)
            else:
                yield from (method._replace(fit=label) for method in forms(factors[0]))

    def store(self, weight: np.ndarray, method: Method) -> Format:
        """Return the approximation of a weight, in the format of one of `methods`."""
        parameters = next((parameters for parameters in self.options() if self.label(parameters) == method.fit), None)
        return self.packed(weight, method, parameters or {})

    def packed(self, weight: np.ndarray, method: Method, parameters: Mapping[str, Hashable]) -> Format:
        """Return the approximation of a weight with any parameters, in the format of one of `methods`."""
        factors, form = self.fitted(weight, parameters), FORMATS[method.format]
        stored: Format = (
            form.pack_factors(*factors)  # type: ignore[attr-defined]
            if len(factors) == 2
            else form.pack(factors[0].astype(np.float32), **dict(method.parameters))
        )
        return stored

    def row(self) -> tuple[str, ...]:
        """Return name, kind, statement, guard, source: the row of `opmatrix laws`."""
        choices = ", ".join(f"{key} in {list(values)}" for key, values in self.grid.items())
        statement = f"W ≈ {self.name}(W{''.join(f', {key}' for key in self.grid)})"
        return self.name, self.kind, statement, choices, self.source


def approximation(source: str = "", **grid: object) -> Callable[[Fit], Approximation]:
    """Declare an approximation; each parameter with the values to try: `@approximation(density=(0.25, 0.5))`."""
    choices = {key: value if isinstance(value, tuple | list) else (value,) for key, value in grid.items()}
    return lambda body: Approximation(body, {key: tuple(values) for key, values in choices.items()}, source)


def by(method: Method) -> str:
    """Return the format of a method, or the name of the user's approximation that it was fitted by."""
    name, called, _ = method.fit.partition("(")
    return name if called else method.format
