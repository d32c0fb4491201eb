"""Inputs that may be infinite: those that are merged by monoids with that infinity as identity. A NaN that results from
them is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.signature import INFINITIES, Port
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.term import KINDS, Operator

if TYPE_CHECKING:
    from opmatrix.algebra.batch.batch import Batch
    from opmatrix.runtime.program import Program

Unmerged = frozenset[str]  # names of inputs whose numbers are in a value unmerged
Infinite = frozenset[float]
UNREAD_INPUTS = Unmerged()
INFINITE_SHARE = 0.25  # share of infinite numbers in an input that is tried


def infinite_identity(monoid: type[Monoid], right: bool = False) -> Infinite:
    """Return the infinite numbers that are an identity of a monoid: those of its unit. On the right of a product only
    those of a carrier of one number are, as other carriers weigh the right operand."""
    if right and not monoid.single:
        return Infinite()
    numbers = [np.asarray(number) for number in monoid.unit()]
    return Infinite(float(number) for number in numbers if number.ndim == 0 and np.isinf(number))


@dataclass
class MergedInputs:
    """The infinite numbers that the inputs of models may hold: those that are an identity in every product that reads
    the input."""

    allowed: dict[str, Infinite] = field(default_factory=dict)
    known: dict[tuple[Operator, Unmerged], Unmerged] = field(default_factory=dict)

    def merge(self, names: Unmerged, nothing: Infinite) -> Unmerged:
        """Merge these inputs: their allowed infinities are limited to `nothing`, the identities of the merge. Return no
        names, as a merged value has no input's numbers as they are."""
        for name in names:
            self.allowed[name] = self.allowed.get(name, Infinite(INFINITIES)) & nothing
        return UNREAD_INPUTS

    def read(self, term: Operator, x: Unmerged = UNREAD_INPUTS) -> Unmerged:
        """Return the inputs whose numbers a term has as they are; `x`: those that its operand has."""
        if (term, x) not in self.known:
            self.known[term, x] = self.follow(term, x)
        return self.known[term, x]

    def follow(self, term: Operator, x: Unmerged) -> Unmerged:
        """Return the inputs that a term hands on unmerged, and limit the infinities of those that it merges."""
        spine = [term]
        while spine[-1].kind is KINDS["compose"]:
            spine[-1:] = reversed(spine[-1].children)
        if len(spine) > 1:
            for factor in reversed(spine):
                x = self.read(factor, x)
            return x
        monoids = [
            attribute for attribute in term.attributes if isinstance(attribute, type) and issubclass(attribute, Monoid)
        ]
        ports = Unmerged(attribute.name for attribute in term.attributes if isinstance(attribute, Port))
        if term.kind.matrix:
            if not monoids:
                return x if term.diagonal else self.merge(x, Infinite())
            return self.merge(x, infinite_identity(monoids[0]))
        sides = [self.read(child, x) for child in term.children] or [UNREAD_INPUTS if term.constant else x]
        for monoid in monoids:
            sides = [self.merge(side, infinite_identity(monoid, right=at > 0)) for at, side in enumerate(sides)]
        return ports.union(*sides)


def infinite_inputs(terms: Iterable[Operator]) -> dict[str, tuple[float, ...]]:
    """Return the infinite numbers that inputs of models may hold, by name."""
    merging = MergedInputs()
    for term in terms:
        merging.read(term)
    return {name: tuple(sorted(numbers)) for name, numbers in merging.allowed.items() if numbers}


def infinite_batches(program: Program, batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the first batch with a share of the numbers infinite, and all of the first row, in each input that may hold
    infinities; no batch if no input may."""
    ports = [port for port in program.inputs if port.infinite]
    for batch in batches[:1] if ports else ():
        altered, rng = copy(batch), np.random.default_rng(0)
        altered.inputs, altered.known = {**batch.inputs}, {}
        for port in ports:
            numbers = np.array(batch.input(port), np.float32)
            endless = rng.random(numbers.shape) < INFINITE_SHARE
            endless[:1] = True
            numbers[endless] = rng.choice(port.infinite or (0.0,))
            altered.inputs[port.name] = numbers
        yield altered


def check_numbers(program: Program, batch: Batch, outputs: Sequence[NDArray[np.float32]]) -> None:
    """Raise InputError if an output is NaN and an input is infinite: it names the step that makes the NaN."""
    endless = [port for port in program.inputs if port.infinite and np.isinf(batch.input(port)).any()]
    if not endless or not any(np.isnan(output).any() for output in outputs):
        return
    port = endless[0]
    first = [*map(int, np.argwhere(np.isinf(batch.input(port)))[0])]
    for step, value, _ in program.trace(batch):
        if not np.isnan(value).any():
            continue
        at = [*map(int, np.argwhere(np.isnan(value))[0])]
        raise InputError(
            f"step {step.output} = {step.kernel}: it is NaN at {at}, made of infinite numbers such as "
            f"input {port.name} has at {first}: give large finite ones there"
        )
