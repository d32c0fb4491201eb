"""The middle floor: operators, monoids, their oracles, models, and programs that run.

What is public in the modules named below is found here by name; a module is imported when it is first asked for."""
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opmatrix.models import *  # noqa: F403
    from opmatrix.monoid import *  # noqa: F403
    from opmatrix.operators import *  # noqa: F403
    from opmatrix.oracles import *  # noqa: F403
    from opmatrix.patterns import *  # noqa: F403
    from opmatrix.term import *  # noqa: F403

MODULES = ("operators", "patterns", "oracles", "term", "monoid", "models")


def __getattr__(name: str) -> Any:
    """A module of the package, or the first public thing of that name in one of MODULES."""
    if name == "__all__":
        return ["monoids", *(public for module in MODULES for public in import_module(f"opmatrix.{module}").__all__)]
    if not name.startswith("_"):
        if find_spec(f"opmatrix.{name}"): return import_module(f"opmatrix.{name}")
        for module in MODULES:
            if name in (found := import_module(f"opmatrix.{module}")).__all__: return getattr(found, name)
    raise AttributeError(f"module 'opmatrix' has no attribute {name!r}")


def __dir__() -> list[str]:
    from pkgutil import iter_modules
    return [*globals(), *(module.name for module in iter_modules(__spec__.submodule_search_locations)), *__getattr__("__all__")]
