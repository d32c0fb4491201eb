"""Programs read from disk: a directory of JSON and safetensors, read bit for bit, mistrusted. opmatrix.files.saving
writes it."""
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from os.path import exists, isdir
from pathlib import Path
from threading import Thread
from typing import Any

from formats import FORMATS, read_stored
from formats.core.errors import InputError
from formats.disk.files import lying, open_regular, read_json, read_text
from opmatrix.algebra.batch.signature import HALF, HELD_NUMBERS, Port
from opmatrix.algebra.custom.custom_names import list_own_names
from opmatrix.files import certified
from opmatrix.files.mapped import AGAIN, DTYPES, ArrayFile, ArrayPart, Digest
from opmatrix.files.placing import recover
from opmatrix.files.tensors import Tensor, is_printable, tensors
from opmatrix.inference.parsed_ahead import ParsedAhead
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.text import Tokenizer, read_tokenizer
from opmatrix.runtime.program import ARRAY, Constant, Program, Step

PROGRAM, WEIGHTS = "program.json", "weights.safetensors"
FRONT = "front"                                             # the directory of points, each in one of its number
APART = ("tokenizer", "config", "certificate")              # entries of meta with a file of their own
KIND, VERSION, SHARED = "opmatrix program", 3, 4            # the version where arrays lie in several files
NAMED_VERSION = 5                                           # that of inputs, several outputs or state, in one file or
                                                            # several
HALF_VERSION = 6                                            # that of caches which are no float32
OWN_VERSION = 7                                             # that of what is one's own, whatever else it has
POINT_VERSION = 8                                           # that of what has files above it, whatever else it has
READ_VERSIONS = VERSION, SHARED, NAMED_VERSION, HALF_VERSION, OWN_VERSION, POINT_VERSION
ANY_SIDES = OWN_VERSION, POINT_VERSION                      # versions of one output or of several
SHARDS = tuple(f"shared.{i}.safetensors" for i in range(64))     # whose arrays several programs of a front have
# names of files that a point of a front has in common with others, and that lie in the front's directory or above it
FILES_ABOVE = "above"
OLD = "state"                                               # a kernel of before programs had inputs
MAX_STEPS = 1 << 13                                         # of a program: to plan buffers takes time by their square


def load(directory: str | Path, copy: bool = False, tokenizer: bool | ParsedAhead = False,
         laws: object = None) -> Program:
    """The program in a directory, arrays and outputs equal to the bit; with its tokenizer, which is then read beside
    the arrays, or has been begun already. `laws`: the module, or its file, that declares functions, monoids and
    patterns of one's own which the program has: they must compute what it was saved with. InputError, which names the
    file and the field, for whatever is missing, damaged, of another version, not safe to run, or not what its hash
    says."""
    if not isinstance(directory, str | Path): raise TypeError(f"a saved program is a directory, not {directory!r:.60}")
    directory = Path(directory)
    file = directory / PROGRAM
    recover(directory.absolute())
    if not exists(file): raise InputError(f"{directory}: {absent(directory)}")
    found = read_object(file)
    if (kind := found.get("kind")) != KIND: raise InputError(f"{file}: kind is {kind!r:.80}, not {KIND!r}")
    if (version := found.get("version")) not in READ_VERSIONS:
        raise InputError(f"{file}: version is {version!r:.80}, but this opmatrix reads {VERSION}: {AGAIN}")
    places = find_places(directory, found)
    meta, described = about(places, field(file, found, "meta", dict)), field(file, found, "constants", dict)
    weights = places[WEIGHTS]
    rows, sides = field(file, found, "steps", list), signed(file, found)
    if len(rows) > MAX_STEPS: raise InputError(f"{file}: {len(rows):,} steps; a program may have {MAX_STEPS:,}")
    steps = [step(file, i, row) for i, row in enumerate(rows)]
    check_own(file, found, steps, laws)
    with ExitStack() as opened:
        held, stored = dict[str, Tensor](), dict[Path, ArrayFile]()
        for each in [weights, *(places[name] for name in more(file, found))]:
            raw = opened.enter_context(open_regular(each))
            lies = tensors(raw, each)
            if both := held.keys() & lies.keys():
                raise InputError(f"{each}: array {min(both)!r} lies in another file, too: {AGAIN}")
            held, stored[each] = held | lies, ArrayFile(raw, copy)
        own = collect_arrays(file, described, held, stored)
        read = list[Tokenizer]()
        ahead = tokenizer if isinstance(tokenizer, ParsedAhead) else None
        if tokenizer: opened.callback(begin_reading(meta, read, ahead).join)
        with Digest(own, stored) as digest:
            with blamed(file, "its brackets"):
                said = json.dumps({"meta": {name: entry for name, entry in meta.items() if name != "certificate"},
                                   "constants": described, "steps": rows, **sides}, sort_keys=True)
            constants = unpacked(weights, described, own, stored)
            with blamed(file, "steps"): program = made(steps, constants, sides, meta)
            if "signature" in found and (words := program.signature.differs(found["signature"])):
                raise InputError(f"{file}: signature: {words}: {AGAIN}")
    if (hashed := digest.found(said)) != field(file, found, "hash", str):
        raise InputError(f"{file}: hash is {found['hash']!r:.80}, but the files have {hashed!r}: one was changed "
                         f"after saving: {AGAIN}")
    program.hash = hashed
    program.lies_in(directory, file_of(laws))
    if read: program.tokenizer = read[0]      # else who asks for it hears why
    if (kept := program.meta.get("certificate")) is not None:
        with blamed(directory / "certificate.json", "no certificate of this program"):
            certified.check_certificate(kept, program.hash)
    return program


def file_of(laws: object) -> str | None:
    """The path of the module of one's own that a program is loaded with, by which another process finds it."""
    if laws is None: return None
    return str(Path(str(getattr(laws, "__file__", laws))).absolute())


def begin_reading(meta: Mapping[str, object], found: list[Tokenizer], ahead: ParsedAhead | None) -> Thread:
    """A thread that reads a tokenizer, which is found where it can be read."""
    def read() -> None:
        with suppress(Exception): found.append(read_tokenizer(meta, ahead))
    thread = Thread(target=read)
    thread.start()
    return thread


def absent(directory: Path) -> str:
    """What is said of a directory that holds no program: the points of the front that it would be one of, or what was
    looked for and what lies there."""
    front = directory.absolute().parent
    if front.name == FRONT and isdir(front) and not exists(directory):
        points = sorted(int(each.name) for each in front.iterdir() if each.name.isdecimal())
        if points == [*range(len(points))] and len(points) > 1:
            return f"no such point of the front: there are 0 to {points[-1]}: give one of them"
        if points: return f"no such point of the front: there are only {', '.join(map(str, points))}: give one"
    what = f"no {PROGRAM} in it" if isdir(directory) else f"no such directory: {PROGRAM} was looked for"
    return f"{what}, and {lying(directory)}: give the directory of a saved program"


def signed(file: Path, found: Mapping[str, object]) -> dict[str, object]:
    """What a file says of a program's border: one output, or inputs, outputs and state by name."""
    if not has_sides(found): return {"output": field(file, found, "output", str)}
    sides = {name: field(file, found, name, dict) for name in ("inputs", "outputs", "state")}
    narrow = [name for name, said in sides["inputs"].items() if isinstance(said, list) and HALF in said]
    if narrow and found["version"] not in (HALF_VERSION, *ANY_SIDES):
        raise InputError(f"{file}: inputs: {narrow[0]!r:.60} is {HALF}, which no program of version {found['version']} "
                         f"has: {AGAIN}")
    for side in ("outputs", "state"):
        for name, value in sides[side].items():
            if not (is_printable(name) and isinstance(value, str)):
                raise InputError(f"{file}: {side}: {name!r:.60} is {value!r:.60}, no value: {AGAIN}")
    return sides


def has_sides(found: Mapping[str, object]) -> bool:
    """Whether a file says inputs, outputs and state by name."""
    version = found["version"]
    return "outputs" in found if version in ANY_SIDES else version in (NAMED_VERSION, HALF_VERSION)


def check_own(file: Path, found: Mapping[str, object], steps: Iterable[Step], laws: object) -> None:
    """Raises InputError unless who loads a program gives what it has of one's own, as it was when it was saved."""
    called = [name for step in steps for name in list_own_names(step.attributes)]
    if called and found["version"] not in ANY_SIDES:
        raise InputError(f"{file}: steps: {called[0].partition(':')[0]!r} is one's own, which no program of version "
                         f"{found['version']} has: {AGAIN}")
    owning = found["version"] == OWN_VERSION or (called and found["version"] == POINT_VERSION)
    if owning and field(file, found, "own", list) != [*dict.fromkeys(called)]:
        raise InputError(f"{file}: own: {found['own']!r:.80} is not what its steps have of one's own: {AGAIN}")
    if not called: return
    from opmatrix.runtime.codegen.custom_modules import (  # imported here: most programs need it not
        check_declared,
        module_of,
    )
    check_declared(file, called, module_of(laws))


def made(steps: list[Step], constants: Mapping[str, Constant], sides: Mapping[str, Any],
         meta: Mapping[str, object]) -> Program:
    """The program. Raises ValueError for what does not fit."""
    if "output" in sides:
        if any(step.kernel == OLD for step in steps):
            raise ValueError(f"its caches are steps, {OLD!r}: save it again, made anew by "
                             "opmatrix.inference.cached.cached(program)")
        return Program(steps, constants, sides["output"], meta)
    ports = [Port.read(name, said, HELD_NUMBERS) for name, said in sides["inputs"].items()]
    return Program(steps, constants, sides["outputs"], meta, inputs=ports, state=sides["state"])


def more(file: Path, found: Mapping[str, object]) -> list[str]:
    """The names of the files of arrays beside the first, which several programs of a front have."""
    if found["version"] == VERSION or (found["version"] != SHARED and "shared" not in found): return []
    if found["version"] == POINT_VERSION: return list_shards(file, found)
    count = field(file, found, "shared", int)
    if type(count) is not int or not 0 < count <= len(SHARDS):
        raise InputError(f"{file}: shared is {count!r:.80}, not from 1 to {len(SHARDS)}: {AGAIN}")
    return [*SHARDS[:count]]


def list_shards(file: Path, found: Mapping[str, object]) -> list[str]:
    """The names of files of arrays, by the numbers that a point of a front says."""
    numbers = field(file, found, "shared", list)
    if not all(type(each) is int and 0 <= each < len(SHARDS) for each in numbers) or len({*numbers}) < len(numbers):
        raise InputError(f"{file}: shared is {numbers!r:.80}, not different numbers below {len(SHARDS)}: {AGAIN}")
    return [SHARDS[each] for each in numbers]


def find_places(directory: Path, found: Mapping[str, object]) -> dict[str, Path]:
    """Where each file of a program lies: in its directory, or, of a point of a front, in that of the front or of the
    chosen program. Raises InputError for names that are none, and for files that are not there."""
    file = directory / PROGRAM
    places = {name: directory / name for name in (PROGRAM, WEIGHTS, *SHARDS, *(f"{name}.json" for name in APART))}
    if found["version"] != POINT_VERSION: return places
    for name in field(file, found, FILES_ABOVE, list):
        if not isinstance(name, str) or name not in places or name == PROGRAM:
            raise InputError(f"{file}: {FILES_ABOVE}: {name!r:.80} is no file: {AGAIN}")
        above = (directory / ".." / name, directory / ".." / ".." / name)
        places[name] = next((each for each in above if exists(each)), directory / name)
        if not exists(places[name]):
            raise InputError(f"{directory}: {name} is missing, which this program has in common with the others of the "
                             "front that it was taken from: copy the whole directory of that, or save the program "
                             "alone, Program.load(\"MODEL.opmatrix/front/N\").save(\"ALONE\")")
    return places


def about(places: Mapping[str, Path], meta: Mapping[str, object]) -> dict[str, object]:
    """A program's meta, with the entries that have files of their own, and whatever is read of it of its type."""
    file = places[PROGRAM]
    if both := sorted(set(APART) & set(meta)):
        raise InputError(f"{file}: meta: {both[0]!r} has a file of its own: {AGAIN}")
    apart = {name: entry for name in APART if (entry := read_meta(places[f"{name}.json"])) is not None}
    whole: dict[str, Any] = dict(meta) | apart
    match whole.get("rows", [1, 1]):
        case [int(), int()]: pass
        case rows: raise InputError(f"{file}: meta: rows are {rows!r:.80}, not the least and the most: {AGAIN}")
    match whole.get("config", {}).get("max_position_embeddings"):
        case None: pass
        case int(limit) if type(limit) is int and limit > 0: pass
        case limit: raise InputError(f"{places['config.json']}: max_position_embeddings is {limit!r:.80}: {AGAIN}")
    Pooling.parsed(whole.get("pooling"), f"{file}: pooling")
    return whole


@contextmanager
def blamed(file: Path, entry: str) -> Iterator[None]:
    """What goes wrong inside is the fault of that entry of the file."""
    try: yield
    except InputError: raise
    except RecursionError as error: raise InputError(f"{file}: {entry}: they are nested too deeply: {AGAIN}") from error
    except (ValueError, TypeError, KeyError) as error: raise InputError(f"{file}: {entry}: {error}") from error


def read_object(file: Path) -> dict[str, object]:
    """The JSON object that a file holds."""
    try: found = read_json(file)
    except InputError as error: raise InputError(f"{error}: {AGAIN}") from error
    if isinstance(found, dict): return found
    raise InputError(f"{file}: it holds a {type(found).__name__}, not an object: {AGAIN}")


def field(file: Path, found: Mapping[str, object], name: str, kind: type) -> Any:
    """An entry of a JSON object, of that type."""
    if name not in found: raise InputError(f"{file}: {name!r} is missing: {AGAIN}")
    if isinstance(found[name], kind): return found[name]
    raise InputError(f"{file}: {name!r} is a {type(found[name]).__name__}, not a {kind.__name__}: {AGAIN}")


def read_meta(file: Path) -> str | dict[str, object] | None:
    """The entry of meta in a file, None where there is none; a tokenizer stays text."""
    if not file.exists(): return None
    return read_text(file) if file.stem == "tokenizer" else read_object(file)


def step(file: Path, i: int, row: object) -> Step:
    match row:
        case [str(kernel), dict(operands), dict(attributes), str(output)] if is_printable(output):
            if "term" in attributes:
                from opmatrix.runtime.codegen.custom_things import find_unlasting  # imported here: it needs sympy
                if strange := find_unlasting(attributes):
                    raise InputError(f"{file}: steps[{i}]: {strange!r} is a kind that no file may name: {AGAIN}")
            if {str}.issuperset(map(type, operands.values())): return Step(kernel, operands, attributes, output)
    raise InputError(f"{file}: steps[{i}] is {row!r:.80}, not [kernel, operands, attributes, output]")


def collect_arrays(file: Path, described: Mapping[str, object], found: dict[str, Tensor],
                   stored: Mapping[Path, ArrayFile]) -> dict[str, list[ArrayPart]]:
    """The arrays of each constant that program.json describes: each array is used, and used once."""
    weights, own = file.with_name(WEIGHTS), {}
    for name, meta in described.items():
        kind = str(meta.get("format")) if isinstance(meta, dict) else "None"
        if not is_printable(name): raise InputError(f"{file}: constants: one is called {name[:40]!r}…")
        if meta != ARRAY and kind not in FORMATS:
            raise InputError(f"{file}: constants: {name!r}: there is no format {kind!r:.80} (any more): make the "
                             f"program anew; there are array, {', '.join(FORMATS)}")
        keys = {name: ""} if meta == ARRAY else {f"{name}.{key}": key for key in FORMATS[kind].fields}
        if lost := [key for key in keys if key not in found]:
            raise InputError(f"{weights}: array {lost[0]!r} is missing, which {PROGRAM} names: {AGAIN}")
        own[name] = [ArrayPart(key, kind, of, found.pop(key)) for key, of in keys.items()]
    for tensor in (part.tensor for several in own.values() for part in several):
        if tensor.number not in DTYPES:
            raise InputError(f"{weights}: array {tensor.name!r} has number type {tensor.number}, no program's: {AGAIN}")
    if left := [name for name, tensor in found.items() if not stored[tensor.file].padding(tensor)]:
        raise InputError(f"{weights}: array {min(left)!r} belongs to no constant of {PROGRAM}: {AGAIN}")
    return own


def unpacked(weights: Path, described: Mapping[str, Any], own: Mapping[str, list[ArrayPart]],
             stored: Mapping[Path, ArrayFile]) -> dict[str, Constant]:
    """The constants that program.json describes, from the arrays beside it. Whether their numbers are finite `Digest`
    says."""
    constants: dict[str, Constant] = {}
    for name, meta in described.items():
        with blamed(weights, f"constant {name!r}"):
            taken = {part.field: stored[part.tensor.file].array(part) for part in own[name]}
            constants[name] = taken[""] if meta == ARRAY else read_stored(meta, taken, numbers=False)
    return constants
