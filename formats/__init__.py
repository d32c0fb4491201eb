"""The ground floor: sizes, storage formats, kernels, machines. It knows no monoid and no operator.

`FORMATS` are the formats by name; `from_arrays(meta, arrays)` is whichever of them was stored. `Mask` holds which scores of
attention are there. These names are looked up in the catalogue when they are first asked for: what the command line does before
numpy may be imported needs other modules of this package."""
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formats.catalogue import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A public name of the catalogue; `__all__` is the catalogue's."""
    if name == "__all__" or (not name.startswith("_") and name in import_module("formats.catalogue").__all__):
        return getattr(import_module("formats.catalogue"), name)
    raise AttributeError(f"module 'formats' has no attribute {name!r}")


def __dir__() -> list[str]: return [*globals(), *__getattr__("__all__")]
