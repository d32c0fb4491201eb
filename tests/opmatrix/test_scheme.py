"""How a batch runs, and that prices follow it."""
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import standin
from searched import RAGGED, model

from formats.machine.features import even
from formats.machine.model import Rates
from formats.machine.prices import NARROW_SUFFIX, PRICES
from opmatrix.extents import WHOLE, Extents, S, T, counted
from opmatrix.patterns import Batch
from opmatrix.runtime.scheme import Running, assign_groups, make_groups
from rewrites.compiler.lower import Method, plainly
from rewrites.compiler.search import search
from rewrites.laws import EXACT_LAWS

EVEN = Batch([[3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]])


class Rate:
    """Seconds that are what was asked: the sizes, times a factor."""

    def __init__(self, factor):
        self.factor, self.asked, self.coefficients = factor, [], {"attention": [], "linear.dense": []}

    def holding(self, kernel): return self

    def seconds(self, kernel, **sizes):
        self.asked.append(sizes)
        return self.factor * sizes.get("T", 1)


def machine(threads=2):
    made = Rate(100.0)
    made.threads, made.cold, made.ways = threads, 0.5, {"apart": Rate(1.0), "together": Rate(10.0)}
    return made


def starts(*lengths): return np.cumsum([0, *lengths])


def test_a_sentence_is_priced_where_all_work_on_it():
    found = machine()
    running = Running.of(found, starts(16))
    assert running.seconds("linear.dense", T=16, n=3, p=128) == 160
    assert found.ways["together"].asked == [{"T": 16, "n": 3, "p": 128}] and not found.ways["apart"].asked


def test_groups_are_priced_at_their_own_rows_times_those_of_the_busiest_worker():
    found = machine()
    running = Running.of(found, starts(*[128] * 8))
    assert running.group(counted([128] * 8)) == Extents({T: 256, S: 2, WHOLE: 2 * 128 ** 2})
    assert running.seconds("attention", T=256, S2=2 * 128 ** 2) == 2 * 256
    assert found.ways["apart"].asked == [{"T": 256, "S2": 2 * 128 ** 2}]


def test_uneven_groups_cost_what_the_worker_with_the_most_takes():
    lengths = 240, 200, 220, 180, 256, 256
    parts = make_groups(starts(*lengths), 2)
    rows = max(sum(part.high - part.low for part in own) for own in assign_groups(parts, 2))
    running = Running.of(machine(), starts(*lengths))
    assert len(parts) > 2 and running.seconds("linear.dense",
                                              T=running.group(counted(lengths))[T]) == pytest.approx(rows)


def test_what_does_not_run_so_is_a_call_from_python():
    assert Running.of(machine(), starts(16)).seconds("scores", T=16) == 1600.5


def test_a_machine_without_ways_is_asked_itself():
    plain = SimpleNamespace()
    assert Running.of(plain, starts(16)) is plain


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


@pytest.mark.parametrize("methods", (plainly, narrowly))
@pytest.mark.parametrize("way, batch", (("together", next(iter(RAGGED))), ("apart", EVEN)))
def test_the_search_prices_what_runs(methods, way, batch):
    """What a structure is said to take is what its program's kernels cost, its start with them, narrow stages as narrow
    ones."""
    plain = standin.machine()
    narrow = {name: [0.3 * rate for rate in rates] if name.endswith(NARROW_SUFFIX) else rates
              for name, rates in plain.coefficients.items()}
    assert {name for name, each in PRICES.items() if each.rides} < set(narrow)
    twice = {name: [2 * rate for rate in rates] for name, rates in narrow.items()}
    ways = {"apart": Rates(narrow, start=1e-5), "together": Rates(twice, start=2e-5)}
    running = Running.of(replace(plain, ways=ways, threads=2), batch.starts)
    found = search(model(), EXACT_LAWS, running, batch.extents(), methods=methods)
    program, _ = found.program({})
    costs = program.cost(running.group(batch.extents()))
    assert found.time == pytest.approx(running.start + sum(running.seconds(kernel, **sizes) for kernel, sizes in costs),
                                       rel=1e-6)
    assert running.way == way and any(kernel.endswith(NARROW_SUFFIX) for kernel, _ in costs) == (methods is not plainly)


def test_columns_that_do_not_come_out_even_cost_what_the_busiest_worker_has():
    """Three panels on two workers are as four; what is no product stays as it is."""
    assert even({"T": 16, "n": 384, "p": 130, "nnz": 7}, 2) == {"T": 16, "n": 384, "p": 256, "nnz": 7}
    assert even({"T": 16, "n": 384, "p": 1536}, 2)["p"] == 1536 and even({"T": 16, "n": 384, "p": 130}, 1)["p"] == 192
    for sizes in ({"T": 3, "p": 130}, {"T": 3, "h": 2, "n": 8, "p": 130}): assert even(sizes, 2) == sizes
    found = machine()
    Running.of(found, starts(16)).seconds("linear.dense", T=16, n=384, p=130)
    assert found.ways["together"].asked == [{"T": 16, "n": 384, "p": 256}]
