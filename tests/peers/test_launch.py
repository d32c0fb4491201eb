"""Ranks as processes over gloo: one launch for all. What comes out is one rank's, what is counted is what formulas say,
memory stays flat, and a rank that is killed is named."""

import os
import signal
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest
from partitioned import LLAMA, differences, ids_of
from typer.testing import CliRunner

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.parallel.launch.counters import train_tallies
from opmatrix.parallel.launch.headings import RanksFailed
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Ranks
from opmatrix.parallel.launch.prepared import Prepared
from opmatrix.parallel.launch.train_runs import made_tokens, mean_losses, train_plan
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.train.decode_ranks import DecodePlan, decode_virtual
from opmatrix.parallel.train.train_ranks import train_virtual

torch = pytest.importorskip("torch", reason="needs peers: torch")

CONFIG = LLAMA | dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=4)
MIXTRAL = CONFIG | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=1)
AXES = {
    "dp x tp": dict(dp=(2, "data"), tp=(2, "tensor")),
    "pp x tp": dict(pp=(2, "pipeline"), tp=(2, "sequence")),
    "ring": dict(cp=(4, "ring")),
    "ulysses": dict(cp=(4, "ulysses")),
    "ZeRO-3": dict(dp=(4, "zero3")),
    "keys": dict(cp=(4, "keys")),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as found:
        yield found


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


TRAINED = {
    "dp x tp": dict(dp=(2, "data"), tp=(2, "tensor")),
    "pp x tp": dict(pp=(2, "pipeline"), tp=(2, "sequence")),
    "ZeRO-3": dict(dp=(4, "zero3")),
    "ring": dict(cp=(4, "ring")),
    "ulysses": dict(cp=(4, "ulysses")),
}


@pytest.fixture(scope="module")
def alone():
    """The losses of three steps of one rank."""
    job = Job(CONFIG, {}, ids_of(4, 9).tolist(), 3, train=dict(rate=1e-2))
    return train_virtual(train_plan(job), job.feed, 3).losses


@pytest.mark.parametrize("name", TRAINED)
def test_three_steps_of_adam_are_one_ranks(ranks, alone, name):
    """A stage has micro-batches in the order of 1F1B."""
    often = dict(rate=1e-2, micro_batches=2 if name == "pp x tp" else 1)
    job = Job(CONFIG, TRAINED[name], ids_of(4, 9).tolist(), 3, train=often)
    ran, train = ranks.run(job), train_plan(job)
    np.testing.assert_allclose(mean_losses(train, ran.values), alone, rtol=1e-6)
    assert [each for each in train_tallies(train, ran.meters) if not each.holds] == []


def test_stages_of_several_chunks_drop_as_one_rank(ranks):
    """Interleaved chunks, which the last stage hands on to the first; what layers drop is drawn alike. The most that a
    rank holds at a time is the formula's."""
    job = Job(
        CONFIG | dict(num_hidden_layers=4),
        dict(pp=(2, "pipeline"), dp=(2, "zero1")),
        ids_of(8, 9).tolist(),
        3,
        train=dict(rate=1e-2, micro_batches=2, schedule="interleaved:2", dropout=0.1),
    )
    one = replace(job, axes={}, train=dict(rate=1e-2, dropout=0.1))
    ran, train = ranks.run(job), train_plan(job)
    np.testing.assert_allclose(
        mean_losses(train, ran.values), train_virtual(train_plan(one), one.feed, 3).losses, rtol=1e-6
    )
    assert [each for each in train_tallies(train, ran.meters) if not each.holds] == []


@pytest.mark.parametrize("node", [0, 2])
def test_experts_on_four_ranks_are_one_rank(ranks, node):
    """All-to-all, of as many rows as gates say; or a row once to each node of two ranks."""
    job = Job(MIXTRAL, dict(dp=(4, "data"), ep=(4, "experts")), ids_of(4, 11), steps=2, node=node)
    ran, term = ranks.run(job), job.operator()
    value = Prepared(job.plan(term)).assembled(ran.values)
    wanted = dense(term, Batch([*ids_of(4, 11)])).reshape(value.shape)
    assert np.abs(value - wanted).max() <= 1e-12 * np.abs(wanted).max()


@pytest.mark.parametrize("dp, ep", [("data", 4), ("data", 2), ("zero1", 2)])
def test_experts_learn_on_four_ranks(ranks, dp, ep):
    """Rows of cotangents go where forward's went; how many is what gates say, so no formula says it before. Where there
    are two copies of each expert they learn the same."""
    often = dict(rate=1e-2)
    one, four = (
        Job(MIXTRAL, axes, ids_of(4, 9).tolist(), 3, train=often) for axes in ({}, dict(dp=(4, dp), ep=(ep, "experts")))
    )
    losses = mean_losses(train_plan(four), ranks.run(four).values)
    np.testing.assert_allclose(losses, train_virtual(train_plan(one), one.feed, 3).losses, rtol=1e-6)


def test_four_processes_decode_what_one_rank_does(ranks):
    """A prompt, then five rows, over caches on stages and heads."""
    job = Job(CONFIG, dict(pp=(2, "pipeline"), tp=(2, "tensor-vocabulary")), ids_of(4, 5).tolist(), 6, decode=True)
    alone = DecodePlan(job.operator(), Mesh.of(), 4, 5)
    assert (made_tokens(ranks.run(job).values) == decode_virtual(alone, ids_of(4, 5), 6)).all()


def test_a_loss_that_is_no_number_is_named():
    with Ranks(1) as one, pytest.raises(RanksFailed, match=r"^step 2: rank 0: the .* is not finite: a smaller rate"):
        one.run(Job(CONFIG, {}, ids_of(2, 5).tolist(), 3, train=dict(rate=1e200)))


def test_a_hundred_steps_leave_memory_flat(ranks):
    ran = ranks.run(Job(CONFIG, AXES["dp x tp"], ids_of(4, 11), steps=100))
    assert len(ran.seconds) == 100 and ran.memory[-1] - ran.memory[9] < 4 * 2**20


def test_steps_of_training_leave_memory_flat(ranks):
    ran = ranks.run(Job(CONFIG | dict(num_hidden_layers=1), TRAINED["ZeRO-3"], ids_of(4, 6).tolist(), 40, train={}))
    assert ran.memory[-1] - ran.memory[9] < 4 * 2**20


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
    words = [
        "launch",
        str(tmp_path / "tiny.json"),
        "--ranks",
        "2",
        "--tp",
        "2",
        "--tokens",
        "8",
        "--trace",
        str(tmp_path / "trace.json"),
        "--json",
        str(tmp_path / "found.json"),
    ]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0 and "from one rank: " in ran.output and "differs" not in ran.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["holds"] and found["far"] < 1e-12
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {each["name"] for each in events} == {"thread_name", "compute", "all_reduce over tp"}
