"""What comparing formulas with counts would find: a crossing that is forgotten, in every strategy; a part of a sum that
is taken for the whole; a softmax whose parts are sent as a sum; ranks that wait for ever; other numbers in a second
run."""

from functools import partial

import numpy as np
import pytest
from partitioned import ANY, LLAMA, compared, differences, ids_of, made, planned
from trained_ranks import noticed, random_training_case

from opmatrix.algebra import monoids
from opmatrix.parallel.axes.known_axes import STRATEGIES
from opmatrix.parallel.ranks import virtual
from opmatrix.parallel.ranks.virtual import Stuck, run
from opmatrix.parallel.sharding import rules
from opmatrix.parallel.sharding.axis_states import Partial
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition

STILL = "data", "zero1", "zero2"  # strategies of which nothing crosses before gradients do
SENDING = [name for name, each in STRATEGIES.items() if not each.by_hand and name not in STILL]
TERM = made(LLAMA)


def counted(mesh):
    """A plan and what its ranks counted."""
    plan = planned(TERM, mesh, 2, 7)
    return plan, run(plan, Feed(ids_of(2, 7))).meters


@pytest.mark.parametrize("name", SENDING)
def test_a_crossing_that_is_left_out_is_found(name, monkeypatch):
    """Each of them, one at a time."""
    plan, meters = counted(Mesh.of(x=(2, name)))
    every, whole = [[*plan.crossings(stage)] for stage in range(len(plan.stages))], Partition.crossings
    assert differences(plan, meters) == []
    for stage, at in [(stage, at) for stage, found in enumerate(every) for at in range(len(found))]:

        def but_one(self, of=0, stage=stage, at=at):
            yield from (each for k, each in enumerate(whole(self, of)) if (of, k) != (stage, at))

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "crossings", but_one)
            found = {what for what, *_ in differences(plan, meters)}
        assert found == {"payload", "wire", "messages"}, every[stage][at]


@pytest.mark.parametrize("name", STILL)
def test_what_sends_nothing_counts_nothing(name):
    """A formula for another number of sequences differs."""
    plan, meters = counted(Mesh.of(x=(2, name)))
    assert [*plan.crossings()] == [] and all(meter.payload == {} for meter in meters.values())
    assert differences(plan, meters) == []
    assert {what for what, *_ in differences(planned(TERM, plan.mesh, 4, 7), meters)} == {"flops", "peak"}


def planted(monkeypatch, op, forget, over):
    """A rule of an operation that gives something else for a part of a monoid."""
    right = rules.RULES[op]

    def wrong(*args):
        demand, out, stored, why = right(*args)
        return demand, forget if isinstance(out, Partial) and out.over is over else out, stored, why

    monkeypatch.setitem(rules.RULES, op, wrong)


@pytest.mark.parametrize("name", ["tensor", "sequence", "vocabulary", "tensor-vocabulary"])
def test_a_part_that_is_taken_for_the_whole_gives_other_numbers(name, monkeypatch):
    """Formulas and counts read the same steps, so outputs alone say it."""
    holds = partial(compared, TERM, Mesh.of(x=(2, name)), 2, 7)
    assert holds().agrees
    planted(monkeypatch, "act", None, monoids.sum)
    assert holds().error > 0.01


def test_a_softmax_that_is_merged_as_a_sum_gives_other_numbers(monkeypatch):
    """By a rule that says so, or by ranks that add what they carry."""
    holds = partial(compared, TERM, Mesh.of(x=(2, "keys")), 2, 7)
    assert holds().agrees
    with monkeypatch.context() as patched:
        planted(patched, "product", Partial(monoids.sum), monoids.softmax)
        assert holds().error > 0.01
    monkeypatch.setattr(
        monoids.softmax,
        "merge",
        staticmethod(lambda a, b: tuple(each + other for each, other in zip(a, b, strict=True))),
    )
    assert holds().error > 0.01


def test_a_plan_of_other_sizes_differs():
    plan, meters = counted(Mesh.of(x=(2, "tensor")))
    assert {what for what, *_ in differences(planned(TERM, plan.mesh, 2, 8), meters)} == {
        "flops",
        "peak",
        "payload",
        "wire",
    }


# ---- runs

EVERY = Mesh.of(p=(2, "pipeline"), d=(2, "zero3"), t=(2, "sequence-vocabulary"))


def test_two_runs_are_the_same_to_the_bit():
    plan = planned(TERM, EVERY, 4, 7)
    one, other = (run(plan, Feed(ids_of(4, 7))) for _ in range(2))
    assert one.value.tobytes() == other.value.tobytes() and one.meters == other.meters


def test_ranks_that_wait_for_ever_are_named(monkeypatch):
    """One rank of four that leaves out its first crossing: all that wait, what for, and on which axis."""
    plan = planned(TERM, Mesh.of(d=(2, "data"), t=(2, "tensor")), 2, 7)
    whole = virtual.rank

    def forgetful(plan, place, body, meter):
        running = whole(plan, place, body, meter)
        if place != (1, 0):
            return (yield from running)
        message = next(running)
        try:
            while True:
                message = yield running.send(message.arrays[0])
        except StopIteration as end:
            return end.value

    monkeypatch.setattr(virtual, "rank", forgetful)
    with pytest.raises(Stuck) as stuck:
        run(plan, Feed(ids_of(2, 7)))
    said = str(stuck.value).split("; ")
    assert [each.split(" waits")[0] for each in said] == ["rank (1, 1)"] or {
        each.split(" waits")[0] for each in said
    } == {"rank (1, 0)", "rank (1, 1)"}
    assert all("all_reduce of step" in each and each.endswith("on axis t") for each in said)


def test_a_rank_that_is_missing_is_waited_for(monkeypatch):
    """A rank that ends at once leaves its neighbour waiting."""
    plan, whole = planned(made(ANY, num_hidden_layers=1), Mesh.of(r=(2, "ring")), 1, 6), virtual.rank

    def gone(*args):
        if args[1] == (1,):
            return np.zeros((1, 1, 3, 12))
        return (yield from whole(*args))

    monkeypatch.setattr(virtual, "rank", gone)
    with pytest.raises(Stuck, match=r"^rank \(0,\) waits in send of step \d+ on axis r$"):
        run(plan, Feed(ids_of(1, 6)))


def test_a_dual_that_is_left_out_behind_a_norm_of_two_columns_is_found():
    """Such a norm gives signs, so what comes back through it is what is added to the variance."""
    assert noticed(random_training_case(712))
