"""Kernels: arrays in, arrays out. Compiled by other processes when first used, and kept in the user's cache; importing
is free.

>>> from formats import kernels
>>> kernels.product_dense(x, w, out, epilogue)                                                     # doctest: +SKIP"""
import hashlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

WHERE = {name: module for module, names in {
    "products.linear": ("product_dense", "product_half", "product_lowrank"),
    "products.csr_nm": ("product_csr", "product_nm"),
    "products.block_vectorwise": ("product_block", "product_vectorwise"),
    "products.packed_panels": ("product_packed",),
    "products.q4_1_levels": ("product_levels",),
    "products.bf16_int8_int4": ("product_bf16", "product_int8", "product_int4", "product_balanced_bytes",
                        "product_lowrank_bytes"),
    "products.blockint8_product": ("product_byte_blocks",),
    "products.nmint8_product": ("product_pruned_bytes",),
    "products.csc_product": ("product_csc",),
    "products.sell_product": ("product_sell",),
    "rows.passes": ("pointwise", "scale", "gather", "embed"),
    "rows.gathering": ("Columns",),
    "products.by_head": ("headwise",),
    "rows.rotating": ("rotate",),
    "rows.norms": ("pointwise_heads",),
    "rows.sequences": ("pool_rows", "hand_rows", "link_rows", "attend_once"),
    "mixing.masked": ("attention_blocks",),
    "mixing.attending": ("attention",),
    "mixing.attending_halves": ("attention_halves",),
    "mixing.caches": ("append", "attention_cached"),
    "mixing.heads": ("scores", "softmax", "values"),
}.items() for name in names}
PRODUCT_BORDERS = "products.linear.ENOUGH", "products.linear.MAX_ITEM_ROWS"        # rows that products are split by
STRIP_BORDERS = (*PRODUCT_BORDERS, "products.csr_nm.STRIP")
NARROW_BORDERS = (*PRODUCT_BORDERS, "products.narrow_vectors.BAND", "products.narrow_matrix.BAND")
BORDERS = {                                                  # constants at which a module's kernels take another path
    "products.linear": (*PRODUCT_BORDERS, "products.linear.REUSED", "products.gemm.TILE_ROWS"),
    **dict.fromkeys(("products.csr_nm", "products.csc_product", "products.sell_product"), STRIP_BORDERS),
    **dict.fromkeys(("products.bf16_int8_int4", "products.blockint8_product", "products.nmint8_product"),
                    NARROW_BORDERS),
    "products.block_vectorwise": (*PRODUCT_BORDERS, "products.block_vectorwise.TALL"),
    "products.packed_panels": (*PRODUCT_BORDERS, "products.packed_panels.FEW_ROWS"),
    "products.q4_1_levels": (*PRODUCT_BORDERS, "products.q4_1_levels.REGISTER_ROWS"),
    "products.by_head": ("products.gemm.TILE_ROWS",),
    "mixing.heads": ("mixing.heads.QUERIES", "mixing.heads.KEYS"),
    "mixing.masked": ("mixing.heads.QUERIES", "mixing.heads.KEYS"),
    "mixing.attending": ("mixing.attending.QUERIES", "mixing.attending.PACKED"),
    "mixing.attending_halves": ("mixing.attending.QUERIES",),
    "mixing.caches": ("mixing.caches.PAGE", "mixing.caches.KEYS_AT_ONCE")}
__all__ = [*WHERE, "borders", "digest", "warm"]


def __getattr__(name: str) -> Any:
    if name not in WHERE: raise AttributeError(f"formats.kernels has no {name!r}; it has {', '.join(__all__)}")
    globals()[name] = found = getattr(import_module(f".{WHERE[name]}", __name__), name)
    return found


@cache
def borders(*names: str) -> frozenset[int]:
    """Rows, or tokens of a sequence, at which these kernels take another path: their tiles, as their modules have
    them."""
    found = [place.rpartition(".") for name in names for place in BORDERS.get(WHERE.get(name, ""), ())]
    return frozenset(getattr(import_module(f".{module}", __name__), constant) for module, _, constant in found)


@cache
def digest() -> str:
    """A name for these sources and for what they have from other modules, which becomes part of their code: what was
    compiled from others, or measured with them, is not of these."""
    from formats.kernels.frozen import imported
    home = Path(__file__).parent
    found = hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(home.rglob("*.py"))), digest_size=8)
    for each in imported(home, __name__): found.update(each.encode())
    return found.hexdigest()


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] = lambda name, seconds: None) -> float:
    """Compile kernels, or read them from the cache, with progress(name, seconds) after each; seconds in all."""
    for module in set(WHERE.values()): import_module(f".{module}", __name__)
    from formats.kernels.engine.launch import warm as compile_all
    return compile_all(names, progress)
