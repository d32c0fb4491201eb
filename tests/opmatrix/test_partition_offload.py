"""State that lies in the memory of the host, or once over some ranks of several axes: counted beside formulas, and by
hand. Numbers of one type that cross as another."""

from dataclasses import replace

import numpy as np
import pytest
from partitioned import GPT2, LLAMA, compared, differences, ids_of, made, planned

from formats.core.errors import InputError
from opmatrix.parallel.cost.timing import Timing
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import HOST, Mesh, usual_mesh
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.runtime.pricing import datasheet

TERM = made(LLAMA)
MESHES = {
    "one rank": Mesh.of(),
    "tensor": Mesh.of(tp=(2, "tensor")),
    "stored once": Mesh.of(dp=(3, "zero3")),
    "within groups": usual_mesh(dp=4, zero=3, zero_ranks=2),
    "level by level": Mesh.of(far=(2, "zero3"), near=(3, "zero3"), tp=(2, "tensor")),
    "levels of two stages": Mesh.of(far=(2, "zero1"), near=(2, "zero3")),
    "stages": Mesh.of(pp=(2, "pipeline"), dp=(2, "zero3")),
}


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("offload", [0, 3])
@pytest.mark.parametrize("mesh", MESHES.values(), ids=[*MESHES])
def test_counts_are_those_of_formulas(mesh, offload):
    """Of pieces that are not even, too."""
    found = compared(TERM, replace(mesh, offload=offload), 6, 7)
    assert found.agrees, found


@pytest.mark.parametrize("mesh", MESHES.values(), ids=[*MESHES])
def test_every_rank_fetches_what_it_stores(mesh):
    """Once a factor: tied arrays of two factors twice, and nothing else; no rank waits for another."""
    plan = planned(TERM, replace(mesh, offload=3), 6, 7)
    for place, meter in run(plan, Feed(ids_of(6, 7))).meters.items():
        assert meter.payload["fetch", HOST] >= meter.stored > 0, place
        own = plan.stages[plan.stage(place)]
        assert meter.messages["fetch", HOST] == sum(part.count for part in own if part.stored)
    assert all(each.supersteps == 0 for _, each in plan.crossings() if each.axis == HOST)


def test_a_fetch_that_is_left_out_is_found(monkeypatch):
    plan = planned(TERM, Mesh(offload=3), 6, 7)
    meters, whole = run(plan, Feed(ids_of(6, 7))).meters, Partition.crossings
    assert differences(plan, meters) == []
    monkeypatch.setattr(Partition, "crossings", lambda self, of=0: list(whole(self, of))[1:])
    assert {what for what, *_ in differences(plan, meters)} == {"payload", "wire", "messages"}


@pytest.mark.parametrize("offload, device, host", [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)])
def test_stages_of_offload_are_bytes_a_parameter(offload, device, host):
    """Mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of the optimiser (Ren et al. 2021)."""
    plan = planned(TERM, Mesh(offload=offload))
    found = plan.formulas(training=True)
    assert (found.state, found.host_state) == (device * plan.parameters(), host * plan.parameters())


def test_groups_store_as_often_as_there_are_groups():
    """Eight ranks: of all, of four, of two; the optimiser over all of them where an axis of stage 1 is beside."""
    ranks = [planned(TERM, usual_mesh(dp=8, zero=3, zero_ranks=n), 8).formulas(training=True).state for n in (8, 4, 2)]
    assert ranks == sorted(set(ranks))
    parameters = planned(TERM, Mesh(), 8).parameters()
    assert abs(ranks[2] - 16 * parameters / 2) <= 16 * 40 and abs(ranks[0] - 16 * parameters / 8) <= 16 * 40
    both = planned(TERM, Mesh.of(far=(4, "zero1"), near=(2, "zero3")), 8).formulas(training=True).state
    assert abs(both - (4 / 2 + 12 / 8) * parameters) <= 16 * 40


def test_levels_send_far_what_near_ones_do_not_have():
    """Weights come from far in pieces of what is near: over two axes nobody sends more than over one of as many."""
    one = dict(over(planned(TERM, Mesh.of(all=(6, "zero3")), 6)))
    two = dict(over(planned(TERM, Mesh.of(far=(2, "zero3"), near=(3, "zero3")), 6)))
    assert two["near"] + two["far"] == one["all"] and two["far"] == pytest.approx(one["all"] / 5, rel=0.05)


def over(plan):
    sums = {}
    for times, each in plan.crossings():
        sums[each.axis] = sums.get(each.axis, 0) + times * float(plan.on(each.wire, (0,) * len(plan.mesh)))
    return sums


def test_what_crosses_has_a_type_of_its_own():
    plan = planned(made(GPT2), Mesh.of(dp=(2, "zero3"), tp=(2, "sequence")))

    def traffic(**crossing):
        return {each.name: each.wire for each in plan.formulas(number=2, crossing=crossing).traffic}

    plain = traffic()
    assert traffic(**{"*": 1}) == {k: v / 2 if "tp" in k else v for k, v in plain.items()}
    assert traffic(tp=0.5) == {k: v / 4 if "tp" in k else v for k, v in plain.items()}
    assert traffic(weights=1) == {k: v / 2 if "dp" in k else v for k, v in plain.items()}
    assert traffic(tp=1, **{"*": 4}) == traffic(tp=1)
    assert plan.formulas(crossing={"*": 1}).values == plan.formulas().values


def test_seconds_of_the_host_by_hand():
    sheet = datasheet("A100")
    plan = planned(TERM, Mesh(offload=3))
    found, numbers = Timing(plan, sheet).stage(0), sum(times * each.wire for times, each in plan.crossings())
    assert float(found.communication[sheet.host.name]) == pytest.approx(2 * numbers / sheet.host.bandwidth)
    waits = sum(times for times, _ in plan.crossings()) * sheet.host.latency
    assert float(found.synchronisation[sheet.host.name]) == pytest.approx(waits)
    assert sheet.host.name not in Timing(planned(TERM, Mesh(offload=2)), sheet).stage(0).communication


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Mesh(offload=4), "offload 4: 1 the optimiser"),
        (lambda: usual_mesh(dp=4, zero_ranks=2), "zero ranks 2: of no stage of ZeRO"),
        (lambda: usual_mesh(dp=4, zero=3, zero_ranks=3), "zero ranks 3: they divide dp, 4"),
        (
            lambda: Timing(planned(TERM, Mesh(offload=3)), datasheet("Ascend910B")).stage(0),
            "Ascend910B: its data sheet declares no link to the host",
        ),
    ],
)
def test_what_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_relative_error_is_that_of_one_rank():
    """Whatever is fetched, numbers are those of one rank."""
    found = [run(planned(TERM, replace(MESHES["tensor"], offload=at), 2, 7), Feed(ids_of(2, 7))).value for at in (0, 3)]
    assert np.array_equal(*found)
