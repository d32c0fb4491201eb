"""A whole run of `opmatrix optimize` on a model that scores pairs: what its report states, what its directory gives,
and what `opmatrix verify`, `run` and `evaluate` say of it."""

import json
import sys

import checkpoints
import numpy as np
import optimized
import pytest
import standin

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.scores.text_pairs import pair_rows
from opmatrix.inference.text import LineReading
from rewrites import run
from rewrites.cli import __main__ as cli
from rewrites.metrics import recheck
from rewrites.metrics.evaluate import open_program
from rewrites.metrics.pairs import SentencePairs, score_pairs
from rewrites.report.results import printed
from rewrites.workload.line_rows import line_batches, pair_lines
from rewrites.workload.workload import Workload, calibration, typical

PAIRS = [("the bank", "a river runs dry"), ("", "dry"), ("a river?", "banks of rivers"), ("dry " * 30, "the " * 3)]


def typed(*words):
    """A command as a user types it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["opmatrix", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("scores")


@pytest.fixture(scope="module")
def lines(place):
    (place / "lines.txt").write_text("\n".join(optimized.LINES * 5))
    return place / "lines.txt"


@pytest.fixture(scope="module")
def model(place):
    return checkpoints.classify(place / "model", 1, num_hidden_layers=1)


@pytest.fixture(scope="module")
def report(place, model, lines):
    """The report of the run, which is saved in out/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "calibrated", lambda progress, *batches: standin.machine())
        standin.know_laws(patch)
        typed("optimize", model, "--text", lines, "--error", "0.2", "--out", place / "out", "--json", place / "r.json")
    return json.loads((place / "r.json").read_text())


def test_the_report_states_errors_of_scores(place, report):
    text = printed(report, place / "out")
    assert report["scores"] == ["L0"] and "30 pairs of lines" in report["workload"]
    assert 'out "a query" "a document"' in text and "cosines" not in text
    chosen = report["front"][report["chosen"]]
    assert chosen["stated"]["pairs"] == 0 and 0 < chosen["stated_error"] <= 0.2


def test_the_saved_program_scores_within_its_stated_error(place, model, lines, report):
    state = Workload.of(Checkpoint.open(model), str(lines)).state
    scores, wanted = om.Program.load(place / "out").run(state), open_exact(model).run(state)
    off = np.linalg.norm(scores - wanted) / np.linalg.norm(wanted)
    assert 0 < off <= report["front"][report["chosen"]]["stated_error"]


def paired(model, texts):
    """Pairs of lines as the model reads them."""
    rows = pair_rows(Checkpoint.open(model).tokenizer(), [*pair_lines(texts)], LineReading(truncate=True))
    return Batch([ids for ids, _ in rows], [kinds for _, kinds in rows])


def open_exact(model):
    """The imported program of the checkpoint, without a calibration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewrites.metrics.evaluate.calibrated", lambda progress, *batches: standin.machine())
        return open_program(str(model))


def test_every_check_of_the_directory_holds(place, model, report, monkeypatch):
    monkeypatch.setattr(recheck, "verify_laws", lambda laws: {"laws": len(laws)})
    monkeypatch.setattr(recheck, "verify_graphs", lambda templates, laws: {"graphs": 1})
    verdicts = {check.what: check.verdict for check in recheck.of_directory(place / "out", str(model))}
    assert "error against the model" in verdicts and recheck.FAILS not in verdicts.values()


def test_run_and_the_reranker_give_the_scores_of_the_directory(place, report, capsys):
    program = om.Program.load(place / "out")
    typed("run", place / "out", "the bank", "a river", "dry")
    shown = capsys.readouterr().out
    for score in program.score([("the bank", "a river"), ("the bank", "dry")])[:, 0]:
        assert f"{score:.4f}" in shown
    reranker = om.CrossEncoder(str(place / "out"))
    np.testing.assert_array_equal(reranker.predict(PAIRS), program.score(PAIRS, truncate=True)[:, 0])
    with pytest.raises(InputError, match=r"om\.CrossEncoder"):
        om.SentenceTransformer(str(place / "out"))


def test_judged_pairs_are_ranked_by_scores(place, report, tmp_path):
    from scipy.stats import spearmanr

    file = tmp_path / "pairs.csv"
    file.write_text("the bank,a river,1\ndry,the bank,3\na river?,banks,2\na,dry,2.5\n")
    program, pairs = om.Program.load(place / "out"), SentencePairs.read(file)
    scores = program.score([*zip(pairs.texts[::2], pairs.texts[1::2], strict=True)])[:, 0]
    assert score_pairs("it", program, pairs).spearman == pytest.approx(100 * spearmanr(scores, pairs.scores).statistic)


def test_several_labels_rank_no_pairs(place, tmp_path):
    program = open_exact(checkpoints.classify(tmp_path / "three", 3, num_hidden_layers=1))
    (tmp_path / "pairs.csv").write_text("the bank,a river,1\ndry,the bank,3\n")
    with pytest.raises(InputError, match="it gives a pair 3 scores"):
        score_pairs("it", program, SentencePairs.read(tmp_path / "pairs.csv"))


# ---- rows of a workload are pairs


def test_a_workload_of_a_file_is_batches_of_pairs(model, lines):
    checkpoint = Checkpoint.open(model)
    timed, name = typical(checkpoint.tokenizer(), lines, checkpoint.scoring)
    assert len(timed) == 30 and "30 pairs of lines" in name and set(timed.kinds) == {0, 1}
    texts = lines.read_text().splitlines()
    [whole] = line_batches(checkpoint.tokenizer(), texts, LineReading(), checkpoint.scoring)
    np.testing.assert_array_equal(timed.tokens, whole.tokens)
    np.testing.assert_array_equal(timed.tokens, paired(model, texts).tokens)


def test_calibration_holds_pairs_that_judge_nothing(model, lines, tmp_path):
    checkpoint = Checkpoint.open(model)
    workload = Workload.of(checkpoint, str(lines))
    (tmp_path / "other.txt").write_text("a bank\ndry rivers run\nthe the the\na river")
    batch = calibration(tmp_path / "other.txt", checkpoint.tokenizer(), workload, (), checkpoint.scoring)
    assert len(batch) == 4 and set(batch.kinds) == {0, 1}
    with pytest.raises(InputError, match="also choose or judge"):
        calibration(lines, checkpoint.tokenizer(), workload, (), checkpoint.scoring)


@pytest.mark.parametrize("texts, pairs", [([], []), (["a"], [("a", "a")]), (["a", "b"], [("a", "b"), ("b", "a")])])
def test_lines_are_paired_in_a_ring(texts, pairs):
    assert [*pair_lines(iter(texts))] == pairs
