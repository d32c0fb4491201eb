"""`opmatrix verify`: a saved program holds, and each kind of damage is named, with status 1."""

import json
import re
import shutil

import checkpoints
import ggufs
import pytest
from searched import KINDS, RAGGED, found, structure
from test_cli import command, patched, refused  # noqa: F401

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.program import Program
from rewrites.metrics.reported import Named
from rewrites.verify import unrounded, verify_exact
from rewrites.verify.certificate import certify
from rewrites.workload.resolve import source


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A program of a small checkpoint, with its certificate, and the checkpoint."""
    home = tmp_path_factory.mktemp("verified")
    model, (operator, made) = checkpoints.write(home / "model"), found()
    structure, _, emitter = made["exact"]
    program, _ = structure.program(
        {"model": "model", "source": str(model), "tokenizer": (model / "tokenizer.json").read_text()}
    )
    verified = verify_exact(program, operator, [RAGGED], made["imported"][1], unrounded(structure, emitter))
    certify(program, {"program": verified}, [RAGGED]).save(home / "program")
    return home


@pytest.fixture
def copy(place, tmp_path):
    shutil.copytree(place / "program", tmp_path / "program")
    return tmp_path / "program"


def certificate(directory, **changed):
    file = directory / "certificate.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def test_a_saved_program_holds(command, place):  # noqa: F811
    for arguments in ([], ["--model", place / "model"]):
        ran = command("verify", place / "program", *arguments)
        assert ran.status == 0 and "error against the model" in ran.out and " 0 FAILS" in ran.out, ran.out + ran.err
        assert ("as the program says" in ran.out) == (not arguments)
        assert re.search(r"\d\.\d", ran.out) and not re.findall(r"\d\.\d{5,}", ran.out), "few digits tell"


@pytest.mark.deep
def test_what_optimize_saves_holds(command, optimized):  # noqa: F811
    for number in range(len(optimized.report["front"])):
        ran = command("verify", optimized.out / "front" / f"{number}")
        assert ran.status == 0 and " 0 FAILS" in ran.out and "as the program says" in ran.out, ran.out


@pytest.mark.deep
def test_without_the_model_its_checks_are_claims(command, copy, place):  # noqa: F811
    program = Program.load(copy)
    moved = program.replace(source="absent")
    moved.replace(certificate=dict(program.meta["certificate"]) | {"program": moved.hash}).save(copy)
    ran = command("verify", copy)
    line = next(line for line in ran.out.splitlines() if line.startswith("error against the model"))
    assert ran.status == 0 and "claimed" in line and "--model" in line
    assert command("verify", copy, "--model", place / "model").status == 0
    other = checkpoints.write(place / "other", seed=1)
    ran = command("verify", copy, "--model", other)
    assert ran.status == 1 and "2 FAILS" in ran.out


@pytest.mark.parametrize("sentence, verdict", [(0.9876543210987, "holds"), (1e-9, "FAILS"), ("small", "FAILS")])
def test_the_worst_sentence_is_measured_again(command, copy, sentence, verdict):  # noqa: F811
    kept = json.loads((copy / "certificate.json").read_text())["verified"]
    certificate(copy, verified=kept | {"error": {"sentence": sentence}})
    ran = command("verify", copy)
    assert ran.status == (verdict == "FAILS")
    assert not re.findall(r"\d\.\d{5,}", ran.out)
    assert any(
        line.split()[:6] == ["worst", "sentence", "against", "the", "model", verdict] for line in ran.out.splitlines()
    ), ran.out


def flip(directory):
    raw = bytearray((directory / "weights.safetensors").read_bytes())
    raw[-2] ^= 1
    (directory / "weights.safetensors").write_bytes(raw)


@pytest.mark.parametrize(
    "harm, said",
    [
        (flip, "hash"),
        (lambda place: certificate(place, own="small"), "own is 'small'"),
        (lambda place: certificate(place, own=-1), "own is -1"),
        (lambda place: certificate(place, more=1), "'more'"),
        (lambda place: certificate(place, program="0" * 32), "is stored beside"),
        (lambda place: certificate(place, inputs=[{}]), "inputs[0]"),
        (lambda place: certificate(place, inputs=[3]), "inputs[0] is a int"),
        (
            lambda place: certificate(
                place, inputs=[{"hash": "", "sentences": 1, "rows": 1, "tokens": [[]], "kinds": [[]]}]
            ),
            "whole numbers",
        ),
        (
            lambda place: certificate(
                place, inputs=[{"hash": "", "sentences": 1, "rows": 1, "tokens": [[0] * 70000], "kinds": [[0] * 70000]}]
            ),
            "70,000 rows",
        ),
        (lambda place: certificate(place, bounds={"float64": "wide"}), "bounds"),
        (lambda place: (place / "certificate.json").write_text("[]"), "certificate.json"),
        (lambda place: certificate(place, own=1e9), "own rounding"),
        (lambda place: certificate(place, verified={}), "stated error"),
        (lambda place: (place / "certificate.json").unlink(), "certificate"),
    ],
)
def test_damage_is_named_with_status_1(command, copy, harm, said):  # noqa: F811
    harm(copy)
    ran = command("verify", copy)
    assert ran.status == 1 and not ran.err
    assert any("FAILS" in line and said in line for line in ran.out.splitlines()), ran.out


def test_no_program_is_bad_input(command, tmp_path):  # noqa: F811
    refused(command("verify", tmp_path), tmp_path, "no program.json")
    refused(command("verify", tmp_path / "absent"), "absent")


# ---- goals


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """A language model, the lines that its perplexity is measured on, and two of its programs that are said to keep
    it: the exact one, and one that scores the vocabulary in another order."""
    home = tmp_path_factory.mktemp("speaking")
    checkpoint = open_model(ggufs.write(home / "small.gguf"))
    lines = home / "lines.txt"
    lines.write_text("the bird the cat 12\nthe fish the 1\n2 3 dog the end\nof the end the\n" * 4)
    made, _ = structure(checkpoint.operator(), *KINDS["exact"]).program(source(checkpoint))
    named = Named.of(lines)
    goals = [
        {"goal": "perplexity<=1.02x", "value": 1.0, "kept": True, "of": named._asdict()},
        {"goal": "perplexity<=1x", "value": 9.0, "kept": False, "of": named._asdict()},
        {"goal": "error<=2%", "value": 0.01, "kept": True, "of": None},
    ]
    head = made.constants[name := made.steps[-1].operands["weight"]]
    turned = made.over(made.steps, {**made.constants, name: FORMATS["dense"].pack(head.unpack()[:, ::-1])})
    for each, program in (("exact", made), ("turned", turned)):
        certify(program, {"error": {"stated": 0.01}, "goals": goals}, [Batch([[3, 4, 5]])]).save(home / each)
    return home


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "which, options, verdicts",
    [
        ("exact", ["--text", "lines.txt"], ["holds", "holds", "holds"]),
        ("turned", ["--text", "lines.txt"], ["FAILS", "holds", "holds"]),
        ("exact", [], ["claimed", "claimed", "holds"]),
    ],
)
def test_goals_are_measured_again(command, speaking, which, options, verdicts):  # noqa: F811
    """On the file that they were measured on, against the imported program; what was not kept need not be."""
    ran = command("verify", speaking / which, *(speaking / each if "." in each else each for each in options))
    lines = [line.split() for line in ran.out.splitlines() if line.startswith("goal ")]
    assert [words[2] for words in lines] == verdicts, ran.out


@pytest.mark.parametrize(
    "option, words", [("--text", "the perplexity was measured on"), ("--pairs", "certified for no spearman")]
)
def test_a_file_that_no_goal_was_measured_on_is_bad_input(command, speaking, option, words):  # noqa: F811
    refused(command("verify", speaking / "exact", option, speaking / "small.gguf"), option, words, "small.gguf")
