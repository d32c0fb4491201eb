"""Cache of the methods proposed and measured for a program, in the user's cache folder. They depend on the program, the
rows, the limits and the prices alone, and these name the file."""

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import cast

import numpy as np

from formats import FORMATS
from formats.core.errors import InputError
from formats.disk import cache
from formats.disk.cache import Distrusted
from formats.disk.files import parse_json
from formats.disk.holdings import try_put
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Program
from opmatrix.spectra import Limits
from rewrites.lowering.lower import Method
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices

ERRORS_VERSION = 11  # version of the file's contents and of the search
Measured = dict[str, list[Method]]  # constant -> its methods with their errors


def errors_file(
    program: Program, batches: Sequence[Batch], limits: Limits, prices: Prices | Mean, measure: str
) -> Path:
    """Return the cache file of these inputs."""
    digest = hashlib.blake2b(program.hash.encode(), digest_size=12)
    for batch in batches:
        for array in batch.arrays():
            digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    digest.update(repr((ERRORS_VERSION, limits, measure)).encode())
    for share, prices_of in prices.parts:
        digest.update(
            repr((share, prices_of.extents, prices_of.machine if is_dataclass(prices_of.machine) else None)).encode()
        )
    return cache.location() / "errors" / f"{digest.hexdigest()}.json"


def recall(file: Path, names: Iterable[str]) -> Measured | None:
    """Return the cached methods of these constants; None if there is no such file, or it does not hold all of them as
    `save_errors` writes them. A file that others could have written is not trusted, and a line says so."""
    try:
        rows = parse_json(cache.recall(file), str(file))
    except Distrusted as error:
        cache.say(f"measured again: {error}")
    except InputError:
        return None
    else:
        if isinstance(rows, dict) and all(isinstance(rows.get(name), list) for name in names):
            methods = {name: [method(row) for row in rows[name]] for name in names}
            if all(None not in found_methods for found_methods in methods.values()):
                return cast(Measured, methods)
    return None


def method(row: object) -> Method | None:
    """Return a method from its row in the file: a known format, options that it has, a fit, a squared error; None for
    anything else."""
    match row:
        case [str(name), list(options), "plain" | "wanda" | "whitened" as fit, int() | float() as error, *_]:
            right = name in FORMATS and type(error) is not bool and error >= 0 and all(map(option, options))
            if right and {key for key, _ in options} <= set(FORMATS[name].parameters):
                return Method(name, settings(options), fit, float(error))
    return None


def option(given: object) -> bool:
    """True if this is a pair of a name and a number above 0, or several."""
    match given:
        case [str(), value]:
            return all(
                (type(number) is int or type(number) is float) and number > 0
                for number in (value if isinstance(value, list) else [value])
            )
    return False


def save_errors(file: Path, measured: Measured) -> None:
    """Write the file completely or not at all; a line says so if it cannot be written."""
    rows = {name: [list(method) for method in methods] for name, methods in measured.items()}
    try_put(file, json.dumps(rows).encode(), "measured errors")


def settings(options: Iterable[tuple[object, Hashable]]) -> tuple[tuple[str, Hashable], ...]:
    """Return options as a method holds them: JSON has no tuples."""
    return tuple((str(name), tuple(value) if isinstance(value, list) else value) for name, value in options)
