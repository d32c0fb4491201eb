"""Spectra of derivatives of a model on a text, by products alone: of the map of each layer from rows to rows, and of
the map from the rows before each layer to the output. Numbers are those of the float64 oracle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import Route, noted
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.pullback import Pulled, pullback
from opmatrix.runtime.cotangents import random_signs
from opmatrix.spectra import Spectrum, singular_values
from opmatrix.spectra.measures import RealArray
from rewrites.approximate.trials import join_batches
from rewrites.report.spectra.stream_layers import Stream

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

JACOBIAN_VALUES = 12  # singular values of a layer's Jacobian
SIGN_PROBES, SEED = 32, 1986  # directions of an estimate; their seed
DIFFERENCE_STEP = 6e-6  # of a difference, relative to the rows: about the third root of float64's precision
COPIED_ROWS = 2048  # most rows of a pass, all copies of the text together
PRECISION = 1e-8  # relative error of values by differences, about


@dataclass(frozen=True)
class Derivative:
    """The derivative of a term at rows x (rows, n) of a batch, as the matrix J of the whole text: all entries of the
    result (rows, m) by all of x. Choices of largest entries are those at x."""

    term: Operator
    batch: Batch
    x: RealArray

    @cached_property
    def pulled(self) -> Pulled:
        """The pullback of the term to its rows."""
        return pullback(self.term, wrt=(), keep="full", x=self.x.shape[1])

    @cached_property
    def result(self) -> tuple[RealArray, list[Route]]:
        """The result at x, and the choices of largest entries on the way."""
        return noted(lambda: np.asarray(dense(self.term, self.x, self.batch)))

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of the result and of x."""
        return self.result[0].size, self.x.size

    def push(self, changes: RealArray) -> RealArray:
        """Return J v for each of K changes (K, rows, n) of x, (K, rows, m), by central differences: their error is
        about 1e-10 of the largest entries."""
        size = float(np.sqrt(np.square(self.x).mean())) or 1.0
        longest = abs(changes).max((1, 2), keepdims=True)
        steps = DIFFERENCE_STEP * size / np.where(longest > 0, longest, 1.0)
        moved = np.concatenate([self.x + steps * changes, self.x - steps * changes])
        results = self.evaluate(moved)
        return (results[: len(changes)] - results[len(changes) :]) / (2 * steps)

    def evaluate(self, rows: RealArray) -> RealArray:
        """Return the term's results at K states (K, rows, n) of the rows."""
        return self.in_copies(rows, lambda state, batch, _: np.asarray(dense(self.term, state, batch)))

    def pull(self, cotangents: RealArray) -> RealArray:
        """Return Jᵀ u for each of K cotangents (K, rows, m) of the result, (K, rows, n)."""

        def of_x(g: RealArray, batch: Batch, copies: int) -> RealArray:
            """Return the cotangent of x in so many copies of the text."""
            return np.asarray(self.pulled.at(np.concatenate([self.x] * copies), batch, g).x)

        return self.in_copies(cotangents, of_x)

    def in_copies(self, parts: RealArray, compute: Callable[[RealArray, Batch, int], RealArray]) -> RealArray:
        """Compute K parts (K, rows, columns) in passes over several copies of the text, by its choices."""
        most, results = 1 if self.batch.alone else max(1, COPIED_ROWS // self.batch.rows), list[RealArray]()
        for lo in range(0, len(parts), most):
            part = parts[lo : lo + most]
            copies = len(part)
            batch = self.batch if copies == 1 else join_batches([self.batch] * copies)
            given = {number: np.concatenate([route.taken] * copies, 1) for number, route in enumerate(self.result[1])}
            rows, _ = noted(lambda: compute(part.reshape(-1, part.shape[-1]), batch, copies), given)  # noqa: B023
            results.append(rows.reshape(copies, -1, rows.shape[-1]))
        return np.concatenate(results)

    def operator(self) -> "LinearOperator":
        """Return J as an operator on vectors, and on several side by side."""
        from scipy.sparse.linalg import LinearOperator

        def through(pass_on: Callable[[RealArray], RealArray], rows: RealArray) -> Callable[[RealArray], RealArray]:
            """Return a map of the columns of a matrix, each of which is a text's rows one after another."""
            return lambda columns: pass_on(columns.T.reshape(-1, *rows.shape)).reshape(columns.shape[1], -1).T

        forward, backward = through(self.push, self.x), through(self.pull, self.result[0])
        return LinearOperator(
            self.shape,
            matvec=lambda v: forward(v.reshape(-1, 1))[:, 0],
            rmatvec=lambda u: backward(u.reshape(-1, 1))[:, 0],
            matmat=forward,
            rmatmat=backward,
            dtype=np.float64,
        )

    def energy(self) -> float:
        """Estimate ‖J‖_F² by the mean of |Jᵀ u|² over random signs u (Hutchinson 1990)."""
        signs = random_directions(SIGN_PROBES, self.result[0].shape)
        return float(np.square(self.pull(signs)).sum() / len(signs))


def random_directions(count: int, shape: Sequence[int]) -> RealArray:
    """Return `count` arrays of a shape, each number 1 or -1."""
    return random_signs(np.random.default_rng(SEED), count, shape).astype(np.float64)


def jacobian_spectra(
    stream: Stream,
    batch: Batch,
    notes: list[str],
    count: int = JACOBIAN_VALUES,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Spectrum]:
    """Return the `count` largest singular values of each layer's Jacobian on a batch, then, for the rows before each
    layer, those of the output's: roots of the eigenvalues of Σ over rows t of J_tᵀ J_t (n, n), from SIGN_PROBES random
    directions. All further values of a layer count by their energy, which is estimated by as many."""
    derivatives, rows = list[Derivative](), np.asarray(dense(stream.entrance, batch))
    for layer in stream.layers:
        derivatives.append(Derivative(layer.term, batch, rows))
        rows = derivatives[-1].result[0]
    spectra = list[Spectrum]()
    for number, derivative in enumerate(derivatives):
        progress(number, len(derivatives))
        with noted_refusal(f"layer {number}", notes):
            spectra.append(layer_spectrum(derivative, number, count))
    if not spectra:
        raise InputError(f"--of jacobian: {notes[-1]}")
    with noted_refusal("the output by rows before layers", notes):
        spectra += reversed([*output_spectra(stream, derivatives, rows)])
    if any(route for derivative in derivatives for route in derivative.result[1]):
        notes.append("choices of experts are those of the text: derivatives see no others")
    return spectra


@contextmanager
def noted_refusal(name: str, notes: list[str]) -> Iterator[None]:
    """Note what has no pullback, and go on."""
    try:
        yield
    except InputError as error:
        notes.append(f"{name}: {error}: left out")


def layer_spectrum(derivative: Derivative, number: int, count: int) -> Spectrum:
    """Return the largest singular values of a layer's Jacobian; all of them where these are few."""
    side = min(derivative.shape)
    name = f"layer.{number}.jacobian"
    if side <= 4 * count:
        values = singular_values(derivative.operator(), solver="lapack")
        return Spectrum(values, derivative.shape, name, "jacobian", PRECISION)
    values = singular_values(derivative.operator(), count, solver="arpack")
    beyond = max(derivative.energy() - float(np.square(values).sum()), np.finfo(float).tiny)
    return Spectrum(values, derivative.shape, name, "jacobian", PRECISION, beyond)


def output_spectra(stream: Stream, derivatives: Sequence[Derivative], rows: RealArray) -> Iterator[Spectrum]:
    """Yield the spectrum of the output by the rows before each layer, the last layer first: random signs over the
    output are pulled back from layer to layer."""
    batch = derivatives[0].batch
    leaving = Derivative(stream.exit, batch, rows)
    cotangents = random_directions(SIGN_PROBES, rows.shape if stream.exit is I else leaving.result[0].shape)
    if stream.exit is not I:
        cotangents = leaving.pull(cotangents)
    for number, derivative in reversed([*enumerate(derivatives)]):
        cotangents = derivative.pull(cotangents)
        yield output_spectrum(cotangents, number)


def output_spectrum(cotangents: RealArray, number: int) -> Spectrum:
    """Return the singular values of K cotangents (K, rows, n) over √K, one below the other."""
    stacked: NDArray[np.float64] = cotangents.reshape(-1, cotangents.shape[-1]) / np.sqrt(len(cotangents))
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(stacked.T @ stacked)[::-1], 0))
    return Spectrum(values, (len(values),) * 2, f"layer.{number}.output by rows before", "jacobian", PRECISION)
