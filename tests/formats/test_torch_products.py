"""Torch gives what our kernels give, within the same bounds, over the same memory."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from children import ROOT, SUPPORT

torch = pytest.importorskip("torch", reason="needs peers: torch")

import torch_products as provider  # noqa: E402
from torch_products import PRODUCTS, Held, Unavailable  # noqa: E402

from formats import FORMATS, Epilogue, kernels  # noqa: E402

HERE = [name for name in PRODUCTS if name != "nm"]
RAGGED = {"block": [{"tile": (16, 16)}, {"tile": (8, 8)}, {"tile": (5, 5)}]}
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        yield


def matrices(name, rng):
    for shape in ((24, 35), (64, 18), (1, 1), (130, 70)):
        W = rng.standard_normal(shape, np.float32) * (rng.random(shape) < 0.4)
        for options in RAGGED.get(name, [{}]):
            given = {"density": 0.3} if "density" in FORMATS[name].parameters else {}
            yield FORMATS[name].approximate(W, **options, **given)


@pytest.mark.parametrize("name", HERE)
def test_products_agree_with_float64_and_with_our_kernels(name, rng):
    for packed in matrices(name, rng):
        held = Held(packed)
        for rows in (1, 3, 70):
            x = rng.standard_normal((rows, packed.shape[0]), np.float32)
            exact, error = np.matmul(*packed.operands(x)), held.bound(x)
            found = held.matmul(x)
            assert found.dtype == np.float32 and found.shape == exact.shape
            assert (abs(found - exact) <= error).all()
            assert (abs(found - packed.matmul(x)) <= error + packed.bound(x)).all()


@pytest.mark.parametrize("name", HERE)
def test_a_bound_is_broken_by_a_wrong_number(name, rng):
    """It is tight enough to notice one entry of W that is off."""
    *_, packed = matrices(name, rng)
    x, W = rng.standard_normal((4, packed.shape[0]), np.float32), packed.unpack()
    i, j = np.unravel_index(abs(W).argmax(), W.shape)
    W[i, j] *= -1
    assert (abs(Held(packed).matmul(x) - x.astype(np.float64) @ W) > Held(packed).bound(x)).any()


@pytest.mark.parametrize("activation", Epilogue.ACTIVATIONS)
@pytest.mark.parametrize("norm", ["layer", "rms", None])
def test_epilogues_agree(activation, norm, rng):
    W, x = rng.random((24, 35), np.float32) + 0.1, rng.random((9, 24), np.float32)  # positive, for rsqrt
    bias, gain, shift = rng.random((3, 35), np.float32)
    times, residual = rng.random((2, 9, 35), np.float32)
    after = Epilogue(
        bias=bias,
        activation=activation,
        residual=residual,
        eps=None if norm is None else 1e-3,
        gain=gain,
        shift=shift,
        times=times,
        norm=norm or "layer",
    )
    packed = FORMATS["dense"].pack(W)
    exact, error = x.astype(np.float64) @ W, packed.bound(x)
    assert (abs(Held(packed).matmul(x, epilogue=after) - after.reference(exact)) <= after.bound(exact, error)).all()


@pytest.mark.parametrize("name, arrays", [("dense", ["w"]), ("csr", ["ptr", "val"]), ("block", ["ptr", "idx", "val"])])
def test_memory_is_shared(name, arrays, rng):
    """What changes in the format changes in torch: nothing was copied."""
    packed = FORMATS[name].approximate(rng.standard_normal((32, 48), np.float32))
    held, x = Held(packed), rng.standard_normal((5, 32), np.float32)
    before = held.matmul(x)
    for each in arrays:
        assert provider.as_tensor(getattr(packed, each)).data_ptr() == getattr(packed, each).ctypes.data
    getattr(packed, arrays[-1])[...] *= 2
    assert np.allclose(held.matmul(x), 2 * before, rtol=1e-5, atol=1e-5) and abs(before).max() > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads, kept", [(4, 4), (4, 2), (3, 1)])
def test_attention_agrees(heads, kept, causal, rng):
    starts, d, e = np.array([0, 7, 8, 40]), 16, 24
    q = rng.standard_normal((40, heads, d), np.float32)
    k, v = rng.standard_normal((40, kept, d), np.float32), rng.standard_normal((40, kept, e), np.float32)
    out = np.empty((40, heads, e), np.float32)
    reach = ((1 << 62), 0) if causal else None
    ours = kernels.attention(q, k, v, starts, out, 0.3, *([reach] if reach else []))
    assert np.allclose(provider.attend(q, k, v, starts, 0.3, causal), ours, rtol=2e-5, atol=2e-6)


def test_what_there_is_not_says_so(rng, monkeypatch):
    W = rng.standard_normal((16, 16), np.float32)
    with pytest.raises(Unavailable, match=r"no product for lowrank; it has dense"):
        Held(FORMATS["lowrank"].approximate(W))
    with pytest.raises(Unavailable, match="only on CUDA"):
        Held(FORMATS["nm"].approximate(W))
    with pytest.raises(Unavailable, match="square tiles"):
        Held(FORMATS["block"].approximate(W, tile=(8, 4)))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\), it must be \(rows, 16\)"):
        Held(FORMATS["dense"].pack(W)).matmul(np.ones((2, 3)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="no device 'cuda'"):
        Held(FORMATS["dense"].pack(W), "cuda")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="pip install torch"):
        Held(FORMATS["dense"].pack(W))


def test_torch_is_imported_at_first_use():
    asked = "import sys, torch_products; assert 'torch' not in sys.modules"
    places = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", asked], cwd=SUPPORT, check=True, env=places)


@GPU
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_a_gpu(name, rng):
    W = rng.standard_normal((128, 128), np.float32)
    packed = FORMATS[name].approximate(W)
    x = rng.standard_normal((64, 128), np.float32)
    held = Held(packed, "cuda")
    loose = held.bound(x) + 2.0**-7 * (abs(x).astype(float) @ abs(packed.unpack()))
    assert (abs(held.matmul(x) - np.matmul(*packed.operands(x))) <= loose).all()
