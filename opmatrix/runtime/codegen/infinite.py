"""Inputs that may be infinite: those that are merged by monoids whose identity is. What becomes NaN of them is an
error."""
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

Unmerged = frozenset[str]                                   # the names of inputs whose numbers a value has as they are
Infinite = frozenset[float]
UNREAD_INPUTS = Unmerged()
INFINITE_SHARE = 0.25                                       # of the numbers of an input that is tried


def infinite_identity(monoid: type[Monoid], right: bool = False) -> Infinite:
    """The infinite numbers that a monoid merges as nothing: those of its unit. On the right of a product only those of
    a carrier of one number are, as others weigh what stands there."""
    if right and not monoid.single: return Infinite()
    numbers = [np.asarray(each) for each in monoid.unit()]
    return Infinite(float(each) for each in numbers if each.ndim == 0 and np.isinf(each))


@dataclass
class MergedInputs:
    """The infinite numbers that the inputs of models may hold: what every product that reads one merges as nothing."""

    allowed: dict[str, Infinite] = field(default_factory=dict)
    known: dict[tuple[Operator, Unmerged], Unmerged] = field(default_factory=dict)

    def merge(self, names: Unmerged, nothing: Infinite) -> Unmerged:
        """No input is in what is merged; of those that were it merges these numbers as nothing."""
        for name in names: self.allowed[name] = self.allowed.get(name, Infinite(INFINITIES)) & nothing
        return UNREAD_INPUTS

    def read(self, term: Operator, x: Unmerged = UNREAD_INPUTS) -> Unmerged:
        """The inputs whose numbers a term has as they are, where x has those of some."""
        if (term, x) not in self.known: self.known[term, x] = self.follow(term, x)
        return self.known[term, x]

    def follow(self, term: Operator, x: Unmerged) -> Unmerged:
        spine = [term]
        while spine[-1].kind is KINDS["compose"]: spine[-1:] = reversed(spine[-1].children)
        if len(spine) > 1:
            for each in reversed(spine): x = self.read(each, x)
            return x
        monoids = [each for each in term.attributes if isinstance(each, type) and issubclass(each, Monoid)]
        ports = Unmerged(each.name for each in term.attributes if isinstance(each, Port))
        if term.kind.matrix:
            if not monoids: return x if term.diagonal else self.merge(x, Infinite())
            return self.merge(x, infinite_identity(monoids[0]))
        sides = [self.read(child, x) for child in term.children] or [UNREAD_INPUTS if term.constant else x]
        for monoid in monoids:
            sides = [self.merge(each, infinite_identity(monoid, right=at > 0)) for at, each in enumerate(sides)]
        return ports.union(*sides)


def infinite_inputs(terms: Iterable[Operator]) -> dict[str, tuple[float, ...]]:
    """The infinite numbers that inputs of models may hold, by name."""
    merging = MergedInputs()
    for term in terms: merging.read(term)
    return {name: tuple(sorted(each)) for name, each in merging.allowed.items() if each}


def infinite_batches(program: Program, batches: Sequence[Batch]) -> Iterator[Batch]:
    """The first batch with a share of the numbers infinite in each input that may hold such, and all of the first row;
    none where no input may."""
    ports = [port for port in program.inputs if port.infinite]
    for batch in batches[:1] if ports else ():
        made, rng = copy(batch), np.random.default_rng(0)
        made.inputs, made.known = {**batch.inputs}, {}
        for port in ports:
            numbers = np.array(batch.input(port), np.float32)
            endless = rng.random(numbers.shape) < INFINITE_SHARE
            endless[:1] = True
            numbers[endless] = rng.choice(port.infinite or (0.0,))
            made.inputs[port.name] = numbers
        yield made


def check_numbers(program: Program, batch: Batch, outputs: Sequence[NDArray[np.float32]]) -> None:
    """Raises InputError where an output is NaN and an input is infinite: it names the step that makes it so."""
    endless = [port for port in program.inputs if port.infinite and np.isinf(batch.input(port)).any()]
    if not endless or not any(np.isnan(each).any() for each in outputs): return
    port = endless[0]
    first = [*map(int, np.argwhere(np.isinf(batch.input(port)))[0])]
    for step, found, _ in program.trace(batch):
        if not np.isnan(found).any(): continue
        at = [*map(int, np.argwhere(np.isnan(found))[0])]
        raise InputError(f"step {step.output} = {step.kernel}: it is NaN at {at}, made of infinite numbers such as "
                         f"input {port.name} has at {first}: give large finite ones there")
