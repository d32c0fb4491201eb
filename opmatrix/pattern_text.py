"""Patterns as text: what programs store, and configs say."""
import re
from collections.abc import Callable, Sequence
from operator import and_, or_
from typing import Any

from opmatrix.patterns import Pattern, among, causal, coarse, everyone, hubs, mask, scattered, sequence, window
from opmatrix.relations import parse_relation

MAX_PATTERN_LETTERS, MAX_WORDS = 1000, 100                  # characters of a pattern's text; its words and brackets
NAMED_PATTERNS = {each.name: each for each in (everyone, sequence, causal)}
NUMBERED_PATTERNS = {each.__name__: each for each in (window, hubs, scattered)}
WORD = re.compile(r"(?:window|hubs|scattered)\(-?\d{1,9}\)|mask\(\{\}(?:, \d{1,7})?\)|coarse\(|, ?\d{1,7}\)|\w+"
                  r"|[&|()]|\S")


def parse(text: str, arrays: Sequence[Any] = ()) -> Pattern:
    """The pattern of a form: `everyone`, `sequence`, `causal`, `window(w)`, `hubs(g)`, `scattered(r)`, and `mask({})`
    or `mask({}, side)` of the next array, joined by ` & ` and `(.. | ..)`; & binds closer; any of it by blocks,
    `coarse(.., side)`; or `among(name: rows × columns)` alone. Raises ValueError for any other text, and for a long
    one."""
    if len(text) > MAX_PATTERN_LETTERS:
        raise ValueError(f"a pattern of {len(text):,} characters; it may have {MAX_PATTERN_LETTERS:,}")
    if named := re.fullmatch(r"among\((.*)\)", text): return among(parse_relation(named[1]))
    words, rest = WORD.findall(text)[::-1], [*arrays][::-1]
    if len(words) > MAX_WORDS:
        raise ValueError(f"{text[:40]!r}…: {len(words)} words and brackets; a pattern may have {MAX_WORDS}")

    def one() -> Pattern:
        word = words.pop() if words else "nothing"
        if word in NAMED_PATTERNS: return NAMED_PATTERNS[word]
        if word == "coarse(":
            found, side = several(), words.pop() if words else ""
            if not side.startswith(",") or not side.endswith(")"):
                raise ValueError(f"{text!r}: coarse(.., side) has no side")
            return coarse(found, int(side[1:-1]))
        if numbered := re.fullmatch(r"(\w+)\((-?\d+)\)", word): return NUMBERED_PATTERNS[numbered[1]](int(numbered[2]))
        if word.startswith("mask(") and rest: return mask(rest.pop(), int(word[7:-1].lstrip(", ") or 1))
        if word != "(":
            known = ", ".join([*NAMED_PATTERNS, "window(w)", "hubs(g)", "scattered(r)", "mask(..)", "coarse(.., side)"])
            raise ValueError(f"{word!r} of {text!r} is no pattern: {known}")
        found = several()
        if not words or words.pop() != ")": raise ValueError(f"{text!r}: a bracket is not closed")
        return found

    def chain(part: Callable[[], Pattern], sign: str, join: Callable[[Pattern, Pattern], Pattern]) -> Pattern:
        found = part()
        while words and words[-1] == sign:
            words.pop()
            found = join(found, part())
        return found

    def several() -> Pattern: return chain(lambda: chain(one, "&", and_), "|", or_)

    found = several()
    if words: raise ValueError(f"{text!r}: {words[-1]!r} follows a whole pattern")
    return found


def states(pattern: Pattern) -> bool:
    """Whether the text of a pattern, with its arrays, is that of this pattern: one's own has any text."""
    try: return parse(pattern.form, pattern.data) == pattern
    except ValueError: return False
