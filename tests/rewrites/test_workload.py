"""What a program is made cheapest for: which batch is timed, which rows calibrate and verify it."""

import json
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.embed import BATCH_ROWS, batches
from opmatrix.inference.text import Parts, Tokenizer, sentences
from rewrites.search.sparse_attention import LONG
from rewrites.workload import resolve
from rewrites.workload.resolve import open_arguments
from rewrites.workload.workload import CHOOSE, FIT, VERIFY, Workload

LINES = ["the bank of the river", "a river runs dry.", "the river?", "banks of rivers"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_model(checkpoints.write(tmp_path_factory.mktemp("model") / "model", max_position_embeddings=80))


def many(count):
    """Texts of 1 to 12 words."""
    return ["river " * length for length in np.random.default_rng(0).integers(1, 13, count)]


def tokens(batch):
    return [row.tolist() for row in np.split(batch.tokens, batch.starts[1:-1])]


def test_a_small_file_is_one_batch_in_its_order(model, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(LINES))
    found = Workload.of(model, file=str(file))
    assert tokens(found.timed) == tokens(model.tokenizer().encode(LINES))
    assert (
        found.file == str(file)
        and "4 texts" in found.name
        and str(file) in found.name
        and "batch 1 of" not in found.name
    )


@pytest.mark.parametrize("count", [900, 1400, 2000])
def test_of_a_large_file_a_batch_of_median_rows_is_timed(model, tmp_path, count):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(many(count)))
    found = Workload.of(model, file=str(file)).timed
    made = [*batches(model.tokenizer(), many(count))]
    assert len(made) > 1 and tokens(found) in [tokens(batch) for batch in made]
    rows = sorted(batch.rows for batch in made)
    assert found.rows == rows[len(rows) // 2] and 0.9 * BATCH_ROWS < found.rows <= BATCH_ROWS


def test_one_line_alone_is_a_workload(model, tmp_path):
    (tmp_path / "one.txt").write_text("the river")
    assert tokens(Workload.of(model, file=str(tmp_path / "one.txt")).timed) == tokens(
        model.tokenizer().encode("the river")
    )


def test_rows_are_the_workload_s_own_in_parts_that_share_no_line(model, tmp_path):
    for name, lines in (("texts", many(60)), ("few", many(5)), ("other", LINES)):
        (tmp_path / name).write_text("\n".join(lines))
    texts, few, other = (str(tmp_path / name) for name in ("texts", "few", "other"))
    for text, file, lines, like in (
        (None, None, sentences(), "the shipped sentences"),
        (other, texts, LINES, f"the lines of {other}"),
        (None, texts, many(60), f"the lines of {texts}"),
        (None, few, sentences(), f"the shipped sentences: {few} has fewer than 32 lines"),
    ):
        found = Workload.of(model, text, file=file)
        assert found.like == like
        for batch, part in zip((found.fit, found.choose, found.state), Parts.of(lines), strict=True):
            assert tokens(batch) == tokens(model.tokenizer().encode(part))
        assert tokens(found.probe) == tokens(found.choose)[:16] and tokens(found.verify) == tokens(found.state)


@pytest.mark.parametrize("positions", [3, 4, 9, 20, 80])
def test_lines_of_ours_are_cut_to_what_a_model_can_read(positions, tmp_path):
    """Nobody gave them, so nobody can shorten them; what is done to them is said. Lines of the user's are refused."""
    short = open_model(checkpoints.write(tmp_path / "model", max_position_embeddings=positions))
    whole = [len(short.tokenizer().tokenizer.encode(line).ids) for line in sentences()]
    found, longer = Workload.of(short), sum(length > positions for length in whole)
    for batch, part in zip((found.fit, found.choose, found.state), Parts.of(whole), strict=True):
        assert np.diff(batch.starts).tolist() == [min(length, positions) for length in part]
    assert found.like == "the shipped sentences" + f", {longer} of them cut to {positions} tokens" * bool(longer)
    (tmp_path / "own.txt").write_text("\n".join(["river " * positions] * 3))
    with pytest.raises(InputError, match=r"text 0, .* has positions for"):
        Workload.of(short, str(tmp_path / "own.txt"))


def test_lines_of_ours_without_tokens_are_left_out(model, monkeypatch):
    """As of a tokenizer that knows none of their characters; where none is left, somebody has to give lines."""
    row = Tokenizer.row

    def deaf(self, text, ids, why, reading):
        return row(self, text, ids if "the" in text.lower() else [], why, reading)

    monkeypatch.setattr(Tokenizer, "row", deaf)
    left = [line for line in sentences() if "the" in line.lower()]
    found = Workload.of(model)
    assert len(found.fit) + len(found.choose) + len(found.state) == len(left) < len(sentences())
    assert f"{len(sentences()) - len(left)} left out" in found.like
    monkeypatch.setattr(Tokenizer, "row", lambda self, text, ids, why, reading: row(self, text, [], why, reading))
    with pytest.raises(InputError, match=r"has no tokens.*--text FILE"):
        Workload.of(model)


def test_of_many_rows_the_oracle_reads_the_first_that_state(model, tmp_path):
    (tmp_path / "texts").write_text("\n".join(many(3000)))
    found = Workload.of(model, file=str(tmp_path / "texts"))
    assert (
        VERIFY / 2 < found.verify.rows <= VERIFY < found.state.rows
        and tokens(found.verify) == tokens(found.state)[: len(found.verify)]
    )
    assert len(found.state) == 500 and found.fit.rows <= FIT and found.choose.rows <= CHOOSE


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "No such file"),
        (b"", r"texts\.txt: no text"),
        (b"a\n\xff", "line 2, byte 0 is not UTF-8"),
        (b"the river\n" + b"dry " * 90, r"line 2, 'dry .*…', has 92 tokens"),
    ],
)
def test_files_that_are_bad(model, tmp_path, content, words):
    if content is not None:
        (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        Workload.of(model, file=str(tmp_path / "texts.txt"))


def test_tokens_and_texts_exclude_each_other(model, tmp_path):
    (tmp_path / "texts.txt").write_text("the river")
    with pytest.raises(InputError, match=r"--tokens 3 --workload .*: give one"):
        Workload.of(model, tokens=3, file=str(tmp_path / "texts.txt"))


def test_in_python_a_workload_is_a_file_or_a_batch(model, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    for given in (tmp_path / "texts.txt", str(tmp_path / "texts.txt")):
        assert tokens(open_arguments(str(model.directory), given, None, None)[1].timed) == tokens(
            model.tokenizer().encode(LINES)
        )
    batch = Batch([[1, 2, 3], [4]])
    assert open_arguments(str(model.directory), batch, None, None)[1].timed is batch
    with pytest.raises(InputError, match="no tokenizer"):
        open_arguments(I, "texts.txt", None, None)


@pytest.mark.deep
@pytest.mark.parametrize("lines, joined", [(4 * LONG, True), (LONG // 8, False)], ids=["enough text", "too little"])
def test_lines_are_joined_where_what_is_timed_is_long(lines, joined, tmp_path):
    """Consecutive ones, to texts as long, in parts that share none; where they are too few, errors are of lines."""
    long = open_model(checkpoints.write(tmp_path / "model", max_position_embeddings=2 * LONG))
    (tmp_path / "text.txt").write_text("\n".join(LINES[i % 3] for i in range(lines)))
    found = Workload.of(long, str(tmp_path / "text.txt"), tokens=LONG)
    assert (np.diff(found.state.starts) == LONG).all() == (np.diff(found.choose.starts) == LONG).all() == joined
    assert ("joined to texts" in found.like) == joined and np.diff(found.probe.starts).max() < 20
    assert found.few.rows <= max(LONG, VERIFY) and Workload.of(long, tokens=LONG - 1).like == "the shipped sentences"


# ---- where a model comes from, as a saved program says


@pytest.fixture
def named(tmp_path, monkeypatch):
    """What a program says of a checkpoint, by its directory and its name, in a working directory below `tmp_path`."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "cache"))
    return lambda directory, name: resolve.name_origin(SimpleNamespace(directory=directory, name=name, held=None))


@pytest.mark.parametrize(
    "place, name, said",
    [
        ("work/model", "model", "./model"),
        ("work/deep/model", "model", "./deep/model"),
        ("model", "model", "./model"),
        ("work/minilm", "minilm", "./minilm"),
        ("cache/minilm", "minilm", "minilm"),
        ("hub/snapshots/1f", "org/name@main", "org/name@main"),
        ("work", "work", "./."),
    ],
)
def test_a_program_names_no_directory_as_it_lies_on_one_machine(named, tmp_path, place, name, said):
    assert named(tmp_path / place, name) == said


def test_a_model_is_found_from_anywhere_by_the_report(named, tmp_path, monkeypatch):
    """Where the report says, or from the working directory on; what is gone, or no path, is not found, and nothing is
    fetched."""
    (tmp_path / "work" / "model").mkdir()
    (out := tmp_path / "out" / "front" / "0").mkdir(parents=True)
    program = SimpleNamespace(meta={"source": named(tmp_path / "work" / "model", "model")}, directory=None)
    assert resolve.find_origin(program) == "./model"
    report = resolve.name_places("model", None)
    assert report == {"source": str(tmp_path / "work" / "model")}
    monkeypatch.chdir(tmp_path)
    assert resolve.find_origin(program) is None
    for said in (report, {}, {"source": 3}, {"source": str(tmp_path / "absent")}, [], None):
        (tmp_path / "out" / "report.json").write_text(json.dumps(said))
        for program.directory in (tmp_path / "out", out):
            assert resolve.find_origin(program) == (report["source"] if said == report else None)
    for place in ("minilm", "org/name", None, 7):
        program.meta["source"] = place
        assert resolve.find_origin(program) is None
    assert not (tmp_path / "cache").exists()


def test_no_program_holds_a_path_of_this_machine(optimized):
    """The report does, beside it."""
    files = [*optimized.out.rglob("program.json")]
    assert len(files) == len(optimized.report["front"]) + 1
    for file in files:
        assert str(optimized.model.parent) not in file.read_text("utf-8")
        assert json.loads(file.read_text("utf-8"))["meta"]["source"] == "./model"
    assert json.loads((optimized.out / "report.json").read_text("utf-8"))["source"] == str(optimized.model)
