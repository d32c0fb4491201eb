"""Embeddings of streams of texts: the same in batches of any size, from any source, in bounded memory, whole or not at
all."""

import io
import sys
import tracemalloc
from itertools import pairwise

import checkpoints
import numpy as np
import pytest
from programs import bert_program

from formats.core.errors import InputError
from opmatrix.inference.embed import BATCH_ROWS, CHUNK_TEXTS, batches, decode_lines, followed, quantity, write_npy
from opmatrix.inference.pooling import MEAN, Pooling
from opmatrix.inference.text import Tokenizer

WORDS = "the bank of river runs dry a".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    checkpoints.write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def program(tokenizer):
    return bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG), tokenizer=tokenizer.read_text())


def some(count, seed=0):
    """Texts of 0 to 9 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, length)) for length in rng.integers(0, 10, count)]


@pytest.mark.parametrize("rows", [1, 7, 64, BATCH_ROWS])
def test_the_size_of_batches_changes_nothing(program, rows):
    texts = some(60)
    alone = np.concatenate([MEAN(program.run(batch), batch.starts) for batch in map(program.tokenizer.encode, texts)])
    found = program.embed(texts, rows=rows)
    assert found.shape == (60, 24) and found.dtype == np.float32
    np.testing.assert_allclose(found, alone, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_every_source_gives_the_same(program, tmp_path):
    texts, file = some(40), tmp_path / "texts.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode() + b"\r\n")
    wanted = program.embed(texts)
    for source in (file, iter(texts), (text for text in texts), tuple(texts)):
        assert np.array_equal(program.embed(source), wanted)
    assert np.array_equal(np.concatenate([*program.stream(file, rows=4096)]), wanted)
    assert np.array_equal(program.embed(texts[3]), program.embed([texts[3]]))


def test_a_blank_line_has_an_embedding_too(program, tmp_path):
    (tmp_path / "texts.txt").write_text("the bank\n\nthe river")
    assert np.array_equal(program.embed(tmp_path / "texts.txt"), program.embed(["the bank", "", "the river"]))


def test_batches_are_full_and_in_order_across_chunks(tokenizer):
    texts, read = some(2 * CHUNK_TEXTS + 5), Tokenizer.from_file(tokenizer)
    found = [*batches(read, iter(texts), rows=100)]
    whole = read.encode(texts)
    assert np.array_equal(np.concatenate([batch.tokens for batch in found]), whole.tokens)
    assert np.array_equal(np.concatenate([np.diff(batch.starts) for batch in found]), np.diff(whole.starts))
    assert max(batch.rows for batch in found) <= 100
    for batch, after in pairwise(found):
        assert batch.rows + after.starts[1] > 100


def test_no_more_than_a_chunk_is_read_ahead(program):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield "the river"

    blocks = program.stream(endless(), rows=40)
    for _ in range(5):
        assert next(blocks).shape == (10, 24)
    assert len(taken) == CHUNK_TEXTS


def test_memory_does_not_grow_with_the_stream(tokenizer):
    read = Tokenizer.from_file(tokenizer)

    def peak(count):
        tracemalloc.start()
        for _ in batches(read, ("the river runs dry" for _ in range(count)), rows=256):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(2 * CHUNK_TEXTS)
    assert peak(8 * CHUNK_TEXTS) < 1.2 * peak(2 * CHUNK_TEXTS)


@pytest.mark.parametrize(
    "texts, words",
    [
        (["fine", 7], "text 1 is 7"),
        (["a river"] * (CHUNK_TEXTS + 2) + ["dry " * 30], rf"text {CHUNK_TEXTS + 2}, 'dry .*…', has 32 tokens"),
    ],
)
def test_bad_texts_are_named_by_their_place(program, texts, words):
    with pytest.raises(InputError, match=words):
        program.embed(texts)


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "No such file"),
        (b"", "no text"),
        (b"fine\nthe \xff", r"line 2, byte 4 is not UTF-8"),
        ("größe\nthe größe \udcff".encode(errors="surrogateescape"), r"line 2, byte 12 is not UTF-8"),
        (b"fine\n" + b"dry " * 30, r"line 2, 'dry .*…', has 32 tokens.*--truncate"),
    ],
)
def test_bad_files_are_named_by_the_line(program, tmp_path, content, words):
    if content is not None:
        (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"{words}") as error:
        program.embed(tmp_path / "texts.txt")
    assert words == "no text" or "texts.txt" in str(error.value)


def test_a_directory_and_no_rows_are_refused(program, tmp_path):
    with pytest.raises(InputError, match="directory"):
        program.embed(tmp_path)
    with pytest.raises(InputError, match="rows 0"):
        program.embed(["a"], rows=0)


def test_a_program_without_a_tokenizer_says_so():
    program = bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG))
    with pytest.raises(InputError, match="no tokenizer"):
        program.embed(["a"])


# ---- texts that are too long, and that are none

LONG = "dry " * 30


def test_a_long_text_is_cut_where_that_is_asked_for(program):
    texts = ["the bank", LONG, "a river"]
    found = program.embed(texts, truncate=True)
    assert np.array_equal(found, program.embed(["the bank", "dry " * 18, "a river"]))
    assert np.array_equal(np.concatenate([*program.stream(texts, rows=5, truncate=True)]), found)


def test_a_checkpoint_with_a_length_cuts_by_itself(program):
    short = program.replace(pooling=Pooling(max_seq_length=7).described())
    assert np.array_equal(short.embed(["the bank", LONG]), program.embed(["the bank", "dry " * 5]))
    assert np.array_equal(short.embed(["dry " * 18], truncate=False), program.embed(["dry " * 18]))
    with pytest.raises(InputError, match=r"text 1, .*32 tokens"):
        short.embed(["the bank", LONG], truncate=False)


@pytest.mark.parametrize("rows", [1, 7, 64, BATCH_ROWS])
def test_a_text_that_is_none_has_a_row_of_nan(program, rows):
    texts = [LONG, "the bank", 3, "", LONG, *some(30), "\ud800"]
    bad = [0, 2, 4, 35]
    found = program.embed(texts, rows=rows, skip_bad=True)
    assert found.shape == (36, 24) and np.flatnonzero(np.isnan(found).all(1)).tolist() == bad
    good = [at for at in range(36) if at not in bad]
    assert not np.isnan(found[good]).any()
    np.testing.assert_allclose(found[good], program.embed([texts[at] for at in good]), atol=2e-6)


def test_lines_that_are_none_keep_their_places(program, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"the bank\nthe \xff\n" + LONG.encode() + b"\na river")
    found = program.embed(tmp_path / "texts.txt", skip_bad=True)
    assert np.array_equal(found[[0, 3]], program.embed(["the bank", "a river"])) and np.isnan(found[1:3]).all()
    assert not np.isnan(program.embed(tmp_path / "texts.txt", skip_bad=True, truncate=True)[2]).any()


def test_a_token_that_the_model_has_no_row_for_is_that_lines_fault(program, tmp_path):
    """It was added to the tokenizer alone; the other lines are embedded as they are without it."""
    from tokenizers import Tokenizer as Plain

    added = Plain.from_str(program.meta["tokenizer"])
    known = program.meta["config"]["vocab_size"]
    added.add_tokens([f"<{at}>" for at in range(known - added.get_vocab_size() + 1)])
    last = added.id_to_token(known)
    changed = program.replace(tokenizer=added.to_str())
    texts = ["the bank", f"the {last} bank", "a river"]
    found = changed.embed(texts, skip_bad=True)
    assert np.array_equal(found[[0, 2]], program.embed(["the bank", "a river"])) and np.isnan(found[1]).all()
    words = rf"text 1, .*has the token '{last}' of tokenizer.json, id {known}, and the model has rows for {known} "
    with pytest.raises(InputError, match=words):
        changed.embed(texts)


@pytest.mark.parametrize("texts", [list, tuple, lambda: np.array([], str), lambda: iter(())])
def test_no_text_is_no_row(program, texts):
    found = program.embed(texts())
    assert not [*program.stream(texts())]
    assert found.shape == (0, program.embed("the bank").shape[1]) and found.dtype == np.float32


def test_texts_that_are_all_bad_are_refused(program):
    for texts, words in (([LONG, 3], "text 0, .*32 tokens"), (iter([3]), "text 0 is 3")):
        with pytest.raises(InputError, match=f"no text is left: {words}"):
            program.embed(texts, skip_bad=True)


# ---- progress


def test_progress_is_told_after_every_batch(program):
    told = []
    program.embed(["the river"] * 25, rows=40, progress=lambda done, of: told.append((done, of)))
    assert told == [(10, 25), (20, 25), (25, 25)]
    program.embed((text for text in ["the river"] * 3), progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (3, None)


@pytest.mark.parametrize("terminal, count, shown", [(True, 400, True), (True, 20, False), (False, 400, False)])
def test_a_terminal_is_shown_how_many_texts_are_done(monkeypatch, terminal, count, shown):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    assert len([*followed([np.zeros((count // 4, 2), np.float32)] * 4, count)]) == 4
    assert ("texts … 400/400" in screen.getvalue()) == shown == bool(screen.getvalue())
    assert not shown or screen.getvalue().endswith("\r\033[K"), "the line is gone at the end"


def test_how_many_texts_there_are(tmp_path):
    for content, number in ((b"a", 1), (b"a\n", 1), (b"a\n\nb", 3)):
        (tmp_path / "texts.txt").write_bytes(content)
        assert quantity(tmp_path / "texts.txt") == number == len([*decode_lines(io.BytesIO(content), "texts")])
    (tmp_path / "texts.txt").write_bytes(b"")
    assert quantity(tmp_path / "texts.txt") == 0
    assert quantity("abc") == 1 and quantity(["a", "b"]) == 2 and quantity(iter("ab")) is None
    assert quantity(tmp_path / "absent") is None


# ---- files of embeddings


@pytest.mark.parametrize("rows", [1, 9, 10**4])
def test_what_is_written_is_read(tmp_path, rows):
    blocks = [np.random.default_rng(i).normal(size=(size, 3)).astype(np.float32) for i, size in enumerate((rows, 2))]
    assert write_npy(iter(blocks), tmp_path / "out.npy") == (rows + 2, 3)
    assert np.array_equal(np.load(tmp_path / "out.npy", allow_pickle=False), np.concatenate(blocks))
    assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (rows + 2, 3)


def test_a_stream_that_fails_leaves_nothing(tmp_path):
    def failing():
        yield np.zeros((2, 3), np.float32)
        raise InputError("the third is not a string")

    with pytest.raises(InputError, match="third"):
        write_npy(failing(), tmp_path / "out.npy")
    assert not [*tmp_path.iterdir()]
    np.save(tmp_path / "out.npy", np.ones(3))
    with pytest.raises(InputError, match="third"):
        write_npy(failing(), tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.ones(3))


def test_only_an_array_is_replaced(tmp_path):
    block = np.zeros((2, 3), np.float32)
    (tmp_path / "diary.txt").write_text("dear")
    for name, words in (("diary.txt", r"no \.npy file"), (".", "it is a directory")):
        with pytest.raises(InputError, match=words):
            write_npy([block], tmp_path / name)
    assert (tmp_path / "diary.txt").read_text() == "dear"
    with pytest.raises(InputError, match="not writable: No such file"):
        write_npy([block], tmp_path / "absent" / "out.npy")
    for _ in range(2):
        assert write_npy([block], tmp_path / "out.npy") == (2, 3)
