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
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

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


def operations(cls: "type[Format]", declared: "Term | None") -> "sympy.Expr":
    """The operations of a product, by default two a row and floating-point number."""
    import sympy
    if declared is not None: return sympy.sympify(declared)
    counts = (array.count for array in cls.fields.values() if array.number.name.startswith("f"))
    return sympy.expand(2 * T * sympy.Add(*counts))


def features(cls: "type[Format]", declared: tuple[Term, ...] | None) -> "tuple[sympy.Expr, ...]":
    """What the time of a product is a sum of, by default arithmetic, bytes, rows read and written. What stores no
    floating-point numbers multiplies as many as the matrix has."""
    import sympy
    return tuple(map(sympy.sympify, declared or (cls.flops / 2 or T * n * p, cls.bytes, T * (n + p))))


READ: dict[str, Callable[..., object]] = {"bytes": lambda cls, _: total_bytes(cls.fields), "flops": operations,
                                          "work": features}


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
    rounds: ClassVar[bool] = False                           # whether its kernel rounds x, too, as `reads` says
    parameters: ClassVar[dict[str, object]] = {}
    together: ClassVar[int] = 1                              # weights in one of its narrowest numbers
    portion: ClassVar[int] = 16                              # outputs that a thread takes at a time
    few: ClassVar[int] = 1                                   # rows that its product takes another way for than for more
    proposed: ClassVar[bool] = True                          # to whoever asks what a weight may be stored in
    common: ClassVar[bool] = True                            # whether it is unasked: others are timed when first met
    filed: ClassVar[np.dtype[np.void] | None] = None         # a block of files, which searches keep as it is
    plain: ClassVar[bool] = False                            # whether it holds any matrix in float32, number by number
    rowwise: ClassVar[bool] = False                          # whether rows of it can be gathered
    panelled: ClassVar[Panelled | None] = None               # panels of which columns can be gathered
    unit: ClassVar[str] = ""                                 # the number type that its product computes in, if its own
    projected: ClassVar[bool] = False                        # whether all of its fits project outputs alike
    projects: ClassVar[bool] = True                          # whether fit leaves every matrix that it made where it is
    named: ClassVar[Mapping[str, Size]] = MappingProxyType({})      # remembered options that are sizes
    declared: ClassVar[SimpleNamespace]
    fit: ClassVar[Callable[..., Floats]]
    pack: ClassVar[Callable[..., Self]]

    __array_ufunc__ = None                                   # so that numpy leaves `x @ packed` to __rmatmul__

    # ---- from the declaration

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if missing := [name for name in DECLARED if name not in vars(cls)]:
            raise TypeError(f"{cls.__name__} does not declare {' and '.join(missing)}")
        cls.name = cls.__name__.lower()
        cls.fields = {name: declared_array(cls, name, given) for name, given in inspect.get_annotations(cls).items()}
        declared = dict(vars(cls))
        for name, find in READ.items(): setattr(cls, name, Later(partial(find, cls, declared.get(name))))
        cls.rounds = cls.reads is not Format.reads
        cls.declared = SimpleNamespace(**{name: vars(cls)[name] for name in DECLARED})
        for name in DECLARED: delattr(cls, name)
        cls.parameters = options(cls.declared.fit) | options(cls.declared.pack)
        cls.fit = staticmethod(checked(cls.declared.fit, cls._fit, cls))
        cls.pack = staticmethod(checked(cls.declared.pack, cls._pack, cls))         # type: ignore[assignment]

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
        """From arrays that are known to be right, in the order of the declaration; `from_arrays` is for all others.
        Raises TypeError for a matrix, which is packed."""
        if not (isinstance(arrays, tuple) and isinstance(shape, tuple)):
            raise TypeError(f"{self.name}(W): a matrix W of (inputs, outputs) is stored by {type(self).__name__}"
                            f".pack(W), the nearest that it can hold by {type(self).__name__}.approximate(W)")
        self.shape, self.remembered = shape, remembered
        known = {n: shape[0], p: shape[1]} | {size: remembered[option] for option, size in self.named.items()}
        self.sizes = {**sizes_of(cast(Hashable, type(self)), tuple(a.shape for a in arrays), tuple(known.items()))}
        for (name, array), given in zip(self.fields.items(), arrays, strict=True):
            setattr(self, name, aligned(given, array.number.dtype(self.sizes), f"{self.name}.{name}"))
        self._stored = tuple(self.arrays().values())

    def _must_hold(self, W: Floats) -> None:
        if np.array_equal(back := self.unpack(), W): return
        difference = back.astype(np.float64) - W
        if (off := float(np.linalg.norm(difference))) <= self.tolerance(W): return
        i, j = np.unravel_index(abs(difference).argmax(), W.shape)
        raise FormatError(f"{self!r} cannot hold this matrix: W[{i}, {j}] = {W[i, j]:.9g} would become "
                          f"{back[i, j]:.9g} (norm of the difference {off:.3g}); use {self.name}.fit first")

    # ---- choosing

    @classmethod
    def approximate(cls, W: ArrayLike, **given: object) -> Self:
        """The nearest matrix that can be held, stored: `pack(fit(W))`, where nobody need look whether it is held."""
        return cls._hold(cls.fit(W, **given), **given)

    @classmethod
    def choices(cls, inputs: int, outputs: int) -> list[dict[str, int | float]]:
        """Options worth proposing for a matrix of this shape, the mildest first."""
        return [{}]

    @classmethod
    def proposed_by(cls, spectrum: "Spectrum") -> list[dict[str, int | float]]:
        """Options worth proposing for a matrix that was looked at: by default those of its shape."""
        return cls.choices(*spectrum.shape)

    @classmethod
    def predicted(cls, spectrum: "Spectrum", **given: object) -> float | None:
        """The relative error of the output where the spectrum says it; None where the matrix must be fitted to know."""
        return None

    @classmethod
    def rounding(cls, spectrum: "Spectrum", **given: object) -> float:
        """The relative error of the output that a kernel adds by rounding x, about."""
        return 0.0

    @classmethod
    def metric(cls) -> str:
        """What `fit` may be told of its inputs: their norms, by an option `scale` (wanda), their Gram matrix, by
        `weight` (whitened), or nothing (plain)."""
        return "wanda" if "scale" in cls.parameters else "whitened" if "weight" in cls.parameters else "plain"

    @classmethod
    def layouts_of(cls, W: Floats) -> list[dict[str, int | float]]:
        """Options worth trying for this matrix, stored as it is: by default those of its shape."""
        return cls.layouts(*W.shape)

    @classmethod
    def layouts(cls, inputs: int, outputs: int) -> list[dict[str, int | float]]:
        """Options worth trying for a matrix of this shape, stored as it is: of the choices, what `pack` takes."""
        storing = options(cls.declared.pack)
        found = [{name: value for name, value in given.items() if name in storing}
                 for given in cls.choices(inputs, outputs)]
        return [given for i, given in enumerate(found) if given not in found[:i]]

    @classmethod
    def counts(cls, inputs: int, outputs: int, **given: object) -> dict[Size, int]:
        """The sizes, beside n and p, that `approximate` of a matrix without zeros would have."""
        return {}

    @classmethod
    def expected(cls, inputs: int, outputs: int, **given: object) -> dict[Size, int]:
        """Every size of `approximate` of a matrix of this shape without zeros: what `bytes` and `flops` ask for."""
        return {n: inputs, p: outputs, **cls.counts(inputs, outputs, **given)}

    @classmethod
    def promised(cls, inputs: int, outputs: int, **given: object) -> Self:
        """One whose sizes and bytes are those of `expected`, and whose numbers nobody knows yet: to plan and to price.
        Each of its arrays is one zero in memory, so it may be of any size; it multiplies nothing."""
        made = cls.__new__(cls)
        made.shape, made.sizes = (inputs, outputs), cls.expected(inputs, outputs, **given)
        made.remembered = {name: made.sizes[size] for name, size in cls.named.items()}
        for name, array in cls.fields.items():
            zero = np.zeros((), array.number.dtype(made.sizes))
            setattr(made, name, np.broadcast_to(zero, tuple(int(fixed(axis, made.sizes)) for axis in array.shape)))
        made._stored = tuple(made.arrays().values())
        return made

    @classmethod
    def narrowest(cls) -> int:
        """Bits of the narrowest numbers that a weight is stored by: those of its floating-point arrays, or of all where
        x is rounded to such numbers too."""
        numbers = [array.number for array in cls.fields.values()]
        floating = [] if cls.rounds else [number for number in numbers if number.name.startswith("f")]
        return min(8 * int(number.bytes) for number in floating or numbers) // cls.together

    # ---- out again

    def unpack(self) -> Floats:
        """The dense matrix (n, p), float32, newly made."""
        return storable(np.array(self.declared.unpack(self.shape, *self._stored, **self.remembered)))

    def wide(self) -> NDArray[np.float64]:
        """The dense matrix (n, p), float64, newly made."""
        return storable(self.declared.unpack(self.shape, *self._stored, **self.remembered)).astype(np.float64)

    def transpose(self) -> "Format":
        """W.T, stored: in the same format unless the format says otherwise."""
        return type(self).pack(self.unpack().T, **self.remembered)

    def arrays(self) -> dict[str, np.ndarray]:
        """The stored arrays by name, in the order of the declaration (not copies)."""
        return {name: getattr(self, name) for name in self.fields}

    def meta(self) -> dict[str, object]:
        """What the arrays do not say, as JSON: the format, the shape, the remembered options."""
        return {"format": self.name, "shape": list(self.shape), **self.remembered}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, object], arrays: Mapping[str, np.ndarray], numbers: bool = True) -> Self:
        """The inverse of meta() and arrays(). Files are not trusted: FormatError names the first name, number type,
        shape, number or index that is not as declared. Without `numbers` nobody looks whether they are finite."""
        remembered: dict[str, Any] = dict(meta)
        name, shape = remembered.pop("format", None), remembered.pop("shape", None)
        if name != cls.name: raise FormatError(f"{cls.name}: given what the format {name!r} stored")
        if not (isinstance(shape, list | tuple) and len(shape) == 2 and all(map(is_size, shape))):
            raise FormatError(f"{cls.name}: the shape {shape!r:.80} is not two positive integers up to {MAX_SIZE:,}")
        if set(remembered) != set(cls.named) or not all(map(is_size, remembered.values())):
            raise FormatError(f"{cls.name}: it remembers {list(cls.named)} (positive integers), given "
                              f"{remembered!r:.80}")
        if set(arrays) != set(cls.fields):
            raise FormatError(f"{cls.name}: it stores {', '.join(cls.fields)}, given {', '.join(arrays) or 'nothing'}")
        packed = cls((shape[0], shape[1]), tuple(arrays[name] for name in cls.fields), **remembered)
        for name, kept in packed.arrays().items():
            if arrays[name].dtype != kept.dtype:
                raise FormatError(f"{cls.name}.{name}: declared {cls.fields[name]}, given {arrays[name].dtype}")
            if numbers and kept.dtype.kind == "f" and not all_finite(kept):
                raise FormatError(f"{cls.name}.{name}: it holds {kept[~np.isfinite(kept)][0]}, which is not finite")
        if complaint := packed.unsound():
            raise FormatError(f"{cls.name}: {complaint}: the file is damaged, or not written by opmatrix")
        return packed

    def unsound(self) -> str:
        """What is wrong with the stored indices; empty if a kernel may follow them without looking."""
        return ""

    @classmethod
    def indices(cls) -> list[str]:
        """The fields that say where numbers lie: whole ones, unless the numbers themselves are stored as such. A kernel
        follows them without looking, so nobody else may have a way to change them."""
        return [name for name, array in cls.fields.items() if array.number.stored.kind == "u" and not cls.rounds]

    # ---- use

    def scratch(self) -> int:
        """Numbers that a product keeps between its factors, for each row of x."""
        return 0

    def matmul(self, x: ArrayLike, out: Floats | None = None, epilogue: Epilogue | None = None) -> Floats:
        """x @ W, then the epilogue: x (T, n) -> (T, p), in float32 (other numbers are cast, what lies otherwise than in
        rows is copied), written to `out` if given: float32, its rows contiguous, apart from all that is read.
        ValueError says what does not fit."""
        x = by_rows(x)
        wanted = x.shape[0] if x.ndim else 0, self.shape[1]
        if x.ndim != 2 or x.shape[1] != self.shape[0]:
            raise ValueError(f"x @ {self!r}: x has shape {x.shape}, it must be (rows, {self.shape[0]})")
        if out is None: out = np.empty(wanted, np.float32)
        elif out.shape != wanted or by_rows(out) is not out:
            raise ValueError(f"x @ {self!r}: out is {out.dtype} {out.shape} with strides of {out.strides} bytes, it "
                             f"must be float32 {wanted} by rows at multiples of 4 bytes")
        else: writable("out", out); separate(out, x=x)
        if epilogue: epilogue.check(*wanted, self)
        if len(x): self.declared.kernel(x, *self._stored, out, epilogue or NOTHING, **self.remembered)
        return out

    def __rmatmul__(self, x: ArrayLike) -> Floats:
        x = np.asarray(x)
        if not x.ndim: raise ValueError(f"{x} @ {self!r}: a single number has no columns")
        return self.matmul(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], self.shape[1])

    @staticmethod
    def reads(x: ArrayLike) -> NDArray[np.float64]:
        """(T, n) in float64: the numbers that the kernel multiplies in place of x. A format whose kernel rounds x says
        how, bit by bit; others multiply x as it is."""
        return np.asarray(x, np.float64)

    def operands(self, x: ArrayLike) -> RoundedOperands:
        """Two matrices in float64 whose product is what the kernel computes but for the roundings of its sums: what it
        reads, and W. A format whose kernel also rounds what lies between two products says what is multiplied last."""
        return self.reads(x), self.wide()

    def bound(self, x: ArrayLike, operands: RoundedOperands | None = None) -> NDArray[np.float64]:
        """Entrywise bound on how far matmul(x) is from the product of `operands(x)`, which may be at hand, for any
        order of summation: γ_n |x| |W| (Higham 2002, eq. 3.5), and what n products lose that underflow (eq. 2.8)."""
        return gamma(self.shape[0]) * multiply_sizes(*operands or self.operands(x)) + self.shape[0] * SMALLEST

    @classmethod
    def borders(cls) -> frozenset[int]:
        """Rows at which its product takes another path: those of the kernels that it calls."""
        return kernels.borders(*cls.called())

    @classmethod
    def called(cls) -> list[str]: return sorted({*cls.declared.kernel.__code__.co_names} & {*kernels.find_modules()})

    def tolerance(self, W: Floats) -> float:
        """How far, in Frobenius norm, rounding may put unpack() from a W that can be held: by default not at all."""
        return 0.0

    # ---- readings
    @property
    def nbytes(self) -> int:
        """Bytes stored, exactly."""
        return sum(array.nbytes for array in self._stored)

    def show(self) -> str:
        """What it is, and its pattern of nonzero entries, in at most 32 lines of 64 characters."""
        return f"{self!r}\n{picture(self.unpack() != 0)}"

    def __repr__(self) -> str:
        sizes = "".join(f", {size}={value}" for size, value in self.sizes.items() if size not in (n, p))
        return f"{self.name}({self.shape[0]}×{self.shape[1]}{sizes})"
    def _repr_html_(self) -> str: return f"<pre>{self.show()}</pre>"

    @classmethod
    def row(cls) -> str:
        """Its row in the table of formats: name, arrays, bytes, and the first line of its docstring."""
        arrays = ", ".join(f"{name}: {array}" for name, array in cls.fields.items())
        return f"{cls.name} | {arrays} | {cls.bytes} | {(cls.__doc__ or '').splitlines()[0]}"

    @classmethod
    def rounds_otherwise(cls) -> bool:
        """Whether what it multiplies is rounded in a way of its own."""
        return cls.operands is not Format.operands

    @classmethod
    def check(cls, rng: "np.random.Generator") -> None:
        """The test that every format has by being declared; AssertionError says what failed."""
        from formats.storage.check import check
        check(cls, rng)


def options(function: Callable[..., object]) -> dict[str, object]:
    """The keyword options of a function and their defaults."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY}


def checked(function: Callable[..., object], act: Callable[..., V], cls: type[Format]) -> Callable[..., V]:
    """`act` under the name, signature and docstring of a declared function, given only the options that one takes."""
    @wraps(function)
    def method(W: ArrayLike, **given: object) -> V:
        if unknown := set(given) - set(cls.parameters):
            raise TypeError(f"{cls.name}.{function.__name__} has no option {', '.join(sorted(unknown))}; "
                            f"it has {', '.join(cls.parameters) or 'none'}")
        return act(W, **{name: value for name, value in given.items() if name in options(function)})
    return method
