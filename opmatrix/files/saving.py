"""Programs written to disk: a directory of JSON and safetensors that appears whole or not at all.
opmatrix.files.loading reads it."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from formats.core.errors import InputError
from formats.disk.cache import HOUR
from formats.disk.files import fill, read_json, reason, shown
from formats.disk.holdings import list_entries, removed
from formats.disk.locks import fcntl, wait_for_lock
from opmatrix.algebra.batch.signature import FLOAT
from opmatrix.algebra.custom.custom_names import list_own_names, refuse_collisions
from opmatrix.algebra.data import Numeric
from opmatrix.files.loading import (
    APART,
    FILES_ABOVE,
    FRONT,
    HALF_VERSION,
    KIND,
    NAMED_VERSION,
    OWN_VERSION,
    POINT_VERSION,
    PROGRAM,
    SHARDS,
    SHARED,
    VERSION,
    WEIGHTS,
)
from opmatrix.files.mapped import GAP, pieces, write_tensors
from opmatrix.files.placing import recover, replace_directory, twin
from opmatrix.runtime.program import Program

FILES = (PROGRAM, WEIGHTS, *SHARDS, *(f"{name}.json" for name in APART))  # the files of a program
DERIVATION, REPORT = "derivation.txt", "report.json"  # `opmatrix optimize` writes them, and FRONT, beside FILES
OURS = (*FILES, DERIVATION, REPORT)
TRIAL_FILE = "trial"  # a file to test if the disk can be written
PART = re.compile(r"\.[0-9a-f]{8}\.part")  # the name of a fresh directory
PART_NAMES = {*OURS, FRONT, TRIAL_FILE}  # entries that a fresh directory may hold
ArrayKey = tuple[str, str, bytes]  # an array's name, number type and shape, sums of its pieces


def save(program: Program, directory: str | Path) -> None:
    """Write the program's directory. It appears at once, complete. A program that was there is replaced; other entries
    of its directory stay. Raises InputError if another thing is there, or it cannot be written."""
    with replacing_program(directory) as fresh:
        write_program(program, fresh)
    program.lies_in(directory, program.laws)


@contextmanager
def replacing_program(directory: str | Path) -> Generator[Path]:
    """Give a fresh directory to write a program into, and its front. When the block ends it takes its place at once;
    entries that were there and belong to no program stay. If the block raises, or is interrupted, the old directory
    stays. Raises InputError."""
    target = vacant(directory)
    with fresh_directory(target, directory) as fresh:
        yield fresh
        refuse_strays(target, directory, front=(fresh / FRONT).exists())
        if not (fresh / FRONT).exists():
            settle_front(target)
        for file in fresh.rglob("*"):
            if file.is_file():
                flush(file)
        replace_directory(fresh, target, FILES)


def attempt(directory: str | Path) -> None:
    """Raise InputError if a program with its front could not be placed, found out by a trial that is cleared away."""
    target = vacant(directory)
    refuse_strays(target, directory, front=True)
    with fresh_directory(target, directory) as fresh:
        (fresh / target.name).mkdir()  # the name may be too long
        with (fresh / TRIAL_FILE).open("xb") as out:
            fill(out)


@contextmanager
def fresh_directory(target: Path, named: str | Path) -> Generator[Path]:
    """Give a fresh directory beside the target, made with its parents; parents that are not needed in the end are
    removed. Errors of the system become an InputError."""
    fresh = target.parent / f".{uuid4().hex[:8]}.part"
    new_parents = [parent for parent in target.parents if not parent.exists()]
    clear_killed(target.parent)
    try:
        fresh.mkdir(parents=True)
        with held_open(fresh):
            yield fresh
    except OSError as error:
        raise InputError(f"{shown(named)}: not written: {reason(error)}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        with suppress(OSError):  # a parent that holds something stays
            for parent in new_parents:
                parent.rmdir()


@contextmanager
def held_open(directory: Path) -> Generator[None]:
    """Lock a directory as one that a process uses, while inside. Raises OSError."""
    if fcntl is None:
        yield
        return
    number = os.open(directory, os.O_RDONLY)
    try:
        wait_for_lock(number, 0.0, shared=True)
        yield
    finally:
        os.close(number)


def clear_killed(directory: Path) -> None:
    """Remove directories of unfinished programs left by processes that were killed an hour ago or longer."""
    removed(
        entry.path for entry in list_entries(directory, PART) if time.time() - entry.used > HOUR and is_part(entry.path)
    )


def is_part(path: Path) -> bool:
    """True if a directory holds at most a program that is being written, or tried."""
    with suppress(OSError):
        return path.is_dir() and all(child.name in PART_NAMES or not any(child.iterdir()) for child in path.iterdir())
    return False


# ---- replaceable directories


def vacant(directory: str | Path) -> Path:
    """Return the absolute path of a place where a program may be saved: no file is there, an empty directory, or a
    program. Raises InputError for anything else."""
    named, words = Path(directory), shown(directory)
    try:
        if named.is_symlink():
            raise InputError(f"{words}: it is a link: name the directory itself")
        target, here = named.resolve(), Path.cwd()
        recover(target)
        if target in (here, *here.parents):
            raise InputError(f"{words}: it is or holds the working directory: name another one")
        taken = exists(target)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{words}: not writable: {reason(error)}") from error
    if taken and not replaceable(target):
        raise InputError(f"{words}: it exists and is no opmatrix program: choose another directory or remove it")
    return target


def settle_front(target: Path) -> None:
    """Link the files that points of a front share with the program into the front, before the program is replaced and
    its front stays. Raises OSError."""
    front = target / FRONT
    if front.is_symlink() or not front.is_dir():
        return
    for name in FILES:
        if name != PROGRAM and regular(target / name) and not exists(front / name):
            twin(target / name, front / name)


def exists(path: Path) -> bool:
    """True if there is a file or directory. Raises OSError if that cannot be known."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def replaceable(target: Path) -> bool:
    """True for an empty directory, or one whose program.json is of a program of ours."""
    if not target.is_dir():
        return False
    try:
        return not any(target.iterdir()) or read_json(target / PROGRAM)["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError):
        return False


def refuse_strays(target: Path, named: str | Path, front: bool) -> None:
    """Raise InputError for the first file or directory that replacing a program, and its front, would delete and that
    is not ours."""
    try:
        stray = next(strays(target, front), None)
    except OSError as error:
        raise InputError(f"{shown(named)}: not writable: {reason(error)}") from error
    if stray:
        raise InputError(
            f"{shown(named)}: {shown(stray.relative_to(target))} is no part of a program and would be "
            "lost: move it elsewhere"
        )


def strays(target: Path, front: bool) -> Iterator[Path]:
    """Yield paths that have the name of a file of ours and are no file, and all entries of the front but programs in
    numbered directories."""
    yield from (path for name in OURS if exists(path := target / name) and not regular(path))
    if not front or not exists(place := target / FRONT):
        return
    if place.is_symlink() or not place.is_dir():
        yield place
        return
    for entry in sorted(place.iterdir()):
        if entry.name in FILES and regular(entry):
            continue  # a file that points share
        if entry.is_symlink() or not entry.name.isdecimal() or not replaceable(entry):
            yield entry
        else:
            yield from (path for path in sorted(entry.iterdir()) if path.name not in OURS or not regular(path))


def regular(path: Path) -> bool:
    """True for a file that is no symbolic link."""
    return path.is_file() and not path.is_symlink()


# ---- writing files


def write_front(programs: Mapping[Path, Program]) -> None:
    """Write the files of a chosen program, the first, into its directory, and of points of its front into theirs, each
    a numbered directory within the front's. Files that a point shares with others are written once: with the chosen
    program, which is complete without its front, or else in the front's directory."""
    (target, chosen), *points = programs.items()
    shards = gather_shards(programs)
    for file, shard in shards.items():
        home = target if chosen.hash in shard.owners else target / FRONT
        home.mkdir(parents=True, exist_ok=True)
        shard.write(home / file)
    write_program(chosen, target, held_shards(chosen, shards))
    for directory, program in points:
        point_shards = held_shards(program, shards)
        alike = {
            f"{name}.json" for name in APART if name in program.meta and program.meta[name] == chosen.meta.get(name)
        }
        if program.hash == chosen.hash:
            alike.add(WEIGHTS)
        write_program(program, directory, point_shards, alike | point_shards.keys())


def held_shards(program: Program, shards: Mapping[str, "SharedArrays"]) -> dict[str, "SharedArrays"]:
    """Return the shards whose arrays a program has."""
    return {file: shard for file, shard in shards.items() if program.hash in shard.owners}


@dataclass
class SharedArrays:
    """Arrays, by name, that the same programs have; `owners` are the hashes of these programs."""

    owners: tuple[str, ...]
    arrays: dict[str, Numeric] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write a file of these arrays. Its padding has a name that is in no other file of a program."""
        names = sorted(self.arrays)
        gap = f"{GAP}.{hashlib.sha256(names[0].encode()).hexdigest()[:16]}."
        write_tensors({name: self.arrays[name] for name in names}, file, gap)


def gather_shards(programs: Mapping[Path, Program]) -> dict[str, SharedArrays]:
    """Return arrays that the same several programs have, by the names of their files: first those of the first program,
    then the largest. If there are more groups than names, the rest stay with each program."""
    owners, arrays, sums = dict[ArrayKey, set[str]](), dict[ArrayKey, Numeric](), Sums()
    for program in programs.values():
        held = dict(program.arrays())
        for name, key in keyed(program, sums).items():
            owners.setdefault(key, set()).add(program.hash)
            arrays[key] = held[name]
    shards = dict[tuple[str, ...], SharedArrays]()
    for key, hashes in owners.items():
        if len(hashes) == 1:
            continue
        owned = tuple(sorted(hashes))
        shards.setdefault(owned, SharedArrays(owned)).arrays[key[0]] = arrays[key]
    first = next(iter(programs.values())).hash

    def rank(shard: SharedArrays) -> tuple[bool, int]:
        """Return a sort key: arrays of the first program come first, then the largest."""
        return first not in shard.owners, -sum(array.nbytes for array in shard.arrays.values())

    return dict(zip(SHARDS, sorted(shards.values(), key=rank), strict=False))


class Sums:
    """The sha256 of the pieces of arrays, computed once for each array, as programs of a front share most of them. The
    arrays must not change meanwhile."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Numeric, list[bytes]]] = {}

    def __call__(self, array: Numeric) -> list[bytes]:
        """Return the sums of an array. The array is kept here, so its id stays unique."""
        if id(array) not in self.found:
            self.found[id(array)] = array, [*pieces(array)]
        return self.found[id(array)][1]


def keyed(program: Program, sums: Sums) -> dict[str, ArrayKey]:
    """Return the key that identifies each array of a program: name, number type and shape, and the sha256 of its
    pieces."""
    return {name: (name, f"{array.dtype} {array.shape}", b"".join(sums(array))) for name, array in program.arrays()}


def write_program(
    program: Program,
    directory: Path,
    shards: Mapping[str, SharedArrays] = MappingProxyType({}),
    above: Set[str] = frozenset(),
) -> None:
    """Write the files of a program into a directory, which is made if it is absent. `shards`: arrays that are in files
    of their own, which exist already. `above`: files that are not written, as a point of a front shares them with
    others."""
    custom = name_own(program)
    directory.mkdir(parents=True, exist_ok=True)
    described = program.described()
    meta = described["meta"]
    head = {"kind": KIND, "version": VERSION, "hash": program.hash}
    if shards:
        head |= {"version": SHARED, "shared": len(shards)}
    if not program.plain:
        head["version"] = HALF_VERSION if any(port.number != FLOAT for port in program.inputs) else NAMED_VERSION
    if custom:
        head |= {"version": OWN_VERSION, "own": custom}
    if above:
        head |= {"version": POINT_VERSION, "shared": [*map(SHARDS.index, shards)], FILES_ABOVE: sorted(above)}
    described["meta"] = {k: v for k, v in meta.items() if k not in APART}
    (directory / PROGRAM).write_text(
        format_json(head | described | {"signature": program.signature.described()}), "utf-8"
    )
    elsewhere = {name for shard in shards.values() for name in shard.arrays}
    if WEIGHTS not in above:
        own_arrays = {name: array for name, array in program.arrays() if name not in elsewhere}
        write_tensors(own_arrays, directory / WEIGHTS)
    for name in APART:
        if f"{name}.json" not in above and (entry := program.meta.get(name)) is not None:
            text = entry if name == "tokenizer" else json.dumps(entry, indent=1)
            (directory / f"{name}.json").write_text(text, "utf-8")


def name_own(program: Program) -> list[str]:
    """List the names of the custom functions, monoids and patterns of a program. Raises InputError for a custom name
    that is one of ours, and for a kind that no file may name."""
    terms = [(number, step) for number, step in enumerate(program.steps) if "term" in step.attributes]
    if terms:
        from opmatrix.runtime.codegen.custom_things import find_unlasting  # imported here: most programs need it not

        for number, step in terms:
            if strange := find_unlasting(step.attributes):
                raise InputError(
                    f"not saved: steps[{number}] computes {strange}, which only rewriting and training "
                    "create and a file cannot hold: express it by operators of opmatrix"
                )
    called = [*dict.fromkeys(name for step in program.steps for name in list_own_names(step.attributes))]
    if called:
        from opmatrix.runtime.codegen.custom_things import our_names  # imported here: most programs need it not

        refuse_collisions(called, our_names())
    return called


def format_json(value: object, depth: int = 0) -> str:
    """Return JSON with a line for each entry of its first two levels: for each step, each constant."""
    if depth == 2 or not value or not isinstance(value, dict | list):
        return json.dumps(value)
    line = "\n" + " " * (depth + 1)
    if isinstance(value, list):
        return "[" + line + f",{line}".join(format_json(entry, depth + 1) for entry in value) + line[:-1] + "]"
    entries = (f"{json.dumps(name)}: {format_json(v, depth + 1)}" for name, v in value.items())
    return "{" + line + f",{line}".join(entries) + line[:-1] + "}"


def flush(file: Path) -> None:
    """Wait until a file is on the disk."""
    with file.open("r+b") as opened:
        os.fsync(opened.fileno())
