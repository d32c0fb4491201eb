"""Exports of a saved program beside the program itself, and beside the export of transformers' own class: milliseconds
in ONNX Runtime and torch, and how far they are from the program."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from lib.command import Figure, Parser, concluded, cores, count, folder, say, shape, spread, tabled, takes
from lib.engines import OnnxRuntime
from lib.peers import SETTLE, Job

import numpy as np

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.exports.exported_files import export_onnx
from opmatrix.exports.fx_module import make_module
from opmatrix.exports.program_graph import IDS, MASK, ProgramGraph, read_program
from opmatrix.runtime.program import Program

COLUMNS = "shape", "engine", "ms", "spread", "of the program", "off"
PLAIN = 1.02  # bar: the export's time, of that of the class's export
Call = Callable[[np.ndarray], np.ndarray | None]  # ids (batch, length), all of them tokens, to its output


def measure_exports() -> None:
    """Time the exports of a saved program.

        python benchmarks/exports.py minilm.opmatrix/front/0 [--model DIR] [--shapes 1x16 1x128] [--rounds 30]

    All run in one process, in turn, each behind a call of its own that is not timed: threads of one do not spin while
    another runs. `--model`: the checkpoint, whose class of transformers is exported by torch, too."""
    parser = Parser(measure_exports)
    parser.add_argument("program", type=folder)
    parser.add_argument("--model", type=folder)
    parser.add_argument("--shapes", type=shape, nargs="+", default=[(1, 16), (1, 128)])
    parser.add_argument("--rounds", type=count, default=30)
    given = parser.parse_args()
    if missing := [name for name in ("onnx", "onnxruntime", "torch") if not find_spec(name)]:
        raise InputError(f"exports are run by {', '.join(missing)}: pip install '.[peers]'")
    takes(20 + 0.4 * given.rounds * len(given.shapes) * (3 + bool(given.model)))
    rows, figures = [], list[Figure]()
    with tempfile.TemporaryDirectory() as room:
        program = Program.load(given.program)
        calls = engines(program, Path(room), given.model)
        for sentences, length in given.shapes:
            ids = np.random.default_rng(length).integers(0, 1000, (sentences, length))
            taken = timed(calls, ids, given.rounds)
            rows += described(f"{sentences}x{length}", calls, taken, ids)
            figures += compared(f"{sentences}x{length}", taken)
            say(f"{sentences}x{length}")
    print(table([[*row[:2], f"{row[2]:.2f}", f"{row[3]:.0%}", f"{row[4]:.2f} x", row[5]] for row in rows], [*COLUMNS]))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures)


def engines(program: Program, room: Path, model: Path | None) -> dict[str, Call]:
    """The program and its exports, and the export of the class where there is a checkpoint, each as a call."""
    import torch

    torch.set_num_threads(cores())
    read = read_program(program)
    [file] = export_onnx(read, room / "program.onnx")
    module = torch.no_grad()(make_module(read))
    calls: dict[str, Call] = {
        "program": program.run,
        "onnxruntime": session(file, read),
        "torch": lambda ids: module(*map(torch.from_numpy, fed(read, ids).values())).numpy(),
    }
    if model:
        job = Job("onnxruntime", "float32", str(model), place=str(room), threads=cores(), masked=True)
        OnnxRuntime().prepare(job)
        served = OnnxRuntime().serve(job)
        calls["onnxruntime, class"] = lambda ids: rows_of(served.call(ids, np.ones_like(ids)))
    return calls


def rows_of(hidden: np.ndarray) -> None:
    """The class gives rows of tokens, which no pooling follows: they are not compared."""


def fed(read: ProgramGraph, ids: np.ndarray) -> Mapping[str, np.ndarray]:
    """The inputs of an export."""
    return {name: {IDS: ids, MASK: np.ones_like(ids)}.get(name, np.zeros_like(ids)) for name in read.inputs}


def session(file: Path, read: ProgramGraph) -> Call:
    """An ONNX file in ONNX Runtime, with as many threads as there are cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = cores(), 1
    ready = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids: ready.run(None, fed(read, ids))[0]


def timed(calls: Mapping[str, Call], ids: np.ndarray, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of calls, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(SETTLE)
            call(ids)
            begun = time.perf_counter()
            call(ids)
            taken[name].append(1e3 * (time.perf_counter() - begun))
    return taken


def described(
    where: str, calls: Mapping[str, Call], taken: Mapping[str, Sequence[float]], ids: np.ndarray
) -> list[list[object]]:
    """A row for each engine."""
    wanted, rows = calls["program"](ids), list[list[object]]()
    for name, call in calls.items():
        output = call(ids)
        off = "" if output is None else f"{abs(output - wanted).max() / abs(wanted).max():.1g}"
        ms = median(taken[name])
        rows.append([where, name, ms, spread(taken[name]) or 0.0, ms / median(taken["program"]), off])
    return rows


def compared(where: str, taken: Mapping[str, Sequence[float]]) -> list[Figure]:
    """The export's time, of the program's, and of that of the class's export."""
    ours, exported = taken["program"], taken["onnxruntime"]
    figures = [Figure(f"{where}: the export in ONNX Runtime, of the program", median(exported) / median(ours), "x")]
    if plain := taken.get("onnxruntime, class"):
        ratios = [one / other for one, other in zip(exported, plain, strict=True)]
        figures.append(Figure(f"{where}: of the class's export there", median(ratios), "x", spread(ratios), most=PLAIN))
    return figures


if __name__ == "__main__":
    from lib.command import run_parts

    run_parts(measure_exports)
