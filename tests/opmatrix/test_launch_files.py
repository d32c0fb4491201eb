"""What a plan and a run are for others: placements of DTensor, a workflow of tasks, a trace. They say what ranks store,
compute and hand over."""

import json
import re
import xml.etree.ElementTree as tree
from types import SimpleNamespace

import numpy as np
import pytest
from partitioned import GPT2, LLAMA, crossed, made, planned, value_at

from opmatrix.parallel.launch.dtensor import placed, placed_weights, placements_text
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.prepared import Moment
from opmatrix.parallel.launch.rank_traces import chrome_trace, drawn_trace
from opmatrix.parallel.launch.workflow import FlowTask, ordered, workflow_of
from opmatrix.parallel.ranks.ranks import Meter, Rank
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh

MESHES = [
    dict(p=(2, "pipeline"), t=(2, "sequence-vocabulary")),
    dict(d=(2, "zero3"), t=(2, "tensor")),
    dict(r=(3, "ring")),
    dict(u=(2, "ulysses"), d=(2, "data")),
]


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_tasks_compute_and_send_what_formulas_say(axes):
    plan = planned(made(LLAMA), Mesh.of(**axes), 4, 7)
    found, places = workflow_of(plan), [*plan.mesh.places()]
    assert sum(task.flops for task in found.tasks) == sum(
        value_at(plan, plan.flops(plan.stage(place)), place) for place in places
    )
    assert sum(task.payload for task in found.tasks) == sum(
        sum(crossed(plan, place, "payload").values()) for place in places
    )
    of = found.writers()
    assert sum(len(task.writes) for task in found.tasks) == len(of)  # each is written once
    assert all(value in of or value[1] < 0 for task in found.tasks for value in task.reads)
    assert all(max(after, default=-1) < number for number, after in enumerate(found.waits()))
    crossing = [task for task in found.tasks if " over " in task.component]
    assert {len(task.ranks) for task in crossing} <= {axis.count for axis in plan.mesh}


def test_a_workflow_is_yaml():
    """Of a subset that is read here: lists of records."""
    found = workflow_of(planned(made(GPT2), Mesh.of(t=(2, "tensor")), 4, 7))
    text = found.yaml()
    assert text.startswith('workflow: "model"\nmesh:\n  t: 2\ndata:\n')
    tasks = text.partition("\ntasks:\n")[2].split("  - task: ")[1:]
    assert len(tasks) == len(found.tasks)
    known = set(re.findall(r"- \{data: (\w+), rank: \d\}", text))
    for each in tasks:
        fields = dict(re.findall(r"^    (\w+): (.*)$", each, re.M))
        assert {"component", "ranks", "reads", "writes", "after"} <= set(fields)
        assert set(re.findall(r"\w+", fields["reads"] + fields["writes"])) <= known


def test_tasks_that_wait_for_each_other_are_refused():
    one, other = (
        FlowTask("one", reads=[(0, 0, 1)], writes=[(0, 0, 2)]),
        FlowTask("other", reads=[(0, 0, 2)], writes=[(0, 0, 1)]),
    )
    with pytest.raises(ValueError, match=r"^workflow: tasks wait for each other: one, other$"):
        [*ordered([one, other])]


def test_placements_are_what_ranks_store():
    """Rows of a table of 23 tokens are not equal parts; queries are 2 parts of 3 heads; stages have their own."""
    plan = planned(made(LLAMA), Mesh.of(p=(2, "pipeline"), t=(2, "sequence-vocabulary")), 4, 7)
    found = {each.name: each for each in placed_weights(plan)}
    table, queries = found["embed_tokens.weight"], found["layers.1.self_attn.q_proj.weight"]
    assert (table.placements, table.pieces) == (("Shard(0)",), {"t": [(0, 12), (12, 23)]})
    assert (queries.placements, queries.stage, queries.pieces) == (("Shard(0)",), 1, {})
    assert found["layers.0.self_attn.o_proj.weight"].placements == ("Shard(1)",)
    assert found["layers.0.input_layernorm.weight"].placements == ("Replicate()",)
    said = json.loads(placements_text(plan))
    assert (said["mesh_dim_names"], said["mesh_shape"], said["stages"]) == (["t"], [2], 2)
    assert len(said["weights"]) == len(found)


@pytest.mark.parametrize("config, axes", [(GPT2, dict(t=(3, "tensor-vocabulary"))), (LLAMA, dict(t=(4, "tensor")))])
def test_what_a_rank_stores_is_the_part_that_its_placement_names(config, axes):
    """By equal parts, or by the pieces that are said: of 23 tokens, of 2 heads of keys that 4 ranks copy."""
    plan, n = (
        planned(
            made(config, num_attention_heads=4, hidden_size=16) if config is LLAMA else made(config),
            Mesh.of(**axes),
            4,
            7,
        ),
        axes["t"][0],
    )
    seen, no_steps = 0, SimpleNamespace(steps=[], out=0, mesh=plan.mesh)
    for group in plan.stages[0]:
        for (_, stored), (data, _) in group.booked.stored().items():
            source = data.base or data
            one = placed(plan, "name", source.shape, 0, stored)
            for r in range(n):
                held = Rank(no_steps, (r,), Feed(np.zeros((1, 1))), Meter(), None, {}).own(source, stored)
                [placement], wanted = one.placements, source.array
                if placement != "Replicate()":
                    dim, seen = int(placement[6:-1]), seen + 1
                    lo, hi = one.pieces["t"][r] if one.pieces else (k * source.shape[dim] // n for k in (r, r + 1))
                    wanted = wanted.take(range(lo, hi), dim)
                assert np.array_equal(held.array, wanted)
    assert seen


def test_what_zero_stores_once_is_flat_and_a_part_names_its_whole():
    found = placed_weights(planned(made(GPT2), Mesh.of(d=(2, "zero3"), t=(3, "tensor")), 4, 7))
    assert all(each.flat == ("d",) and each.placements[0] == "Shard(0)" for each in found)
    assert ("h.0.attn.c_attn.weight", (12, 12), (12, 36)) in {(each.name, each.shape, each.part_of) for each in found}


def test_a_trace_has_a_lane_for_each_rank():
    moments = {
        (r,): [Moment("compute", "", 4, 1.0 + r, 2.0 + r, 0), Moment("all_reduce", "t", 100_004, 2.0 + r, 4.0, 3)]
        for r in range(2)
    }
    events = [each for each in json.loads(chrome_trace(moments))["traceEvents"] if each["ph"] == "X"]
    assert [each["tid"] for each in events] == [0, 0, 1, 1] and events[0]["ts"] == 0.0
    assert events[1] == dict(
        name="all_reduce over t",
        cat="crossing",
        ph="X",
        ts=1e6,
        dur=2e6,
        pid=0,
        tid=0,
        args=dict(factor=1, step=4, bytes=24, axis="t"),
    )
    picture = tree.fromstring(drawn_trace(moments))
    boxes = [each for each in picture.iter() if each.tag.endswith("rect")]
    assert len(boxes) == 4 and float(boxes[1].get("width")) == pytest.approx(2 * float(boxes[0].get("width")), abs=0.01)
    assert "0.00 ms" in drawn_trace({})


def test_a_job_is_its_json():
    """Ranks draw the same weights by their names, whichever they open."""
    job = Job(LLAMA, dict(p=(2, "pipeline"), t=(2, "tensor")), [[1, 2], [3, 4]], steps=3, stages=[1, 1])
    again = Job.read(json.loads(json.dumps(job.json())))
    assert again == Job(LLAMA, dict(p=(2, "pipeline"), t=(2, "tensor")), [[1, 2], [3, 4]], steps=3, stages=[1, 1])
    assert again.operator() == job.operator() != Job(LLAMA, {}, [[1]], seed=1).operator()
    assert again.mesh == job.mesh and again.feed.x.tolist() == [[1, 2], [3, 4]]
