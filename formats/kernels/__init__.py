"""Kernels: arrays in, arrays out. Compiled by other processes when first used, and kept in the user's cache; importing
is free. The index is made of the files: a module lists its kernels in `__all__`, and in `__borders__` the rows, or
tokens of a sequence, at which they take another path.

>>> from formats import kernels
>>> kernels.product_dense(x, w, out, epilogue)                                                     # doctest: +SKIP"""
import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOMS = "matmul", "rows", "attentions"
LISTED = re.compile(r"^__all__ = \[([^]]*)\]", re.MULTILINE)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in (known := find_modules()):
        raise AttributeError(f"formats.kernels has no {name!r}; it has {', '.join(__dir__())}")
    globals()[name] = found = getattr(import_module(f".{known[name]}", __name__), name)
    return found


def __dir__() -> list[str]: return [*find_modules(), "borders", "digest", "find_modules", "warm"]


@cache
def find_modules() -> dict[str, str]:
    """The module of each kernel. They are found by a pattern: to import a module takes a compiler. Raises TypeError
    where two list one name."""
    found = dict[str, str]()
    for file in (file for room in ROOMS for file in sorted((Path(__file__).parent / room).glob("*.py"))):
        module = f"{file.parent.name}.{file.stem}"
        for name in re.findall(r"\w+", " ".join(LISTED.findall(file.read_text("utf-8")))):
            if (other := found.setdefault(name, module)) != module:
                raise TypeError(f"kernel {name}: {other} and {module} list it: give one of them another name")
    return found


@cache
def borders(*names: str) -> frozenset[int]:
    """Rows, or tokens of a sequence, at which these kernels take another path: their tiles, as their modules have
    them."""
    modules = [import_module(f".{found}", __name__) for name in names if (found := find_modules().get(name))]
    return frozenset(border for module in modules for border in getattr(module, "__borders__", ()))


@cache
def digest() -> str:
    """A name for these sources and for what they have from other modules, which becomes part of their code: what was
    compiled from others, or measured with them, is not of these."""
    from formats.kernels.engine.frozen import imported
    home = Path(__file__).parent
    found = hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(home.rglob("*.py"))), digest_size=8)
    for each in imported(home, __name__): found.update(each.encode())
    return found.hexdigest()


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] = lambda name, seconds: None) -> float:
    """Compile kernels, or read them from the cache, with progress(name, seconds) after each; seconds in all."""
    for module in set(find_modules().values()): import_module(f".{module}", __name__)
    from formats.kernels.engine.launch import warm as compile_all
    return compile_all(names, progress)
