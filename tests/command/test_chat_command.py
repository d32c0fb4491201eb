"""The command `chat`: a reply to each line of the standard input, and one line for what is bad."""

import io
import json
import sys

import pytest
import standin
from speakers import gpt2

from rewrites.cli import __main__ as cli

pytest.importorskip("jinja2", reason="needs peers: jinja2")
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}{% endfor %}a: "


@pytest.fixture
def chat(tmp_path, capsys, monkeypatch):
    """Runs the command in this process with lines of input; what it printed, said, and its status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rewrites.encoders.language_models.calibrated", lambda progress, *batches: standin.machine())
    program = gpt2().program.replace(chat={"templates": {"default": TEMPLATE}, "tokens": {}})
    program.save(tmp_path / "saved")
    gpt2().program.save(tmp_path / "plain")

    def run(lines, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        monkeypatch.setattr(sys, "argv", ["opmatrix", "chat", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return *capsys.readouterr(), end.value.code or 0

    return run


def test_each_line_has_a_reply(chat):
    """Turns are the messages before and the line; their new tokens alone are computed."""
    out, _, status = chat("In \n\nand \n", "saved", "--system", "x", "--max-tokens", 6, "--json", "turns.json")
    program, messages = gpt2().program.replace(chat={"templates": {"default": TEMPLATE}, "tokens": {}}), []
    messages.append({"role": "system", "content": "x"})
    texts = []
    for line in ("In ", "and "):
        messages.append({"role": "user", "content": line})
        texts.append(program.chat(messages, max_tokens=6).text)
        messages.append({"role": "assistant", "content": texts[-1]})
    assert (status, out) == (0, "".join(f"{text}\n" for text in texts))
    turns = json.load(open("turns.json"))["turns"]
    assert [turn["text"] for turn in turns] == texts
    assert [turn["prompt_tokens"] - turn["reused_tokens"] for turn in turns] == [
        len("s: xu: In a: "),
        len("u: and a: "),
    ]


def test_stops_and_tools(chat, tmp_path):
    (tmp_path / "tools.json").write_text('[{"type": "function"}]')
    whole = chat("In ", "saved", "--max-tokens", 9, "--quiet")[0].rstrip("\n")
    out, _, status = chat("In ", "saved", "--max-tokens", 9, "--stop", whole[4:6], "--tools", "tools.json", "--quiet")
    assert (out.rstrip("\n"), status) == (whole[: whole.find(whole[4:6])], 0)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["plain"], "plain has no chat template"),
        (["saved", "--top-k", 0], "top_k 0"),
        (["saved", "--template", "other"], "has no template 'other'"),
        (["saved", "--stop", ""], "stop: ''"),
        (["saved", "--tools", "absent.json"], "absent.json"),
        (["absent"], "absent"),
    ],
)
def test_bad_input_is_one_line(chat, arguments, said):
    out, err, status = chat("In \n", *arguments, "--quiet")
    assert status == 2 and not out and said in err.splitlines()[-1] and err.splitlines()[-1].startswith("opmatrix: ")
