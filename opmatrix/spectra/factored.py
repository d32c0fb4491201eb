"""Singular values of a product of two thin factors, A Bᵀ, which is never formed."""

import numpy as np
from numpy.typing import ArrayLike

from formats.core.errors import InputError
from opmatrix.spectra.measures import RealArray


def product_singular_values(left: ArrayLike, right: ArrayLike) -> RealArray:
    """Compute the singular values (..., k), falling, of A Bᵀ for A (..., n, d) and B (..., m, d), k = min(n, m, d); all
    further ones are 0. With A = Q R and B = P S they are those of the core R Sᵀ, at most d x d, so the work is
    (n + m) d² for each product (Golub and Van Loan 2013, section 8.6, for one factor). Raises InputError for shapes
    that do not fit and for entries that are not finite."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[-1] != b.shape[-1] or a.shape[:-2] != b.shape[:-2] or not a.size:
        raise InputError(f"product_singular_values: factors {a.shape} and {b.shape} have no product A Bᵀ")
    for name, factor in (("left", a), ("right", b)):
        if not np.isfinite(factor).all():
            raise InputError(f"product_singular_values: the {name} factor has entries that are not finite")
    r, s = np.asarray(np.linalg.qr(a, mode="r")), np.asarray(np.linalg.qr(b, mode="r"))
    core = r @ s.swapaxes(-1, -2)
    return np.asarray(np.linalg.svd(core, compute_uv=False))
