"""Compiling functions, each once, by processes of their own: numba is imported there only.

$ python -m formats.kernels.engine.compiler PARENT DIRECTORY SPARE CLAIMS MODULE:NAME ... < TEXTS
NAME seconds [why it is in the spare directory]                      (a line for each that it compiled)

It ends when its parent does. A function that a process of another parent compiles is waited for, not compiled twice."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import IO, Any

from formats.core.errors import InputError
from formats.disk.cache import say, why
from formats.disk.files import shown
from formats.disk.locks import taking
from formats.disk.own_python import child_of_module
from formats.host.host import Host
from formats.kernels.engine import objects
from formats.kernels.engine.compiled import FUNCTIONS, HOME, OPTIONS, UNFORKED, Function
from formats.kernels.engine.from_text import TextKernel, hand_over, take_over
from formats.kernels.engine.native import COMPILES, FEATURES, NAME, cfunc, llvm

TEXTS = "texts.json"  # a file beside the claims: texts of TextKernels
LINES = 30  # last lines of a failed process that an error quotes
MANY = 8  # kernels whose compilation takes seconds
LOOK = 0.5  # seconds between looks at parents and children
LONGEST = 60.0  # seconds that another process may compile one kernel
KILLED = -9  # the exit status when the system is out of memory
OUT_OF_MEMORY = re.compile("MemoryError|bad_alloc|out of memory|Cannot allocate memory", re.IGNORECASE)


def compile_each(functions: list[Function]) -> Iterator[tuple[str, float]]:
    """Compile functions into the cache, by as many processes as there are threads; yield (name, seconds) after each.
    RuntimeError names the functions that cannot be compiled, and why."""
    from formats.host.threads import threads

    wanted = ", ".join(function.name for function in functions)
    if COMPILES:
        raise RuntimeError(f"{wanted}: a process that compiles kernels cannot run them")
    if not has_compiler():
        raise InputError(
            f"{wanted}: to be compiled, and there is no numba here: pip install numba, or run this where "
            "it was compiled before"
        )
    announce(len(functions))
    most = min(threads(), Host.here().usable, len(functions))  # each takes some hundred megabytes
    left = {function.name: function for function in functions}
    for count in dict.fromkeys((most, 1)):  # out of memory: once more with one process
        with started([*left.values()], count) as (answers, messages, processes):
            for line in answers:
                name, seconds, unkept = line.rstrip("\n").split(" ", 2)
                left.pop(name, None)
                if unkept:
                    say(f"{objects.KEPT_CONTENT}: not kept: {unkept}")
                yield name, float(seconds)
            failure = find_failure([process.wait() for process in processes], messages, left) if left else None
        if not isinstance(failure, InputError):
            break
    if failure:
        raise failure
    objects.tidy()


def find_failure(codes: list[int], said: IO[bytes], left: Iterable[str]) -> Exception | None:
    """Return the error of compilers that ended with these statuses before all kernels were compiled; None if no process
    failed. It is an InputError for lack of memory."""
    if not any(codes):
        return None
    said.seek(0)
    words = said.read().decode(errors="replace").strip()
    named = ", ".join(sorted(left))
    if KILLED in codes or OUT_OF_MEMORY.search(words):
        return InputError(
            f"not compiled: {named}: there was not enough memory for a compiler, which takes some "
            "hundred megabytes: allow more, or compile where there is more, with this cache"
        )
    return RuntimeError(
        "\n".join([f"not compiled: {named} (exit status {max(codes, key=abs)})", *words.splitlines()[-LINES:]])
    )


def announce(count: int) -> None:
    """Report that compiling begins, where it takes seconds: for many kernels, and for the first in a processor's
    directory."""
    place = objects.target()
    spare = objects.is_spare(place)
    if count < MANY and (spare or any(place.glob("*.o"))):
        return
    how = "by every process again, as they cannot be stored" if spare else f"once: they are kept in {shown(place)}"
    if spare and objects.has_others():
        how += f": {shown(objects.home().parent)} has only kernels of another processor or version"
    say(f"compiling kernels, {count} of them, which may take a minute, {how}")


def has_compiler() -> bool:
    """True if numba can be imported."""
    try:
        return find_spec("numba") is not None
    except ValueError:
        return False


@contextmanager
def started(
    functions: list[Function], count: int
) -> Iterator[tuple[Iterable[str], IO[bytes], list[subprocess.Popen[bytes]]]]:
    """Start `count` compiling processes; yield their answers, their messages and the processes. A function that one has
    claimed no other compiles; they begin far from each other, as neighbours share the helpers that they call."""
    names = [f"{function.module}:{function.name}" for function in functions]
    orders = [
        [*names[first // count :], *names[: first // count]] for first in range(0, count * len(names), len(names))
    ]
    with claiming() as claims, tempfile.TemporaryFile() as messages:
        texts = Path(claims) / TEXTS
        texts.write_bytes(hand_over(functions))
        beside = f"{HOME.partition('.')[0]}."  # our package and modules of texts need none
        users = {function.module for function in functions if not function.module.startswith(beside)}
        child = child_of_module(
            __name__,
            str(os.getpid()),
            str(objects.target()),
            objects.spare().name,
            claims,
            users=sorted(users),
            OPMATRIX_COMPILES="1",
            NUMBA_CPU_NAME=NAME,
            NUMBA_CPU_FEATURES=FEATURES,
        )
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with UNFORKED:  # a forked process would hold the sink open for ever
                source, sink = os.pipe()
                try:
                    for order in orders:
                        with texts.open("rb") as stdin:
                            processes.append(
                                subprocess.Popen(
                                    [*child.command, *order],
                                    stdin=stdin,
                                    stdout=sink,
                                    stderr=messages,
                                    env=child.environment,
                                )
                            )
                finally:
                    os.close(sink)
            with os.fdopen(source, "rb") as answers:
                yield read_answers(answers, processes), messages, processes
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def read_answers(answers: IO[bytes], processes: list[subprocess.Popen[bytes]]) -> Iterator[str]:
    """Yield the lines that compilers write, until they have ended. Compilers that were stopped are continued."""
    if not hasattr(os, "waitid"):  # where no process stops, or the system does not report it
        for line in answers:
            yield line.decode()
        return
    import select

    rest = b""
    while True:
        while not select.select([answers], [], [], LOOK)[0]:
            continue_stopped(processes)
        if not (piece := os.read(answers.fileno(), 1 << 16)):
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)


def continue_stopped(processes: list[subprocess.Popen[bytes]]) -> None:
    """Continue child processes that were stopped."""
    for process in processes:
        with suppress(OSError):  # it has ended
            if os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG):
                process.send_signal(signal.SIGCONT)


@contextmanager
def claiming() -> Iterator[str]:
    """Make a directory for claims. A forked process does not remove it at its end, as it would a TemporaryDirectory."""
    claims = tempfile.mkdtemp(prefix="opmatrix-")
    try:
        yield claims
    finally:
        shutil.rmtree(claims, ignore_errors=True)


# ---- in a process that compiles


def main(directory: str, spare: str, claims: str, *names: str) -> None:
    """Compile the functions that no other process has claimed yet, into a directory, or a spare one where that cannot
    be written."""
    work = CompilerWork(Path(directory), Path(spare), (Path(claims) / TEXTS).stat().st_mtime_ns, os.dup(1))
    os.dup2(2, 1)  # output of modules must not be read as answers
    written = take_over(sys.stdin.buffer.read())
    leave_unemitted()
    work.compile_all(claim(names, Path(claims), written))


def claim(names: Iterable[str], claims: Path, written: Mapping[str, Function]) -> Iterator[Function]:
    """Yield the functions of these names that no other compiler of the same parent has taken yet."""
    for entry in names:
        module, name = entry.split(":")
        try:
            (claims / name).touch(exist_ok=False)
        except FileExistsError:
            continue
        import_module(module)
        if (function := written.get(name) or FUNCTIONS.get(name)) is None:
            raise SystemExit(f"{module}: importing it declares no kernel {name}")
        yield function


@dataclass(frozen=True)
class CompilerWork:
    """The job of a compiler: the directory for object code, and the spare directory; the time (nanoseconds) since which
    code there is new; the descriptor of the file for its answers."""

    directory: Path
    spare: Path
    since: int
    answers: int

    def compile_all(self, functions: Iterable[Function]) -> None:
        """Compile functions, and last those that other processes are compiling."""
        elsewhere = [function for function in functions if not self.compile(function, 0)]
        for function in elsewhere:
            if not self.compile(function, LONGEST):
                self.compile_anyway(function)

    def compile(self, function: Function, seconds: float) -> bool:
        """Compile a function, unless another process has done so. False where one has been at it for `seconds`."""
        with taking(objects.lock_file(self.directory, function.symbol), seconds) as taken:
            if taken and self.is_new(function):
                self.answer(function, 0.0, "")
            elif taken:
                self.compile_anyway(function)
        return taken

    def is_new(self, function: Function) -> bool:
        """True if the code of a function has been written since this was requested, and is complete."""
        file = objects.file(self.directory, function.symbol)
        try:
            return file.stat().st_mtime_ns >= self.since and bool(objects.read_intact(file))
        except (OSError, InputError):
            return False

    def compile_anyway(self, function: Function) -> None:
        """Compile a function, even if another process does."""
        begun = time.perf_counter()
        try:
            unkept = compile_to(function, self.directory, self.spare)
        except Exception as error:
            raise SystemExit(f"{function.module}.{function.name}: {type(error).__name__}: {error}") from error
        self.answer(function, time.perf_counter() - begun, unkept)

    def answer(self, function: Function, seconds: float, unkept: str) -> None:
        """Write the answer that the code of a function is there."""
        os.write(self.answers, f"{function.name} {seconds:.3f} {unkept}\n".encode())


def attend_parent(parent: int, *leftovers: str) -> None:
    """Start a thread that ends this process soon after its parent has ended, and removes the directories that the
    parent would have removed."""

    def attend() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        for directory in leftovers:
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    if os.name != "nt":
        Thread(target=attend, daemon=True).start()


def leave_unemitted() -> None:
    """Keep numba from making machine code: a helper only becomes part of kernels, and the code of a kernel is made
    once, by `compile_to`. Objects of numba stay in use until the process ends, so garbage collection is switched
    off."""
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

    class Unemitted(JITCodeLibrary):
        """A module that is linked and optimised, and has no address."""

        def _finalize_specific(self) -> None:
            pass

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()  # type: ignore[no-untyped-call]
            return 0

    JITCPUCodegen._library_class = Unemitted
    for unneeded in ("_add_module", "set_env"):
        setattr(JITCPUCodegen, unneeded, lambda *_: None)
    gc.disable()


def compile_to(function: Function, directory: Path, spare: Path) -> str:
    """Compile a function and write its object code, in which no other name is visible outside. Return why it is in the
    spare directory; empty if it is not."""
    from formats.kernels.llvm.text_code import compile_written

    try:
        code, absent = compile_written(function), list[str]()
    except Exception:
        if isinstance(function, TextKernel) or function.module.startswith(f"{HOME}."):
            raise
        code, absent = compile_function(function)  # a function of a user, which may need numba
    try:
        objects.write_code(directory, function.symbol, code, absent)
    except (OSError, InputError) as error:
        if directory == spare:
            raise
        objects.write_code(spare, function.symbol, code, absent)
        return why(directory, error)
    return ""


def compile_function(function: Function) -> tuple[bytes, list[str]]:
    """Compile a function by numba. Return its object code, and the names that it may lack."""
    signature = f"{'int64' if function.result else 'void'}({', '.join(['int64'] * function.arguments)})"
    compiled: Any = cfunc(signature, **OPTIONS)(function.body)
    module = llvm.parse_bitcode(compiled._library._final_module.as_bitcode())
    absent = []
    for value in (*module.functions, *module.global_variables):
        if value.name == compiled._wrapper_name:
            value.name = function.symbol
        elif not value.is_declaration:
            value.linkage = llvm.Linkage.internal
        elif value.name.startswith(objects.RAISING):
            absent.append(value.name)
    return compiled._library._codegen._tm.emit_object(module), absent


if __name__ == "__main__":
    attend_parent(int(sys.argv[1]), *sys.argv[3:5])
    main(*sys.argv[2:])
