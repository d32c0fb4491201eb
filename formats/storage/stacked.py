"""A stack: E matrices of one shape in one format, every array of the format with one more axis.

A kernel that multiplies by one of them needs its address alone: the matrices in `stack.arrays()` are a fixed step
apart, `stack.steps` in bytes, each a whole number of cache lines. `stack[e]` is the format itself, over views."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.arrays import LINE, MAX_SIZE, Floats, FormatError, by_rows, fixed, is_size, room
from formats.core.sizes import Size, n, p
from formats.host.threads import threads
from formats.storage.format import Format, RoundedOperands

TRIED_SIDE = 64  # the side of a matrix whose sizes are tried


def can_stack(form: type[Format]) -> bool:
    """True if the sizes of a format's arrays follow from the shape of a matrix and the options, so that several
    matrices can be stored side by side, and no array holds positions of numbers."""
    sizes: dict[Size, int] = {n: TRIED_SIDE, p: TRIED_SIDE} | dict.fromkeys(form.named.values(), 1)
    return not form.indices() and all(
        isinstance(fixed(axis, sizes), int | Fraction) for array in form.fields.values() for axis in array.shape
    )


class Stacked:
    """E matrices (n inputs, p outputs) in one form of storage, used as `x[:, e] @ stack[e]`.

    `shape` is (E, n, p); `form`, `name`, `remembered` and `sizes` are those of each matrix. Results equal those of E
    separate formats, to the bit."""

    def __init__(
        self, form: type[Format], shape: tuple[int, int, int], arrays: Mapping[str, np.ndarray], **remembered: int
    ) -> None:
        """Take arrays that are known to be right, each (E, *its shape); `from_arrays` is for all others. An array that
        is writable, or not in steps of whole cache lines, is copied."""
        self.form, self.shape, self.remembered = form, shape, remembered
        self._stored = {name: laid_out(arrays[name]) for name in form.fields}
        self._matrices: list[Format | None] = [None] * shape[0]

    @classmethod
    def made(cls, form: type[Format], shape: tuple[int, int, int], make: Callable[[int], Format]) -> Self:
        """Make a stack of this shape; each matrix is made when there is a thread for it, and released once it is
        copied."""
        if not can_stack(form):
            raise FormatError(
                f"{form.name}: its arrays differ in size from matrix to matrix, or hold indices: store "
                "the matrices one by one"
            )
        first, count = make(0), shape[0]
        whole = {name: stepped(count, array.shape, array.dtype) for name, array in first.arrays().items()}

        def place(e: int) -> None:
            """Copy the arrays of matrix e into those of the stack. Raises FormatError if it is stored unlike the
            first."""
            matrix = make(e) if e else first
            if type(matrix) is not form or matrix.shape != shape[1:] or matrix.remembered != first.remembered:
                raise FormatError(f"{form.name}: matrix {e} of a stack is {matrix!r}, the first is {first!r}")
            for name, array in matrix.arrays().items():
                whole[name][e] = array

        from concurrent.futures import ThreadPoolExecutor  # it imports logging, which running alone does not need

        with ThreadPoolExecutor(min(threads(), count)) as pool:
            for _ in pool.map(place, range(count)):
                pass
        return cls(form, shape, sealed(whole), **first.remembered)

    @classmethod
    def pack(cls, form: type[Format], W: Sequence[ArrayLike] | np.ndarray, **given: object) -> Self:
        """Store the matrices W (E, n, p) exactly; FormatError for the first that cannot be held so."""
        return cls.made(form, stack_shape(W, form.name), lambda e: numbered(e, lambda: form.pack(W[e], **given)))

    @classmethod
    def approximate(
        cls,
        form: type[Format],
        W: Sequence[ArrayLike] | np.ndarray,
        each: Sequence[Mapping[str, object]] = (),
        **given: object,
    ) -> Self:
        """Store the nearest matrices that can be held. `each` are options of single matrices, beside those of all."""

        def make(e: int) -> Format:
            """Approximate matrix e with the options of all and its own."""
            return numbered(e, lambda: form.approximate(W[e], **given, **(each[e] if each else {})))

        return cls.made(form, stack_shape(W, form.name), make)

    @classmethod
    def promised(cls, form: type[Format], count: int, inputs: int, outputs: int, **given: Any) -> Self:
        """Make an instance with known sizes and bytes, and without numbers; see `Format.promised`."""
        one = form.promised(inputs, outputs, **given)
        stack = cls.__new__(cls)
        stack.form, stack.shape, stack.remembered = form, (count, inputs, outputs), one.remembered
        stack._stored = {name: np.broadcast_to(array, (count, *array.shape)) for name, array in one.arrays().items()}
        stack._matrices = [one] * count
        return stack

    # ---- one of them

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, e: int) -> Format:
        """Return one matrix in the format, over views of the stack's arrays."""
        if not -len(self) <= e < len(self):
            raise IndexError(f"{self!r}[{e}]: its matrices are 0 to {len(self) - 1}")
        if (known := self._matrices[e]) is not None:
            return known
        matrix = self.form(self.shape[1:], tuple(array[e] for array in self._stored.values()), **self.remembered)
        self._matrices[e] = matrix
        return matrix

    @property
    def name(self) -> str:
        """The name of the format that each matrix is in."""
        return self.form.name

    @property
    def rounds(self) -> bool:
        """True if its kernel rounds x, too."""
        return self.form.rounds

    @property
    def sizes(self) -> dict[Size, int]:
        """The value of every size of one matrix."""
        return self[0].sizes

    # ---- out again

    def unpack(self) -> Floats:
        """Return the dense matrices (E, n, p), float32, as a new array."""
        return np.stack([self[e].unpack() for e in range(len(self))])

    def wide(self) -> NDArray[np.float64]:
        """Return the dense matrices (E, n, p), float64, as a new array."""
        return np.stack([self[e].wide() for e in range(len(self))])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the stored arrays by name, each (E, *its shape), in the order of the declaration (not copies)."""
        return dict(self._stored)

    @property
    def steps(self) -> dict[str, int]:
        """Bytes from one matrix to the next, by array: whole cache lines, so each matrix begins on one."""
        return {name: array.strides[0] for name, array in self._stored.items()}

    @property
    def nbytes(self) -> int:
        """The bytes stored by all matrices."""
        return sum(array.nbytes for array in self._stored.values())

    def meta(self) -> dict[str, object]:
        """Return the description beside the arrays, as JSON: the format, the shape of three axes, the remembered
        options."""
        return {"format": self.name, "shape": list(self.shape), **self.remembered}

    @classmethod
    def from_arrays(
        cls, form: type[Format], meta: Mapping[str, object], arrays: Mapping[str, np.ndarray], numbers: bool = True
    ) -> Self:
        """Invert meta() and arrays(). FormatError names the entry that is not as declared, and its matrix; see
        `Format.from_arrays`."""
        shape = meta.get("shape")
        if not (isinstance(shape, list | tuple) and len(shape) == 3 and all(map(is_size, shape))):
            raise FormatError(
                f"{form.name}: the shape {shape!r:.80} is not three positive integers up to "
                f"{MAX_SIZE:,}: matrices, inputs, outputs"
            )
        if not can_stack(form):
            raise FormatError(f"{form.name}: the shape {shape} is that of a stack, which this format does not support")
        if set(arrays) != set(form.fields):
            raise FormatError(
                f"{form.name}: it stores {', '.join(form.fields)}, given {', '.join(arrays) or 'nothing'}"
            )
        count = shape[0]
        for name, array in arrays.items():
            if array.shape[:1] != (count,):
                raise FormatError(
                    f"{form.name}.{name}: the first axis of a stack of {count} matrices is {count}, got shape "
                    f"{list(array.shape)}"
                )
        stored = {name: laid_out(arrays[name]) for name in form.fields}
        one: dict[str, Any] = dict(meta) | {"shape": shape[1:]}

        def read(e: int) -> Format:
            """Check the arrays of matrix e and read it, as a file of its own would be."""
            return form.from_arrays(one, {name: array[e] for name, array in stored.items()}, numbers)

        matrices = [numbered(e, partial(read, e)) for e in range(count)]
        stack = cls(form, (count, shape[1], shape[2]), stored, **matrices[0].remembered)
        stack._matrices[:] = matrices
        return stack

    # ---- use

    def matmul(self, x: ArrayLike, out: Floats | None = None) -> Floats:
        """Multiply x (T, E, n), or (T, 1, n) for all alike, by each head's own matrix: (T, E, p), with a call of the
        format's kernel for each matrix."""
        x = np.asarray(x, np.float32)
        if x.ndim != 3 or x.shape[1] not in (1, len(self)) or x.shape[2] != self.shape[1]:
            raise ValueError(
                f"x @ {self!r}: x has shape {x.shape}, it must be (rows, {len(self)} or 1, {self.shape[1]})"
            )
        if out is None:
            out = np.empty((len(x), len(self), self.shape[2]), np.float32)
        for e, (one, rows) in enumerate(self.by_matrix(x)):
            one.matmul(by_rows(rows), out[:, e])
        return out

    def by_matrix(self, x: np.ndarray) -> Iterator[tuple[Format, np.ndarray]]:
        """Return every matrix with the rows (T, n) that it multiplies, from x (T, E, n) or (T, 1, n)."""
        return ((self[e], x[:, e if x.shape[1] > 1 else 0]) for e in range(len(self)))

    def operands(self, x: np.ndarray) -> RoundedOperands:
        """Return the operands of its kernels in float64: rows (T, E, n), matrices (E, n, p); see `Format.operands`."""
        rows, matrices = zip(*(one.operands(part) for one, part in self.by_matrix(x)), strict=True)
        return np.stack(rows, 1), np.stack(matrices)

    def bound(self, x: np.ndarray, operands: RoundedOperands | None = None) -> NDArray[np.float64]:
        """Return an entrywise bound (T, E, p) on the error of matmul(x) against the products of `operands(x)`."""
        rows, matrices = self.operands(x) if operands is None else operands
        pairs = [(np.asarray(part), matrix) for (_, part), matrix in zip(self.by_matrix(rows), matrices, strict=True)]
        return np.stack([one.bound(part, read) for (one, part), read in zip(self.by_matrix(x), pairs, strict=True)], 1)

    def borders(self) -> frozenset[int]:
        """Return the numbers of rows at which its product takes another path."""
        return self.form.borders()

    def scratch(self) -> int:
        """Return the count of numbers that a product of one matrix stores between its factors, for each row of x."""
        return self[0].scratch()

    def __repr__(self) -> str:
        return f"{len(self)} × {self[0]!r}"


def stepped(count: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an uninitialised array (count, *shape), of which each part begins at a cache line."""
    size = prod(shape) * dtype.itemsize
    step = -(-size // LINE) * LINE
    inner = np.empty(shape, dtype).strides if prod(shape) else ()
    return np.ndarray((count, *shape), dtype, room((count * step,), np.dtype(np.uint8)), 0, (step, *inner))


def laid_out(array: np.ndarray) -> np.ndarray:
    """Return the array if it is read-only and each of its parts is contiguous and begins at a cache line, else such a
    copy."""
    if (
        not array.flags.writeable
        and array.base is not None
        and array.ctypes.data % LINE == 0
        and array.strides[0] % LINE == 0
        and array[0].flags.c_contiguous
    ):
        return array
    copy = stepped(len(array), array.shape[1:], array.dtype)
    copy[...] = array
    return sealed({"": copy})[""]


def sealed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make the arrays read-only and return them."""
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def stack_shape(W: Sequence[ArrayLike] | np.ndarray, where: str) -> tuple[int, int, int]:
    """Return the number of matrices, their inputs and outputs. Raise FormatError for none, and for one of another
    shape."""
    if not len(W):
        raise FormatError(f"{where}: a stack needs at least one matrix")
    shapes = [np.shape(matrix) for matrix in W]
    for e, shape in enumerate(shapes):
        if len(shape) != 2:
            raise FormatError(f"{where}: matrix {e} of a stack has shape {shape}; give (inputs, outputs)")
        if shape != shapes[0]:
            raise FormatError(f"{where}: matrix {e} of a stack has shape {shape}, the first has {shapes[0]}")
    return (len(W), *shapes[0])


def numbered(e: int, make: Callable[[], Format]) -> Format:
    """Return the result of `make` for one matrix of a stack; its errors name the matrix."""
    try:
        return make()
    except FormatError as error:
        raise FormatError(f"matrix {e} of a stack: {error}") from error
