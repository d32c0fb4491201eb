"""Recorded products of matrices of one shape and one format, to be called tile by tile. The launch of a format's
product is recorded once for each matrix, and only the words of the weight differ between them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import Record, address, filled, words
from formats.kernels.engine.replay import Recording
from formats.kernels.matmul.linear import LINEAR, product_dense

# kernels for one row and for more, address of the words that describe each matrix, bytes of a number, inputs, outputs
OWN_FIELDS = np.dtype(words("one more w bytes n p"))
W, STORED_BYTES = map((LINEAR.names or ()).index, ("w", "bytes"))
MORE = 2  # rows of the products recorded for several rows
Multiply = Callable[[np.ndarray, np.ndarray], object]  # out = x @ W


class MatrixStack(Protocol):
    """Matrices of one shape: float32 of three axes, or a stack whose entries are matrices in one format."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def arrays(self) -> dict[str, np.ndarray]: ...
    def __getitem__(self, at: int, /) -> Any: ...


class Own(NamedTuple):
    """The products of a stack. kernels: for one row, and for more. `w`: the word that describes each matrix, as kernels
    take it; `kept`: the arrays that it points to. `portion`: outputs that a thread computes at a time; `rounds`: x is
    rounded. `rooms`: scratch by rows of an item; `first`: the product with the first matrix."""

    kernels: tuple[Kernel, Kernel]
    w: np.ndarray
    size: int
    shape: tuple[int, int]
    portion: int
    rounds: bool
    kept: tuple[np.ndarray, ...]
    first: Multiply
    rooms: dict[int, int]

    def record(self) -> Record:
        """Return the fields of OWN_FIELDS. An active recording keeps the arrays that they point to."""
        for array in self.kept:
            address(array)
        one, more = (kernel.address for kernel in self.kernels)
        return filled(one, more, address(self.w), self.size, *self.shape)

    def room(self, rows: int) -> int:
        """Return the bytes of scratch for items of this many rows."""
        if rows not in self.rooms:
            self.rooms[rows] = capture(self.first, self.shape, rows).room
        return self.rooms[rows]


OWN_OF: WeakKeyDictionary[object, Own] = WeakKeyDictionary()


def find_own(name: str, stack: MatrixStack) -> Own:
    """Return the products of a stack. ValueError for a stack that has none."""
    if isinstance(stack, np.ndarray):
        if stack.ndim != 3 or stack.dtype != np.float32 or not (stack.flags.c_contiguous and stack.flags.aligned):
            raise ValueError(
                f"{name}: expected contiguous float32 of three axes, at multiples of 4 bytes, got "
                f"{stack.dtype} of {stack.shape}"
            )
        return keep_own(name, [by_array(matrix) for matrix in stack], stack.shape[1:], 16, False, (stack,))
    if (products := OWN_OF.get(stack)) is None:
        forms = [stack[e] for e in range(stack.shape[0])]
        OWN_OF[stack] = products = keep_own(
            name,
            [form.matmul for form in forms],
            forms[0].shape,
            forms[0].portion,
            forms[0].rounds,
            (*stack.arrays().values(),),
        )
    return products


def by_array(matrix: np.ndarray) -> Multiply:
    return lambda x, out: product_dense(x, matrix, out)


def keep_own(
    name: str,
    products: Sequence[Multiply],
    shape: tuple[int, int],
    portion: int,
    rounds: bool,
    arrays: tuple[np.ndarray, ...],
) -> Own:
    """Record the launches of products of one format. ValueError if a product is not one kernel."""
    try:
        launches, more = [capture(product, shape, 1) for product in products], capture(products[0], shape, MORE)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    w, described = (
        np.array([captured.w for captured in launches]),
        np.array([captured.described for captured in launches], np.int64),
    )
    if described.size:
        w = described.ctypes.data + described.strides[0] * np.arange(len(launches))
    return Own(
        (launches[0].kernel, more.kernel),
        w,
        more.size,
        shape,
        portion,
        rounds,
        (described, *arrays),
        products[0],
        {MORE: more.room},
    )


class Captured(NamedTuple):
    """The launch of a product: its kernel, its words for the weight and for the bytes of a number, the words that
    describe the weight, scratch."""

    kernel: Kernel
    w: int
    size: int
    described: list[int]
    room: int


def capture(multiply: Multiply, shape: tuple[int, int], rows: int) -> Captured:
    """Return the launch of one product for `rows` rows on one thread."""
    n, p = shape
    x, out = np.zeros((rows, n), np.float32), np.empty((rows, p), np.float32)
    recording = Recording(np.empty(0, np.uint8), 1)
    recording.keep(lambda: multiply(x, out))
    if len(recording.stages) != 1 or len(recording.stages[0][1]) != len(LINEAR.names or ()):
        raise ValueError(
            "a product of its format takes several kernels; expert tiles need a format whose product is one kernel"
        )
    [(kernel, fields, _)] = recording.stages
    w, size = int(fields[W]), int(fields[STORED_BYTES])
    described = next(
        (numbers for numbers in recording.records if np.frombuffer(numbers, np.int64).ctypes.data == w), ()
    )
    return Captured(kernel, w, size, [*map(int, described)], recording.scratch)
