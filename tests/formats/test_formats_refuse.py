"""What the storage formats refuse, and in which words: matrices, options, files, annotations."""

import subprocess
import sys

import numpy as np
import pytest
import sympy
from children import ROOT

import formats
from formats import CSR, NM, Block, Dense, Epilogue, Format, FormatError, Half, LowRank
from formats.core.sizes import SizeError, f4, n, nnz, p, size, u1, u4, unsigned

# ---- wrong input

W = np.arange(12, dtype=np.float32).reshape(4, 3)
G = np.eye(4)
WRONG = {
    "one axis": (lambda: CSR.pack(W[0]), r"csr.pack: W has shape \(3,\)"),
    "empty": (lambda: Dense.pack(W[:0]), r"dense.pack: W has shape \(0, 3\)"),
    "complex": (lambda: Dense.pack(W + 1j), r"dense.pack: W is ndarray of complex64"),
    "text": (lambda: Dense.pack([["a"]]), r"dense.pack: W is list of <U1"),
    "nan": (lambda: Block.fit(np.where(W == 5, np.nan, W)), r"block.fit: W\[1, 2\] = nan is not a finite float32"),
    "overflow": (lambda: Dense.pack(np.array([[1.0, 1e300]])), r"dense.pack: W\[0, 1\] = 1e\+300 is not a finite"),
    "half overflow": (lambda: Half.fit([[1, -70000]]), r"half.fit: W\[0, 1\] = -70000.0 is beyond 65504"),
    "half": (lambda: Half.pack([[1, 0.1]]), r"half\(1×2\) cannot hold this matrix: W\[0, 1\] = 0.100000001 would"),
    "density": (lambda: CSR.fit(W, density=2), "csr: density = 2 is not between 0 and 1"),
    "tile": (lambda: Block.pack(W, tile=(4, 0)), r"block: tile = \(4, 0\) is not a pair of positive integers"),
    "full group": (lambda: NM.pack(W, n=2, m=4), r"nm\(4×3, kept=2, group=4\) cannot hold this matrix: W\[3, 2\] = "),
    "ragged group": (lambda: NM.fit(W, n=2, m=3), "nm: 4 inputs are not a multiple of m = 3"),
    "n of m": (lambda: NM.fit(W, n=5, m=4), "nm: n = 5 of every m = 4 is not"),
    "rank": (lambda: LowRank.fit(W, rank=4), r"lowrank: rank = 4 is not between 1 and 3"),
    "higher rank": (lambda: LowRank.pack(W, rank=1), r"lowrank\(4×3, r=1\) cannot hold this matrix"),
    "weight": (lambda: LowRank.fit(W, weight=G[0]), r"lowrank: weight\[1\] = 0.0 is not positive"),
    "weight shape": (lambda: LowRank.fit(W, weight=G[:3]), r"lowrank: weight has shape \(3, 4\), not \(4,\) or"),
    "not symmetric": (lambda: LowRank.fit(W, weight=G + np.eye(4, k=1)), "lowrank: weight is not symmetric"),
    "negative": (lambda: LowRank.fit(W, weight=-G), "lowrank: weight has an eigenvalue below 0"),
    "factors": (lambda: LowRank.pack_factors(W, W), r"u is \(4, 3\), v is \(4, 3\): their ranks differ"),
    "scale": (lambda: NM.fit(W, scale=[1, 2]), r"nm.fit: scale has shape \(2,\); it needs one for each of 4 inputs"),
    "scale value": (lambda: CSR.fit(W, scale=[1, 2, -3, 4]), r"csr.fit: scale\[2\] = -3.0 is not a finite"),
    "product": (lambda: W @ Dense.pack(W), r"x @ dense\(4×3\): x has shape \(4, 3\), it must be \(rows, 4\)"),
    "number": (lambda: 3 @ Dense.pack(W), "a single number has no columns"),
    "out": (
        lambda: Dense.pack(W).matmul(W.T, out=W),
        r"out is float32 \(4, 3\) with .* it must be float32 \(3, 3\) by rows",
    ),
    "overlap": (
        lambda: Dense.pack(G).matmul(*[np.ones((4, 4), np.float32)] * 2),
        "x overlaps out, which is written while",
    ),
    "in place": (
        lambda: Dense.pack(G).matmul(W.T, out=(y := W.T.copy()), epilogue=Epilogue(residual=y)),
        "residual overlaps out, which is written while",
    ),
    "activation": (lambda: Epilogue(activation="sine"), r"epilogue: activation 'sine' is unknown"),
    "no eps": (lambda: Epilogue(eps=0.0), "epilogue: eps = 0.0 is not from"),
    "eps": (lambda: Epilogue(eps=-1.0), "epilogue: eps = -1.0 is not from"),
    "bias axes": (lambda: Epilogue(bias=W), r"epilogue: bias has shape \(4, 3\); it needs 1 axes"),
    "bias": (
        lambda: Dense.pack(W).matmul(W.T, epilogue=Epilogue(bias=[1, 2])),
        r"after dense\(4×3\): bias has 2 entries",
    ),
    "residual": (lambda: Dense.pack(W).matmul(W.T, epilogue=Epilogue(residual=W)), r"residual is \(4, 3\), the output"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named(name):
    act, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        act()


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match=r"csr\.fit has no option densty; it has density, scale"):
        CSR.fit(W, densty=0.1)
    with pytest.raises(TypeError, match=r"dense\.pack has no option tile; it has none"):
        Dense.pack(W, tile=(2, 2))


TAMPERED = {
    "format": (CSR, lambda meta, _: meta.update(format="block"), "csr: the arrays were stored by the format 'block'"),
    "shape": (CSR, lambda meta, _: meta.update(shape=[4.0, 3]), r"csr: the shape \[4.0, 3\] is not two positive"),
    "option": (NM, lambda meta, _: meta.update(m=0), r"nm: its options are \['n', 'm'\] \(positive integers\), got"),
    "absent": (CSR, lambda _, arrays: arrays.pop("idx"), "csr: it stores ptr, idx, val, given ptr, val"),
    "longer": (CSR, lambda _, arrays: arrays.update(val=np.zeros(99, "f4")), r"csr.val: declared f4\[nnz\] = \[3\], g"),
    "axes": (Dense, lambda _, arrays: arrays.update(w=np.zeros(12, "f4")), r"dense.w: declared f4\[n, p\], given the "),
    "type": (Half, lambda _, arrays: arrays.update(w=np.zeros((4, 3), "f4")), r"half.w: declared f2\[n, p\], given fl"),
    "nan": (Dense, lambda _, arrays: arrays["w"].fill(np.nan), "dense.w: it holds nan, which is not finite"),
    "index": (CSR, lambda _, arrays: arrays["idx"].fill(4), r"csr: idx\[0\] = 4 is not below 4: the file is damaged"),
    "order": (CSR, lambda _, arrays: arrays["idx"].put(0, 3), "csr: idx does not ascend at 0"),
    "range": (CSR, lambda _, arrays: arrays["ptr"].put(-1, 2), "csr: ptr goes from 0 to 2, there are 3 indices"),
    "falling": (CSR, lambda _, arrays: arrays["ptr"].put(1, 9), "csr: ptr falls at 1"),
    "tile index": (Block, lambda _, arrays: arrays["idx"].fill(2), r"block: idx\[0\] = 2 is not below 2"),
    "place": (NM, lambda _, arrays: arrays["idx"].fill(7), "nm: idx holds 7 in groups of 4"),
    "places": (NM, lambda _, arrays: arrays["idx"].fill(1), "nm: the places in a group do not ascend"),
    "groups": (NM, lambda meta, _: meta.update(n=1, m=2), "nm: the places in a group|nm: idx holds"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_damaged_files_are_refused(name):
    F, damage, words = TAMPERED[name]
    held = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 3, 0]], np.float32)
    packed = F.pack(held, **({"tile": (2, 2)} if F is Block else {}))
    meta, arrays = packed.meta(), packed.arrays()
    F.from_arrays(meta, arrays)
    damage(meta, arrays)
    with pytest.raises(FormatError, match=words):
        F.from_arrays(meta, arrays)


def test_an_unknown_format_is_named():
    words = r"there is no format 'zip' in this version: create the program again; there are dense, packed"
    with pytest.raises(FormatError, match=words):
        formats.from_arrays({"format": "zip"}, {})


# ---- sizes


def test_sizes_are_live():
    assert f4[n, p].bytes == 4 * n * p and u4[p + 1].bytes == 4 * p + 4 and str(u1[p, n / 4]) == "u1[p, n/4]"
    for inputs, narrow in (65535, "u2"), (65536, "u4"):
        assert unsigned(n).dtype({n: inputs}) == np.dtype(narrow)
        assert unsigned(n)[nnz].bytes.subs({n: inputs, nnz: 3}) == 3 * np.dtype(narrow).itemsize
    assert f4[size("stages")].bytes == 4 * size("stages")


TYPOS = {
    "text": (lambda: f4[n, "nz"], "the size 'nz' is text; write nnz without quotes"),
    "symbol": (lambda: f4[n, sympy.Symbol("blcks")], "the size blcks is not known to be.*did you mean blocks"),
    "fraction": (lambda: f4[2.5], "the size 2.5 is a float, not a whole number"),
    "negative": (lambda: f4[n, -1], "the size -1 is not a whole number >= 0"),
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_in_an_annotation_is_pointed_at(name):
    act, words = TYPOS[name]
    with pytest.raises(SizeError, match=words) as caught:
        act()
    place, line, caret = str(caught.value).splitlines()[1:]
    assert place.strip() == f"{__file__}:{act.__code__.co_firstlineno}"
    assert line[caret.index("^") : caret.rindex("^") + 1] in ('"nz"', 'sympy.Symbol("blcks")', "2.5", "-1")


def test_a_declaration_with_a_hole_is_refused():
    with pytest.raises(TypeError, match="Hollow does not declare pack and kernel"):

        class Hollow(Format):
            def fit(W):
                return W

            def unpack(shape, w):
                return w

    with pytest.raises(TypeError, match=r"Listed.w is annotated with <class 'list'>, type; write an array such as f4"):

        class Listed(Format):
            w: list

            def fit(W):
                return W

            def pack(W):
                return W

            def unpack(shape, w):
                return w

            def kernel(x, w, out, epilogue):
                pass


def test_importing_the_formats_imports_no_compiler():
    code = "import formats, sys; print(*{'numba', 'scipy', 'egglog', 'torch', 'safetensors'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0 and not run.stdout.strip(), run.stdout + run.stderr
