"""The numbers that the text of a kernel stores: no kept number and no number of the result may be left
uninitialised."""

from typing import NamedTuple


class StoredColumns(NamedTuple):
    """Columns `first` to `last` (exclusive) of `heads` heads, which some lines store."""

    heads: int
    first: int
    last: int


class Stores:
    """Stored columns of each array, by the array's word."""

    def __init__(self) -> None:
        self.by_word: dict[str, list[StoredColumns]] = {}

    def add(self, word: str, stored: StoredColumns) -> None:
        self.by_word.setdefault(word, []).append(stored)

    def check(self, word: str, heads: int, cols: int) -> None:
        """Raise ValueError, which names the word, if a column of some head is not stored.

        >>> stores = Stores()
        >>> stores.add("out", StoredColumns(2, 0, 16))
        >>> stores.check("out", 2, 16)
        >>> stores.check("out", 2, 17)
        Traceback (most recent call last):
        ValueError: out: its kernel writes 16 of 17 columns of 2 heads, and leaves the rest uninitialised"""
        reached = 0
        for stored in sorted(self.by_word.get(word, ()), key=lambda each: each.first):
            if stored.heads == heads and stored.first <= reached:
                reached = max(reached, stored.last)
        if reached < cols:
            raise ValueError(
                f"{word}: its kernel writes {reached} of {cols} columns of {heads} heads, and leaves the "
                "rest uninitialised"
            )
