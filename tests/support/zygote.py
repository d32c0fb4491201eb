"""Compilers in forks of one process that has numba in memory, for what tests compile in their own process: each term of
one's own is a kernel, and most of what compiling one takes is the import. As a program it reads lines of JSON, answers
each by the forks' numbers, and, when all have ended, by their statuses."""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

ANSWERS = "answers.fifo"  # among claims


class Zygote:
    """The process, from its first request on, of the process that made it alone."""

    def __init__(self, otherwise):
        self.otherwise, self.lock, self.process, self.owner = otherwise, Lock(), None, os.getpid()

    def begin(self):
        from formats.kernels.engine.native import FEATURES, NAME

        environment = os.environ | {
            "OPMATRIX_COMPILES": "1",
            "NUMBA_CPU_NAME": NAME,
            "NUMBA_CPU_FEATURES": FEATURES,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, request):
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def read(self):
        return json.loads(self.process.stdout.readline())

    @contextmanager
    def started(self, functions, count):
        """As compiler.started."""
        if os.getpid() != self.owner or not self.lock.acquire(blocking=False):
            with self.otherwise(functions, count) as found:
                yield found
            return
        from formats.kernels.engine import compiler, objects

        try:
            if self.process is None:
                self.begin()
            names = [f"{each.module}:{each.name}" for each in functions]
            orders = [[*names[at // count :], *names[: at // count]] for at in range(0, count * len(names), len(names))]
            with compiler.claiming() as claims, tempfile.NamedTemporaryFile() as said:
                (Path(claims) / compiler.TEXTS).write_bytes(compiler.hand_over(functions))
                os.mkfifo(Path(claims) / ANSWERS)
                self.ask(
                    {
                        "words": [str(objects.target()), objects.spare().name, claims],
                        "orders": orders,
                        "said": said.name,
                        "path": [os.path.abspath(each) for each in sys.path],
                    }
                )
                codes = []

                def wait(at):
                    if not codes:
                        codes.extend(self.read())
                    return codes[at]

                with open(Path(claims) / ANSWERS) as answers:
                    numbers = self.read()
                    try:
                        yield answers, said, [SimpleNamespace(wait=lambda at=at: wait(at)) for at in range(count)]
                    finally:
                        if not codes:
                            for number in numbers:
                                with suppress(ProcessLookupError):
                                    os.kill(number, 9)
                            wait(0)
        finally:
            self.lock.release()

    def end(self):
        if self.process is None:
            return
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# ---- in that process


def compiling(request, order, answers):
    """A fork that compiles: its status."""
    from formats.kernels.engine import compiler

    directory, spare, claims = request["words"]
    for end, place, how in (
        (0, f"{claims}/{compiler.TEXTS}", os.O_RDONLY),
        (2, request["said"], os.O_WRONLY | os.O_APPEND),
    ):
        os.dup2(opened := os.open(place, how), end)
        os.close(opened)
    os.dup2(answers, 1)
    os.close(answers)
    sys.stdin, sys.path[:] = open(0), request["path"]
    try:
        compiler.main(directory, spare, claims, *order)
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


def answer(request):
    """Forks hold the end that answers are written to, so these end when all have ended."""
    answers, numbers = os.open(f"{request['words'][2]}/{ANSWERS}", os.O_WRONLY), []
    for order in request["orders"]:
        if not (number := os.fork()):
            os._exit(compiling(request, order, answers))
        numbers.append(number)
    os.close(answers)
    print(json.dumps(numbers), flush=True)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]), flush=True)


if __name__ == "__main__":
    from formats.kernels.engine.compiled import FUNCTIONS
    from formats.kernels.engine.compiler import leave_unemitted
    from formats.kernels.generated.rowwise import row_lanes as row_lanes
    from formats.kernels.llvm.text_code import compile_written
    from formats.kernels.rows import activations as activations

    leave_unemitted()
    compile_written(FUNCTIONS["gelu"])  # numba reads its own tables, and words are written once
    for line in sys.stdin:
        answer(json.loads(line))
