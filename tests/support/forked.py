"""Scripts, each in a fork of one process that has third-party packages in memory already: as they are started by hand,
without the seconds that imports take. What a script imports is imported once for all of its runs. As a program it reads
lines of JSON [folder, script, [words of a run, ..]] and answers [[status, output, errors], ..]."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from contextlib import ExitStack
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

    def __call__(self, folder, script, runs):
        """Of each run of the script, with these words each: its status, what it printed, and its errors."""
        print(json.dumps([str(folder), str(script), runs]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def answered(folder, script, runs):
    """The runs of a script; those after one that ends the process have its status, and printed nothing."""
    with ExitStack() as files:
        status, *streams = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(1 + 2 * len(runs)))
        if not (process := os.fork()):
            for words, *pair in zip(runs, streams[::2], streams[1::2], strict=True):
                for stream, end in zip(pair, (1, 2), strict=True):
                    os.dup2(stream.fileno(), end)
                print(run(folder, script, words), file=status, flush=True)
            os._exit(0)
        last = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for stream in (status, *streams):
            stream.seek(0)
        texts = [stream.read() for stream in streams]
        statuses = [*map(int, status), *[last] * len(runs)]
        return [*zip(statuses, texts[::2], texts[1::2], strict=False)]


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
