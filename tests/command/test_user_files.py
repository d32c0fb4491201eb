"""Files of the user: what is not ours is never deleted, what cannot be written is refused before the work, what fails
or is interrupted leaves what was there, pipes are read once, and no file is opened or run because another file names
it."""
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from children import ROOT
from programs import bert_program
from test_cli import command, patched, refused  # noqa: F401

from formats.core.errors import InputError
from formats.disk import files
from opmatrix.files import placing, saving
from opmatrix.pipelines.embed import MAX_LINE_BYTES, embed_texts, quantity
from opmatrix.program import Program
from rewrites import explain
from rewrites.evaluate.reported import Named, Reported
from rewrites.opened import Opened
from rewrites.phases import Report

LINES = ["the bank of the river", "", "a river runs dry"]
LONG = "n" * 300


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    checkpoints.write_tokenizer(path)
    return bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG), tokenizer=path.read_text())


@pytest.fixture
def unsearched(monkeypatch):
    """Fails where a search begins."""
    def begun(*_, **__): raise AssertionError("the search has begun")
    monkeypatch.setattr("rewrites.run.optimize", begun)


def contents(directory):
    """Every path below a directory, with what it holds."""
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
            for path in directory.rglob("*")}


def written(program, place):
    """A program with a front of two beside it, and its report, as `optimize` leaves them."""
    with saving.replacing_program(place) as fresh:
        for each in (fresh, fresh / "front" / "0", fresh / "front" / "1"):
            saving.write_program(program, each)
            (each / saving.DERIVATION).write_text("associate at h3\n")
        (fresh / saving.REPORT).write_text("{}")
    return place


# ---- where programs are saved

def note(place): (place / "front" / "1" / "thesis.tex").write_text("years")
def folder(place): (place / "front" / "drafts").mkdir()
def linked(place): (place / "front" / "7").symlink_to(place / "front" / "1")
def taken(place): shutil.rmtree(place / "front"); (place / "front").write_text("mine")
def away(place):
    shutil.move(place / "front", place.parent / "elsewhere"); (place / "front").symlink_to(place.parent / "elsewhere")
def named(place):
    (place / saving.REPORT).unlink(); (place / saving.REPORT).mkdir(); (place / saving.REPORT / "mine").write_text("x")


@pytest.mark.parametrize("add, said", [(note, "front/1/thesis.tex"), (folder, "front/drafts"), (linked, "front/7"),
                                       (taken, "front"),
                                       (away, "front"), (named, "report.json")])
def test_what_is_no_program_is_never_deleted(command, unsearched, program, tmp_path, add, said):  # noqa: F811
    add(written(program, tmp_path / "place"))
    before = contents(tmp_path)
    ran = command("optimize", "minilm", "--out", "place")
    refused(ran, "--out place", f"{said} is no part of a program")
    with pytest.raises(InputError, match="no part of a program"), saving.replacing_program("place") as fresh:
        (fresh / "front").mkdir()
    assert contents(tmp_path) == before


def test_a_program_and_its_front_are_replaced_and_the_rest_is_kept(program, tmp_path):
    place = written(program, tmp_path / "place")
    (place / "notes").mkdir()
    (place / "notes" / "mine.txt").write_text("mine")
    with saving.replacing_program(place) as fresh:
        saving.write_program(program.replace(model="other"), fresh)
        (fresh / "front").mkdir()
    assert Program.load(place).meta["model"] == "other" and not [*(place / "front").iterdir()]
    assert (place / "notes" / "mine.txt").read_text() == "mine" and [*tmp_path.iterdir()] == [place]


def full(*_): raise OSError(errno.ENOSPC, "No space left on device")
def stopped(*_): raise KeyboardInterrupt


def keep(place):
    """What is the user's beside a program: a file, a link, directories within one another."""
    (place / "notes" / "deeper").mkdir(parents=True)
    (place / "notes" / "deeper" / "mine.txt").write_text("mine")
    (place / "notes.txt").write_text("mine")
    (place / "link").symlink_to("notes.txt")


def laid(place, said):
    """A directory of two files that say the same."""
    place.mkdir(parents=True)
    for name in ("program.json", "weights"): (place / name).write_text(said)
    return place


def replace_by(said, place):
    """The directory at a place by one that says something else, as a save does it."""
    with saving.fresh_directory(place, place) as fresh:
        for name in ("program.json", "weights"): (fresh / name).write_text(said)
        placing.replace_directory(fresh, place, ("program.json", "weights"))


def at_line(wanted, act):
    """A trace that acts at one line of the module that puts programs into their places; how many it has met."""
    met = [0]
    def local(frame, event, _):
        if event == "line":
            met[0] += 1
            if met[0] == wanted: act()
        return local
    return met, lambda frame, event, _: local if frame.f_code.co_filename == placing.__file__ else None


def lines_of(run):
    """How many lines of that module a run passes."""
    met, trace = at_line(0, None)
    sys.settrace(trace)
    try: run()
    finally: sys.settrace(None)
    return met[0]


@pytest.fixture(params=["at once", "by two renamings"])
def exchanging(request, monkeypatch):
    """As the system does it, and as one that cannot exchange two directories."""
    if request.param != "at once": monkeypatch.setattr(placing, "exchange", lambda *_: False)
    elif not sys.platform.startswith("linux"): pytest.skip("directories are exchanged on Linux")


def test_a_save_that_fails_at_any_line_leaves_what_was_there(tmp_path, exchanging):
    """Or has put the new program there, with all that is the user's; nothing is left beside it."""
    keep(laid(tmp_path / "old", "old"))
    place, before, outcomes = tmp_path / "work" / "place", contents(tmp_path / "old"), set()
    shutil.copytree(tmp_path / "old", place, symlinks=True)
    lines = lines_of(lambda: replace_by("new", place))
    replaced = contents(place)
    for line in range(1, lines + 1):
        shutil.rmtree(place.parent)
        shutil.copytree(tmp_path / "old", place, symlinks=True)
        _, trace = at_line(line, (full, stopped)[line % 2])
        sys.settrace(trace)
        try: replace_by("new", place)
        except (InputError, KeyboardInterrupt): pass
        finally: sys.settrace(None)
        found = contents(place)
        assert found in (before, replaced) and "notes/deeper/mine.txt" in found, line
        assert [*place.parent.iterdir()] == [place] or found == replaced
        outcomes.add(found == before)
    assert outcomes == {True, False} and lines > 12


def test_a_save_that_is_killed_at_any_line_leaves_one_program_or_the_other(tmp_path, exchanging):
    """Killed: nothing is done any more. What was the user's is there, too; the next save goes on from there."""
    keep(place := laid(tmp_path / "place", "0"))
    lines, found = lines_of(lambda: replace_by("0", place)), ["0"]
    for line in range(1, lines + 1):
        if not (killed := os.fork()):
            sys.settrace(at_line(line, lambda: os._exit(9))[1])
            replace_by(str(line), place)
            os._exit(0)
        assert os.waitpid(killed, 0)[1] >> 8 in (0, 9)
        placing.recover(place)
        found.append((place / "program.json").read_text())
        assert found[-1] == (place / "weights").read_text() and found[-1] in (found[-2], str(line))
        assert (place / "notes" / "deeper" / "mine.txt").read_text() == (place / "link").read_text() == "mine"
    replace_by("other", place)
    assert (place / "program.json").read_text() == "other" and lines > 12 and 5 < len({*found}) < lines


def test_a_program_that_waits_beside_its_place_is_loaded_and_replaced(program, tmp_path):
    for act in (Program.load, program.save):
        place = written(program, tmp_path / "place")
        place.rename(placing.aside(place))
        act(place)
        assert Program.load(place).hash == program.hash and (place / "front").is_dir()
        assert [*tmp_path.iterdir()] == [place]


@pytest.mark.parametrize("out, words", [
    (".", "working directory"), ("..", "working directory"), ("../work", "working directory"), ("link", "a link"),
    ("dangling", "a link"),
    ("file", "no opmatrix program"), ("file/deeper", "Not a directory"), ("/dev/full", "no opmatrix program"),
    ("/proc/absent/place", "No such file"), (LONG, "File name too long"), (f"absent/{LONG}", "File name too long"),
    ("loop/place", "")])
def test_where_no_program_can_be_saved(command, unsearched, tmp_path, monkeypatch, out, words):  # noqa: F811
    (tmp_path / "work" / "dir").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    Path("file").write_text("mine")
    Path("link").symlink_to("dir")
    Path("dangling").symlink_to("absent")
    Path("loop").symlink_to("loop")
    before = contents(tmp_path)
    refused(command("optimize", "minilm", "--out", out), "--out", words)
    assert contents(tmp_path) == before


def test_parents_are_made_only_for_what_is_saved(program, tmp_path):
    saving.attempt(tmp_path / "a" / "b" / "place")
    assert not [*tmp_path.iterdir()]
    program.save(tmp_path / "a" / "b" / "place")
    assert Program.load(tmp_path / "a" / "b" / "place").hash == program.hash


@pytest.mark.parametrize("arguments", [
    ["optimize", "minilm", "--out", "place"], ["doctor", "--json", "found.json"],
    ["evaluate", "minilm", "--pairs", "absent.csv", "--json", "found.json"],
    ["spectrum", "minilm", "--out", "drawn.png"],
    ["embed", "absent", "absent.txt", "--out", "rows.npy"]])
def test_a_full_disk_is_found_before_the_work(tmp_path, arguments):
    """A limit on what a process may write to a file refuses it as a full disk does."""
    def limited(): resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    ran = subprocess.run([sys.executable, "-m", "rewrites.cli", *arguments], cwd=tmp_path, capture_output=True,
                         text=True,
                         preexec_fn=limited, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
    assert ran.returncode == 2 and ran.stderr.startswith(f"opmatrix: {arguments[-2]} {arguments[-1]}: ")
    assert "File too large" in ran.stderr and len(ran.stderr.splitlines()) == 1 and not [*tmp_path.iterdir()]


# ---- files that commands write

@pytest.mark.parametrize("out, words",
                         [("/dev/full", "it is a device"), ("link.json", "it is a link"), ("pipe", "it is a pipe"),
                                        (LONG, "File name too long"), ("absent/o", "No such file"),
                                        ("dir", "it is a directory"),
                                        ("file/o", "Not a directory")])
@pytest.mark.parametrize("arguments",
                         [["optimize", "minilm", "--json"], ["evaluate", "minilm", "--pairs", "p.csv", "--json"],
                                       ["doctor", "--json"], ["spectrum", "minilm", "--out"],
                                       ["embed", "absent", "t.txt", "--out"]])
def test_files_that_cannot_be_written(command, unsearched, tmp_path, arguments, out, words):  # noqa: F811
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link.json").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    refused(command(*arguments, out), words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "file", "link.json", "pipe"]
    assert (tmp_path / "file").read_text() == "mine" and Path("/dev/full").is_char_device()


@pytest.mark.parametrize("name", ["drawn", "drawn.xyz"])
def test_a_picture_of_an_unknown_kind(command, tmp_path, name):  # noqa: F811
    refused(command("spectrum", checkpoints.write(tmp_path / "model"), "--out", name), name, "png")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "found.json"
    file.write_text("before")
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error), files.replacing(file) as out:
            out.write(b"half")
            raise error
        assert contents(tmp_path) == {"found.json": b"before"}
    file.unlink()
    file.symlink_to("elsewhere")
    with pytest.raises(OSError, match="it is a link"), files.replacing(file): pass


# ---- texts from pipes and devices

def piped(program, tmp_path, *arguments, **given):
    """`opmatrix embed` as a process, its output beside it."""
    program.save(tmp_path / "program")
    command_line = " ".join(["exec", sys.executable, "-m", "rewrites.cli", "embed", "program", *arguments, "--out",
                             "rows.npy"])
    ran = subprocess.run(["bash", "-c", command_line], cwd=tmp_path, capture_output=True, timeout=120, **given,
                         env=os.environ | {"PYTHONPATH": str(ROOT)})
    return ran.returncode, ran.stderr.decode()


@pytest.mark.parametrize("source", ["/dev/stdin", "-", "<(cat lines.txt)"])
def test_texts_from_a_pipe(program, tmp_path, source):
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    assert piped(program, tmp_path, source, input="\n".join(LINES).encode()) == (0, "")
    assert np.array_equal(np.load(tmp_path / "rows.npy"), program.embed(LINES))


def test_texts_from_a_named_pipe(program, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=["\n".join(LINES)], daemon=True)
    writer.start()                                          # it waits for a reader; who only counts is none
    assert quantity(pipe) is None
    assert np.array_equal(embed_texts(program, pipe), program.embed(LINES))
    writer.join()


@pytest.mark.parametrize("arguments, words", [
    (["/dev/zero"], "/dev/zero: it is a device"), (["-", "</dev/zero"], f"line 1: more than {MAX_LINE_BYTES:,} bytes"),
    (["-", "<&-"], "standard input: "), (["-", "</dev/null"], "standard input: no text")])
def test_what_is_no_stream_of_texts(program, tmp_path, arguments, words):
    status, said = piped(program, tmp_path, *arguments)
    assert status == 2 and words in said and len(said.splitlines()) == 1 and not (tmp_path / "rows.npy").exists()


@pytest.mark.parametrize("arguments", [["optimize", "model", "--text"], ["optimize", "model", "--workload"],
                                       ["optimize", "model", "--pairs"], ["evaluate", "model", "--pairs"],
                                       ["optimize", "model", "--laws"]])
@pytest.mark.parametrize("source, words", [("pipe.py", "it is a pipe"), ("/dev/zero", "it is a device")])
def test_other_inputs_are_no_pipes(command, tmp_path, arguments, source, words):  # noqa: F811
    checkpoints.write(tmp_path / "model", max_position_embeddings=64)
    os.mkfifo(tmp_path / "pipe.py")
    if arguments[-1] == "--laws" and source == "/dev/zero": words = ".py"
    refused(command(*arguments, source), source, words)


# ---- nothing is opened or run because a file names it

@pytest.fixture
def reported(program, tmp_path, monkeypatch):
    """A saved program whose report is changed by what is given; the model is on hand."""
    model = checkpoints.write(tmp_path / "model", max_position_embeddings=64)
    found = {"tokens": None, "number_type": "int8", "without": [], "text": None, "texts": None, "laws": None,
             "chosen": 0, "error": 0.02,
             "front": [{"name": "exact", "measured_s": 1e-3, "measured_bytes": 5, "predicted_error": 0.0,
                        "measured_error": 1e-7}]}

    def change(**changed):
        if not (tmp_path / "place").exists(): program.replace(model="model", source=str(model)).save(tmp_path / "place")
        (tmp_path / "place" / "report.json").write_text(json.dumps(found | changed))
        return tmp_path / "place"
    monkeypatch.setattr(Opened, "structure", lambda *_,
                        **__: (_ for _ in ()).throw(InputError("the search begins")))
    return change


def evil(tmp_path, name="evil.py"):
    """A file that shows that it was run."""
    (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    return tmp_path / name


def test_laws_that_a_report_names_are_not_run(command, reported, tmp_path):  # noqa: F811
    laws = evil(tmp_path)
    refused(command("explain", reported(laws=Named.of(laws)._asdict())), "--laws", laws)
    refused(command("explain", reported(laws=str(laws))), "report.json: laws is", "no run writes")
    assert not (tmp_path / "ran").exists()


def test_other_laws_are_refused_by_their_digest_before_they_run(command, reported, tmp_path):  # noqa: F811
    laws = evil(tmp_path)
    place = reported(laws=Named.of(laws)._asdict())
    laws.write_text(laws.read_text() + "# changed\n")
    refused(command("explain", place, "--laws", laws), f"--laws {laws}: its SHA-256 is")
    refused(command("explain", reported(), "--laws", laws), "made without one")
    assert not (tmp_path / "ran").exists()


def test_no_compiled_code_beside_a_file_is_run(tmp_path):
    """A .pyc of the right time and size is not taken for the file."""
    import py_compile
    from importlib.util import cache_from_source

    from rewrites.verify.user_laws import run_file as module
    laws, other = tmp_path / "laws.py", evil(tmp_path)
    laws.write_text("mine = 1\n".ljust(other.stat().st_size))
    for file in (laws, other): os.utime(file, (10 ** 9, 10 ** 9))
    py_compile.compile(str(other), cfile=cache_from_source(str(laws)))
    assert module(laws).mine == 1 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name, option", [("text", "--text"), ("texts", "--workload")])
def test_texts_that_a_report_names_are_not_opened(command, reported, tmp_path, name, option):  # noqa: F811
    file = tmp_path / "lines.txt"
    file.write_text("the bank\nthe river\na bank\n")
    place = reported(**{name: Named.of(file)._asdict()})
    refused(command("explain", place), option, file)
    refused(command("explain", place, option, file), "the search begins")
    file.write_text("the bank\nthe rivers\na bank\n")
    refused(command("explain", place, option, file), "SHA-256")


DAMAGE = [("tokens", 0), ("tokens", True), ("tokens", "9"), ("number_type", "fp8"), ("number_type", []),
          ("without", [3]),
          ("without", "join"), ("text", "/etc/passwd"), ("texts", {"file": "x"}), ("laws", {"file": 3, "sha256": "0"}),
          ("front", []),
          ("front", [3]),
          ("front", [{}]), ("front", [{"name": "x", "measured_s": "fast"}]),
          ("front", [{"name": "x", "measured_s": -1}]),
          ("front", [{"name": "x"}] * 101), ("chosen", 1), ("chosen", -1), ("chosen", False),
          ("error", None), ("error", -1.0), ("error", True), ("memory", "all"), ("memory", -5)]


@pytest.mark.parametrize("key, value", DAMAGE, ids=str)
def test_every_field_of_a_report_is_checked(reported, key, value):
    place = reported(**{key: value})
    with pytest.raises(InputError, match=rf"report\.json: {key}.* which no run writes"):
        Reported.read(place / "report.json")
    assert Reported.read(reported() / "report.json").front[0]["name"] == "exact"


def test_the_model_is_the_one_that_is_given(reported, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(explain, "open_model",
                        lambda name, adapter: opened.append(name) or (_ for _ in ()).throw(InputError("seen")))
    for given in ("elsewhere", None):
        with pytest.raises(InputError, match="seen"): explain.explain(reported(), Report(quiet=True), model=given)
    assert opened == ["elsewhere", str(tmp_path / "model")]


def test_a_terminal_obeys_no_file(command, program, tmp_path):  # noqa: F811
    program.replace(model="\x1b]0;title\x07").save(tmp_path / "place")
    (tmp_path / "place" / "program.json").write_text('{"kind": "\x1b[2J"}'.replace("\x1b", "\\u001b"))
    ran = command("run", "place", "the bank")
    assert ran.status == 2 and "\x1b" not in ran.err + ran.out


@pytest.mark.parametrize("given", [
    ("spectrum", "n" * 5000), ("run", "n" * 5000, "text"), ("verify", "n" * 5000), ("explain", "n" * 5000),
    ("embed", "n" * 5000, "texts", "--out", "x.npy"), ("optimize", "n" * 5000, "--out", "mine")])
def test_a_name_that_is_too_long_is_that_of_nothing(command, given):      # noqa: F811
    refused(command(*given), "nnnn")
