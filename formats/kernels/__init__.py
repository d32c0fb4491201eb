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
    globals()[name] = kernel = getattr(import_module(f".{known[name]}", __name__), name)
    return kernel


def __dir__() -> list[str]:
    return [*find_modules(), "borders", "digest", "find_modules", "warm"]


@cache
def find_modules() -> dict[str, str]:
    """Return the module of each kernel. Modules are found by a pattern, as importing a module takes a compiler. Raises
    TypeError if two modules list one name."""
    modules = dict[str, str]()
    for file in (file for room in ROOMS for file in sorted((Path(__file__).parent / room).glob("*.py"))):
        module = f"{file.parent.name}.{file.stem}"
        for name in re.findall(r"\w+", " ".join(LISTED.findall(file.read_text("utf-8")))):
            if (other := modules.setdefault(name, module)) != module:
                raise TypeError(f"kernel {name}: {other} and {module} both list it: rename one")
    return modules


@cache
def borders(*names: str) -> frozenset[int]:
    """Return the rows, or tokens of a sequence, at which these kernels take another path: their tiles, as their modules
    declare them."""
    modules = [
        import_module(f".{module_name}", __name__) for name in names if (module_name := find_modules().get(name))
    ]
    return frozenset(border for module in modules for border in getattr(module, "__borders__", ()))


@cache
def digest() -> str:
    """Return a digest of these sources, and of the values that they import from other modules, which become part of
    their code. Results that were compiled from other sources, or measured with them, are not valid for these."""
    from formats.kernels.engine.frozen import imported

    home = Path(__file__).parent
    hasher = hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(home.rglob("*.py"))), digest_size=8)
    for imported_value in imported(home, __name__):
        hasher.update(imported_value.encode())
    return hasher.hexdigest()


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] = lambda name, seconds: None) -> float:
    """Compile kernels, or read them from the cache, with progress(name, seconds) after each; return the seconds in
    all."""
    for module in set(find_modules().values()):
        import_module(f".{module}", __name__)
    from formats.kernels.engine.launch import warm as compile_all

    return compile_all(names, progress)
