"""Scripts, each in a fork of one process that has third-party packages in memory already: as they are started by hand,
without the seconds that imports take. As a program it reads lines of JSON [folder, script, words] and answers [status,
output, errors]."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

THIRD = "numpy.random", "scipy.optimize", "scipy.sparse.linalg", "sympy", "egglog.bindings", "safetensors.numpy"


class Forks:
    """The process; a context, so that it ends with its tests."""

    def __init__(self, folder, environment):
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, folder, script, *words):
        """The script's status, what it printed, and its errors."""
        print(json.dumps([str(folder), str(script), [*map(str, words)]]), file=self.process.stdin, flush=True)
        return tuple(json.loads(self.process.stdout.readline()))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def answered(folder, script, words):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        if not (process := os.fork()):
            for stream, end in ((out, 1), (errors, 2)):
                os.dup2(stream.fileno(), end)
            os._exit(run(folder, script, words))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for stream in (out, errors):
            stream.seek(0)
        return status, out.read(), errors.read()


def run(folder, script, words):
    """The script as the interpreter runs one, with its own folder first; its status."""
    os.chdir(folder)
    sys.argv, sys.path[:0] = [script, *words], [str(Path(script).parent)]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


if __name__ == "__main__":
    for name in THIRD:
        import_module(name)
    for line in sys.stdin:
        print(json.dumps(answered(*json.loads(line))), flush=True)
