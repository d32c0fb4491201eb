"""Modules that have moved: an import of the old name says where the module is now.

`moved.json` maps each old name of 0.20 to the new one; a room that was divided is mapped to the room that has most of
it."""
import json
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NoReturn

SINCE = "0.21"
MOVED_FILE = Path(__file__).with_suffix(".json")


@cache
def new_names() -> dict[str, str]:
    """Old names of modules, each with the new one."""
    table: dict[str, str] = json.loads(MOVED_FILE.read_text("utf-8"))
    return table


def current(name: str) -> str:
    """The name that a module has now."""
    return new_names().get(name, name)


def directions(name: str) -> str:
    """Where a module is now; of a room also its modules that are not there under the name that they had."""
    room = current(name)
    apart = [f"{old} is {new}" for old, new in new_names().items()
             if old.rpartition(".")[0] == name and new != f"{room}.{old.rpartition('.')[2]}"]
    return "; ".join([f"{name} is {room} since opmatrix {SINCE}", *apart])


class OldName:
    """A finder, asked last, and the loader of an old name: to load it is an error that says the new one."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of an old name of ours; None for any other module."""
        ours = name.startswith(("formats.", "opmatrix.", "rewrites."))
        return ModuleSpec(name, cls) if ours and name in new_names() else None     # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> NoReturn:
        """Raises ModuleNotFoundError, without the attribute `name`, by which `from package import name` would lose its
        text."""
        raise ModuleNotFoundError(f"{directions(spec.name)}: import it from there")

    @staticmethod
    def exec_module(module: object) -> None:
        """Called by no one, as no module is created; import asks for both methods."""


def announce() -> None:
    """Let imports of old names say the new ones, in this process."""
    if OldName not in sys.meta_path: sys.meta_path.append(OldName)
