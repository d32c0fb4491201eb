"""What a busy machine is: nothing is timed here, counts and seconds are given."""

import pytest

from formats.host import quiet
from formats.host.quiet import SIGNS, Watch, describe_noise, missing, probe, warn_busy, width


def watch(monkeypatch, load=0.5, ticks=((0, 0, 0, 0), (100, 0, 200, 100)), threads=2, runs=(), speedup=None):
    """What is seen with two processors: ticks at work, stolen, in all, our own, before and after."""
    counts = iter(ticks)
    monkeypatch.setattr("formats.host.host.load_average", lambda: load)
    monkeypatch.setattr("formats.host.threads.threads", lambda: threads)
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(quiet.Others, "now", lambda self: next(counts, None))
    found = Watch()
    found.note(runs)
    found.speedup = speedup
    return found.seen()


STEADY, WILD = [1.0, 1.01, 1.02, 1.0, 1.03, 1.0, 1.01, 9.0], [1.0, 1.5, 2.0, 3.0, 1.0, 1.2, 2.0, 1.0]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"load": 15.2}, "the load was 7.6 threads a processor"),
        ({"ticks": ((0, 0, 0, 0), (180, 0, 200, 100))}, "other processes took 40% of the processors that it needs"),
        (
            {"ticks": ((0, 0, 0, 0), (100, 30, 200, 100))},
            "the host gave 15% of the processors' time to other virtual machines",
        ),
        ({"runs": [WILD, WILD, STEADY]}, "the middle half of repeated timings is 74% wide"),
        ({"speedup": 0.5}, "all threads together took 2.00 times as long as one for the same arithmetic"),
    ],
)
def test_every_sign_is_seen_alone(monkeypatch, given, said):
    assert watch(monkeypatch, **given) == said


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"load": None},
        {"load": 2.1},
        {"ticks": ()},
        {"ticks": ((0, 0, 0, 0), (180, 0, 200, 175))},
        {"runs": [STEADY, STEADY, WILD]},
        {"runs": [[1.0, 9.0]]},
        {"speedup": 1.9},
        {"speedup": 1.0},
        {"ticks": ((0, 0, 0, 0), (10, 5, 20, 0))},
        {"threads": 1, "ticks": ((0, 0, 0, 0), (180, 0, 200, 90))},
    ],
)
def test_a_quiet_machine_and_one_that_tells_nothing_show_none(monkeypatch, given):
    """Own threads are no others; few ticks say nothing; one disturbed thing of three is no spread; a free processor is
    left to one thread."""
    assert watch(monkeypatch, **given) == ""


def test_signs_are_listed_together(monkeypatch):
    seen = watch(monkeypatch, load=9.0, runs=[WILD])
    assert seen.count(", ") == 1 and describe_noise(seen, "so what") == f"busy machine: {seen}: so what"


@pytest.mark.parametrize("seen", ["", "the load was 8"])
@pytest.mark.parametrize("marks", [[], ["the load was 9"], ["the load was 9", "the load was 7"]], ids=len)
def test_a_command_warns_at_most_once(seen, marks):
    """Of what was measured now, and of prices that were measured before, in however many tables."""
    said = warn_busy(seen, "so what", marks)
    assert len(said) == bool(seen or marks)
    for line in said:
        assert line.startswith("busy machine: ") and "\n" not in line
        assert (f"{seen}: so what" in line) == bool(seen) and ("predicted times" in line) == bool(marks)


def test_every_bound_has_a_reason():
    assert all(sign.why and sign.most > 0 for sign in SIGNS.values())


def test_what_threads_miss():
    assert (
        missing(0.5, 2, 2) == 0.5 and missing(0.5, 2, 64) == 0 and missing(1.0, 1, 64) == 1 and missing(0.0, 9, 2) == 0
    )


def test_a_width_is_that_of_the_middle_half():
    assert width([1.0] * 8) == 0 and width([1.0, 1.0, 2.0, 3.0, 3.0]) == 1.0


def test_a_probe_repeats_something(monkeypatch):
    seen = []
    monkeypatch.setattr(Watch, "seen", lambda self: seen.append(len(self.runs[0])) or "")
    assert probe(0.02) == "" and seen[0] >= 1


def test_a_process_is_watched_once(monkeypatch):
    """Whoever begins to measure asks for it; one line is said at the end."""
    asked = []
    monkeypatch.setattr(quiet.atexit, "register", asked.append)
    quiet.watched.cache_clear()
    try:
        assert quiet.watched() is quiet.watched() and len(asked) == 1
    finally:
        quiet.watched.cache_clear()
