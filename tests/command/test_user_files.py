"""Files of the user: what cannot be written is refused before the work, a file is whole or as it was, pipes are read
once, and what a file says is shown without what a terminal would obey."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from children import LIMIT, ROOT
from test_cli import command, patched, refused  # noqa: F401

from formats.disk import files
from opmatrix.inference.embed import MAX_LINE_BYTES, embed_texts, quantity

LINES = ["the bank of the river", "", "a river runs dry"]
LONG = "n" * 300


def contents(directory):
    """Every path below a directory, with what it holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")
    }


# ---- files that commands write


@pytest.mark.parametrize(
    "out, words",
    [
        ("/dev/full", "it is a device"),
        ("link.json", "it is a link"),
        ("pipe", "it is a pipe"),
        (LONG, "File name too long"),
        ("absent/o", "No such file"),
        ("dir", "it is a directory"),
        ("file/o", "Not a directory"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "minilm", "--json"],
        ["evaluate", "minilm", "--pairs", "p.csv", "--json"],
        ["doctor", "--json"],
        ["spectrum", "minilm", "--out"],
        ["embed", "absent", "t.txt", "--out"],
    ],
)
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
    with pytest.raises(OSError, match="it is a link"), files.replacing(file):
        pass


def list_opened(process):
    """The paths of files that a process has open."""
    for each in os.listdir(room := f"/proc/{process.pid}/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"{room}/{each}")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="what a process has open is found by /proc")
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_command_that_is_told_to_end_leaves_nothing(program, tmp_path, unnamed):
    """While it writes, and waits for more texts: by SIGINT, by SIGTERM, and by SIGKILL where a file needs no name."""
    program.save(tmp_path / "program")
    os.mkdir(place := str(tmp_path / "rows"))
    code = (
        "import sys; from formats.disk import files; from rewrites.cli.__main__ import main; "
        f"{'' if unnamed else 'files.open_unnamed = lambda *_: None; '}"
        "sys.argv[1:] = ['embed', 'program', '-', '--out', 'rows/rows.npy']; main()"
    )
    with files.replacing(tmp_path / "trial"):
        nameless = unnamed and not list(tmp_path.glob(".*.part"))
    pattern = f"{place}/#*" if nameless else f"{place}/.????????.part"
    ends = {signal.SIGINT: (130, b"opmatrix: interrupted\n"), signal.SIGTERM: (143, b""), signal.SIGKILL: (-9, b"")}
    if not nameless:
        del ends[signal.SIGKILL]
    for number, end in ends.items():
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            # jobs in the background ignore it
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while not any(fnmatch(each, pattern) for each in list_opened(process)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == end
        assert not os.listdir(place)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_ends_where_the_exception_of_a_signal_is_ignored(number, status):
    """As imports do, a weak reference calls back, and what is raised there is lost."""
    code = f"""
import os, signal, sys, time, weakref
from rewrites.cli.__main__ import attend_termination
signal.signal(signal.SIGINT, signal.default_int_handler)
attend_termination()
def call_back(_):
    os.kill(os.getpid(), {int(number)})
    time.sleep(0)
some = set()
watched = weakref.ref(some, call_back)
try:
    del some
    time.sleep({LIMIT})
except KeyboardInterrupt:
    sys.exit(130)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert (ended.returncode, ended.stderr) == (status, b"")


# ---- texts from pipes and devices


def piped(program, tmp_path, *arguments, **given):
    """`opmatrix embed` as a process, its output beside it."""
    program.save(tmp_path / "program")
    command_line = " ".join(
        ["exec", sys.executable, "-m", "rewrites.cli", "embed", "program", *arguments, "--out", "rows.npy"]
    )
    ran = subprocess.run(
        ["bash", "-c", command_line],
        cwd=tmp_path,
        capture_output=True,
        timeout=LIMIT,
        **given,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return ran.returncode, ran.stderr.decode()


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("source", ["/dev/stdin", "-", "<(cat lines.txt)"])
def test_texts_from_a_pipe(program, tmp_path, source):
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    assert piped(program, tmp_path, source, input="\n".join(LINES).encode()) == (0, "")
    assert np.array_equal(np.load(tmp_path / "rows.npy"), program.embed(LINES))


def test_texts_from_a_named_pipe(program, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=["\n".join(LINES)], daemon=True)
    writer.start()  # it waits for a reader; who only counts is none
    assert quantity(pipe) is None
    assert np.array_equal(embed_texts(program, pipe), program.embed(LINES))
    writer.join()


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["/dev/zero"], "/dev/zero: it is a device"),
        (["-", "</dev/zero"], f"line 1: more than {MAX_LINE_BYTES:,} bytes"),
        (["-", "<&-"], "standard input: "),
        (["-", "</dev/null"], "standard input: no text"),
    ],
)
def test_what_is_no_stream_of_texts(program, tmp_path, arguments, words):
    status, said = piped(program, tmp_path, *arguments)
    assert status == 2 and words in said and len(said.splitlines()) == 1 and not (tmp_path / "rows.npy").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "model", "--text"],
        ["optimize", "model", "--workload"],
        ["optimize", "model", "--pairs"],
        ["evaluate", "model", "--pairs"],
        ["optimize", "model", "--laws"],
    ],
)
@pytest.mark.parametrize("source, words", [("pipe.py", "it is a pipe"), ("/dev/zero", "it is a device")])
def test_other_inputs_are_no_pipes(command, tmp_path, arguments, source, words):  # noqa: F811
    checkpoints.write(tmp_path / "model", max_position_embeddings=64)
    os.mkfifo(tmp_path / "pipe.py")
    if arguments[-1] == "--laws" and source == "/dev/zero":
        words = ".py"
    refused(command(*arguments, source), source, words)


def test_a_terminal_obeys_no_file(command, program, tmp_path):  # noqa: F811
    program.replace(model="\x1b]0;title\x07").save(tmp_path / "place")
    (tmp_path / "place" / "program.json").write_text('{"kind": "\x1b[2J"}'.replace("\x1b", "\\u001b"))
    ran = command("run", "place", "the bank")
    assert ran.status == 2 and "\x1b" not in ran.err + ran.out


@pytest.mark.parametrize(
    "given",
    [
        ("spectrum", "n" * 5000),
        ("run", "n" * 5000, "text"),
        ("verify", "n" * 5000),
        ("explain", "n" * 5000),
        ("embed", "n" * 5000, "texts", "--out", "x.npy"),
        ("optimize", "n" * 5000, "--out", "mine"),
    ],
)
def test_a_name_that_is_too_long_is_that_of_nothing(command, given):  # noqa: F811
    refused(command(*given), "nnnn")
