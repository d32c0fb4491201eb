"""Programs read from disk: a directory of JSON and safetensors, read bit for bit and not trusted. opmatrix.files.saving
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
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import Tokenizer, read_tokenizer
from opmatrix.runtime.program import ARRAY, Constant, Program, Step

PROGRAM, WEIGHTS = "program.json", "weights.safetensors"
FRONT = "front"  # the directory of the points, each in a numbered directory
APART = ("tokenizer", "config", "certificate")  # entries of meta with a file of their own
KIND, VERSION, SHARED = "opmatrix program", 3, 4  # SHARED: the version with arrays in several files
NAMED_VERSION = 5  # the version with inputs, several outputs or state, in one
# file or several
HALF_VERSION = 6  # the version with caches that are not float32
OWN_VERSION = 7  # the version with custom functions, monoids or patterns
POINT_VERSION = 8  # the version of a point that shares files with its front
READ_VERSIONS = VERSION, SHARED, NAMED_VERSION, HALF_VERSION, OWN_VERSION, POINT_VERSION
ANY_SIDES = OWN_VERSION, POINT_VERSION  # versions of one output or of several
SHARDS = tuple(f"shared.{i}.safetensors" for i in range(64))  # files of arrays that programs of a front share
# entry: names of the files that a point of a front shares with others; they are in the front's directory or above it
FILES_ABOVE = "above"
OLD = "state"  # a kernel from before programs had inputs
MAX_STEPS = 1 << 13  # steps of a program: planning buffers takes quadratic time


def load(
    directory: str | Path, copy: bool = False, tokenizer: bool | ParsedAhead = False, laws: object = None
) -> Program:
    """Load the program in a directory, arrays and outputs equal to the bit. `tokenizer`: True to read its tokenizer
    beside the arrays, or one that a thread parses already. `laws`: the module, or its file, that declares the custom
    functions, monoids and patterns of the program: they must compute the same as when it was saved. Raises InputError,
    which names the file and the field, for an entry or file that is missing, damaged, of another version, not safe to
    run, or does not match the program's hash."""
    if not isinstance(directory, str | Path):
        raise TypeError(f"a saved program is a directory, not {directory!r:.60}")
    directory = Path(directory)
    file = directory / PROGRAM
    recover(directory.absolute())
    if not exists(file):
        raise InputError(f"{directory}: {absent(directory)}")
    content = read_object(file)
    if (kind := content.get("kind")) != KIND:
        raise InputError(f"{file}: kind is {kind!r:.80}, not {KIND!r}")
    if (version := content.get("version")) not in READ_VERSIONS:
        raise InputError(f"{file}: version is {version!r:.80}, but this opmatrix reads {VERSION}: {AGAIN}")
    places = find_places(directory, content)
    meta, described = about(places, field(file, content, "meta", dict)), field(file, content, "constants", dict)
    weights = places[WEIGHTS]
    rows, sides = field(file, content, "steps", list), signed(file, content)
    if len(rows) > MAX_STEPS:
        raise InputError(f"{file}: {len(rows):,} steps; a program may have {MAX_STEPS:,}")
    steps = [step(file, i, row) for i, row in enumerate(rows)]
    check_own(file, content, steps, laws)
    with ExitStack() as opened:
        held, stored = dict[str, Tensor](), dict[Path, ArrayFile]()
        for path in [weights, *(places[name] for name in more(file, content))]:
            raw = opened.enter_context(open_regular(path))
            lies = tensors(raw, path)
            if both := held.keys() & lies.keys():
                raise InputError(f"{path}: array {min(both)!r} is in another file, too: {AGAIN}")
            held, stored[path] = held | lies, ArrayFile(raw, copy)
        parts = collect_arrays(file, described, held, stored)
        read = list[Tokenizer]()
        ahead = tokenizer if isinstance(tokenizer, ParsedAhead) else None
        if tokenizer:
            opened.callback(begin_reading(meta, read, ahead).join)
        with Digest(parts, stored) as digest:
            with blamed(file, "its brackets"):
                text = json.dumps(
                    {
                        "meta": {name: entry for name, entry in meta.items() if name != "certificate"},
                        "constants": described,
                        "steps": rows,
                        **sides,
                    },
                    sort_keys=True,
                )
            constants = unpacked(weights, described, parts, stored)
            with blamed(file, "steps"):
                program = made(steps, constants, sides, meta)
            if "signature" in content and (words := program.signature.differs(content["signature"])):
                raise InputError(f"{file}: signature: {words}: {AGAIN}")
    if (hashed := digest.found(text)) != field(file, content, "hash", str):
        raise InputError(
            f"{file}: hash is {content['hash']!r:.80}, but the files have {hashed!r}: one was changed "
            f"after saving: {AGAIN}"
        )
    program.hash = hashed
    program.lies_in(directory, file_of(laws))
    if read:
        program.tokenizer = read[0]  # else `program.tokenizer` raises with the reason at first use
    if (certificate := program.meta.get("certificate")) is not None:
        with blamed(directory / "certificate.json", "no certificate of this program"):
            certified.check_certificate(certificate, program.hash)
    return program


def file_of(laws: object) -> str | None:
    """Return the path of the custom module that a program is loaded with, by which another process finds it."""
    if laws is None:
        return None
    return str(Path(str(getattr(laws, "__file__", laws))).absolute())


def begin_reading(meta: Mapping[str, object], found: list[Tokenizer], ahead: ParsedAhead | None) -> Thread:
    """Start a thread that reads a tokenizer and appends it to `found`; it appends none if reading fails."""

    def read() -> None:
        """Read the tokenizer in the thread; any error is left to the later reading."""
        with suppress(Exception):
            found.append(read_tokenizer(meta, ahead))

    thread = Thread(target=read)
    thread.start()
    return thread


def list_points(directory: Path) -> dict[int, Path]:
    """Return the programs of a directory's front by their numbers; none without a front."""
    places = (entry.parent for entry in (directory / FRONT).glob(f"*/{PROGRAM}"))
    numbered = {int(place.name): place for place in places if place.name.isdecimal()}
    return dict(sorted(numbered.items()))


def absent(directory: Path) -> str:
    """Return the error text for a directory that holds no program: the existing points if it names one of a front, else
    the file that was looked for and the files that are there."""
    front = directory.absolute().parent
    if front.name == FRONT and isdir(front) and not exists(directory):
        points = sorted(int(point.name) for point in front.iterdir() if point.name.isdecimal())
        if points == [*range(len(points))] and len(points) > 1:
            return f"no such point of the front: there are 0 to {points[-1]}: give one of them"
        if points:
            return f"no such point of the front: there are only {', '.join(map(str, points))}: give one"
    what = f"no {PROGRAM} in it" if isdir(directory) else f"no such directory: {PROGRAM} was looked for"
    return f"{what}, and {lying(directory)}: give the directory of a saved program"


def signed(file: Path, found: Mapping[str, object]) -> dict[str, object]:
    """Read the interface of a program from its file: one output, or inputs, outputs and state by name."""
    if not has_sides(found):
        return {"output": field(file, found, "output", str)}
    sides = {name: field(file, found, name, dict) for name in ("inputs", "outputs", "state")}
    narrow = [name for name, port in sides["inputs"].items() if isinstance(port, list) and HALF in port]
    if narrow and found["version"] not in (HALF_VERSION, *ANY_SIDES):
        raise InputError(
            f"{file}: inputs: {narrow[0]!r:.60} is {HALF}, which no program of version {found['version']} has: {AGAIN}"
        )
    for side in ("outputs", "state"):
        for name, value in sides[side].items():
            if not (is_printable(name) and isinstance(value, str)):
                raise InputError(f"{file}: {side}: {name!r:.60} is {value!r:.60}, no value: {AGAIN}")
    return sides


def has_sides(found: Mapping[str, object]) -> bool:
    """True if a file names inputs, outputs and state."""
    version = found["version"]
    return "outputs" in found if version in ANY_SIDES else version in (NAMED_VERSION, HALF_VERSION)


def check_own(file: Path, found: Mapping[str, object], steps: Iterable[Step], laws: object) -> None:
    """Raise InputError unless `laws` declares the custom functions, monoids and patterns of a program, unchanged since
    it was saved."""
    called = [name for step in steps for name in list_own_names(step.attributes)]
    if called and found["version"] not in ANY_SIDES:
        raise InputError(
            f"{file}: steps: {called[0].partition(':')[0]!r} is user-defined, which no program of version "
            f"{found['version']} has: {AGAIN}"
        )
    owning = found["version"] == OWN_VERSION or (called and found["version"] == POINT_VERSION)
    if owning and field(file, found, "own", list) != [*dict.fromkeys(called)]:
        raise InputError(f"{file}: own: {found['own']!r:.80} differs from the user-defined names of its steps: {AGAIN}")
    if not called:
        return
    from opmatrix.runtime.codegen.custom_modules import (  # imported here: most programs need it not
        check_declared,
        module_of,
    )

    check_declared(file, called, module_of(laws))


def made(
    steps: list[Step], constants: Mapping[str, Constant], sides: Mapping[str, Any], meta: Mapping[str, object]
) -> Program:
    """Build the program. Raises ValueError for parts that do not fit one another."""
    if "output" in sides:
        if any(step.kernel == OLD for step in steps):
            raise ValueError(
                f"its caches are steps, {OLD!r}: create it again by opmatrix.inference.cached.cached(program)"
            )
        return Program(steps, constants, sides["output"], meta)
    ports = [Port.read(name, port, HELD_NUMBERS) for name, port in sides["inputs"].items()]
    return Program(steps, constants, sides["outputs"], meta, inputs=ports, state=sides["state"])


def more(file: Path, found: Mapping[str, object]) -> list[str]:
    """List the names of the files of arrays beside the first, which several programs of a front share."""
    if found["version"] == VERSION or (found["version"] != SHARED and "shared" not in found):
        return []
    if found["version"] == POINT_VERSION:
        return list_shards(file, found)
    count = field(file, found, "shared", int)
    if type(count) is not int or not 0 < count <= len(SHARDS):
        raise InputError(f"{file}: shared is {count!r:.80}, not from 1 to {len(SHARDS)}: {AGAIN}")
    return [*SHARDS[:count]]


def list_shards(file: Path, found: Mapping[str, object]) -> list[str]:
    """List the names of the files of arrays whose numbers a point of a front gives."""
    numbers = field(file, found, "shared", list)
    if not all(type(number) is int and 0 <= number < len(SHARDS) for number in numbers) or len({*numbers}) < len(
        numbers
    ):
        raise InputError(f"{file}: shared is {numbers!r:.80}, not different numbers below {len(SHARDS)}: {AGAIN}")
    return [SHARDS[number] for number in numbers]


def find_places(directory: Path, found: Mapping[str, object]) -> dict[str, Path]:
    """Return the path of each file of a program: in its directory or, for files that a point of a front shares, in that
    of the front or of the chosen program. Raises InputError for unknown file names, and for files that are missing."""
    file = directory / PROGRAM
    places = {name: directory / name for name in (PROGRAM, WEIGHTS, *SHARDS, *(f"{name}.json" for name in APART))}
    if found["version"] != POINT_VERSION:
        return places
    for name in field(file, found, FILES_ABOVE, list):
        if not isinstance(name, str) or name not in places or name == PROGRAM:
            raise InputError(f"{file}: {FILES_ABOVE}: {name!r:.80} is not a file: {AGAIN}")
        above = (directory / ".." / name, directory / ".." / ".." / name)
        places[name] = next((path for path in above if exists(path)), directory / name)
        if not exists(places[name]):
            raise InputError(
                f"{directory}: {name} is missing, a file that this program shares with the others of its "
                "front: copy the whole directory of the front, or save the program "
                'alone, Program.load("MODEL.opmatrix/front/N").save("ALONE")'
            )
    return places


def about(places: Mapping[str, Path], meta: Mapping[str, object]) -> dict[str, object]:
    """Return a program's meta, with the entries that have files of their own. Raises InputError where an entry that is
    read later has another type than it must have."""
    file = places[PROGRAM]
    if both := sorted(set(APART) & set(meta)):
        raise InputError(f"{file}: meta: {both[0]!r} has a file of its own: {AGAIN}")
    apart = {name: entry for name in APART if (entry := read_meta(places[f"{name}.json"])) is not None}
    whole: dict[str, Any] = dict(meta) | apart
    match whole.get("rows", [1, 1]):
        case [int(), int()]:
            pass
        case rows:
            raise InputError(f"{file}: meta: rows are {rows!r:.80}, not the least and the most: {AGAIN}")
    match whole.get("config", {}).get("max_position_embeddings"):
        case None:
            pass
        case int(limit) if type(limit) is int and limit > 0:
            pass
        case limit:
            raise InputError(f"{places['config.json']}: max_position_embeddings is {limit!r:.80}: {AGAIN}")
    Pooling.parsed(whole.get("pooling"), f"{file}: pooling")
    Scoring.parsed(whole.get("scoring"), f"{file}: scoring")
    return whole


@contextmanager
def blamed(file: Path, entry: str) -> Iterator[None]:
    """Turn errors raised inside into an InputError that names this entry of the file."""
    try:
        yield
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{file}: {entry}: they are nested too deeply: {AGAIN}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: {entry}: {error}") from error


def read_object(file: Path) -> dict[str, object]:
    """Read the JSON object that a file holds. Raises InputError for any other content."""
    try:
        content = read_json(file)
    except InputError as error:
        raise InputError(f"{error}: {AGAIN}") from error
    if isinstance(content, dict):
        return content
    raise InputError(f"{file}: it holds a {type(content).__name__}, not an object: {AGAIN}")


def field(file: Path, found: Mapping[str, object], name: str, kind: type) -> Any:
    """Return an entry of a JSON object. Raises InputError if it is missing or not of type `kind`."""
    if name not in found:
        raise InputError(f"{file}: {name!r} is missing: {AGAIN}")
    if isinstance(found[name], kind):
        return found[name]
    raise InputError(f"{file}: {name!r} is a {type(found[name]).__name__}, not a {kind.__name__}: {AGAIN}")


def read_meta(file: Path) -> str | dict[str, object] | None:
    """Read the entry of meta in a file; None without the file. A tokenizer stays text."""
    if not file.exists():
        return None
    return read_text(file) if file.stem == "tokenizer" else read_object(file)


def step(file: Path, i: int, row: object) -> Step:
    """Check a step of a program's file. Raises InputError for any other structure, or a kind that no file may name."""
    match row:
        case [str(kernel), dict(operands), dict(attributes), str(output)] if is_printable(output):
            if "term" in attributes:
                from opmatrix.runtime.codegen.custom_things import find_unlasting  # imported here: it needs sympy

                if strange := find_unlasting(attributes):
                    raise InputError(f"{file}: steps[{i}]: {strange!r} is a kind that no file may name: {AGAIN}")
            if {str}.issuperset(map(type, operands.values())):
                return Step(kernel, operands, attributes, output)
    raise InputError(f"{file}: steps[{i}] is {row!r:.80}, not [kernel, operands, attributes, output]")


def collect_arrays(
    file: Path, described: Mapping[str, object], found: dict[str, Tensor], stored: Mapping[Path, ArrayFile]
) -> dict[str, list[ArrayPart]]:
    """Return the arrays of each constant that program.json describes. Raises InputError unless each array is used
    exactly once."""
    weights, parts = file.with_name(WEIGHTS), {}
    for name, meta in described.items():
        kind = str(meta.get("format")) if isinstance(meta, dict) else "None"
        if not is_printable(name):
            raise InputError(f"{file}: constants: one is called {name[:40]!r}…")
        if meta != ARRAY and kind not in FORMATS:
            raise InputError(
                f"{file}: constants: {name!r}: there is no format {kind!r:.80} in this version: create the "
                f"program again; there are array, {', '.join(FORMATS)}"
            )
        keys = {name: ""} if meta == ARRAY else {f"{name}.{key}": key for key in FORMATS[kind].fields}
        if lost := [key for key in keys if key not in found]:
            raise InputError(f"{weights}: array {lost[0]!r} is missing, which {PROGRAM} names: {AGAIN}")
        parts[name] = [ArrayPart(key, kind, of, found.pop(key)) for key, of in keys.items()]
    for tensor in (part.tensor for several in parts.values() for part in several):
        if tensor.number not in DTYPES:
            raise InputError(f"{weights}: array {tensor.name!r} has number type {tensor.number}, no program's: {AGAIN}")
    if left := [name for name, tensor in found.items() if not stored[tensor.file].padding(tensor)]:
        raise InputError(f"{weights}: array {min(left)!r} belongs to no constant of {PROGRAM}: {AGAIN}")
    return parts


def unpacked(
    weights: Path, described: Mapping[str, Any], own: Mapping[str, list[ArrayPart]], stored: Mapping[Path, ArrayFile]
) -> dict[str, Constant]:
    """Build the constants that program.json describes, from the arrays beside it. `Digest` checks that their numbers
    are finite."""
    constants: dict[str, Constant] = {}
    for name, meta in described.items():
        with blamed(weights, f"constant {name!r}"):
            taken = {part.field: stored[part.tensor.file].array(part) for part in own[name]}
            constants[name] = taken[""] if meta == ARRAY else read_stored(meta, taken, numbers=False)
    return constants
