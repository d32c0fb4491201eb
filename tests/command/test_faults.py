"""What is not the user's error: status 70, one line, and a file that keeps all of it; what is the user's stays so."""

import errno
import io
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import ROOT
from searched import model
from test_cli import command, patched, refused  # noqa: F401

from formats.core.errors import InputError
from rewrites.cli import __main__ as cli
from rewrites.cli import commands
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import SIMPLIFY, law, matrix, n, p, value
from rewrites.run import blame_own_laws
from rewrites.verify import VerificationError, shrink, verify_graphs

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@law(phase=SIMPLIFY, source="nowhere")
def drops_a_product(x: value[n], A: matrix[n, p], B: matrix[p, p]):
    """It is wrong."""
    return x @ A @ B, x @ A


def failing(monkeypatch, error):
    """`opmatrix laws` fails so."""

    def fail(_):
        raise error

    monkeypatch.setattr(commands, "declarations", fail)


def faulted(ran):
    """The file that a fault's one line names."""
    assert (
        ran.status == 70
        and not ran.out
        and len(ran.err.splitlines()) == 1
        and ran.err.startswith("opmatrix: a fault in opmatrix: ")
    )
    return Path(re.search(r"see (\S+), and report it", ran.err)[1])


def test_an_unexpected_error_is_a_fault_and_kept(command, monkeypatch, tmp_path):  # noqa: F811
    failing(monkeypatch, KeyError("a\nkey\x1b[2J"))
    ran = command("laws")
    file = faulted(ran)
    assert file.parent == tmp_path and file.suffix == ".txt" and "KeyError" in ran.err and "\x1b" not in ran.err
    assert "in fail" in file.read_text() and "opmatrix laws" in file.read_text() and not file.stat().st_mode & 0o077


def test_a_reproducer_is_kept_as_python(command, monkeypatch, tmp_path):  # noqa: F811
    lines = "found = 3\nassert not found, 'it is there'"
    failing(monkeypatch, VerificationError(2, "graph 1 of 2", "a is not b", lines, difference=0.5))
    ran = command("laws")
    file = faulted(ran)
    assert "level 2: graph 1 of 2: a is not b (difference 0.5)" in ran.err and "assert" not in ran.err
    run = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert file.suffix == ".py" and "AssertionError: it is there" in run.stderr and file.read_text().count(lines) == 1


def test_where_nothing_can_be_written_it_is_kept_among_temporary_files(command, monkeypatch, tmp_path):  # noqa: F811
    failing(monkeypatch, KeyError("key"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("rewrites.cli.outputs.Path.cwd", lambda: tmp_path / "absent")
    assert faulted(command("laws")).parent == tmp_path / "elsewhere"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    ran = command("laws")
    assert ran.status == 70 and "OPMATRIX_DEBUG=1" in ran.err


def test_the_traceback_is_printed_when_asked(command, monkeypatch):  # noqa: F811
    monkeypatch.setenv("OPMATRIX_DEBUG", "1")
    failing(monkeypatch, KeyError("key"))
    ran = command("laws")
    assert ran.status == 70 and "Traceback" in ran.err and ran.err.splitlines()[-1].startswith("opmatrix: a fault")


def test_too_little_memory_is_no_fault(command, monkeypatch):  # noqa: F811
    failing(monkeypatch, MemoryError())
    refused(command("laws"), "not enough memory")


def test_a_law_of_the_user_s_own_is_the_user_s(tmp_path):
    searched = SimpleNamespace(
        opened=SimpleNamespace(laws=[*EXACT_LAWS, drops_a_product]), optimum=SimpleNamespace(fired={"drops_a_product"})
    )
    for level, laws in ((2, ["associate", "drops_a_product"]), (3, [])):
        with pytest.raises(InputError, match=r"--laws: law drops_a_product: .*a is not b"), blame_own_laws(searched):
            raise VerificationError(level, "a graph", "a is not b", laws=laws)
    with pytest.raises(VerificationError), blame_own_laws(searched):
        raise VerificationError(2, "a graph", "a is not b", laws=["associate"])


@pytest.mark.deep
def test_a_wrong_law_names_tensors_and_is_announced(monkeypatch):
    """On a busy machine, too: no time passes for the search for a small reproducer."""
    monkeypatch.setattr(shrink, "monotonic", lambda: 0.0)
    templates = [part.template for by_state in parts(model())[1:2] for part in by_state.values()]
    announced = []
    with pytest.raises(VerificationError) as error:
        verify_graphs(templates, [*EXACT_LAWS, drops_a_product], announce=announced.append)
    assert error.value.laws == ("drops_a_product",) and len(announced) == 1 and "20 s at most" in announced[0]
    assert not re.search(r"_[0-9a-f]{12}", error.value.said) and "encoder_layer_0" in error.value.said, error.value.said


def test_a_reproducer_takes_no_longer_than_it_may(monkeypatch):
    """By a clock of the test's own, every graph takes a second."""
    clock, check = [0.0], shrink.check_term

    def slow(*given):
        clock[0] += 1
        return check(*given)

    monkeypatch.setattr(shrink, "monotonic", lambda: clock[0])
    monkeypatch.setattr(shrink, "check_term", slow)
    monkeypatch.setattr(shrink, "SHRINK_SECONDS", 3)
    templates = [part.template for by_state in parts(model())[1:2] for part in by_state.values()]
    with pytest.raises(VerificationError) as error:
        verify_graphs(templates, [*EXACT_LAWS, drops_a_product])
    assert clock[0] <= 4 and error.value.laws == ("drops_a_product",)


# ---- as a process


def test_nobody_reads_to_the_end(tmp_path):
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m rewrites.cli laws | head -1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert len(ran.stdout.splitlines()) == 1 and not ran.stderr and not [*tmp_path.iterdir()]


class Full(io.RawIOBase):
    """Takes no byte."""

    def writable(self):
        return True

    def write(self, some):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("buffered", [True, False], ids=["whole", "by lines"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["laws"], ["embed", "-h"], ["optimize", "-h"]])
def test_a_full_output_is_a_line_and_no_fault(patched, monkeypatch, capfd, tmp_path, words, buffered):  # noqa: F811
    """Whatever prints: commands, typer, its help."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "discard", lambda *streams: None)
    monkeypatch.setattr(sys, "argv", ["opmatrix", *words])
    full = io.TextIOWrapper(io.BufferedWriter(Full()), "utf-8", line_buffering=not buffered)
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = "opmatrix: the output: not written: No space left on device: make room there\n"
    assert (end.value.code, capfd.readouterr().err) == (1, said) and not [*tmp_path.iterdir()]
    with suppress(OSError):
        full.close()


@pytest.mark.deep(every=4)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize(
    "redirected, status, words",
    [
        ("> /dev/full", 1, "opmatrix: the output: not written: No space left on device: make room there\n"),
        (">&-", 2, "opmatrix: standard output: it is closed: send it to a file, or to /dev/null\n"),
        ("2>&-", 0, ""),
        ("> /dev/full 2>&1", 1, ""),
    ],
)
def test_streams_that_take_nothing(tmp_path, redirected, status, words):
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m rewrites.cli --version {redirected}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert (ran.returncode, ran.stderr) == (status, words) and not [*tmp_path.iterdir()]


def test_the_version(command):  # noqa: F811
    ran = command("--version")
    assert ran.status == 0 and re.fullmatch(r"opmatrix \d+\.\d+\.\d+\n", ran.out)
