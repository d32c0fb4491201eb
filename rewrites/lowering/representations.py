"""Representations that hold a weight exactly: sparse formats where it is pruned, float16 where it was trained in it,
blocks where its file stores them. No number is rounded, so they belong to the exact search. A dense weight costs a look
at a sample of its numbers."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from formats import FORMATS, Dense, Format, FormatError, Half
from formats.core.errors import InputError
from formats.core.sizes import T
from formats.storage.select import sampled
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.term import Operator
from rewrites.egraph.attempts import Attempts
from rewrites.egraph.template import Template
from rewrites.lowering.half_numbers import SAMPLED_NUMBERS, exactly_half, has_half, sample_numbers
from rewrites.lowering.kernel_matches import leaf
from rewrites.lowering.lower import EXACT, TURNED, Lowering, Method, Use

MAX_DENSITY = 0.5  # share of nonzero numbers above which no sparse format pays
NUMBER_TYPES = {"float32": 32, "bf16": 16, "int8": 8, "int4": 4}  # bits of the narrowest stored numbers, by name


def check_budgets(memory: float | None, number_type: str) -> None:
    """Raise InputError, which names the option, for memory that is no positive finite number of bytes, or an unknown
    number type."""
    if memory is not None and not 0 < memory < float("inf"):
        raise InputError(f"--memory {memory / 1e6:g}: megabytes, more than 0")
    if number_type not in NUMBER_TYPES:
        raise InputError(f"--number-type {number_type}: it is one of {', '.join(NUMBER_TYPES)}")


Methods = Callable[[Lowering, Use], Sequence[Method]]
LOOKED: WeakKeyDictionary[Data, frozenset[str]] = WeakKeyDictionary()


def traits(data: Data) -> frozenset[str]:
    """Return `sparse` and `float16`, as far as a sample of the numbers can tell."""
    sample = sample_numbers(data)
    shares = {
        "sparse": np.count_nonzero(sample) <= (MAX_DENSITY + 0.1) * SAMPLED_NUMBERS,
        "float16": exactly_half(sample),
    }
    return frozenset(name for name, holds in shares.items() if holds)


def find_traits(data: Data) -> frozenset[str]:
    """Return the traits of a leaf, computed once. A leaf that is only promised has none."""
    known = LOOKED.get(data)  # once: its key may be an equal leaf, which others hold
    if known is None:
        known = frozenset() if isinstance(data, Promised) or len(data.shape) < 2 else traits(data)
        LOOKED[data] = known
    return known


def content(template: Template) -> tuple[str, ...]:
    """Return the keys of the weights whose numbers, or file blocks, decide which formats can hold them, and the names
    of other values. Parts of equal structure are the same problem where these keys are equal."""
    return tuple(value.key if find_traits(value) else name for name, value in template.values.items() if tells(value))


def tells(value: object) -> bool:
    """True for an array whose numbers, or blocks of a file, may let more formats hold it."""
    return isinstance(value, Data) and (bool(find_traits(value)) or leaf(value).block_type is not None)


def choices(lowering: Lowering, methods: Methods) -> tuple[Hashable, ...]:
    """Return the methods of each use of a part: layers of equal structure are the same problem where these are equal.
    Empty where no number decides them."""
    if not any(map(tells, lowering.template.values.values())):
        return ()
    return tuple(tuple(methods(lowering, use)) for use in lowering.kernels[1])


def forms(numbers: np.ndarray) -> Iterator[Method]:
    """Yield every proposed format, except plain ones, that holds a matrix (in x out) exactly and may pay, with its
    parameters. For a stack of head matrices, only formats that do not depend on the pattern of zeros."""
    stored = np.asarray(numbers, np.float32)
    seen = traits(Data(stored))
    if "float16" in seen and exactly_half(stored):
        yield Method(Half.name)
    if stored.ndim == 3 or "sparse" not in seen or np.count_nonzero(stored) > MAX_DENSITY * stored.size:
        return
    sample = sampled(stored)
    for name, form in FORMATS.items():
        if form.proposed and not form.plain and form.tolerance is Format.tolerance and not form.rounds:
            for layout in form.layouts_of(stored):
                if holds(form, sample, layout) and (options := fit_options(form, stored, layout)) is not None:
                    yield Method(name, tuple(options.items()))


def holds(form: type[Format], matrix: np.ndarray, layout: Mapping[str, Hashable]) -> bool:
    """True if the format stores a matrix exactly in this layout."""
    try:
        form.pack(matrix, **layout)
    except FormatError:
        return False
    return True


def fit_options(form: type[Format], stored: np.ndarray, layout: Mapping[str, Hashable]) -> dict[str, Hashable] | None:
    """Return the options by which a format holds a matrix exactly, stored in at most the share of dense that pays; None
    if there are none. A density counts whatever the format counts: numbers, or tiles."""
    try:
        packed = form.pack(stored, **layout)
    except FormatError:
        return None
    options, (n, p) = dict(layout), stored.shape
    if "density" in form.parameters:
        whole = form.expected(n, p, **layout, density=1.0)
        [count] = [size for size in packed.sizes if not size.is_positive]
        options["density"] = packed.sizes[count] / whole[count]
    numbers = float((form.flops / 2 / T).subs(form.expected(n, p, **options)))
    return (
        options
        if numbers <= MAX_DENSITY * stored.size and np.array_equal(form.fit(stored, **options), stored)
        else None
    )


def keeps_width(method: Method, narrowest: int) -> bool:
    """True if a method stores no numbers of fewer bits than `narrowest`."""
    return FORMATS[method.format].narrowest() >= narrowest


def only_narrows(methods: Iterable[str]) -> bool:
    """True if formats keep every weight and only narrow its numbers: they multiply as often as dense does."""
    return all(name in FORMATS and FORMATS[name].flops == Dense.flops for name in methods)


@dataclass
class Representable:
    """The methods of the exact search: dense, and every other format that holds the weight of a class exactly, in
    numbers of at least `narrowest` bits. Searches of one model may share it: equal matrices are examined once. With
    `in_blocks`, weights that a file stores in blocks are stored so alone: widened, or multiplied by a gain, they would
    take several times their bytes."""

    narrowest: int = NUMBER_TYPES["int8"]
    in_blocks: bool = False
    known: dict[tuple[Operator, str], Sequence[Method]] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)

    def __call__(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        key = lowering.terms[use.weight], TURNED if lowering.gathers(use) else use.layout
        if key not in self.known:
            self.known[key] = self._methods(lowering, use)
        methods = self.known[key]
        if lowering.gathers(use):
            methods = [method for method in methods if lowering.gatherable(use, method)]
        if self.in_blocks and any(leaf(data).block_type is not None for data in lowering.arrays(use.weight)):
            return [method for method in methods if FORMATS[method.format].filed is not None]
        return methods

    def _methods(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        methods = list[Method]()
        with self.attempts.leave_out(f"what else holds {', '.join(map(str, lowering.arrays(use.weight)))} exactly"):
            methods += proposed(lowering, use)
        methods += [Method(name) for name, form in FORMATS.items() if form.filed is not None and not form.rounds]
        methods = [method for method in methods if lowering.holdable(use, method)]
        return *EXACT, Method("packed"), *(method for method in methods if keeps_width(method, self.narrowest))


def proposed(lowering: Lowering, use: Use) -> list[Method]:
    """Return the proposed formats that hold a matrix: any format where some leaf is sparse, float16 where all leaves
    have it. Other matrices made of leaves are dense in float32."""
    seen = [find_traits(leaf_traits) for leaf_traits in lowering.arrays(use.weight) if prod(leaf_traits.shape) > 1]
    if any("sparse" in leaf_traits for leaf_traits in seen):
        return [*forms(lowering.matrix(use.weight, use.layout))]
    half = bool(seen) and all("float16" in leaf_traits for leaf_traits in seen) and has_half(lowering.terms[use.weight])
    return [Method(Half.name)] if half else []
