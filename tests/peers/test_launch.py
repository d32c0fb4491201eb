"""Ranks as processes over gloo: one launch for all. What comes out is one rank's, what is counted is what formulas say,
memory stays flat, and a rank that is killed is named."""
import os
import signal
from threading import Timer

import numpy as np
import pytest
from partitioned import LLAMA, differences, ids_of
from typer.testing import CliRunner

from opmatrix.algebra.oracles import dense
from opmatrix.batch import Batch
from opmatrix.launching.headings import RanksFailed
from opmatrix.launching.jobs import Job
from opmatrix.launching.launcher import Ranks
from opmatrix.launching.prepared import Prepared

torch = pytest.importorskip("torch", reason="needs peers: torch")

CONFIG = LLAMA | dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=4)
AXES = {"dp x tp": dict(dp=(2, "data"), tp=(2, "tensor")), "pp x tp": dict(pp=(2, "pipeline"), tp=(2, "sequence")),
        "ring": dict(cp=(4, "ring")), "ulysses": dict(cp=(4, "ulysses")), "ZeRO-3": dict(dp=(4, "zero3")),
        "keys": dict(cp=(4, "keys"))}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as found: yield found


@pytest.mark.parametrize("name", AXES)
def test_four_processes_are_one_rank(ranks, name):
    job = Job(CONFIG, AXES[name], ids_of(4, 11), steps=2, traced=True)
    ran, term = ranks.run(job), job.operator()
    ready = Prepared(job.plan(term))
    value = ready.assembled(ran.values)
    wanted = dense(term, Batch([*ids_of(4, 11)])).reshape(value.shape)
    assert np.abs(value - wanted).max() <= 1e-6 * np.abs(wanted).max()
    assert value.tobytes() == ready.virtual(job.feed).value.tobytes()
    assert [each for each in differences(ready.plan, ran.meters) if each[0] != "wire" or name != "keys"] == []
    for place, own in ran.moments.items():
        assert all(each.begin <= each.end for each in own)
        handed = sum(each.numbers for each in own)
        assert handed == sum(ran.meters[place].payload.values())


def test_a_hundred_steps_leave_memory_flat(ranks):
    ran = ranks.run(Job(CONFIG, AXES["dp x tp"], ids_of(4, 11), steps=100))
    assert len(ran.seconds) == 100 and ran.memory[-1] - ran.memory[9] < 4 * 2 ** 20


def test_a_rank_that_is_killed_is_named(ranks):
    """While it runs; all others end, too. It is the last test here, since no rank is left."""
    processes = [each.process for each in ranks.ranks]
    Timer(1.0, lambda: os.kill(processes[2].pid, signal.SIGKILL)).start()
    with pytest.raises(RanksFailed, match=r"^rank 2 died by SIGKILL$"):
        ranks.run(Job(CONFIG, AXES["dp x tp"], ids_of(4, 11), steps=100_000))
    assert all(each.returncode is not None for each in processes)


def test_the_command_prints_what_it_counted(tmp_path):
    import json

    from rewrites.cli.commands import app
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    words = ["launch", str(tmp_path / "tiny.json"), "--ranks", "2", "--tp", "2", "--tokens", "8", "--trace",
             str(tmp_path / "trace.json"), "--json", str(tmp_path / "found.json")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0 and "from one rank: " in ran.output and "differs" not in ran.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["holds"] and found["far"] < 1e-12
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {each["name"] for each in events} == {"thread_name", "compute", "all_reduce over tp"}
