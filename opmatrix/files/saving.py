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

FILES = (PROGRAM, WEIGHTS, *SHARDS, *(f"{name}.json" for name in APART))          # that make up a program
DERIVATION, REPORT = "derivation.txt", "report.json"        # what `opmatrix optimize` writes beside them, and FRONT
OURS = (*FILES, DERIVATION, REPORT)
TRIAL_FILE = "trial"                                        # a file that shows whether a disk takes any
PART = re.compile(r"\.[0-9a-f]{8}\.part")                   # a fresh directory,
PART_NAMES = {*OURS, FRONT, TRIAL_FILE}                     # and what it may hold
ArrayKey = tuple[str, str, bytes]                           # an array's name, number type and shape, sums of its pieces


def save(program: Program, directory: str | Path) -> None:
    """Write the program's directory. It appears at once, complete. A program that was there is replaced; what
    else lay in its directory is kept. InputError where something else is there, or it cannot be written."""
    with replacing_program(directory) as fresh: write_program(program, fresh)
    program.lies_in(directory, program.laws)


@contextmanager
def replacing_program(directory: str | Path) -> Generator[Path]:
    """A fresh directory to write a program into, and its front. When the block ends it takes its place at once; what
    lay there and was no program is kept. Where the block raises, or is interrupted, what was there stays. Raises
    InputError."""
    target = vacant(directory)
    with fresh_directory(target, directory) as fresh:
        yield fresh
        refuse_strays(target, directory, front=(fresh / FRONT).exists())
        if not (fresh / FRONT).exists(): settle_front(target)
        for file in fresh.rglob("*"):
            if file.is_file(): flush(file)
        replace_directory(fresh, target, FILES)


def attempt(directory: str | Path) -> None:
    """Raises InputError where a program with its front could not be placed, found out by a trial that is cleared
    away."""
    target = vacant(directory)
    refuse_strays(target, directory, front=True)
    with fresh_directory(target, directory) as fresh:
        (fresh / target.name).mkdir()                       # the name may be too long
        with (fresh / TRIAL_FILE).open("xb") as out: fill(out)


@contextmanager
def fresh_directory(target: Path, named: str | Path) -> Generator[Path]:
    """A fresh directory in that of the target, made with its parents; what of them is not needed in the end is removed.
    What the system refuses is an InputError."""
    fresh = target.parent / f".{uuid4().hex[:8]}.part"
    made = [parent for parent in target.parents if not parent.exists()]
    clear_killed(target.parent)
    try:
        fresh.mkdir(parents=True)
        with held_open(fresh): yield fresh
    except OSError as error: raise InputError(f"{shown(named)}: not written: {reason(error)}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        with suppress(OSError):                             # a parent that holds something stays
            for parent in made: parent.rmdir()


@contextmanager
def held_open(directory: Path) -> Generator[None]:
    """Inside, a directory is locked as one that a process uses. Raises OSError."""
    if fcntl is None:
        yield
        return
    number = os.open(directory, os.O_RDONLY)
    try:
        wait_for_lock(number, 0.0, shared=True)
        yield
    finally: os.close(number)


def clear_killed(directory: Path) -> None:
    """Remove what processes that were killed an hour ago or longer have left of programs beside their place."""
    removed(each.path for each in list_entries(directory, PART)
            if time.time() - each.used > HOUR and is_part(each.path))


def is_part(path: Path) -> bool:
    """Whether a directory holds no more than a program that is being written, or tried."""
    with suppress(OSError):
        return path.is_dir() and all(each.name in PART_NAMES or not any(each.iterdir()) for each in path.iterdir())
    return False


# ---- what may be replaced

def vacant(directory: str | Path) -> Path:
    """The absolute path of a place where a program may be saved: nothing is there, an empty directory, or a program.
    Raises InputError for anything else."""
    named, words = Path(directory), shown(directory)
    try:
        if named.is_symlink(): raise InputError(f"{words}: it is a link: name the directory itself")
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
    """Before a program is replaced and its front stays: what points of that have in common with the program lies with
    the front, too. Raises OSError."""
    front = target / FRONT
    if front.is_symlink() or not front.is_dir(): return
    for name in FILES:
        if name != PROGRAM and regular(target / name) and not exists(front / name): twin(target / name, front / name)


def exists(path: Path) -> bool:
    """Whether anything is there. Raises OSError where that cannot be known."""
    try: path.lstat()
    except FileNotFoundError: return False
    return True


def replaceable(target: Path) -> bool:
    """An empty directory, or one whose program.json says that it is ours."""
    if not target.is_dir(): return False
    try: return not any(target.iterdir()) or read_json(target / PROGRAM)["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError): return False


def refuse_strays(target: Path, named: str | Path, front: bool) -> None:
    """Raises InputError for the first thing that replacing a program, and its front, would delete and that is not
    ours."""
    try: stray = next(strays(target, front), None)
    except OSError as error: raise InputError(f"{shown(named)}: not writable: {reason(error)}") from error
    if stray:
        raise InputError(f"{shown(named)}: {shown(stray.relative_to(target))} is no part of a program and would be "
                         "lost: move it elsewhere")


def strays(target: Path, front: bool) -> Iterator[Path]:
    """What bears the name of a file of ours and is no file; of the front all but programs in numbered directories."""
    yield from (path for name in OURS if exists(path := target / name) and not regular(path))
    if not front or not exists(place := target / FRONT): return
    if place.is_symlink() or not place.is_dir(): yield place; return
    for each in sorted(place.iterdir()):
        if each.name in FILES and regular(each): continue    # what points have in common
        if each.is_symlink() or not each.name.isdecimal() or not replaceable(each): yield each
        else: yield from (path for path in sorted(each.iterdir()) if path.name not in OURS or not regular(path))


def regular(path: Path) -> bool: return path.is_file() and not path.is_symlink()


# ---- what is written

def write_front(programs: Mapping[Path, Program]) -> None:
    """The files of a chosen program, the first, into its directory, and of points of its front into theirs, each of a
    number within the front's directory. What a point has in common with others lies once: with the chosen program,
    which is whole without its front, or else in the front's directory."""
    (target, chosen), *points = programs.items()
    shards = gather_shards(programs)
    for file, shard in shards.items():
        home = target if chosen.hash in shard.owners else target / FRONT
        home.mkdir(parents=True, exist_ok=True)
        shard.write(home / file)
    write_program(chosen, target, held_shards(chosen, shards))
    for directory, program in points:
        own = held_shards(program, shards)
        alike = {f"{name}.json" for name in APART if name in program.meta
                 and program.meta[name] == chosen.meta.get(name)}
        if program.hash == chosen.hash: alike.add(WEIGHTS)
        write_program(program, directory, own, alike | own.keys())


def held_shards(program: Program, shards: Mapping[str, "SharedArrays"]) -> dict[str, "SharedArrays"]:
    """The shards whose arrays a program has."""
    return {file: shard for file, shard in shards.items() if program.hash in shard.owners}


@dataclass
class SharedArrays:
    """Arrays that the same programs have, by name; `owners` are the hashes of these programs."""
    owners: tuple[str, ...]
    arrays: dict[str, Numeric] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """A file of these arrays. What fills holes in it has a name that is in no other file of a program."""
        names = sorted(self.arrays)
        gap = f"{GAP}.{hashlib.sha256(names[0].encode()).hexdigest()[:16]}."
        write_tensors({name: self.arrays[name] for name in names}, file, gap)


def gather_shards(programs: Mapping[Path, Program]) -> dict[str, SharedArrays]:
    """Arrays that the same several programs have, by the names of their files: first those of the first program, then
    the largest; where there are more groups than names, the rest stay with each program."""
    owners, arrays, sums = dict[ArrayKey, set[str]](), dict[ArrayKey, Numeric](), Sums()
    for program in programs.values():
        held = dict(program.arrays())
        for name, key in keyed(program, sums).items():
            owners.setdefault(key, set()).add(program.hash)
            arrays[key] = held[name]
    shards = dict[tuple[str, ...], SharedArrays]()
    for key, hashes in owners.items():
        if len(hashes) == 1: continue
        owned = tuple(sorted(hashes))
        shards.setdefault(owned, SharedArrays(owned)).arrays[key[0]] = arrays[key]
    first = next(iter(programs.values())).hash
    def rank(shard: SharedArrays) -> tuple[bool, int]:
        return first not in shard.owners, -sum(array.nbytes for array in shard.arrays.values())
    return dict(zip(SHARDS, sorted(shards.values(), key=rank), strict=False))


class Sums:
    """The sha256 of the pieces of arrays, of each worked out once, as programs of a front share most: they must not
    change meanwhile."""

    def __init__(self) -> None: self.found: dict[int, tuple[Numeric, list[bytes]]] = {}

    def __call__(self, array: Numeric) -> list[bytes]:
        """An array that is kept here has a number of its own."""
        if id(array) not in self.found: self.found[id(array)] = array, [*pieces(array)]
        return self.found[id(array)][1]


def keyed(program: Program, sums: Sums) -> dict[str, ArrayKey]:
    """What tells each array of a program from others: name, number type and shape, and the sha256 of its pieces."""
    return {name: (name, f"{array.dtype} {array.shape}", b"".join(sums(array))) for name, array in program.arrays()}


def write_program(program: Program, directory: Path, shards: Mapping[str, SharedArrays] = MappingProxyType({}),
                  above: Set[str] = frozenset()) -> None:
    """The files of a program into a directory, which is made where it is not there. `shards`: arrays that lie in files
    of their own, which are there. `above`: the files that are not written, as they lie where a point of a front has
    what it has in common with others."""
    own = name_own(program)
    directory.mkdir(parents=True, exist_ok=True)
    described = program.described()
    meta = described["meta"]
    head = {"kind": KIND, "version": VERSION, "hash": program.hash}
    if shards: head |= {"version": SHARED, "shared": len(shards)}
    if not program.plain:
        head["version"] = HALF_VERSION if any(port.number != FLOAT for port in program.inputs) else NAMED_VERSION
    if own: head |= {"version": OWN_VERSION, "own": own}
    if above: head |= {"version": POINT_VERSION, "shared": [*map(SHARDS.index, shards)], FILES_ABOVE: sorted(above)}
    described["meta"] = {k: v for k, v in meta.items() if k not in APART}
    (directory / PROGRAM).write_text(format_json(head | described | {"signature": program.signature.described()}),
                                     "utf-8")
    elsewhere = {name for shard in shards.values() for name in shard.arrays}
    if WEIGHTS not in above:
        own_arrays = {name: array for name, array in program.arrays() if name not in elsewhere}
        write_tensors(own_arrays, directory / WEIGHTS)
    for name in APART:
        if f"{name}.json" not in above and (entry := program.meta.get(name)) is not None:
            text = entry if name == "tokenizer" else json.dumps(entry, indent=1)
            (directory / f"{name}.json").write_text(text, "utf-8")


def name_own(program: Program) -> list[str]:
    """What a program calls things of one's own. Raises InputError where one has a name of ours, and for what no file
    may name."""
    terms = [(number, step) for number, step in enumerate(program.steps) if "term" in step.attributes]
    if terms:
        from opmatrix.runtime.codegen.custom_things import find_unlasting  # imported here: most programs need it not
        for number, step in terms:
            if strange := find_unlasting(step.attributes):
                raise InputError(f"not saved: steps[{number}] computes {strange}, which only rewriting and training "
                                 "make, and no file holds: say it by operators of opmatrix")
    called = [*dict.fromkeys(name for step in program.steps for name in list_own_names(step.attributes))]
    if called:
        from opmatrix.runtime.codegen.custom_things import our_names  # imported here: most programs need it not
        refuse_collisions(called, our_names())
    return called


def format_json(value: object, depth: int = 0) -> str:
    """JSON with a line for each entry of its first two levels: for each step, each constant."""
    if depth == 2 or not value or not isinstance(value, dict | list): return json.dumps(value)
    line = "\n" + " " * (depth + 1)
    if isinstance(value, list):
        return "[" + line + f",{line}".join(format_json(entry, depth + 1) for entry in value) + line[:-1] + "]"
    entries = (f"{json.dumps(name)}: {format_json(v, depth + 1)}" for name, v in value.items())
    return "{" + line + f",{line}".join(entries) + line[:-1] + "}"


def flush(file: Path) -> None:
    """Waits until a file is on the disk."""
    with file.open("r+b") as opened: os.fsync(opened.fileno())
