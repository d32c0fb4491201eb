"""Products of stored formats, and attention, by PyTorch, over the same arrays: another opinion of our kernels.

On the CPU arrays are shared, not copied, wherever torch can read them as they lie. What runs on CUDA alone, and CUDA
itself, is UNTESTED: nobody has run it on such a device."""

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.activation import COMPILED
from formats.core.arrays import Floats, by_rows
from formats.core.epilogue import NOTHING, Epilogue
from formats.core.stage import OPERANDS, activation, norm, stages_of
from formats.storage.format import Format

Product = Callable[[Any], Any]  # a tensor (T, n) to a tensor (T, p)
ROUNDED = "bf16", "nm"  # torch rounds what these products give to bfloat16


class Unavailable(RuntimeError):
    """Torch is not installed, a device is not there, or a format has no product: says which."""


def torch_here(device: str = "cpu") -> Any:
    """The module; Unavailable without it, or without such a device."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"provider torch: {error}; install it with `pip install torch`") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Unavailable(f"provider torch: there is no device {device!r}: torch {torch.__version__} finds no CUDA")
    return torch


def as_tensor(array: NDArray[Any]) -> Any:
    """The array as a tensor over the same memory; unsigned indices, as torch has none, as signed ones of the same
    bits."""
    torch = torch_here()
    if array.dtype == np.uint32:
        array = array.view(np.int32)  # they stay below 2^31: a format's sizes do
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes here
        return torch.from_numpy(array)


# ---- a product for each format


def dense(packed: Any, device: str) -> Product:
    """float32 as it lies."""
    w = as_tensor(packed.w).to(device)
    return lambda x: x @ w


def half(packed: Any, device: str) -> Product:
    """float16, widened once: the CPU has no fast product of its own; on CUDA in float16."""
    torch, w = torch_here(device), as_tensor(packed.w).to(device)
    if device != "cpu":
        return lambda x: (x.to(torch.float16) @ w).to(torch.float32)
    return partial(multiply, wide=w.float())


def multiply(x: Any, wide: Any) -> Any:
    return x @ wide


def bf16(packed: Any, device: str) -> Product:
    """bfloat16, copied: its panels are in an order that only our kernel reads."""
    torch = torch_here(device)
    w = as_tensor(np.ascontiguousarray(packed.unpack().T)).to(device, torch.bfloat16)
    return lambda x: torch.nn.functional.linear(x.to(torch.bfloat16), w).to(torch.float32)


def csr(packed: Any, device: str) -> Product:
    """Compressed rows of W.T; short indices are widened, all else is shared."""
    torch = torch_here(device)
    idx = packed.idx if packed.idx.dtype == np.uint32 else packed.idx.astype(np.uint32)
    parts = (as_tensor(part).to(device).contiguous() for part in (packed.ptr, idx, packed.val))
    w = torch.sparse_csr_tensor(*parts, size=packed.shape[::-1], check_invariants=True)
    return lambda x: (w @ x.T).T


def block(packed: Any, device: str) -> Product:
    """Block compressed rows of W.T: each tile is read turned, as it lies. Tiles that reach over the edge are cut off
    after."""
    torch = torch_here(device)
    r, c = packed.val.shape[1:]
    if r != c and device == "cpu":
        raise Unavailable(f"provider torch: {packed!r}: on the CPU it multiplies by square tiles alone")
    inputs, outputs = (-(-side // tile) * tile for side, tile in zip(packed.shape, (r, c), strict=True))
    parts = (as_tensor(part).to(device) for part in (packed.ptr, packed.idx))
    w = torch.sparse_bsr_tensor(
        *parts, as_tensor(packed.val).to(device).transpose(1, 2), size=(outputs, inputs), check_invariants=True
    )
    beyond = inputs - packed.shape[0]
    return lambda x: (w @ torch.nn.functional.pad(x, (0, beyond)).T).T[:, : packed.shape[1]]


def nm(packed: Any, device: str) -> Product:
    """2:4 in bfloat16 by the tensor cores of CUDA (Mishra et al. 2021); untested."""
    torch = torch_here(device)
    if packed.remembered != {"n": 2, "m": 4} or device == "cpu":
        raise Unavailable(f"provider torch: {packed!r} on {device}: only 2:4, and only on CUDA")
    w = torch.from_numpy(np.ascontiguousarray(packed.unpack().T)).to(device, torch.bfloat16)
    sparse = torch.sparse.to_sparse_semi_structured(w)
    return lambda x: torch.nn.functional.linear(x.to(torch.bfloat16), sparse).to(torch.float32)


PRODUCTS: dict[str, Callable[[Any, str], Product]] = {
    "dense": dense,
    "half": half,
    "bf16": bf16,
    "csr": csr,
    "block": block,
    "nm": nm,
}


class Held:
    """A stored matrix as torch multiplies by it, on a device; used like the Format that it is made of.

    Raises Unavailable for a format that torch has no product for, a missing device, or without torch."""

    def __init__(self, packed: Format, device: str = "cpu") -> None:
        if packed.name not in PRODUCTS:
            raise Unavailable(f"provider torch: it has no product for {packed.name}; it has {', '.join(PRODUCTS)}")
        self.packed, self.device, self.torch = packed, device, torch_here(device)
        with self.torch.inference_mode():
            self.product = PRODUCTS[packed.name](packed, device)

    def matmul(self, x: ArrayLike, out: Floats | None = None, epilogue: Epilogue | None = None) -> Floats:
        """x @ W, then the epilogue: x (T, n) -> (T, p) in float32. x is read, and on the CPU the result is, where it
        lies."""
        x, (inputs, outputs) = by_rows(x), self.packed.shape
        if x.ndim != 2 or x.shape[1] != inputs:
            raise ValueError(f"x @ {self.packed!r}: x has shape {x.shape}, it must be (rows, {inputs})")
        if epilogue:
            epilogue.check(len(x), outputs, self.packed)
        with self.torch.inference_mode():
            y = finished(self.product(as_tensor(x).to(self.device)), epilogue or NOTHING)
        found: Floats = y.contiguous().cpu().numpy()
        if out is None:
            return found
        out[...] = found
        return out

    def bound(self, x: ArrayLike) -> NDArray[np.float64]:
        """Entrywise bound on what torch's product may be off by: that of the format, and what rounding bfloat16 results
        adds."""
        error = self.packed.bound(x)
        if self.packed.name not in ROUNDED:
            return error
        size: NDArray[np.float64] = abs(np.asarray(x, np.float64)) @ abs(self.packed.unpack().astype(np.float64))
        return error + 2.0**-7 * (size + error)


def finished(y: Any, epilogue: Epilogue) -> Any:
    """What an Epilogue declares, on a tensor."""
    torch = torch_here()
    arrays = {name: torch.from_numpy(part).to(y.device) for name, part in epilogue.arrays.items()}
    operands = SimpleNamespace(**{name: arrays.get(name, getattr(epilogue, name)) for name in OPERANDS})
    for stage in stages_of(epilogue):
        means = FAST[stage] if stage in FAST else stage.means
        y = means(y, operands)
    return y


def normalised(y: Any, e: Any) -> Any:
    """A norm, on a tensor."""
    if e.norm == "layer":
        y = y - y.mean(1, keepdim=True)
    return y * torch_here().rsqrt(y.square().mean(1, keepdim=True) + e.eps)


FAST: dict[Any, Callable[[Any, Any], Any]] = {  # where torch has its own; sums and products are as they are
    activation: lambda y, e: activated(y, e.activation),
    norm: normalised,
}


def activated(y: Any, name: str) -> Any:
    """One of Epilogue's activations, on a tensor: by torch's function of that name, else by its meaning in float64."""
    torch = torch_here()
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(y, approximate="tanh")
    for place in (torch.nn.functional, torch):
        if function := getattr(place, name, None):
            return function(y)
    return torch.from_numpy(COMPILED[name].function(y.double().cpu().numpy())).to(y)


def attend(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    starts: NDArray[Any],
    scale: float = 1.0,
    causal: bool = False,
    device: str = "cpu",
) -> Floats:
    """softmax(scale q kᵀ) v within each sequence and head by scaled_dot_product_attention: q, k (T, ·, d), v (T, ·, e)
    -> (T, h, e), fewer heads of k and v serve groups of q's; starts (S + 1) are the rows at which sequences begin, and
    T."""
    torch = torch_here(device)
    with torch.inference_mode():
        whole = [as_tensor(np.asarray(part)).to(device).transpose(0, 1)[None] for part in (q, k, v)]
        heads = whole[0].shape[1]
        parts = [
            torch.nn.functional.scaled_dot_product_attention(
                *(repeat_heads(part[:, :, low:high], heads) for part in whole), is_causal=causal, scale=scale
            )[0].transpose(0, 1)
            for low, high in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]
        found: Floats = torch.cat(parts).cpu().numpy()
    return found


def repeat_heads(part: Any, heads: int) -> Any:
    """Each head so often in a row that there are so many."""
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], 1)
