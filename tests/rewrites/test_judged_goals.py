"""The goal of nDCG@10 over a user's corpus, queries and judgements: files of BEIR and TREC, parts, the figure, and a
whole run that keeps one."""

import json
from math import log2

import numpy as np
import optimized
import pytest
import standin
from hypothesis import given, settings
from hypothesis import strategies as st
from test_neighbour_goals import imported, made_lines

from formats.core.errors import InputError
from opmatrix.inference.pooling import Pooling
from rewrites.metrics import recheck
from rewrites.metrics.goals import goals
from rewrites.metrics.judgements import judged_goal, ndcg, ranking_quality, read_judged, read_named_texts
from rewrites.metrics.neighbours import MOST_QUERIES, CorpusFiles, nearest_lines
from rewrites.report.results import as_json, printed, save
from rewrites.run import optimize
from rewrites.workload.phases import silence_stdout

LINES, QUERIES = 120, 12


def as_json_lines(texts, prefix):
    return "\n".join(json.dumps({"_id": f"{prefix}{at}", "title": "", "text": text}) for at, text in enumerate(texts))


def judgements(seed=0):
    """(query, line, relevance) by their places: three lines a query, one of which is not relevant, the last query
    without a relevant line."""
    rng = np.random.default_rng(seed)
    for query in range(QUERIES):
        for line, gain in zip(rng.choice(LINES, 3, replace=False), (2, 1, 0), strict=True):
            yield query, int(line), 0 if query == QUERIES - 1 else gain


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("judged")


@pytest.fixture(scope="module")
def beir(place):
    """A corpus as BEIR writes it."""
    (place / "corpus.jsonl").write_text(as_json_lines(made_lines(LINES), "d"))
    (place / "queries.jsonl").write_text(as_json_lines(made_lines(QUERIES, 1), "q"))
    rows = [f"q{query}\td{line}\t{gain}" for query, line, gain in judgements()]
    (place / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return CorpusFiles(place / "corpus.jsonl", place / "queries.jsonl", place / "qrels.tsv")


@pytest.fixture(scope="module")
def trec(place):
    """The same as plain lines, with TREC's four columns."""
    (place / "corpus.txt").write_text("\n".join(made_lines(LINES)))
    (place / "queries.txt").write_text("\n".join(made_lines(QUERIES, 1)))
    rows = [f"{query + 1} 0 {line + 1} {gain}" for query, line, gain in judgements()]
    (place / "qrels.txt").write_text("\n".join(rows))
    return CorpusFiles(place / "corpus.txt", place / "queries.txt", place / "qrels.txt")


@pytest.fixture(scope="module")
def embedder(place):
    return imported(optimized.small(place / "embedder"))


# ---- files and parts


def test_both_spellings_are_the_same_parts(beir, trec):
    assert read_judged(beir) == read_judged(trec)


def test_each_part_holds_the_lines_that_its_queries_need(beir):
    lines, queries = made_lines(LINES), made_lines(QUERIES, 1)
    wanted = {(queries[query], lines[line]): gain for query, line, gain in judgements() if query < QUERIES - 1}
    parts = read_judged(beir)
    judged = {
        (query, part.lines[place]): gain
        for part in parts
        for query, gains in zip(part.queries, part.gains, strict=True)
        for place, gain in gains.items()
    }
    assert judged == wanted and not {*parts[0].queries} & {*parts[1].queries}
    judged_lines = {line for _, line in wanted}
    assert {*parts[0].lines} & {*parts[1].lines} <= judged_lines
    assert {*parts[0].lines} | {*parts[1].lines} == {*lines}


def test_more_queries_than_are_taken_are_spread(place):
    count = 2 * MOST_QUERIES + 3
    (place / "many.txt").write_text("\n".join(f"the bank {at}" for at in range(count)))
    (place / "many.tsv").write_text("\n".join(f"{at}\t{at % 50 + 1}\t1" for at in range(1, count + 1)))
    choose, state = read_judged(CorpusFiles(place / "corpus.txt", place / "many.txt", place / "many.tsv"))
    assert MOST_QUERIES / 2 < len(choose.queries) + len(state.queries) <= MOST_QUERIES


def test_a_title_stands_before_its_text_and_blank_lines_keep_their_numbers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "7", "title": "The bank", "text": "of the river", "more": [1]}\n\n')
    (tmp_path / "a.txt").write_text("one\n\n three \n")
    assert read_named_texts(tmp_path / "a.jsonl") == {"7": "The bank of the river"}
    assert read_named_texts(tmp_path / "a.txt") == {"1": "one", "3": " three "}


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("corpus.jsonl", '{"_id": "d0", "text": 3}', "line 1: .* is no line such as"),
        ("corpus.jsonl", '{"text": "the bank"}', "line 1: .* is no line such as"),
        ("corpus.jsonl", "[" * 100_000, "line 1: .* is no line such as"),
        ("corpus.jsonl", '{"_id": "d0", "text": "a"}\n{"_id": "d0", "text": "b"}', "'d0' stands 2 times"),
        ("queries.jsonl", "the bank", "line 1: .* is no line such as"),
        ("qrels.tsv", "q0\td1\t1\nq0\td999\t1", "line 2: no text of --corpus is called 'd999'"),
        ("qrels.tsv", "q99\td1\t1", "line 1: no text of --queries is called 'q99'"),
        ("qrels.tsv", "q0\td1\t1\nq0\td2\tnan", "line 2: .* finite relevance"),
        ("qrels.tsv", "q0\td1\t1\nd2\t1", "line 2: .* give a query, a line"),
        ("qrels.tsv", "q0\td1\t1\nq1\td1\t0", "1 queries with a relevant line"),
        ("qrels.tsv", "q0\td1\t-1", "0 queries with a relevant line"),
        ("qrels.tsv", "", "no text"),
    ],
)
def test_a_file_of_another_form_is_refused_in_a_line(beir, tmp_path, name, text, words):
    files = {"corpus.jsonl": beir.corpus, "queries.jsonl": beir.queries, "qrels.tsv": beir.judgements}
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read_judged(CorpusFiles(*(files | {name: tmp_path / name}).values()))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "lacking, words", [("queries", "give --queries FILE"), ("judgements", "give --judgements TSV")]
)
def test_all_three_files_are_needed(beir, lacking, words):
    with pytest.raises(InputError, match=words):
        goals(keep=["ndcg10>=-0.5"], corpus=beir._replace(**{lacking: None}))


def test_judgements_without_a_corpus_are_refused(place, beir):
    with pytest.raises(InputError, match=r"--judgements .* give --corpus FILE"):
        optimize(str(place / "embedder"), keep=["error<=2%"], judgements=beir.judgements)


@pytest.mark.parametrize("text", ["ndcg10>=0.5", "ndcg10<=-0.5", "ndcg10>=-101"])
def test_a_threshold_that_nothing_or_everything_keeps_is_refused(beir, text):
    with pytest.raises(InputError, match=f"--keep {text}"):
        goals(keep=[text], corpus=beir)


# ---- the figure


def test_ndcg_of_an_example_by_hand():
    gains = {3: 2.0, 5: 1.0, 8: 0.0}
    assert ndcg([3, 5, 8], gains) == 1
    assert ndcg([5, 9, 3], gains) == pytest.approx((1 / log2(2) + 2 / log2(4)) / (2 / log2(2) + 1 / log2(3)))
    assert ndcg([1, 2, 8], gains) == 0
    assert ndcg([*range(10, 20), 3], gains) == 0, "places after the tenth count nothing"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30).filter(any), st.randoms())
def test_ndcg_is_a_share_and_one_for_the_best_order_alone(relevance, random):
    gains = {place: float(gain) for place, gain in enumerate(relevance)}
    best = sorted(gains, key=lambda place: -gains[place])
    order = random.sample([*gains], len(gains))
    assert ndcg(best, gains) == pytest.approx(1) and 0 <= ndcg(order, gains) <= 1 + 1e-12
    in_order = [gains[place] for place in order[:10]] == [gains[place] for place in best[:10]]
    assert (ndcg(order, gains) > 1 - 1e-9) == in_order


def test_the_quality_of_a_ranking_is_that_of_the_nearest_lines(embedder, beir):
    part, _ = read_judged(beir)
    quality = ranking_quality(embedder, part)
    for value, nearest, gains in zip(quality, nearest_lines(embedder, part), part.gains, strict=True):
        assert value[0] == 100 * ndcg(nearest.tolist(), gains)
    assert any(value[0] for value in quality)


def test_another_similarity_loses_what_its_ranking_loses(embedder, beir):
    goal = judged_goal(beir).beside(embedder)
    other = embedder.replace(pooling=Pooling(similarity="dot", normalise=False).described())
    stated = goal.stated(other)
    now, then = (np.mean(ranking_quality(program, goal.state)) for program in (other, embedder))
    assert stated["mean"] == pytest.approx(now - then) and stated["exact"] == pytest.approx(then)
    assert stated["at_least"] <= stated["mean"] + 1e-9


def test_the_exact_program_loses_nothing(embedder, beir):
    goal = judged_goal(beir).beside(embedder)
    assert goal.chosen_by(embedder) == 0 == goal.stated(embedder)["mean"]


# ---- a whole run


def test_a_run_keeps_the_goal_states_it_and_verifies_it(place, beir, embedder, monkeypatch):
    (place / "lines.txt").write_text("\n".join(optimized.LINES * 5))
    monkeypatch.setattr("rewrites.run.calibrated", lambda progress, *batches: standin.machine())
    standin.know_laws(monkeypatch)
    with silence_stdout():
        result = optimize(
            str(place / "embedder"),
            keep=["ndcg10>=-20"],
            corpus=beir.corpus,
            queries=beir.queries,
            judgements=beir.judgements,
            text=str(place / "lines.txt"),
            rounds=1,
        )
        save(result, place / "out")
    best = result.best
    assert result.points[0].judged["ndcg10"] == 0 and -20 <= best.judged["ndcg10"] <= 100
    [_, described] = (goal.described(best, result.points[0]) for goal in result.goals)
    assert described["kept"] and described["judgements"]["file"] == str(beir.judgements)
    text = printed(as_json(result, [None] * len(result.points)))
    assert "ndcg10 on 5 queries and" in text and "of the exact program" in text
    monkeypatch.setattr(recheck, "verify_laws", lambda laws: {"laws": len(laws)})
    monkeypatch.setattr(recheck, "verify_graphs", lambda templates, laws: {"graphs": 1})

    def verdict(**files):
        checks = recheck.of_directory(place / "out", str(place / "embedder"), files)
        return next(check for check in checks if check.what.startswith("goal ndcg10"))

    whole = dict(ndcg10=beir.corpus, top10=beir.corpus, queries=beir.queries, judgements=beir.judgements)
    assert verdict(**whole).verdict == recheck.HOLDS
    assert "its --judgements FILE" in verdict(**whole | {"judgements": None}).allowed
