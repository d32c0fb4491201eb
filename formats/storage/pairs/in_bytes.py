"""Bytes with a scale for each output, as the number type of a pair."""

import inspect
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats, FormatError
from formats.core.layout import PANEL
from formats.core.sizes import ON_NUMBERS, Size
from formats.storage.format import Format, options
from formats.storage.int8 import UNIT, bound_error, by_row, quantised, scale_groups, whole_numbers
from formats.storage.packed import Packed

COLUMN, DEEP = 1 << 30, 1 << 17  # a group of all inputs; inputs whose sums of bytes are int32
INT8_ERROR = 0.007  # relative error of normal numbers as bytes


class Bytes:
    """The numbers of a structure as bytes, with 128 added, and a scale for each output, the last array; x is rounded as
    for int8. Options of the structure that the kernel fixes are class keywords, and no options of the pair; options
    that the structure remembers are passed to `arranged` and `restored`."""

    structure: ClassVar[type[Format]]
    fixed: ClassVar[dict[str, object]]
    arranged: ClassVar[Callable[..., tuple[np.ndarray, ...]]]
    restored: ClassVar[Callable[..., tuple[np.ndarray, ...]]]
    unscaled: ClassVar[Callable[..., Floats]]
    prunes: ClassVar[bool]
    unit, portion = "int8", PANEL

    def __init_subclass__(cls, structure: type[Format], **fixed: object) -> None:
        cls.structure, cls.fixed, whole = structure, fixed, structure.declared
        cls.prunes = structure.prunes

        def fit(W, **given):
            """Fit W to the structure, then round it to integers up to 127 times the scale of its output."""
            return scale_groups(*quantised(whole.fit(W, **given, **fixed), COLUMN, 127), COLUMN)

        def pack(W, **given):
            """Return the structure's arrays of the integers, rearranged for the kernel, and the scales (p,). Raises
            FormatError for too many inputs."""
            if len(W) > DEEP:
                raise FormatError(f"{cls.name}: {too_deep(len(W))}")
            numbers, scale = quantised(W, COLUMN, 127)
            remembered = {name: given.get(name, options(whole.pack)[name]) for name in options(cls.declared.unpack)}
            return *cls.arranged(*whole.pack(numbers, **given, **fixed), **remembered), scale[0]

        def unscaled(shape, *arrays, **named):
            """Unpack the structure with integers for numbers."""
            also = {name: value for name, value in fixed.items() if name in options(whole.unpack)}
            return whole.unpack(shape, *cls.restored(shape, *arrays, **named), **named, **also)

        def unpack(shape, *arrays, **given):
            """Unpack the structure with integers for numbers, and multiply by the scales of outputs."""
            *arrays, scale = arrays
            return unscaled(shape, *arrays, **given) * scale

        for method in (fit, pack, unpack):
            taken = inspect.signature(getattr(whole, method.__name__))
            left = [parameter for name, parameter in taken.parameters.items() if name not in fixed]
            method.__signature__ = taken.replace(parameters=left)  # type: ignore[union-attr]
            setattr(cls, method.__name__, method)
        cls.unscaled = staticmethod(unscaled)
        super().__init_subclass__()

    def integers(self):
        """Return the integers of the structure, zeros where it stores none."""
        *arrays, scale = self._stored
        whole = type(self).unscaled(self.shape, *arrays, **self.remembered).astype(np.int8)
        return (whole_numbers(whole, scale[None], COLUMN),)

    def transpose(self):
        """Store W.T as float32 in panels, as it has no scales of its own."""
        return Packed.pack(self.unpack().T)  # scales of outputs are none of inputs

    def tolerance(self, W):
        """Allow for the rounding of integer times scale: 4 unit roundoffs of W's norm."""
        return 4 * UNIT * float(np.linalg.norm(W.astype(np.float64)))

    def bound(self, x, operands=None):
        """Bound the float32 roundings around integer sums, which are exact, with one group an output."""
        return bound_error(x, *operands or self.operands(x), 1)

    @staticmethod
    def reads(x):
        """Return x as its kernel reads it: integers up to 127 times the scale of their row, in float64."""
        return by_row(x)

    @classmethod
    def indices(cls):
        """Return the index arrays of the structure that the pair still stores under their names."""
        return [name for name in cls.structure.indices() if name in cls.fields]

    @classmethod
    def counts(cls, inputs, outputs, **given):
        """Return the structure's counts of the sizes that the pair's arrays have."""
        used = set()
        for array in cls.fields.values():
            for axis in array.shape:
                if isinstance(axis, Size):
                    axis.read(lambda size: used.add(size) or 1, ON_NUMBERS)
        counts = cls.structure.counts(inputs, outputs, **given, **cls.fixed)
        return {size: count for size, count in counts.items() if size in used}


def shifted(whole: Floats) -> NDArray[np.uint8]:
    """Return integers up to 127 as bytes with 128 added."""
    return (whole + 128).astype(np.uint8)


def too_deep(inputs: int) -> str:
    """Describe the fault of too many inputs; empty if there are not."""
    return f"{inputs:,} inputs: sums of bytes fit into int32 for at most {DEEP:,} inputs" if inputs > DEEP else ""


def unsound(inputs: int, scale: Floats) -> str:
    """Describe the fault of the inputs or of stored scales; empty if there is none."""
    return too_deep(inputs) or (f"the scale {scale.min()} is negative" if (scale < 0).any() else "")
