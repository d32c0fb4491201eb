"""True laws of odd shape: they are used, or left out with a line that says why; none ends a search."""
import re

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from opmatrix import I, relu
from opmatrix.algebra.operators import const, heads, product, repeat, row, total, turn
from opmatrix.pricing import datasheet
from rewrites.graph import layers
from rewrites.graph.egraph import directions, rules
from rewrites.graph.law_matches import check_matches, find_mismatch, list_needless
from rewrites.kinds import by_head, first_rows, last_rows
from rewrites.law import constant, count, h, k, law, matrix, n, operator, p, q, value
from rewrites.laws import CHOOSING_LAWS, EXACT_LAWS

BATCH = om.Batch([[0, 3, 1, 8], [4], [5, 2]])


@law()
def turned(x: value[n]): return x, turn(turn(x))
@law()
def turned_back(x: value[n]): return turn(turn(x)), x
@law()
def twice_less(x: value[n]): return x, (x + x) - x
@law()
def number(x: value[n]): return x, x * 2.0 - x
@law()
def number_left(x: value[n]): return x @ (I * 2.0), x + x
@law()
def nests(x: value[n], A: matrix[n, p]): return x @ A, (x @ A) @ relu - (x @ A * -1.0) @ relu
@law()
def thrice(x: value[n]): return x @ relu, x @ relu @ relu @ relu
@law(both=True)
def only_left(x: value[n], y: value[n]): return x @ relu + (y - y), x @ relu
@law(canonical=True)
def canonical_variable(x: value[n]): return x, x + x - x
@law()
def times_one(x: value[n]): return x, x * 1.0
@law()
def of_matrices(A: matrix[n, p]): return A, A + A - A
@law()
def of_constants(c: constant[n]): return c, c + c - c
@law()
def no_variables(): return relu, relu @ relu
@law()
def two_sides(x: value[n], y: value[n]): return (x, y), ((x + y) - y, y)


USED = [turned, turned_back, twice_less, number, number_left, nests, thrice, canonical_variable, times_one,
        of_matrices, of_constants, no_variables]


@law()
def only_right(x: value[n], y: value[n]): return x @ relu @ relu, x @ relu + (y - y)
@law()
def same(x: value[n], A: matrix[n, p]): return x @ A, x @ A
@law()
def bare(x: value[n]): return x, x @ I
@law()
def plus_zero(x: value[n]): return x, x + const(0.0)


LEFT_OUT = [(only_right, "y stands on the right alone"), (same, "both sides are one term"),
            (bare, "both sides are one term"), (plus_zero, "fits nowhere"),
            (only_left, r"it is wrong with y: value[h, n], with which its left side is matched, too"),
            (two_sides, r"it is wrong with y: value[11], with which its left side is matched, too")]


def model():
    rng = np.random.default_rng(0)
    table, into, out = (om.weight(rng.normal(size=size)) for size in ((9, 8), (8, 6), (6, 8)))
    return table @ (I + into @ relu @ out) @ (I * 2.0) @ relu


@pytest.fixture(scope="module")
def wanted(): return om.explore(model(), BATCH, machine="A100").best.run(BATCH)


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
    with pytest.raises(InputError, match=re.escape(reason)): by_hand | odd


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("odd", USED, ids=lambda each: each.name)
def test_an_odd_law_by_hand_is_applied_or_refused_with_a_reason(odd):
    before = om.schedule(model(), BATCH, machine=datasheet("A100"))
    try: after = before | odd
    except InputError as error: assert "it applies nowhere: part 1 " in str(error)
    else: np.testing.assert_allclose(after.run(BATCH), before.run(BATCH), atol=1e-5)


def test_a_law_that_ends_the_search_is_left_out_with_its_cause(monkeypatch, wanted):
    """An error that nothing foresees names its type and its place; other laws stay."""
    @law()
    def fails_late(x: value[n]): return x @ relu @ relu, x @ relu
    saturate = layers.saturate

    def failing(template, laws, **options):
        if fails_late in laws: raise KeyError("a member")
        return saturate(template, laws, **options)
    monkeypatch.setattr(layers, "saturate", failing)
    found = om.explore(model(), BATCH, machine="A100", laws=(*om.laws, fails_late, thrice))
    [line] = found.left_out
    assert line.startswith("law fails_late: it is left out: KeyError in test_odd_laws.py, line ")
    assert thrice in found.laws and np.array_equal(found.best.run(BATCH), wanted)


def test_a_law_given_as_a_function_is_tried_as_one_of_a_file_is():
    @law()
    def drops(x: value[n], A: operator[n, p]): return x @ A @ relu, x @ A
    for use in (lambda: om.explore(model(), BATCH, machine="A100", laws=(*om.laws, drops)),
                lambda: om.optimize(model(), workload=BATCH, laws=(*om.laws, drops)),
                lambda: om.schedule(model(), BATCH, machine=datasheet("A100")) | drops):
        with pytest.raises(InputError, match="law drops: it is wrong: with x = "): use()


def test_a_direction_whose_variables_no_match_tells_is_not_written():
    assert [each.name for each in directions(only_left)] == ["only_left"] and len(rules(only_left)) == 1
    assert directions(only_right) == () and rules(only_right) == ()


# ---- where a graph matches laws

@pytest.mark.parametrize("each", [*EXACT_LAWS, *CHOOSING_LAWS], ids=lambda each: each.name)
def test_a_law_holds_wherever_a_graph_matches_it(each):
    """At sizes that are one in the annotations and not in a graph, of several heads; and no condition is needless."""
    assert not find_mismatch(each, seed=1) and not list_needless(each, seed=1)


@law()
def folded(x: value[n], y: value[n]): return row(x, y) @ heads(2) @ total, x + y
@law()
def shared_heads(x: value[n]): return x, x @ repeat(2) @ total * 0.5
@law()
def of_four(x: value[4]): return turn(turn(x)), x @ heads(2) @ heads(2).T
@law()
def stack_rows(x: value[h, q], A: matrix[h * q, p], H: count): return (x @ heads(H).T) @ A, (x @ by_head(A, H)) @ total
@law()
def row_apart(x: value[n], y: value[k], A: matrix[n + k, p]):
    return row(x, y) @ A, x @ first_rows(A, x, y) + y @ last_rows(A, x, y)
@law()
def two_widths(x: value[n], y: value[n]): return (x @ relu, y @ relu), ((x + y - y) @ relu, y @ relu)


WIDER = [(folded, "y: value[4]"), (shared_heads, "x: value[h, n]"), (of_four, "x: value[11]"),
         (stack_rows, "A: matrix[h, h*q, p]"), (row_apart, "A: matrix[h, k + n, p]"), (two_widths, "y: value[11]")]


@pytest.mark.parametrize("wrong, sorts", WIDER, ids=lambda each: getattr(each, "name", ""))
def test_a_law_that_is_matched_where_it_is_wrong_is_refused(wrong, sorts):
    assert wrong.holds(np.random.default_rng(0)) and find_mismatch(wrong) == sorts
    with pytest.raises(AssertionError, match=re.escape(f"{wrong.name}: it is wrong with {sorts}, ")):
        check_matches(wrong)


def test_a_condition_that_nothing_needs_is_refused():
    @law(when=("(single A)",))
    def needless(x: value[n], A: matrix[n, p]): return x @ relu @ relu @ A, x @ relu @ A
    with pytest.raises(InputError, match=r"law needless: it holds without when='\(single A\)', too"):
        om.explore(model(), BATCH, machine="A100", laws=(*om.laws, needless))


def test_products_of_values_are_matched_at_the_widths_that_fit():
    @law()
    def regrouped(a: value[n], b: value[n], v: value[p]):
        return product(product(a, turn(b)), v), product(a, product(turn(b), v))
    assert not find_mismatch(regrouped)
