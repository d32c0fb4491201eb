"""The exact laws of the search beside found ones: a found law is named, others say why not, and axioms
prove what they can."""

import sys

import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from lib import search_laws

from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import law, matrix, n, value

LAWS = {law.name: law for law in EXACT_LAWS}
BY_AXIOMS = {
    "associate": "entries",
    "late_values": "entries, of 2 heads",
    "shift_scores": "entries, of 2 heads",
    "value_bias": "entries, of 2 heads",
    "split_keys": "values",
    "pick_before": "",
    "as_scan": "",
    "absorb_keys": "",
}
STANDINGS = {
    "split_keys": "needs more than 4 operators",
    "shift_twice": "has kinds that are not enumerated: shift",
    "join": "has several results",
    "late_values": search_laws.MISSED,
}


def judged(found, names):
    return {one.name: one for one in search_laws.judge_laws(found, [LAWS[name] for name in names])}


def test_axioms_prove_laws_of_the_search():
    assert {name: one.axioms for name, one in judged([], BY_AXIOMS).items()} == BY_AXIOMS


def test_standings_say_why_a_law_is_out_of_reach():
    assert {name: one.standing for name, one in judged([], STANDINGS).items()} == STANDINGS


@pytest.mark.deep
def test_a_found_law_is_named():
    found = search_laws.discover([(("compose",), 2)], print).laws
    standing = judged(found, ["associate"])["associate"].standing
    assert standing == f"found as {found[0].law.name}"


def test_every_round_enumerates_known_kinds():
    assert {kind for kinds, _ in search_laws.ROUNDS for kind in kinds} <= {*search_laws.OPERAND_ROLES}
    sizes = {size for _, size in search_laws.ROUNDS}
    assert sizes <= {*range(1, search_laws.MOST_OPERATORS + 1)}


GUARDS = {
    "associate": ("tighter than A: operator[n, k], B: operator[k, p]", "True of any operators; of matrices alone"),
    "late_scale": ("equal", ""),
    "pick_queries": ("equal", ""),
}


@pytest.mark.parametrize("name", GUARDS)
def test_guards_are_compared_with_the_widest_that_hold(name):
    words, reason = GUARDS[name]
    one = search_laws.SearchLaw(name, 2, search_laws.FOLLOWS, "")
    compared = search_laws.compare_guard(one, LAWS[name])
    assert compared.words == words and compared.reason.startswith(reason) and bool(compared.reason) == bool(reason)


def test_a_guard_that_is_too_weak_and_one_that_is_weaker_are_told():
    @law()
    def scale_any(x: value[n], r: value[n], A: matrix[n, n]):
        return (x * r) @ A, (x @ A) * r

    narrower = search_laws.SearchLaw("late_scale", 2, f"found as late{search_laws.NARROWER}", "")
    assert search_laws.compare_guard(narrower, scale_any).words.startswith("too weak: at different sizes")
    assert search_laws.compare_guard(narrower, LAWS["late_scale"]).words == search_laws.WEAKER
