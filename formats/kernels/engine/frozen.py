"""Values that a compiler freezes into code and that the code's own source does not show: values imported from other
modules.

A kernel of this package is identified by the sources of its module and of the modules of the package that it imports,
and by the values that these import from elsewhere in the project (`sources`). A kernel declared outside is identified
by the sources and the values of its module and of all that it imports (`closure`)."""

import hashlib
import re
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import numpy as np

IMPORTS = re.compile(
    r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)"
    r"|^[ \t]*import[ \t]+([\w., \t]+)",
    re.MULTILINE,
)
COMMENT = re.compile(r"#[^\n]*")
ROOT, PACKAGE = __name__.split(".")[0], __name__.rsplit(".", 2)[0]  # the root package, and that of kernels
PROJECT = Path(__file__).parents[3]  # the folder of the project's packages
CONSTANT = type(None), bool, int, float, complex, str, bytes, tuple, frozenset, np.generic, np.dtype


def imported(home: Path, package: str) -> Iterator[str]:
    """Yield the values that the modules of a package in this directory import from elsewhere in the project, each as
    its name and in words. Imports are found by a pattern: parsing takes thirty times as long."""
    pairs = set()
    for file in home.rglob("*.py"):
        within = ".".join([package, *file.relative_to(home).parts[:-1]])
        for module, name in imports(file.read_text("utf-8")):
            whole = resolve_name(module, within) if module.startswith(".") else module
            if whole.partition(".")[0] == ROOT and not f"{whole}.".startswith(f"{package}."):
                pairs.add((whole, name))
    for module, name in sorted(pairs):
        yield f"{module}.{name} {words(member(module, name))}"


class Module(NamedTuple):
    """A source, the modules of this package that it imports, and (module, name) of its imports from elsewhere in the
    project."""

    source: str
    inside: frozenset[str]
    outside: frozenset[tuple[str, str]]


@cache
def read_module(name: str) -> Module:
    """Read a module of the project from its file."""
    place, inside, outside = find_file(name), set[str](), set[tuple[str, str]]()
    within = name if place.name == "__init__.py" else name.rpartition(".")[0]
    for base, attribute in imports(source := place.read_text("utf-8")):
        whole = resolve_name(base, within) if base.startswith(".") else base
        if is_kernels(whole):
            inside |= {candidate for candidate in (whole, f"{whole}.{attribute}") if is_written(candidate)}
        elif whole.partition(".")[0] == ROOT:
            outside.add((whole, attribute))
    return Module(source, frozenset(inside), frozenset(outside))


@cache
def sources(name: str) -> str:
    """Return a digest of everything that the code of a module's kernels depends on: its source, those of all modules of
    this package that it imports, and the values that they import from elsewhere in the project, in words. No other
    source changes it."""
    modules, left = dict[str, Module](), [name]
    while left:
        if (module := left.pop()) in modules:
            continue
        modules[module] = read_module(module)
        left += modules[module].inside
    outside = frozenset[tuple[str, str]]().union(*(module.outside for module in modules.values()))
    parts = [f"{module} {modules[module].source}" for module in sorted(modules)]
    parts += [f"{module}.{attribute} {words(member(module, attribute))}" for module, attribute in sorted(outside)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def is_kernels(module: str) -> bool:
    """True if a module is the package of kernels, or within it."""
    return f"{module}.".startswith(f"{PACKAGE}.")


def find_file(module: str) -> Path:
    """Return the path of the source of a module of the project, which need not exist."""
    place = PROJECT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@cache
def is_written(module: str) -> bool:
    """True if a module of the project has a file. Cached, as it is called for each imported name, which need not be a
    module."""
    return find_file(module).is_file()


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each name that a source imports; a module by itself has no name."""
    for module, names, modules in IMPORTS.findall(source):
        listed = (
            entry.split()[0] for entry in COMMENT.sub("", names or modules).strip("() \t\n").split(",") if entry.strip()
        )
        yield from ((module, entry) if module else (entry, "") for entry in listed)


def member(module: str, name: str) -> object:
    """Return the value of an import: a module, or its attribute of that name, or a module within it."""
    there = import_module(module)
    if not name:
        return there
    return getattr(there, name) if hasattr(there, name) else import_module(f"{module}.{name}")


def words(value: object) -> str:
    """Describe numbers, texts, arrays and tables of them, the values that code can hold; any other value gets the same
    word."""
    match value:
        case np.ndarray():
            return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
        case tuple() | list():
            return f"{type(value).__name__}({', '.join(map(words, value))})"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(words, value)))})"
        case dict():
            return f"dict({', '.join(f'{words(key)}: {words(entry)}' for key, entry in value.items())})"
    return f"{type(value).__name__} {value!r}" if isinstance(value, CONSTANT) else "…"


# ---- kernels that are declared outside


def closure(body: Callable[..., object]) -> str:
    """Return the sources of a function's module and of all that it imports, except libraries, with the values that
    functions there name, and those that the function itself holds; and its dependencies in this package. A process that
    compiles gets the same words."""
    import ast
    from linecache import getlines

    trees, texts, ours, left = dict[str, ast.Module](), dict[str, str](), set[str](), [body.__module__]
    while left:
        if is_kernels(name := left.pop()) and find_file(name).is_file():
            ours.add(name)
        if name in trees or not (name == body.__module__ or is_own(name)):
            continue
        module = vars(sys.modules[name])
        texts[name] = "".join(getlines(module.get("__file__") or body.__code__.co_filename, module))
        trees[name] = ast.parse(texts[name])
        for node in ast.walk(trees[name]):
            match node:
                case ast.Import(names=names):
                    left += [alias.name for alias in names]
                case ast.ImportFrom(module=base, names=names, level=level):
                    whole = resolve_name("." * level + (base or ""), module.get("__package__")) if level else base
                    left += [str(whole), *(f"{whole}.{alias.name}" for alias in names)]
    spoken = {
        getattr(node, "id", "") or getattr(node, "attr", "")
        for tree in trees.values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    seen = set[int]()
    parts = [held(body, trees, seen), *map(sources, sorted(ours))]
    for name in sorted(texts):
        values = {key: value for key, value in sorted(vars(sys.modules[name]).items()) if key in spoken}
        parts += [f"{name} {words(values)}", *(held(value, trees, seen) for value in values.values()), texts[name]]
    return "\n".join(parts)


def held(function: object, modules: Container[str], seen: set[int]) -> str:
    """Describe the values that a function of these modules holds beyond its source: defaults and the cells of its
    closure, and those of functions among them. Empty for any other object."""
    function = getattr(function, "py_func", function)  # the function that a compiler wrapped
    if not isinstance(function, FunctionType) or function.__module__ not in modules or id(function) in seen:
        return ""
    seen.add(id(function))
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            values.append(cell.cell_contents)  # a cell that is still empty
    return f"{function.__qualname__} {words(values)}{''.join(held(value, modules, seen) for value in values)}"


def is_own(module: str) -> bool:
    """True if a module belongs to the user, here in a file: it is no library's, and not of this project, whose values
    are described where they are imported."""
    from sysconfig import get_path

    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or module.partition(".")[0] == ROOT:
        return False
    libraries = {Path(get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not libraries & {*Path(file).resolve().parents}
