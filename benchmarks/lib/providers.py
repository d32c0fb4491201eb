"""The same product by each provider: for a matrix W, (format, bytes, error of W, rows -> a call that multiplies).

Every library gets what it likes best: W laid out as it reads it, x in its number type. Sparse products of libraries are
there twice: with rows of tokens in and out, as ours have them, and "turned", with tokens contiguous in and out."""

import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from formats import FORMATS, FormatError
from formats.core.arrays import room

F4 = np.dtype(np.float32)
WORST = 0.2  # error of W beyond which a format does not hold it
SPARSE = 0.75  # of dense bytes: libraries' sparse formats above are left
# out
TILE = 16, 16
ENOUGH = 1.1  # of the bytes asked for: whole tiles may be fewer than a
# density says


def relative(held, W):
    return float(np.linalg.norm(held - W) / np.linalg.norm(W))


def rows_of(rows, columns, seed=1):
    x = room((rows, columns), F4)
    x[...] = np.random.default_rng(seed).standard_normal(x.shape, np.float32)
    return x


# ---- ours


def ours(W, only):
    """Every format that holds W, exactly or within the error, with every option that it proposes."""
    for label, packed in held(W, only):
        yield label, packed.nbytes, relative(packed.unpack(), W), partial(our_call, packed)


def our_call(packed, rows):
    x, out = rows_of(rows, packed.shape[0]), room((rows, packed.shape[1]), F4)
    return partial(packed.matmul, x, out=out)


def held(W, only):
    """(label, packed): options that only say what to keep are of no use here, W is what is kept."""
    for name, form in FORMATS.items():
        if only and not name.startswith(tuple(only)):
            continue
        seen = set()
        for options in form.choices(*W.shape) or [{}]:
            label = f"{name} {said}" if (said := kept_options(form, options)) else name
            if label in seen:
                continue
            seen.add(label)
            try:
                packed = form.pack(W, **options)
            except FormatError:
                try:
                    packed = form.approximate(W, **options)
                except FormatError:
                    continue
                if relative(packed.unpack(), W) > WORST:
                    continue
            yield label, packed


def kept_options(form, options):
    """Options that `pack` takes, as words."""
    import inspect

    taken = {name for name, p in inspect.signature(form.declared.pack).parameters.items() if p.kind is p.KEYWORD_ONLY}

    def word(value):
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    return " ".join(f"{name}={word(value)}" for name, value in options.items() if name in taken)


# ---- libraries


def numpy_dense(W, only):
    w = room(W.shape, F4)
    w[...] = W

    def make(rows):
        return partial(np.dot, rows_of(rows, len(W)), w, out=room((rows, W.shape[1]), F4))

    yield "dense", w.nbytes, 0.0, make


def scipy_sparse(W, only):
    for name, A in scipy_matrices(W):

        def multiply(x, A=A):
            return A @ x

        yield from two_ways(name, A, multiply, copied=True)


def two_ways(name, A, multiply, copied=False, wrap=lambda x: x, contiguous=np.ascontiguousarray):
    """The same job as ours, rows of tokens in and out (`copied`: the library wants x turned for it), and as the library
    likes it best, tokens contiguous in and out."""
    size, inputs = A.data.nbytes + A.indices.nbytes + A.indptr.nbytes, A.shape[1]

    def by_rows(rows):
        x, turned = rows_of(rows, inputs), room((inputs, rows), F4)
        given = wrap(x).T

        def call():
            if copied:
                np.copyto(turned, x.T)
            return contiguous(multiply(turned if copied else given).T)

        return call

    def by_columns(rows):
        return partial(multiply, wrap(rows_of(inputs, rows)))

    yield name, size, 0.0, by_rows
    yield f"{name} turned", size, 0.0, by_columns


def scipy_matrices(W):
    """W.T as CSR, and as BSR where its tiles are sparse."""
    import scipy.sparse as sparse

    for name, A in (("csr", sparse.csr_array(W.T)), *([("bsr", sparse.bsr_array(W.T, blocksize=TILE))] * whole(W))):
        if A.data.nbytes <= SPARSE * W.nbytes:
            yield name, A


def whole(W):
    return not any(side % tile for side, tile in zip(W.shape, TILE, strict=True))


def mkl_sparse(W, only):
    find_mkl()
    import scipy.sparse as sparse
    from sparse_dot_mkl import dot_product_mkl

    for name, A in scipy_matrices(W):
        B = sparse.csr_matrix(A) if name == "csr" else sparse.bsr_matrix(A)

        def multiply(x, B=B):
            return dot_product_mkl(B, x)

        yield from two_ways(name, B, multiply, copied=True)


def find_mkl():
    """The wheel of MKL keeps its library where the loader does not look."""
    for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")):
        os.environ.setdefault("MKL_RT", str(path))


def torch_products(W, only):
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    linear, turned = torch.nn.functional.linear, np.ascontiguousarray(W.T)
    for name, kind in (("dense", torch.float32), ("bf16", torch.bfloat16)):
        w = torch.from_numpy(turned).to(kind)

        def make(rows, w=w, kind=kind):
            x = torch.from_numpy(rows_of(rows, len(W))).to(kind)
            return quiet(torch, lambda: linear(x, w))

        yield name, w.nbytes, relative(w.float().numpy().T, W), make
    for name, A in scipy_matrices(W):

        def multiply(x, a=torch_sparse(torch, name, A)):
            with torch.inference_mode():
                return a @ x

        yield from two_ways(name, A, multiply, wrap=torch.from_numpy, contiguous=torch.Tensor.contiguous)


def quiet(torch, call):
    def run():
        with torch.inference_mode():
            return call()

    return run


def torch_sparse(torch, name, A):
    make = torch.sparse_csr_tensor if name == "csr" else torch.sparse_bsr_tensor
    warnings.filterwarnings("ignore", message="Sparse")  # that it is new, and that nothing is checked
    return make(torch.from_numpy(A.indptr), torch.from_numpy(A.indices), torch.from_numpy(A.data), size=A.shape)


# ---- one row, from memory


def decode(name, size):
    """(bytes, bytes a second of x @ W with one row, bytes a second of reading as much, the share of every turn): nine
    turns."""
    from formats.machine import peaks

    packed = filled(FORMATS[name], size)
    call, memory = our_call(packed, 1), peaks.filled(packed.nbytes)
    taken = np.zeros((9, 2))
    for turn in taken:
        turn[:] = timed(call), timed(partial(peaks.sweep, *memory))
    speeds = np.array([packed.nbytes, peaks.traffic(memory[0])]) / taken
    return packed.nbytes, *np.median(speeds, 0).tolist(), (speeds[:, 0] / speeds[:, 1]).tolist()


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def filled(form, size, n=4096, tile=TILE, density=0.1):
    """A matrix of more than so many bytes, its arrays made as the format declares them: any numbers will do, but
    indices must ascend."""
    options = {
        **next(iter(form.choices(n, 1024)), {}),
        **({"density": density} if "density" in form.parameters else {}),
    }
    width = 1024
    while True:
        known = form.expected(n, width, **{k: v for k, v in options.items() if k in form.parameters})
        if float(form.bytes.subs(known)) > ENOUGH * size:
            break
        width = int(width * max(1.02, ENOUGH * size / float(form.bytes.subs(known)))) // 64 * 64 + 64
    if form.name in ("csr", "block"):
        arrays = compressed(form, n, width, tile, density)
    else:
        arrays = [numbers(array, known) for array in form.fields.values()]
    kept = {option: value for option, value in options.items() if option in form.named}
    return form((n, width), tuple(arrays), **kept)


def numbers(array, known):
    """Numbers of an array's type and shape: any bits of integers, floats from 0 to 1."""
    kind = array.number.dtype(known)
    shape = tuple(int(axis.subs(known)) for axis in array.shape)
    rng = np.random.default_rng(0)
    some = rng.random(1 << 16).astype(kind) if kind.kind == "f" else rng.integers(0, 100, 1 << 16).astype(kind)
    return np.resize(some, shape)


def compressed(form, n, width, tile, density):
    """ptr, idx, val of CSR, or of blocks: equally many in every column, ascending."""
    r, c = tile if form.name == "block" else (1, 1)
    each, owners = round(density * n / r), width // c
    rng, step = np.random.default_rng(0), n // r // round(density * n / r)
    idx = np.arange(each) * step + rng.integers(0, step, (1024, each))
    idx = np.resize(idx, (owners, each)).reshape(-1)
    val = np.resize(
        rng.standard_normal(1 << 16).astype(np.float32),
        (owners * each, r, c) if form.name == "block" else owners * each,
    )
    return np.arange(owners + 1) * each, idx.astype(np.uint32), val


# ---- who there is


def version(*packages):
    from importlib.metadata import version as of

    return lambda: ", ".join(f"{package} {of(package)}" for package in packages)


def numpy_version():
    from threadpoolctl import threadpool_info

    found = next(found for found in threadpool_info() if "numpy" in found["filepath"] or found["user_api"] == "blas")
    return f"{version('numpy')()} with {found['internal_api']} {found['version']} {found.get('architecture', '')}"


def mkl_version():
    find_mkl()
    from sparse_dot_mkl import dot_product_mkl

    assert dot_product_mkl
    return version("sparse-dot-mkl", "mkl")()


def torch_version():
    import torch

    return f"torch {torch.__version__}"


PROVIDERS = {"ours": ours, "numpy": numpy_dense, "scipy": scipy_sparse, "mkl": mkl_sparse, "torch": torch_products}
VERSIONS = {
    "ours": version("numba", "llvmlite"),
    "numpy": numpy_version,
    "scipy": version("scipy"),
    "mkl": mkl_version,
    "torch": torch_version,
}
