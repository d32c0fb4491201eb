"""The command line: commands, their options, what they print and write, and how they exit."""
import os
import sys

STARTED = "-m", "-c", "opmatrix", "opmatrix.exe"            # argv[0] of a process that is a command, while it imports


def leave_working_directory(arguments: list[str], path: list[str], named: str) -> None:
    """Take the working directory off `path` in a process that is a command, unless `named`, a PYTHONPATH, names it: a
    command imports no file of the folder that it is called in. `-m`, `-c` and an empty part of PYTHONPATH add it."""
    try: here = os.getcwd()
    except FileNotFoundError: return                        # it was removed, so no file is in it
    names = [os.path.abspath(part) for part in named.split(os.pathsep) if part]
    if arguments and os.path.basename(arguments[0]) in STARTED and here not in names:
        path[:] = [each for each in path if os.path.abspath(each) != here]


leave_working_directory(sys.argv, sys.path, os.environ.get("PYTHONPATH", ""))       # before commands import anything
