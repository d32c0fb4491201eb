"""Where programs are saved: what is not ours is never deleted, what cannot be written is refused before the work, what
fails, is interrupted or is killed leaves what was there."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import ROOT
from test_cli import command, patched, refused  # noqa: F401
from test_user_files import LONG, contents

from formats.core.errors import InputError
from opmatrix.files import placing, saving
from opmatrix.runtime.program import Program


def written(program, place):
    """A program with a front of two beside it, and its report, as `optimize` leaves them."""
    with saving.replacing_program(place) as fresh:
        for each in (fresh, fresh / "front" / "0", fresh / "front" / "1"):
            saving.write_program(program, each)
            (each / saving.DERIVATION).write_text("associate at h3\n")
        (fresh / saving.REPORT).write_text("{}")
    return place


def note(place):
    (place / "front" / "1" / "thesis.tex").write_text("years")


def folder(place):
    (place / "front" / "drafts").mkdir()


def linked(place):
    (place / "front" / "7").symlink_to(place / "front" / "1")


def taken(place):
    shutil.rmtree(place / "front")
    (place / "front").write_text("mine")


def away(place):
    shutil.move(place / "front", place.parent / "elsewhere")
    (place / "front").symlink_to(place.parent / "elsewhere")


def named(place):
    (place / saving.REPORT).unlink()
    (place / saving.REPORT).mkdir()
    (place / saving.REPORT / "mine").write_text("x")


@pytest.mark.parametrize(
    "add, said",
    [
        (note, "front/1/thesis.tex"),
        (folder, "front/drafts"),
        (linked, "front/7"),
        (taken, "front"),
        (away, "front"),
        (named, "report.json"),
    ],
)
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


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def stopped(*_):
    raise KeyboardInterrupt


def keep(place):
    """What is the user's beside a program: a file, a link, directories within one another."""
    (place / "notes" / "deeper").mkdir(parents=True)
    (place / "notes" / "deeper" / "mine.txt").write_text("mine")
    (place / "notes.txt").write_text("mine")
    (place / "link").symlink_to("notes.txt")


def laid(place, said):
    """A directory of two files that say the same."""
    place.mkdir(parents=True)
    for name in ("program.json", "weights"):
        (place / name).write_text(said)
    return place


def replace_by(said, place):
    """The directory at a place by one that says something else, as a save does it."""
    with saving.fresh_directory(place, place) as fresh:
        for name in ("program.json", "weights"):
            (fresh / name).write_text(said)
        placing.replace_directory(fresh, place, ("program.json", "weights"))


def at_line(wanted, act):
    """A trace that acts at one line of the module that puts programs into their places; how many it has met."""
    met = [0]

    def local(frame, event, _):
        if event == "line":
            met[0] += 1
            if met[0] == wanted:
                act()
        return local

    return met, lambda frame, event, _: local if frame.f_code.co_filename == placing.__file__ else None


def lines_of(run):
    """How many lines of that module a run passes."""
    met, trace = at_line(0, None)
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return met[0]


@pytest.fixture(params=["at once", "by two renamings"])
def exchanging(request, monkeypatch):
    """As the system does it, and as one that cannot exchange two directories."""
    if request.param != "at once":
        monkeypatch.setattr(placing, "exchange", lambda *_: False)
    elif not sys.platform.startswith("linux"):
        pytest.skip("directories are exchanged on Linux")


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
        try:
            replace_by("new", place)
        except (InputError, KeyboardInterrupt):
            pass
        finally:
            sys.settrace(None)
        found = contents(place)
        assert found in (before, replaced) and "notes/deeper/mine.txt" in found, line
        assert [*place.parent.iterdir()] == [place] or found == replaced
        outcomes.add(found == before)
    assert outcomes == {True, False} and lines > 12


@pytest.mark.deep(every=2)
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


@pytest.mark.parametrize(
    "out, words",
    [
        (".", "working directory"),
        ("..", "working directory"),
        ("../work", "working directory"),
        ("link", "a link"),
        ("dangling", "a link"),
        ("file", "no opmatrix program"),
        ("file/deeper", "Not a directory"),
        ("/dev/full", "no opmatrix program"),
        ("/proc/absent/place", "No such file"),
        (LONG, "File name too long"),
        (f"absent/{LONG}", "File name too long"),
        ("loop/place", ""),
    ],
)
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


@pytest.mark.deep(every=5)
@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "minilm", "--out", "place"],
        ["doctor", "--json", "found.json"],
        ["evaluate", "minilm", "--pairs", "absent.csv", "--json", "found.json"],
        ["spectrum", "minilm", "--out", "drawn.png"],
        ["embed", "absent", "absent.txt", "--out", "rows.npy"],
    ],
)
def test_a_full_disk_is_found_before_the_work(tmp_path, arguments):
    """A limit on what a process may write to a file refuses it as a full disk does."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    ran = subprocess.run(
        [sys.executable, "-m", "rewrites.cli", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=limited,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ran.returncode == 2 and ran.stderr.startswith(f"opmatrix: {arguments[-2]} {arguments[-1]}: ")
    assert "File too large" in ran.stderr and len(ran.stderr.splitlines()) == 1 and not [*tmp_path.iterdir()]


def test_what_a_killed_save_has_left_goes_with_a_later_one(program, tmp_path):
    """An hour later; never what a process writes to, what is younger, or what no save has made."""
    left, used, young, mine, file = (tmp_path / f".0000000{at}.part" for at in range(5))
    for place in (left, used, young, mine):
        saving.write_program(program, place)
    (left / saving.FRONT).mkdir()
    (left / "place").mkdir()  # a name that was tried
    (left / saving.TRIAL_FILE).touch()
    (mine / "thesis.tex").write_text("years")
    file.write_text("mine")
    for place in (left, used, mine, file):
        os.utime(place, (0, 0))
    with saving.held_open(used):
        program.save(tmp_path / "place")
    assert {path.name for path in tmp_path.iterdir()} == {"place", *(path.name for path in (used, young, mine, file))}
    program.save(tmp_path / "place")
    assert not used.exists() and young.exists() and mine.exists() and file.exists()
