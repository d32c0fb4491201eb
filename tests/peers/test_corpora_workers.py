"""Corpora over the workers of Dask, and of Ray where it is installed: the guide's recipe, equal to one run to the
bit."""

import re
from importlib.util import find_spec

import checkpoints
import encoders
import numpy as np
import pytest
from children import ROOT

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.inference.corpora.corpus_stage import embed_part, embed_shard
from opmatrix.inference.corpora.joined_shards import join_shards

distributed = pytest.importorskip("distributed", reason="needs peers: distributed")

WORDS = ["the bank", "a river", "dry", "", "runs dry ?", "the bank of a river", "rivers"]
LINES = [f"{WORDS[at % 7]} {WORDS[at // 7 % 7]}" for at in range(200)]
GUIDE = (ROOT / "docs/guide/embeddings.md").read_text("utf-8")
[RECIPE] = [code for code in re.findall(r"```python notest\n(.*?)```", GUIDE, re.DOTALL) if "dask" in code]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The files that the guide names."""
    home = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, home / "cache")
        pooled = checkpoints.pool(checkpoints.write(home / "made"), "mean", True)
        om.SentenceTransformer(str(pooled)).program.save(home / "minilm.opmatrix")
    (home / "lines.txt").write_text("\n".join(LINES))
    return home


@pytest.fixture(scope="module")
def wanted(place):
    return om.load(place / "minilm.opmatrix").embed(LINES)


def test_the_recipe_of_the_guide_over_processes(place, wanted, tmp_path, monkeypatch):
    for name in ("minilm.opmatrix", "lines.txt"):
        (tmp_path / name).symlink_to(place / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    exec(compile(RECIPE, "recipe", "exec"), {"__name__": "__main__"})
    np.testing.assert_array_equal(np.load("vectors.npy"), wanted)
    assert len([*(tmp_path / "parts").glob("*.npy")]) == 4


def test_parts_over_threads(place, wanted):
    """All in one process, which opens the program once."""
    parts = [LINES[first : first + 30] for first in range(0, len(LINES), 30)]
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=4, dashboard_address=None) as client:
        blocks = client.gather(client.map(embed_part, parts, directory=place / "minilm.opmatrix"))
    np.testing.assert_array_equal(np.concatenate(blocks), wanted)


def test_a_task_that_is_repeated_keeps_what_is_finished(place, tmp_path):
    words = [4, place / "minilm.opmatrix", place / "lines.txt", tmp_path]
    made = embed_shard(2, *words)
    before = made.stat().st_mtime_ns
    assert embed_shard(2, *words) == made and made.stat().st_mtime_ns == before
    other = tmp_path / "other.txt"
    other.write_text("another line")
    with pytest.raises(InputError, match="another input, lines"):
        embed_shard(2, 4, place / "minilm.opmatrix", other, tmp_path)


if find_spec("ray"):  # no wheel of it for every Python

    def test_shards_as_tasks_of_ray(place, wanted, tmp_path, monkeypatch):
        import ray

        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        work = place / "minilm.opmatrix", place / "lines.txt", tmp_path / "parts"
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            parts = ray.get([ray.remote(embed_shard).remote(number, 3, *work) for number in (1, 2, 3)])
        finally:
            ray.shutdown()
        join_shards(parts, tmp_path / "vectors.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), wanted)
