"""The form of a certificate: the entries of `certificate.json` beside a program. The program's hash does not cover this
file, as the file holds that hash; its statements are checked by `opmatrix verify`.

`lengths` are the lengths of the sentences of every batch that the program was verified on besides its inputs; such
batches are drawn from the tokens of the inputs."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

MAX_INPUT_ROWS = 1 << 16  # rows of all its inputs, which are run again
CERTIFICATE_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "program": str,
    "verified": dict,
    "own": (int, float),
    "inputs": list,
    "bounds": dict,
    "seed": int,
    "versions": dict,
    "machine": str,
}
LENGTHS_FIELD = "lengths"  # an entry that older certificates lack
INPUT: Mapping[str, type] = {"hash": str, "sentences": int, "rows": int, "tokens": list, "kinds": list}


def check_certificate(certificate: Any, program: str) -> None:
    """Raise ValueError, which names the field, unless this is a certificate of the program with this hash."""
    fields(without_lengths(certificate), CERTIFICATE_FIELDS, "it")
    if certificate["program"] != program:
        raise ValueError(f"program is {certificate['program']!r:.80}, but it is stored beside program {program}")
    if not (isfinite(certificate["own"]) and certificate["own"] >= 0):
        raise ValueError(f"own is {certificate['own']!r}")
    check_entry_types(certificate["bounds"], (int, float), "bounds")
    check_entry_types(certificate["versions"], str, "versions")
    for at, entry in enumerate(certificate["inputs"]):
        check_certified_input(entry, f"inputs[{at}]")
    lengths = certificate.get(LENGTHS_FIELD, [])
    check_sentence_lengths(lengths)
    rows = sum(len(row) for entry in certificate["inputs"] for row in entry["tokens"]) + sum(map(sum, lengths))
    if rows > MAX_INPUT_ROWS:
        raise ValueError(f"its inputs have {rows:,} rows, more than the {MAX_INPUT_ROWS:,} that are allowed")


def without_lengths(certificate: object) -> object:
    """Return the entries that every certificate has; anything but an object as it is."""
    if not isinstance(certificate, dict):
        return certificate
    return {name: value for name, value in certificate.items() if name != LENGTHS_FIELD}


def check_entry_types(entries: Mapping[str, object], kind: type | tuple[type, ...], where: str) -> None:
    """Raise ValueError unless all values of an object are of this type; True and False are no numbers."""
    for value in entries.values():
        if type(value) is bool or not isinstance(value, kind):
            raise ValueError(f"{where} are {entries!r:.80}")


def check_certified_input(entry: Any, where: str) -> None:
    """Raise ValueError unless this is the entry of an input, with a kind for each token."""
    fields(entry, INPUT, where)
    for name in ("tokens", "kinds"):
        if not all(map(is_whole_numbers, entry[name])):
            raise ValueError(f"{where}: {name} are not rows of whole numbers")
    if list(map(len, entry["tokens"])) != list(map(len, entry["kinds"])):
        raise ValueError(f"{where}: tokens and kinds differ")


def check_sentence_lengths(lengths: object) -> None:
    """Raise ValueError unless these are lengths of the sentences of batches."""
    if isinstance(lengths, list) and all(is_whole_numbers(batch) and min(batch) > 0 for batch in lengths):
        return
    raise ValueError(f"{LENGTHS_FIELD} are {lengths!r:.80}, not those of batches' sentences")


def is_whole_numbers(row: object) -> bool:
    """True if this is a list of one whole number or more."""
    return isinstance(row, list) and bool(row) and {int}.issuperset(map(type, row))


def longest_seen(found: Mapping[str, Any]) -> int:
    """Return the tokens of the longest sentence that a program was verified on, from its certificate. Certificates
    without `lengths` give those of their inputs alone."""
    inputs = [[*map(len, entry["tokens"])] for entry in found.get("inputs", [])]
    return max((length for batch in (*found.get(LENGTHS_FIELD, []), *inputs) for length in batch), default=0)


def fields(found: object, kinds: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Check that this is an object of exactly these entries, of these types. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{where} is a {type(found).__name__}, not an object")
    if odd := sorted(found.keys() ^ kinds.keys(), key=str):
        raise ValueError(f"{where}: {odd[0]!r:.80} is missing or unknown")
    for name, kind in kinds.items():
        if type(found[name]) is bool or not isinstance(found[name], kind):
            raise ValueError(f"{where}: {name} is {found[name]!r:.80}")
