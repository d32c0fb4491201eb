"""The table of `opmatrix verify`: a line for each check of a certificate, with its verdict."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from formats.core.errors import InputError
from rewrites.verify.failure import VerificationError

WRONG = (VerificationError, InputError, ValueError, TypeError, KeyError, IndexError)
HOLDS, FAILS, CLAIMED = "holds", "FAILS", "claimed"


class Check(NamedTuple):
    """One line of the table: the check, the measured result, the allowed one, and the verdict. A claim cannot be
    checked with the files at hand; `allowed` then holds the reason."""

    what: str
    found: str
    allowed: str
    verdict: str


def judged(what: str, found: str, allowed: str, holds: bool) -> Check:
    """Return a check with the verdict HOLDS or FAILS."""
    return Check(what, found, allowed, HOLDS if holds else FAILS)


def attempted(what: str, done: Callable[[], Check]) -> Check:
    """Run a check; an error while computing it counts as a failure."""
    try:
        return done()
    except WRONG as error:
        return Check(what, describe_error(error), "", FAILS)


def describe_error(error: Exception) -> str:
    """Return an error as a cell of a table."""
    return " ".join(str(error.args[0] if error.args else error).split())


def format_checks(found: Sequence[Check]) -> str:
    """Return the table, with the counts of the verdicts."""
    width = max(len(check.what) for check in found)
    lines = [
        f"{check.what:{width}}  {check.verdict:7}  {'; '.join(filter(None, (check.found[:400], check.allowed[:400])))}"
        for check in found
    ]
    counts = ", ".join(
        f"{sum(check.verdict == verdict for check in found)} {verdict}" for verdict in (HOLDS, FAILS, CLAIMED)
    )
    return "\n".join([*lines, "", counts])
