"""Certificates: what they say, that they are checked again, and what they refuse."""

import json

import numpy as np
import pytest
import standin
from explored import verify_once
from searched import RAGGED, found, model

from formats import Dense, Packed
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import given, product, relation, row, tanh, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import formula
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program
from rewrites import optimize
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method
from rewrites.metrics import recheck
from rewrites.metrics.check_table import CLAIMED, FAILS, HOLDS
from rewrites.metrics.recheck import checks, describe_absent
from rewrites.verify import VerificationError, unrounded, verify_approximate, verify_exact
from rewrites.verify.certificate import certificate, certify, hash_rows
from rewrites.verify.programs import oracle


@pytest.fixture(scope="module")
def kept():
    operator, made = found()
    structure_, program, emitter = made["exact"]
    exact = verify_exact(program, operator, [RAGGED], made["imported"][1], unrounded(structure_, emitter))
    results = {"laws": verify_once(EXACT_LAWS), "graphs": {"graphs": 3, "seed": 0}, "program": exact}
    return certify(program, results, [RAGGED], seed=5, machine="a small one")


def test_a_certificate_says_what_was_verified_and_on_what(kept):
    said = kept.meta["certificate"]
    assert said["program"] == kept.hash and said["seed"] == 5 and said["machine"] == "a small one"
    assert said["verified"]["program"]["float64"]["relative"] < 1e-14
    assert said["verified"]["laws"]["laws"] == len(EXACT_LAWS)
    assert said["inputs"][0]["tokens"][1] == [8] and said["inputs"][0]["rows"] == RAGGED.rows
    assert {"python", "numpy", "numba", "egglog"} <= set(said["versions"]) and said["bounds"]["rounding"] == 4.0


def test_a_certificate_survives_the_disk_and_holds(kept, tmp_path):
    kept.save(tmp_path / "program")
    back = Program.load(tmp_path / "program")
    assert back.meta["certificate"] == kept.meta["certificate"]
    for model_ in (None, found()[0]):
        assert not failing(back, model_)
    assert {check.what for check in checks(back) if check.verdict == CLAIMED} >= {
        "error against the model",
        "graphs of the laws",
    }
    done = {check.what for check in checks(back, found()[0]) if check.verdict == HOLDS}
    assert done >= {
        "program",
        "inputs",
        "steps within bounds",
        "own rounding",
        "laws",
        "error against the model",
        "error on 64 other rows",
        "graphs of the laws",
    }


def failing(program, model_=None):
    return {check.what for check in checks(program, model_) if check.verdict == FAILS}


def fails(program, named):
    """Whether a check of this name fails: those behind it are not made."""
    return any(check.what == named and check.verdict == FAILS for check in checks(program))


def test_what_is_right_fails_nowhere(kept):
    assert not failing(kept)


def test_an_approximate_certificate_is_checked_against_what_was_stated():
    operator, made = found()
    program, _ = made["exact"][0].program({}, lambda part, use, method: Method("half"))
    kept = certify(program, verify_approximate(program, operator, [RAGGED], 0.01), [RAGGED])
    assert not failing(kept, operator)
    assert failing(kept, model(1)) == {"error against the model"}


def said(kept, **changed):
    return kept.replace(certificate=dict(kept.meta["certificate"]) | changed)


def inputs(kept, **changed):
    return [{**kept.meta["certificate"]["inputs"][0], **changed}]


def foreign(rows):
    return {"tokens": rows, "kinds": rows, "hash": hash_rows({"tokens": rows, "kinds": rows})}


def without_a_stated(kept):
    return {name: entry for name, entry in kept.meta["certificate"]["verified"].items() if name != "program"}


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda kept: {"program": "0" * 32}, "program"),
        (lambda kept: {"inputs": inputs(kept, tokens=[[1, 2]], kinds=[[0, 0]])}, "inputs"),
        (lambda kept: {"inputs": []}, "inputs"),
        (lambda kept: {"inputs": inputs(kept, **foreign([[10**6]]))}, "steps within bounds"),
        (lambda kept: {"inputs": inputs(kept, **foreign([[1] * 1000]))}, "steps within bounds"),
        (lambda kept: {"own": 1e-12}, "own rounding"),
        (lambda kept: {"own": 1e9}, "own rounding"),
        (lambda kept: {"bounds": {"float64": 1e9, "rounding": 4.0}}, "limit of float64"),
        (lambda kept: {"bounds": {"float64": 1e-10, "rounding": 1e9}}, "limit of rounding"),
        (lambda kept: {"bounds": {}}, "limit of float64"),
        (lambda kept: {"verified": without_a_stated(kept)}, "stated error"),
        (lambda kept: {"verified": {"stated": 1e9}}, "stated error"),
        (lambda kept: {"verified": {"stated": "small"}}, "stated error"),
        (
            lambda kept: {"verified": {"error": {"stated": 0.1, "relative": 0.2}}},
            "error on held-out rows, as it was found",
        ),
        (lambda kept: {"verified": {"stated": 0.1, "float64": {"worst_row": 1e-3}}}, "float64 error, as it was found"),
    ],
)
def test_what_a_certificate_says_wrong_is_named(kept, change, named):
    assert fails(said(kept, **change(kept)), named)


def test_an_error_that_is_stated_too_large_hides_nothing(kept):
    """Whatever an exact program states, it may round no more than so many times the imported one."""
    constants = {
        name: Dense.pack(1.001 * c.unpack()) if isinstance(c, Dense | Packed) and len(c.shape) == 2 else c
        for name, c in kept.constants.items()
    }
    spoilt = Program(kept.steps, constants, kept.output, {**kept.meta, "certificate": None})
    verified = dict(kept.meta["certificate"]["verified"]) | {"error": {"relative": 0.1, "stated": 0.99}}
    assert failing(certify(spoilt, verified, [RAGGED]), found()[0]) == {
        "error against the model",
        "error on 64 other rows",
    }


def test_a_program_that_was_never_verified_fails(kept):
    assert failing(kept.replace(certificate=None)) == {"certificate"}


def test_a_certificate_of_another_model_is_refused(kept):
    assert failing(kept, model(1)) == {"error against the model", "error on 64 other rows"}


def test_a_step_that_leaves_its_bound_is_named(kept, monkeypatch):
    monkeypatch.setattr(KERNELS["attention"], "bound", lambda a: np.zeros(1))
    assert failing(kept) == {"steps within bounds"}


def test_versions_that_changed_are_said(kept):
    old = said(kept, versions=dict(kept.meta["certificate"]["versions"]) | {"numpy": "1.0"})
    assert any(check.found == f"numpy 1.0, now {np.__version__}" for check in checks(old))


def test_a_certificate_is_plain_json(kept):
    made = certificate(kept, {"numbers": (np.float32(0.5), np.int64(3))}, [RAGGED])
    assert json.loads(json.dumps(made))["verified"] == {"numbers": [0.5, 3]}


@pytest.fixture(scope="module")
def halved():
    """A program of half numbers, its error, what it may truly state, and what its run knows, of which that holds."""
    operator, made = found()
    program, _ = made["exact"][0].program({}, lambda part, use, method: Method("half"))
    off = verify_approximate(program, operator, [RAGGED], 0.5)["float32"]["relative"]
    error = {"relative": off, "stated": 1.5 * off, "sentence": 10 * off}
    made_here = recheck.RunChecks(recheck.RUN_MAKES, [RAGGED], oracle(operator, [RAGGED]), made["imported"][1])
    recheck.check_certificates([certify(program, {"error": error}, [RAGGED])], operator, made_here)
    return program, off, error, made_here


@pytest.mark.parametrize("wrong, share", [("stated", 1 / 2), ("sentence", 1 / 1000), ("relative", 2)])
def test_a_run_finds_what_verify_finds_of_what_it_states(halved, wrong, share):
    """Half of a stated error is refused before a program is called verified, by the same checks."""
    (program, off, error, made_here), operator = halved, found()[0]
    changed = certify(program, {"error": error | {wrong: share * off}}, [RAGGED])
    assert any(check.verdict == FAILS for check in checks(changed, operator))
    with pytest.raises(VerificationError, match=r"certificate.*fails"):
        recheck.check_certificates([changed], operator, made_here)


# ---- what a certificate cannot hold

W, GRAPH = weight(np.arange(8.0).reshape(4, 2) / 8), np.eye(6)[::-1]
BESIDE = formula(lambda x: row(x, product(given(relation("edges", "T", "T")), x, over=mean)))
TEXTS = [[0, 1, 2], [3], [4, 5]]
ENTERING = {
    "input x: T × 4": (given("x", 4, "T") @ W @ tanh, Batch(TEXTS, inputs={"x": np.ones((6, 4))})),
    "input x: S × 4": (given("x", 4, "S") @ W @ tanh, Batch(TEXTS, inputs={"x": np.ones((3, 4))})),
    "input x: V × 4": (given("x", 4, "V") @ W @ tanh, Batch(inputs={"x": np.ones((5, 4))})),
    "relation edges: T × T": (weight(np.eye(6)) @ BESIDE, Batch(TEXTS, relations={"edges": GRAPH})),
}


@pytest.mark.parametrize("named", ENTERING)
def test_what_a_certificate_does_not_hold_is_claimed(named, monkeypatch):
    """A run verifies it on its own batch; who has the directory alone cannot, and is told why."""
    standin.know_laws(monkeypatch)
    operator, batch = ENTERING[named]
    best = optimize(operator, workload=batch, machine=standin.machine(), rounds=1, error=0.0).best.program
    for known in (None, operator):
        assert not failing(best, known)
        claimed = {check.what: check.allowed for check in checks(best, known) if check.verdict == CLAIMED}
        assert claimed.keys() >= {"inputs", "steps within bounds", "own rounding", "error against the model"}
        assert named in claimed["inputs"]
    changed = inputs(best, hash="0" * 32)
    assert failing(said(best, inputs=changed)) == {"inputs"}, "the sentences that it holds are compared"
    assert failing(said(best, inputs=[])) == {"inputs"}
    made = recheck.RunChecks(recheck.RUN_MAKES, [Batch([[1]])], [dense(operator, batch)], best)
    with pytest.raises(VerificationError, match="differ from the verified ones"):
        recheck.check_certificates([best], operator, made)


def test_matrices_do_not_excuse_a_program_that_reads_none(kept):
    """Whatever a certificate says: its tokens are all that it needs."""
    assert not describe_absent(kept)
    assert failing(said(kept, inputs=inputs(kept, **foreign([[10**6]])))) >= {"steps within bounds"}
