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
from opmatrix.exports.runtimes import RUNTIMES, Runtime, make_feed
from opmatrix.runtime.program import Program

COLUMNS = "shape", "engine", "ms", "spread", "of the program", "off"
PLAIN = 1.02  # bar: the export's time, of that of the class's export
OF_DYNAMIC = 0.70  # bar: the int8 export's time, of that of the runtime's own int8 model
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


# ---- spelled for runtimes


def measure_spelled() -> None:
    """Time an exact and an int8 program in ONNX Runtime and OpenVINO, each spelling beside the others, and beside the
    class of transformers exported by torch, and ONNX Runtime's own dynamic int8 of that.

        python benchmarks/exports.py spelled minilm.opmatrix/front/0 minilm.opmatrix --model DIR [--shapes 1x16 8x128]

    All run in one process, in turn, each behind a call of its own that is not timed. Megabytes are of the file."""
    parser = Parser(measure_spelled)
    parser.add_argument("exact", type=folder)
    parser.add_argument("int8", type=folder)
    parser.add_argument("--model", type=folder, required=True)
    parser.add_argument("--shapes", type=shape, nargs="+", default=[(1, 16), (1, 128), (8, 128)])
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    if missing := [
        name for name in ("onnx", "onnxruntime", "openvino", "torch", "transformers") if not find_spec(name)
    ]:
        raise InputError(f"exports are run by {', '.join(missing)}: pip install '.[peers]'")
    takes(60 + 1.2 * given.rounds * len(given.shapes) * 9)
    rows, figures = list[list[object]](), list[Figure]()
    with tempfile.TemporaryDirectory() as room:
        calls, sizes = spelled_engines(given.exact, given.int8, given.model, Path(room))
        for sentences, length in given.shapes:
            where, ids = (
                f"{sentences}x{length}",
                np.random.default_rng(length).integers(1000, 20000, (sentences, length)),
            )
            taken = timed(calls, ids, given.rounds)
            for name, milliseconds in taken.items():
                ms, apart = median(milliseconds), spread(milliseconds) or 0.0
                rows.append([where, name, sizes[name], ms, apart])
            figures += compared_spellings(where, taken)
            say(where)
    columns = "shape", "engine", "MB", "ms", "spread"
    print(table([[*row[:2], f"{row[2]:.1f}", f"{row[3]:.2f}", f"{row[4]:.0%}"] for row in rows], [*columns]))
    tabled(given.csv, [columns, *rows])
    concluded(given, figures)


def spelled_engines(exact: Path, int8: Path, model: Path, room: Path) -> tuple[dict[str, Call], dict[str, float]]:
    """Exports of both programs in both runtimes, and the class's, each as a call; the megabytes of their files."""
    calls, sizes = dict[str, Call](), dict[str, float]()
    for kind, place, spellings in (("exact", exact, ["float32"]), ("int8", int8, ["stored", "integers"])):
        program = Program.load(place)
        for name in spellings:
            read = read_program(program, RUNTIMES["onnxruntime"].spellings[name])
            [file] = export_onnx(read, room / f"{kind}.{name}.onnx")
            for runtime in (RUNTIMES["onnxruntime"], RUNTIMES["openvino"]):
                engine = f"{runtime.name}, {kind} {name}"
                calls[engine], sizes[engine] = called(runtime, file, list(read.inputs)), megabytes(file)
    exported = export_class(model, room)
    for runtime in (RUNTIMES["onnxruntime"], RUNTIMES["openvino"]):
        engine = f"{runtime.name}, class"
        calls[engine], sizes[engine] = called(runtime, exported, CLASS_INPUTS), megabytes(exported)
    dynamic, engine = quantise_class(exported, room), "onnxruntime, class, its dynamic int8"
    calls[engine], sizes[engine] = called(RUNTIMES["onnxruntime"], dynamic, CLASS_INPUTS), megabytes(dynamic)
    return calls, sizes


CLASS_INPUTS = [IDS, MASK]


def called(runtime: Runtime, file: Path, inputs: list[str]) -> Call:
    """An exported file in a runtime, with as many threads as there are cores."""
    run = runtime.open(file, cores())
    return lambda ids: run(make_feed(inputs, ids, np.ones_like(ids)))


def megabytes(file: Path) -> float:
    """The size of a file and of its weights beside it."""
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*")) / 1e6


def export_class(model: Path, room: Path) -> Path:
    """The class of transformers, its mean pooled and scaled to length one, exported by torch: by its newer exporter
    where onnxscript is installed, else by tracing."""
    import torch
    import transformers

    plain = transformers.AutoModel.from_pretrained(model, attn_implementation="sdpa", local_files_only=True).eval()

    class Pooled(torch.nn.Module):
        """Rows of tokens, their mean under the mask, of length one."""

        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def forward(self, input_ids: "torch.Tensor", attention_mask: "torch.Tensor") -> "torch.Tensor":
            rows = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            inside = attention_mask.unsqueeze(2).to(rows.dtype)
            return torch.nn.functional.normalize((rows * inside).sum(1) / inside.sum(1), dim=1)

    file, ids = room / "class.onnx", torch.ones((2, 16), dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    axes = {name: {0: "batch", 1: "length"} for name in CLASS_INPUTS}
    newer = {"dynamo": True, "dynamic_shapes": dict.fromkeys(CLASS_INPUTS, sizes), "external_data": False}
    older = {"dynamo": False, "dynamic_axes": axes, "opset_version": 17}
    say(f"the class is exported by {'dynamo' if find_spec('onnxscript') else 'tracing'}")
    torch.onnx.export(
        Pooled().eval(),
        (ids, ids),
        str(file),
        input_names=CLASS_INPUTS,
        **(newer if find_spec("onnxscript") else older),
    )
    return file


def quantise_class(exported: Path, room: Path) -> Path:
    """ONNX Runtime's own dynamic int8 of an exported class: weights by output, activations by their whole array."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(exported, room / "dynamic.onnx", per_channel=True, weight_type=QuantType.QInt8)
    return room / "dynamic.onnx"


def compared_spellings(where: str, taken: Mapping[str, Sequence[float]]) -> list[Figure]:
    """The exact export's time, of the class's, in both runtimes, and the int8 export's, of the runtime's own int8."""

    def ratio(one: str, other: str) -> float:
        """The median ratio of two engines in a round."""
        return median(a / b for a, b in zip(taken[one], taken[other], strict=True))

    return [
        Figure(
            f"{where}: exact, of the class, {name}", ratio(f"{name}, exact float32", f"{name}, class"), "x", most=PLAIN
        )
        for name in ("onnxruntime", "openvino")
    ] + [
        Figure(
            f"{where}: int8 as integers, of ONNX Runtime's own int8",
            ratio("onnxruntime, int8 integers", "onnxruntime, class, its dynamic int8"),
            "x",
            most=OF_DYNAMIC,
        ),
        Figure(
            f"{where}: int8 as stored, of the class, openvino", ratio("openvino, int8 stored", "openvino, class"), "x"
        ),
    ]


if __name__ == "__main__":
    from lib.command import run_parts

    run_parts(measure_exports, measure_spelled)
