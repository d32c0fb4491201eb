"""Rules of XLA's algebraic simplifier: what is said here is proved, refuted where a guard is missing, or known to be
open; no false neighbour is proved."""

import re
from collections import Counter

import pytest
from children import ROOT
from xla_rules import OPEN, PROVED, REFUTED, RULES, SAME, SOURCE, UNSAID, judge_rule

SOME = 10  # of the rules, in a run that is not deep
SAID = [rule for rule in RULES if rule.sides is not None]
NOT_FOUND = {
    "max(l, min(a, h)) = clamp(l, a, h), where l < h",
    "clamp(l, clamp(l, a, h), h) = clamp(l, a, h)",
    "maxima over both axes in any order",
}  # true, and not proved


def expected(rule):
    """The verdict that a rule should meet."""
    if rule.missing:
        return REFUTED
    if rule.sides[0] is rule.sides[1]:
        return SAME
    return OPEN if rule.says in NOT_FOUND else PROVED


@pytest.mark.deep(every=len(SAID) // SOME)
@pytest.mark.parametrize("rule", SAID, ids=lambda rule: f"{rule.place}: {rule.says}")
def test_rules_meet_their_verdicts_and_no_neighbour_is_proved(rule):
    judged = judge_rule(rule)
    assert (judged.verdict, judged.near) == (expected(rule), REFUTED)


def test_the_table_is_long_enough():
    """The bars: a hundred rules, forty of them proved, the rest by what is missing."""
    assert len(RULES) >= 100 and sum(expected(rule) == PROVED for rule in SAID) >= 40
    assert {rule.says for rule in SAID} >= NOT_FOUND
    assert all(rule.missing for rule in RULES if rule.sides is None)


def test_no_rule_is_listed_twice():
    assert max(Counter((rule.place, rule.says) for rule in RULES).values()) == 1
    assert len({(*rule.sides, *rule.near) for rule in SAID}) == len(SAID)
    assert all(rule.near[0] is not rule.near[1] for rule in SAID)


def test_what_is_not_said_is_judged_by_what_is_missing():
    rule = next(rule for rule in RULES if rule.sides is None)
    judged = judge_rule(rule)
    assert (judged.verdict, judged.by) == (UNSAID, rule.missing)


def test_the_page_has_the_figures_of_the_table():
    page = (ROOT / "docs" / "xla_rules.md").read_text("utf-8")
    figures = {what: int(number) for what, number in re.findall(r"^\| (\w.*?) \| (\d+) \|$", page, re.M)}
    verdicts = Counter(expected(rule) for rule in SAID)
    assert figures == {
        "listed": len(RULES),
        "said here, for matrices of any size": len(SAID),
        "proved": verdicts[PROVED],
        "one term on both sides": verdicts[SAME],
        "refuted, as a guard is missing": verdicts[REFUTED],
        "open": verdicts[OPEN],
        "not sayable": len(RULES) - len(SAID),
        **Counter(rule.missing for rule in RULES if rule.sides is None),
    }
    file, commit = SOURCE.split(" of openxla/xla at ")
    assert file in page and commit in page
