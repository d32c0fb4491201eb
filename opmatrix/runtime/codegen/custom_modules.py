"""Modules that declare custom functions, monoids and patterns: the list of their declarations, and a check that these
are what a file was saved with. No module is imported because a file names it: the caller gives the module."""

import sys
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType

from formats.core.errors import InputError
from formats.disk.files import read_bytes
from opmatrix.algebra.custom.custom_names import OWN_NAME
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.nodes import LASTING
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Kind, Operator
from opmatrix.runtime.codegen.custom_things import OwnThing, name_kind, name_monoid


def module_of(laws: object) -> ModuleType | None:
    """Return the module that the caller gives, or run its file. Raises InputError for any other value."""
    if laws is None or isinstance(laws, ModuleType):
        return laws
    if isinstance(laws, str | Path):
        return run_file(Path(laws))
    raise InputError(
        f"laws={laws!r:.80} is no module: give the module that declares your functions, monoids and "
        "patterns, or its file"
    )


def list_things(module: ModuleType) -> Iterator[OwnThing]:
    """Yield the custom functions, kinds, monoids and patterns that a module has by name, imported ones too."""
    for held in vars(module).values():
        match held:
            case Pattern() if held.own:
                yield held
            case Kind() if LASTING.get(held.name) is not held:
                yield held
            case Operator():
                kinds = (node.kind for node in held.walk())
                yield from (kind for kind in kinds if LASTING.get(kind.name) is not kind)
            case type() if issubclass(held, Monoid) and held is not Monoid and not is_known(held):
                yield held
                yield from (getattr(held, name) for name in held.finishes)


def name_thing(thing: OwnThing) -> list[str]:
    """Return the names in programs of a custom thing, or of the parts that it is joined of."""
    if isinstance(thing, Pattern):
        return [match[0] for match in OWN_NAME.finditer(thing.own)]
    return [name_kind(thing) if isinstance(thing, Kind) else name_monoid(thing)]


def check_declared(file: Path, called: Iterable[str], module: ModuleType | None) -> None:
    """Raise InputError unless a module declares all custom names of a file, and they compute the same as when it was
    saved."""
    if not (wanted := [*dict.fromkeys(called)]):
        return
    names = ", ".join(full_name.partition(":")[0] for full_name in wanted)
    if module is None:
        raise InputError(
            f"{file}: it uses the user-defined {names}: load it with the module that declares them, "
            "om.load(DIR, laws=module), or --laws FILE on the command line"
        )
    where = getattr(module, "__file__", None) or module.__name__
    every = {*chain(*map(name_thing, list_things(module)))}
    by_name = {full_name.partition(":")[0]: full_name for full_name in every}
    for full_name in wanted:
        if full_name in every:
            continue
        name = full_name.partition(":")[0]
        if name not in by_name:
            raise InputError(
                f"{file}: it uses the user-defined {name}, which {where} does not declare: give the module that does"
            )
        raise InputError(
            f"{file}: {name} in {where} is not the one that the program was saved with "
            f"({by_name[name]}, saved {full_name}): it was changed since, or another version of Python "
            "compiles its code differently: take the module as it was, or create the program again"
        )


def run_file(file: Path) -> ModuleType:
    """Return the module of a file, made from its source and not from compiled code beside it. An error in it becomes an
    InputError with its line."""
    if file.suffix != ".py":
        raise InputError(f"{file}: its name does not end in .py: give a Python file of your own")
    source, path = read_bytes(file), str(file.absolute())
    module = ModuleType(f"opmatrix_user_{file.stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        raise InputError(f"{file}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{file}:{find_line(file, error)}: {type(error).__name__}: {error}") from error
    return module


def find_line(file: Path, error: BaseException) -> int:
    """Return the last line of a file that an error went through."""
    lines = [
        frame.lineno or 0
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file.absolute())
    ]
    return lines[-1] if lines else 0
