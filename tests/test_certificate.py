"""Certificates: what they say, that they are checked again, and what they refuse."""
import json

import numpy as np
import pytest
from searched import RAGGED, found, model

from opmatrix.program import Program
from rewrites.certificate import certificate, certified, check_certificate
from rewrites.laws import EXACT_LAWS
from rewrites.layers import parts
from rewrites.lower import Method
from rewrites.verify import (
    VerificationError,
    unrounded,
    verify_approximate,
    verify_exact,
    verify_graphs,
    verify_laws,
)

TEMPLATES = [part.template for by_state in parts(model())[:2] for part in by_state.values()]


@pytest.fixture(scope="module")
def kept():
    operator, made = found()
    structure_, program, emitter = made["exact"]
    exact = verify_exact(program, operator, [RAGGED], made["imported"][1], unrounded(structure_, emitter))
    results = {"laws": verify_laws(EXACT_LAWS), "graphs": verify_graphs(TEMPLATES, EXACT_LAWS), "program": exact}
    return certified(program, results, [RAGGED], seed=5, machine="a small one")


def test_a_certificate_says_what_was_verified_and_on_what(kept):
    said = kept.meta["certificate"]
    assert said["program"] == kept.hash and said["seed"] == 5 and said["machine"] == "a small one"
    assert said["verified"]["program"]["float64"]["relative"] < 1e-14
    assert said["verified"]["laws"]["laws"] == len(EXACT_LAWS)
    assert said["inputs"][0]["tokens"][1] == [8] and said["inputs"][0]["rows"] == RAGGED.rows
    assert {"python", "numpy", "numba", "egglog"} <= set(said["versions"]) and said["bounds"]["rounding"] == 4.0


def test_a_certificate_survives_the_disk_and_is_checked_again(kept, tmp_path):
    kept.save(tmp_path / "program")
    back = Program.load(tmp_path / "program")
    assert back.meta["certificate"] == kept.meta["certificate"]
    said = check_certificate(back)
    assert said["steps"]["count"] == len(back.steps) and said["changed"] == {} and "errors" not in said
    assert check_certificate(back, found()[0])["errors"]["relative"] < 1e-6


def test_an_approximate_certificate_is_checked_against_what_was_stated():
    operator, made = found()
    program, _ = made["exact"][0].program({}, lambda part, use, method: Method("half"))
    kept = certified(program, verify_approximate(program, operator, [RAGGED], 0.01), [RAGGED])
    assert check_certificate(kept, operator)["errors"]["stated"] == 0.01
    with pytest.raises(VerificationError, match="changes by more than was stated"): check_certificate(kept, model(1))


@pytest.mark.parametrize("change, said", [
    (lambda c: None, "it was never verified"),
    (lambda c: c | {"program": "0" * 32}, "it belongs to another program"),
    (lambda c: c | {"inputs": [c["inputs"][0] | {"tokens": [[1, 2]], "kinds": [[0, 0]]}]}, "its inputs were changed"),
    (lambda c: c | {"own": 1e-12}, "rounds more than when it was verified"),
])
def test_a_certificate_that_is_not_the_program_s_is_refused(kept, change, said):
    with pytest.raises(VerificationError, match=said):
        check_certificate(kept.replace(certificate=change(dict(kept.meta["certificate"]))))


def test_a_certificate_of_another_model_is_refused(kept):
    with pytest.raises(VerificationError, match="the program is not the model"): check_certificate(kept, model(1))


def test_versions_that_changed_are_said(kept):
    old = dict(kept.meta["certificate"])
    old["versions"] = old["versions"] | {"numpy": "1.0"}
    said = check_certificate(kept.replace(certificate=old))
    assert said["changed"] == {"numpy": ["1.0", np.__version__]}


def test_a_certificate_is_plain_json(kept):
    made = certificate(kept, {"numbers": (np.float32(0.5), np.int64(3))}, [RAGGED])
    assert json.loads(json.dumps(made))["verified"] == {"numbers": [0.5, 3]}
