"""The command line on texts: run, embed and evaluate, with a program that was saved."""

import io
import json
import sys

import numpy as np
import pytest
from optimized import LINES
from test_cli import command, patched, refused  # noqa: F401

from opmatrix.inference.pooling import Pooling
from opmatrix.runtime.program import Program

# ruff: noqa: F811


def test_run_prints_an_embedding_for_each_text(command, optimized):
    out = optimized.out
    ran = command("run", out, "the bank", "the river", "")
    vectors = Program.load(out).embed(["the bank", "the river", ""])
    assert ran.status == 0 and len(vectors) == 3
    for text, vector in zip(("the bank", "the river", ""), vectors, strict=True):
        assert f"{text!r}: [{vector[0]:.4f}, {vector[1]:.4f}" in ran.out
    assert f"{vectors[0] @ vectors[1]:.3f}" in ran.out
    refused(command("run", out, "the " * 40), "42 tokens")


def test_run_writes_what_it_found(command, optimized, tmp_path):
    """Vectors whole, and all cosines."""
    assert command("run", optimized.out, "the bank", "the river", "--json", "found.json").status == 0
    found = json.loads((tmp_path / "found.json").read_text())
    vectors = Program.load(optimized.out).embed(["the bank", "the river"])
    assert [each["text"] for each in found["texts"]] == ["the bank", "the river"]
    assert np.array_equal(np.float32([each["vector"] for each in found["texts"]]), vectors)
    np.testing.assert_allclose(found["cosines"], vectors @ vectors.T, rtol=1e-6)


def test_embed_writes_a_row_for_each_line(command, optimized, tmp_path, monkeypatch):
    out = optimized.out
    wanted = Program.load(out).embed(LINES)
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    ran = command("embed", out, "lines.txt", "--out", "lines.npy")
    assert ran.status == 0 and f"{len(LINES)} texts x 32 numbers in lines.npy" in ran.out
    assert np.array_equal(np.load("lines.npy"), wanted)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
    assert command("embed", out, "-", "--out", "again.npy", "--rows", "9").status == 0
    np.testing.assert_allclose(np.load("again.npy"), wanted, atol=2e-5)


def test_embed_puts_a_prompt_before_every_line(command, optimized, tmp_path):
    """Of its names; columns are cut as the files say."""
    pooling = Pooling(prompts={"query": "the ", "none": ""}, width=5)
    program = Program.load(optimized.out).replace(pooling=pooling.described())
    program.save(tmp_path / "prompted")
    (tmp_path / "lines.txt").write_text("bank\nriver runs")
    whole = Program.load(optimized.out)
    for name, wanted in (("query", ["the bank", "the river runs"]), ("none", ["bank", "river runs"])):
        assert command("embed", "prompted", "lines.txt", "--out", "o.npy", "--prompt", name).status == 0
        assert np.array_equal(np.load("o.npy"), whole.embed(wanted)[:, :5])
    refused(command("embed", "prompted", "lines.txt", "--out", "p.npy", "--prompt", "other"), "there are query, none")
    assert not (tmp_path / "p.npy").exists()


def test_embed_cuts_and_leaves_out(command, optimized, tmp_path):
    out = optimized.out
    (tmp_path / "lines.txt").write_bytes(b"the bank\n" + b"dry " * 40 + b"\nthe \xff\na river")
    bank, river = Program.load(out).embed(["the bank", "a river"])
    refused(command("embed", out, "lines.txt", "--out", "o.npy"), "lines.txt: line 2", "--truncate")
    refused(command("embed", out, "lines.txt", "--out", "o.npy", "--truncate"), "lines.txt: line 3, byte 4")
    ran = command("embed", out, "lines.txt", "--out", "skipped.npy", "--skip-bad")
    found = np.load("skipped.npy")
    assert ran.status == 0 and "2 left out, rows of NaN, the first: lines.txt: line 2" in ran.out
    assert np.array_equal(found[[0, 3]], [bank, river]) and np.isnan(found[1:3]).all()
    ran = command("embed", out, "lines.txt", "--out", "cut.npy", "--skip-bad", "--truncate")
    assert ran.status == 0 and "1 cut at 20 tokens; 1 left out" in ran.out
    assert np.array_equal(np.load("cut.npy")[1], Program.load(out).embed("dry " * 18)[0])


def test_shards_are_embedded_and_joined(command, optimized, tmp_path):
    """Equal to the bit to the whole, which then is not replaced."""
    out = optimized.out
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    assert command("embed", out, "lines.txt", "--out", "whole.npy", "--resume").status == 0
    for number in (2, 1, 3):
        ran = command("embed", out, "lines.txt", "--out", f"part{number}.npy", "--shard", f"{number}/3")
        assert ran.status == 0 and f"texts in part{number}.npy" in ran.out
    refused(command("join", "part1.npy", "part2.npy", "--out", "joined.npy"), "shard 3/3 is named 0 times")
    ran = command("join", "part3.npy", "part1.npy", "part2.npy", "--out", "joined.npy")
    assert ran.status == 0 and f"{len(LINES)} texts x 32 numbers in joined.npy" in ran.out
    assert (tmp_path / "joined.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    np.testing.assert_array_equal(np.load("joined.npy"), Program.load(out).embed(LINES))
    refused(command("embed", out, "lines.txt", "--out", "whole.npy", "--resume"), "whole.npy: it exists")
    refused(command("join", "part1.npy", "--out", "part1.npy"), "--out part1.npy", "replace")
    for words in (["--shard", "4/3"], ["--shard", "1/2", "--no-resume"]):
        refused(command("embed", out, "lines.txt", "--out", "o.npy", *words), "--")
    refused(command("embed", out, "-", "--out", "o.npy", "--shard", "1/2"), "--shard", "give a file")
    assert not (tmp_path / "o.npy").exists() and not [*tmp_path.glob("*.unfinished")]


def test_run_gives_what_embed_gives(command, optimized, tmp_path):
    """Another pooling, no length one, and texts that are cut."""
    long, pooling = "dry " * 40, Pooling(("max",), False, 9)
    program = Program.load(optimized.out).replace(pooling=pooling.described())
    program.save(tmp_path / "max")
    (tmp_path / "lines.txt").write_text(f"the bank\n{long}\n")
    assert command("embed", "max", "lines.txt", "--out", "o.npy").status == 0
    vectors, ran = np.load("o.npy"), command("run", "max", "the bank", long)
    for vector in vectors:
        assert f"[{vector[0]:.4f}, {vector[1]:.4f}" in ran.out
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert f"{cosine:.3f}" in ran.out and "1.000" in ran.out
    refused(command("run", "max", "the bank", long, "--no-truncate"), "42 tokens")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["absent.txt", "--out", "o.npy"], ["absent.txt", "No such file"]),
        (["lines.txt", "--out", "diary.txt"], ["diary.txt"]),
        (["lines.txt"], ["--out"]),
        (["lines.txt", "--out", "absent/o.npy"], ["absent/o.npy"]),
        (["lines.txt", "--out", "o.npy", "--rows", "0"], ["rows 0"]),
        (["long.txt", "--out", "o.npy"], ["long.txt: line 2", "42 tokens"]),
    ],
)
def test_embed_refuses(command, optimized, tmp_path, arguments, words):
    (tmp_path / "lines.txt").write_text("the bank")
    (tmp_path / "long.txt").write_text("the bank\n" + "the " * 40)
    (tmp_path / "diary.txt").write_text("dear")
    refused(command("embed", optimized.out, *arguments), *words)
    assert {file.name for file in tmp_path.iterdir()} == {"lines.txt", "long.txt", "diary.txt"}


def test_evaluate_compares_programs(command, optimized, tmp_path):
    model, _, out, *_ = optimized
    (tmp_path / "pairs.csv").write_text("the bank,a bank,4\nthe river,of,1\ndry,a river runs dry,2\n")
    ran = command("evaluate", model, out, out / "front" / "0", "--pairs", "pairs.csv", "--json", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert ran.status == 0 and "Spearman" in ran.out and found["count"] == 3
    assert [each["name"] for each in found["programs"]] == [str(model), str(out), str(out / "front" / "0")]
    for each in found["programs"]:
        assert f"{each['spearman']:.2f}" in ran.out and each["texts_per_s"] > 0
    assert found["programs"][2]["difference"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["{out}", "--pairs", "absent.csv"], ["absent.csv", "No such file"]),
        (["{out}"], ["--pairs"]),
        (["{out}", "--pairs", "bad.csv"], ["bad.csv: line 2", "'high'"]),
        (["{out}", "--pairs", "same.csv"], ["every score is 2"]),
        (["absent", "--pairs", "good.csv"], ["absent"]),
        (["{out}", "--pairs", "good.csv", "--json", "no/o.json"], ["--json no/o.json"]),
    ],
)
def test_evaluate_refuses(command, optimized, tmp_path, arguments, words):
    for name, last in (("good", "3"), ("bad", "high"), ("same", "2")):
        (tmp_path / f"{name}.csv").write_text(f"a,b,2\nc,d,{last}\n")
    refused(command("evaluate", *(each.format(out=optimized.out) for each in arguments)), *words)
