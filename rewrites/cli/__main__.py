"""The command `opmatrix`. The environment variables that numpy reads at its import are set first."""

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

NO_ROOM = errno.ENOSPC, errno.EDQUOT, errno.EFBIG  # a full disk, a quota, a file that is too large
OBJECTS = 50_000, 10, 10  # thresholds of garbage collection: graphs are large and
# hold no cycles
RETURNED = 0.02  # seconds after which a function whose exceptions are ignored has mostly returned


def main() -> None:
    """Run a command. Exit status: 2 and one line on stderr for bad input; 70 for a fault in opmatrix, with a line that
    names the file that holds it; 130 for an interruption, 143 for SIGTERM; 1 if a verification fails, or if output
    cannot be written, with one line, or has no reader."""
    began = time.perf_counter()
    attend_termination()
    attend_streams()
    try:
        run_command(began)
    except KeyboardInterrupt:
        exit_with("interrupted", 130)


def run_command(began: float | None = None) -> None:
    """Run a command. `began`: its start, for the first phase that it reports."""
    prepare()
    gc.set_threshold(*OBJECTS)  # in a process of our own; as a library it is left alone
    try:
        status = call_command(sys.argv[1:] or ["--help"], began)
        if status == 130:
            raise KeyboardInterrupt  # typer turns it into a number
        sys.stdout.flush()
    except SystemExit:
        raise
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
        if isinstance(error, OSError) and error.errno in NO_ROOM:  # a requested file has its own message
            discard(1)
            exit_with(f"{error.filename or 'the output'}: not written: {error.strerror}: make room there", 1)
        from rewrites.cli.outputs import FAULT, report_fault

        exit_with(report_fault(error), FAULT)
    gc.freeze()  # else the exit collects all objects, a tenth of a second
    # for one token
    sys.exit(status)


def call_command(arguments: list[str], began: float | None) -> int | None:
    """Call a command and return its exit status, None for 0."""
    if asked := read_plainly(arguments):
        ahead = ParsedAhead(Path(asked.model) / TOKENIZER)
        from rewrites.cli.generate import write_reply

        write_reply(asked.model, asked.prompt, **asked.options, began=began, ahead=ahead)
        return None
    from rewrites.cli.commands import app

    status: int | None = app(arguments, prog_name="opmatrix", standalone_mode=False, obj=began)
    return status


def find_kinds(module: str, kinds: str) -> Any:
    """Return exceptions that a module of commands defines. The module is imported only once an exception was raised."""
    return getattr(import_module(f"rewrites.cli.{module}"), kinds)()


def attend_termination() -> None:
    """Let SIGTERM end the command as an error would: unfinished files are removed, and processes that compute for it
    end, too."""
    process = os.getpid()

    def end(number: int, _: object) -> None:
        """End by SystemExit, which runs clean-ups; a fork ends at once."""
        if os.getpid() != process:
            os._exit(128 + number)  # a fork removes no files of its parent
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    send_ignored_again()


def send_ignored_again() -> None:
    """Let an interruption end the command, too, where it was raised in a function whose exceptions Python ignores, such
    as the callback of a weak reference: the signal is sent again, once that function has returned."""
    usual = sys.unraisablehook

    def send(ignored: "sys.UnraisableHookArgs") -> None:
        """Send the signal again after RETURNED seconds; report any other exception as Python does."""
        ends = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
        if ignored.exc_type not in ends:
            usual(ignored)
            return
        from threading import Timer

        again = Timer(RETURNED, os.kill, (os.getpid(), ends[ignored.exc_type]))
        again.daemon = True
        again.start()

    sys.unraisablehook = send


def attend_streams() -> None:
    """Check the standard streams. A closed standard output ends the command, before a file takes its number and is
    printed into; a closed standard error is silent. Letters that the encoding lacks are written by number."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        exit_with("standard output: it is closed: send it to a file, or to /dev/null", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard(*streams: int) -> None:
    """Discard the output that is still to be written to these streams at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)


def usage(error: object) -> str:
    """Return the usage of the command that was not understood, if it is known."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f" ({context.get_usage()}; see {context.command_path} -h)"


def exit_with(message: str, status: int) -> NoReturn:
    """Print one line on stderr, without characters that a terminal would obey, and exit."""
    from rewrites.cli.outputs import printable

    try:
        print(f"opmatrix: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except OSError:
        discard(2)
    sys.exit(status)


if __name__ == "__main__":
    main()
