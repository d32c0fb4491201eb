"""An array as an attribute of a term: content-addressed, so equal weights are one node."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.attributes import brief

if TYPE_CHECKING:
    import sympy

    from opmatrix.algebra.shapes import LiveSize

Numeric: TypeAlias = NDArray[Any]  # an array of numbers of a type known at run time
SKETCHED = 16  # numbers of an array that enter its hash


class Data:
    """An array as an attribute: equal where its numbers are, so weights shared between layers are one node.

    A single number is kept as float64. The array is a read-only view of the one that was given: do not write to that
    later. `name` is the array's name at its source, `label` that name as a Python identifier. `blocks` (rows, groups)
    are the blocks of its file that its numbers were widened from, where a format holds blocks."""

    base: Data | None = None  # the array that this one is the transpose of
    cut_of: Data | None = None  # the array that this one is rows or columns of
    cut_at: tuple[int, LiveSize, LiveSize] | None = None  # the axis, and the range along it
    blocks: Numeric | None = None

    def __init__(self, array: object, name: str | None = None, blocks: Numeric | None = None) -> None:
        array = np.atleast_1d(np.asarray(array))
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"{name or 'an operand'}: {brief(array.tolist())} is not made of real numbers (an "
                "unknown size is no number: put a matrix of known size before it)"
            )
        self.array: Numeric = (array.astype(np.float64) if array.shape == (1,) else array).view()
        self.array.flags.writeable = False
        self.name, self.blocks = name, blocks

    @classmethod
    def of(cls, thing: Any) -> Data:
        """Return the data of arrays, lists and numbers as they are; of a weight or a constant, its numbers."""
        if getattr(getattr(thing, "kind", None), "name", None) in ("weight", "const"):
            thing = thing.args[0]
        if hasattr(thing, "free_symbols") and (live := LiveNumber.find(thing)):
            return live
        data = thing if isinstance(thing, Data) else cls(check_numbers(thing))
        if 0 in data.shape:
            raise ValueError(
                f"{data.name or 'an operand'}: an array of shape {data.shape} has no numbers: each of its "
                "sizes must be a whole number from 1 on"
            )
        return data

    @property
    def block_type(self) -> np.dtype[np.generic] | None:
        """The structure of a block of its file; None without blocks."""
        return None if self.blocks is None else self.blocks.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the array."""
        return self.array.shape

    @cached_property
    def key(self) -> str:
        """The hash of shape, type and numbers."""
        digest = hashlib.blake2b(repr((self.array.shape, self.array.dtype.str)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.array).data)
        return digest.hexdigest()

    @property
    def label(self) -> str:
        """The printed name: its own name, or its number, or a name made of its key."""
        if self.base and not self.name:
            return f"{self.base.label}.T"
        if not self.name:
            return repr(self.array.item()) if self.shape == (1,) else f"_{self.key[:12]}"
        plain = re.sub(r"\W", "_", self.name)
        return plain if plain.isidentifier() else f"_{plain}"

    @cached_property
    def sketch(self) -> int:
        """A hash of shape, type and a few numbers. Arrays that differ nearly always differ in it, so of a large one
        all numbers are read only where another one looks like it."""
        few: Numeric = self.array
        if few.size > SKETCHED:
            few = few.flat[np.linspace(0, few.size - 1, SKETCHED).astype(int)]
        words = repr((self.array.shape, self.array.dtype.str)).encode() + few.tobytes()
        return int.from_bytes(hashlib.blake2b(words, digest_size=7).digest(), "big")  # the same in any process

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Data) and self.sketch == other.sketch and self.key == other.key)

    def __hash__(self) -> int:
        return self.sketch

    def __repr__(self) -> str:
        return self.label

    def __getitem__(self, at: int | tuple[int, ...]) -> float:
        number: float = self.array[at].item()
        return number

    def take(self, places: tuple[NDArray[np.int64], ...]) -> Numeric:
        """Return the numbers at some places, an index array for each axis."""
        numbers: Numeric = self.array[places]
        return numbers

    @cached_property
    def is_finite(self) -> bool:
        """True if it has neither infinities nor NaN."""
        return bool(np.isfinite(self.array).all())

    def head(self, h: int) -> Data:
        """The matrix of one head of a stack; itself where it is no stack."""
        return Data(self.array[h % len(self.array)]) if len(self.shape) == 3 else self

    @property
    def T(self) -> Data:
        """Rows and columns exchanged, within each head. The transpose of the transpose is the array itself."""
        return self.base or (self if len(self.shape) == 1 else self._turned)

    @cached_property
    def _turned(self) -> Data:
        turned = Data(self.array.swapaxes(-1, -2))
        turned.base = self
        return turned


def split_pairs(array: Numeric, heads: int) -> Numeric:
    """Reorder interleaved rows into two halves within each head."""
    paired = array.reshape(heads, -1, 2, *array.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(array.shape)


def check_numbers(numbers: object) -> Numeric:
    """Return literal numbers as an array. Raises TypeError for rows of different lengths, ValueError for NaN."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise TypeError(f"an operand: {brief(numbers)}: its rows have different lengths") from None
    if array.dtype.kind == "f" and (lost := np.argwhere(np.isnan(array))).size:
        raise ValueError(f"an operand of shape {array.shape}: NaN at {lost[0].tolist()}")
    return array


def ids(sentence: object, where: str) -> NDArray[np.int64]:
    """Return a sentence as a row of int64. Raises ValueError for another shape, TypeError for numbers that are no
    integers."""
    array = np.asarray(sentence)
    if array.ndim != 1:
        raise ValueError(f"{where} has shape {array.shape}: one row of token ids is needed")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{where} holds {array.dtype}: token ids are integers")
    return array.astype(np.int64)


class Promised(Data):
    """An array of which only the name and the shape are known yet; it is equal to itself by its name. It is taken to
    have no special numbers: no zeros that a sparse format leaves out, none that a narrower type holds, no gain of
    ones."""

    def __init__(self, name: str | None, shape: tuple[LiveSize, ...], turned: bool = False) -> None:
        self.name, self.promise, self.turned = name, (name, shape), turned

    @property
    def shape(self) -> tuple[LiveSize, ...]:
        """The promised axes, the last two exchanged for a transpose."""
        whole = self.promise[1]
        return (*whole[:-2], *whole[:-3:-1]) if self.turned else whole

    @cached_property
    def key(self) -> str:
        """The promise and its orientation, as text: they stand for the numbers."""
        return f"{self.promise}{self.turned}"

    @property
    def sketch(self) -> int:
        """The hash of the key: two promises that differ are told apart without numbers."""
        return hash(self.key)

    @property
    def is_finite(self) -> bool:
        """True, as promised numbers are taken to be finite."""
        return True

    @property
    def array(self) -> Numeric:  # type: ignore[override]
        """Raise TypeError: a promised array has no numbers."""
        raise TypeError(f"{self.name} is not loaded: only its shape {self.shape} is known")

    @cached_property
    def _turned(self) -> Data:
        turned = Promised(*self.promise, not self.turned)
        turned.base = self
        return turned


class LiveNumber(Promised):
    """A number that is an expression of sizes not fixed yet, such as the 1/√d of attention."""

    def __init__(self, expression: sympy.Expr) -> None:
        super().__init__(None, (1,))
        self.expression = expression

    @classmethod
    def find(cls, given: Any) -> LiveNumber | None:
        """Return the number of an expression of named sizes; None for an expression of sizes that an input or a batch
        brings, and for any other value."""
        import sympy

        from opmatrix.algebra.shapes import is_named

        if not (isinstance(given, sympy.Expr) and is_named(given)):
            return None
        return cls(sympy.nsimplify(given, rational=True))

    @cached_property
    def key(self) -> str:
        """The expression as text, by which numbers of equal expressions are one."""
        return f"number {self.expression}"

    @property
    def label(self) -> str:
        """The expression as text."""
        return str(self.expression)

    @property
    def array(self) -> Numeric:  # type: ignore[override]
        """Raise TypeError: the number depends on sizes that are not fixed."""
        raise TypeError(f"{self.label} depends on sizes without a number: build the model with numbers for them")

    def __getitem__(self, at: int | tuple[int, ...]) -> sympy.Expr:
        return self.expression
