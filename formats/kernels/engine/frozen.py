"""What a compiler freezes into code and the code's own source does not say: values that come from other modules.

A kernel of this package is told from others by the sources of its module and of what that imports of the package, and
by what these import from elsewhere in the project (`sources`); one that is declared outside by the sources and the
values of its module and of all that it imports (`closure`)."""
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

IMPORTS = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)"
                     r"|^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
COMMENT = re.compile(r"#[^\n]*")
ROOT, PACKAGE = __name__.split(".")[0], __name__.rsplit(".", 2)[0]     # what kernels are part of, and theirs
PROJECT = Path(__file__).parents[3]                          # where the project's packages lie
CONSTANT = type(None), bool, int, float, complex, str, bytes, tuple, frozenset, np.generic, np.dtype


def imported(home: Path, package: str) -> Iterator[str]:
    """What the modules of a package in this directory import from elsewhere in the project, each as its name and in
    words. Imports are found by a pattern: reading all syntax takes thirty times as long."""
    found = set()
    for file in home.rglob("*.py"):
        within = ".".join([package, *file.relative_to(home).parts[:-1]])
        for module, name in imports(file.read_text("utf-8")):
            whole = resolve_name(module, within) if module.startswith(".") else module
            if whole.partition(".")[0] == ROOT and not f"{whole}.".startswith(f"{package}."): found.add((whole, name))
    for module, name in sorted(found):
        yield f"{module}.{name} {words(member(module, name))}"


class Module(NamedTuple):
    """A source, what it imports of this package, and (module, name) of what it imports from elsewhere in the
    project."""

    source: str
    inside: frozenset[str]
    outside: frozenset[tuple[str, str]]


@cache
def read_module(name: str) -> Module:
    """A module of the project, from its file."""
    place, inside, outside = find_file(name), set[str](), set[tuple[str, str]]()
    within = name if place.name == "__init__.py" else name.rpartition(".")[0]
    for base, given in imports(source := place.read_text("utf-8")):
        whole = resolve_name(base, within) if base.startswith(".") else base
        if is_kernels(whole): inside |= {each for each in (whole, f"{whole}.{given}") if is_written(each)}
        elif whole.partition(".")[0] == ROOT: outside.add((whole, given))
    return Module(source, frozenset(inside), frozenset(outside))


@cache
def sources(name: str) -> str:
    """A digest of what the code of a module's kernels depends on: its source, those of all that it imports of this
    package, and what they import from elsewhere in the project, in words. No other source changes it."""
    found, left = dict[str, Module](), [name]
    while left:
        if (each := left.pop()) in found: continue
        found[each] = read_module(each)
        left += found[each].inside
    outside = frozenset[tuple[str, str]]().union(*(each.outside for each in found.values()))
    said = [f"{each} {found[each].source}" for each in sorted(found)]
    said += [f"{module}.{given} {words(member(module, given))}" for module, given in sorted(outside)]
    return hashlib.blake2b("\n".join(said).encode(), digest_size=8).hexdigest()


def is_kernels(module: str) -> bool:
    """Whether it is of the package of kernels, or that package."""
    return f"{module}.".startswith(f"{PACKAGE}.")


def find_file(module: str) -> Path:
    """Where the source of a module of the project is, or would be."""
    place = PROJECT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@cache
def is_written(module: str) -> bool:
    """Whether a module of the project has a file: names that are imported from modules are asked, too, again and
    again."""
    return find_file(module).is_file()


def imports(source: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each name that a source imports; a module by itself has no name."""
    for module, names, modules in IMPORTS.findall(source):
        listed = (each.split()[0] for each in COMMENT.sub("", names or modules).strip("() \t\n").split(",")
                  if each.strip())
        yield from ((module, each) if module else (each, "") for each in listed)


def member(module: str, name: str) -> object:
    """What an import gives: a module, or what it holds by that name, or a module within it."""
    there = import_module(module)
    if not name: return there
    return getattr(there, name) if hasattr(there, name) else import_module(f"{module}.{name}")


def words(value: object) -> str:
    """Numbers, texts, arrays and tables of them, which is what code can hold; anything else is the same word."""
    match value:
        case np.ndarray(): return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
        case tuple() | list(): return f"{type(value).__name__}({', '.join(map(words, value))})"
        case set() | frozenset(): return f"set({', '.join(sorted(map(words, value)))})"
        case dict(): return f"dict({', '.join(f'{words(key)}: {words(each)}' for key, each in value.items())})"
    return f"{type(value).__name__} {value!r}" if isinstance(value, CONSTANT) else "…"


# ---- kernels that are declared outside

def closure(body: Callable[..., object]) -> str:
    """The sources of a function's module and of all that it imports, as far as these are no library's, with the values
    that functions there name, and those that the function itself holds; and what it depends on in this package. A
    process that compiles has the same words for them."""
    import ast
    from linecache import getlines
    trees, own, ours, left = dict[str, ast.Module](), dict[str, str](), set[str](), [body.__module__]
    while left:
        if is_kernels(name := left.pop()) and find_file(name).is_file(): ours.add(name)
        if name in trees or not (name == body.__module__ or is_own(name)): continue
        module = vars(sys.modules[name])
        own[name] = "".join(getlines(module.get("__file__") or body.__code__.co_filename, module))
        trees[name] = ast.parse(own[name])
        for node in ast.walk(trees[name]):
            match node:
                case ast.Import(names=names): left += [each.name for each in names]
                case ast.ImportFrom(module=base, names=names, level=level):
                    whole = resolve_name("." * level + (base or ""), module.get("__package__")) if level else base
                    left += [str(whole), *(f"{whole}.{each.name}" for each in names)]
    spoken = {getattr(node, "id", "") or getattr(node, "attr", "") for tree in trees.values() for function in
              ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)}
    seen = set[int]()
    said = [held(body, trees, seen), *map(sources, sorted(ours))]
    for name in sorted(own):
        values = {each: value for each, value in sorted(vars(sys.modules[name]).items()) if each in spoken}
        said += [f"{name} {words(values)}", *(held(value, trees, seen) for value in values.values()), own[name]]
    return "\n".join(said)


def held(function: object, modules: Container[str], seen: set[int]) -> str:
    """What a function of these modules holds that its source does not say: defaults and the cells of its closure, of
    functions among these, too. Of anything else, nothing."""
    function = getattr(function, "py_func", function)       # as a compiler wraps it
    if not isinstance(function, FunctionType) or function.__module__ not in modules or id(function) in seen: return ""
    seen.add(id(function))
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError): values.append(cell.cell_contents)            # one that nothing was put into yet
    return f"{function.__qualname__} {words(values)}{''.join(held(each, modules, seen) for each in values)}"


def is_own(module: str) -> bool:
    """Whether a module is somebody's own, here in a file: no library's, and not of this project, which others know by
    the values that they have of it."""
    from sysconfig import get_path
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or module.partition(".")[0] == ROOT: return False
    libraries = {Path(get_path(each)).resolve() for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not libraries & {*Path(file).resolve().parents}
