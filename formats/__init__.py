"""The lowest layer: sizes, storage formats, kernels, machines. It knows no monoid and no operator.

`FORMATS` are the formats by name; `from_arrays(meta, arrays)` restores whichever of them was stored. `Mask` holds the
attention scores that are computed. These names are looked up in the catalogue on first use, because the command line
needs other modules of this package before numpy may be imported."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from formats.storage.catalogue import *  # noqa: F403


class OldModules:
    """A finder, asked last, by which the old name of a module here is imported with a warning."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an old name in this package; None for any other module."""
        if not name.startswith("formats."):
            return None
        return cast("ModuleSpec | None", import_module("formats.core.moved").old_spec(name))


sys.meta_path.append(OldModules)


def __getattr__(name: str) -> Any:
    """Return a public name of the catalogue, which is imported only then (never for the name of a module). `__all__` is
    the catalogue's."""
    module = f"formats.{name}"
    if name == "__all__" or not (name.startswith("_") or PathFinder.find_spec(module, __path__)):  # noqa: F405
        catalogue = import_module("formats.storage.catalogue")
        if name == "__all__" or name in catalogue.__all__:
            return getattr(catalogue, name)
        if (now := import_module("formats.core.moved").current(module)) != module:
            return import_module(now)
    raise AttributeError(f"module 'formats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
