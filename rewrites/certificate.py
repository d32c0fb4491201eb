"""The certificate of a program: what was verified, on which inputs, within which bounds, and by what. JSON that is
stored with the program, and enough to do again what needs no model."""
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.term import Operator
from rewrites.verify import Errors, VerificationError, verify_approximate, verify_steps
from rewrites.verify.program import EQUAL, ROUNDING, oracle

PACKAGES = "opmatrix", "numpy", "scipy", "sympy", "numba", "egglog"
Certificate = dict[str, Any]


def certificate(program: Program, results: Mapping[str, Any], batches: Sequence[Batch], *, seed: int = 0,
                machine: str = "") -> Certificate:
    """What `verify_laws`, `verify_graphs`, `verify_exact` or `verify_approximate` found, by name, for this program and
    these batches; `machine` names the one it was found on."""
    return {"program": program.hash, "verified": plain(results), "own": own(program, batches),
            "inputs": [described(batch) for batch in batches], "bounds": {"float64": EQUAL, "rounding": ROUNDING},
            "seed": seed, "versions": versions(), "machine": machine or platform.processor() or platform.machine()}


def certified(program: Program, results: Mapping[str, Any], batches: Sequence[Batch], *, seed: int = 0,
              machine: str = "") -> Program:
    """The program with its certificate."""
    return program.replace(certificate=certificate(program, results, batches, seed=seed, machine=machine))


def check_certificate(program: Program, model: Operator | None = None) -> dict[str, Any]:
    """Does again what can be done: the program is the one that was verified, its inputs are whole, every step keeps its
    bound on them, and the whole rounds no more than it did; with the model, its errors are what they were. Raises
    VerificationError, which says what is not so; returns what was found, and the versions that have changed since."""
    kept = program.meta.get("certificate")
    if not kept:
        raise VerificationError(3, "certificate", "the program carries none: it was never verified")
    if kept["program"] != program.hash:
        raise VerificationError(3, "certificate", "it belongs to another program", certificate=kept["program"],
                                program=program.hash)
    batches = [restored(each) for each in kept["inputs"]]
    found: dict[str, Any] = {"steps": verify_steps(program, batches), "own": own(program, batches)}
    if not found["own"] <= ROUNDING * kept["own"]:
        raise VerificationError(3, "certificate", "the program rounds more than when it was verified", now=found["own"],
                                then=kept["own"], times=ROUNDING)
    if model is not None:
        found["errors"] = again(program, model, batches, kept["verified"])
    return found | {"changed": {name: [then, versions().get(name)] for name, then in kept["versions"].items()
                                if then != versions().get(name)}}


def again(program: Program, model: Operator, batches: Sequence[Batch], verified: Mapping[str, Any]) -> dict[str, Any]:
    """The errors against the model, which may be what they were up to rounding."""
    if (then := search(verified, "stated")) is not None:
        return verify_approximate(program, model, batches, then)
    allowed = ROUNDING * search(verified, "imported")["relative"]
    found = Errors.of([program.run(batch) for batch in batches], oracle(model, batches))
    if not found.relative <= allowed:
        raise VerificationError(3, "certificate", "the program is not the model", relative=found.relative,
                                allowed=allowed)
    return asdict(found)


def search(tree: Any, key: str) -> Any:
    """The first value of that name in nested mappings."""
    if not isinstance(tree, Mapping): return None
    if key in tree: return tree[key]
    return next((found for value in tree.values() if (found := search(value, key)) is not None), None)


def own(program: Program, batches: Sequence[Batch]) -> float:
    """How far the program is from the float64 reading of its own numbers: what all its kernels round together."""
    return Errors.of([program.run(batch) for batch in batches], [program.exact(batch) for batch in batches]).relative


def described(batch: Batch) -> dict[str, Any]:
    """A batch as JSON, with the hash of its numbers."""
    rows = {"tokens": [part.tokens.tolist() for part in batch], "kinds": [part.kinds.tolist() for part in batch]}
    return {"hash": digest(rows), "sentences": len(batch), "rows": batch.rows, **rows}


def restored(kept: Mapping[str, Any]) -> Batch:
    """A batch from a certificate. Raises VerificationError where its numbers are not those that were hashed."""
    rows = {name: kept[name] for name in ("tokens", "kinds")}
    if digest(rows) != kept["hash"]:
        raise VerificationError(3, "certificate", "its inputs were changed", hash=kept["hash"], now=digest(rows))
    return Batch(rows["tokens"], rows["kinds"])


def digest(rows: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Of Python and of what computes here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try: found[package] = version(package)
        except PackageNotFoundError: pass                   # run from its sources
    return found


def plain(thing: Any) -> Any:
    """As JSON has it."""
    if isinstance(thing, Mapping): return {str(name): plain(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple): return [plain(value) for value in thing]
    return thing.item() if isinstance(thing, np.generic) else thing
