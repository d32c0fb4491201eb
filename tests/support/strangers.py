"""Commands run by another user than the one who tests, where that is root; else by this one. Nobody has a home.

The other user need not be able to read this Python: all modules that a command imports are imported before it begins,
as a first run, by this user, has them, and the key of its kernels, which names releases of packages, is known."""

import json
import os
import subprocess
import sys

from children import LIMIT, ROOT

OTHER = 54321  # a user who is neither us nor root
COMMAND = """
import json, os, sys
from contextlib import suppress
from importlib import import_module
modules, user, output, *arguments = json.loads(sys.argv[1])
for name in modules:
    with suppress(Exception): import_module(name)
from formats.kernels.engine.objects import key
key()
if user and not os.geteuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
from rewrites.cli.__main__ import main
sys.argv = ["opmatrix", *arguments]
try: main()
finally:
    loaded = sorted(sys.modules)
    os.write(output, json.dumps(loaded).encode())
"""


def as_stranger(arguments, cwd, **variables):
    """(what a command printed, what it said, the modules that it imported) by another user, in a process without HOME.
    It must end well."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "OPMATRIX_CACHE")
    }
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    modules = []
    for user in (0, OTHER):
        source, sink = os.pipe()
        with os.fdopen(source) as told:
            ran = subprocess.run(
                [sys.executable, "-c", COMMAND, json.dumps([modules, user, sink, *arguments])],
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                pass_fds=[sink],
            )
            os.close(sink)
            assert ran.returncode == 0, ran.stderr
            modules = json.loads(told.read())
    return ran.stdout, ran.stderr, modules
