"""Weights that have a matrix for each expert, as files hold them: one by one, or fused in one tensor. Either way each
matrix is read into its place, so that nothing is held twice and both give the same numbers."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.files.tensors import Tensor

if TYPE_CHECKING:
    from opmatrix.models.config import StackNames


class ExpertTensors(NamedTuple):
    """Where the matrices of a weight lie, that of each expert; `used` are the tensors of the file that hold them."""
    matrices: list[Tensor]
    used: list[Tensor]

    def read(self) -> tuple[NDArray[np.float32], Numeric | None]:
        """All of them in float32, a matrix for each head, and their blocks where a format holds these. Raises as
        `Tensor.read`."""
        first, kept = self.matrices[0].read_both()
        whole = np.empty((len(self.matrices), *first.shape), np.float32)
        blocks = None if kept is None else np.empty((len(self.matrices), *kept.shape), kept.dtype)
        whole[0] = first
        if blocks is not None: blocks[0] = kept
        for e, each in enumerate(self.matrices[1:], 1):
            whole[e], own = each.read_both()
            if blocks is not None: blocks[e] = own
        return whole, blocks


def find_experts(find: Callable[[str], Tensor | None], stem: str, said: StackNames, shape: tuple[int, ...],
                 fitted: Callable[[Tensor, tuple[int, ...]], None]) -> ExpertTensors | str:
    """Where the matrices of a weight lie whose names begin with `stem`, or the name of the first that is nowhere.
    `fitted` raises for a tensor of another shape. Raises InputError for matrices of several number types."""
    count, *own = shape
    if fused := find(stem + said.fused):
        rows = own[0]
        fitted(fused, (count, rows * said.shares, *own[1:]))
        return ExpertTensors([fused.matrix(e, said.share * rows, rows) for e in range(count)], [fused])
    called = next((name for name in said.apart if find(stem + name.replace("#", "0"))), said.apart[0])
    matrices: list[Tensor] = []
    for e in range(count):
        if (each := find(name := stem + called.replace("#", str(e)))) is None: return name
        if each.shape != tuple(own[1:]) or own[0] != 1: fitted(each, tuple(own))          # a row may lie as a vector
        if matrices and each.number != matrices[0].number:
            raise InputError(f"{each.file}: tensor {each.name!r} is of {each.number}, but {matrices[0].name!r} of "
                             f"{matrices[0].number}: experts of a layer are one weight, so save them in one type")
        matrices.append(each)
    return ExpertTensors([each._replace(shape=tuple(own)) for each in matrices], matrices)
