"""The deep tests in parts: each is in one of them, whatever order tests come in."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from deep_parts import PARTS, is_left, part_of, runs_all

DEEP, EVERY = SimpleNamespace(kwargs={}), SimpleNamespace(kwargs={"every": 3})


def cases(count):
    return [SimpleNamespace(path=Path("a.py"), originalname="t", nodeid=f"a.py::t[{k}]") for k in range(count)]


@pytest.mark.parametrize("mark, always", [(DEEP, 0), (EVERY, 34)])
def test_every_deep_test_is_in_one_part(mark, always):
    items, run = cases(100), Counter()
    for part in range(PARTS):
        seen = Counter()
        run.update(item.nodeid for item in items if not is_left(mark, item, seen, part))
    assert set(run) == {item.nodeid for item in items}
    assert sum(count > 1 for count in run.values()) == always and set(run.values()) <= {1, PARTS}


def test_without_a_part_none_is_run():
    seen = Counter()
    assert all(is_left(DEEP, item, seen) for item in cases(20))
    seen = Counter()
    assert [k for k, item in enumerate(cases(7)) if not is_left(EVERY, item, seen)] == [0, 3, 6]


def test_parts_are_of_like_sizes():
    counts = Counter(part_of(item.nodeid) for item in cases(1000))
    assert len(counts) == PARTS and min(counts.values()) > 500 / PARTS


@pytest.mark.parametrize(
    "asked, named, part, every",
    [(False, False, None, False), (True, False, None, True), (False, True, None, True), (False, True, 3, False)],
)
def test_who_names_a_file_runs_all_of_it_or_a_part(asked, named, part, every):
    assert runs_all(asked, named, part) is every
