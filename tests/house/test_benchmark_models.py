"""benchmarks/models.py: what it writes and refuses, that what it times is the model, and how it judges."""

import csv
import os
import subprocess
import sys
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest
import standin
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import engines, model_tables, peers, serve, workloads

import models

from formats.core.errors import InputError
from formats.disk.cache import cache_directory
from opmatrix.files.checkpoint import Checkpoint
from rewrites.metrics.evaluate import open_program

COLUMNS = ["engine", "version", "number_type", "workload", "median_s", "min_s", "first_s", "resident_mb", "error"]
PAIRS = [("the bank of the river", "a bank", 3.0), ("dry ?", "the river runs dry.", 1.5), ("a river", "rivers", 4.0)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A small BERT, a program for each workload, pairs, and a cache of its own that has the user's kernels."""
    place = tmp_path_factory.mktemp("benchmark")
    checkpoints.write(
        place / "small",
        num_hidden_layers=1,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        max_position_embeddings=160,
    )
    with (place / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(PAIRS)
    (kernels := cache_directory() / "kernels").mkdir(exist_ok=True)
    (place / "cache").mkdir()
    (place / "cache" / "kernels").symlink_to(kernels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewrites.metrics.evaluate.calibrated", lambda progress, *batches: standin.machine())
        found = open_program(str(place / "small"))  # as imported: what laws do to it others test
    for workload in ("2x6", "file"):
        found.save(place / "programs" / f"small-float32-{workload}")
    return place


def run(place, *arguments):
    """The benchmark as a command, on one processor."""
    shared = [
        "--models",
        place / "small",
        "--types",
        "float32",
        "--threads",
        "1",
        "--rounds",
        "2",
        "--pairs",
        place / "pairs.csv",
        "--programs",
        place / "programs",
        "--csv",
        place / "out.csv",
    ]
    return subprocess.run(
        [sys.executable, models.__file__, *map(str, [*shared, *arguments])],
        text=True,
        capture_output=True,
        env=os.environ | {"OPMATRIX_CACHE": str(place / "cache")},
    )


def written(place):
    with (place / "out.csv").open(newline="") as file:
        return [*csv.DictReader(file)]


@pytest.mark.deep
def test_opmatrix_alone(place):
    done = run(place, "--workloads", "2x6,file,padded", "--engines", "opmatrix")
    assert not done.returncode, done.stderr
    rows = written(place)
    assert list(rows[0]) == COLUMNS and [row["workload"] for row in rows] == ["small 2x6", "small file"]
    for row in rows:
        assert float(row["error"]) < 1e-5 and 0 < float(row["min_s"]) <= float(row["median_s"]) < float(row["first_s"])
        assert 20 < float(row["resident_mb"]) < 2000
    assert (
        "WITHOUT torch, torch.compile, onnxruntime, openvino: no figure counts" in done.stdout
        and "opmatrix (" in done.stdout
    )


@pytest.mark.deep
def test_a_peer_runs_the_same_model(place):
    """Also where it is fed padded batches, in another order."""
    for package in ("torch", "transformers", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"needs peers: {package}")
    done = run(place, "--workloads", "file,sorted", "--engines", "onnxruntime", "--no-spearman")
    assert not done.returncode, done.stderr
    (found,) = written(place)
    assert (found["engine"], found["workload"]) == ("onnxruntime", "small sorted") and 0 < float(found["error"]) < 1e-5


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--types", "float8"], "--types float8: float32, bf16, int8"),
        (["--engines", "numpy"], "--engines numpy: opmatrix, torch"),
        (["--workloads", "1x"], "--workloads 1x: SENTENCESxTOKENS (of 1 to 160 tokens) or one of file"),
        (["--workloads", "file", "--pairs", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--rounds", "0"], "--rounds 0: 1 to"),
        (["--models", "nowhere"], "nowhere: neither"),
    ],
)
def test_bad_options_are_refused(place, arguments, said, monkeypatch):
    monkeypatch.setattr(models, "pinned", lambda threads: None)
    monkeypatch.setattr(sys, "argv", ["models.py", "--models", str(place / "small"), *arguments])
    with pytest.raises(InputError) as error:
        models.measure_models()
    assert str(error.value).startswith(said)


def test_what_is_refused_is_one_line(place):
    done = run(place, "--types", "float8")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "models.py: --types float8: float32, bf16, int8\n")


def test_an_absent_package_is_said(monkeypatch):
    monkeypatch.setattr(peers.ENGINES["openvino"], "packages", ("openvino-of-no-index",), raising=False)
    with pytest.raises(peers.Absent, match=r"openvino-of-no-index is not installed: pip install '\.\[peers\]'"):
        peers.made(peers.Job("openvino", "float32", "."))
    monkeypatch.setattr(peers, "version_of", lambda *engine: "1.0")
    with pytest.raises(peers.Absent, match="no kernels for bf16"):
        peers.made(peers.Job("onnxruntime", "bf16", "."))


def test_workloads_are_sentences_of_real_tokens(place):
    checkpoint = Checkpoint.open(place / "small")
    cut = workloads.made("3x7", checkpoint, None, 0)
    assert (
        [len(row) for row in cut.sentences] == [7] * 3
        and cut.shape == [3, 7]
        and len({tuple(row) for row in cut.sentences}) == 3
    )
    assert all((row[0], row[-1]) == (2, 3) for row in cut.sentences)
    found = workloads.made("sorted", checkpoint, place / "pairs.csv", 5)
    lengths = [len(found.sentences[i]) for i in found.batches[0]]
    assert lengths == sorted(lengths) and len(lengths) == 5 and found.ragged and found.shape is None


def test_fresh_batches_are_all_different(place):
    """In sentences and longest one, and in tokens, so that nothing an engine keeps for a size serves another batch."""
    found = workloads.made("fresh", Checkpoint.open(place / "small"), None, 0, rounds=6)
    lengths = [[len(found.sentences[i]) for i in batch] for batch in found.batches]
    assert len(lengths) == 1 + 6 * found.fresh and found.shape is None and min(map(min, lengths)) >= 3
    assert len({(len(each), max(each)) for each in lengths}) == len({sum(each) for each in lengths}) == len(lengths)
    with pytest.raises(InputError, match="ask for fewer --rounds"):
        workloads.made("fresh", Checkpoint.open(place / "small"), None, 0, 9000)


def test_each_fresh_batch_runs_once():
    calls = []
    work = SimpleNamespace(ready=lambda rows: rows, run=calls.append)
    job = SimpleNamespace(engine="any", sentences=[[i] for i in range(5)], batches=[[i] for i in range(5)], fresh=2)
    server = serve.Server(job, SimpleNamespace(ENGINES={"any": SimpleNamespace(serve=lambda job: work)}))
    assert len(server.turn(1.0)) == len(server.turn(1.0)) == 1 and calls == [[[i]] for i in range(5)]
    with pytest.raises(IndexError, match="no batch is left"):
        server.turn(1.0)


def test_pieces_of_a_batch_come_back_in_order():
    """Pieces are begun before any is waited for, each padded to its own longest sentence, never an empty one."""
    begun = []

    def begin(i, ids, mask):
        begun.append((i, ids.tolist(), mask.tolist()))
        return lambda: (len(begun), 2.0 * ids[..., None])[1]

    work = engines.Streams(begin, True, 4)
    batch = work.ready([[5], [6, 7], [8, 9, 10]])
    out = work.run(batch)
    assert begun == [(0, [[5]], [[1]]), (1, [[6, 7]], [[1, 1]]), (2, [[8, 9, 10]], [[1, 1, 1]])]
    assert [row.ravel().tolist() for row in work.rows(out, batch)] == [[10], [12, 14], [16, 18, 20]]
    two = engines.Streams(begin, False, 2)
    ready = [piece[:2] for piece in two.ready([[5], [6], [7, 8]])]
    assert [(ids.tolist(), mask) for ids, mask in ready] == [([[5]], None), ([[6, 0], [7, 8]], None)]


@pytest.mark.parametrize(
    "number, count, tokens, tried",
    [
        ("float32", 1, 16, [("f32", 1, 1)]),
        ("bf16", 2, 16, [("bf16", 1, 1), ("bf16", 2, 2)]),
        ("float32", 3, 16, [("f32", 1, 1)]),
        ("int8", 4, 16, [(p, s, n) for p in ("f32", "bf16") for s, n in ((1, 1), (2, 2), (2, 4))]),
    ],
)
def test_streams_are_tried_where_a_batch_can_be_cut(number, count, tokens, tried):
    job = peers.Job("openvino", number, ".", batches=[[*range(count)]], shape=[count, tokens], threads=2)
    assert engines.OpenVino().settings(job) == tried


def test_the_fastest_of_turns_is_kept(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    works = {
        name: SimpleNamespace(ready=lambda rows: rows, run=lambda rows, cost=cost: [next(clock) for _ in range(cost)])
        for name, cost in (("slow", 3), ("fast", 1), ("slower", 5))
    }
    assert engines.fastest(SimpleNamespace(batches=[[0], [0, 0]], sentences=[[1, 2]]), works, 3) == "fast"


def test_spearman_is_of_ranks():
    vectors = np.array([[1, 0], [1, 0.1], [1, 0], [0, 1], [1, 0], [1, 1]], float)
    assert workloads.spearman(vectors, [5.0, 1.0, 3.0]) == pytest.approx(100)
    assert workloads.spearman(vectors, [1.0, 5.0, 3.0]) == pytest.approx(-100)


def row(engine, rounds, number="float32", workload="1x16", spearman=86.7):
    return models.Row("minilm", engine, "1", number, workload, 1.0, rounds, min(rounds), 100.0, 0.0, spearman)


def test_our_program_counts_only_with_equal_quality(capsys):
    rows = [
        row("opmatrix", [1.0]),
        row("openvino", [2.0]),
        row("opmatrix", [0.1], "int8", spearman=86.3),
        row("openvino", [2.0], "int8"),
    ]
    given = SimpleNamespace(types=["int8"], workloads=["1x16"], threads=1, rounds=1)
    model_tables.show("minilm", rows, given)
    said = capsys.readouterr().out
    assert "opmatrix (86.30, below: not counted)" in said and "fastest peer" not in said


@pytest.mark.parametrize("spearman", (None, 86.7))
def test_a_peer_that_computes_another_model_does_not_count(capsys, spearman):
    """An exported graph that sees other rows is no peer, however fast."""
    rows = [
        row("opmatrix", [1.0], spearman=spearman),
        row("onnxruntime", [0.5], spearman=spearman),
        row("openvino", [2.0], spearman=spearman),
    ]
    for each, error in zip(rows, (7e-7, 0.5, 1e-6), strict=True):
        each.error = error
    given = SimpleNamespace(types=["float32"], workloads=["1x16"], threads=1, rounds=1)
    model_tables.show("minilm", rows, given)
    said = capsys.readouterr().out
    assert "fastest peer: 1x16 0.500 (openvino)" in said
    assert ("another model: not counted" if spearman is None else "below: not counted") in said
    assert [figure.value for figure in models.models_figures(rows[:2])] == [1e3, None]


def test_what_counts_is_the_fastest_peer_of_equal_quality(capsys):
    rows = [
        row("opmatrix", [1.0, 9.0]),
        row("openvino", [2.0, 18.0]),
        row("torch", [4.0, 40.0]),
        row("opmatrix", [1.0, 1.0], "int8"),
        row("openvino", [0.5, 0.5], "int8", spearman=86.3),
        row("torch", [4.0, 4.0], "int8"),
        row("openvino", [2.0, 2.0], "bf16"),
    ]
    given = SimpleNamespace(types=["float32", "bf16", "int8"], workloads=["1x16"], threads=1, rounds=2)
    model_tables.show("minilm", rows, given)
    said = capsys.readouterr().out
    ratios = "seconds / fastest peer: 1x16 0.500 (openvino)   geometric mean 0.500"
    assert ratios in said, "a busy round changes no ratio"
    assert "seconds / fastest peer: 1x16 0.250 (torch)" in said and "openvino (86.30, below: not counted)" in said
    assert (
        "seconds / openvino bf16: 1x16 0.500 (openvino)" in said
        and "WITHOUT torch.compile, onnxruntime: no figure" in said
    )
    assert rows[0].csv() == ["opmatrix", "1", "float32", "1x16", 5.0, 1.0, 1.0, 100.0, 0.0]
