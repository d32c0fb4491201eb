"""Perplexity of language models: what the definition gives, whatever the windows; what has none is refused."""

import json

import checkpoints
import ggufs
import numpy as np
import pytest
from searched import KINDS, structure
from typer.testing import CliRunner

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.program import Program
from rewrites.cli import commands
from rewrites.metrics import evaluate as evaluation
from rewrites.metrics import perplexity
from rewrites.metrics.perplexity import Foreseen, score_text
from rewrites.workload.phases import Report
from rewrites.workload.resolve import source

TEXT = "the bird the cat 12 the the fish the 1 2 3 dog the end of the end"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A random language model, its text, and its programs of a row a token and of a row a text."""
    home = tmp_path_factory.mktemp("language")
    checkpoint = open_model(ggufs.write(home / "small.gguf"))
    (home / "text").write_text(TEXT)
    for pooled, kind in ((False, "rows"), (True, "pooled")):
        structure(checkpoint.operator(pooled), *KINDS["exact"]).program(source(checkpoint))[0].save(home / kind)
    return home


def defined(checkpoint, side, tokens=None):
    """The mean of -log p by the definition, from scores of the whole vocabulary, and how many."""
    ids = checkpoint.tokenizer().tokenizer.encode(TEXT).ids[:tokens]
    found = []
    for lo in range(0, len(ids), side):
        window = np.array(ids[lo : lo + side])
        scores = dense(checkpoint.operator(), Batch([window]))
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        found += [-np.log(p[i, window[i + 1]]) for i in range(len(window) - 1)]
    return np.mean(found), len(found), ids


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("side, chunk", [(16, 32), (16, 5), (7, 7), (7, 1)])
def test_perplexity_is_its_definition(place, monkeypatch, side, chunk):
    monkeypatch.setattr(perplexity, "WINDOW", side)
    monkeypatch.setattr(perplexity, "SCORED_ROWS", chunk)
    nats, count, ids = defined(open_model(place / "small.gguf"), side)
    found = score_text("it", Program.load(place / "rows"), place / "text")
    assert found.count == count and found.nats == pytest.approx(nats, rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(nats), rel=1e-5)
    assert found.nats_a_byte == pytest.approx(nats * len(ids) / len(TEXT), rel=1e-5)


def test_some_tokens_of_a_text(place):
    checkpoint = open_model(place / "small.gguf")
    nats, count, ids = defined(checkpoint, 16, tokens=9)
    found = score_text("it", Program.load(place / "rows"), place / "text", 9)
    read = len(checkpoint.tokenizer().tokenizer.decode(ids))
    assert (found.count, found.bytes_a_token) == (count, read / 9) == (8, read / 9) and found.nats == pytest.approx(
        nats, rel=1e-5
    )


def test_memory_holds_few_rows_of_scores(place, monkeypatch):
    """The product with the vocabulary is computed for a chunk of rows, and the program before it gives features."""
    monkeypatch.setattr(perplexity, "SCORED_ROWS", 3)
    program = Program.load(place / "rows")
    scores = perplexity.score_rows("it", program)
    parts = [*scores(batch := Batch([np.arange(2, 10)]))]
    assert [len(part) for part in parts] == [3, 3, 2]
    assert np.array_equal(np.concatenate(parts), program.run(batch))


def test_what_scores_no_vocabulary_is_named(place, tmp_path):
    with pytest.raises(InputError, match=r"it: it scores only the token after a text: .* --output rows"):
        score_text("it", Program.load(place / "pooled"), place / "text")
    checkpoint = open_model(checkpoints.write(tmp_path / "bert"))
    encoder, _ = structure(checkpoint.operator(), *KINDS["imported"]).program(source(checkpoint))
    with pytest.raises(InputError, match="it: its rows are not scores of a vocabulary"):
        score_text("it", encoder, place / "text")
    (tmp_path / "short").write_text("a")
    with pytest.raises(InputError, match="short: 1 tokens: give a text of 2 or more"):
        score_text("it", Program.load(place / "rows"), tmp_path / "short")


def test_programs_are_compared_with_the_first(place, tmp_path):
    names = [str(place / "rows")] * 2
    found = evaluation.foreseen(names, place / "text", None, Report(quiet=True))
    said = evaluation.told_foreseen([*found, Foreseen("other", found[0].nats + np.log(2), 3, 1.0, 1.0)]).splitlines()
    assert f"{found[0].perplexity:.4f}" in said[2] and " 1.0000 " in said[3] and " 2.0000 " in said[4]
    kept = evaluation.foreseen_json(found, place / "text")
    assert kept["programs"][1]["perplexity"] == found[0].perplexity and kept["window"] == 512


@pytest.mark.parametrize("kind", ["rows", "pooled"])
def test_run_says_what_follows(place, kind, tmp_path):
    """The likeliest tokens behind the last one, of either program."""
    checkpoint = open_model(place / "small.gguf")
    scores = dense(checkpoint.operator(), checkpoint.tokenizer().encode("the bird"))[-1]
    p = np.exp(scores) / np.exp(scores).sum()
    wanted = "  ".join(
        f"{checkpoint.tokenizer().tokenizer.decode([at], skip_special_tokens=False)!r} {100 * p[at]:.1f} %"
        for at in np.argsort(-p)[:5].tolist()
    )
    words = "run", str(place / kind), "the bird", "--json", str(tmp_path / "next.json")
    told = CliRunner().invoke(commands.app, words)
    assert told.output.split() == f"'the bird': {wanted}".split()
    [found] = json.loads((tmp_path / "next.json").read_text())["texts"]
    assert [each["share"] for each in found["next"]] == pytest.approx(np.sort(p)[:-6:-1], rel=1e-4)


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "give one of --pairs CSV and --text FILE"),
        (["--pairs", "a", "--text", "b"], "give one of --pairs CSV and --text FILE"),
        (["--pairs", "a", "--tokens", "9"], "--tokens 9: it belongs to a text"),
        (["--text", "b", "--tokens", "1"], "--tokens 1: at least 2"),
    ],
)
def test_options_that_do_not_fit_are_named(place, options, words):
    caught = CliRunner().invoke(commands.app, ["evaluate", str(place / "rows"), *options]).exception
    assert isinstance(caught, InputError) and words in str(caught)


def test_the_command_says_perplexity(place, tmp_path):
    out = tmp_path / "all.json"
    told = CliRunner().invoke(
        commands.app, ["evaluate", str(place / "rows"), "--text", str(place / "text"), "--json", str(out)]
    )
    assert told.exit_code == 0 and "perplexity" in told.output and "nats_per_byte" in out.read_text()
