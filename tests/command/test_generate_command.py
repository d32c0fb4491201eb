"""The command `generate`: text on the standard output as it grows, and one line for what is bad."""

import json
import os
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import get_args

import checkpoints
import ggufs
import pytest
import standin
from speakers import BYTES, gpt2

from opmatrix.files.loading import load
from opmatrix.inference.parsed_ahead import ParsedAhead
from opmatrix.inference.sampling import Sampling
from rewrites.cli import __main__ as cli
from rewrites.cli import commands
from rewrites.cli.generate import write_reply
from rewrites.cli.straight import SWITCHES, VALUED, read_plainly


@pytest.fixture
def generate(tmp_path, capsys, monkeypatch):
    """Runs the command in this process, in a directory of its own; what it printed, said, and its status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rewrites.encoders.language_models.calibrated", lambda progress, *batches: standin.machine())

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["opmatrix", "generate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return *capsys.readouterr(), end.value.code or 0

    return run


@pytest.fixture
def saved(tmp_path):
    gpt2().program.save(tmp_path / "saved")
    return "saved"


def test_text_of_a_saved_program(generate, saved):
    out, said, status = generate(saved, "The history of ", "--max-tokens", 30, "--json", "found.json")
    (wanted,) = gpt2().program.generate("The history of ", max_tokens=30)
    assert (status, out) == (0, wanted.text + "\n")
    assert "no end token in the files: 30 tokens are written" in said and "30 tokens behind 15: the first after" in said
    found = json.load(open("found.json"))
    assert (found["ids"], found["text"], found["ended"]) == (wanted.ids, wanted.text, "limit")
    assert len(found["token_s"]) == 29 and found["sampling"]["seed"] == 0


def test_a_saved_program_needs_no_laws_and_no_terms(saved, tmp_path):
    """The first token of a process waits for none of them; the tokenizer is read beside the arrays."""
    told = """
import atexit, sys
heavy = {"numba", "llvmlite", "egglog", "sympy", "scipy", "rewrites.laws", "opmatrix.algebra.nodes", "typer",
         "pydantic", "rewrites.extraction"}
atexit.register(lambda: print("heavy:", *sorted(heavy & {*sys.modules})))
sys.argv = ["opmatrix", "generate", "saved", "In ", "--max-tokens", "1", "--quiet"]
from rewrites.cli.__main__ import main
main()"""
    ended = subprocess.run(
        [sys.executable, "-c", told],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    (wanted,) = gpt2().program.generate("In ", max_tokens=1)
    assert (ended.stdout, ended.returncode) == (f"{wanted.text}\nheavy:\n", 0), ended.stderr
    found = load(tmp_path / "saved", tokenizer=True)
    read, own = vars(found)["tokenizer"], gpt2().program.tokenizer
    assert read.encode("In ").tokens.tolist() == own.encode("In ").tokens.tolist()
    assert "tokenizer" not in vars(load(tmp_path / "saved"))


def test_plain_arguments_are_read_as_the_library_reads_them(saved, tmp_path, monkeypatch):
    """All of its options are there, with their names and kinds; what is no plain value, or names no saved program, is
    left to it."""
    monkeypatch.chdir(tmp_path)
    given = signature(commands.generate_text, eval_str=True).parameters
    own, asked = signature(write_reply).parameters, {*given} - {"context", "model", "prompt"}
    said = {name: given[name].annotation.__metadata__[0] for name in asked}
    words = {
        name: [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
        for name, info in said.items()
    }
    spelt = {word: name for name in asked for word in words[name] or [f"--{name.replace('_', '-')}"]}
    assert {**{word: name for word, (name, _) in VALUED.items()}, **SWITCHES} == spelt
    assert {name: given[name].default for name in asked} == {name: own[name].default for name in asked}
    plain = {int: "7", float: "0.25", str: "bf16", Path: "x.json"}
    for name, read in VALUED.values():
        wanted = given[name].annotation.__origin__
        kind = next(each for each in plain if each in (get_args(wanted) or (wanted,)))
        assert read(plain[kind]) == kind(plain[kind]) and type(read(plain[kind])) is type(kind(plain[kind]))
    reads = read_plainly(["generate", saved, "the prompt", "-q", "--top-k", "5", "--json", "x.json"])
    assert reads == (saved, "the prompt", {"quiet": True, "top_k": 5, "results": Path("x.json")})
    for more in (
        ["--top-k", "five"],
        ["--top-k"],
        ["--top-k=5"],
        ["--seed", "-1"],
        ["--top-p", "nan"],
        ["-h"],
        ["third"],
        ["--max-tokens", "٣"],
        ["--quiet", "--", "x"],
        ["--temperature", "1e3"],
    ):
        assert read_plainly(["generate", saved, "prompt", *more]) is None
    assert read_plainly(["generate", "smollm2", "a"]) is read_plainly(["run", saved, "a"]) is read_plainly([]) is None


def test_a_tokenizer_that_was_begun_before_is_the_file_s(saved, tmp_path):
    """Of another text, or a file that cannot be read, there is none, and nobody waits."""
    ahead = ParsedAhead(tmp_path / saved / "tokenizer.json")
    found = load(tmp_path / saved, tokenizer=ahead)
    assert ahead.found is not None and found.tokenizer.tokenizer is ahead.found and ahead.parsed("{}") is None
    (tmp_path / "bad.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    for name in ("bad.json", "absent", "pipe"):
        other = ParsedAhead(tmp_path / name)
        assert other.parsed("") is other.parsed("{}") is None
        read = load(tmp_path / saved, tokenizer=other).tokenizer
        assert read.encode("In ").tokens.tolist() == found.tokenizer.encode("In ").tokens.tolist()


def test_a_seed_is_a_text(generate, saved):
    drawn = ["--temperature", 0.9, "--top-k", 20, "--top-p", 0.9, "--max-tokens", 25, "--quiet"]
    texts = [generate(saved, "In ", *drawn, "--seed", seed) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2] and not texts[0][1]
    (wanted,) = gpt2().program.generate("In ", max_tokens=25, temperature=0.9, top_k=20, top_p=0.9, seed=3)
    assert texts[0][0] == wanted.text + "\n"


def test_text_of_a_model_is_that_of_its_rows(generate, tmp_path):
    """A program is searched for; the file says which token ends a text."""
    from speakers import greedy

    from opmatrix.algebra.batch.batch import Batch
    from opmatrix.algebra.oracles import dense
    from opmatrix.files.checkpoint import open_model

    scores = lambda ids: dense(open_model(tmp_path / "it.gguf").operator(), Batch([ids]))
    ggufs.write(tmp_path / "it.gguf")
    ids = greedy(scores, open_model(tmp_path / "it.gguf").tokenizer().encode("the12").tokens.tolist(), 6)
    ggufs.write(tmp_path / "it.gguf", {"tokenizer.ggml.eos_token_id": ids[3]})
    out, said, status = generate("it.gguf", "the12", "--max-tokens", 6, "--json", "found.json")
    found = json.load(open("found.json"))
    assert status == 0 and found["ids"] == ids[: ids.index(ids[3]) + 1] and found["ended"] == "end"
    assert "search" in said and "the text ended" in said and out.rstrip("\n") == found["text"]


def test_what_was_written_stays_when_it_is_interrupted(generate, saved, monkeypatch):
    chosen, choose = [], Sampling.choose

    def interrupted(self, *given):
        if len(chosen) == 4:
            raise KeyboardInterrupt
        chosen.append(choose(self, *given))
        return chosen[-1]

    monkeypatch.setattr(Sampling, "choose", interrupted)
    out, said, status = generate(saved, "The history of ")
    assert status == 130 and out == bytes(chosen).decode() + "\n" and said.endswith("opmatrix: interrupted\n")


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([""], "prompt 0 is empty"),
        (["x" * 128], "prompt 0 has 128 tokens, and the model has positions for 128"),
        (["a", "--temperature", -1], "temperature -1.0"),
        (["a", "--top-k", 0], "top_k 0"),
        (["a", "--top-p", 0], "top_p 0.0"),
        (["a", "--top-p", 1.5], "top_p 1.5"),
        (["a", "--max-tokens", 0], "max_tokens 0"),
        (["a", "--seed", -1], "seed -1"),
    ],
)
def test_bad_input_is_one_line(generate, saved, monkeypatch, arguments, said):
    """Of a saved program and of a model, of which no program is searched for."""
    monkeypatch.setattr("rewrites.encoders.language_models.find_exact", lambda *_: pytest.fail("the search has begun"))
    shutil.copytree(BYTES, "model")
    for place in (saved, "model"):
        out, err, status = generate(place, *arguments)
        last = err.splitlines()[-1]
        assert status == 2 and not out and said in last and last.startswith("opmatrix: ")


def test_encoders_are_refused(generate, tmp_path, program):
    checkpoints.write(tmp_path / "bert")
    program.save(tmp_path / "embeds")
    for place, said in (("bert", "bert: not a language model"), ("embeds", "is not a language model")):
        out, err, status = generate(place, "the bank")
        assert status == 2 and not out and said in err.splitlines()[-1]
    assert generate("absent", "a")[2] == 2
