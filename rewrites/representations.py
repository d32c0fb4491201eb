"""Representations that hold a weight exactly: sparse ones where it is pruned, half where it was trained so. Nothing is
rounded, so they belong to the exact search; a dense weight costs a look at a sample of its numbers."""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from formats.block import TILE, tiles
from opmatrix.data import Data, Promised
from opmatrix.term import Operator
from rewrites.lower import EXACT, Lowering, Method, Use
from rewrites.template import Template

SAMPLE = 4096                                               # numbers that are looked at before all of them are
MOST = 0.5                                                  # share of nonzero numbers above which no sparse format pays
GROUPS = 4, 8, 16                                           # of N:M

LOOKED: WeakKeyDictionary[Data, frozenset[str]] = WeakKeyDictionary()


def traits(numbers: np.ndarray) -> frozenset[str]:
    """`sparse` and `half`, as far as a sample of the numbers can tell."""
    rng = np.random.default_rng(0)
    sample = numbers[tuple(rng.integers(0, size, SAMPLE) for size in numbers.shape)]
    found = {"sparse": np.count_nonzero(sample) <= (MOST + 0.1) * SAMPLE, "half": exactly_half(sample)}
    return frozenset(name for name, holds in found.items() if holds)


def looked(data: Data) -> frozenset[str]:
    """The traits of a leaf, looked up once; what is only promised has none."""
    if data not in LOOKED:
        LOOKED[data] = frozenset() if isinstance(data, Promised) or len(data.shape) < 2 else traits(data.array)
    return LOOKED[data]


def exactly_half(numbers: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def content(template: Template) -> tuple[str, ...]:
    """The keys of the weights whose numbers decide what can hold them: layers of equal structure are the same problem
    where these are equal."""
    return tuple(value.key for value in template.values.values() if isinstance(value, Data) and looked(value))


def forms(numbers: np.ndarray) -> Iterator[Method]:
    """Every format but dense that holds a matrix (in x out) exactly and may pay, with the sizes that it would have.

    Of tiles only the shape is offered that machines are calibrated for."""
    stored = np.asarray(numbers, np.float32)
    seen = traits(stored)
    if "half" in seen and exactly_half(stored):
        yield Method("half")
    if "sparse" not in seen or (share := np.count_nonzero(stored) / stored.size) > MOST:
        return
    yield Method("csr", (("density", share),))
    present = tiles(stored, TILE).any((2, 3))
    if (share := np.count_nonzero(present) / present.size) <= MOST:
        yield Method("block", (("density", share), ("tile", TILE)))
    for group in GROUPS:
        if len(stored) % group == 0:
            kept = max(1, int((stored != 0).reshape(-1, group, stored.shape[1]).sum(1).max()))
            if kept <= MOST * group:
                yield Method("nm", (("n", kept), ("m", group)))


@dataclass
class Representable:
    """The methods of the exact search: dense, and what else holds the weight of a class exactly. Searches of one model
    may share it: equal matrices are looked at once."""

    known: dict[tuple[Operator, str], Sequence[Method]] = field(default_factory=dict)

    def __call__(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        key = lowering.terms[use.weight], use.layout
        if key not in self.known:
            self.known[key] = self._methods(lowering, use)
        if use.x in lowering.graph.facts["given"]:          # rows are gathered from dense and half tables
            return [method for method in self.known[key] if method.format in ("dense", "half")]
        return self.known[key]

    def _methods(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        leaves = [t.args[0] for t in lowering.terms[use.weight].walk() if t.kind.name == "weight"]
        plain = EXACT if use.layout == "stack" else (*EXACT, Method("packed"))
        if use.layout == "stack" or not promising(leaves):  # the matrices of heads have one kernel, a dense one
            return plain
        return *plain, *forms(lowering.matrix(use.weight, use.layout))


def promising(leaves: Sequence[Data]) -> bool:
    """Some leaf is sparse, or all can be stored half: other matrices made of them are dense in float32."""
    seen = [looked(leaf) for leaf in leaves if prod(leaf.shape) > 1]
    return bool(seen) and (any("sparse" in each for each in seen) or all("half" in each for each in seen))
