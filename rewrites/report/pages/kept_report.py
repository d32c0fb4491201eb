"""report.json read back with mistrust: every entry that a page shows is checked first. No file that it names is
opened."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.disk.files import read_json, shown
from opmatrix.files.saving import REPORT
from rewrites.metrics.reported import MAX_PROGRAMS
from rewrites.report.installed import installed
from rewrites.report.results import PACKAGES, TITLES

EntryCheck = Callable[[object, str], None]  # a check of a value at a place; raises Misfit
MOST_ENTRIES, MOST_LETTERS, MOST_BYTES, MOST_NUMBER = 5000, 2_000_000, 64_000_000, 1e18


class Misfit(Exception):
    """An entry that no run would have written; the message names it."""


def of_kind(what: str, *kinds: type) -> EntryCheck:
    """Return a check that a value has one of these types; True is no number."""

    def check(value: object, where: str) -> None:
        """Raise Misfit for a value of another type, or a text that is too long."""
        if type(value) not in kinds or (isinstance(value, str) and len(value) > MOST_LETTERS):
            raise Misfit(f"{where} is {value!r:.60}: {what}")

    return check


def figure_of(what: str, *kinds: type) -> EntryCheck:
    """Return a check of a number that is not too large for a picture."""
    fits = of_kind(what, *kinds)

    def check(value: object, where: str) -> None:
        """Raise Misfit for a value of another type, or a number too large for a picture."""
        fits(value, where)
        if isinstance(value, int | float) and abs(value) > MOST_NUMBER:
            raise Misfit(f"{where} is {value:g}: {what} of a run")

    return check


word, truth = of_kind("no text", str), of_kind("neither true nor false", bool)
number, whole = figure_of("no number", int, float), figure_of("no whole number", int)


def amount(value: object, where: str) -> None:
    """Check a number of seconds, bytes or things, which is never below 0."""
    number(value, where)
    if isinstance(value, int | float) and value < 0:
        raise Misfit(f"{where} is {value:g}: below 0")


def maybe(check: EntryCheck) -> EntryCheck:
    """Return a check that lets None pass."""
    return lambda value, where: None if value is None else check(value, where)


def each_entry(check: EntryCheck, most: int = MOST_ENTRIES, least: int = 0) -> EntryCheck:
    """Return a check of a list, entry by entry."""

    def checked(value: object, where: str) -> None:
        """Raise Misfit for no list, too few or too many entries, or an entry that its check refuses."""
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Misfit(f"{where} is {value!r:.60}: no list of {least} to {most} entries")
        for at, entry in enumerate(value):
            check(entry, f"{where}[{at}]")

    return checked


def table_of(check: EntryCheck) -> EntryCheck:
    """Return a check of an object with any keys, value by value."""

    def checked(value: object, where: str) -> None:
        """Raise Misfit for no object, too many entries, or a value that its check refuses."""
        if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
            raise Misfit(f"{where} is {value!r:.60}: not an object")
        for key, entry in value.items():
            check(entry, f"{where}[{key!r:.40}]")

    return checked


def object_with(**wanted: EntryCheck) -> EntryCheck:
    """Return a check of an object that has these keys at least."""

    def checked(value: object, where: str) -> None:
        """Raise Misfit for no object, a missing key, or a value that its check refuses."""
        if not isinstance(value, dict):
            raise Misfit(f"{where or 'it'} is {value!r:.60}: not an object")
        for key, check in wanted.items():
            at = f"{where}.{key}" if where else key
            if key not in value:
                raise Misfit(f"it has no {at}")
            check(value[key], at)

    return checked


POINT = {
    "name": word,
    "predicted_s": amount,
    "measured_s": maybe(amount),
    "predicted_bytes": maybe(amount),
    "measured_bytes": maybe(amount),
    "stored_bytes": amount,
    "predicted_error": maybe(amount),
    "measured_error": maybe(amount),
    "stated_error": maybe(amount),
    "verified": truth,
    "near": each_entry(object_with(sentences=amount, relative=amount)),
    **dict.fromkeys(TITLES, maybe(number)),
}
STATED_ERRORS = object_with(
    sentences=amount, error=amount, sentence=maybe(amount), pairs=amount, cosine_mean=number, cosine_most=number
)
PRICED = object_with(what=word, predicted_s=amount, measured_s=amount)
ROUTED_ROWS = maybe(object_with(rows=amount, of=amount))
NAMED_FILE = maybe(object_with(file=word, sha256=word))
OPERATORS = each_entry(object_with(what=word, steps=whole, predicted_s=number, measured_s=maybe(number)))
SPECTRA = object_with(
    of=whole,
    weights=each_entry(
        object_with(
            name=word,
            layer=maybe(whole),
            kind=word,
            shape=each_entry(whole, 2, 2),
            largest=amount,
            stable=amount,
            effective=amount,
            tail_10=whole,
            tail_1=whole,
            knee=whole,
            curve=each_entry(number, 1000, 1),
        ),
        1000,
    ),
)
REPORTED = object_with(
    model=word,
    machine=word,
    workload=word,
    rows=whole,
    tokens=maybe(whole),
    generate=maybe(word),
    mix=maybe(each_entry(each_entry(of_kind("no share or lengths", str, int, float), 2, 2))),
    text=NAMED_FILE,
    texts=NAMED_FILE,
    laws=NAMED_FILE,
    number_type=word,
    without=each_entry(word),
    failed=each_entry(word),
    versions=table_of(word),
    stated=object_with(like=word, lengths=each_entry(number, 2, 2), uncovered=maybe(each_entry(word))),
    phases=table_of(amount),
    wall_s=amount,
    busy=object_with(calibration=word, timing=word),
    search=object_with(nodes=amount, classes=amount, gap=number, cut=each_entry(word)),
    error=amount,
    memory=maybe(amount),
    goals=each_entry(object_with(goal=word, value=number, kept=of_kind("neither true nor false", bool, type(None)))),
    generated=maybe(
        each_entry(
            object_with(
                context=whole,
                sequences=number,
                first_predicted_s=amount,
                token_predicted_s=amount,
                first_measured_s=maybe(amount),
                token_measured_s=maybe(amount),
                cache_bytes=amount,
            )
        )
    ),
    terms=maybe(
        object_with(
            steps=amount, of=amount, share=amount, measured=truth, kinds=each_entry(word), places=each_entry(word)
        )
    ),
    operators=maybe(object_with(before=OPERATORS, after=OPERATORS)),
    spectra=maybe(SPECTRA),
    misled=maybe(object_with(searched=PRICED, faster=PRICED, price=maybe(PRICED))),
    bound=object_with(seconds=maybe(amount), gap=maybe(number)),
    prediction=object_with(programs=amount, median=amount, worst=amount, worst_program=word),
    baseline=object_with(**POINT),
    fused=object_with(**POINT),
    front=each_entry(
        object_with(
            **POINT, stated=STATED_ERRORS, routing=ROUTED_ROWS, methods=table_of(of_kind("no method", str, int))
        ),
        MAX_PROGRAMS,
        1,
    ),
    chosen=whole,
    steps=each_entry(
        object_with(
            name=word,
            program=maybe(word),
            measured_s=maybe(amount),
            quartiles_s=maybe(each_entry(amount, 2, 2)),
            saved_s=maybe(number),
            below_noise=truth,
        )
    ),
    missed=each_entry(
        object_with(
            kind=word,
            weight=word,
            shape=each_entry(whole, 2, 2),
            method=word,
            rival=word,
            seconds=amount,
            multiplications=amount,
            bytes=amount,
            error=amount,
            allowed=amount,
            rows=maybe(whole),
        )
    ),
    saved_s=number,
    saved=each_entry(object_with(laws=each_entry(word), seconds=number)),
    verified=object_with(laws=amount, programs=amount, rows=amount),
    dropped=each_entry(object_with(**POINT)),
)


def read_kept(directory: Path) -> dict[str, Any]:
    """Return the figures of a run. Raises InputError, which names the file and the entry, for a file that is missing
    or truncated, of another version, or that no run would have written."""
    file = directory / REPORT if directory.is_dir() else directory
    return check_report(read_json(file, MOST_BYTES), shown(file))


def check_report(record: object, where: str) -> dict[str, Any]:
    """Return the figures if all of them can be shown. Raises InputError otherwise."""
    try:
        if isinstance(record, dict):  # entries that are absent in 0.20.0 and before
            record = {"operators": None, "spectra": None, "misled": None, "missed": [], "failed": [], **record}
            if isinstance(record.get("terms"), dict):
                record["terms"] = {"places": [], **record["terms"]}
        REPORTED(record, "")
        assert isinstance(record, dict)
        if not 0 <= record["chosen"] < len(record["front"]):
            raise Misfit(f"chosen is {record['chosen']}: the front has {len(record['front'])} programs")
        if record["bound"]["seconds"] is not None and record["bound"]["gap"] is None:
            raise Misfit("bound.gap is None, though bound.seconds was proved")
    except Misfit as error:
        raise InputError(f"{where}: {error}{tell_version(record)}: create the program again") from None
    return record


def tell_version(record: object) -> str:
    """Return the version that wrote a report, in words, if it is another one."""
    versions = record.get("versions") if isinstance(record, Mapping) else None
    wrote = versions.get(PACKAGES[0]) if isinstance(versions, Mapping) else None
    here = installed(PACKAGES[0])
    return f" (opmatrix {wrote!s:.20} wrote it, this is {here})" if wrote is not None and wrote != here else ""
