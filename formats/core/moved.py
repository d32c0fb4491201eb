"""Modules that have moved: an import of the old name works, with a warning that names the new one. The doors of the
packages import this module only when an import of theirs fails."""

import json
import warnings
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SINCE = "0.21"
MOVED_FILE = Path(__file__).with_suffix(".json")  # each old name of 0.20, with the new one


@cache
def new_names() -> dict[str, str]:
    """Return the old names of modules, each with the new one."""
    table: dict[str, str] = json.loads(MOVED_FILE.read_text("utf-8"))
    return table


@cache
def old_rooms() -> frozenset[str]:
    """Return the old names of folders: every parent of an old name."""
    return frozenset(name.rpartition(".")[0] for name in new_names())


def current(name: str) -> str:
    """Return the present name of a module."""
    return new_names().get(name, name)


def old_spec(name: str) -> ModuleSpec | None:
    """Return the spec of an old name; None for any other module."""
    return ModuleSpec(name, OldName) if name in new_names() or name in old_rooms() else None  # type: ignore[arg-type]


class OldName:
    """The loader of old names."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name, itself and no copy, with a FutureWarning; for an old folder a package
        without files, whose modules are then looked up here."""
        if spec.name in old_rooms():
            room = ModuleType(spec.name)
            room.__path__ = []
            return room
        new = current(spec.name)
        warnings.warn(f"{spec.name} is {new} since opmatrix {SINCE}: import it from there", FutureWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give a module back the spec of its new name, which import has replaced by that of the old one."""
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state
