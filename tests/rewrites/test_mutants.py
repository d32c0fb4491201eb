"""Mutants: what the checks of a law are worth. Every one is named by a check, or both its sides are proved to be
one."""

from collections import Counter
from functools import cache

import computed
import numpy as np
import pytest
from axioms import LAWS as AXIOMS
from equal import proved
from judge import TRIED, judge
from law_mutants import Mutant, kernel_mutants, mutants

from opmatrix.algebra.operators import I, given, product, relu, turn
from opmatrix.algebra.positions.patterns import causal
from rewrites.laws import EXACT_LAWS
from rewrites.laws.implementation import implementations
from rewrites.laws.law import any_relation, column, constant, find, law, matrix, n, p, stand_in, value

KINDS = {"guard", "linear", "operand", "transpose", "sign", "scale", "order", "index", "term"}
EVERY = [*implementations()]
seeds = pytest.mark.parametrize("seed", range(3))


@cache
def all_mutants():
    return [*mutants(EXACT_LAWS)]  # it takes seconds, so no import makes them


@cache
def all_kernel_mutants():
    return [*kernel_mutants(EVERY[::32])]


# ---- mutants are made of every law, in every way


@pytest.mark.deep
def test_every_law_has_mutants_of_every_kind_that_fits_it():
    assert len(all_mutants()) >= 300 and {each.kind for each in all_mutants()} == KINDS
    assert {each.original.name for each in all_mutants()} == {each.name for each in EXACT_LAWS}
    assert {each.original.name for each in all_kernel_mutants()} == {each.name for each in EVERY[::32]}


def test_a_mutant_is_the_law_with_one_thing_changed():
    late_scale = find(EXACT_LAWS, "late_scale")
    said = {each.change: each.law for each in mutants([late_scale])}
    assert said["A need not be storable"].guards == ("(act x)", "(act r)", "(column r)")
    assert said["r need not be column"].variables["r"].sizes and "(column r)" not in said["r need not be column"].guards
    negated = said["(x_ @ A) is negated on the right"]
    assert negated.statement() == "x_ * r @ A → -(x_ @ A) * r" and negated.guards == late_scale.guards
    assert all(each.sides() != late_scale.sides() or each.guards != late_scale.guards for each in said.values())


def test_what_is_no_rule_is_no_mutant():
    """A variable from nowhere, a value behind a matrix, sides of different sizes."""
    spread = find(EXACT_LAWS, "spread")
    for each in mutants([spread]):
        left, right = each.law.sides()
        assert left[0].out.cols == right[0].out.cols
        names = [{term.args[0] for term in side[0].walk() if term.kind.name == "symbol"} for side in (left, right)]
        assert names[1] <= names[0]


# ---- every one is caught or equal


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_every_mutant_of_a_law_is_caught_or_equal(part):
    """Every tenth; benchmarks/fuzz.py mutants judges all."""
    verdicts = [judge(each) for each in all_mutants()[part * 10 :: 40]]
    assert not [str(v.mutant) for v in verdicts if v.survived]
    assert all(v.graph for v in verdicts if v.law), "a graph does not see what the law's test sees"
    assert Counter(v.law for v in verdicts)[True] > len(verdicts) / 2


@pytest.mark.deep
@pytest.mark.parametrize("part", range(2))
def test_every_mutant_of_a_kernel_is_caught_or_equal(part):
    verdicts = [judge(each) for each in all_kernel_mutants()[part * 5 :: 40]]
    assert not [str(v.mutant) for v in verdicts if v.survived]
    assert Counter(v.law for v in verdicts)[True] > len(verdicts) / 2


@pytest.mark.deep(every=18)
@seeds
@pytest.mark.parametrize("implementation", EVERY[::13], ids=lambda each: each.name)
def test_a_kernel_is_its_term_alone_and_in_a_graph(implementation, seed):
    assert computed.compare_kernel(implementation, np.random.default_rng(seed)) < 1e-9
    matched, worst = computed.misfit(implementation, np.random.default_rng(seed))
    assert matched and worst < 1e-9


# ---- what proves them equal


@seeds
@pytest.mark.parametrize("axiom", AXIOMS, ids=lambda each: each.name)
def test_axioms(axiom, seed):
    axiom.check(np.random.default_rng(seed))
    assert axiom.doc


def test_a_law_is_proved_by_the_others_and_a_wrong_one_is_not():
    @law()
    def twice(x: value[n], c: constant[n], A: matrix[n, p]):
        return (x + (c + c)) @ A, c @ A + (x @ A + c @ A)

    @law()
    def once(x: value[n], c: constant[n], A: matrix[n, p]):
        return (x + (c + c)) @ A, x @ A + c @ A

    @law()
    def unguarded(x: value[n], y: value[n], r: value[n], A: matrix[n, n]):
        return (x * r) @ A, (x @ A) * r

    assert proved(twice) and not proved(once) and not proved(unguarded)


def differs(each, seed):
    """Whether the sides fit, as those of some numbers of heads do not, and are apart."""
    rng = np.random.default_rng(seed)
    try:
        return any(each.difference_of(rng, chosen) > 1e-9 for chosen in each.trials(rng))
    except TypeError:
        return False


@pytest.mark.deep
@pytest.mark.parametrize("each", EXACT_LAWS, ids=lambda each: each.name)
def test_most_laws_follow_from_the_axioms(each):
    """What is proved is true: of the mutants that fail, none."""
    wrong = [mutant for mutant in all_mutants() if mutant.original is each][::9]
    for mutant in wrong:
        assert not (proved(mutant.law) and any(differs(mutant.law, seed) for seed in range(6))), str(mutant)


def test_a_survivor_is_one():
    """True, but nothing says so: neither caught nor proved."""

    @law()
    def again(x: value[n], r: column):
        return x @ relu @ relu, x @ relu

    assert again.holds(np.random.default_rng(0))
    assert judge(Mutant(again, again, "term", "none")).survived


def test_an_array_of_a_law_may_be_stored_as_the_axioms_say():
    """`act` directs a search and makes no law true (rewrites/laws/facts.py)."""
    of_arrays = [each for each in EXACT_LAWS if any(sort.name == "array" for sort in each.variables.values())]
    stored = [each for each in mutants(of_arrays) if each.change in ("a need not be act", "b need not be act")]
    assert len(stored) == 2 * len(of_arrays)
    assert all(proved(each.law) for each in stored), [str(each) for each in stored if not proved(each.law)]


def test_rows_that_a_pattern_cannot_place_are_no_trial():
    """Pooled rows have no positions; of the relations of a law, others decide."""

    @law()
    def forgets(x: value[n], W: matrix[n, p], r: any_relation):
        return product(given(r), x) @ W, product(given(r), x @ W, where=causal)

    rng = np.random.default_rng(0)
    assert 0 < len([*forgets.differences(rng)]) < len([*forgets.trials(rng)])
    verdict = judge(Mutant(forgets, forgets, "index", "none"))
    assert verdict.law and verdict.graph


def test_a_law_that_cannot_be_written_is_no_trial_that_does_not_fit():
    @law()
    def alone(x: value[n]):
        return (x,)

    with pytest.raises(ValueError, match=r"law alone: it returns .*: return both sides"):
        judge(Mutant(alone, alone, "term", "none"))


@pytest.mark.deep
def test_a_mutant_of_a_guard_that_is_about_storage_says_so():
    stored = next(each for each in all_kernel_mutants() if each.change == "x need not be act")
    assert judge(stored).equal == TRIED


def test_numbers_monoids_and_patterns_of_a_law_are_known_to_the_graph():
    @law()
    def halves(a: value[n], b: value[n]):
        return product(a, turn(b)) * 2.0, product(a @ (I * 2.0), turn(b))

    verdict = judge(Mutant(halves, halves, "scale", "none"))
    assert not verdict.law and not verdict.graph
    assert stand_in("a", value[n]) in set(halves.sides()[0][0].walk())
