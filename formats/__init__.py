"""The lowest layer: sizes, storage formats, kernels, machines. It knows no monoid and no operator.

`FORMATS` are the formats by name; `from_arrays(meta, arrays)` restores whichever of them was stored. `Mask` holds the
attention scores that are computed. These names are looked up in the catalogue on first use, because the command line
needs other modules of this package before numpy may be imported."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from formats.core.moved import announce, current

if TYPE_CHECKING:
    from formats.storage.catalogue import *  # noqa: F403

announce()


def __getattr__(name: str) -> Any:
    """Return a public name of the catalogue, which is imported only then (never for the name of a module). `__all__` is
    the catalogue's."""
    if name == "__all__" or not (name.startswith("_") or find_spec(f"formats.{name}")):
        catalogue = import_module("formats.storage.catalogue")
        if name == "__all__" or name in catalogue.__all__:
            return getattr(catalogue, name)
    if (module := f"formats.{name}") != current(module):
        return import_module(current(module))
    raise AttributeError(f"module 'formats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
