"""An array as an attribute of a term: content-addressed, so equal weights are one node."""
from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np


class Data:
    """An array as an attribute: equal where its numbers are, so weights shared between layers are one node.

    A single number is kept as float64. The array is a read-only view of what was given: do not write to that afterwards."""
    base: Data | None = None

    def __init__(self, array: Any, label: str | None = None) -> None:
        array = np.atleast_1d(np.asarray(array))
        if array.dtype.kind not in "fiub": raise TypeError(f"{label or 'Data'}: an array of {array.dtype} holds no real numbers")
        self.array = (array.astype(np.float64) if array.size == 1 and array.ndim == 1 else array).view()
        self.array.flags.writeable = False
        self._label = label

    @classmethod
    def of(cls, thing: Any) -> Data:
        """Arrays, lists and numbers are taken as they are."""
        return thing if isinstance(thing, cls) else cls(thing)

    @cached_property
    def key(self) -> str:
        """The hash of shape, type and numbers."""
        digest = hashlib.blake2b(repr((self.array.shape, self.array.dtype.str)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.array).data)
        return digest.hexdigest()

    @property
    def label(self) -> str:
        """What it is printed as: its name, or its number, or a name made of its key."""
        if self.base and not self._label: return f"{self.base.label}.T"
        return self._label or (str(self.array.item()) if self.array.shape == (1,) else f"_{self.key[:12]}")

    def __eq__(self, other: object) -> bool: return self is other or isinstance(other, Data) and self.key == other.key
    def __hash__(self) -> int: return hash(self.key)
    def __repr__(self) -> str: return self.label
    def __getitem__(self, at: Any) -> Any: return self.array[at].item()

    def head(self, h: int) -> Data:
        """The matrix of one head of a stack; itself where it is no stack."""
        return Data(self.array[h]) if self.array.ndim == 3 else self

    @property
    def T(self) -> Data:
        """Turned back it is itself; the graph knows it as the adjoint of what it was."""
        return self.base or self._turned

    @cached_property
    def _turned(self) -> Data:
        turned = Data(self.array.swapaxes(-1, -2))
        turned.base = self
        return turned
