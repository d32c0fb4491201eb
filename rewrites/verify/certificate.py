"""The certificate of a program: what was verified, on which inputs, within which bounds, and by what. JSON that is
stored with the program, and enough to do it again (rewrites.metrics.recheck)."""
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.certified import LENGTHS_FIELD
from opmatrix.runtime.program import Program
from rewrites.verify import Errors, VerificationError
from rewrites.verify.lengths import Lengths
from rewrites.verify.programs import EQUAL, ROUNDING
from rewrites.verify.routed import Reference

PACKAGES = "opmatrix", "numpy", "scipy", "sympy", "numba", "egglog"
Certificate = dict[str, Any]


def certificate(program: Program, results: Mapping[str, object], batches: Sequence[Batch], *, seed: int = 0,
                machine: str = "", lengths: Lengths = ()) -> Certificate:
    """What `verify_laws`, `verify_graphs`, `verify_exact` or `verify_approximate` found, by name, for this program and
    these batches, and on batches of these lengths; `machine` names the one it was found on."""
    return {"program": program.hash, "verified": as_json_value(results), "own": measure_rounding(program, batches),
            "inputs": [describe_batch(batch) for batch in batches], LENGTHS_FIELD: [[*each] for each in lengths],
            "bounds": {"float64": EQUAL, "rounding": ROUNDING}, "seed": seed, "versions": versions(),
            "machine": machine or platform.processor() or platform.machine()}


def certify(program: Program, results: Mapping[str, object], batches: Sequence[Batch], *, seed: int = 0,
              machine: str = "", lengths: Lengths = ()) -> Program:
    """The program with its certificate."""
    return program.replace(certificate=certificate(program, results, batches, seed=seed, machine=machine,
                                                   lengths=lengths))


def measure_rounding(program: Program, batches: Sequence[Batch]) -> float:
    """How far the program is from the float64 reading of its own numbers: what all its kernels round together."""
    found, wanted = [], []
    for batch in batches:
        rows, exact = Reference(partial(program.exact, batch)).along(partial(program.run, batch))
        found.append(rows)
        wanted.append(exact)
    return Errors.of(found, wanted).relative


def describe_batch(batch: Batch) -> dict[str, object]:
    """A batch's sentences as JSON, with the hash of their numbers. Relations and matrices of its own are left out: they
    may be as large as a graph is."""
    rows = {"tokens": [part.tokens.tolist() for part in batch], "kinds": [part.kinds.tolist() for part in batch]}
    return {"hash": hash_rows(rows), "sentences": len(batch), "rows": batch.rows, **rows}


def restored(kept: Mapping[str, Any]) -> Batch:
    """A batch of the sentences in a certificate. Raises VerificationError where they are not those that were hashed."""
    check_hash(kept)
    return Batch(kept["tokens"], kept["kinds"])


def check_hash(kept: Mapping[str, Any]) -> None:
    """Raises VerificationError where sentences in a certificate are not those that were hashed."""
    now = hash_rows({name: kept[name] for name in ("tokens", "kinds")})
    if now != kept["hash"]:
        raise VerificationError(3, "certificate", "its inputs were changed", hash=kept["hash"], now=now)


def hash_rows(rows: Mapping[str, object]) -> str:
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """The versions of Python and of what computes here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try: found[package] = version(package)
        except PackageNotFoundError: pass                   # run from its sources
    return found


def as_json_value(thing: object) -> object:
    """As JSON has it, which has no infinite numbers: what is so far off has none."""
    if isinstance(thing, Mapping): return {str(name): as_json_value(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple): return [as_json_value(value) for value in thing]
    plain = thing.item() if isinstance(thing, np.generic) else thing
    return None if isinstance(plain, float) and not isfinite(plain) else plain
