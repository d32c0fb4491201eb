"""Tokens without padding, texts that are too long, and the sentences that ship."""

import json

import checkpoints
import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.text import LineReading, Parts, ReadableIds, Tokenizer, read_lines, sentences
from opmatrix.inference.tokenizer_limits import check_expression


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
    assert long == [2, *[4, 5] * 9, 3]  # the file says to cut at 8


def test_one_text_may_stand_alone(path):
    assert split(Tokenizer.from_file(path).encode("a river")) == [[2, 14, 7, 3]]


def test_a_saved_tokenizer_is_the_same(path, tmp_path):
    Tokenizer.from_file(path).save(tmp_path / "again.json")
    again = Tokenizer.from_file(tmp_path / "again.json")
    assert split(again.encode(["the bank " * 9])) == [[2, *[4, 5] * 9, 3]]


@pytest.mark.parametrize(
    "texts, words",
    [
        ([], "no text"),
        (["fine", 7], "text 1 is 7"),
        (["a river", "dry " * 30], r"text 1, 'dry .*…', has 32 tokens, .* 20 \(max_position_embeddings\)"),
        (["\ud800"], "text 0, .* is no valid Unicode"),
    ],
)
def test_bad_texts_are_named(path, texts, words):
    with pytest.raises(InputError, match=words):
        Tokenizer.from_file(path, limit=20).encode(texts)


def test_the_limit_itself_fits(path):
    assert len(Tokenizer.from_file(path, limit=20).encode(["dry " * 18]).tokens) == 20


def test_a_token_that_takes_no_position_is_named(path):
    """RoBERTa's padding, within a text."""
    plain = Tokenizer.from_file(path).tokenizer
    named = Tokenizer(plain, readable=ReadableIds(40, 7))
    assert split(named.encode(["the bank"])) == [[2, 4, 5, 3]]
    with pytest.raises(InputError, match=r"text 1, 'a river', has the token 'river', id 7, which the model pads with"):
        named.encode(["the bank", "a river"])


def test_a_text_without_any_token_is_named(path):
    from tokenizers import Tokenizer as Plain
    from tokenizers import models

    with pytest.raises(InputError, match="text 0, '', has no tokens"):
        Tokenizer(Plain(models.BPE())).encode([""])


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b"[1, 2"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Tokenizer.from_file(path)


def test_the_sentences_that_ship():
    lines = sentences()
    assert len(lines) == len(set(lines)) == 128
    assert all(3 <= len(line.split()) <= 30 for line in lines)
    assert [len(part) for part in Parts.of(lines)] == [32, 32, 64]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 98, 99, 100, 101])
def test_no_line_is_in_two_parts_and_none_is_lost(count):
    parts = Parts.of(lines := [f"line {at}" for at in range(count)])
    assert sorted(line for part in parts for line in part) == sorted(lines)
    assert all(parts) == (count >= 3)


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffEine Zeile.\r\n\n  Größe  \nthe third".encode())
    assert read_lines(path) == ["Eine Zeile.", "Größe", "the third"]


@pytest.mark.parametrize(
    "content, words",
    [
        (None, r"lines\.txt: No such file"),
        (b"", r"lines.txt: too few lines with text \(0\)"),
        (b"\n \n", r"lines.txt: too few lines with text \(0\)"),
        (b"only one\n", r"lines.txt: too few lines with text \(1\)"),
        (b"one\ntwo\n", r"lines.txt: too few lines with text \(2\)"),
        (b"two\nlin\xe9s", "lines.txt: byte 7 is not UTF-8"),
    ],
)
def test_a_bad_file_of_lines_is_named(tmp_path, content, words):
    path = tmp_path / "lines.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_lines(path)


def test_a_directory_is_no_file_of_lines(tmp_path):
    with pytest.raises(InputError, match="it is a directory"):
        read_lines(tmp_path)


# ---- texts that are too long, and that are none


def cutting(path, most=None):
    return Tokenizer.from_file(path, 20, Pooling(max_seq_length=most))


@pytest.mark.parametrize(
    "most, truncate, length", [(None, True, 20), (9, None, 9), (9, True, 9), (64, None, 20), (3, None, 3)]
)
def test_a_text_is_cut_and_special_tokens_are_kept(path, most, truncate, length):
    long = "the bank " * 9 + "river dry"
    whole = [2, *[4, 5] * 9, 7, 9, 3]
    found = cutting(path, most).encode([long, "a river"], truncate)
    assert split(found) == [[*whole[: length - 1], 3], [2, 14, 7, 3][: length - 1] + [3] * (length == 3)]


def test_a_text_that_just_fits_is_whole(path):
    assert split(cutting(path, 9).encode(["dry " * 7])) == [[2, *[9] * 7, 3]]
    assert split(cutting(path, 9).encode(["dry " * 8])) == [[2, *[9] * 7, 3]]


@pytest.mark.parametrize("most, truncate", [(None, None), (None, False), (9, False)])
def test_nothing_is_cut_that_should_not_be(path, most, truncate):
    assert split(cutting(path, most).encode(["dry " * 18], truncate)) == [[2, *[9] * 18, 3]]
    with pytest.raises(InputError, match=r"text 0, .* has 21 tokens"):
        cutting(path, most).encode(["dry " * 19], truncate)


def test_a_length_that_special_tokens_fill_is_refused(path):
    with pytest.raises(InputError, match="max_seq_length 2 leaves no room for text: 2 tokens"):
        cutting(path, 2)


def test_a_prompt_and_lower_case_come_first(path):
    from tokenizers import Tokenizer as Plain

    cased = Plain.from_file(str(path))
    cased.normalizer = None
    plain, lower = (Tokenizer(cased, pooling=Pooling(prompt="the bank ", lower=low)) for low in (False, True))
    assert split(lower.encode(["A River"])) == [[2, 4, 5, 14, 7, 3]]
    cased.normalizer = None
    assert split(plain.encode(["A River"])) == [[2, 4, 5, 1, 1, 3]]


def test_what_cannot_be_read_is_counted_and_left_out(path):
    reading = LineReading(skip_bad=True)
    texts = ["a river", 7, "dry " * 30, "", "\ud800", "the \udcff"]
    found = cutting(path).rows(texts, reading) + cutting(path).rows(["a", None], reading)
    assert found == [[2, 14, 7, 3], [], [], [2, 3], [], [], [2, 14, 3], []]
    assert (reading.texts, reading.skipped, reading.truncated) == (8, [1, 2, 4, 5, 7], 0)
    assert reading.fault == "text 1 is 7, no string: give strings"


def test_cut_texts_are_counted(path):
    reading = LineReading()
    cutting(path, 5).rows(["a river", "the river runs", "the river runs dry", "dry " * 90], reading)
    assert (reading.texts, reading.skipped, reading.truncated) == (4, [], 2)


def test_a_tokenizer_that_contradicts_itself_is_refused(path):
    """Its library panics, which is no Exception: tokens that a template names and nothing holds."""
    found = json.loads(path.read_text())
    found["post_processor"]["special_tokens"] = {}
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"tokenizer\.json contradicts itself"):
        Tokenizer.from_file(path).encode("a bank")


def deep(letter, end, depth):
    return letter * depth + "a" + end * depth


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
@pytest.mark.parametrize(
    "pattern",
    [deep("(", ")*", 1000), deep("(a|", "|b)*", 200), "[a-z]" * 2000, deep(r"\)(", ")+", 60)],
    ids=lambda pattern: pattern[:8],
)
def test_an_expression_that_would_hold_native_code_is_refused(path, part, pattern):
    """A search gives up after so many steps, each of which takes longer the deeper brackets are."""
    expression = {"pattern": {"Regex": pattern}}
    kinds = {
        "normalizer": {"type": "Replace", "content": "x"},
        "decoder": {"type": "Replace", "content": "x"},
        "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": False},
    }
    found = json.loads(path.read_text())
    found[part] = kinds[part] | expression
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match=rf"tokenizer\.json: {part}: the regular expression .* get the file again"):
        Tokenizer.from_file(path)


@pytest.mark.parametrize(
    "step",
    [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}, {"type": "Prepend", "prepend": "a" * 10}],
    ids=lambda step: step["type"],
)
def test_normalizers_that_write_ever_more_are_refused(path, step):
    found = json.loads(path.read_text())
    for count, refused in ((2, False), (9, True)):
        found["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [step] * count}]}
        path.write_text(json.dumps(found))
        if refused:
            with pytest.raises(InputError, match=r"normalizer: a letter may become 1,000,000,000 letters"):
                Tokenizer.from_file(path)
        else:
            assert Tokenizer.from_file(path).encode("a bank").tokens.size


def test_published_expressions_are_within_the_bounds():
    """Those of BPE that a GGUF file names, and half of what is allowed."""
    from opmatrix.files.directory.merges import RULES

    patterns = [each for rule in RULES.values() if isinstance(rule.split, tuple) for each in rule.split]
    assert len(patterns) > 3
    for each in patterns:
        check_expression(each, "here")
    check_expression(deep("(", ")*", 50), "here")
    check_expression("a" * 4000, "here")
