"""report.json read back with mistrust: every entry that a page shows is looked at first. Nothing that it names is
opened."""
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.disk.files import parse_json, read_bytes, shown
from opmatrix.files.saving import REPORT
from rewrites.evaluate.reported import MAX_PROGRAMS
from rewrites.report.results import PACKAGES, TITLES, installed

Check = Callable[[object, str], None]                       # of a value and where it is; raises Misfit
MOST_ENTRIES, MOST_LETTERS, MOST_BYTES = 5000, 2_000_000, 64_000_000


class Misfit(Exception):
    """An entry that no run would have written; the message says which."""


def of_kind(what: str, *kinds: type) -> Check:
    """A check that a value is of these types; True is no number."""
    def check(value: object, where: str) -> None:
        if type(value) not in kinds or (isinstance(value, str) and len(value) > MOST_LETTERS):
            raise Misfit(f"{where} is {value!r:.60}: {what}")
    return check


word, flag = of_kind("no text", str), of_kind("neither true nor false", bool)
number, whole = of_kind("no number", int, float), of_kind("no whole number", int)


def maybe(check: Check) -> Check:
    """A check that lets None pass."""
    return lambda value, where: None if value is None else check(value, where)


def each(check: Check, most: int = MOST_ENTRIES, least: int = 0) -> Check:
    """A check of a list, entry by entry."""
    def checked(value: object, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Misfit(f"{where} is {value!r:.60}: no list of {least} to {most} entries")
        for at, entry in enumerate(value): check(entry, f"{where}[{at}]")
    return checked


def table_of(check: Check) -> Check:
    """A check of an object with any keys, value by value."""
    def checked(value: object, where: str) -> None:
        if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
            raise Misfit(f"{where} is {value!r:.60}: no object")
        for key, entry in value.items(): check(entry, f"{where}[{key!r:.40}]")
    return checked


def entries(**wanted: Check) -> Check:
    """A check of an object that has these keys at least."""
    def checked(value: object, where: str) -> None:
        if not isinstance(value, dict): raise Misfit(f"{where or 'it'} is {value!r:.60}: no object")
        for key, check in wanted.items():
            at = f"{where}.{key}" if where else key
            if key not in value: raise Misfit(f"it has no {at}")
            check(value[key], at)
    return checked


POINT = {"name": word, "predicted_s": number, "measured_s": maybe(number), "predicted_bytes": maybe(number),
         "measured_bytes": maybe(number), "stored_bytes": number, "predicted_error": maybe(number),
         "measured_error": maybe(number), "stated_error": maybe(number), "verified": flag,
         "near": each(entries(sentences=number, relative=number)), **dict.fromkeys(TITLES, maybe(number))}
STATED = entries(sentences=number, error=number, sentence=maybe(number), pairs=number, cosine_mean=number,
                 cosine_most=number)
ROUTED = maybe(entries(rows=number, of=number))
NAMED_FILE = maybe(entries(file=word, sha256=word))
OPERATORS = each(entries(what=word, steps=whole, predicted_s=number, measured_s=maybe(number)))
REPORTED = entries(
    model=word, machine=word, workload=word, rows=whole, tokens=maybe(whole), generate=maybe(word),
    mix=maybe(each(each(of_kind("no share or lengths", str, int, float), 2, 2))),
    text=NAMED_FILE, texts=NAMED_FILE, laws=NAMED_FILE, number_type=word, without=each(word), versions=table_of(word),
    stated=entries(like=word, lengths=each(number, 2, 2), uncovered=maybe(each(word))),
    phases=table_of(number), wall_s=number, busy=entries(calibration=word, timing=word),
    search=entries(nodes=number, classes=number, gap=number, cut=each(word)),
    error=number, memory=maybe(number),
    goals=each(entries(goal=word, value=number, kept=of_kind("neither true nor false", bool, type(None)))),
    generated=maybe(each(entries(context=whole, sequences=number, first_predicted_s=number,
                                 token_predicted_s=number, first_measured_s=maybe(number),
                                 token_measured_s=maybe(number), cache_bytes=number))),
    terms=maybe(entries(steps=number, of=number, share=number, measured=flag, kinds=each(word))),
    operators=maybe(entries(before=OPERATORS, after=OPERATORS)),
    bound=entries(seconds=maybe(number), gap=maybe(number)),
    prediction=entries(programs=number, median=number, worst=number, worst_program=word),
    baseline=entries(**POINT), fused=entries(**POINT),
    front=each(entries(**POINT, stated=STATED, routing=ROUTED, methods=table_of(of_kind("no method", str, int))),
               MAX_PROGRAMS, 1),
    chosen=whole,
    steps=each(entries(name=word, program=maybe(word), measured_s=maybe(number),
                       quartiles_s=maybe(each(number, 2, 2)), saved_s=maybe(number), below_noise=flag)),
    saved_s=number, saved=each(entries(laws=each(word), seconds=number)),
    verified=entries(laws=number, programs=number, rows=number), dropped=each(entries(**POINT)))


def read_kept(directory: Path) -> dict[str, Any]:
    """The figures of a run. Raises InputError, which names the file and the entry, for one that is not there, is cut
    short, of another version, or no run would have written."""
    file = directory / REPORT if directory.is_dir() else directory
    return check_report(parse_json(read_bytes(file, MOST_BYTES), shown(file)), shown(file))


def check_report(found: object, where: str) -> dict[str, Any]:
    """The figures, where all of them can be shown. Raises InputError."""
    try:
        if isinstance(found, dict): found = {"operators": None, **found}        # which 0.17.0 and before leave out
        REPORTED(found, "")
        assert isinstance(found, dict)
        if not 0 <= found["chosen"] < len(found["front"]):
            raise Misfit(f"chosen is {found['chosen']}: the front has {len(found['front'])} programs")
    except Misfit as error: raise InputError(f"{where}: {error}{tell_version(found)}: make the program anew") from None
    return found


def tell_version(found: object) -> str:
    """Whose report it is, where another version wrote it."""
    versions = found.get("versions") if isinstance(found, Mapping) else None
    wrote = versions.get(PACKAGES[0]) if isinstance(versions, Mapping) else None
    own = installed(PACKAGES[0])
    return f" (opmatrix {wrote!s:.20} wrote it, this is {own})" if wrote is not None and wrote != own else ""
