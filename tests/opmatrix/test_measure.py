"""Measuring: rounds are interleaved, and what is made of them."""

import gc

import pytest

from opmatrix.runtime.measure import measure, medians, ratio


def test_measuring_is_interleaved():
    seen = []
    call = lambda name: lambda batch: seen.append((name, batch))
    taken = measure({"a": call("a"), "b": call("b")}, ["u", "v"], rounds=3, warm=1)
    assert [len(times) for times in taken.values()] == [3, 3]
    rounds = [seen[i : i + 4] for i in range(0, 16, 4)]
    assert all(sorted(round) == [("a", "u"), ("a", "v"), ("b", "u"), ("b", "v")] for round in rounds)
    assert {round[0][0] for round in rounds} == {"a", "b"}, "whoever comes first changes from round to round"
    assert gc.isenabled()


def test_what_is_made_of_measurements():
    taken = {"slow": [4.0, 2.0, 8.0], "fast": [2.0, 1.5, 2.0]}
    assert medians(taken) == {"slow": 4.0, "fast": 2.0}
    assert ratio(taken, "fast", "slow") == 0.5
    with pytest.raises(ValueError, match="0 batches"):
        measure({"a": print}, [])
