"""The products of matrices of one shape and one format, kept to be called tile by tile: what a format launches for a
product is recorded once for each matrix, and only what it multiplies by differs between them."""
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import Record, address, filled, words
from formats.kernels.engine.replay import Recording
from formats.kernels.matmul.linear import LINEAR, product_dense

# kernels for one row and for more, where words are that each matrix is described by, bytes of a number; inputs, outputs
OWN_FIELDS = np.dtype(words("one more w bytes n p"))
W, STORED_BYTES = map((LINEAR.names or ()).index, ("w", "bytes"))
MORE = 2                                                     # rows of which products are recorded that are not one
Multiply = Callable[[np.ndarray, np.ndarray], object]        # out = x @ W


class MatrixStack(Protocol):
    """Matrices of one shape: float32 of three axes, or one whose entries are matrices in one format."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    def arrays(self) -> dict[str, np.ndarray]: ...
    def __getitem__(self, at: int, /) -> Any: ...


class Own(NamedTuple):
    """The products of a stack. kernels: for one row, and for more. `w`: what each matrix is described by, as they take
    it; `kept`: the arrays that it points to. `portion`: outputs that a thread takes at a time; `rounds`: x is rounded.
    `rooms`: scratch by rows of an item; `first`: the product with the first matrix."""
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
        """The fields of OWN_FIELDS. A recording that is on keeps what they point to."""
        for each in self.kept: address(each)
        one, more = (kernel.address for kernel in self.kernels)
        return filled(one, more, address(self.w), self.size, *self.shape)

    def room(self, rows: int) -> int:
        """Bytes of scratch that items of so many rows take."""
        if rows not in self.rooms: self.rooms[rows] = capture(self.first, self.shape, rows).room
        return self.rooms[rows]


OWN_OF: WeakKeyDictionary[object, Own] = WeakKeyDictionary()


def find_own(name: str, stack: MatrixStack) -> Own:
    """The products of a stack. ValueError for one that has none."""
    if isinstance(stack, np.ndarray):
        if stack.ndim != 3 or stack.dtype != np.float32 or not (stack.flags.c_contiguous and stack.flags.aligned):
            raise ValueError(f"{name}: expected contiguous float32 of three axes, at multiples of 4 bytes, got "
                             f"{stack.dtype} of {stack.shape}")
        return keep_own(name, [by_array(each) for each in stack], stack.shape[1:], 16, False, (stack,))
    if (own := OWN_OF.get(stack)) is None:
        forms = [stack[e] for e in range(stack.shape[0])]
        OWN_OF[stack] = own = keep_own(name, [form.matmul for form in forms], forms[0].shape, forms[0].portion,
                                      forms[0].rounds, (*stack.arrays().values(),))
    return own


def by_array(matrix: np.ndarray) -> Multiply: return lambda x, out: product_dense(x, matrix, out)


def keep_own(name: str, products: Sequence[Multiply], shape: tuple[int, int], portion: int, rounds: bool,
             arrays: tuple[np.ndarray, ...]) -> Own:
    """What products of one format launch. ValueError where that is not one kernel of products."""
    try: found, more = [capture(each, shape, 1) for each in products], capture(products[0], shape, MORE)
    except ValueError as error: raise ValueError(f"{name}: {error}") from None
    w, described = np.array([each.w for each in found]), np.array([each.described for each in found], np.int64)
    if described.size: w = described.ctypes.data + described.strides[0] * np.arange(len(found))
    return Own((found[0].kernel, more.kernel), w, more.size, shape, portion, rounds, (described, *arrays),
               products[0], {MORE: more.room})


class Captured(NamedTuple):
    """The launch of a product: its kernel, what it is told of the weight and the bytes of a number, the words that
    describe the weight, scratch."""
    kernel: Kernel
    w: int
    size: int
    described: list[int]
    room: int


def capture(multiply: Multiply, shape: tuple[int, int], rows: int) -> Captured:
    """What one product launches for so many rows on one thread."""
    n, p = shape
    x, out = np.zeros((rows, n), np.float32), np.empty((rows, p), np.float32)
    recording = Recording(np.empty(0, np.uint8), 1)
    recording.keep(lambda: multiply(x, out))
    if len(recording.stages) != 1 or len(recording.stages[0][1]) != len(LINEAR.names or ()):
        raise ValueError("a product of its format is not one kernel, which tiles of single experts need")
    [(kernel, fields, _)] = recording.stages
    w, size = int(fields[W]), int(fields[STORED_BYTES])
    described = next((each for each in recording.records if np.frombuffer(each, np.int64).ctypes.data == w), ())
    return Captured(kernel, w, size, [*map(int, described)], recording.scratch)
