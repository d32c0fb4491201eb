"""What benchmarks/products.py crossovers says of times, and that what it times is the product."""

import sys
from math import inf

import numpy as np
import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import bars, providers
from lib.bars import Table, crossover, density, paired
from lib.matrices import STRUCTURES, matrix

from formats import FORMATS

try:
    MKL = ["mkl"] * bool(providers.mkl_version())
except Exception:
    MKL = []  # an optional peer, which the benchmark reports as absent


def row(form, provider, density, seconds, rows=128, structure="random", shape="384x1536"):
    return dict(
        shape=shape,
        rows=rows,
        structure=structure,
        density=density,
        format=form,
        provider=provider,
        threads=1,
        median_s=seconds[1],
        min_s=min(seconds),
        bytes=1,
        error=0.0,
        rounds=list(seconds),
    )


def test_a_crossover_lies_between_two_densities():
    assert crossover([(0.1, 4.0), (0.4, 0.25)]) == pytest.approx(0.2), "by logarithms"
    assert crossover([(0.1, 2.0), (0.2, 1.0), (0.4, 0.5)]) == pytest.approx(0.2)
    assert crossover([(0.1, 0.9), (0.2, 0.8)]) == 0 and crossover([(0.1, 2.0), (0.2, 1.5)]) == inf
    points = [(0.1, 2.0), (0.5, 0.5)]
    assert density(0, points) == "<0.1" and density(inf, points) == ">0.5" and density(0.223, points) == "0.22"


def test_ratios_are_of_the_same_round():
    """A busy moment that slows all of one round changes no ratio."""
    slow, fast = row("dense", "numpy", 0.1, (2.0, 20.0, 2.0)), row("csr", "ours", 0.1, (1.0, 10.0, 1.0))
    assert paired(slow, fast) == 2.0


def test_bars_are_judged_where_they_are_worst():
    rows = []
    for count, times in ((16, 4.0), (128, 2.0)):
        for at in (0.1, 0.4, 0.8):
            rows += [
                row("dense", "numpy", at, (8.0,) * 3, count),
                row("csr", "ours", at, (8.0 * at / 0.1 / times,) * 3, count),
                row("csr", "scipy", at, (9.0,) * 3, count),
                row("csr turned", "mkl", at, (2.0,) * 3, count),
            ]
    found = {what: (value, beside) for what, _, value, _, beside in bars.sparse_bars(Table(rows), 1)}
    reached, beside = found["CSR: density up to which it beats dense float32"]
    assert reached == pytest.approx(0.2) and "128 rows" in beside
    assert found["CSR at 0.1 against dense"][0] == 2.0
    value, beside = found["CSR at 0.1 against the best library's CSR"]
    assert value == pytest.approx(9 / 4) and beside.endswith("0.50"), (
        "the same job; with tokens contiguous it is said apart"
    )
    assert not [*bars.sparse_bars(Table(rows), 2)]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_matrices_have_their_density_and_are_the_same_again(structure):
    W = matrix(192, 256, structure, 0.25)
    assert abs((W != 0).mean() - 0.25) < 0.01 and np.array_equal(W, matrix(192, 256, structure, 0.25))
    assert not np.array_equal(W, matrix(192, 256, structure, 0.25, seed=1))
    if structure == "blocks":
        assert set(np.unique((W != 0).reshape(12, 16, 16, 16).sum((1, 3)))) <= {0, 256}
    if structure == "shared":
        assert all((part.any(1) == part.all(1)).all() for part in np.split(W != 0, 4, axis=1))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("provider", ["numpy", "scipy", "torch", *MKL])
def test_what_is_timed_is_the_product(provider, rows, monkeypatch):
    if provider == "torch":
        pytest.importorskip("torch", reason="needs peers: torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    W, seen = matrix(32, 48, "blocks", 0.25), set()
    for name, _size, error, make in providers.PROVIDERS[provider](W, []):
        x = providers.rows_of(rows, 32) if "turned" not in name else providers.rows_of(32, rows).T
        found = np.asarray(getattr(result := make(rows)(), "float", lambda result=result: result)())
        found = found.T if "turned" in name else found
        off = np.linalg.norm(found.reshape(rows, 48) - x.astype(float) @ W) / np.linalg.norm(x.astype(float) @ W)
        assert off < 1e-5 + 3 * (name == "bf16") * 2.0**-7 and error < 0.01, name
        seen.add(name)
    assert seen >= ({"dense"} if provider == "numpy" else {"csr", "bsr", "csr turned", "bsr turned"})


def test_ours_holds_a_matrix_or_says_its_error(monkeypatch):
    W = matrix(32, 48, "blocks", 0.25)
    found = {name: error for name, _, error, _ in providers.ours(W, [])}
    assert found["dense"] == found["csr"] == found["block tile=16x16"] == 0 < found["half"] < 0.001
    assert max(found.values()) <= providers.WORST and all(
        name.startswith("csr") for name, *_ in providers.ours(W, ["csr"])
    )


@pytest.mark.parametrize("name", ["csr", "block", "int8", "int4"])
def test_large_matrices_are_sound_and_large(name):
    packed = providers.filled(FORMATS[name], 300_000, n=512)
    assert packed.nbytes > 300_000 and not packed.unsound()
    x = np.random.default_rng(0).standard_normal((3, 512), np.float32)
    assert (abs(packed.matmul(x) - np.matmul(*packed.operands(x))) <= packed.bound(x)).all()
