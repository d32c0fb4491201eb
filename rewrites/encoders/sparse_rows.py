"""Sparse rows in the forms that callers ask for: scipy's CSR, sparse tensors of torch, their greatest numbers, their
products."""

from typing import TYPE_CHECKING

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from rewrites.encoders.embedding_forms import Converted, as_tensor, loaded_torch

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def is_sparse(rows: object) -> bool:
    """True for rows of scipy or of torch that store no zeros, and for lists of them."""
    if isinstance(rows, list):
        return bool(rows) and all(map(is_sparse, rows))
    torch = loaded_torch()
    return hasattr(rows, "tocsr") or (
        torch is not None and isinstance(rows, torch.Tensor) and rows.layout != torch.strided
    )


def as_sparse(rows: Converted) -> "csr_array":
    """Return rows of numpy, scipy or torch, or a list of sparse ones, as scipy's CSR; a single one is one row."""
    from scipy.sparse import csr_array, vstack

    if isinstance(rows, list):
        return csr_array(vstack([as_sparse(row) for row in rows], "csr"))
    if hasattr(rows, "coalesce"):
        return of_tensor(rows)
    if hasattr(rows, "tocsr"):
        whole = rows.reshape(1, -1) if rows.ndim == 1 else rows
        return csr_array(whole.tocsr())
    return csr_array(np.atleast_2d(rows))


def of_tensor(rows: Converted) -> "csr_array":
    """Return a tensor of torch as CSR without zeros, by its coordinates: a dense one may be as wide as a vocabulary."""
    from scipy.sparse import csr_array

    listed = rows.to_sparse_coo().coalesce()
    *row, column = listed.indices().numpy()
    places = row[0] if row else np.zeros_like(column)
    whole = csr_array((listed.values().numpy(), (places, column)), (rows.shape[0] if row else 1, rows.shape[-1]))
    whole.eliminate_zeros()
    return whole


def keep_greatest(rows: Floats, count: int | None) -> Floats:
    """Return rows with all but the `count` greatest sizes of each set to zero; None: as they are."""
    if count is None or count >= rows.shape[1]:
        return rows
    places = np.argpartition(-abs(rows), count - 1, axis=1)[:, :count]
    selected = np.zeros_like(rows)
    np.put_along_axis(selected, places, np.take_along_axis(rows, places, 1), 1)
    return selected


def compare_sparse(first: object, second: object) -> Converted:
    """Return (a, b): the products of sparse rows (a, v) and (b, v), summed in float64 and rounded to float32; a tensor
    where torch is imported. Raises InputError for rows of different lengths."""
    a, b = as_sparse(first), as_sparse(second)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"similarity: rows of {a.shape[1]} and of {b.shape[1]} columns: give equally long ones")
    products = (a.astype(np.float64) @ b.astype(np.float64).T).toarray().astype(np.float32)
    return products if loaded_torch() is None else as_tensor(products)


def convert_sparse(rows: "csr_array", sparse: bool, whole: bool, single: bool) -> Converted:
    """Return rows in the form that is asked for: of torch, where it is imported, else of scipy or numpy; sparse or
    dense; one value or a list of rows; of a `single` text its only row."""
    if loaded_torch() is not None:
        tensor = sparse_tensor(rows) if sparse else as_tensor(rows.toarray())
        return tensor[0] if single else tensor if whole else [*tensor]
    value = rows if sparse else rows.toarray()
    return value[[0]] if single and sparse else value[0] if single else value if whole else split_rows(value)


def split_rows(value: Converted) -> list[Converted]:
    """Return the rows of an array, or of CSR, one by one."""
    return [value[at] if isinstance(value, np.ndarray) else value[[at]] for at in range(value.shape[0])]


def sparse_tensor(rows: "csr_array") -> Converted:
    """Return CSR as a sparse tensor of torch, by coordinates."""
    torch = loaded_torch()
    assert torch is not None
    listed = rows.tocoo()
    places = torch.as_tensor(np.stack([listed.row, listed.col]).astype(np.int64))
    numbers = torch.as_tensor(listed.data)
    return torch.sparse_coo_tensor(places, numbers, rows.shape, check_invariants=True).coalesce()
