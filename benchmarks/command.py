"""What the commands of this folder share: options that are refused in a line, processors, progress, tables as files."""
import csv
import io
import os
import sys
import time
from pathlib import Path

from formats.files import replacing
from opmatrix.errors import InputError

BEGUN = time.monotonic()


def listed(text):
    """The words of an option, between commas."""
    return [word for word in text.split(",") if word]


def named(option, words, known):
    """Raises InputError for a word that is not known."""
    for word in words:
        if word not in known: raise InputError(f"--{option} {word}: {', '.join(known)}")


def within(option, value, most, least=1):
    """Raises InputError for a number that is out of its range."""
    if not least <= value <= most: raise InputError(f"--{option} {value}: {least} to {most}")


def tablefile(option, file):
    """Raises InputError for a file that could not be written in the end."""
    if file and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InputError(f"--{option} {file}: it is to be a file in a directory that is there")


def tabled(file, rows):
    """Writes rows as CSV, the file whole at any time; nothing where there is no file."""
    if file is None: return
    csv.writer(text := io.StringIO()).writerows(rows)
    with replacing(file) as raw: raw.write(text.getvalue().encode())


def cores():
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def pinned(threads):
    """This process and all that it starts use so many processors, on as many cores where there are as many."""
    if not hasattr(os, "sched_setaffinity"): return
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, sorted(allowed, key=lambda cpu: (sibling(cpu) != cpu, cpu))[:threads])


def sibling(cpu):
    """The first processor on the same core."""
    try: listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError: return cpu
    return int(listed.replace("-", ",").split(",")[0])


def say(words): print(f"{time.monotonic() - BEGUN:6.0f} s  {words}", file=sys.stderr, flush=True)
