"""The form of a certificate: what `certificate.json` beside a program may hold. The program's hash does not cover it,
as it holds that hash; what it says is checked by `opmatrix verify`.

`lengths` are those of the sentences of every batch that the program was looked at beside its inputs, and which are made
of their tokens."""
from collections.abc import Mapping
from math import isfinite
from typing import Any

MAX_INPUT_ROWS = 1 << 16                                    # rows of all its inputs: they are run again
CERTIFICATE_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "program": str, "verified": dict, "own": (int, float), "inputs": list, "bounds": dict, "seed": int,
    "versions": dict, "machine": str}
LENGTHS_FIELD = "lengths"                                         # an entry that certificates of before have not
INPUT: Mapping[str, type] = {"hash": str, "sentences": int, "rows": int, "tokens": list, "kinds": list}


def check_certificate(found: Any, program: str) -> None:
    """Raises ValueError, which names the field, where that is no certificate of the program with this hash."""
    whole = isinstance(found, dict)
    fields({name: each for name, each in found.items() if name != LENGTHS_FIELD} if whole else found,
           CERTIFICATE_FIELDS, "it")
    if found["program"] != program:
        raise ValueError(f"program is {found['program']!r:.80}, but it lies beside {program}")
    if not (isfinite(found["own"]) and found["own"] >= 0): raise ValueError(f"own is {found['own']!r}")
    for name, kind in (("bounds", (int, float)), ("versions", str)):
        if any(type(value) is bool or not isinstance(value, kind) for value in found[name].values()):
            raise ValueError(f"{name} are {found[name]!r:.80}")
    for at, each in enumerate(found["inputs"]):
        fields(each, INPUT, f"inputs[{at}]")
        for name in ("tokens", "kinds"):
            if not all(isinstance(row, list) and row and {int}.issuperset(map(type, row)) for row in each[name]):
                raise ValueError(f"inputs[{at}]: {name} are not rows of whole numbers")
        if list(map(len, each["tokens"])) != list(map(len, each["kinds"])):
            raise ValueError(f"inputs[{at}]: tokens and kinds differ")
    kept = found.get(LENGTHS_FIELD, [])
    if not (isinstance(kept, list) and all(isinstance(each, list) and each and {int}.issuperset(map(type, each))
                                           and min(each) > 0 for each in kept)):
        raise ValueError(f"{LENGTHS_FIELD} are {kept!r:.80}, not those of batches' sentences")
    rows = sum(len(row) for each in found["inputs"] for row in each["tokens"]) + sum(map(sum, kept))
    if rows > MAX_INPUT_ROWS: raise ValueError(f"its inputs have {rows:,} rows, and {MAX_INPUT_ROWS:,} are the most")


def longest_seen(found: Mapping[str, Any]) -> int:
    """Tokens of the longest sentence that a program was looked at, from its certificate: of one of before lengths were
    kept, of its inputs."""
    inputs = [[*map(len, each["tokens"])] for each in found.get("inputs", [])]
    return max((length for each in (*found.get(LENGTHS_FIELD, []), *inputs) for length in each), default=0)


def fields(found: object, kinds: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """An object of exactly these entries, of these types."""
    if not isinstance(found, dict): raise ValueError(f"{where} is a {type(found).__name__}, not an object")
    if odd := sorted(found.keys() ^ kinds.keys(), key=str):
        raise ValueError(f"{where}: {odd[0]!r:.80} is missing or unknown")
    for name, kind in kinds.items():
        if type(found[name]) is bool or not isinstance(found[name], kind):
            raise ValueError(f"{where}: {name} is {found[name]!r:.80}")
