"""The command line: commands, their options, what they print and write, and how they exit."""

import os
import sys

STARTED = "-m", "-c", "opmatrix", "opmatrix.exe"  # argv[0] of a command while it imports this package


def leave_working_directory(arguments: list[str], path: list[str], named: str) -> None:
    """Take the working directory off `path` in a process that is a command, unless `named`, a PYTHONPATH, names it: a
    command imports no file of the folder that it is called in. `-m` and an empty part of PYTHONPATH add its absolute
    name, `-c` an empty one. With `-c` an absolute name was added by the code or by a parent process, and stays."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return  # it was removed, so no file is in it
    parts = named.split(os.pathsep) if named else []
    if here in [os.path.abspath(part) for part in parts if part]:
        return
    if not arguments or (starter := os.path.basename(arguments[0])) not in STARTED:
        return
    added = {""} if starter == "-c" and "" not in parts else {"", here}
    path[:] = [entry for entry in path if entry not in added]


leave_working_directory(sys.argv, sys.path, os.environ.get("PYTHONPATH", ""))  # before commands import anything
