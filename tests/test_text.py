"""Tokens without padding or cutting, the sentences that ship, and embeddings."""
import checkpoints
import numpy as np
import pytest

from opmatrix.errors import InputError
from opmatrix.text import Tokenizer, calibration, pool, read_lines, sentences, verification


@pytest.fixture
def path(tmp_path):
    checkpoints.write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def split(batch):
    return [row.tolist() for row in np.split(batch.tokens, batch.starts[1:-1])]


def test_a_batch_is_ragged(path):
    short, empty, long = split(Tokenizer.from_file(path).encode(["The river runs?", "", "the bank " * 9]))
    assert short == [2, 4, 7, 8, 12, 3]
    assert empty == [2, 3]
    assert long == [2, *[4, 5] * 9, 3]                      # the file says to cut at 8


def test_one_text_may_stand_alone(path):
    assert split(Tokenizer.from_file(path).encode("a river")) == [[2, 14, 7, 3]]


def test_a_saved_tokenizer_is_the_same(path, tmp_path):
    Tokenizer.from_file(path).save(tmp_path / "again.json")
    again = Tokenizer.from_file(tmp_path / "again.json")
    assert split(again.encode(["the bank " * 9])) == [[2, *[4, 5] * 9, 3]]


@pytest.mark.parametrize("texts, words", [
    ([], "no text"),
    (["fine", 7], "text 1 is 7"),
    (["a river", "dry " * 30], r"text 1, 'dry .*…', has 32 tokens, .* 20 \(max_position_embeddings\)"),
    (["\ud800"], "text 0, .* is no valid Unicode"),
])
def test_bad_texts_are_named(path, texts, words):
    with pytest.raises(InputError, match=words): Tokenizer.from_file(path, limit=20).encode(texts)


def test_the_limit_itself_fits(path):
    assert len(Tokenizer.from_file(path, limit=20).encode(["dry " * 18]).tokens) == 20


def test_a_text_without_any_token_is_named(path):
    from tokenizers import Tokenizer as Plain
    from tokenizers import models
    with pytest.raises(InputError, match="text 0, '', has no tokens"): Tokenizer(Plain(models.BPE())).encode([""])


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b"[1, 2"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None: path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"): Tokenizer.from_file(path)


def test_the_sentences_that_ship():
    lines = sentences()
    assert len(lines) == len(set(lines)) == 128
    assert all(3 <= len(line.split()) <= 30 for line in lines)
    assert [line for pair in zip(calibration(lines), verification(lines), strict=True) for line in pair] == lines


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffEine Zeile.\r\n\n  Größe  \nthe third".encode())
    assert read_lines(path) == ["Eine Zeile.", "Größe", "the third"]


@pytest.mark.parametrize("content, words", [
    (None, r"lines\.txt: No such file"),
    (b"", r"lines.txt: too few lines with text \(0\)"),
    (b"\n \n", r"lines.txt: too few lines with text \(0\)"),
    (b"only one\n", r"lines.txt: too few lines with text \(1\)"),
    (b"two\nlin\xe9s", "lines.txt: byte 7 is not UTF-8"),
])
def test_a_bad_file_of_lines_is_named(tmp_path, content, words):
    path = tmp_path / "lines.txt"
    if content is not None: path.write_bytes(content)
    with pytest.raises(InputError, match=words): read_lines(path)


def test_a_directory_is_no_file_of_lines(tmp_path):
    with pytest.raises(InputError, match="it is a directory"): read_lines(tmp_path)


def test_pooling_by_definition():
    rng = np.random.default_rng(0)
    hidden, starts = rng.normal(size=(9, 5)), np.array([0, 4, 5, 9])
    expected = [rows.mean(0) / np.sqrt((rows.mean(0) ** 2).sum()) for rows in np.split(hidden, starts[1:-1])]
    np.testing.assert_allclose(pool(hidden, starts), expected, rtol=1e-14)
    assert pool(hidden.astype(np.float32), starts).dtype == np.float32


def test_pooling_rows_of_zeros_gives_zeros():
    assert not pool(np.zeros((3, 2)), np.array([0, 3])).any()


def test_pooling_refuses_a_sentence_without_rows():
    with pytest.raises(ValueError, match=r"\[2, 0, 1\]"): pool(np.ones((3, 2)), np.array([0, 2, 2, 3]))
