"""A storage format is one declaration: annotated arrays and the functions fit, pack, unpack, kernel. The rest follows.

    class Dense(Format):
        "Every number, row by row."
        w: f4[n, p]
        def fit(W): return W
        def pack(W): return W
        def unpack(shape, w): return w
        def kernel(x, w, out, epilogue): kernels.product_dense(x, w, out, epilogue)

The functions are plain: a matrix in, arrays out, in the order of the annotations. `fit` and `pack` take their options
by keyword, each with a default; those that `unpack` takes too are remembered with the arrays and given to `kernel`."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from functools import partial, wraps
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats import kernels
from formats.core.arrays import (
    MAX_SIZE,
    Floats,
    FormatError,
    aligned,
    all_finite,
    as_matrix,
    by_rows,
    fixed,
    is_size,
    multiply_sizes,
    picture,
    separate,
    sizes_of,
    storable,
    writable,
)
from formats.core.epilogue import NOTHING, Epilogue, gamma
from formats.core.layout import Panelled
from formats.core.sizes import Array, Later, Size, T, Term, V, declared_array, n, p, total_bytes
from formats.core.stage import SMALLEST

if TYPE_CHECKING:
    import sympy

    from formats.storage.weighed import Spectrum

DECLARED = ("fit", "pack", "unpack", "kernel")
RoundedOperands = tuple[NDArray[np.float64], NDArray[np.float64]]


class RowTurn(NamedTuple):
    """A change of rows x (.., n) before a product: each number times its factor, then parts of columns, filled up with
    zeros, mixed. A part (H, count) has `count` groups, each of as many vectors as H has rows, which are mixed by it."""

    factor: Floats  # (n,)
    parts: tuple[tuple[Floats, int], ...]
    vector: int  # numbers of a vector


class WholeNumbers(NamedTuple):
    """A matrix (n, p) as whole numbers times scales: the inputs of a group share the scale of their output."""

    whole: NDArray[np.int8]  # (n, p)
    scale: Floats  # (groups, p)
    group: int  # inputs of a group: n, where there is one
    bits: int  # of each whole number: 8 or 4
    rounds: bool  # the product rounds each row by its largest number
    turn: RowTurn | None = None  # of rows, before they are rounded


def operations(cls: "type[Format]", declared: "Term | None") -> "sympy.Expr":
    """Return the operations of a product, by default two a row and floating-point number."""
    import sympy

    if declared is not None:
        return sympy.sympify(declared)
    counts = (array.count for array in cls.fields.values() if array.number.name.startswith("f"))
    return sympy.expand(2 * T * sympy.Add(*counts))


def features(cls: "type[Format]", declared: tuple[Term, ...] | None) -> "tuple[sympy.Expr, ...]":
    """Return the features that the time of a product is a sum of, by default arithmetic, bytes, rows read and written.
    A format without floating-point arrays counts as many multiplications as the matrix has numbers."""
    import sympy

    return tuple(map(sympy.sympify, declared or (cls.flops / 2 or T * n * p, cls.bytes, T * (n + p))))


READ: dict[str, Callable[..., object]] = {
    "bytes": lambda cls, _: total_bytes(cls.fields),
    "flops": operations,
    "work": features,
}


class Format:
    """A matrix W (n inputs, p outputs), used as `x @ W`, in one form of storage.

    `F.fit(W, **options)` is the nearest matrix that F can hold, `F.pack(W, **options)` stores such a matrix exactly
    (FormatError, in words, for any other), `F.approximate(W, **options)` does both. Every function takes the options of
    both and ignores those of the other; TypeError names an option that neither has.

    A class has `name`, `fields` (its arrays), `bytes` and `flops` (sympy), `work` (features that the time of its
    product is a sum of, see formats/machine/model.py; unless declared, arithmetic, bytes, rows read and written),
    `parameters` (its options with their defaults); an instance also `shape`, `sizes` (the value of every size) and its
    arrays by name."""

    name: ClassVar[str] = ""
    fields: ClassVar[dict[str, Array]] = {}
    bytes: ClassVar["sympy.Expr"]
    flops: ClassVar["sympy.Expr"]
    work: ClassVar["tuple[sympy.Expr, ...]"]
    rounds: ClassVar[bool] = False  # its kernel rounds x, too, see `reads`
    parameters: ClassVar[dict[str, object]] = {}
    together: ClassVar[int] = 1  # weights in one of its narrowest numbers
    portion: ClassVar[int] = 16  # outputs that a thread takes at a time
    few: ClassVar[int] = 1  # the most rows with the code path for few rows
    proposed: ClassVar[bool] = True  # offered for the storage of a weight
    ranked: ClassVar[bool] = True  # ranked by `select` unless formats are named
    common: ClassVar[bool] = True  # timed at once; others are timed on first use
    filed: ClassVar[np.dtype[np.void] | None] = None  # a block of files, which searches keep unchanged
    plain: ClassVar[bool] = False  # holds any matrix in float32, number by number
    rowwise: ClassVar[bool] = False  # rows of it can be gathered
    panelled: ClassVar[Panelled | None] = None  # its panels, if columns of them can be gathered
    unit: ClassVar[str] = ""  # the number type that its product computes in, if its own
    projected: ClassVar[bool] = False  # all of its fits project outputs alike
    projects: ClassVar[bool] = True  # fit is idempotent
    prunes: ClassVar[bool] = False  # fit leaves entries out, the least first
    named: ClassVar[Mapping[str, Size]] = MappingProxyType({})  # remembered options that are sizes
    declared: ClassVar[SimpleNamespace]
    fit: ClassVar[Callable[..., Floats]]
    pack: ClassVar[Callable[..., Self]]

    __array_ufunc__ = None  # so that numpy leaves `x @ packed` to __rmatmul__

    # ---- from the declaration

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if missing := [name for name in DECLARED if name not in vars(cls)]:
            raise TypeError(f"{cls.__name__} does not declare {' and '.join(missing)}")
        cls.name = cls.__name__.lower()
        cls.fields = {name: declared_array(cls, name, axes) for name, axes in inspect.get_annotations(cls).items()}
        declared = dict(vars(cls))
        for name, find in READ.items():
            setattr(cls, name, Later(partial(find, cls, declared.get(name))))
        cls.rounds = cls.reads is not Format.reads
        cls.declared = SimpleNamespace(**{name: vars(cls)[name] for name in DECLARED})
        for name in DECLARED:
            delattr(cls, name)
        cls.parameters = options(cls.declared.fit) | options(cls.declared.pack)
        cls.fit = staticmethod(checked(cls.declared.fit, cls._fit, cls))
        cls.pack = staticmethod(checked(cls.declared.pack, cls._pack, cls))  # type: ignore[assignment]

    @classmethod
    def _fit(cls, W: ArrayLike, **given: object) -> Floats:
        return storable(cls.declared.fit(as_matrix(W, f"{cls.name}.fit"), **given))

    @classmethod
    def _pack(cls, W: ArrayLike, **given: object) -> Self:
        packed = cls._hold(W := as_matrix(W, f"{cls.name}.pack"), **given)
        packed._must_hold(W)
        return packed

    @classmethod
    def _hold(cls, W: Floats, **given: object) -> Self:
        arrays = cls.declared.pack(W, **{name: given[name] for name in options(cls.declared.pack) if name in given})
        named: dict[str, Any] = {name: given.get(name, cls.parameters[name]) for name in options(cls.declared.unpack)}
        return cls(W.shape, arrays if isinstance(arrays, tuple) else (arrays,), **named)

    def __init__(self, shape: tuple[int, int], arrays: tuple[np.ndarray, ...] | None = None, **remembered: int) -> None:
        """Take arrays that are known to be right, in the order of the declaration; `from_arrays` is for all others.
        Raises TypeError for a matrix, which must be packed."""
        if not (isinstance(arrays, tuple) and isinstance(shape, tuple)):
            raise TypeError(
                f"{self.name}(W): a matrix W of (inputs, outputs) is stored by {type(self).__name__}"
                f".pack(W), the nearest that it can hold by {type(self).__name__}.approximate(W)"
            )
        self.shape, self.remembered = shape, remembered
        known = {n: shape[0], p: shape[1]} | {size: remembered[option] for option, size in self.named.items()}
        self.sizes = {**sizes_of(cast(Hashable, type(self)), tuple(a.shape for a in arrays), tuple(known.items()))}
        for (name, array), values in zip(self.fields.items(), arrays, strict=True):
            setattr(self, name, aligned(values, array.number.dtype(self.sizes), f"{self.name}.{name}"))
        self._stored = tuple(self.arrays().values())

    def _must_hold(self, W: Floats) -> None:
        if np.array_equal(back := self.unpack(), W):
            return
        difference = back.astype(np.float64) - W
        if (off := float(np.linalg.norm(difference))) <= self.tolerance(W):
            return
        i, j = np.unravel_index(abs(difference).argmax(), W.shape)
        raise FormatError(
            f"{self!r} cannot hold this matrix: W[{i}, {j}] = {W[i, j]:.9g} would become "
            f"{back[i, j]:.9g} (norm of the difference {off:.3g}); use {self.name}.fit first"
        )

    # ---- choosing

    @classmethod
    def approximate(cls, W: ArrayLike, **given: object) -> Self:
        """Store the nearest matrix that can be held: `pack(fit(W))`, without the check that it is held."""
        return cls._hold(cls.fit(W, **given), **given)

    @classmethod
    def choices(cls, inputs: int, outputs: int) -> list[dict[str, int | float]]:
        """Return options worth proposing for a matrix of this shape, the mildest first."""
        return [{}]

    @classmethod
    def proposed_by(cls, spectrum: "Spectrum") -> list[dict[str, int | float]]:
        """Return options worth proposing for a matrix with this spectrum: by default those of its shape."""
        return cls.choices(*spectrum.shape)

    @classmethod
    def predicted(cls, spectrum: "Spectrum", **given: object) -> float | None:
        """Return the relative error of the output where the spectrum determines it; None where the matrix must be
        fitted to know."""
        return None

    @classmethod
    def rounding(cls, spectrum: "Spectrum", **given: object) -> float:
        """Estimate the relative error of the output that a kernel adds by rounding x."""
        return 0.0

    @classmethod
    def metric(cls) -> str:
        """Return the statistic of its inputs that `fit` takes: their norms, by an option `scale` (wanda), their Gram
        matrix, by `weight` (whitened), or none (plain)."""
        return "wanda" if "scale" in cls.parameters else "whitened" if "weight" in cls.parameters else "plain"

    @classmethod
    def layouts_of(cls, W: Floats) -> list[dict[str, int | float]]:
        """Return options worth trying for this matrix, stored as it is: by default those of its shape."""
        return cls.layouts(*W.shape)

    @classmethod
    def layouts(cls, inputs: int, outputs: int) -> list[dict[str, int | float]]:
        """Return options worth trying for a matrix of this shape, stored as it is: those of the choices that `pack`
        takes."""
        storing = options(cls.declared.pack)
        variants = [
            {name: value for name, value in choice.items() if name in storing}
            for choice in cls.choices(inputs, outputs)
        ]
        return [variant for i, variant in enumerate(variants) if variant not in variants[:i]]

    @classmethod
    def counts(cls, inputs: int, outputs: int, **given: object) -> dict[Size, int]:
        """Return the sizes, beside n and p, that `approximate` of a matrix without zeros would have."""
        return {}

    @classmethod
    def expected(cls, inputs: int, outputs: int, **given: object) -> dict[Size, int]:
        """Return every size of `approximate` of a matrix of this shape without zeros: the sizes that `bytes` and
        `flops` need."""
        return {n: inputs, p: outputs, **cls.counts(inputs, outputs, **given)}

    @classmethod
    def promised(cls, inputs: int, outputs: int, **given: object) -> Self:
        """Make an instance with the sizes and bytes of `expected` and without numbers: to plan and to price. Each of
        its arrays is one zero in memory, so it may be of any size; it cannot multiply."""
        empty = cls.__new__(cls)
        empty.shape, empty.sizes = (inputs, outputs), cls.expected(inputs, outputs, **given)
        empty.remembered = {name: empty.sizes[size] for name, size in cls.named.items()}
        for name, array in cls.fields.items():
            zero = np.zeros((), array.number.dtype(empty.sizes))
            setattr(empty, name, np.broadcast_to(zero, tuple(int(fixed(axis, empty.sizes)) for axis in array.shape)))
        empty._stored = tuple(empty.arrays().values())
        return empty

    @classmethod
    def narrowest(cls) -> int:
        """Return the bits of the narrowest numbers that a weight is stored by: those of its floating-point arrays, or
        of all where x is rounded to such numbers too."""
        numbers = [array.number for array in cls.fields.values()]
        floating = [] if cls.rounds else [number for number in numbers if number.name.startswith("f")]
        return min(8 * int(number.bytes) for number in floating or numbers) // cls.together

    # ---- out again

    def unpack(self) -> Floats:
        """Return the dense matrix (n, p), float32, as a new array."""
        return storable(np.array(self.declared.unpack(self.shape, *self._stored, **self.remembered)))

    def wide(self) -> NDArray[np.float64]:
        """Return the dense matrix (n, p), float64, as a new array."""
        return storable(self.declared.unpack(self.shape, *self._stored, **self.remembered)).astype(np.float64)

    def factored(self) -> tuple[Floats, Floats] | None:
        """Return u (n, r) and v (r, p), float32, of a format that stores a product u v; None for any other."""
        return None

    def integers(self) -> tuple[WholeNumbers, ...]:
        """Return the matrix as whole numbers, or two factors whose product it is; nothing if it stores others."""
        return ()

    def filed_blocks(self) -> NDArray[np.void] | None:
        """Return the blocks (p, n / inputs of a block) of a file, to the bit, of a format that holds such, for n that
        these inputs divide; None for any other."""
        return None

    def transpose(self) -> "Format":
        """Store W.T: in the same format unless the class overrides this."""
        return type(self).pack(self.unpack().T, **self.remembered)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the stored arrays by name, in the order of the declaration (not copies)."""
        return {name: getattr(self, name) for name in self.fields}

    def meta(self) -> dict[str, object]:
        """Return the description beside the arrays, as JSON: the format, the shape, the remembered options."""
        return {"format": self.name, "shape": list(self.shape), **self.remembered}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, object], arrays: Mapping[str, np.ndarray], numbers: bool = True) -> Self:
        """Invert meta() and arrays(). Files are not trusted: FormatError names the first name, number type, shape,
        number or index that is not as declared. Without `numbers` they are not checked to be finite."""
        remembered: dict[str, Any] = dict(meta)
        name, shape = remembered.pop("format", None), remembered.pop("shape", None)
        if name != cls.name:
            raise FormatError(f"{cls.name}: the arrays were stored by the format {name!r}")
        if not (isinstance(shape, list | tuple) and len(shape) == 2 and all(map(is_size, shape))):
            raise FormatError(f"{cls.name}: the shape {shape!r:.80} is not two positive integers up to {MAX_SIZE:,}")
        if set(remembered) != set(cls.named) or not all(map(is_size, remembered.values())):
            raise FormatError(
                f"{cls.name}: its options are {list(cls.named)} (positive integers), got {remembered!r:.80}"
            )
        if set(arrays) != set(cls.fields):
            raise FormatError(f"{cls.name}: it stores {', '.join(cls.fields)}, given {', '.join(arrays) or 'nothing'}")
        packed = cls((shape[0], shape[1]), tuple(arrays[name] for name in cls.fields), **remembered)
        for name, stored in packed.arrays().items():
            if arrays[name].dtype != stored.dtype:
                raise FormatError(f"{cls.name}.{name}: declared {cls.fields[name]}, given {arrays[name].dtype}")
            if numbers and stored.dtype.kind == "f" and not all_finite(stored):
                raise FormatError(f"{cls.name}.{name}: it holds {stored[~np.isfinite(stored)][0]}, which is not finite")
        if complaint := packed.unsound():
            raise FormatError(f"{cls.name}: {complaint}: the file is damaged, or not written by opmatrix")
        return packed

    def unsound(self) -> str:
        """Describe the fault of the stored indices; empty if a kernel may follow them without checks."""
        return ""

    @classmethod
    def indices(cls) -> list[str]:
        """Return the fields that hold positions of numbers: unsigned arrays, unless the numbers themselves are stored
        as such. A kernel follows them without checks, so no one else may be able to change them."""
        return [name for name, array in cls.fields.items() if array.number.stored.kind == "u" and not cls.rounds]

    # ---- use

    def scratch(self) -> int:
        """Return the count of numbers that a product stores between its factors, for each row of x."""
        return 0

    def matmul(self, x: ArrayLike, out: Floats | None = None, epilogue: Epilogue | None = None) -> Floats:
        """Return x @ W, then the epilogue: x (T, n) -> (T, p), in float32 (other numbers are cast, other layouts than
        rows are copied), written to `out` if given: float32, its rows contiguous, apart from all arrays that are read.
        ValueError describes the misfit."""
        x = by_rows(x)
        wanted = x.shape[0] if x.ndim else 0, self.shape[1]
        if x.ndim != 2 or x.shape[1] != self.shape[0]:
            raise ValueError(f"x @ {self!r}: x has shape {x.shape}, it must be (rows, {self.shape[0]})")
        if out is None:
            out = np.empty(wanted, np.float32)
        elif out.shape != wanted or by_rows(out) is not out:
            raise ValueError(
                f"x @ {self!r}: out is {out.dtype} {out.shape} with strides of {out.strides} bytes, it "
                f"must be float32 {wanted} by rows at multiples of 4 bytes"
            )
        else:
            writable("out", out)
            separate(out, x=x)
        if epilogue:
            epilogue.check(*wanted, self)
        if len(x):
            self.declared.kernel(x, *self._stored, out, epilogue or NOTHING, **self.remembered)
        return out

    def __rmatmul__(self, x: ArrayLike) -> Floats:
        x = np.asarray(x)
        if not x.ndim:
            raise ValueError(f"{x} @ {self!r}: a single number has no columns")
        return self.matmul(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], self.shape[1])

    @staticmethod
    def reads(x: ArrayLike) -> NDArray[np.float64]:
        """Return (T, n) in float64: the numbers that the kernel multiplies in place of x. A format whose kernel rounds
        x overrides this, bit by bit; others multiply x itself."""
        return np.asarray(x, np.float64)

    def operands(self, x: ArrayLike) -> RoundedOperands:
        """Return two matrices in float64 whose product is that of the kernel except for the roundings of its sums: the
        numbers that it reads, and W. A format whose kernel also rounds between two products returns the operands of the
        last one."""
        return self.reads(x), self.wide()

    def bound(self, x: ArrayLike, operands: RoundedOperands | None = None) -> NDArray[np.float64]:
        """Return an entrywise bound on the error of matmul(x) against the product of `operands(x)`, which a caller may
        pass, for any order of summation: γ_n |x| |W| (Higham 2002, eq. 3.5), and the underflow of n products (eq.
        2.8)."""
        return gamma(self.shape[0]) * multiply_sizes(*operands or self.operands(x)) + self.shape[0] * SMALLEST

    @classmethod
    def borders(cls) -> frozenset[int]:
        """Return the numbers of rows at which its product takes another path: those of the kernels that it calls."""
        return kernels.borders(*cls.called())

    @classmethod
    def called(cls) -> list[str]:
        """Find the kernels that its product calls, by the names in the code of `kernel`."""
        return sorted({*cls.declared.kernel.__code__.co_names} & {*kernels.find_modules()})

    def tolerance(self, W: Floats) -> float:
        """Return the distance, in Frobenius norm, that rounding may put between unpack() and a W that can be held: 0 by
        default."""
        return 0.0

    # ---- readings
    @property
    def nbytes(self) -> int:
        """The bytes stored, exactly."""
        return sum(array.nbytes for array in self._stored)

    def show(self) -> str:
        """Draw the matrix: its description, and its pattern of nonzero entries in at most 32 lines of 64 characters."""
        return f"{self!r}\n{picture(self.unpack() != 0)}"

    def __repr__(self) -> str:
        sizes = "".join(f", {size}={value}" for size, value in self.sizes.items() if size not in (n, p))
        return f"{self.name}({self.shape[0]}×{self.shape[1]}{sizes})"

    def _repr_html_(self) -> str:
        return f"<pre>{self.show()}</pre>"

    @classmethod
    def row(cls) -> str:
        """Return its row in the table of formats: name, arrays, bytes, and the first line of its docstring."""
        arrays = ", ".join(f"{name}: {array}" for name, array in cls.fields.items())
        return f"{cls.name} | {arrays} | {cls.bytes} | {(cls.__doc__ or '').splitlines()[0]}"

    @classmethod
    def rounds_otherwise(cls) -> bool:
        """True if the class overrides `operands`, as its kernel rounds between two products or in another basis."""
        return cls.operands is not Format.operands

    @classmethod
    def check(cls, rng: "np.random.Generator") -> None:
        """Run the test that every format has by being declared; AssertionError describes the failure."""
        from formats.storage.check import check

        check(cls, rng)


def options(function: Callable[..., object]) -> dict[str, object]:
    """Return the keyword options of a function and their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def checked(function: Callable[..., object], act: Callable[..., V], cls: type[Format]) -> Callable[..., V]:
    """Wrap `act` under the name, signature and docstring of a declared function; it receives only the options that the
    function takes."""

    @wraps(function)
    def method(W: ArrayLike, **given: object) -> V:
        """Pass the options that the declared function takes. Raises TypeError for an option that the format lacks."""
        if unknown := set(given) - set(cls.parameters):
            raise TypeError(
                f"{cls.name}.{function.__name__} has no option {', '.join(sorted(unknown))}; "
                f"it has {', '.join(cls.parameters) or 'none'}"
            )
        return act(W, **{name: value for name, value in given.items() if name in options(function)})

    return method
