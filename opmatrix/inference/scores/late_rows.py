"""Rows for late interaction (Khattab and Zaharia 2020, arXiv:2004.12832): the lengths of queries and documents, the
token that fills short queries, and the tokens whose rows are left out. Declared as data, so that a program stores it as
JSON."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields

from formats.core.errors import InputError

QUERY_TASK, DOCUMENT = "query", "document"
TASKS = QUERY_TASK, DOCUMENT
LENGTH_KEYS = "query_length", "document_length"


@dataclass(frozen=True)
class LateRows:
    """`query_length` and `document_length`: the tokens that texts of a task are truncated to, None for no limit of
    their own. `filler` is the token that queries of fewer than `floor` tokens are filled up with; 0: none is; with
    `fixed` they are truncated to as many. `skipped` are the tokens, as the vocabulary spells them, whose rows are left
    out of texts of `skipped_tasks`; a text of no task is a document."""

    query_length: int | None = None
    document_length: int | None = None
    filler: str = ""
    floor: int = 0
    fixed: bool = False
    skipped: tuple[str, ...] = ()
    skipped_tasks: tuple[str, ...] = (DOCUMENT,)

    def longest(self, task: str | None) -> int | None:
        """Return the number of tokens that texts of a task are truncated to, None for no limit."""
        if task != QUERY_TASK:
            return self.document_length if task == DOCUMENT else None
        if self.floor and self.fixed:
            return self.floor
        return self.query_length

    def filled(self, row: Sequence[int], filler: int, task: str | None) -> list[int]:
        """Return the tokens of a text, a short query filled up.

        >>> LateRows(filler="[MASK]", floor=4).filled([2, 7, 3], 9, "query")
        [2, 7, 3, 9]"""
        return [*row, *[filler] * (self.floor - len(row) if task == QUERY_TASK else 0)]

    def kept(self, row: Sequence[int], skipped: Collection[int], task: str | None) -> list[int]:
        """Return the places of the tokens of a text whose rows are given.

        >>> LateRows(skipped=(".",)).kept([2, 7, 5, 3], {5}, "document")
        [0, 1, 3]"""
        applies = (task or DOCUMENT) in self.skipped_tasks
        return [at for at, token in enumerate(row) if not (applies and token in skipped)]

    def described(self) -> dict[str, object]:
        """Return the declaration as JSON."""
        return asdict(self) | {"skipped": [*self.skipped], "skipped_tasks": [*self.skipped_tasks]}

    @classmethod
    def parsed(cls, value: object, where: str) -> "LateRows | None":
        """Return the declaration that `described` has written; None for None. Raises InputError that names the
        entry."""
        if value is None:
            return None
        names = {entry.name for entry in fields(cls)}
        if not isinstance(value, dict) or value.keys() != names:
            raise InputError(f"{where} is {value!r:.60}, not an object of {', '.join(sorted(names))}")
        queries, documents = (read_count(value[name], f"{where}: {name}") for name in LENGTH_KEYS)
        floor, fixed, filler = value["floor"], value["fixed"], value["filler"]
        if type(floor) is not int or floor < 0 or type(fixed) is not bool or not isinstance(filler, str):
            raise InputError(f"{where}: floor, fixed and filler are {floor!r:.20}, {fixed!r:.20} and {filler!r:.40}")
        skipped, tasks = (read_words(value[name], f"{where}: {name}") for name in ("skipped", "skipped_tasks"))
        return cls(queries, documents, filler, floor, fixed, skipped, tasks)


def read_count(value: object, where: str) -> int | None:
    """Check a number of tokens, or None. Raises InputError that names its place."""
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(f"{where} is {value!r:.60}, not a whole number above 0, or null")
    return value if isinstance(value, int) else None


def read_words(value: object, where: str) -> tuple[str, ...]:
    """Check a list of texts, or one text. Raises InputError that names its place."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
        raise InputError(f"{where} is {value!r:.60}, not a list of texts")
    return tuple(listed)
