"""The command line: what each command prints and writes, and one line and status 2 for everything that is bad."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import standin
import typer
from children import ROOT
from optimized import small

from opmatrix.display import progress
from opmatrix.runtime.program import Program
from rewrites.cli import __main__ as cli
from rewrites.cli.commands import app
from rewrites.cli.options import EXAMPLES, FIRST_LINES, PANELS
from rewrites.laws import EXACT_LAWS, attention, joining, largest, ring, shifts, spaces
from rewrites.laws.epilogues import HEADS, STAGES
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.workload.phases import Report

QUERY = "encoder.layer.0.attention.self.query.weight"
KEYS = {"model", "machine", "workload", "seeds", "versions", "search", "baseline", "front", "chosen"}
POINT = {
    "predicted_s",
    "measured_s",
    "predicted_bytes",
    "measured_bytes",
    "predicted_error",
    "measured_error",
    "gap",
    "verified",
    "program",
    "laws",
}


def spoilt(directory, name=QUERY, change=lambda array: array):
    """The same, with one tensor replaced."""
    config = json.loads((small(directory) / "config.json").read_text())
    return small(directory, tensors={name: change(checkpoints.arrays(config)[name])})


class Ran:
    """What a command printed, its status, and the lines of its last words."""

    def __init__(self, out, err, status):
        self.out, self.err, self.status = out, err, status


@pytest.fixture(scope="module")
def patched():
    """No test calibrates."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("rewrites.run", "rewrites.cli.explained_program", "rewrites.metrics.evaluate"):
            patch.setattr(f"{module}.calibrated", lambda progress, *batches: standin.machine())
        yield patch


@pytest.fixture
def command(patched, tmp_path, capsys, monkeypatch):
    """Runs the command in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["opmatrix", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Ran(*capsys.readouterr(), end.value.code or 0)

    return run


def refused(ran, *words):
    """One line that names what is wrong, status 2, and no directory that it would have written."""
    assert ran.status == 2 and not ran.out
    said = [line for line in ran.err.splitlines() if line.startswith("opmatrix: ")]
    assert len(said) == 1 and ran.err.splitlines()[-1] == said[0], ran.err
    assert "Traceback" not in ran.err
    for word in words:
        assert str(word) in said[0], said[0]
    assert not list(Path.cwd().glob("*.opmatrix")) and not list(Path.cwd().glob(".*"))


# ---- a model that is bad


def test_no_model(command, tmp_path):
    refused(command("optimize", tmp_path / "absent"), tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    refused(command("optimize", tmp_path / "empty"), tmp_path / "empty" / "config.json")


def test_missing_weights(command, tmp_path):
    (small(tmp_path / "model") / "model.safetensors").unlink()
    refused(command("optimize", "model"), "model.safetensors")


@pytest.mark.parametrize("kept", [0, 6, 100, -4])
def test_truncated_weights(command, tmp_path, kept):
    file = small(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refused(command("optimize", "model"), "model.safetensors")


@pytest.mark.parametrize("command_name", ["optimize", "spectrum"])
@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_size", 40),
        ("intermediate_size", 8),
        ("num_hidden_layers", 2),
        ("vocab_size", 30),
        ("num_attention_heads", 5),
    ],
)
def test_a_config_that_does_not_match_the_weights(command, tmp_path, command_name, key, value):
    file = small(tmp_path / "model") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    refused(command(command_name, "model"), "config.json")


@pytest.mark.parametrize("family", ["gpt9", "", None, 3])
def test_an_unknown_architecture(command, tmp_path, family):
    file = small(tmp_path / "model") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": family}))
    refused(command("optimize", "model"), "config.json", "null" if family is None else repr(family))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_weight_that_is_no_number(command, tmp_path, number):
    def spoil(array):
        return np.where(np.arange(array.size).reshape(array.shape) == 5, np.float32(number), array)

    spoilt(tmp_path / "model", change=spoil)
    refused(command("optimize", "model"), "model.safetensors", QUERY, number)


def test_a_tensor_of_another_shape(command, tmp_path):
    spoilt(tmp_path / "model", change=lambda array: array[:, :-1])
    refused(command("optimize", "model"), QUERY, "32 × 31")


def test_a_config_that_is_no_config(command, tmp_path):
    for text in ("{", "[]", "\xff"):
        (small(tmp_path / "model") / "config.json").write_text(text, "latin-1")
        refused(command("optimize", "model"), "config.json")


def test_a_tokenizer_of_another_model(command, tmp_path):
    small(tmp_path / "model", vocab_size=20)
    (tmp_path / "lines.txt").write_text("the bank\nz\na\n")
    refused(command("optimize", "model", "--text", "lines.txt"), "tokenizer.json", "vocab_size", 20)


def test_no_tokenizer(command, tmp_path):
    small(tmp_path / "model", tokenizer=False)
    refused(command("optimize", "model"), "tokenizer.json")


# ---- an option that is bad


@pytest.mark.parametrize(
    "option, value",
    [
        ("--error", "-0.1"),
        ("--error", "1"),
        ("--error", "nan"),
        ("--error", "some"),
        ("--memory", "0"),
        ("--number-type", "fp8"),
        ("--memory", "-3"),
        ("--memory", "nan"),
        ("--tokens", "0"),
        ("--tokens", "-1"),
        ("--tokens", "21"),
        ("--tokens", "2.5"),
        ("--without", "gravity"),
        ("--json", "absent/found.json"),
        ("--json", "."),
        ("--drop", "-1"),
    ],
)
def test_options_out_of_range(command, tmp_path, option, value):
    small(tmp_path / "model")
    refused(command("optimize", "model", f"{option}={value}"), option)


def test_a_law_that_there_is_not(command):
    refused(command("optimize", "minilm", "--without", "gravity"), "--without", "gravity", EXACT_LAWS[0].name)
    refused(command("optimize", "minilm", "--without", "asociate"), "did you mean associate?")


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ("optimize",),
            "Missing argument 'model'. (Usage: opmatrix optimize [OPTIONS] {model}; see opmatrix optimize -h)",
        ),
        (("optimise",), "Did you mean 'optimize'? (Usage: opmatrix [OPTIONS] COMMAND"),
        (("laws", "--sort"), "No such option: --sort (Possible options: --json) (Usage: opmatrix laws"),
    ],
)
def test_a_command_that_is_not_understood_says_how_it_is_written(command, words, said):
    refused(command(*words), said)
    assert command(words[0] if words[0] != "optimise" else "run", "-h").status == 0


def test_arguments_that_are_missing_or_unknown(command):
    refused(command("optimize"), "model")
    refused(command("optimize", "minilm", "--colour", "red"), "--colour")
    refused(command("paint"), "paint")
    refused(command("run", "somewhere"), "text")


@pytest.mark.parametrize(
    "written, word",
    [
        (None, "No such file"),
        (b"", "too few"),
        (b"\n  \n", "too few"),
        (b"the bank\n", "too few"),
        (b"the bank\nof \xff\n", "UTF-8"),
    ],
)
def test_a_text_that_is_bad(command, tmp_path, written, word):
    small(tmp_path / "model")
    if written is not None:
        (tmp_path / "lines.txt").write_bytes(written)
    refused(command("optimize", "model", "--text", "lines.txt"), "lines.txt", word)


def test_a_line_that_is_too_long(command, tmp_path):
    small(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("a bank\nthe bank\n" + "river " * 30)
    refused(command("optimize", "model", "--text", "lines.txt"), "32 tokens", "20")


def test_nothing_is_written_over_what_is_not_ours(command, tmp_path):
    small(tmp_path / "model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    refused(command("optimize", "model", "--out", "mine"), "--out", "mine")
    refused(command("optimize", "model", "--out", "mine/diary.txt"), "mine/diary.txt")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["diary.txt"]
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear"


def test_a_memory_that_nothing_fits(command, optimized, laws_known):
    model, text, *_ = optimized
    ran = command("optimize", model, "--text", text, "--error", "0", "--memory", "0.001", "--out", "mine.opmatrix")
    refused(ran, "--memory 0.001", "MB")


# ---- what is written and printed


def test_the_results_hold_all_that_is_promised(optimized):
    _, text, out, found, _ = optimized
    assert KEYS <= found.keys() and {"seconds", "nodes", "classes"} <= found["search"].keys()
    assert {"measured_s", "measured_bytes"} <= found["baseline"].keys()
    assert all(seconds >= 0 for seconds in found["search"]["seconds"].values()) and found["search"]["nodes"] > 100
    taken = ("phases", "wall_s")  # kept beside the program before all of it is on the disk
    kept = json.loads((out / "report.json").read_text())
    assert {**found, **{key: kept[key] for key in taken}} == kept and found["phases"].keys() == kept["phases"].keys()
    assert found["wall_s"] >= kept["wall_s"] and sum(found["phases"].values()) <= found["wall_s"] * (1 + 1e-9)
    assert found["front"][0]["name"] == "exact" and found["front"][0]["gap"] < 1e-5
    for point in found["front"]:
        assert POINT <= point.keys() and (point["gap"] is None or 0 <= point["gap"] < 0.05)
        assert point["verified"] == (point["measured_error"] <= 1.3 * point["predicted_error"])
        assert {"measured_s", "measured_bytes"} <= {key for key in point if point[key] is not None}
        assert set(point["laws"]) <= {law.name for law in EXACT_LAWS}
    assert found["model"] == "model" and found["machine"] == "stand-in" and str(text) in found["workload"]
    exact = found["front"][0]
    assert not exact["methods"] and exact["measured_error"] < 1e-5
    chosen = found["front"][found["chosen"]]
    assert exact["verified"] and chosen["verified"] and chosen["measured_error"] <= 0.2
    assert {law for entry in found["saved"] for law in entry["laws"]} <= {law.name for law in EXACT_LAWS} and found[
        "saved"
    ]


def test_every_program_of_the_front_runs(optimized):
    _, _, out, found, _ = optimized
    batch = [[2, 7, 3], [5]]
    exact = Program.load(out / "front" / "0").run(batch)
    for point in found["front"]:
        program = Program.load(point["program"])
        assert program.stored_bytes == point["stored_bytes"]
        assert np.linalg.norm(program.run(batch) - exact) <= 0.6 * np.linalg.norm(exact)
    assert Program.load(out).hash == Program.load(found["front"][found["chosen"]]["program"]).hash


def test_without_an_error_or_a_law(command, optimized, tmp_path, laws_known):
    model, text, out, before, _ = optimized
    ran = command("optimize", model, "--text", text, "--error", "0", "--without", "join", "--without", "stack_columns")
    assert ran.status == 0 and (tmp_path / "model.opmatrix" / "program.json").exists()
    found = json.loads((tmp_path / "model.opmatrix" / "report.json").read_text())
    chosen = found["front"][found["chosen"]]
    assert not chosen["methods"] and chosen["measured_error"] < 1e-5
    assert found["without"] == ["join", "stack_columns"]
    assert any(step.kernel == "columns" for step in Program.load(out / "front" / "0").steps)
    assert not any(step.kernel == "columns" for step in Program.load("model.opmatrix").steps)
    assert found["front"][0]["predicted_s"] >= before["front"][0]["predicted_s"]
    program = Program.load(tmp_path / "model.opmatrix")
    assert all(
        constant.name in ("dense", "packed") for constant in program.constants.values() if hasattr(constant, "pack")
    )
    for word in (
        "phases",
        "imported",
        "exact",
        "chosen",
        "laws of the exact program",
        "verified",
        "saved",
        "opmatrix run",
    ):
        assert word in ran.out, word
    assert next(iter(found["phases"])) == "start"  # which is told of on a terminal
    for phase in [*found["phases"]][1:]:
        assert f"{phase} " in ran.err


@pytest.mark.deep
def test_a_workload_of_texts_is_timed_and_kept(command, optimized, tmp_path, laws_known):
    model, lines, texts = *optimized[:2], ["the river", "", "banks of rivers runs dry"]
    refused(
        command("optimize", model, "--text", lines, "--workload", "absent.txt", "--out", "o"),
        "absent.txt",
        "No such file",
    )
    (tmp_path / "mix.txt").write_text("\n".join(texts))
    ran = command("optimize", model, "--error", "0", "--text", lines, "--workload", "mix.txt", "--json", "found.json")
    assert ran.status == 0 and "3 texts" in ran.out, ran.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["texts"]["file"] == str(tmp_path / "mix.txt") and found["tokens"] is None
    assert found["rows"] == Program.load("model.opmatrix").tokenizer.encode(texts).rows
    assert command("explain", "model.opmatrix", "--text", lines, "--workload", "mix.txt").status == 0


def test_doctor_says_what_hurts_and_ends_well(command, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "cache"))
    ran = command("doctor", "--json", "found.json")
    assert ran.status == 0 and "export OMP_WAIT_POLICY=passive" in ran.out and "opmatrix calibrate" in ran.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["processor"] in ran.out and "a pool that spins" in {each["check"] for each in found["hurts"]}
    assert command("doctor", "--json", "absent/found.json").status == 2


def test_laws_prints_every_law(command):
    ran = command("laws")
    assert ran.status == 0
    for law in (*EXACT_LAWS, *IMPLEMENTATIONS, *HEADS, *STAGES):
        name, kind, statement, guard, source = law.row()
        for said in (f"{name} ({kind})", statement, guard, source):
            assert said in ran.out
    assert f"{len(EXACT_LAWS)} exact laws" in ran.out.splitlines()[-1]


def test_laws_of_a_kind(command):
    """In groups under headings, the exact ones by the algebra that they belong to."""
    exact, every = command("laws", "--kind", "exact"), command("laws")
    assert [line.split(":")[0] for line in exact.out.splitlines() if line.startswith("----")] == [
        f"---- exact, {len(laws)}"
        for laws in (
            ring.RING_LAWS,
            attention.ATTENTION_LAWS,
            joining.JOINING_LAWS,
            spaces.SPACE_LAWS,
            shifts.SHIFT_LAWS,
            largest.ROUTING_LAWS,
        )
    ]
    assert exact.out.splitlines()[-1] == f"{len(EXACT_LAWS)} exact laws" and "(implementation)" not in exact.out
    count = len([*IMPLEMENTATIONS, *HEADS, *STAGES])
    assert f"---- implementation, {count}" in every.out and "---- value, " in every.out
    refused(
        command("laws", "--kind", "exakt"),
        "--kind exakt",
        "did you mean exact? there are exact, value, implementation, own",
    )


def test_spectrum_prints_every_weight(command, optimized, tmp_path):
    ran = command("spectrum", optimized.model)
    for part in ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"):
        assert part in ran.out
    head, _, *rest = ran.out.split("\n\n")[0].splitlines()
    cells = [re.split(r"  +", row.strip()) for row in (head, *rest)]
    assert ran.status == 0 and {len(row) for row in cells} == {13}, "no column is empty"
    for column in cells[0][3:]:
        assert f"\n{column}: " in ran.out, "and each is explained"


@pytest.mark.parametrize(
    "kind, first", [("qk", "head 0"), ("vo", "head 0"), ("jacobian", "jacobian"), ("error", "attention.self.value")]
)
def test_spectra_of_every_kind_have_the_same_columns(kind, first, command, optimized, tmp_path):
    text = [] if kind in ("qk", "vo") else ["--text", optimized.lines]
    ran = command("spectrum", optimized.model, "--of", kind, *text, "--json", tmp_path / "found.json")
    head, _, *rest = ran.out.split("\n\n")[0].splitlines()
    cells = [re.split(r"  +", row.strip()) for row in (head, *rest)]
    assert ran.status == 0 and {len(row) for row in cells} == {13} and cells[1][:2] == ["0", first]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (
        found["of"] == kind and len(found["spectra"]) == len(rest) and all(note in ran.out for note in found["notes"])
    )
    assert len({tuple(one) for one in found["spectra"]}) == 1, "the same figures of each"
    assert [one["matrix"] for one in found["spectra"]] == [row[1] for row in cells[1:]]


def test_spectra_of_an_unknown_kind_and_a_text_that_is_not_read_are_refused(command, optimized):
    refused(command("spectrum", optimized.model, "--of", "errors"), "--of errors", "did you mean error?")
    refused(
        command("spectrum", optimized.model, "--of", "qk", "--text", optimized.lines), "--text", "depend on no text"
    )


def test_a_picture_asks_for_matplotlib_before_the_work(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("opmatrix.files.checkpoint.open_model", lambda name: 1 / 0)
    refused(
        command("spectrum", "minilm", "--out", "found.png"), "--out drawing needs matplotlib", "pip install '.[plot]'"
    )


def test_phases_say_in_a_pipe_what_runs_and_for_how_long(capsys, monkeypatch):
    seconds = iter([0.0, 0.0, 1.0, 6.0, 6.5, 20.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))
    with Report().phase("search") as progress:
        for done in (1, 2, 3):
            progress(done, 9)
    assert capsys.readouterr().err.splitlines() == ["search …", "search … 2/9 after 6 s", "search 20.0 s"]


@pytest.mark.parametrize(
    "counts, shown",
    [
        ([(1, 2), (2, 2), (1, 2), (2, 2)], ["1/2", "2/2", "3/4", "4/4"]),
        ([(3, 9), (9, 9), (0, 4), (4, 4), (1, 9)], ["3/9", "9/9", "9/13", "13/13", "14/22"]),
        ([(5, 9), (1, 9), (2, 9)], ["5/9", "6/18", "7/18"]),
        ([(4, None), (2, None)], ["4", "6"]),
        ([(0, 3), (0, 3), ("words", None), (1, 3)], ["0/3", "0/3", "words", "1/3"]),
    ],
    ids=str,
)
def test_progress_never_counts_backwards(capsys, monkeypatch, counts, shown):
    """A phase may count several works, one after the other: each goes on where the one before it ended."""
    monkeypatch.setattr(progress, "SELDOM", 0.0)
    line = progress.ProgressLine("kernels")
    for done, of in counts:
        line(done, of)
    said = [each.split(" … ")[1].split(" after")[0] for each in capsys.readouterr().err.splitlines()[1:]]
    assert said == shown


def test_help_names_the_commands(command):
    """Each once, with a line of its own, below the lines that one needs first; on a screen."""
    for arguments in ([], ["--help"]):
        ran = command(*arguments)
        lines = ran.out.splitlines()
        begins = lines.index(next(line for line in lines if "Begin with" in line))
        assert ran.status == 0 and len(lines) <= 58
        for at, line in enumerate(FIRST_LINES, begins + 1):
            assert lines[at].strip().startswith(line)
        assert begins + len(FIRST_LINES) < next(at for at, line in enumerate(lines) if "Options" in line)
        for name, said in ((name, said) for commands in PANELS.values() for name, said in commands.items()):
            assert [line for line in lines if line.split()[1:2] == [name] and said in line], name
    assert {*EXAMPLES} == {name for commands in PANELS.values() for name in commands}


@pytest.mark.parametrize("line", FIRST_LINES)
def test_the_lines_to_begin_with_are_understood(line):
    program, *words = shlex.split(line)
    name, *rest = words
    command = typer.main.get_command(app).commands[name]
    assert program == "opmatrix" and command.make_context(name, rest, resilient_parsing=False)


# ---- a saved program that is bad


@pytest.mark.parametrize("name", ["run", "explain"])
@pytest.mark.parametrize("file", ["program.json", "weights.safetensors", "config.json"])
def test_a_saved_program_that_is_damaged(command, optimized, tmp_path, name, file):
    copy = tmp_path / "copy"
    shutil.copytree(optimized.out, copy)
    raw = (copy / file).read_bytes()
    (copy / file).write_bytes(raw[: len(raw) // 2])
    refused(command(name, copy, *(["the bank"] if name == "run" else [])), copy / file)


def test_a_saved_program_that_was_changed(command, optimized, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(optimized.out, copy)
    file = copy / "weights.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-2] ^= 1
    file.write_bytes(raw)
    refused(command("run", copy, "the bank"), copy)


def test_a_directory_without_a_program(command, tmp_path):
    for name, texts in (("run", ["the bank"]), ("explain", [])):
        refused(command(name, tmp_path / "absent", *texts), tmp_path / "absent")


# ---- as a process


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("arguments, status", [(["laws"], 0), (["optimize", "absent"], 2), (["optimise"], 2)], ids=str)
def test_exit_status(tmp_path, arguments, status):
    root = ROOT
    ran = subprocess.run(
        [sys.executable, "-m", "rewrites.cli", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert ran.returncode == status
    lines = [line for line in ran.stderr.splitlines() if line != "model …"]  # the phase that it ends in
    assert len(lines) == (1 if status else 0), ran.stderr
    assert not list(tmp_path.iterdir())


NOWHERE = """
import sys
from rewrites.cli.__main__ import run_command
sys.argv = ["opmatrix", "embed", "nowhere", "texts", "--out", "x.npy"]
try: run_command()
except SystemExit as end:
    print(end.code, *{"sympy", "scipy", "numba", "llvmlite", "egglog", "torch"} & set(sys.modules))
"""


def test_embedding_imports_nothing_that_searches():
    """Every command comes through what is common to all; this one stops where it looks for its program."""
    ran = subprocess.run([sys.executable, "-c", NOWHERE], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.split() == ["2"], ran.stdout + ran.stderr
