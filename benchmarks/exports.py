"""Exports of a saved program beside the program itself, and beside the export of transformers' own class: milliseconds
in ONNX Runtime and torch, and how far they are from the program."""

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib.command import Figure, Parser, concluded, cores, count, folder, say, shape, spread, tabled, takes
from lib.engines import OnnxRuntime
from lib.peers import SETTLE, Job
from lib.sentence_pairs import halves

import numpy as np

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.exports.exported_files import export_onnx
from opmatrix.exports.fx_module import make_module
from opmatrix.exports.program_graph import IDS, MASK, ProgramGraph, read_program
from opmatrix.exports.runtimes import RUNTIMES, Runtime, make_feed
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.program import Program
from rewrites.metrics.pairs import score_pairs
from rewrites.metrics.perplexity import score_text

COLUMNS = "shape", "engine", "ms", "spread", "of the program", "off"
PLAIN = 1.02  # bar: the export's time, of that of the class's export
OF_DYNAMIC = 0.70  # bar: the int8 export's time, of that of the runtime's own int8 model
CLASS_INPUTS = [IDS, MASK]
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


def called(runtime: Runtime, file: Path, inputs: list[str]) -> Call:
    """An exported file in a runtime, with as many threads as there are cores."""
    run = runtime.open(file, cores())
    return lambda ids: run(make_feed(inputs, ids, np.ones_like(ids)))[0]


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


# ---- a plain class with fewer units

SMALLER = 0.80  # bar: the time of the class with half of its units, of that of the whole one
EQUAL = 1e-5  # bar: the class of sentence-transformers and its program
UNIFORM_COLUMNS = "shape", "class", "ms", "spread", "of the whole"


def measure_uniform() -> None:
    """Time MiniLM with a share of its units in each layer, as sentence-transformers opens it, beside the whole one.

        python benchmarks/exports.py uniform --text FILE [--units 0.5] [--shapes 1x16 1x128 8x128] [--rounds 30]

    The text is what remaining weights are fitted to; the smaller one is a directory of `export --hf`."""
    parser = Parser(measure_uniform)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--units", type=float, default=0.5)
    parser.add_argument("--shapes", type=shape, nargs="+", default=[(1, 16), (1, 128), (8, 128)])
    parser.add_argument("--rounds", type=count, default=30)
    given = parser.parse_args()
    if not find_spec("sentence_transformers"):
        raise InputError("directories are opened by sentence-transformers: pip install '.[peers]'")
    takes(60 + 0.3 * given.rounds * len(given.shapes))
    rows, figures = [], list[Figure]()
    with tempfile.TemporaryDirectory() as room:
        calls, off = uniform_classes(given.text, given.units, Path(room))
        figures.append(Figure("sentence-transformers, off by of the program", off, most=EQUAL))
        for where in given.shapes:
            ids = np.random.default_rng(where[1]).integers(1000, 2000, where)
            taken = timed(calls, ids, given.rounds)
            whole = median(taken["whole"])
            name = f"{where[0]}x{where[1]}"
            rows += [[name, kind, median(ms), spread(ms) or 0.0, median(ms) / whole] for kind, ms in taken.items()]
            figures.append(Figure(f"{name}: of the whole class's time", median(taken["smaller"]) / whole, most=SMALLER))
            say(name)
    print(table([[*row[:2], f"{row[2]:.2f}", f"{row[3]:.0%}", f"{row[4]:.2f} x"] for row in rows], [*UNIFORM_COLUMNS]))
    tabled(given.csv, [UNIFORM_COLUMNS, *rows])
    concluded(given, figures)


def uniform_classes(text: Path, units: float, room: Path) -> tuple[dict[str, Call], float]:
    """MiniLM and MiniLM with fewer units as classes that sentence-transformers opens, and how far the embeddings of the
    smaller one are from its program's."""
    import torch
    from sentence_transformers import SentenceTransformer

    from opmatrix.display.progress import unheard
    from opmatrix.exports.checkpoints.plain_files import export_plain
    from rewrites.approximate.removing import Level, remove_groups
    from rewrites.approximate.students.distilled import Teacher, find_program

    torch.set_num_threads(cores())
    teacher = Teacher.open("minilm", text, 64)
    smaller = remove_groups(teacher.operator, Level(1 - units), teacher.text.fit).model
    program, _ = find_program(smaller, teacher, None, unheard)
    say(export_plain(program, room / "smaller"))
    places = {"whole": str(teacher.checkpoint.directory), "smaller": str(room / "smaller")}
    models = {name: SentenceTransformer(place, device="cpu") for name, place in places.items()}
    texts = [line for line in text.read_text("utf-8").splitlines() if line.strip()][:32]
    theirs, ours = models["smaller"].encode(texts), program.embed(texts)
    return {name: forward(model) for name, model in models.items()}, float(abs(theirs - ours).max())


def forward(model: Padded) -> Call:
    """A model of sentence-transformers on token ids."""
    import torch

    def call(ids: np.ndarray) -> np.ndarray:
        """Embed a batch without padding."""
        tokens = torch.from_numpy(ids)
        with torch.no_grad():
            features = model({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
        embedding: np.ndarray = features["sentence_embedding"].numpy()
        return embedding

    return call


# ---- students

STUDENT_COLUMNS = "model", "student", "seed", "steps", "minutes", "CPU s", "before", "after", "regained"
REGAINED = 0.5  # bar: the share of what was lost that training regains
DECODER = {  # a decoder of bytes, small enough to be trained here first
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
LEARNT_TOKENS, LEARNT_RATE, DRAWN_TEXTS = 128, 2e-3, 8  # of a step that trains the decoder itself
JUDGED_TOKENS = 8192


def measure_students() -> None:
    """Train students that keep half of the units and heads, and print what they regain.

        python benchmarks/exports.py students --pairs CSV --text FILE [--minutes 15] [--steps N] [--seeds 0 1 2]
                [--tokens 64] [--batch 1024] [--rate 0.0002] [--magnitudes] [--decoder 10] [--no-encoder]

    Of MiniLM the Spearman correlation of pairs that are kept apart, before and after training on the other pairs'
    sentences and the text; `--magnitudes`: beside it the student without the smallest units and heads, by magnitude
    alone. `--decoder M`: a decoder of bytes, which M minutes train on three quarters of the text, and its perplexity on
    the rest."""
    parser = Parser(measure_students)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--steps", type=count, help="steps instead of minutes")
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--batch", type=count, default=1024)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--magnitudes", action="store_true")
    parser.add_argument("--decoder", type=float, default=0.0)
    parser.add_argument("--no-encoder", action="store_true")
    given = parser.parse_args()
    if not find_spec("torch") or not find_spec("transformers"):
        raise InputError("students are trained by torch and transformers: pip install '.[peers]'")
    ways = [False, True] if given.magnitudes else [False]
    runs = len(given.seeds) * len(ways) * ((not given.no_encoder) + bool(given.decoder))
    takes(60 * (given.minutes + 3) * runs + 60 * given.decoder)
    rows = list[tuple[object, ...]]()
    with tempfile.TemporaryDirectory() as room:
        subjects = [] if given.no_encoder else [encoder_of_pairs(given.pairs, given.text, Path(room))]
        subjects += [decoder_of_bytes(given.text, given.decoder, Path(room))] if given.decoder else []
        for subject in subjects:
            for magnitudes in ways:
                rows += trained_students(subject, magnitudes, given)
    print(table([[str(cell) for cell in row] for row in rows], [*STUDENT_COLUMNS]))
    tabled(given.csv, [STUDENT_COLUMNS, *rows])
    ours = [row for row in rows if row[1] != "magnitudes"]
    concluded(
        given, [Figure(f"{row[0]}, seed {row[2]}: regained of what was lost", row[-1], least=REGAINED) for row in ours]
    )


class Subject(NamedTuple):
    """A model to distil: its name or directory, the text that trains, and what a program of it scores."""

    name: str
    model: str
    text: Path
    score: Callable[[Program], float]


def trained_students(subject: Subject, magnitudes: bool, given: Namespace) -> Iterator[tuple[object, ...]]:
    """A row for each seed: scores before and after training, and what was regained of the loss."""
    from rewrites.approximate.students import distilled
    from rewrites.approximate.students.smaller import KeptShares
    from rewrites.approximate.students.training import TrainingPlan
    from rewrites.metrics.recheck import import_program

    teacher = distilled.Teacher.open(subject.model, subject.text, given.tokens)
    pupil = distilled.prune_model(teacher, KeptShares(), magnitudes)
    meta, kind = teacher.imported.meta, "magnitudes" if magnitudes else "corrected"
    whole, before = (
        subject.score(program.replace(**meta)) for program in map(import_program, (teacher.operator, pupil.source))
    )
    say(f"{subject.name}: {whole:.2f}, its student {before:.2f}")
    for seed in given.seeds:
        plan = TrainingPlan(given.minutes, given.steps, given.batch, given.rate, 0.0, seed)
        trained, state = distilled.teach(teacher, pupil, plan, subject.text, None, say)
        after = subject.score(import_program(trained).replace(**meta))
        say(f"{subject.name}, seed {seed}: {after:.2f}")
        spent = state.step, round(state.seconds / 60, 1), round(state.cpu_seconds)
        regained = round((after - before) / (whole - before), 2)
        yield f"{subject.name}, {whole:.2f}", kind, seed, *spent, round(before, 2), round(after, 2), regained


def encoder_of_pairs(pairs: Path, text: Path, room: Path) -> Subject:
    """MiniLM, scored by Spearman's correlation (x 100) on pairs whose sentences train nothing."""
    lines, _, judging = halves(pairs, room)
    both = room / "lines.txt"
    sentences = text.read_text("utf-8").replace(" . ", " .\n")  # a paragraph has one embedding, its sentences have many
    both.write_text(f"{lines.read_text('utf-8')}\n{sentences}", "utf-8")
    return Subject("MiniLM", "minilm", both, lambda program: score_pairs("it", program, judging).spearman)


def decoder_of_bytes(text: Path, minutes: float, room: Path) -> Subject:
    """A decoder of bytes that is trained here, scored by its perplexity for a byte."""
    lines = [line for line in text.read_text("utf-8").splitlines() if line.strip()]
    apart = len(lines) * 3 // 4
    learnt, judging = room / "learnt.txt", room / "judging.txt"
    learnt.write_text("\n".join(lines[:apart]), "utf-8")
    judging.write_text("\n".join(lines[apart : apart + 100]), "utf-8")
    place = learn_bytes(learnt, minutes, room / "decoder")
    return Subject("decoder of bytes", str(place), learnt, lambda program: perplexity_of(program, judging))


def perplexity_of(program: Program, text: Path) -> float:
    """The perplexity of a text for a token."""
    return score_text("it", program, text, JUDGED_TOKENS).perplexity


def learn_bytes(text: Path, minutes: float, place: Path) -> Path:
    """The directory of a decoder of bytes that was trained for some minutes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(cores())
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model = LlamaForCausalLM(LlamaConfig(**DECODER))
    ids = torch.tensor(tokenizer.encode(text.read_text("utf-8")).ids)
    optimiser, began, done = torch.optim.AdamW(model.parameters(), LEARNT_RATE, weight_decay=0.1), time.monotonic(), 0.0
    while done < 1:
        starts = torch.randint(len(ids) - LEARNT_TOKENS, (DRAWN_TEXTS,))
        rows = torch.stack([ids[at : at + LEARNT_TOKENS] for at in starts])
        for group in optimiser.param_groups:
            group["lr"] = LEARNT_RATE * min(1.0, 0.02 + 20 * done) * (1.02 - done)
        optimiser.zero_grad()
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimiser.step()
        done = (time.monotonic() - began) / (60 * minutes)
    say(f"the decoder of bytes: a loss of {loss.item():.3f} nats")
    model.save_pretrained(place)
    tokenizer.save(str(place / "tokenizer.json"))
    return place


if __name__ == "__main__":
    from lib.command import run_parts

    run_parts(measure_exports, measure_spelled, measure_uniform, measure_students)
