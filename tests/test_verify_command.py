"""`opmatrix verify`: a saved program holds, and each kind of damage is named, with status 1."""
import json
import shutil

import checkpoints
import pytest
from searched import RAGGED, found
from test_certificate import once  # noqa: F401
from test_cli import command, patched, refused  # noqa: F401

from opmatrix.program import Program
from rewrites.verify import unrounded, verify_exact
from rewrites.verify.certificate import certified


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A program of a small checkpoint, with its certificate, and the checkpoint."""
    home = tmp_path_factory.mktemp("verified")
    model, (operator, made) = checkpoints.write(home / "model"), found()
    structure, _, emitter = made["exact"]
    program, _ = structure.program({"model": "model", "source": str(model),
                                    "tokenizer": (model / "tokenizer.json").read_text()})
    verified = verify_exact(program, operator, [RAGGED], made["imported"][1], unrounded(structure, emitter))
    certified(program, {"program": verified}, [RAGGED]).save(home / "program")
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


def test_what_optimize_saves_holds(command, optimized):  # noqa: F811
    for number in range(len(optimized.report["front"])):
        ran = command("verify", optimized.out / "front" / f"{number}")
        assert ran.status == 0 and " 0 FAILS" in ran.out and "as the program says" in ran.out, ran.out


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


@pytest.mark.parametrize("sentence, verdict", [(1.0, "holds"), (1e-9, "FAILS"), ("small", "FAILS")])
def test_the_worst_sentence_is_measured_again(command, copy, sentence, verdict):  # noqa: F811
    kept = json.loads((copy / "certificate.json").read_text())["verified"]
    certificate(copy, verified=kept | {"error": {"sentence": sentence}})
    ran = command("verify", copy)
    assert ran.status == (verdict == "FAILS")
    assert any(line.split()[:6] == ["worst", "sentence", "against", "the", "model", verdict]
               for line in ran.out.splitlines()), ran.out


def flip(directory):
    raw = bytearray((directory / "weights.safetensors").read_bytes())
    raw[-2] ^= 1
    (directory / "weights.safetensors").write_bytes(raw)


@pytest.mark.parametrize("harm, said", [
    (flip, "hash"), (lambda place: certificate(place, own="small"), "own is 'small'"),
    (lambda place: certificate(place, own=-1), "own is -1"),
    (lambda place: certificate(place, more=1), "'more'"),
    (lambda place: certificate(place, program="0" * 32), "lies beside"),
    (lambda place: certificate(place, inputs=[{}]), "inputs[0]"),
    (lambda place: certificate(place, inputs=[3]), "inputs[0] is a int"),
    (lambda place: certificate(place, inputs=[{"hash": "", "sentences": 1, "rows": 1, "tokens": [[]], "kinds": [[]]}]),
     "whole numbers"),
    (lambda place: certificate(place,
                               inputs=[{"hash": "", "sentences": 1, "rows": 1, "tokens": [[0] * 70000],
                                        "kinds": [[0] * 70000]}]),
     "70,000 rows"), (lambda place: certificate(place, bounds={"float64": "wide"}), "bounds"),
    (lambda place: (place / "certificate.json").write_text("[]"), "certificate.json"),
    (lambda place: certificate(place, own=1e9), "own rounding"),
    (lambda place: certificate(place, verified={}), "stated error"),
    (lambda place: (place / "certificate.json").unlink(), "certificate")])
def test_damage_is_named_with_status_1(command, copy, harm, said):  # noqa: F811
    harm(copy)
    ran = command("verify", copy)
    assert ran.status == 1 and not ran.err
    assert any("FAILS" in line and said in line for line in ran.out.splitlines()), ran.out


def test_no_program_is_bad_input(command, tmp_path):  # noqa: F811
    refused(command("verify", tmp_path), tmp_path, "no program.json")
    refused(command("verify", tmp_path / "absent"), "absent")
