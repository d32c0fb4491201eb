"""Grammars of replies by files, in `generate` and in `chat`, and one line for what is bad."""

import io
import json
import sys

import pytest
from speakers import gpt2

from rewrites.cli import __main__ as cli

pytest.importorskip("llguidance", reason="needs peers: llguidance")
CHOICE = {"enum": ["England", "France"]}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A saved program, and files of grammars, in the working directory."""
    monkeypatch.chdir(tmp_path)
    templates = {"templates": {"default": "{{ messages[-1].content }}"}, "tokens": {}}
    gpt2().program.replace(chat=templates).save(tmp_path / "saved")
    (tmp_path / "choice.json").write_text(json.dumps(CHOICE))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "wrong.json").write_text('{"type": "nothing"}')
    (tmp_path / "digits.lark").write_text("start: /[0-9]{3}/")


@pytest.fixture
def run(files, capsys, monkeypatch):
    """Runs a command in this process with a line of input; what it printed, said, and its status."""

    def command(*arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO("In \n"))
        monkeypatch.setattr(sys, "argv", ["opmatrix", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return *capsys.readouterr(), end.value.code or 0

    return command


def test_a_text_of_the_schema(run):
    out, said, status = run("generate", "saved", "In ", "--json-schema", "choice.json", "--json", "reply.json")
    assert status == 0 and json.loads(out) in CHOICE["enum"] and "the text ended" in said
    assert json.load(open("reply.json"))["ended"] == "end"
    out, _, status = run("generate", "saved", "In ", "--grammar", "digits.lark", "--quiet")
    assert status == 0 and len(out.strip()) == 3 and out.strip().isdecimal()


def test_each_reply_of_a_chat_keeps_to_it(run):
    pytest.importorskip("jinja2", reason="needs peers: jinja2")
    out, _, status = run("chat", "saved", "--json-schema", "choice.json", "--quiet")
    assert status == 0 and json.loads(out) in CHOICE["enum"]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--json-schema", "choice.json", "--grammar", "digits.lark"], "a reply keeps to one of them"),
        (["--json-schema", "list.json"], "--json-schema list.json: [1] is no JSON object"),
        (["--json-schema", "wrong.json"], "Invalid type: nothing"),
        (["--grammar", "absent.lark"], "absent.lark"),
        (["--json-schema", "choice.json", "--json", "choice.json"], "choice.json"),
    ],
)
def test_bad_input_is_one_line(run, options, said):
    out, err, status = run("generate", "saved", "In ", *options, "--quiet")
    assert status == 2 and not out and said in err.splitlines()[-1] and err.splitlines()[-1].startswith("opmatrix: ")
