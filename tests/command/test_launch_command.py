"""The command `launch`: what cannot be is refused in a line before a process starts. What it prints is in
tests/peers/test_launch.py, since ranks need torch."""

import json
import re
import socket

import pytest
from partitioned import LLAMA, command_runner

from opmatrix.autodiff.vjp_rules import PULLS
from opmatrix.parallel.launch.headings import RanksFailed


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Runs the command beside a tiny configuration, and gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(
        "opmatrix.parallel.launch.launcher.Ranks.start", lambda *_: pytest.fail("a process was started")
    )
    return command_runner("launch", monkeypatch, capsys)


@pytest.mark.parametrize(
    "line, words",
    [
        ("tiny.json --ranks 4 --tp 2", r"--ranks 4: the axes have 2 \(tp 2\): give axes with that product"),
        ("tiny.json --tp 4", r"mesh: tp has 4 ranks, .*the nearest that divides is 2"),
        ("tiny.json --dp 8", r"mesh: dp has 8 ranks and there are 4 sequences: at most 4"),
        ("tiny.json --tokens 17", r"tokens 17: .*16"),
        ("tiny.json --tp 2 --tokens 8 --deadline 0", r"--deadline 0: seconds, more than 0"),
        (
            "tiny.json --tp 2 --tokens 8 --train --micro-batches 9",
            r"micro-batches 9: a batch of 4 sequences has at most 4",
        ),
        (
            "tiny.json --tp 2 --tokens 8 --train --schedule zb-h1",
            r"schedule zb-h1: ranks run 1f1b, gpipe or interleaved:V",
        ),
        ("tiny.json --tp 2 --tokens 8 --train --schedule interleaved:2", r"virtual stages need a pipeline: give --pp"),
        ("tiny.json --tp 2 --tokens 8 --train --dropout 1", r"dropout 1: from 0 to below 1"),
        ("tiny.json --tp 2 --tokens 8 --rate 0.1", r"--rate 0.1: it belongs to steps of training: give --train, too"),
        ("tiny.json --tp 2 --tokens 8 --train --decode", r"--decode, --train: ranks do one of the two"),
        ("tiny.json --cp 2 --tokens 8 --decode", r"mesh: cp: a step has one row a sequence, which ring would shard"),
        ("tiny.json --tp 2 --tokens 14 --steps 6 --decode", r"tokens 20: the model has 16 positions"),
        ("tiny.json --tp 2 --trace out.txt", r"--trace out.txt: a trace is a .json of Chrome's tracing or an .svg"),
        ("llama2-70b --tp 2", r"llama2-70b: 6.9e\+10 weights, to be drawn at random by every rank: at most 2e\+08"),
        ("nowhere --tp 2", r"nowhere: "),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(said, line, words):
    status, out, errors = said(line)
    assert status == 2 and not out and errors.count("\n") == 1 and re.search(words, errors), errors


def test_a_port_in_use_and_an_absent_torch_are_refused(said, monkeypatch):
    line = "tiny.json --dp 2 --batch 2 --tokens 4 --no-compare"
    monkeypatch.setattr("opmatrix.parallel.launch.launcher.find_spec", lambda name: name)  # torch may not be here
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        status, out, errors = said(f"{line} --port {port}")
    assert (status, out, errors.count("\n")) == (2, "", 1) and re.search(rf"port {port}: .*in use", errors)
    monkeypatch.setattr("opmatrix.parallel.launch.launcher.find_spec", lambda name: None)
    status, out, errors = said(line)
    assert (status, out, errors.count("\n")) == (2, "", 1) and "pip install 'opmatrix[launch]'" in errors


def test_a_kind_without_a_pullback_is_refused(said, monkeypatch):
    """Before a process starts, and where nothing is run, too."""
    monkeypatch.delitem(PULLS, "join")
    status, out, errors = said("tiny.json --dp 2 --batch 2 --tokens 4 --train")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert "pullback: join has no pullback: leave it out, or declare one" in errors


def test_ranks_that_fail_are_one_line(said, monkeypatch):
    def fails(*_):
        raise RanksFailed("rank 1 died by SIGKILL")

    monkeypatch.setattr("rewrites.cli.rank_commands.launched", fails)
    assert said("tiny.json --tp 2") == (1, "", "opmatrix: rank 1 died by SIGKILL\n")


def test_what_differs_is_status_1(said, monkeypatch):
    monkeypatch.setattr("rewrites.cli.rank_commands.launched", lambda *_: ("a table", {"holds": False}))
    status, out, errors = said("tiny.json --tp 2")
    assert status == 1 and out == "a table\n" and errors.startswith("opmatrix: ranks differ from one rank")
