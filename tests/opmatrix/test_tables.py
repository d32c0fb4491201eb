"""Tables on a terminal: as wide as it is where they can be, and nothing of them is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opmatrix.display.tables import NARROWEST, few_digits, fit_width, table

words = st.lists(st.text("abcx19+µ", min_size=1, max_size=9), min_size=1, max_size=9).map(" ".join)
numbers = st.one_of(st.floats(-1e6, 1e6).map("{:.2f}".format), st.just(""), st.just("0.371 %"), st.just("1.2 to 3.4"))


@st.composite
def tables(draw):
    """Rows of a name and numbers, at times with words behind them, under headers of some words."""
    count, last = draw(st.integers(1, 6)), draw(st.booleans())
    body = draw(st.lists(st.tuples(words, *[numbers] * count, *[words] * last), min_size=1, max_size=6))
    header = [draw(words) for _ in range(1 + count + last)]
    return header, [["  " * draw(st.booleans()) + row[0], *row[1:]] for row in body], (0, count + 1) if last else (0,)


def letters(lines):
    return sorted("".join(lines).replace("─", "").replace(" ", ""))


@given(tables(), st.integers(20, 160))
def test_a_table_fits_and_loses_nothing(made, columns):
    header, rows, left = made
    whole = table(rows, header, left)
    lines, before = fit_width(f"programs\n{whole}\n\nmore words", columns).splitlines(), whole.splitlines()
    assert lines[0] == "programs" and lines[-2:] == ["", "more words"]
    shown = lines[1:-2]
    assert letters(shown) == letters(before)
    for row in rows:
        for number in row[1 : max(left, default=0) or None]:
            assert any(number in line for line in shown)
    if max(map(len, before)) <= columns:
        assert shown == before
    least = [
        max([NARROWEST, *map(len, head.split()), *(len(row[at]) for row in rows if at not in left)])
        for at, head in enumerate(header)
    ]
    if sum(least) + 2 * (len(header) - 1) <= columns:
        assert max(map(len, shown)) <= columns


def test_a_front_is_read_at_eighty_columns():
    header = ["", "ms predicted", "measured", "MB predicted", "measured", "error predicted", "measured"]
    rows = [
        ["  imported", "2.63", "11.89", "2.9", "3.0", "3e-07", "3e-07"],
        ["* int8 x15 + half x3 + lowrankint8 x2 + lowrank x1", "1.16", "1.93", "1.1", "1.1", "1.42 %", "1.54 %"],
    ]
    assert fit_width(table(rows, header), 80).splitlines() == [
        "                          ms  measured         MB  measured      error  measured",
        "                   predicted            predicted            predicted",
        "─────────────────  ─────────  ────────  ─────────  ────────  ─────────  ────────",
        "  imported              2.63     11.89        2.9       3.0      3e-07     3e-07",
        "* int8 x15 + half       1.16      1.93        1.1       1.1     1.42 %    1.54 %",
        "  x3 +",
        "  lowrankint8 x2",
        "  + lowrank x1",
    ]


@pytest.mark.parametrize(
    "value, shown",
    [(0.028646797669666064, "0.0286"), (1e-10, "1e-10"), (4.0, "4"), (3, "3"), (None, "None"), ("small", "small")],
)
def test_numbers_in_few_digits(value, shown):
    assert few_digits(value) == shown
