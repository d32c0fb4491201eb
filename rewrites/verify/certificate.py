"""The certificate of a program: the checks that it passed, their inputs, bounds and versions. It is JSON that is
stored with the program, and enough to repeat the verification (rewrites.metrics.recheck)."""

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


def certificate(
    program: Program,
    results: Mapping[str, object],
    batches: Sequence[Batch],
    *,
    seed: int = 0,
    machine: str = "",
    lengths: Lengths = (),
) -> Certificate:
    """Return the certificate of a program: the `results` of `verify_laws`, `verify_graphs`, `verify_exact` or
    `verify_approximate` by name, on these batches and on batches of these lengths. `machine` names the machine they
    were measured on."""
    return {
        "program": program.hash,
        "verified": as_json_value(results),
        "own": measure_rounding(program, batches),
        "inputs": [describe_batch(batch) for batch in batches],
        LENGTHS_FIELD: [[*sentences] for sentences in lengths],
        "bounds": {"float64": EQUAL, "rounding": ROUNDING},
        "seed": seed,
        "versions": versions(),
        "machine": machine or platform.processor() or platform.machine(),
    }


def certify(
    program: Program,
    results: Mapping[str, object],
    batches: Sequence[Batch],
    *,
    seed: int = 0,
    machine: str = "",
    lengths: Lengths = (),
) -> Program:
    """Return the program with its certificate."""
    return program.replace(
        certificate=certificate(program, results, batches, seed=seed, machine=machine, lengths=lengths)
    )


def measure_rounding(program: Program, batches: Sequence[Batch]) -> float:
    """Return the relative error of a program against the float64 reading of its own numbers: the rounding of all its
    kernels together."""
    outputs, wanted = [], []
    for batch in batches:
        rows, exact = Reference(partial(program.exact, batch)).along(partial(program.run, batch))
        outputs.append(rows)
        wanted.append(exact)
    return Errors.of(outputs, wanted).relative


def describe_batch(batch: Batch) -> dict[str, object]:
    """Return a batch's sentences as JSON, with the hash of their numbers. Relations and input matrices of the batch
    are left out: they may be as large as a graph."""
    rows = {"tokens": [part.tokens.tolist() for part in batch], "kinds": [part.kinds.tolist() for part in batch]}
    return {"hash": hash_rows(rows), "sentences": len(batch), "rows": batch.rows, **rows}


def restored(kept: Mapping[str, Any]) -> Batch:
    """Return a batch of the sentences in a certificate. Raises VerificationError if their hash differs from the stored
    one."""
    check_hash(kept)
    return Batch(kept["tokens"], kept["kinds"])


def check_hash(kept: Mapping[str, Any]) -> None:
    """Raise VerificationError if the hash of the sentences in a certificate differs from the stored one."""
    now = hash_rows({name: kept[name] for name in ("tokens", "kinds")})
    if now != kept["hash"]:
        raise VerificationError(3, "certificate", "its inputs were changed", hash=kept["hash"], now=now)


def hash_rows(rows: Mapping[str, object]) -> str:
    """Return the digest of rows as JSON with sorted keys."""
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute here."""
    by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            pass  # opmatrix is run from its sources
    return by_package


def as_json_value(thing: object) -> object:
    """Return a value as JSON can hold it: numpy numbers become plain, and infinite numbers and NaN become None."""
    if isinstance(thing, Mapping):
        return {str(name): as_json_value(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [as_json_value(value) for value in thing]
    plain = thing.item() if isinstance(thing, np.generic) else thing
    return None if isinstance(plain, float) and not isfinite(plain) else plain
