"""Goals over a user's own corpus: nearest lines and ranks of scores, apart from the lines that state them; a whole run
that keeps one, and its certificate measured again."""

import json
from random import Random

import checkpoints
import numpy as np
import optimized
import pytest
import standin

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.inference.pooling import Pooling
from rewrites.metrics import recheck
from rewrites.metrics.evaluate import open_program
from rewrites.metrics.goals import Goal, goals
from rewrites.metrics.neighbours import (
    CONFIDENCE,
    CorpusFiles,
    CorpusPart,
    distinct_lines,
    document_scores,
    kendall,
    lower_bound,
    nearest_goal,
    nearest_lines,
    overlap,
    read_corpus,
    scores_goal,
)
from rewrites.report.results import as_json, printed, save
from rewrites.run import optimize
from rewrites.workload.phases import silence_stdout


def made_lines(count, seed=0):
    """So many different lines of the words that tokenizers of checkpoints know."""
    rng, lines = Random(seed), dict[str, None]()
    while len(lines) < count:
        lines[" ".join(rng.choices(["the", "bank", "of", "river", "runs", "dry", "a"], k=rng.randint(1, 6)))] = None
    return [*lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("neighbours")


@pytest.fixture(scope="module")
def files(place):
    (place / "corpus.txt").write_text("\n".join(made_lines(120)))
    (place / "queries.txt").write_text("\n".join(made_lines(12, 1)))
    (place / "lines.txt").write_text("\n".join(optimized.LINES * 5))
    return CorpusFiles(place / "corpus.txt", place / "queries.txt")


def imported(model):
    """The imported program of a checkpoint, without a calibration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewrites.metrics.evaluate.calibrated", lambda progress, *batches: standin.machine())
        return open_program(str(model))


@pytest.fixture(scope="module")
def embedder(place):
    return imported(optimized.small(place / "embedder"))


@pytest.fixture(scope="module")
def reranker(place):
    return imported(checkpoints.classify(place / "reranker", 1, num_hidden_layers=1))


# ---- parts of a corpus


def test_both_parts_have_no_line_in_common(files):
    for corpus in (files, CorpusFiles(files.corpus)):
        choose, state = read_corpus(corpus)
        assert not {*choose.lines} & {*state.lines} and not {*choose.queries} & {*state.queries}
        assert len(choose.lines) + len(state.lines) == (120 if corpus.queries else 108)
    assert not {*choose.queries, *state.queries} & {*choose.lines, *state.lines}


def test_lines_count_once_and_are_spread_over_a_file(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(f"{at % 50}\n \n" for at in range(500)))
    assert distinct_lines(tmp_path / "lines.txt", 100) == [str(at) for at in range(50)]
    assert distinct_lines(tmp_path / "lines.txt", 10) == [str(at) for at in range(0, 50, 5)]


@pytest.mark.parametrize("lines, words", [(39, "0 queries|4 queries and 35 other lines"), (0, "no text")])
def test_a_corpus_that_is_too_small_is_refused(tmp_path, lines, words):
    (tmp_path / "few.txt").write_text("\n".join(made_lines(lines)))
    with pytest.raises(InputError, match=words):
        nearest_goal(CorpusFiles(tmp_path / "few.txt"))


# ---- agreement


@pytest.mark.parametrize("similarity", [None, "cosine", "dot", "euclidean", "manhattan"])
def test_nearest_lines_are_those_of_a_search_by_hand(embedder, files, similarity):
    program = embedder.replace(pooling=Pooling(similarity=similarity, normalise=False).described())
    part, _ = read_corpus(files)
    queries, lines = (program.embed([*texts]).astype(float) for texts in (part.queries, part.lines))
    by_hand = {
        "dot": lambda q, x: x @ q,
        "euclidean": lambda q, x: -np.sqrt(((x - q) ** 2).sum(1)),
        "manhattan": lambda q, x: -abs(x - q).sum(1),
    }.get(similarity, lambda q, x: x @ q / np.sqrt((x * x).sum(1) * (q @ q)))
    for query, nearest in zip(queries, nearest_lines(program, part), strict=True):
        alike = by_hand(query, lines)
        assert {*nearest} == {*np.argsort(-alike)[:10]}


def test_queries_and_lines_have_their_prompts(embedder):
    prompts = {"query": "the bank: ", "passage": "dry "}
    program = embedder.replace(pooling=Pooling(prompts=prompts).described())
    lines = tuple(made_lines(40))
    plain = CorpusPart(tuple("the bank: " + line for line in lines[:3]), tuple("dry " + line for line in lines))
    for one, other in zip(
        nearest_lines(program, CorpusPart(lines[:3], lines)), nearest_lines(embedder, plain), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_scores_of_documents_are_those_of_pairs(reranker, files):
    part, _ = read_corpus(files)
    rows = document_scores(reranker, part)
    assert len(rows) == len(part.queries) and len(rows[0]) == 20
    documents = part.lines[:: len(part.lines) // 20][:20]
    np.testing.assert_array_equal(rows[1], reranker.score([(part.queries[1], line) for line in documents])[:, 0])


def test_kendalls_tau_counts_pairs_in_the_same_order():
    assert kendall(np.array([1, 2, 3, 4]), np.array([1, 2, 4, 3])) == pytest.approx((5 - 1) / 6)
    assert kendall(np.array([1, 2, 3]), np.array([3, 2, 1])) == -1
    assert kendall(np.array([1, 1, 1]), np.array([2, 2, 2])) == 1 and kendall(np.array([1, 1]), np.array([1, 2])) == 0
    assert overlap(np.array([1, 2, 3, 9]), np.array([9, 8, 1, 7])) == 0.5


def test_the_bound_holds_for_most_samples():
    """Shares of ten lines of 100 queries, of a known mean: about one bound in twenty is above it."""
    rng = np.random.default_rng(3)
    above = [lower_bound(rng.binomial(10, 0.93, 100) / 10) > 0.93 for _ in range(400)]
    assert 0.01 < np.mean(above) < 1.8 * (1 - CONFIDENCE)
    assert lower_bound(np.ones(7)) == 1


def test_the_exact_program_agrees_with_itself(embedder, reranker, files):
    for goal, program in ((nearest_goal(files), embedder), (scores_goal(files), reranker)):
        data = goal.beside(program)
        stated = data.stated(program)
        assert data.chosen_by(program) == stated["mean"] == stated["at_least"] == 1
        assert (stated["queries"], stated["lines"]) == (6, 60)


def test_a_model_of_the_other_kind_is_refused(embedder, reranker, files):
    with pytest.raises(InputError, match="top10, ndcg10: the model scores pairs"):
        nearest_goal(files).beside(reranker)
    with pytest.raises(InputError, match="tau: the model gives a pair no single score"):
        scores_goal(files).beside(embedder)


# ---- goals


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(keep=["top10>=0.9"]), "--keep top10>=0.9: .* give --corpus FILE"),
        (dict(corpus=True), "no goal is measured on it: --keep with one of top10>=0.95, tau"),
        (dict(keep=["top10>=1.5"]), "from top10>=0 to top10>=1"),
        (dict(keep=["tau>=90%"]), "written as in tau>=0.95"),
    ],
)
def test_a_corpus_and_its_goal_belong_together(files, options, words):
    given = options | (dict(corpus=files) if options.get("corpus") else {})
    with pytest.raises(InputError, match=words):
        goals(**given)


def test_queries_alone_are_refused(place, files):
    with pytest.raises(InputError, match="they are asked of a corpus: give --corpus"):
        optimize(str(place / "embedder"), keep=["top10>=0.9"], queries=files.queries)


@pytest.fixture(scope="module")
def result(place, files, embedder):
    """A whole run with a goal of nearest lines."""
    with pytest.MonkeyPatch.context() as patch, silence_stdout():
        patch.setattr("rewrites.run.calibrated", lambda progress, *batches: standin.machine())
        standin.know_laws(patch)
        return optimize(
            str(place / "embedder"),
            keep=["top10>=0.8"],
            corpus=files.corpus,
            queries=files.queries,
            text=str(place / "lines.txt"),
            rounds=1,
        )


def test_the_answer_keeps_the_goal_and_states_it_of_other_lines(result, place, files):
    assert any(point.methods for point in result.points) and result.points[0].judged["top10"] == 1
    best = result.best
    assert best.judged["top10"] >= 0.8 and 0.5 < best.judged["top10: at_least"] <= best.judged["top10: mean"] <= 1
    [_, described] = (goal.described(best, result.points[0]) for goal in result.goals)
    assert described["kept"] and described["queries"]["file"] == str(files.queries)
    data = nearest_goal(files).beside(imported(place / "embedder"))
    assert data.stated(best.program)["mean"] == pytest.approx(described["stated"]["mean"], abs=0.02)
    text = printed(as_json(result, [None] * len(result.points)))
    assert "top10 on 6 queries and 60 lines that chose nothing" in text


def test_a_certificate_is_measured_again(result, place, files, monkeypatch):
    with silence_stdout():
        save(result, place / "out")
    monkeypatch.setattr(recheck, "verify_laws", lambda laws: {"laws": len(laws)})
    monkeypatch.setattr(recheck, "verify_graphs", lambda templates, laws: {"graphs": 1})

    def verdict(**given):
        found = recheck.of_directory(place / "out", str(place / "embedder"), given)
        return next(check for check in found if check.what.startswith("goal top10"))

    held = verdict(top10=files.corpus, tau=files.corpus, queries=files.queries)
    assert held.verdict == recheck.HOLDS and "on lines that chose nothing" in held.found
    assert verdict(top10=files.corpus).verdict == recheck.CLAIMED == verdict().verdict
    with pytest.raises(InputError, match="its SHA-256 is"):
        verdict(top10=files.queries)


def test_a_goal_without_queries_of_its_own_is_measured_again(place, files):
    """One line in ten is a query: a certificate names the corpus alone."""
    program = om.Program.load(place / "out")
    [said] = (goal for goal in program.meta["certificate"]["verified"]["goals"] if goal["goal"].startswith("top10"))
    alone = {key: value for key, value in said.items() if key not in ("queries", "stated")}
    model = om.open_model(place / "embedder").operator(pooled=True)
    check = recheck.of_goal(program, model, 0.0, alone, {"top10": files.corpus}, {})
    data = nearest_goal(CorpusFiles(files.corpus)).beside(imported(place / "embedder"))
    assert check.found.startswith(f"{data.chosen_by(program):.5g}, ") and check.verdict != recheck.CLAIMED


def test_a_stated_mean_that_is_another_one_fails(result, place, files, monkeypatch):
    program = om.Program.load(place / "out")
    said = dict(json.loads(json.dumps(program.meta["certificate"]))["verified"]["goals"][1])
    said["stated"] = said["stated"] | {"mean": said["stated"]["mean"] - 0.05}
    model = om.open_model(place / "embedder").operator(pooled=True)
    given = {"top10": files.corpus, "queries": files.queries}
    assert recheck.of_goal(program, model, 0.0, said, given, {}).verdict == recheck.FAILS
    assert Goal.parsed("top10>=0.8").measure.name == "top10"
