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


def check_certificate(found: Any, program: str) -> None:
    """Raise ValueError, which names the field, unless this is a certificate of the program with this hash."""
    whole = isinstance(found, dict)
    fields(
        {name: value for name, value in found.items() if name != LENGTHS_FIELD} if whole else found,
        CERTIFICATE_FIELDS,
        "it",
    )
    if found["program"] != program:
        raise ValueError(f"program is {found['program']!r:.80}, but it is stored beside program {program}")
    if not (isfinite(found["own"]) and found["own"] >= 0):
        raise ValueError(f"own is {found['own']!r}")
    for name, kind in (("bounds", (int, float)), ("versions", str)):
        if any(type(value) is bool or not isinstance(value, kind) for value in found[name].values()):
            raise ValueError(f"{name} are {found[name]!r:.80}")
    for at, entry in enumerate(found["inputs"]):
        fields(entry, INPUT, f"inputs[{at}]")
        for name in ("tokens", "kinds"):
            if not all(isinstance(row, list) and row and {int}.issuperset(map(type, row)) for row in entry[name]):
                raise ValueError(f"inputs[{at}]: {name} are not rows of whole numbers")
        if list(map(len, entry["tokens"])) != list(map(len, entry["kinds"])):
            raise ValueError(f"inputs[{at}]: tokens and kinds differ")
    lengths = found.get(LENGTHS_FIELD, [])
    if not (
        isinstance(lengths, list)
        and all(
            isinstance(batch, list) and batch and {int}.issuperset(map(type, batch)) and min(batch) > 0
            for batch in lengths
        )
    ):
        raise ValueError(f"{LENGTHS_FIELD} are {lengths!r:.80}, not those of batches' sentences")
    rows = sum(len(row) for entry in found["inputs"] for row in entry["tokens"]) + sum(map(sum, lengths))
    if rows > MAX_INPUT_ROWS:
        raise ValueError(f"its inputs have {rows:,} rows, more than the {MAX_INPUT_ROWS:,} that are allowed")


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
