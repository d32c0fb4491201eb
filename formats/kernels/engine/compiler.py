"""Compiling functions, each once, by processes of their own: numba is imported there only.

$ python -m formats.kernels.engine.compiler DIRECTORY SPARE CLAIMS MODULE:NAME ... < TEXTS
NAME seconds [why it is in the spare directory]                      (a line for each that it compiled)"""
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from formats.core.errors import InputError
from formats.disk.cache import say, why
from formats.disk.own_python import child_of_module
from formats.machine.host import Host

from . import objects
from .compiled import FUNCTIONS, HOME, OPTIONS, UNFORKED, Function
from .from_text import TextKernel, hand_over, take_over
from .native import COMPILES, FEATURES, NAME, cfunc, llvm

TEXTS = "texts.json"                                         # among claims: what kernels without a module say
LINES = 30                                                   # of what a process said before it failed


def compile_each(functions: list[Function]) -> Iterator[tuple[str, float]]:
    """Compile functions into the cache, by as many processes as there are threads: (name, seconds) after each.
    RuntimeError names what cannot be compiled, and why."""
    from formats.machine.threads import threads
    wanted = ", ".join(each.name for each in functions)
    if COMPILES: raise RuntimeError(f"{wanted}: a process that compiles runs no kernels")
    if not has_compiler():
        raise InputError(f"{wanted}: to be compiled, and there is no numba here: pip install numba, or run this where "
                         "it was compiled before")
    count = min(threads(), Host.here().usable, len(functions))          # each takes some hundred megabytes
    with started(functions, count) as (answers, said, processes):
        left = {each.name for each in functions}
        for line in answers:
            name, seconds, unkept = line.rstrip("\n").split(" ", 2)
            left.discard(name)
            if unkept: say(f"{objects.KEPT_CONTENT}: not kept: {unkept}")
            yield name, float(seconds)
        codes = [process.wait() for process in processes]
        if left and any(codes):
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()[-LINES:]
            raise RuntimeError("\n".join(
                [f"not compiled: {', '.join(sorted(left))} (exit status {max(codes, key=abs)})", *words]))
    objects.tidy()


def has_compiler() -> bool:
    """Whether numba can be imported."""
    try: return find_spec("numba") is not None
    except ValueError: return False


@contextmanager
def started(functions: list[Function],
            count: int) -> Iterator[tuple[IO[str], IO[bytes], list[subprocess.Popen[bytes]]]]:
    """(their answers, what they say, processes) of so many processes. What one has claimed no other compiles; they
    begin far from each other, as neighbours share what they call."""
    names = [f"{each.module}:{each.name}" for each in functions]
    orders = [[*names[first // count:], *names[:first // count]] for first in range(0, count * len(names), len(names))]
    with claiming() as claims, tempfile.TemporaryFile() as said:
        texts = Path(claims) / TEXTS
        texts.write_bytes(hand_over(functions))
        beside = f"{HOME.partition('.')[0]}."               # ours is found without, and a text's is not imported
        users = {each.module for each in functions if not each.module.startswith(beside)}
        child = child_of_module(__name__, str(objects.target()), objects.spare().name, claims, users=sorted(users),
                                OPMATRIX_COMPILES="1", NUMBA_CPU_NAME=NAME, NUMBA_CPU_FEATURES=FEATURES)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with UNFORKED:                                 # a forked process would hold the sink, and answers never end
                source, sink = os.pipe()
                try:
                    for order in orders:
                        with texts.open("rb") as given:
                            processes.append(subprocess.Popen([*child.command, *order], stdin=given, stdout=sink,
                                                              stderr=said, env=child.environment))
                finally: os.close(sink)
            with os.fdopen(source) as answers: yield answers, said, processes
        finally:
            for process in processes: process.kill()
            for process in processes: process.wait()


@contextmanager
def claiming() -> Iterator[str]:
    """A directory for claims. A forked process does not remove it at its end, as it would a TemporaryDirectory."""
    claims = tempfile.mkdtemp(prefix="opmatrix-")
    try: yield claims
    finally: shutil.rmtree(claims, ignore_errors=True)


# ---- in a process that compiles

def main(directory: str, spare: str, claims: str, *names: str) -> None:
    """Compile what nobody else has claimed yet, into a directory, or a spare one where that cannot keep it."""
    answers = os.dup(1)
    os.dup2(2, 1)                                            # what modules print is no answer
    written = take_over(sys.stdin.buffer.read())
    leave_unemitted()
    for each in names:
        module, name = each.split(":")
        try: (Path(claims) / name).touch(exist_ok=False)
        except FileExistsError: continue
        begun = time.perf_counter()
        import_module(module)
        if (function := written.get(name) or FUNCTIONS.get(name)) is None:
            raise SystemExit(f"{module}: importing it declares no kernel {name}")
        try: unkept = compile_to(function, Path(directory), Path(spare))
        except Exception as error: raise SystemExit(f"{module}.{name}: {type(error).__name__}: {error}") from error
        os.write(answers, f"{name} {time.perf_counter() - begun:.3f} {unkept}\n".encode())


def leave_unemitted() -> None:
    """From now on numba makes no machine code: a helper only becomes part of kernels, and that of a kernel is made
    once, by `compile_to`. What numba has made stays in use until the process ends, so nothing looks for garbage."""
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

    class Unemitted(JITCodeLibrary):
        """A module that is linked and optimised, and has no address."""

        def _finalize_specific(self) -> None: pass

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()                         # type: ignore[no-untyped-call]
            return 0
    JITCPUCodegen._library_class = Unemitted
    for unneeded in ("_add_module", "set_env"): setattr(JITCPUCodegen, unneeded, lambda *_: None)
    gc.disable()


def compile_to(function: Function, directory: Path, spare: Path) -> str:
    """Compile a function and write its object code, in which nothing else has a name that others see; why it is in the
    spare directory, if it is."""
    from formats.kernels.writing.text_code import compile_written
    try: code, absent = compile_written(function), list[str]()
    except Exception:
        if isinstance(function, TextKernel) or function.module.startswith(f"{HOME}."): raise
        code, absent = compile_function(function)            # a user's, which may say what only numba knows
    try: objects.write_code(directory, function.symbol, code, absent)
    except (OSError, InputError) as error:
        if directory == spare: raise
        objects.write_code(spare, function.symbol, code, absent)
        return why(directory, error)
    return ""


def compile_function(function: Function) -> tuple[bytes, list[str]]:
    """The object code of a function that numba compiles, and the names that it may lack."""
    signature = f"{'int64' if function.result else 'void'}({', '.join(['int64'] * function.arguments)})"
    made: Any = cfunc(signature, **OPTIONS)(function.body)
    module = llvm.parse_bitcode(made._library._final_module.as_bitcode())
    absent = []
    for each in (*module.functions, *module.global_variables):
        if each.name == made._wrapper_name: each.name = function.symbol
        elif not each.is_declaration: each.linkage = llvm.Linkage.internal
        elif each.name.startswith(objects.RAISING): absent.append(each.name)
    return made._library._codegen._tm.emit_object(module), absent


if __name__ == "__main__": main(*sys.argv[1:])
