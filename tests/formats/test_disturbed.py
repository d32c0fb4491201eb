"""A calibration while something else runs: made-up seconds of a machine that is known, disturbed by a seed. Nothing is
timed here."""

import numpy as np
import pytest
from test_machine import CATALOGUE, known

from formats.machine import calibration
from formats.machine.features import FAR, weigh_format
from formats.machine.predictor import find_disturbed
from formats.machine.running import LEAST_ROUNDS, TURNS, Rounds, find_repeated, settle_timings, typical

LOOKUP, PRODUCT = "pick", "linear.packed"
MEDIAN, WORST, BUSY_MEDIAN, BUSY_WORST = 0.10, 0.25, 0.15, 0.40


def places(rng, count):
    return [[*rng.uniform(0, 10, 2)] for _ in range(count)]


def smooth(place):
    return 0.3 * np.sin(place[0]) + 0.05 * place[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("times", [1.6, 24.0])
def test_a_disturbed_call_is_the_first_that_its_neighbours_do_not_allow(seed, times):
    rng = np.random.default_rng(seed)
    calls = places(rng, 60)
    left = [smooth(place) + rng.normal(0, 0.03) for place in calls]
    assert find_disturbed(calls, left, False) == [], "noise is none"
    left[17] += np.log(times)
    assert find_disturbed(calls, left, False)[0] == 17


def test_of_few_calls_none_is_doubted():
    assert find_disturbed([[0.0], [1.0], [2.0]], [0.0, 3.0, 0.0], False) == []


def row(seconds):
    return "kernel", {"T": 1}, seconds


def far_from_one(rows):
    return [i for i, (_, _, taken) in enumerate(rows) if taken > 1.2]


def test_a_disturbance_is_timed_again_and_a_step_stays():
    """The second row was disturbed once; the third is as it is, whatever its neighbours are."""
    truth, asked = [1.0, 1.0, 5.0], []

    def again(some):
        asked.append(list(some))
        return [truth[i] for i in some]

    found = settle_timings([row(1.0), row(24.0), row(5.1)], far_from_one, again)
    assert [taken for *_, taken in found] == [1.0, 1.0, 5.0] and asked == [[1, 2]]


def test_a_timing_that_never_repeats_counts_as_its_least():
    later = iter([9.0, 7.0, 3.0, 5.0])
    found = settle_timings([row(24.0)], far_from_one, lambda some: [next(later)])
    assert found == [row(3.0)] and next(later, None) is None and TURNS == 4


def test_two_disturbances_that_agree_by_chance_give_way_to_two_lower_timings():
    assert find_repeated([24.0, 23.5, 1.0]) == 23.5 and find_repeated([24.0, 23.5, 1.0, 1.05]) == 1.0
    assert find_repeated([1.0]) is find_repeated([1.0, 2.0]) is None


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_repeated_timings_are_what_they_are_undisturbed(share):
    """However many of them others lengthen, up to a half."""
    rng, off = np.random.default_rng(1), []
    for _ in range(200):
        taken = 1 + 0.02 * rng.standard_normal(16) ** 2
        off.append(abs(typical([*(taken * np.where(rng.random(16) < share, rng.uniform(1.3, 6, 16), 1))]) - 1))
    assert np.median(off) < 0.05 and np.quantile(off, 0.95) < 0.25


def test_steady_timings_are_their_median():
    assert typical([1.0, 1.02, 1.1]) == 1.02 and typical([3.0, 1.0]) == 2.0


class Script:
    """A script of cases that take so many nanoseconds, each run lengthened by others with a chance."""

    def __init__(self, truth, chance, seed):
        self.truth, self.chance, self.rng = np.array([1.0, *truth]), chance, np.random.default_rng(seed)

    def run(self, fill):
        lengthened = self.rng.random(len(self.truth)) < self.chance
        return self.truth * np.where(lengthened, self.rng.uniform(1.5, 5, len(self.truth)), 1.0)


@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_rounds_that_others_lengthen_give_what_cases_take(chance):
    truth = np.random.default_rng(2).uniform(100, 1e5, 90)
    rounds = Rounds([(range(0, 50), Script(truth[:50], chance, 3)), (range(50, 90), Script(truth[50:], chance, 4))])
    for _ in range(5 * LEAST_ROUNDS):
        rounds.run([0, 1])
    off = [abs(1e9 * rounds.skew * rounds.middles()[i] / each - 1) for i, each in enumerate(truth)]
    assert np.median(off) < 0.02 and max(off) < 0.25 and rounds.disturbed == bool(chance)


def lookups():
    """Sizes of calls of a lookup, and of some that no calibration times."""
    rng = np.random.default_rng(4)
    names = CATALOGUE[LOOKUP].compiled[0]
    return [{name: int(2 ** rng.uniform(2, 10)) for name in names} for _ in range(50)]


def weights():
    """Sizes of calls of a product whose weight is in memory, or in the caches."""
    rng = np.random.default_rng(5)

    def sized(far):
        n, p = (32 * int(each) for each in rng.integers(2, 64, 2))
        sizes = {"T": int(2 ** rng.uniform(0, 8)), "n": n, "p": p}
        return sizes | {FAR: far * weigh_format("packed", sizes)[0]}

    return [sized(far) for _ in range(40) for far in (1, 0)]


@pytest.fixture
def made_up(monkeypatch):
    """`calibration.measured` over calls that take what a known machine says, and each run so many times as long."""
    truth = known(names=[LOOKUP, PRODUCT])

    def measured(kernel, every, lengthen):
        cases = [(kernel, sizes, lambda: None) for sizes in every]
        sizes_of = {id(call): sizes for _, sizes, call in cases}

        def timed(call, seconds, least, most):
            return [truth.seconds(kernel, **sizes_of[id(call)]) * lengthen(id(call)) for _ in range(least)]

        monkeypatch.setattr(calibration, "timed", timed)
        return calibration.fit_rates(CATALOGUE, calibration.measured(CATALOGUE, cases, most=60.0)), cases

    return truth, measured


@pytest.mark.parametrize("kernel, every", [(LOOKUP, lookups()), (PRODUCT, weights())])
def test_one_disturbed_case_leaves_no_bump(made_up, kernel, every):
    """All runs of one case in its first turns take 24 times as long; later ones do not."""
    truth, measured = made_up
    met = dict.fromkeys(range(len(every)), 0)
    order = {}

    def lengthen(call):
        at = order.setdefault(call, len(order))
        met[at] += 1
        return 24.0 if at == 20 and met[at] <= 9 else 1.0

    rates, _ = measured(kernel, every, lengthen)
    off = [abs(rates.seconds(kernel, **sizes) / truth.seconds(kernel, **sizes) - 1) for sizes in every]
    assert np.median(off) < 0.02 and max(off) < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel, every", [(LOOKUP, lookups()), (PRODUCT, weights())])
def test_a_load_beside_a_calibration_leaves_prices_within_the_bars_of_a_busy_machine(made_up, kernel, every, seed):
    """Moments in which whole turns take longer, a third of all, one and a half to five times."""
    truth, measured = made_up
    rng = np.random.default_rng(seed)
    turn = {}

    def lengthen(call):
        count, factor = turn.get(call, (0, 1.0))
        if count % 3 == 0:
            factor = rng.uniform(1.5, 5) if rng.random() < 1 / 3 else rng.uniform(1, 1.05)
        turn[call] = count + 1, factor
        return factor

    rates, _ = measured(kernel, every, lengthen)
    off = [abs(rates.seconds(kernel, **sizes) / truth.seconds(kernel, **sizes) - 1) for sizes in every]
    assert np.median(off) < BUSY_MEDIAN and max(off) < BUSY_WORST
