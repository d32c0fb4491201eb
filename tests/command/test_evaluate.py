"""Spearman's correlation on sentence pairs: what is read, what is refused, what is compared."""

import checkpoints
import numpy as np
import pytest
import standin
from programs import bert_program

from formats.core.errors import InputError
from opmatrix.inference.pooling import Pooling
from opmatrix.runtime.program import Program
from rewrites.metrics import evaluate as evaluation
from rewrites.metrics.evaluate import evaluate_all, format_scores, open_program
from rewrites.metrics.pairs import SentencePairs, score_pairs
from rewrites.workload.phases import Report

ROWS = [
    ("the bank", "a bank", 4.5),
    ("the river, dry", "river", 3.0),
    ("a", "of", 0.25),
    ("runs", "the river runs", 3.0),
]
PLAIN = "".join(f'"{a}","{b}",{c}\n' for a, b, c in ROWS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, and two programs of it: exact, and with one weight spoilt."""
    directory = tmp_path_factory.mktemp("programs")
    checkpoints.write(directory / "model")
    arrays = checkpoints.arrays(checkpoints.CONFIG)
    meta = {"tokenizer": (directory / "model" / "tokenizer.json").read_text()}
    bert_program(checkpoints.CONFIG, arrays, **meta).save(directory / "exact")
    name = "encoder.layer.1.output.dense.weight"
    bert_program(checkpoints.CONFIG, arrays | {name: -arrays[name]}, **meta).save(directory / "spoilt")
    return directory


def written(directory, text, encoding="utf-8"):
    (directory / "pairs.csv").write_text(text, encoding)
    return directory / "pairs.csv"


# ---- what is read


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\n\n"),
        "sentence1,sentence2,score\n" + PLAIN,
        "Sentence1 , SENTENCE2,score\n" + PLAIN,
        PLAIN.replace(",4.5\n", ",4.5,more,columns\n"),
        "score,genre,sentence2,sentence1\n" + "".join(f'{c},news,"{b}","{a}"\n' for a, b, c in ROWS),
    ],
)
def test_pairs_are_read_with_or_without_a_header(tmp_path, text):
    pairs = SentencePairs.read(written(tmp_path, text))
    assert pairs.texts == tuple(text for a, b, _ in ROWS for text in (a, b))
    assert pairs.scores.tolist() == [score for *_, score in ROWS] and len(pairs) == 4


@pytest.mark.parametrize(
    "text, words",
    [
        (PLAIN + "a,b,high\n", "line 5: the score 'high'"),
        (PLAIN + "a,b,nan\n", "line 5: the score 'nan'"),
        ("text_a,text_b,label\n" + PLAIN, "line 1: the score 'label' .* sentence1, sentence2, score"),
        (PLAIN + "a,b\n", "line 5: 2 columns"),
        (PLAIN + '"a,b,1\n', "line 5: unexpected end"),
        ("sentence1,sentence2,score\na,b,1\nc,2\n", "line 3: 2 columns"),
        ("a,b,2\nc,d,2.0\n", "every score is 2"),
        ("a,b,2\n", "1 pairs"),
        ("", "0 pairs"),
        ("sentence1,sentence2,score\n", "0 pairs"),
    ],
)
def test_bad_pairs_are_named_by_the_line(tmp_path, text, words):
    with pytest.raises(InputError, match=rf"pairs\.csv: {words}"):
        SentencePairs.read(written(tmp_path, text))


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        SentencePairs.read(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        SentencePairs.read(written(tmp_path, "\xff,b,1\n", "latin-1"))


# ---- what is found


def ranks(numbers):
    """The mean place of each number among all: equal ones share theirs."""
    return [np.mean([place for place, other in enumerate(sorted(numbers)) if other == number]) for number in numbers]


def test_the_correlation_is_that_of_ranks_with_ties(place):
    program = Program.load(place / "exact")
    pairs = SentencePairs(tuple(text for a, b, _ in ROWS for text in (a, b)), np.array([score for *_, score in ROWS]))
    vectors = program.embed(pairs.texts).astype(np.float64)
    cosines = [float(a @ b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    found = score_pairs("exact", program, pairs)
    assert found.spearman == pytest.approx(100 * np.corrcoef(ranks(cosines), ranks([*pairs.scores]))[0, 1])
    assert found.texts == 8 and found.rate == 8 / found.seconds > 0


def test_scores_of_a_program_s_own_cosines_are_perfect(place):
    program, texts = (
        Program.load(place / "exact"),
        ("the bank", "a river", "dry", "of the bank", "runs", "river runs dry"),
    )
    vectors = program.embed(texts)
    cosines = (vectors[::2] * vectors[1::2]).sum(1)
    assert score_pairs("", program, SentencePairs(texts, cosines)).spearman == pytest.approx(100)
    assert score_pairs("", program, SentencePairs(texts, -cosines)).spearman == pytest.approx(-100)


def test_pairs_that_are_all_equally_alike_are_refused(place):
    with pytest.raises(InputError, match="every pair has the number 1"):
        score_pairs("exact", Program.load(place / "exact"), SentencePairs(("a",) * 6, np.arange(3.0)))


def test_embeddings_of_any_length_are_compared_by_their_angle(place):
    """Scores that follow the cosines, where products of the vectors rank otherwise."""
    rng = np.random.default_rng(0)
    words = "the bank of river runs dry a".split()
    texts = tuple(" ".join(rng.choice(words, length)) for length in rng.integers(1, 9, 80))
    program = Program.load(place / "exact").replace(pooling=Pooling(("max",), False).described())
    vectors = program.embed(texts).astype(np.float64)
    inner, norms = (vectors[::2] * vectors[1::2]).sum(1), np.linalg.norm(vectors, axis=1)
    cosines = inner / norms[::2] / norms[1::2]
    assert score_pairs("", program, SentencePairs(texts, cosines)).spearman == pytest.approx(100)
    assert score_pairs("", program, SentencePairs(texts, inner)).spearman < 99


def test_long_texts_of_pairs_are_cut_where_that_is_asked_for(place):
    texts, program = ("the bank", "dry " * 30, "a river", "runs dry"), Program.load(place / "exact")
    with pytest.raises(InputError, match="32 tokens"):
        score_pairs("", program, SentencePairs(texts, np.arange(2.0)))
    pairs = SentencePairs(texts, np.arange(2.0))
    assert abs(score_pairs("", program, pairs, truncate=True).spearman) == pytest.approx(100)


def test_a_checkpoint_is_its_imported_program(place, monkeypatch):
    monkeypatch.setattr(evaluation, "calibrated", lambda progress, *batches: standin.machine())
    program, exact = open_program(str(place / "model")), Program.load(place / "exact")
    texts = [text for a, b, _ in ROWS for text in (a, b)]
    np.testing.assert_allclose(program.embed(texts), exact.embed(texts), atol=1e-5)


def test_programs_are_compared_with_the_first(place, tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice("the bank of river runs dry a".split(), length)) for length in rng.integers(1, 9, 80)]
    pairs, names = SentencePairs(tuple(texts), rng.normal(size=40)), [str(place / "exact"), str(place / "spoilt")]
    exact, spoilt = found = evaluate_all(names, pairs, Report(quiet=True))
    assert [each.name for each in found] == names and exact.spearman != spoilt.spearman
    lines = format_scores(found, pairs).splitlines()
    assert "40 pairs" in lines[0] and f"{exact.spearman:.2f}" in lines[2]
    assert f"{spoilt.spearman - exact.spearman:+.2f}" in lines[3]
    kept = evaluation.scores_as_json(found, tmp_path / "pairs.csv", pairs)
    assert kept["count"] == 40 and kept["programs"][1]["difference"] == spoilt.spearman - exact.spearman


def test_what_is_no_program_and_no_checkpoint_is_named(tmp_path):
    with pytest.raises(InputError, match="absent"):
        open_program(str(tmp_path / "absent"))
