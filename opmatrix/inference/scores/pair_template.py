"""The text that a language model reads of a pair: literal pieces, and slots for an instruction, a query and a document.
Declared as data, so that a program stores it as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opmatrix.inference.pooling import check_text, expect

if TYPE_CHECKING:
    import tokenizers

SYSTEM, QUERY, DOCUMENT = "system", "query", "document"
ROLES = SYSTEM, QUERY, DOCUMENT
LITERAL = ""
FILLERS = "a", "b"  # texts between which only tokens of the template are alike


@dataclass(frozen=True)
class PairTemplate:
    """`pieces`: a role and a text each. LITERAL: the text itself; one of ROLES: what the pair has of this role, or the
    text if it has nothing."""

    pieces: tuple[tuple[str, str], ...]

    def render(self, instruction: str, query: str, document: str) -> str:
        """Return the text of a pair; without an instruction the template's own stands."""
        filled = {SYSTEM: instruction, QUERY: query, DOCUMENT: document}
        return "".join(filled.get(role, "") or text if role != LITERAL else text for role, text in self.pieces)

    def last_tokens(self, tokenizer: "tokenizers.Tokenizer", instruction: str) -> list[int]:
        """Return the tokens that every pair ends with."""
        first, second = (
            tokenizer.encode(self.render(instruction, filler, filler), add_special_tokens=False).ids
            for filler in FILLERS
        )
        return common_end(first, second)

    def described(self) -> list[list[str]]:
        """Return the template as JSON."""
        return [[role, text] for role, text in self.pieces]

    @classmethod
    def parsed(cls, value: object, where: str) -> "PairTemplate | None":
        """Return the template that `described` has written; None for None. Raises InputError that names the entry."""
        if value is None:
            return None
        pieces: list[list[object]] = value if isinstance(value, list) else [[]]
        for piece in pieces:
            expect(isinstance(piece, list) and len(piece) == 2, where, value, "a list of roles and texts")
            expect(piece[0] in (LITERAL, *ROLES), where, piece[0], f"of {', '.join(ROLES)}, or empty")
        return cls(tuple((str(role), check_text(text, where)) for role, text in pieces))


def common_end(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the longest end that two rows share.

    >>> common_end([1, 2, 3, 4], [9, 3, 4])
    [3, 4]"""
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    return [*first[len(first) - length :]]
