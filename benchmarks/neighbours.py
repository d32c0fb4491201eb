"""Whether neighbours change what is chosen: `optimize` on a quiet machine, and with other work on every processor, by
one calibration.

    python benchmarks/neighbours.py [MODEL] [--error 0.02] [--csv OUT]

Both choices are priced by the calibration that is there, which should have been taken when quiet (`opmatrix
calibrate`). The second run has to notice its neighbours, and its choice may be predicted 5 % slower than the first
one's."""
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import command
from command import Figure, Parser, concluded, positive, say, tabled, takes

from formats.core.errors import InputError
from formats.disk.files import read_json
from formats.machine.model import machine_file
from formats.machine.threads import available
from opmatrix.display.tables import table

COLUMNS = "machine", "chosen", "ms_predicted", "ms_measured", "noticed"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("model", nargs="?", default="minilm")
    parser.add_argument("--error", type=positive, default=0.02)
    given = parser.parse_args()
    if not machine_file().exists():
        raise InputError("there is no calibration that both runs could share: opmatrix calibrate")
    takes(140)
    before = machine_file().read_bytes()
    quiet = found(given, "quiet")
    with neighbours(): busy = found(given, "with neighbours")
    rows = [["quiet", *quiet], ["with neighbours", *busy]]
    print(table([[*row[:2], f"{row[2]:.2f}", f"{row[3]:.2f}", row[4]] for row in rows], list(COLUMNS)))
    tabled(given.csv, [COLUMNS, *rows])
    same, silent = machine_file().read_bytes() == before, not quiet[-1]
    why = ("" if same and silent else "the calibration was taken anew" if silent
           else f"it was not quiet before: {quiet[-1]}")
    concluded(given, [Figure("the neighbours are noticed", float(bool(busy[-1])), "of 1", least=1),
                      Figure("what is chosen beside them, predicted, over what is chosen when quiet",
                             None if why else busy[1] / quiet[1], "x", most=1.05, why=why)])


def found(given, which):
    """(name of the chosen program, its predicted and measured milliseconds, what was noticed) of a run of its own."""
    say(f"optimize {given.model}, {which}")
    with tempfile.TemporaryDirectory() as room:
        place = Path(room) / "found.opmatrix"
        done = subprocess.run([sys.executable, "-m", "rewrites.cli", "optimize", given.model, "--error",
                               str(given.error), "--out", place],
                              cwd=command.ROOT, capture_output=True, text=True)
        if done.returncode:
            raise InputError(f"optimize {given.model}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        report = read_json(place / "report.json")
    chosen = report["front"][report["chosen"]]
    return chosen["name"], 1e3 * chosen["predicted_s"], 1e3 * chosen["measured_s"], report["busy"]["timing"]


@contextmanager
def neighbours():
    """A process that never rests on every processor."""
    with ExitStack() as ending:
        for _ in range(available()):
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"], env=os.environ)
            ending.callback(other.wait)
            ending.callback(other.kill)
        yield


if __name__ == "__main__": command.run(main)
