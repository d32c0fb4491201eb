"""The command `opmatrix`. What must be in the environment before numpy is imported is put there first."""
import errno
import gc
import io
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from opmatrix.inference.parsed_ahead import ParsedAhead
from rewrites.cli.machine.environment import prepare
from rewrites.cli.straight import TOKENIZER, read_plainly

NO_ROOM = errno.ENOSPC, errno.EDQUOT, errno.EFBIG              # of a disk, a share of it, a file
OBJECTS = 50_000, 10, 10                                    # made before garbage is looked for: graphs are large and
                                                            # hold no cycles


def main() -> None:
    """Runs a command. Exit status: 2 and one line on stderr for bad input; 70 for a fault in opmatrix, whose line names
    the file that keeps it; 130 where it was interrupted, 143 where it was told to end; 1 where what was verified does
    not hold, or what is printed cannot be written, in one line, or nobody reads it."""
    began = time.perf_counter()
    attend_termination()
    attend_streams()
    try: run_command(began)
    except KeyboardInterrupt: exit_with("interrupted", 130)


def run_command(began: float | None = None) -> None:
    """`began`: when, for the first phase of what the command reports."""
    prepare()
    gc.set_threshold(*OBJECTS)                              # a process of our own; a library leaves it alone
    try:
        status = call_command(sys.argv[1:] or ["--help"], began)
        if status == 130: raise KeyboardInterrupt           # which typer makes a number of
        sys.stdout.flush()
    except SystemExit: raise
    except KeyboardInterrupt:
        exit_with("interrupted", 130)
    except find_kinds("outputs", "misunderstood") as error:
        exit_with(error.format_message() + usage(error), 2)
    except find_kinds("outputs", "bad_input") as error:
        exit_with(str(error.args[0] if error.args else error), 2)
    except find_kinds("outputs", "interruptions"):
        exit_with("interrupted", 130)
    except BrokenPipeError:
        discard(1)
        sys.exit(1)
    except MemoryError:
        exit_with("there is not enough memory for this model or batch", 2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:           # a file that is asked for says so itself
            discard(1)
            exit_with(f"{error.filename or 'what is printed'}: not written: {error.strerror}: make room there", 1)
        from rewrites.cli.outputs import FAULT, report_fault
        exit_with(report_fault(error), FAULT)
    gc.freeze()                                             # else the end looks through all that there is, a tenth of a
                                                            # second for one token
    sys.exit(status)


def call_command(arguments: list[str], began: float | None) -> int | None:
    """Its exit status, None for 0."""
    if asked := read_plainly(arguments):
        ahead = ParsedAhead(Path(asked.model) / TOKENIZER)
        from rewrites.cli.generate import write_reply
        write_reply(asked.model, asked.prompt, **asked.options, began=began, ahead=ahead)
        return None
    from rewrites.cli.commands import app
    status: int | None = app(arguments, prog_name="opmatrix", standalone_mode=False, obj=began)
    return status


def find_kinds(module: str, kinds: str) -> Any:
    """Exceptions that a module of commands knows of, which is imported once one is there."""
    return getattr(import_module(f"rewrites.cli.{module}"), kinds)()


def attend_termination() -> None:
    """SIGTERM ends the command as an error would: what is being written is cleared away, and processes that compute for
    it end, too."""
    process = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != process: os._exit(128 + number)    # a fork, which clears away nothing of its parent's
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, end)


def attend_streams() -> None:
    """A closed standard output ends the command, before a file takes its number and is printed into; a closed standard
    error is one that says nothing. What an encoding cannot show is spelled by its number."""
    if sys.stderr is None: sys.stderr = open(os.devnull, "w")
    if sys.stdout is None: exit_with("standard output: it is closed: send it to a file, or to /dev/null", 2)
    if isinstance(sys.stdout, io.TextIOWrapper): sys.stdout.reconfigure(errors="backslashreplace")


def discard(*streams: int) -> None:
    """Sends to nowhere what is still to be written to these streams at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams: os.dup2(nowhere, stream)


def usage(error: object) -> str:
    """How the command that was not understood is written, where it is known which."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f" ({context.get_usage()}; {context.command_path} -h says more)"


def exit_with(message: str, status: int) -> NoReturn:
    """One line on stderr, without what a terminal would obey, and the end."""
    from rewrites.cli.outputs import printable
    try: print(f"opmatrix: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except OSError: discard(2)
    sys.exit(status)


if __name__ == "__main__":
    main()
