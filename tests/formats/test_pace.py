"""Prices that were measured when the machine was faster or slower are read at the pace that it has now."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_machine import PRICES, known

from formats.host import quiet
from formats.machine import local
from formats.machine.calibration import pace_of
from formats.machine.model import WAYS, Machine, Rates, machine_file
from opmatrix.runtime.pricing import this_machine

SIZES = {"T": 40, "n": 256, "p": 192, "S2": 1600, "h": 4, "d": 16, "g": 4, "N": 4, "M": 8}
KERNEL = "linear.dense"


def machine(**more):
    whole = known()
    fields = {
        "one_row": {KERNEL: [2e-9] * len(whole.coefficients[KERNEL])},
        "far": {KERNEL: [1e-9, 3e-9]},
        "start": 2e-6,
        "cold": 1e-7,
    }
    plain = Rates(whole.coefficients, catalogue=whole.catalogue, **fields)
    return replace(whole, ways={way: plain for way in WAYS}, **fields, **more)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A machine whose calibration was taken at a pace of a millisecond, in the cache."""
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    found = machine(pace=1e-3)
    found.save(machine_file())
    return found


def seconds(found: Machine):
    """What everything takes that a machine says."""
    return [
        rates.seconds(KERNEL, **SIZES | {"T": rows}) for rates in (found, *found.ways.values()) for rows in (1, 40)
    ] + [each for rates in (found, *found.ways.values()) for each in (rates.start, rates.cold)]


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 100))
def test_where_everything_takes_longer_everything_is_priced_so(factor):
    before = machine()
    after = before.slowed(factor)
    assert seconds(after) == pytest.approx([factor * each for each in seconds(before)])
    for name in PRICES:
        assert after.coefficients[name] == pytest.approx([factor * each for each in before.coefficients[name]])
    assert (after.corrections, after.interval, after.identity) == (before.corrections, before.interval, before.identity)


@pytest.mark.parametrize("now", [2e-3, 1.7e-3, 0.5e-3])
def test_prices_are_read_at_the_pace_of_now(kept, monkeypatch, now):
    monkeypatch.setattr(quiet, "pace_now", lambda: now)
    assert seconds(this_machine()) == pytest.approx([now / kept.pace * each for each in seconds(kept)])


@pytest.mark.parametrize("now", [1e-3, 0.7e-3, 1.5e-3])
def test_what_timings_vary_by_is_no_other_pace(kept, monkeypatch, now):
    monkeypatch.setattr(quiet, "pace_now", lambda: now)
    assert seconds(this_machine()) == seconds(kept)


def test_prices_of_an_unknown_pace_are_taken_as_they_are(kept, monkeypatch):
    monkeypatch.setattr(quiet, "pace_now", lambda: pytest.fail("nothing to compare it with"))
    replace(kept, pace=0.0).save(machine_file())
    assert seconds(this_machine()) == seconds(kept)


def test_what_is_measured_later_has_a_pace_of_its_own(kept, monkeypatch):
    """Its file is read as slowly as the machine is beside then."""
    monkeypatch.setattr(quiet, "pace_now", lambda: 2e-3)
    name = kept.catalogue.lazy[0]
    part = Machine({name: [1e-9] * len(kept.catalogue[name].terms)}, **vars_of(kept), pace=4e-3)
    part.save(local.part_file(["called", name]))
    found = this_machine()
    local.learn(local_unknown(found, name))
    assert found.holding(name).coefficients[name] == pytest.approx([0.5 * a for a in part.coefficients[name]])


def vars_of(found):
    return {each: getattr(found, each) for each in ("name", "threads", "versions", "catalogue")}


def local_unknown(found, name):
    with pytest.raises(local.UnknownPrice) as unknown:
        found.holding(name)
    return unknown.value


def test_a_pace_is_of_what_was_timed():
    """The lower quartile, so that what disturbs few calls does not count."""
    found = quiet.Pace()
    found.sample(0.0)
    assert len(found.taken) == 1
    found.taken = [1e-3, 9.0, 2e-3, 8.0, 1e-3, 1e-3, 7.0, 1e-3]
    assert found.seconds == pytest.approx(1e-3)


def test_rates_that_know_its_product_are_their_own_pace():
    """A sample of a moment is not: a host gives more or less of itself from second to second."""
    sampled, known_rates = quiet.Pace(), machine().ways[WAYS[0]]
    sampled.taken = [1.0]
    assert pace_of([Rates({}, catalogue=known_rates.catalogue), known_rates], sampled) == known_rates.seconds(
        KERNEL, **quiet.PACE_SIZES
    )
    assert pace_of([Rates({}, catalogue=known_rates.catalogue)], sampled) == 1.0
