"""An approximation declared by a function: a weight and parameters in, the nearest matrix that it stands for out. Every
format that holds the result exactly may store it, so nothing else has to be said."""
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from formats import FORMATS, Format
from rewrites.laws.law import APPROXIMATE, FunctionDeclaration
from rewrites.lowering.lower import Method
from rewrites.lowering.representations import forms

Fit = Callable[..., ArrayLike | tuple[ArrayLike, ...]]      # a weight and parameters: a matrix, or two factors


@dataclass(frozen=True, eq=False, repr=False)
class Approximation(FunctionDeclaration):
    """`body(W, **parameters)` gives an array shaped as W (in x out, float64), or two factors whose product is. `grid`
    holds the values worth trying for each parameter."""

    body: Fit
    grid: dict[str, tuple[Hashable, ...]] = field(default_factory=dict)
    source: str = ""
    kind: str = APPROXIMATE

    def options(self) -> Iterator[dict[str, Hashable]]:
        """Every choice of parameters that is worth trying."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def label(self, parameters: Mapping[str, Hashable]) -> str:
        """largest(density=0.5)"""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in parameters.items())})"

    def fitted(self, weight: np.ndarray, parameters: Mapping[str, Hashable]) -> tuple[np.ndarray, ...]:
        """The nearest matrix, or two factors. Raises TypeError for what is neither, with its shape."""
        found = self.body(np.array(weight, np.float64), **parameters)
        factors = tuple(np.asarray(each, np.float64) for each in (found if isinstance(found, tuple) else (found,)))
        shapes = [each.shape for each in factors]
        whole = shapes[0] if len(shapes) == 1 else (*shapes[0][:1], *shapes[-1][1:])
        inner = len(shapes) == 1 or (len(shapes) == 2 and all(len(s) == 2 for s in shapes)
                                     and shapes[0][1] == shapes[1][0])
        if whole != weight.shape or not inner:
            raise TypeError(f"{self.label(parameters)} of a {weight.shape} matrix gave "
                            f"{' and '.join(map(str, shapes))}: it gives a matrix of that shape, or two factors of one")
        if not all(np.isfinite(each).all() for each in factors):
            raise TypeError(f"{self.label(parameters)} gave what is not finite")
        return factors

    def methods(self, weight: np.ndarray, parameters: Mapping[str, Hashable] | None = None) -> Iterator[Method]:
        """Each format, but dense, that holds what it makes of a weight, for each choice of parameters."""
        for each in self.options() if parameters is None else [parameters]:
            factors, label = self.fitted(weight, each), self.label(each)
            if len(factors) == 2:
                yield Method("lowrank", (("rank", factors[0].shape[1]),), label)
            else:
                yield from (method._replace(fit=label) for method in forms(factors[0]))

    def store(self, weight: np.ndarray, method: Method) -> Format:
        """What it makes of a weight, in the format of one of `methods`."""
        each = next((each for each in self.options() if self.label(each) == method.fit), None)
        return self.packed(weight, method, each or {})

    def packed(self, weight: np.ndarray, method: Method, parameters: Mapping[str, Hashable]) -> Format:
        """What it makes of a weight with any parameters, in the format of one of `methods`."""
        factors, form = self.fitted(weight, parameters), FORMATS[method.format]
        made: Format = (form.pack_factors(*factors) if len(factors) == 2 else     # type: ignore[attr-defined]
                        form.pack(factors[0].astype(np.float32), **dict(method.parameters)))
        return made

    def row(self) -> tuple[str, ...]:
        """Name, kind, statement, guard, source: the row of `opmatrix laws`."""
        choices = ", ".join(f"{key} in {list(values)}" for key, values in self.grid.items())
        statement = f"W ≈ {self.name}(W{''.join(f', {key}' for key in self.grid)})"
        return self.name, self.kind, statement, choices, self.source


def approximation(source: str = "", **grid: object) -> Callable[[Fit], Approximation]:
    """Declares an approximation; each parameter with the values worth trying: `@approximation(density=(0.25, 0.5))`."""
    choices = {key: value if isinstance(value, tuple | list) else (value,) for key, value in grid.items()}
    return lambda body: Approximation(body, {key: tuple(values) for key, values in choices.items()}, source)


def by(method: Method) -> str:
    """The format of a method, or the approximation of a user's that it was fitted by."""
    own, called, _ = method.fit.partition("(")
    return own if called else method.format
