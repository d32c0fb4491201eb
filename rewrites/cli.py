"""The command `opmatrix`. What must be in the environment before numpy is imported is put there first."""
import gc
import os
import sys
from typing import Any, NoReturn

from rewrites.command.environment import prepare

OBJECTS = 50_000, 10, 10                                    # made before garbage is looked for: graphs are large and
                                                            # hold no cycles


def main() -> None:
    """Runs a command. Exit status: 2 and one line on stderr for bad input; 70 for a fault in opmatrix, whose line names
    the file that keeps it; 130 where it was interrupted; 1 where what was verified does not hold, or nobody reads what
    is printed."""
    try: run_command()
    except KeyboardInterrupt: exit_with("interrupted", 130)


def run_command() -> None:
    prepare()
    gc.set_threshold(*OBJECTS)                              # a process of our own; a library leaves it alone
    from rewrites.command.answers import BAD_INPUT
    from rewrites.command.commands import INTERRUPTED, app, misunderstood
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="opmatrix", standalone_mode=False)
        if status == 130: raise KeyboardInterrupt           # which typer makes a number of
        sys.stdout.flush()
    except misunderstood() as error:
        exit_with(error.format_message() + usage(error), 2)
    except BAD_INPUT as error:
        exit_with(str(error.args[0] if error.args else error), 2)
    except INTERRUPTED:
        exit_with("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)        # what Python would still write at its end
        sys.exit(1)
    except MemoryError:
        exit_with("there is not enough memory for this model or batch", 2)
    except Exception as error:
        from rewrites.command.faults import STATUS, report_fault
        exit_with(report_fault(error), STATUS)
    sys.exit(status)


def usage(error: Any) -> str:
    """How the command that was not understood is written, where it is known which."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f" ({context.get_usage()}; {context.command_path} -h says more)"


def exit_with(message: str, status: int) -> NoReturn:
    """One line on stderr, without what a terminal would obey, and the end."""
    from rewrites.command.outputs import printable
    print(f"opmatrix: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
