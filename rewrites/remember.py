"""What was proposed and measured for a program is kept in the user's cache: it depends on the program, the rows, the limits
and the prices alone, and these name the file."""
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from formats.cache import cache_directory
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.spectra import Limits
from rewrites.lower import Method
from rewrites.price import Prices

VERSION = 2                                                 # of what is kept and how it is found
Measured = dict[str, list[Method]]                          # name of a constant to its methods with their errors


def place(program: Program, batches: Sequence[Batch], limits: Limits, prices: Prices) -> Path:
    """The file of these inputs."""
    digest = hashlib.blake2b(program.hash.encode(), digest_size=12)
    for batch in batches:
        digest.update(np.ascontiguousarray(batch.tokens).tobytes())
        digest.update(np.ascontiguousarray(batch.starts).tobytes())
    priced = [getattr(prices.machine, name, None) for name in ("coefficients", "one_row", "far", "corrections")]
    digest.update(repr((VERSION, limits, prices.rows, prices.pairs, *priced)).encode())
    return cache_directory() / "errors" / f"{digest.hexdigest()}.json"


def recall(file: Path) -> Measured | None:
    """What was kept there; nothing where there is no such file or it cannot be read as one."""
    try:
        kept = json.loads(file.read_text())
        return {name: [Method(form, settings(options), fit, float(error)) for form, options, fit, error, *_ in rows]
                for name, rows in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def keep(file: Path, measured: Measured) -> None:
    """Written whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({name: [list(method) for method in methods] for name, methods in measured.items()}))
    fresh.replace(file)


def settings(options: Any) -> tuple[tuple[str, Any], ...]:
    """Options as a method holds them: JSON knows no tuples."""
    return tuple((str(name), tuple(value) if isinstance(value, list) else value) for name, value in options)
