"""Rules of XLA's algebraic simplifier: what is said here is proved, refuted where a guard is missing, or known to be
open; no false neighbour is proved."""

from collections import Counter

import pytest
from xla_rules import OPEN, PROVED, REFUTED, RULES, SAME, UNSAID, judge_rule

SOME = 10  # of the rules, in a run that is not deep
SAID = [rule for rule in RULES if rule.sides is not None]
NOT_FOUND = {
    "max(l, min(a, h)) = clamp(l, a, h), where l < h",
    "clamp(l, clamp(l, a, h), h) = clamp(l, a, h)",
    "maxima over both axes in any order",
    "sqrt a sqrt a = a, where a >= 0",
    "rsqrt a rsqrt a = 1 / a, where a >= 0",
    "log a^2 = 2 log |a|",
    "log sqrt a = log a / 2",
    "log rsqrt a = -log a / 2",
    "sqrt(a a) = |a|",
    "rsqrt(a^-2) = a, where a >= 0",
    "rsqrt(1 / a) = sqrt a, where a >= 0",
    "max(tanh a, tanh b) = tanh max(a, b)",
    "max(logistic a, logistic b) = logistic max(a, b)",
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
