"""How a batch runs, and that prices follow it."""

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
import standin
from searched import RAGGED, model

from formats import FORMATS
from formats.host.host import caches
from formats.host.threads import limit
from formats.kernels.matmul import linear
from formats.kernels.matmul.linear import split_work
from formats.machine.features import FAR, even
from formats.machine.model import Rates
from formats.machine.prices import NARROW_SUFFIX
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import WHOLE, Extents, S, T, counted
from opmatrix.runtime.pricing import catalogue
from opmatrix.runtime.scheme import Running, assign_groups, make_groups, reading_rows
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method, plainly
from rewrites.search.search import search

EVEN = Batch([[3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]])


class Rate:
    """Seconds that are what was asked: the sizes, times a factor."""

    def __init__(self, factor):
        self.factor, self.asked, self.coefficients = factor, [], {"attention": [], "linear.packed": []}

    def holding(self, kernel, way=None):
        return self.ways[way] if way else self

    def seconds(self, kernel, **sizes):
        self.asked.append(sizes)
        return self.factor * sizes.get("T", 1)


def machine(threads=2):
    made = Rate(100.0)
    made.catalogue = catalogue()
    made.threads, made.cold, made.ways = threads, 0.5, {"apart": Rate(1.0), "together": Rate(10.0)}
    return made


def starts(*lengths):
    return np.cumsum([0, *lengths])


def test_a_sentence_is_priced_where_all_work_on_it():
    found = machine()
    running = Running.of(found, starts(16))
    assert running.seconds("linear.packed", T=16, n=3, p=128) == 160
    far = float(FORMATS["packed"].bytes.subs(FORMATS["packed"].expected(3, 128)))
    assert found.ways["together"].asked == [{"T": 16, "n": 3, "p": 128, FAR: far}] and not found.ways["apart"].asked


@pytest.mark.parametrize("held, missed", ((inf, 1.0), (4.0, 1.0), (1.0, 1.0), (0.5, 0.25), (0.0, 0.0)))
def test_a_weight_comes_from_memory_as_far_as_the_last_cache_has_no_room_for_what_a_model_reads(held, missed):
    """However small the weight itself is: between two runs lies all that a run reads. Bytes of a shared cache decide,
    not those of one core's."""
    found, form = machine(), FORMATS["packed"]
    Running.of(found, starts(16), held * caches()[-1]).seconds("linear.packed", T=16, n=64, p=128)
    (asked,) = found.ways["together"].asked
    assert asked[FAR] == missed * float(form.bytes.subs(form.expected(64, 128)))


def test_groups_are_priced_at_their_own_rows_times_those_of_the_busiest_worker():
    found = machine()
    running = Running.of(found, starts(*[128] * 8))
    assert running.group(counted([128] * 8)) == Extents({T: 256, S: 2, WHOLE: 2 * 128**2})
    assert running.seconds("attention", T=256, S2=2 * 128**2) == 2 * 256
    assert found.ways["apart"].asked == [{"T": 256, "S2": 2 * 128**2}]


def test_uneven_groups_cost_what_the_worker_with_the_most_takes():
    lengths = 240, 200, 220, 180, 256, 256
    parts = make_groups(starts(*lengths), 2)
    rows = max(sum(part.high - part.low for part in own) for own in assign_groups(parts, 2))
    running = Running.of(machine(), starts(*lengths))
    each = running.group(counted(lengths))[T]
    assert len(parts) > 2 and running.seconds("linear.packed", T=each, n=3, p=128) == pytest.approx(rows)


def test_what_does_not_run_so_is_a_call_from_python():
    assert Running.of(machine(), starts(16)).seconds("scores", T=16) == 1600.5


def test_a_machine_without_ways_is_asked_itself():
    plain = SimpleNamespace()
    assert Running.of(plain, starts(16)) is plain


@pytest.mark.parametrize(
    "held, lengths, groups",
    (
        (inf, [1] * 8, 1),
        (inf, [1] * 64, 1),
        (inf, [128] * 8, 4),
        (0.0, [1] * 8, 2),
        (0.0, [16, 16], 2),
        (inf, [16, 16], 1),
    ),
)
def test_weights_that_caches_do_not_hold_are_read_once_for_few_rows(held, lengths, groups):
    """Each group reads all weights, so sequences of a row each are one group; unless a cache holds what is read."""
    assert len(make_groups(starts(*lengths), 2, reading=reading_rows(held * caches()[-1]))) == groups


def test_every_row_is_in_one_group_of_one_worker():
    rng = np.random.default_rng(0)
    for _ in range(50):
        at = starts(*rng.integers(1, 200, rng.integers(1, 30)))
        workers = int(rng.integers(1, 5))
        parts = make_groups(at, workers, 128)
        own = assign_groups(parts, workers)
        assert sorted(part for each in own for part in each) == parts and len(own) == workers
        assert [part.low for part in parts[1:]] + [at[-1]] == [part.high for part in parts] and parts[0].low == 0


def narrowly(lowering, use):
    """int8 where a weight may be stored in panels."""
    return (Method("int8"),) if len(plain := plainly(lowering, use)) > 1 else plain


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("methods", (plainly, narrowly))
@pytest.mark.parametrize("way, batch", (("together", next(iter(RAGGED))), ("apart", EVEN)))
def test_the_search_prices_what_runs(methods, way, batch):
    """What a structure is said to take is what its program's kernels cost, its start with them, narrow stages as narrow
    ones."""
    plain = standin.machine()
    narrow = {
        name: [0.3 * rate for rate in rates] if name.endswith(NARROW_SUFFIX) else rates
        for name, rates in plain.coefficients.items()
    }
    assert {name for name, each in catalogue().prices.items() if each.rides} < set(narrow)
    twice = {name: [2 * rate for rate in rates] for name, rates in narrow.items()}
    ways = {
        "apart": Rates(narrow, start=1e-5, catalogue=plain.catalogue),
        "together": Rates(twice, start=2e-5, catalogue=plain.catalogue),
    }
    running = Running.of(replace(plain, ways=ways, threads=2), batch.starts, 0.0)
    found = search(model(), EXACT_LAWS, running, batch.extents(), methods=methods)
    program, _ = found.program({})
    costs = program.cost(running.group(batch.extents()))
    assert found.time == pytest.approx(
        running.start + sum(running.seconds(kernel, **sizes) for kernel, sizes in costs), rel=1e-6
    )
    assert running.way == way and any(kernel.endswith(NARROW_SUFFIX) for kernel, _ in costs) == (methods is not plainly)


def test_columns_that_do_not_come_out_even_cost_what_the_busiest_worker_has():
    """Three panels on two workers are as four; what takes 16 columns at a time comes out even; rows are handed out
    where there are many; what is no product stays as it is."""
    prices = catalogue()

    def shared(kernel, workers=2, **sizes):
        found = even(prices[kernel], sizes | {"n": 384}, workers)
        return found["T"], found["p"]

    assert even(prices["linear.packed"], {"T": 16, "n": 384, "p": 130, "nnz": 7}, 2) == {
        "T": 16,
        "n": 384,
        "p": 256,
        "nnz": 7,
    }
    assert shared("linear.packed", T=16, p=1536) == (16, 1536) and shared("linear.packed", T=16, p=192) == (16, 256)
    assert shared("linear.dense", T=16, p=192) == (16, 192) and shared("linear.dense", T=16, p=130) == (16, 160)
    assert shared("linear.packed", T=256, p=192) == (256, 192) and shared("linear.int8", T=601, p=192) == (604, 192)
    assert shared("linear.packed", T=16, p=64) == (16, 128) and shared("linear.packed", 1, T=16, p=130) == (16, 130)
    assert even(catalogue()["scale"], {"T": 3, "p": 130}, 2) == {"T": 3, "p": 130}
    found = machine()
    Running.of(found, starts(16)).seconds("linear.packed", T=16, n=384, p=130)
    (asked,) = found.ways["together"].asked
    assert {name: asked[name] for name in "Tnp"} == {"T": 16, "n": 384, "p": 256}


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.proposed or form.plain])
def test_prices_hand_out_what_kernels_hand_out(monkeypatch, name, rng):
    """What a launch divides a product into, is what its price takes it to be."""
    seen = []

    def noted(rows, columns, workers, unit=1):
        found = split_work(rows, columns, workers, unit)
        seen.append(found)
        return found

    monkeypatch.setattr(linear, "split_work", noted)
    form = FORMATS[name]
    with limit(2):
        weight = form.approximate(rng.standard_normal((256, 192), np.float32))
        weight.matmul(rng.standard_normal((16, 256), np.float32))
    assert not seen or split_work(16, 192, 2, form.portion) in seen
