"""Python processes that opmatrix starts, all by `child_of_python`: no file of the working directory is imported there.

This file is also the script that such a process runs first: `python -P own_python.py PATHS MODULE ARGUMENTS`, PATHS a
list in JSON."""

import json
import os
import runpy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

PACKAGES_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PATH_VARIABLE = "PYTHONPATH"


@dataclass(frozen=True)
class PythonChild:
    """A command that runs a Python, and its environment."""

    command: list[str]
    environment: dict[str, str]


def child_of_python(*arguments: str, **variables: str) -> PythonChild:
    """Return the command of a Python with these arguments and additional variables of the environment. `-P` keeps the
    working directory off `sys.path`; an empty part of an inherited PYTHONPATH would bring it back, so empty parts are
    dropped. Raise RuntimeError where `sys.executable` names no Python."""
    if not sys.executable:
        raise RuntimeError("sys.executable is empty: start this with a Python interpreter")
    environment = dict(os.environ)
    inherited = environment.pop(PATH_VARIABLE, "")
    if parts := [part for part in inherited.split(os.pathsep) if part]:
        environment[PATH_VARIABLE] = os.pathsep.join(parts)
    return PythonChild([sys.executable, "-P", *arguments], environment | variables)


def child_of_module(module: str, *arguments: str, users: Iterable[str] = (), **variables: str) -> PythonChild:
    """Return the command of a Python that runs a module of ours as `-m` does. It finds our packages by file and others
    as any Python does; the additional paths of this process come last, and after them the folders of `users`, modules
    in which a user declared kernels."""
    paths = [*added_paths(), *map(folder_of, users)]
    return child_of_python(__file__, json.dumps(paths), module, *arguments, **variables)


def added_paths() -> list[str]:
    """Return the entries of `sys.path` but for the working directory and the folder of the script that runs. Relative
    ones are left out where the working directory has been removed."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    script = getattr(sys.modules["__main__"], "__file__", None)
    unasked = {here} | ({os.path.dirname(os.path.abspath(script))} if script else set())
    paths = [os.path.abspath(path) for path in sys.path if here or os.path.isabs(path)]
    return [path for path in paths if path not in unasked]


def folder_of(module: str) -> str:
    """Return the folder in which an imported module is found by its dotted name."""
    file = os.path.abspath(str(sys.modules[module].__file__))
    depth = module.count(".") + (os.path.basename(file) == "__init__.py")
    for _ in range(depth + 1):
        file = os.path.dirname(file)
    return file


def run_ours(paths: str, module: str, *arguments: str) -> None:
    """Run a module of the packages beside this file, with `paths` after the entries that Python itself has."""
    sys.path.insert(0, PACKAGES_FOLDER)
    import_module(module.partition(".")[0])  # our package, also where others have its name
    del sys.path[0]
    sys.path += [path for path in json.loads(paths) if path not in sys.path]
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_ours(*sys.argv[1:])
