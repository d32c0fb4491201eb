"""Laws of the user's own: a true one never makes a program dearer, whatever limits its graph meets, and every term that
it makes equal is offered."""

from functools import reduce
from operator import add, mul

import numpy as np
import pytest
from true_laws import TRUE_LAWS, abs_squared, relu_once, square_as_product, sums_in_any_order

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import I, const, heads, magnitude, ones, product, reciprocal, relu, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.runtime.pricing import datasheet
from rewrites.explain.exploring import exploration
from rewrites.laws import EXACT_LAWS, without
from rewrites.laws.law import find
from rewrites.lowering.class_terms import MOST_TERMS
from rewrites.lowering.uncovered import Interpreted
from rewrites.search.search import SearchSpace, cheapest, search
from rewrites.verify.user_laws import try_law

VOCABULARY, WIDTH = 30, 16
MACHINE = datasheet("A100")


def matrix(rng, *shape):
    return weight(rng.normal(size=shape) / shape[-2] ** 0.5)


def found(model, *own, lengths=(9, 3)):
    """The cheapest program of a model with some laws of one's own."""
    return search(model, (*EXACT_LAWS, *own), MACHINE, counted(lengths))


def check_numbers(structure, model):
    """The program gives what the model gives."""
    batch = Batch([np.random.default_rng(1).integers(0, VOCABULARY, length) for length in (9, 3)])
    wanted = dense(model, batch)
    assert abs(structure.program({})[0].run(batch) - wanted).max() <= 1e-5 * abs(wanted).max()


def deep(rng):
    """|u|² between two matrices: no kernel computes it, and one multiplies u by u."""
    return matrix(rng, VOCABULARY, WIDTH) @ (magnitude * magnitude) @ matrix(rng, WIDTH, 4)


def two_relus(rng):
    """A sum of two relus, which a law of one's own makes cheaper."""
    return matrix(rng, VOCABULARY, WIDTH) @ matrix(rng, WIDTH, WIDTH) @ relu @ relu @ matrix(rng, WIDTH, 4)


def two_parts(rng):
    """Two parts, of which a law helps the first, and another law the second."""
    queries, keys, values = (matrix(rng, WIDTH, WIDTH) for _ in range(3))
    mixed = I + product(product(queries, turn(keys)), values)
    return two_relus(rng) @ matrix(rng, 4, WIDTH) @ mixed @ (magnitude * magnitude)


def long_sum(rng):
    """Nine summands, of which there are more orders than a graph holds."""
    summed = sum_of([matrix(rng, WIDTH, WIDTH) @ magnitude for _ in range(9)])
    return matrix(rng, VOCABULARY, WIDTH) @ summed @ (magnitude * magnitude) @ matrix(rng, WIDTH, 4)


def sum_of(terms):
    return reduce(add, terms)


MODELS = {each.__name__: each for each in (deep, two_relus, two_parts)}


@pytest.mark.parametrize("each", TRUE_LAWS, ids=lambda each: each.name)
def test_the_laws_of_these_tests_are_true(each):
    assert not try_law(each, TRUE_LAWS)


@pytest.mark.parametrize("name", [*MODELS, pytest.param("long_sum", marks=pytest.mark.deep)])
@pytest.mark.parametrize("own", [abs_squared, square_as_product, sums_in_any_order], ids=lambda each: each.name)
def test_no_law_makes_a_program_dearer(rng, name, own):
    model = (MODELS | {"long_sum": long_sum})[name](rng)
    before, after = found(model), found(model, own)
    assert after.time <= before.time * (1 + 1e-9)
    check_numbers(after, model)


def test_a_law_that_lets_a_kernel_compute_a_term_takes_nothing_away(rng):
    """The term that was written stays a step, so the other one is chosen only where it is cheaper."""
    model = deep(rng)
    space = SearchSpace(model, (*EXACT_LAWS, abs_squared), MACHINE, counted([9, 3]))
    cheapest(space)
    (lowering,) = (each for each in space.lowerings.values() if abs_squared.name in each.graph.fired)
    steps = {
        call.implementation.attributes["term"]
        for _, call in lowering.calls
        if isinstance(call.implementation, Interpreted)
    }
    assert any("magnitude" in step for step in steps) and any(
        "mul" in step and "magnitude" not in step for step in steps
    )


@pytest.mark.deep
def test_a_law_that_meets_a_limit_loses_nothing_and_is_named(rng):
    """Other laws are not done when it meets the limit: the program without it is taken, and a line says so."""
    model = long_sum(rng)
    before, after = found(model), found(model, sums_in_any_order)
    assert after.time <= before.time * (1 + 1e-9)
    assert any(f"{sums_in_any_order.name} was growing" in line for line in after.cut)


@pytest.mark.deep
def test_a_law_that_meets_a_limit_loses_nothing_of_another(rng):
    """Of several laws the one that pays alone still pays."""
    model = long_sum(rng)
    before, one, both = found(model), found(model, abs_squared), found(model, sums_in_any_order, abs_squared)
    assert one.time < before.time * (1 - 1e-9) and both.time <= one.time * (1 + 1e-9)


def test_a_part_keeps_what_was_found_without_a_law_and_another_takes_it(rng):
    """Graphs are exchanged one by one: a law that hides the program of one part pays in another."""
    model = two_parts(rng)
    space = SearchSpace(model, (*EXACT_LAWS, relu_once, abs_squared), MACHINE, counted([9, 3]))
    structure = cheapest(space)
    for number, (before, _) in structure.route:
        assert structure.lowering(number) is space.lowering(number, before)


# ---- linear attention


def written(name, rng):
    """Linear attention written from the scores, and from the state."""
    queries, keys, values = (matrix(rng, WIDTH, WIDTH) for _ in range(3))
    one = const(np.ones(1))
    match name:
        case "plain":
            ways = (product(product(queries, turn(keys)), values), product(queries, product(turn(keys), values)))
        case "mean":
            ways = (
                product(product(queries, turn(keys)), values, mean),
                product(queries, product(turn(keys), values, mean)),
            )
        case "scaled":
            ways = (
                product(product(queries, turn(keys)) @ (I * 0.25), values),
                product(queries @ (I * 0.25), product(turn(keys), values)),
            )
        case "heads":
            queries, keys, values = (each @ heads(2) for each in (queries, keys, values))
            ways = (
                product(product(queries, turn(keys)), values) @ heads(2).T,
                product(queries, product(turn(keys), values)) @ heads(2).T,
            )
        case "by sums of scores":
            scores, features = product(queries @ relu, turn(keys @ relu)), turn(keys @ relu)
            ways = (
                product(scores, values) * (scores @ ones @ reciprocal),
                product(queries @ relu, product(features, values))
                * (product(queries @ relu, features @ ones) @ reciprocal),
            )
        case "by a column of ones":
            scores, features = product(queries, turn(keys)), turn(keys)
            ways = (
                product(scores, values) * product(scores, one),
                product(queries, product(features, values)) * product(queries, product(features, one)),
            )
        case "chain":
            first, second = product(queries, turn(keys)), product(values, turn(queries))
            ways = (
                product(product(first, second), keys),
                product(queries, product(turn(keys), product(values, product(turn(queries), keys)))),
            )
    embedded = matrix(rng, VOCABULARY, WIDTH)
    return [embedded @ way for way in ways]


WAYS = "plain", "mean", "scaled", "heads", "by sums of scores", "by a column of ones", "chain"


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("tokens", [12, 4096])
def test_linear_attention_is_one_program_however_it_is_written(rng, name, tokens):
    """No law is added. At 4,096 tokens no scores are computed."""
    ways = written(name, rng)
    one, other = (found(way, lengths=[tokens]) for way in ways)
    assert str(one.program({})[0]) == str(other.program({})[0]) and one.time == pytest.approx(other.time, rel=1e-9)
    check_numbers(one, ways[0])
    if tokens == 4096:
        assert (
            one.time
            < 0.2
            * search(
                ways[0],
                without(EXACT_LAWS, ["associate_products", "associate_means", "associate_with_matrix"]),
                MACHINE,
                counted([tokens]),
            ).time
        )


def test_a_pattern_keeps_scores(rng):
    """Scores of which some are left out are no product of values: nothing is re-associated."""
    from opmatrix.algebra.positions.patterns import sequence

    queries, keys, values = (matrix(rng, WIDTH, WIDTH) for _ in range(3))
    model = matrix(rng, VOCABULARY, WIDTH) @ product(product(queries, turn(keys)), values, where=sequence)
    structure = found(model)
    assert "associate_products" not in structure.fired
    check_numbers(structure, model)


def test_more_terms_than_are_read_are_said(rng):
    """A product of six, associated in any way."""
    total = reduce(mul, [matrix(rng, WIDTH, WIDTH) @ magnitude for _ in range(6)])
    model = matrix(rng, VOCABULARY, WIDTH) @ total
    told = exploration.explore(model, 12, machine="A100").with_laws(find(TRUE_LAWS, "products_associate"))
    (line,) = (line for line in told.structure.cut if line.startswith(f"terms: at most {MOST_TERMS} of a class"))
    assert f"limit: {line}" in str(told)
