"""What was proposed and measured for a program is kept in the user's cache: it depends on the program, the rows, the
limits and the prices alone, and these name the file."""
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

ERRORS_VERSION = 9                                          # of what is kept and how it is found
Measured = dict[str, list[Method]]                          # name of a constant to its methods with their errors


def errors_file(program: Program, batches: Sequence[Batch], limits: Limits, prices: Prices | Mean) -> Path:
    """The file of these inputs."""
    digest = hashlib.blake2b(program.hash.encode(), digest_size=12)
    for batch in batches:
        for array in batch.arrays():
            digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    digest.update(repr((ERRORS_VERSION, limits)).encode())
    for share, each in prices.parts:
        digest.update(repr((share, each.extents, each.machine if is_dataclass(each.machine) else None)).encode())
    return cache.location() / "errors" / f"{digest.hexdigest()}.json"


def recall(file: Path, names: Iterable[str]) -> Measured | None:
    """The methods of these constants that were kept there; nothing where there is no such file, or it does not hold
    them all as `keep` writes them. What others could have written is not believed, and that is said."""
    try: kept = parse_json(cache.recall(file), str(file))
    except Distrusted as error: cache.say(f"measured again: {error}")
    except InputError: return None
    else:
        if isinstance(kept, dict) and all(isinstance(kept.get(name), list) for name in names):
            methods = {name: [method(row) for row in kept[name]] for name in names}
            if all(None not in each for each in methods.values()): return cast(Measured, methods)
    return None


def method(row: object) -> Method | None:
    """A method as `keep` writes it: a known format, options that it has, a way to fit, a squared error; None for
    anything else."""
    match row:
        case [str(name), list(options), "plain" | "wanda" | "whitened" as fit, int() | float() as error, *_]:
            right = name in FORMATS and type(error) is not bool and error >= 0 and all(map(option, options))
            if right and {key for key, _ in options} <= set(FORMATS[name].parameters):
                return Method(name, settings(options), fit, float(error))
    return None


def option(given: object) -> bool:
    """Whether this is a name and a number above 0, or several."""
    match given:
        case [str(), value]:
            return all((type(each) is int or type(each) is float) and each > 0
                       for each in (value if isinstance(value, list) else [value]))
    return False


def save_errors(file: Path, measured: Measured) -> None:
    """Kept whole or not at all; where it cannot be kept, that is said."""
    kept = {name: [list(method) for method in methods] for name, methods in measured.items()}
    try_put(file, json.dumps(kept).encode(), "measured errors")


def settings(options: Iterable[tuple[object, Hashable]]) -> tuple[tuple[str, Hashable], ...]:
    """Options as a method holds them: JSON knows no tuples."""
    return tuple((str(name), tuple(value) if isinstance(value, list) else value) for name, value in options)
