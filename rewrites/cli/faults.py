"""An error that is not the user's: a file keeps all of it, one line says what went wrong and where the file is."""
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

from rewrites.verify.failure import VerificationError

STATUS = 70                                                 # EX_SOFTWARE of sysexits.h
DEBUG = "OPMATRIX_DEBUG"                                    # set to anything, the whole traceback is printed, too


def report_fault(error: Exception) -> str:
    """The line. Writes the file."""
    if os.environ.get(DEBUG): traceback.print_exception(error)
    said = error.said if isinstance(error, VerificationError) else f"{type(error).__name__}: {error}"
    place = save_fault(error)
    return f"a fault in opmatrix: {said[:400]}: " + (f"see {place}, and report it" if place
                                                     else f"set {DEBUG}=1 to see all of it")


def save_fault(error: Exception) -> Path | None:
    """The file of an error, in the working directory, else in that of temporary files: Python that shows it again where
    there is some, what was run, and the traceback."""
    shown = error.reproducer if isinstance(error, VerificationError) else ""
    lines = [f"opmatrix {' '.join(sys.argv[1:])}", f"Python {platform.python_version()}, {platform.platform()}", "",
             *"".join(traceback.format_exception(error)).replace(f"\n{shown}" if shown else "\0", "").splitlines()]
    text = "\n".join([*(f"# {line}".rstrip() for line in lines), "", shown, ""] if shown else [*lines, ""])
    for room in (Path.cwd, tempfile.gettempdir):
        try:
            number, name = tempfile.mkstemp(".py" if shown else ".txt", "opmatrix-fault-", room())
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as out: out.write(text)
            return Path(name)
        except OSError: continue
    return None
