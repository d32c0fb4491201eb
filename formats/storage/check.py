"""The test that every format has by being declared: it holds the matrices, takes the bytes and computes the products
that it declares."""

import json
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import Epilogue

if TYPE_CHECKING:
    from formats.storage.format import Format

SHAPES = (24, 35), (64, 18)  # not square; 35 and 18 leave ragged edges
DEEP_SHAPE = 200, 18  # several groups of inputs
TESTED_ROWS = 1, 3, 70
GRIDS = 7, 127  # largest integers that int4 and int8 hold


def check(F: "type[Format]", rng: np.random.Generator) -> None:
    """Check every choice of options that F offers, on matrices with and without zeros; AssertionError describes the
    failure."""
    for shape, rows in product(SHAPES, TESTED_ROWS):
        for options in F.choices(*shape):
            W = rng.standard_normal(shape, np.float32)
            check_product(check_storage(F, W, options), rng.standard_normal((rows, shape[0]), np.float32), rng)
            actual, sizes = F.approximate(W, **options).sizes, F.expected(shape[0], shape[1], **options)
            must(actual == sizes, F, options, f"has the sizes {actual}, expected {sizes}")
        holes = rng.standard_normal(shape, np.float32) * np.outer(*(rng.integers(0, 2, side) for side in shape))
        check_product(check_storage(F, holes, options), rng.standard_normal((rows, shape[0]), np.float32), rng)
    check_storage(F, np.zeros(shape, np.float32), options)
    for shape in *SHAPES, DEEP_SHAPE:
        check_whole_numbers(F, shape, rng)


def must(condition: object, what: object, options: object, words: str) -> None:
    """Assert a condition, also under python -O."""
    if not condition:
        raise AssertionError(f"{getattr(what, 'name', what)} {options}: {words}")


def check_storage(F: "type[Format]", W: NDArray[np.float32], options: Mapping[str, object]) -> "Format":
    """Check that W, fitted and packed, unpacks to itself, also transposed and saved, and takes the bytes that its
    format declares."""
    fitted = F.fit(W, **options)
    packed: Format = F.pack(fitted, **options)
    back, slack = packed.unpack(), packed.tolerance(fitted)

    def near(one: np.ndarray, other: np.ndarray) -> bool:
        """True if two matrices are at most `slack` apart, in Frobenius norm."""
        return bool(np.linalg.norm(one.astype(np.float64) - other) <= slack)

    must(near(back, fitted), F, options, "unpack differs from the packed matrix")
    must(not F.projects or near(F.fit(back, **options), back), F, options, "fit changes a matrix that already fits")
    must(near(F.approximate(W, **options).unpack(), fitted), F, options, "approximate(W) differs from pack(fit(W))")
    must(near(packed.transpose().unpack(), back.T), F, options, "transpose is not the transpose")
    must(F.bytes.subs(packed.sizes) == packed.nbytes, F, options, f"stores {packed.nbytes} bytes, declares {F.bytes}")
    again = saved(packed)
    must(
        again.meta() == packed.meta() and np.array_equal(again.unpack(), back),
        F,
        options,
        "differs after saving and loading",
    )
    return packed


def saved(packed: "Format") -> "Format":
    """Return a matrix that was written to and read from JSON and safetensors."""
    from safetensors.numpy import load, save

    return packed.from_arrays(json.loads(json.dumps(packed.meta())), load(save(packed.arrays())))


def check_product(packed: "Format", x: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Check that x @ W, alone and with a full epilogue, is as near to float64 as rounding allows."""
    outputs = packed.shape[1]
    bias, gain, shift = rng.standard_normal((3, outputs), np.float32)
    residual = rng.standard_normal((len(x), outputs), np.float32)
    exact, error = np.matmul(*packed.operands(x)), packed.bound(x)
    whole = Epilogue(bias=bias, activation="gelu", residual=residual, eps=1e-12, gain=gain, shift=shift)
    for epilogue in Epilogue(), whole:
        off = abs(packed.matmul(x, epilogue=epilogue) - epilogue.reference(exact))
        allowed = epilogue.bound(exact, error, packed.rounds)
        worst = np.unravel_index((off - allowed).argmax(), off.shape)
        must(
            (off <= allowed).all(),
            packed,
            len(x),
            f"rows times it: the error at {worst} is {off[worst]:.3g}, rounding allows {allowed[worst]:.3g}",
        )


def check_whole_numbers(F: "type[Format]", shape: tuple[int, int], rng: np.random.Generator) -> None:
    """Check that results are equal to the bit where no rounding occurs, not between two products either, so one lost
    input or row shows: W of integers on a grid that F keeps, the largest number of every 32 of a row of x 127, sums
    below 2^24."""
    for options in F.choices(*shape):
        grids = [
            W
            for W in (F.fit(on_grid(shape, most, rng), **options) for most in GRIDS)
            if np.array_equal(W, np.rint(W)) and np.array_equal(F.fit(W, **options), W)
        ]
        must(grids or not F.rounds or F.rounds_otherwise(), F, options, f"whole numbers up to {GRIDS} are not exact")
        for W, rows in product(grids, TESTED_ROWS):
            x = rng.integers(-126, 127, (rows, shape[0])).astype(np.float32)
            x[:, rng.integers(0, min(32, shape[0] % 32 or 32)) :: 32] = 127
            bias, residual = (rng.integers(-99, 99, size).astype(np.float32) for size in (shape[1:], (rows, shape[1])))
            packed, wanted = F.pack(W, **options), x.astype(np.int64) @ W.astype(np.int64)
            must(np.array_equal(packed.matmul(x), wanted), packed, rows, "rows of whole numbers times it are not exact")
            after = Epilogue(bias=bias, activation="relu", residual=residual)
            must(
                np.array_equal(packed.matmul(x, epilogue=after), np.maximum(wanted + bias, 0) + residual),
                packed,
                rows,
                "rows of whole numbers times it, with an epilogue, are not exact",
            )


def on_grid(shape: tuple[int, int], most: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw integers up to `most`, which every column reaches in every 64 inputs: scales are 1."""
    W = rng.integers(-most, most + 1, shape).astype(np.float32)
    W[::64] = most
    return W
