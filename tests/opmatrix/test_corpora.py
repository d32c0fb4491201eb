"""Runs over corpora: resumed, in shards, joined, equal to the bit to the uninterrupted run; others' rows refused."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import checkpoints
import encoders
import numpy as np
import pytest
from children import ROOT

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.inference import embed
from opmatrix.inference.corpora import embedded_corpus, unfinished_rows
from opmatrix.inference.corpora.corpus_runs import CorpusShard, digest_lines
from opmatrix.inference.corpora.embedded_corpus import embed_corpus, is_resumable, shown_time
from opmatrix.inference.corpora.joined_shards import join_shards
from opmatrix.inference.corpora.unfinished_rows import unfinished_place

WORDS = ["the bank", "a river", "dry", "", "runs dry ?", "the bank of a river", "rivers"]
LINES = [f"{WORDS[at % 7]} {WORDS[at // 7 % 7]}" for at in range(300)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpora")
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, place / "cache")
        pooled = checkpoints.pool(checkpoints.write(place / "made"), "mean", True)
        om.SentenceTransformer(str(pooled)).program.save(place / "program")
    return om.load(place / "program")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    return tmp_path / "lines.txt"


@pytest.fixture(scope="module")
def wanted(program):
    return program.embed(LINES, rows=50)


class Interrupted(BaseException):
    """The end of a run that nobody catches."""


@pytest.fixture
def interrupt(monkeypatch):
    """Let runs end after so many batches; None lets them go on."""
    whole = embed.embed_batches

    def after(batches):
        def ending(*given):
            for at, block in enumerate(whole(*given)):
                if at == batches:
                    raise Interrupted
                yield block

        monkeypatch.setattr(embedded_corpus, "embed_batches", ending)

    return after


def run(program, file, out="out.npy", shard=None, rows=50, **options):
    """A run over a file, or a shard of it; its outcome."""
    reading = embed.reading(file, **options)
    part = CorpusShard() if shard is None else CorpusShard.parsed(shard)
    return embed_corpus(program, file, file.parent / out, reading, part, rows)


def left(file):
    """What lies beside a file."""
    return {path.name for path in file.parent.iterdir()} - {file.name}


# ---- bits


def test_an_uninterrupted_run_is_what_embed_gives(program, file, wanted):
    assert run(program, file).done == len(LINES)
    np.testing.assert_array_equal(np.load(file.parent / "out.npy"), wanted)
    assert left(file) == {"out.npy"}


def test_a_run_that_was_interrupted_goes_on(program, file, wanted, interrupt):
    """At other places, and in batches of another size."""
    for batches, rows in ((2, 50), (0, 20), (5, 20), (1, 100)):
        interrupt(batches)
        with pytest.raises(Interrupted):
            run(program, file, rows=rows)
        assert left(file) == {"out.npy.unfinished"}
    interrupt(None)
    run(program, file)
    np.testing.assert_array_equal(np.load(file.parent / "out.npy"), wanted)
    assert left(file) == {"out.npy"}


def test_rows_after_the_last_checkpoint_are_computed_again(program, file, wanted, interrupt):
    interrupt(3)
    with pytest.raises(Interrupted):
        run(program, file)
    with open(file.parent / "out.npy.unfinished" / "rows.npy", "ab") as rows:
        rows.write(b"half a row")
    interrupt(None)
    run(program, file)
    np.testing.assert_array_equal(np.load(file.parent / "out.npy"), wanted)


@pytest.mark.parametrize("of", [1, 4, 7])
def test_shards_are_joined(program, file, wanted, interrupt, of):
    names = [f"part{number}.npy" for number in range(1, of + 1)]
    interrupt(1)
    with pytest.raises(Interrupted):
        run(program, file, names[-1], f"{of}/{of}", rows=20)
    interrupt(None)
    for number, name in enumerate(names, 1):
        run(program, file, name, f"{number}/{of}")
    if of == 1:
        return np.testing.assert_array_equal(np.load(file.parent / names[0]), wanted)
    shape = join_shards([file.parent / name for name in names[::-1]], file.parent / "out.npy")
    np.testing.assert_array_equal(np.load(file.parent / "out.npy"), wanted)
    assert shape == wanted.shape


def test_more_shards_than_lines(program, tmp_path):
    (tmp_path / "lines.txt").write_text("dry\nthe bank\n")
    names = [tmp_path / f"part{number}.npy" for number in range(1, 6)]
    for number, name in enumerate(names, 1):
        run(program, tmp_path / "lines.txt", name.name, f"{number}/5")
    assert join_shards(names, tmp_path / "out.npy")[0] == 2
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), program.embed(["dry", "the bank"]))


KILLED = """
import sys
from pathlib import Path
import opmatrix as om
from opmatrix.inference import embed
from opmatrix.inference.corpora import unfinished_rows
from opmatrix.inference.corpora.embedded_corpus import embed_corpus
unfinished_rows.CHECKPOINT_SECONDS = 0.0
program, file, out = sys.argv[1:]
embed_corpus(om.load(program), Path(file), Path(out), embed.reading(file), rows=400)
"""


def test_a_process_that_is_killed_twice_goes_on(program, file, tmp_path_factory):
    """By SIGKILL, while it writes."""
    many = LINES * 100
    file.write_text("\n".join(many))
    place, out = next(tmp_path_factory.getbasetemp().glob("corpora*/program")), file.parent / "out.npy"
    line = [sys.executable, "-c", KILLED, str(place), str(file), str(out)]
    environment, lines = os.environ | {"PYTHONPATH": str(ROOT)}, 0
    for _ in range(2):
        child, end = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL), time.monotonic() + 300
        while child.poll() is None and time.monotonic() < end:
            progress = unfinished_place(out) / "progress.json"
            if progress.exists() and json.loads(progress.read_text())["done"] > lines:
                child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL and not out.exists()
        before, lines = lines, json.loads(progress.read_text())["done"]
        assert lines > before
    assert lines < len(many)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), np.tile(program.embed(LINES), (100, 1)))
    assert left(file) == {"out.npy"}


# ---- lines that cannot be read


def test_a_bad_line_stops_a_run_that_goes_on_without_it(program, file, wanted):
    many = LINES * 5
    file.write_text("\n".join([*many[:1200], "dry " * 40, *many[1200:]]))
    for _ in range(2):
        with pytest.raises(InputError, match=r"lines.txt: line 1201"):
            run(program, file, truncate=False)
    assert left(file) == {"out.npy.unfinished"}
    done = run(program, file, truncate=False, skip_bad=True)
    assert (done.done, done.skipped) == (1501, 1) and "line 1201" in done.fault
    rows = np.load(file.parent / "out.npy")
    assert np.isnan(rows[1200]).all()
    np.testing.assert_array_equal(np.delete(rows, 1200, 0), np.tile(wanted, (5, 1)))


def test_lines_that_were_left_out_need_the_same_option(program, file, interrupt):
    file.write_text("\n".join(["dry " * 40, *LINES]))
    interrupt(2)
    with pytest.raises(Interrupted):
        run(program, file, truncate=False, skip_bad=True)
    interrupt(None)
    with pytest.raises(InputError, match=r"line 1.*--skip-bad"):
        run(program, file, truncate=False)
    assert run(program, file, truncate=False, skip_bad=True).skipped == 1


def test_a_first_line_that_is_bad_leaves_nothing(program, file):
    file.write_text("dry " * 40)
    with pytest.raises(InputError, match="line 1"):
        run(program, file, truncate=False)
    with pytest.raises(InputError, match="no text is left"):
        run(program, file, truncate=False, skip_bad=True)
    with pytest.raises(InputError, match="rows 0"):
        run(program, file, rows=0)
    with pytest.raises(InputError, match="No such file"):
        run(program, file.with_name("absent.txt"))
    assert left(file) == set()


def test_counts_are_those_of_the_whole_run(program, file, interrupt):
    """Though texts are read ahead of their rows."""
    file.write_text(
        "\n".join(["dry " * 40, "the \udcff", *(f"{text} " * 9 for text in LINES)]), errors="surrogateescape"
    )
    whole = run(program, file, "whole.npy", skip_bad=True)
    interrupt(3)
    with pytest.raises(Interrupted):
        run(program, file, skip_bad=True)
    interrupt(None)
    assert run(program, file, skip_bad=True) == whole
    assert 200 < whole.truncated < len(LINES) and whole.skipped == 1 and "line 2, byte" in whole.fault


# ---- rows of others


def test_an_output_that_exists_is_refused(program, file):
    run(program, file)
    before = (file.parent / "out.npy").read_bytes()
    with pytest.raises(InputError, match=r"out.npy: it exists"):
        run(program, file)
    assert (file.parent / "out.npy").read_bytes() == before and left(file) == {"out.npy"}


@pytest.fixture
def stopped(program, file, interrupt):
    """The directory of a run that was interrupted."""
    interrupt(3)
    with pytest.raises(Interrupted):
        run(program, file)
    interrupt(None)
    return file.parent / "out.npy.unfinished"


CHANGES = {
    "input": lambda place: (place.parent / "lines.txt").write_text("\n".join([*LINES[:-1], "x"])),
    "are missing": lambda place: os.truncate(place / "rows.npy", 500),
    "not the ones": lambda place: spoil(place / "rows.npy", 300),
    "not JSON": lambda place: (place / "progress.json").write_text("{"),
    "progress.json: it was not written": lambda place: (place / "progress.json").write_text('{"done": 1}'),
    "done 999 of 300": lambda place: change(place / "progress.json", done=999),
    "lines True": lambda place: change(place / "run.json", lines=True),
    "program": lambda place: change(place / "run.json", program="another"),
    "another prompt": lambda place: change(place / "run.json", prompt="query: "),
    "shard": lambda place: change(place / "run.json", shard=[1, 2]),
    "give a number of a part": lambda place: change(place / "run.json", shard=[3, 2]),
    "holds progress.json": lambda place: (place / "run.json").unlink(),
    "it holds no object": lambda place: (place / "run.json").write_text("[]"),
}


def spoil(file, at):
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("words", CHANGES)
def test_another_run_or_a_damaged_one_is_refused(program, file, stopped, words):
    CHANGES[words](stopped)
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(InputError) as refused:
        run(program, file)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    assert not (file.parent / "out.npy").exists()


@pytest.mark.parametrize("files", [(), ("rows.npy",), ("rows.npy", "run.json")])
def test_a_run_that_was_killed_as_it_began_goes_on(program, file, stopped, wanted, files):
    for path in stopped.iterdir():
        if path.name not in files:
            path.unlink()
    run(program, file)
    np.testing.assert_array_equal(np.load(file.parent / "out.npy"), wanted)


def test_two_processes_do_not_write_one_output(program, file, interrupt, monkeypatch):
    whole = embed.embed_batches

    def twice(*given):
        monkeypatch.setattr(embedded_corpus, "embed_batches", whole)
        with pytest.raises(InputError, match="another process"):
            run(program, file)
        yield from whole(*given)

    monkeypatch.setattr(embedded_corpus, "embed_batches", twice)
    assert run(program, file).done == len(LINES)


def test_a_file_that_is_changed_while_it_is_read(program, file, monkeypatch):
    whole = embed.embed_batches

    def appending(*given):
        yield from whole(*given)
        with open(file, "a") as out:
            out.write("more")

    monkeypatch.setattr(embedded_corpus, "embed_batches", appending)
    with pytest.raises(InputError, match="was changed"):
        run(program, file)
    assert not (file.parent / "out.npy").exists()


@pytest.fixture
def shards(program, file):
    """Three shards."""
    names = [file.parent / f"part{number}.npy" for number in (1, 2, 3)]
    for number, name in enumerate(names, 1):
        run(program, file, name.name, f"{number}/3")
    return names


def sidecar(file):
    return Path(f"{file}.json")


HOSTILE = {
    "shard 2/3 is named 0 times": lambda shards: shards.pop(1),
    "shard 1/3 is named 2 times": lambda shards: shards.append(shards[0]),
    "it has": lambda shards: os.truncate(shards[0], 1000),
    "not the ones": lambda shards: spoil(shards[1], 700),
    "there is no part3.npy.json": lambda shards: sidecar(shards[2]).unlink(),
    "another input": lambda shards: change(sidecar(shards[2]), input="other"),
    "another program": lambda shards: change(sidecar(shards[1]), program="other"),
    "one of 4 shards": lambda shards: change(sidecar(shards[2]), shard=[4, 4]),
    "crc, skipped": lambda shards: change(sidecar(shards[0]), crc="1"),
    "it is no .npy file": lambda shards: shards[0].write_text("x" * 1000),
    "No such file": lambda shards: shards[0].unlink(),
    "not JSON": lambda shards: sidecar(shards[0]).write_text("{"),
    "out.npy: it exists": lambda shards: np.save(shards[0].with_name("out.npy"), np.ones(3)),
}


@pytest.mark.parametrize("words", HOSTILE)
def test_shards_that_do_not_belong_together_are_refused(shards, words):
    HOSTILE[words](shards)
    out = shards[-1].with_name("out.npy")
    before = out.read_bytes() if out.exists() else None
    with pytest.raises(InputError) as refused:
        join_shards(shards, out)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert (out.read_bytes() if out.exists() else None) == before
    assert not [path for path in out.parent.iterdir() if path.name.endswith(".part")]


def test_shards_of_another_machine_are_joined(shards, wanted):
    change(sidecar(shards[1]), kernels="another processor")
    join_shards(shards, shards[0].with_name("out.npy"))
    np.testing.assert_array_equal(np.load(shards[0].with_name("out.npy")), wanted)


def test_a_shard_that_is_not_finished_is_named(shards):
    shards[0].unlink()
    (shards[0].parent / "part1.npy.unfinished").mkdir()
    with pytest.raises(InputError, match="not finished"):
        join_shards(shards, shards[0].with_name("out.npy"))


# ---- words


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/²", "1/100001", "1/9999999999"]
)
def test_a_shard_that_is_none(text):
    with pytest.raises(InputError, match="--shard"):
        CorpusShard.parsed(text)


@pytest.mark.parametrize("total", [0, 1, 2, 99, 100, 1_000_003])
@pytest.mark.parametrize("of", [1, 2, 7, 100])
def test_shards_have_every_line_once(total, of):
    ranges = [CorpusShard(number, of).lines(total) for number in range(1, of + 1)]
    assert ranges[0].start == 0 and ranges[-1].stop == total
    assert all(before.stop == after.start for before, after in pairwise(ranges))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("raw, lines", [(b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2), (b"a\r\nb\r\n", 2)])
def test_lines_are_those_that_are_read(tmp_path, raw, lines):
    (tmp_path / "lines").write_bytes(raw)
    assert digest_lines(tmp_path / "lines")[1] == lines == len([*embed.read_lines(tmp_path / "lines")])


def test_a_run_is_resumable_where_it_is_asked_for_or_long(file, monkeypatch):
    assert not is_resumable(str(file), None, None) and is_resumable(str(file), None, True)
    assert is_resumable(str(file), "1/2", None) and not is_resumable("-", None, None)
    monkeypatch.setattr(embedded_corpus, "LARGE_LINES", len(LINES))
    assert is_resumable(str(file), None, None) and not is_resumable(str(file), None, False)
    for given in (("-", "1/2", None), ("-", None, True), (str(file), "1/2", False)):
        with pytest.raises(InputError, match="resume"):
            is_resumable(*given)


def test_the_time_left_is_told(program, file, capfd, monkeypatch):
    monkeypatch.setattr("opmatrix.display.progress.SELDOM", 0.0)
    run(program, file)
    assert "300/300, 0 s left" in capfd.readouterr().err
    assert [shown_time(seconds) for seconds in (0.4, 60, 3_661)] == ["0 s", "1 min 0 s", "1 h 1 min"]


def test_memory_holds_a_batch(program, file, monkeypatch):
    """No block is as long as the corpus, and none is held."""
    longest = []
    whole = unfinished_rows.UnfinishedRows.append

    def watched(self, block, *counts):
        longest.append(len(block))
        whole(self, block, *counts)

    monkeypatch.setattr(unfinished_rows.UnfinishedRows, "append", watched)
    run(program, file, rows=20)
    assert max(longest) <= 20 and sum(longest) == len(LINES)
