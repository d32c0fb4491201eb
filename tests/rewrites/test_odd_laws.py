"""True laws of odd shape: they are used, or left out with a line that says why; none ends a search."""

import re
from dataclasses import replace

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from opmatrix import I, relu, tanh
from opmatrix.algebra.operators import const, given, heads, pick, product, repeat, row, total, turn
from opmatrix.algebra.term import PROPERTIES
from opmatrix.runtime.pricing import datasheet
from rewrites.egraph import layers
from rewrites.egraph.egraph import directions, rules, saturate
from rewrites.egraph.law_matches import check_matches, find_mismatch, find_unasked, list_needless
from rewrites.egraph.template import Template, spell_values
from rewrites.laws import CHOOSING_LAWS, EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.laws.kinds import by_head, first_rows, last_rows
from rewrites.laws.law import (
    constant,
    count,
    drawn,
    entrywise,
    h,
    k,
    law,
    list_ways,
    matrix,
    n,
    operator,
    over,
    p,
    q,
    relation,
    scores,
    value,
    where,
)
from rewrites.verify.user_laws import try_law

BATCH = om.Batch([[0, 3, 1, 8], [4], [5, 2]])


@law()
def turned(x: value[n]):
    return x, turn(turn(x))


@law()
def turned_back(x: value[n]):
    return turn(turn(x)), x


@law()
def twice_less(x: value[n]):
    return x, (x + x) - x


@law()
def number(x: value[n]):
    return x, x * 2.0 - x


@law()
def number_left(x: value[n]):
    return x @ (I * 2.0), x + x


@law()
def nests(x: value[n], A: matrix[n, p]):
    return x @ A, (x @ A) @ relu - (x @ A * -1.0) @ relu


@law()
def thrice(x: value[n]):
    return x @ relu, x @ relu @ relu @ relu


@law(both=True)
def only_left(x: value[n], y: value[n]):
    return x @ relu + (y - y), x @ relu


@law(canonical=True)
def canonical_variable(x: value[n]):
    return x, x + x - x


@law()
def times_one(x: value[n]):
    return x, x * 1.0


@law()
def of_matrices(A: matrix[n, p]):
    return A, A + A - A


@law()
def of_constants(c: constant[n]):
    return c, c + c - c


@law()
def no_variables():
    return relu, relu @ relu


@law()
def two_sides(x: value[n], y: value[n]):
    return (x, y), ((x + y) - y, y)


USED = [
    turned,
    turned_back,
    twice_less,
    number,
    number_left,
    nests,
    thrice,
    canonical_variable,
    times_one,
    of_matrices,
    of_constants,
    no_variables,
]


@law()
def only_right(x: value[n], y: value[n]):
    return x @ relu @ relu, x @ relu + (y - y)


@law()
def same(x: value[n], A: matrix[n, p]):
    return x @ A, x @ A


@law()
def bare(x: value[n]):
    return x, x @ I


@law()
def plus_zero(x: value[n]):
    return x, x + const(0.0)


LEFT_OUT = [
    (only_right, "y occurs on the right side only"),
    (same, "both sides are one term"),
    (bare, "both sides are one term"),
    (plus_zero, "makes terms that do not fit"),
    (only_left, r"it is wrong for y: value[h, n], which its left side matches, too"),
    (two_sides, r"it is wrong for y: value[11], which its left side matches, too"),
]


def model():
    rng = np.random.default_rng(0)
    table, into, out = (om.weight(rng.normal(size=size)) for size in ((9, 8), (8, 6), (6, 8)))
    return table @ (I + into @ relu @ out) @ (I * 2.0) @ relu


@pytest.fixture(scope="module")
def wanted():
    return om.explore(model(), BATCH, machine="A100").best.run(BATCH)


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("odd", USED, ids=lambda each: each.name)
def test_an_odd_law_is_used(odd, wanted):
    found = om.explore(model(), BATCH, machine="A100", laws=(*om.laws, odd))
    assert found.left_out == () and odd in found.laws
    np.testing.assert_allclose(found.best.run(BATCH), wanted, atol=1e-5)
    assert str(found.classes) and str(found.why()) and found.derivation.checked < 1e-9


@pytest.mark.parametrize("odd, reason", LEFT_OUT, ids=lambda each: getattr(each, "name", ""))
def test_what_no_graph_can_use_is_left_out_with_a_line(odd, reason, wanted):
    found = om.explore(model(), BATCH, machine="A100", laws=(*om.laws, odd))
    [line] = found.left_out
    assert f"law {odd.name}: it is left out: " in line and reason in line and line in str(found)
    assert odd not in found.laws and np.array_equal(found.best.run(BATCH), wanted)
    by_hand = om.schedule(model(), BATCH, machine=datasheet("A100"))
    with pytest.raises(InputError, match=re.escape(reason)):
        by_hand | odd


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("odd", USED, ids=lambda each: each.name)
def test_an_odd_law_by_hand_is_applied_or_refused_with_a_reason(odd):
    before = om.schedule(model(), BATCH, machine=datasheet("A100"))
    try:
        after = before | odd
    except InputError as error:
        assert "it applies nowhere: part 1 " in str(error)
    else:
        np.testing.assert_allclose(after.run(BATCH), before.run(BATCH), atol=1e-5)


def test_a_law_that_ends_the_search_is_left_out_with_its_cause(monkeypatch, wanted):
    """An error that nothing foresees names its type and its place; other laws stay."""

    @law()
    def fails_late(x: value[n]):
        return x @ relu @ relu, x @ relu

    saturate = layers.saturate

    def failing(template, laws, **options):
        if fails_late in laws:
            raise KeyError("a member")
        return saturate(template, laws, **options)

    monkeypatch.setattr(layers, "saturate", failing)
    found = om.explore(model(), BATCH, machine="A100", laws=(*om.laws, fails_late, thrice))
    [line] = found.left_out
    assert line.startswith("law fails_late: it is left out: KeyError in test_odd_laws.py, line ")
    assert thrice in found.laws and np.array_equal(found.best.run(BATCH), wanted)


def test_a_law_given_as_a_function_is_tried_as_one_of_a_file_is():
    @law()
    def drops(x: value[n], A: operator[n, p]):
        return x @ A @ relu, x @ A

    for use in (
        lambda: om.explore(model(), BATCH, machine="A100", laws=(*om.laws, drops)),
        lambda: om.optimize(model(), workload=BATCH, laws=(*om.laws, drops)),
        lambda: om.schedule(model(), BATCH, machine=datasheet("A100")) | drops,
    ):
        with pytest.raises(InputError, match="law drops: it is wrong: with x = "):
            use()


def test_a_direction_whose_variables_no_match_tells_is_not_written():
    assert [each.name for each in directions(only_left)] == ["only_left"] and len(rules(only_left)) == 1
    assert directions(only_right) == () and rules(only_right) == ()


# ---- where a graph matches laws


@pytest.mark.parametrize("each", [*EXACT_LAWS, *CHOOSING_LAWS], ids=lambda each: each.name)
def test_a_law_holds_wherever_a_graph_matches_it(each):
    """At sizes that are one in the annotations and not in a graph, of several heads; and no condition is needless."""
    assert not find_mismatch(each, seed=1) and not list_needless(each, seed=1)


@law()
def folded(x: value[n], y: value[n]):
    return row(x, y) @ heads(2) @ total, x + y


@law()
def shared_heads(x: value[n]):
    return x, x @ repeat(2) @ total * 0.5


@law()
def of_four(x: value[4]):
    return turn(turn(x)), x @ heads(2) @ heads(2).T


@law()
def stack_rows(x: value[h, q], A: matrix[h * q, p], H: count):
    return (x @ heads(H).T) @ A, (x @ by_head(A, H)) @ total


@law()
def row_apart(x: value[n], y: value[k], A: matrix[n + k, p]):
    return row(x, y) @ A, x @ first_rows(A, x, y) + y @ last_rows(A, x, y)


@law()
def two_widths(x: value[n], y: value[n]):
    return (x @ relu, y @ relu), ((x + y - y) @ relu, y @ relu)


WIDER = [
    (folded, "y: value[4]"),
    (shared_heads, "x: value[h, n]"),
    (of_four, "x: value[11]"),
    (stack_rows, "A: matrix[h, h*q, p]"),
    (row_apart, "A: matrix[h, k + n, p]"),
    (two_widths, "y: value[11]"),
]


@pytest.mark.parametrize("wrong, sorts", WIDER, ids=lambda each: getattr(each, "name", ""))
def test_a_law_that_is_matched_where_it_is_wrong_is_refused(wrong, sorts):
    assert wrong.holds(np.random.default_rng(0)) and find_mismatch(wrong) == sorts
    with pytest.raises(AssertionError, match=re.escape(f"{wrong.name}: it is wrong for {sorts}, ")):
        check_matches(wrong)


def test_a_condition_that_nothing_needs_is_refused():
    @law(when=("(single A)",))
    def needless(x: value[n], A: matrix[n, p]):
        return x @ relu @ relu @ A, x @ relu @ A

    with pytest.raises(InputError, match=r"law needless: it holds without when='\(single A\)', too"):
        om.explore(model(), BATCH, machine="A100", laws=(*om.laws, needless))


def test_products_of_values_are_matched_at_the_widths_that_fit():
    @law()
    def regrouped(a: value[n], b: value[n], v: value[p]):
        return product(product(a, turn(b)), v), product(a, product(turn(b), v))

    assert not find_mismatch(regrouped)


# ---- conditions on variables of every sort

SIZED = operator[n, n], operator[n, p], operator[h, n, p], operator[h, h * p, p], operator[n, 1]
ADDITIVE = {"maps_zero_to_zero", "positively_homogeneous"}
BY_ROWS = {"row_wise", "selective"}
LINEAR = {"additive", "row_linear", "uniform", *ADDITIVE, *BY_ROWS}
FOLLOWS = {  # from each property, or from every kind that has it
    "additive": ADDITIVE,
    "by_key": set(),
    "column": {"level"},
    "constant": set(),
    "diagonal": {"uniform", *BY_ROWS},
    "entrywise": {"diagonal", "uniform", *BY_ROWS},
    "keeps_order": BY_ROWS,
    "level": {"column"},
    "linear": LINEAR,
    "maps_zero_to_zero": set(),
    "positively_homogeneous": set(),
    "row_linear": LINEAR - {"row_linear", "uniform"},
    "row_wise": {"selective"},
    "selective": set(),
    "single": {"linear", "storable", *LINEAR},
    "storable": LINEAR,
    "splits": LINEAR - {"row_linear"},
    "stacked": {"storable", *LINEAR},
    "uniform": BY_ROWS,
}


def drawn_with(fact):
    """The operators of every size that a check draws where a condition asks for a fact."""
    for sort in SIZED:
        asked = replace(sort, facts=(fact,))
        yield from (drawn(np.random.default_rng(0), asked, "A", way) for way in range(len(list_ways(asked))))


@pytest.mark.parametrize("fact", PROPERTIES)
def test_a_check_draws_operators_that_have_a_property_and_no_other(fact):
    """A law that needs more than its condition asks for is so seen to be wrong."""
    operators = [*drawn_with(fact)]
    assert operators and all(getattr(each, fact) for each in operators)
    assert {other for other in PROPERTIES if all(getattr(each, other) for each in operators)} == {fact, *FOLLOWS[fact]}


@law(when="(positively_homogeneous A)")
def scaled_before(x: value[n], A: operator[n, p]):
    return (x * 2.0) @ A, (x @ A) * 2.0


@law(when="(uniform A)")
def picked_before(x: value[n], A: operator[n, p], r: relation):
    return x @ A @ pick(r), x @ pick(r) @ A


@law(when="(constant A)")
def of_any_rows(x: value[n], A: operator[n, p]):
    return x @ A, (x * 2.0) @ A


@law(when="(maps_zero_to_zero f)")
def none_of_none(x: value[n], f: entrywise):
    return (x * 0.0) @ f, x * 0.0


@law(when="(right_linear m)")
def scaled_keys(x: value[n], z: scores[h], m: over, w: where):
    return product(z, x * -2.0, m, w), product(z, x, m, w) * -2.0


@law(when=("(constant y)",))
def same_rows(x: value[n], y: value[n], r: relation):
    return (x + y) @ pick(r), x @ pick(r) + y @ pick(r)


@law(when="(additive A)")
def wrong_one(x: value[n], A: operator[n, p], r: relation):
    return x @ A @ pick(r), x @ pick(r) @ A


@law(when="(row_wise A)")
def wrong_two(x: value[n], A: operator[n, p]):
    return (x * 2.0) @ A, (x @ A) * 2.0


@law(when="(selective A)")
def wrong_three(x: value[n], A: operator[n, p], r: relation):
    return x @ A @ pick(r), x @ pick(r) @ A


@law(when="(homogeneous_over m)")
def wrong_four(x: value[n], z: scores[h], m: over, w: where):
    return product(z, x * -2.0, m, w), product(z, x, m, w) * -2.0


@law()
def wrong_five(x: value[n], A: operator[n, p], r: relation):
    return x @ A @ pick(r), x @ pick(r) @ A


def told(law):
    """The outcome of trying a law: empty where it is used."""
    try:
        return try_law(law, (law,))
    except InputError as error:
        return str(error)


@pytest.mark.parametrize(
    "true", [scaled_before, picked_before, of_any_rows, none_of_none, scaled_keys], ids=lambda each: each.name
)
def test_a_law_with_a_condition_that_it_needs_is_used(true):
    assert told(true) == ""


@pytest.mark.parametrize(
    "wrong", [wrong_one, wrong_two, wrong_three, wrong_four, wrong_five], ids=lambda each: each.name
)
def test_a_law_that_needs_more_than_its_condition_is_wrong(wrong):
    assert "it is wrong: with x = " in told(wrong)


def test_a_condition_on_a_value_that_changes_no_truth_is_refused():
    assert "it holds without when='(constant y)', too: leave that out" in told(same_rows)


def test_a_law_with_a_condition_is_matched_where_it_holds_alone():
    """Behind relu numbers above zero move, behind tanh they do not."""
    for function, fires in ((relu, True), (tanh, False)):
        model = om.weight(np.ones((9, 8))) @ (I * 2.0) @ function
        template = Template.of({"root": flat(model, given("tokens", 9))})
        assert bool(saturate(spell_values(template, [scaled_again]), [scaled_again]).fired) == fires


@law(when="(positively_homogeneous A)")
def scaled_again(x: value[n], A: operator[n, n]):
    return x @ (I * 2.0) @ A, x @ A @ (I * 2.0)


UNASKED = [
    ("(linier A)", "linier is not a fact of A: operator[n, p], which has splits, column"),
    ("(linear B)", "B is not one of its variables, which are x, A, m, w, r, H, f"),
    ("linear A", "write a fact and a variable in brackets, such as (linear A)"),
    ("(linear A) (linear x)", "write a fact and a variable in brackets"),
    ("(= (wide x) (wide A))", "write a fact and a variable in brackets"),
    ("(linear A x)", "linear takes one variable"),
    ("(joinable A)", "joinable takes 2 variables"),
    ("(act A)", "act is not a fact of A: operator[n, p]"),
    ("(entrywise A)", "no test value of A: operator[n, p] is entrywise"),
    ("(column x)", "no test value of x: value[n] is act and column"),
    ("(linear m)", "linear is not a fact of m: over, which has shift_invariant"),
    ("(normalised w)", "normalised is not a fact of w: where, which has reflexive"),
    ("(linear r)", "linear is not a fact of r: relation, which has none: leave it out"),
    ("(single H)", "single is not a fact of H: count, which has none: leave it out"),
    ("(constant f)", "no test value of f: entrywise is entrywise and constant"),
]


@pytest.mark.parametrize("condition, reason", UNASKED, ids=[condition for condition, _ in UNASKED])
def test_a_condition_that_no_check_can_try_is_refused_with_what_to_do(condition, reason):
    @law(when=condition)
    def asking(x: value[n], A: operator[n, p], m: over, w: where, r: relation, H: count, f: entrywise):
        return x @ A @ relu, x @ A @ relu @ relu

    assert reason in told(asking) and "law asking: " in told(asking)


@pytest.mark.parametrize("each", [*EXACT_LAWS, *CHOOSING_LAWS], ids=lambda each: each.name)
def test_each_shipped_condition_can_be_tried(each):
    assert find_unasked(each) == ""


# ---- values of one size


@law(when="(same_size x y)")
def nothing_added(x: value[n], y: value[n]):
    return x @ relu + (y - y), x @ relu


@law(when="(same_size x y)")
def two_of_one_size(x: value[n], y: value[n]):
    return (x @ relu, y @ relu), ((x + y - y) @ relu, y @ relu)


@law(when=("(additive A)", "(same_size x y)"))
def through_additive(x: value[n], y: value[n], A: operator[n, p]):
    return (x + y) @ A, x @ A + y @ A


@law(when="(same_size x y)")
def in_any_order(x: value[n], y: value[n]):
    return x + y, y + x


@law(when="(same_size x y)")
def not_additive(x: value[n], y: value[n]):
    return (x + y) @ relu, x @ relu + y @ relu


@pytest.mark.parametrize("true", [nothing_added, two_of_one_size, through_additive], ids=lambda each: each.name)
def test_a_law_of_equal_sizes_is_used(true, wanted):
    assert told(true) == ""
    found = om.explore(model(), BATCH, machine="A100", laws=(*om.laws, true))
    assert found.left_out == () and np.allclose(found.best.run(BATCH), wanted, atol=1e-5)


def test_equal_sizes_are_asked_for_where_they_are_needed():
    assert "it holds without when='(same_size x y)', too" in told(in_any_order)
    assert "it is wrong: " in told(not_additive)
    for condition in ("(same_size x)", "(same_size x A)", "(same_size x x x)"):

        @law(when=condition)
        def asking(x: value[n], A: matrix[n, n]):
            return x @ A @ relu, x @ A @ relu @ relu

        assert "same_size takes two values" in told(asking)


@pytest.mark.parametrize("columns, cut, fires", [(8, 1, True), (1, 1, False), (8, 2, False)])
def test_a_law_of_equal_sizes_is_matched_at_equal_sizes_alone(columns, cut, fires):
    """One column, and heads, fit beside a value of another size. What is made entry by entry has the size of that."""
    x, y = (given("tokens", 9) @ om.weight(np.ones((9, size))) @ tanh for size in (8, columns * cut))
    if cut > 1:
        y = y @ heads(cut)
    template = spell_values(Template.of({"root": x @ relu + (y - y)}, [x, y]), [nothing_added])
    assert bool(saturate(template, [nothing_added]).fired) == fires
