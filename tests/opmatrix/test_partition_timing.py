"""What a partition takes on a machine of a data sheet: its parts, by hand, and the levels that they cross."""

import pytest
from partitioned import GPT2

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.data import Promised
from opmatrix.parallel.cost.timing import Timing
from opmatrix.parallel.sharding.mesh import usual_mesh
from opmatrix.runtime.pricing import datasheet

A100 = datasheet("A100")
NEAR, FAR = (link.name for link in A100.links)
N, P, TOKENS = 4096, 8192, 512


def timed(term, mesh, sizes=om.BatchSizes(4, 8), **how):
    return Timing(om.partition(term, mesh, sizes, **how), A100)


def pair():
    A, B = om.weight(Promised("A", (N, P))), om.weight(Promised("B", (P, N)))
    return om.formula(lambda x: x + x @ A @ B)


@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_two_products_and_a_sum_by_hand(tokens):
    """Columns, then rows, on four ranks: of one token memory decides, of many the matrix unit."""
    found = timed(pair(), om.Mesh.of(tp=(4, "tensor")), om.BatchSizes(1, tokens), tokens=False).stage(0)
    work, size = 2 * tokens * N * P / 4, 2 * (N * P / 4 + tokens * (N + P / 4))
    each = max(work / A100.matrix["bf16"], size / A100.memory[-1][2])
    assert (each == work / A100.matrix["bf16"]) == (tokens > 1)
    assert float(found.computation) == pytest.approx(2 * each, rel=1e-12)
    link = A100.links[0]
    assert float(found.communication[NEAR]) == pytest.approx(2 * 3 / 4 * 2 * tokens * N / link.bandwidth, rel=1e-12)
    assert float(found.synchronisation[NEAR]) == pytest.approx(2 * 3 * link.latency) and found.supersteps == 2
    assert found.communication[FAR] == found.synchronisation[FAR] == 0
    assert float(found.seconds) == pytest.approx(
        2 * each + float(found.communication[NEAR] + found.synchronisation[NEAR])
    )


WIDE = GPT2 | dict(n_head=16, n_embd=32)


@pytest.mark.parametrize(
    "axes, crossed",
    [
        (dict(tp=8), {NEAR}),
        (dict(tp=16), {NEAR, FAR}),
        (dict(dp=2, zero=3, tp=8), {NEAR, FAR}),
        (dict(dp=2, zero=3, tp=4), {NEAR}),
        (dict(pp=2, tp=8), {NEAR, FAR}),
        (dict(cp=4, tp=2), {NEAR}),
    ],
)
def test_levels_follow_the_placement(axes, crossed):
    """Eight devices are a node, the innermost axis lies nearest."""
    found = timed(WIDE, usual_mesh(**axes)).stage(0)
    assert {name for name, seconds in found.communication.items() if seconds != 0} == crossed
    assert {name for name, seconds in found.synchronisation.items() if seconds != 0} == crossed


def test_symbols_stay_in_seconds():
    """At numbers they are the seconds of these numbers."""
    live = Timing(om.partition(GPT2, usual_mesh(tp=2)), A100).stage(0).seconds
    sizes = {s: dict(b=4, s=8)[str(s)] for s in live.free_symbols}
    assert float(live.subs(sizes)) == pytest.approx(float(timed(GPT2, usual_mesh(tp=2)).stage(0).seconds), rel=1e-12)


def test_more_bytes_a_number_take_longer():
    plan = om.partition(GPT2, usual_mesh(tp=2), om.BatchSizes(4, 8))
    half, whole = (Timing(plan, A100, kind, kind).stage(0) for kind in ("bf16", "float32"))
    assert float(whole.communication[NEAR]) == 2 * float(half.communication[NEAR])
    assert half.computation < whole.computation and half.synchronisation == whole.synchronisation


def test_ranks_that_are_symbols_have_no_place():
    plan = om.partition(GPT2, om.Mesh.of(tp=("t", "tensor")))
    with pytest.raises(InputError, match=r"partition: ranks t on A100: give numbers"):
        Timing(plan, A100).stage(0)
