"""What a command writes is nothing that it reads, and no other thing that it writes: asked of every command with every
option that writes and every argument that names files, as the commands declare them."""

import json
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from test_cli import command, patched, refused  # noqa: F401

from formats.disk.cache import CACHE_VARIABLE
from opmatrix.files.loading import KIND, PROGRAM
from rewrites.cli.commands import app
from rewrites.report.pages.html_report import OURS

WRITES = {"out", "results", "trace", "html"}  # parameters that name what is written, of every command
OWN_WRITES = {("plan", "rows"), ("plan", "timeline"), ("plan", "write_settings"), ("partition", "timeline")}
REPLACES_NOTHING = {"distil"}  # whatever is at its target (tests/peers/test_students.py)
TEXTS = {"generate_text.prompt", "run.text"}  # arguments that name no file
SUFFIX = {
    "embed": ".npy",
    "join": ".npy",
    "spectrum": ".png",
    "launch": ".json",
    "report": ".html",
    ("optimize", "html"): ".html",
    ("plan", "timeline"): ".json",
    ("partition", "timeline"): ".json",
}
NEEDS = {
    "plan": ("--devices", "2", "--machine", "A100"),  # words without which nothing is written
    "partition": ("--train", "--batch", "8", "--tokens", "8"),
}


def written(name, output):
    """Whether a parameter of a command names what is written."""
    return output in WRITES or (name, output) in OWN_WRITES


def parameters(callback):
    """Name to (whether it is an argument, its first option, whether it may name files)."""
    found = {}
    for name, said in get_type_hints(callback, include_extras=True).items():
        if name == "return" or len(get_args(said)) < 2:
            continue  # not declared as a word of the command line
        kind, info = get_args(said)[:2]
        argument = type(info).__name__ == "ArgumentInfo"
        words = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
        option = next((each for each in words if each.startswith("--")), f"--{name.replace('_', '-')}")
        files = (
            (argument and f"{callback.__name__}.{name}" not in TEXTS)
            or "Path" in str(kind)
            or any(word in (info.metavar or "") for word in ("FILE", "CSV", "DIR"))
        )
        found[name] = argument, option, files
    return found


COMMANDS = {each.name or each.callback.__name__: parameters(each.callback) for each in app.registered_commands}
CASES = [
    (name, output, read)
    for name, said in COMMANDS.items()
    for output in said
    if written(name, output) and name not in REPLACES_NOTHING
    for read, (_, _, files) in said.items()
    if files and not written(name, read)
]


def arguments(name, output, written, read, named):
    """A command line in which one parameter names what is written, another what is read; arguments besides are
    absent files."""
    said = COMMANDS[name]
    words = [name, *NEEDS.get(name, ())]
    words += [str(named) if each == read else "absent" for each, (argument, _, _) in said.items() if argument]
    if not said[read][0]:
        words += [said[read][1], str(named)]
    words += [said[output][1], str(written)]
    return words


def held(path):
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_every_command_that_writes_is_here():
    assert {(name, output) for name, output, _ in CASES} == {
        ("optimize", "out"),
        ("optimize", "results"),
        ("embed", "out"),
        ("join", "out"),
        ("evaluate", "results"),
        ("spectrum", "out"),
        ("generate", "results"),
        ("chat", "results"),
        ("launch", "results"),
        ("launch", "trace"),
        ("optimize", "html"),
        ("report", "out"),
        ("verify", "results"),
        ("spectrum", "results"),
        ("laws", "results"),
        ("profile", "results"),
        ("run", "results"),
        ("explain", "results"),
        ("plan", "results"),
        ("plan", "rows"),
        ("plan", "timeline"),
        ("plan", "write_settings"),
        ("partition", "timeline"),
    }
    assert len(CASES) >= 40


@pytest.mark.deep(every=16)
@pytest.mark.parametrize("name, output, read", CASES)
def test_no_command_writes_over_what_it_reads(command, tmp_path, monkeypatch, name, output, read):  # noqa: F811
    """The same path; through a link to it and through a linked directory; a file within a directory that is read; what
    is read within a directory that is replaced."""
    monkeypatch.setattr("opmatrix.display.draw.plotting", lambda: None)
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / f"file{SUFFIX.get((name, output), SUFFIX.get(name, '.txt'))}"
    np.save(file.open("wb"), np.ones((1, 1), "<f4")) if file.suffix == ".npy" else file.write_text(
        OURS.decode() if file.suffix == ".html" else "{}"
    )
    (tmp_path / "linked").symlink_to("model")
    (tmp_path / f"link{file.suffix}").symlink_to(file)
    pairs = [
        (file, file),
        (file, tmp_path / "linked" / file.name),
        (Path("model", file.name), file),
        (file, tmp_path / f"link{file.suffix}"),
        (file, tmp_path / "linked"),
    ]
    if (name, output) == ("optimize", "out"):
        program = tmp_path / "program"
        program.mkdir()
        (program / PROGRAM).write_text(json.dumps({"kind": KIND}))
        (program / "mine").write_text("mine")
        pairs = [(program, program), (program, program / "mine"), (tmp_path / "program" / ".." / "program", program)]
    if name == "report":
        pairs.pop()  # of a directory its report.json alone is read
    before = held(tmp_path)
    for written, named in pairs:
        ran = command(*arguments(name, output, written, read, named))
        refused(ran, COMMANDS[name][output][1], "would replace what is read")
        assert held(tmp_path) == before


@pytest.mark.parametrize("written", ["place", "place/report.json", "place/front/0/program.json", "linked/mine.json"])
def test_two_outputs_are_apart(command, tmp_path, written):  # noqa: F811
    (tmp_path / "place" / "front" / "0").mkdir(parents=True)
    (tmp_path / "place" / PROGRAM).write_text(json.dumps({"kind": KIND}))
    (tmp_path / "place" / "front" / "0" / PROGRAM).write_text(json.dumps({"kind": KIND}))
    (tmp_path / "linked").symlink_to("place")
    before = held(tmp_path)
    refused(command("optimize", "minilm", "--out", "place", "--json", written), "--json", "place")
    assert held(tmp_path) == before


def test_the_cached_files_of_a_fetched_model_are_read_too(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")
    refused(command("optimize", "minilm", "--json", "minilm/config.json"), "--json", "would replace what is read")


def test_new_files_within_what_is_read_are_no_harm(command, tmp_path):  # noqa: F811
    """The model is the working directory; only the model is what is wrong here."""
    refused(command("optimize", ".", "--out", "made", "--json", "found.json"), "config.json")
    refused(command("evaluate", ".", "--pairs", "absent.csv", "--json", "found.json"), "absent.csv")


@pytest.mark.parametrize("name", ["v.csv", "v", "v.npz", "v.npy.txt"])
def test_embeddings_are_not_called_what_they_are_not(command, tmp_path, name):  # noqa: F811
    refused(command("embed", "absent", "absent.txt", "--out", name), f"--out {name}", ".npy")
    assert not [*tmp_path.iterdir()]
