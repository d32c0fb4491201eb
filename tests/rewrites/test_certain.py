"""Proofs and refutations that are certain: numbers that cancel, what rounding explains, random pairs whose names
collide."""

from fractions import Fraction
from functools import cache
from operator import add, mul, sub, truediv

import numpy as np
import proof_pairs
import pytest
from proof_pairs import judged, pair, tabulated
from test_equations import K, M

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import (
    I,
    centre,
    const,
    gelu,
    given,
    layernorm,
    mean,
    pick,
    product,
    relation,
    relu,
    rotary,
    square,
    symbol,
    total,
    turn,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import Shape, T, size
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import INPUT, ROWS, array, k, n, stand_in, varying
from rewrites.laws.proving import cancelling, values
from rewrites.proofs.enclosure import FUNCTIONS, Between, Undecided, around, choose_between, enclose
from rewrites.proofs.equations import Prover, prove
from rewrites.proofs.refute import refute

EACH = pytest.mark.parametrize("each", cancelling.CANCELLING_LAWS, ids=lambda law: law.name)
INF = float("inf")


@cache
def prover():
    return Prover(values.VALUE_LAWS + cancelling.CANCELLING_LAWS)


def weights(rows, cols, seed=0):
    return weight(np.random.default_rng(seed).normal(size=(rows, cols)))


# ---- laws of numbers


@EACH
@pytest.mark.parametrize("seed", range(3))
def test_declared(each, seed):
    each.check(np.random.default_rng(seed))


@pytest.mark.deep(every=3)
@EACH
def test_every_law_proves_itself(each):
    for one, other in zip(*each.sides(), strict=True):
        assert prover().prove(one, other) and prove(one, other)


@EACH
def test_guards_say_why(each):
    needed = {name for other in each.without for name in other}
    for name, sort in each.variables.items():
        if sort.facts and name not in needed:
            assert f"any {name}" in each.doc and all(
                each.holds(np.random.default_rng(seed), **{name: varying[1]}) for seed in range(3)
            )


MISFITS = dict(b=[array[k, 1], array[1, n]], r=[array[k, n], array[1, 1]])


@pytest.mark.parametrize(
    "each, name, other",
    [
        (law, name, other)
        for law in cancelling.CANCELLING_LAWS
        if law.when
        for name, others in MISFITS.items()
        if name in law.variables
        for other in others
    ],
)
def test_the_graph_refuses_what_does_not_fit(each, name, other):
    """Zeros of more columns than what they are added to make it wider; numbers of many columns have an average."""
    sorts = dict(each.variables)
    try:
        ((left, _),) = zip(
            *each.of({at: stand_in(at, sort) for at, sort in (sorts | {name: other}).items()}), strict=True
        )
    except TypeError:
        return
    if name == "r" and other.sizes[-1] == 1:
        return  # one column still, where rows are none of its matter
    assert each.name in prover().prove(each.sides()[0][0], symbol("other", None, Shape(1, M, K))).matches
    assert each.name not in prover().prove(left, symbol("other", None, left.out)).matches


def test_heads_that_spread_are_not_dropped():
    """Zeros of several heads make as many of one."""
    many, one = symbol("a", None, Shape(2, M, K)), symbol("b", None, Shape(1, M, K))
    assert not prove(one + compose(many, I * 0.0), one) and prove(
        many + compose(symbol("c", None, Shape(2, M, K)), I * 0.0), many
    )
    each, x = weight(np.ones((2, 4, 4))), const(np.full((2, 1, 1), 3.0))  # a number for each of two heads
    assert prove((I * 0.0 * 5.0 + I) @ total, I @ total)
    for zeros in (I * 0.0 * x, I * (const(0.0) * x), I * x * 0.0):
        assert not prove((zeros + I) @ total, I @ total)
    assert not prove((I * 0.0 @ each + I) @ total, I @ total)


# ---- operators are read at one value

p, q = size("p"), size("q")
F, G = (symbol(name, p, q) for name in "FG")
E = symbol("E", K, p)
LINEAR = symbol("L", q, p, linear=True)
PROVED = [
    (E @ (F + G), E @ F + E @ G),
    ((E @ F) @ LINEAR, E @ (F @ LINEAR)),
    ((F + G) @ LINEAR, F @ LINEAR + G @ LINEAR),
    (E @ (F * G), (E @ F) * (E @ G)),
    (relu @ (gelu + square), relu @ gelu + relu @ square),
    (centre @ centre, centre),
    (centre @ centre @ centre, centre),
    (layernorm(1e-5) @ centre, layernorm(1e-5)),
    (I @ mean @ mean, I @ mean),
    ((I * 1e12 + I) - I * 1e12, I),
    (I - I, I * 0),
    (I - I + relu, relu),
    (relu + gelu - relu, gelu),
    (relu + gelu + square - relu - square, gelu),
    (I * 1, I),
    (I * -1 * -1, I),
    (I + I * 0, I),
    (I * 0 + gelu, gelu),
    (given("tokens", 9) @ weights(9, 4) @ (relu + gelu), given("tokens", 9) @ weights(9, 4) @ (gelu + relu)),
    (product(given("members"), relu + gelu, over=mean), product(given("members"), gelu + relu, over=mean)),
    (given("feature", 4, "V") @ (relu + gelu), given("feature", 4, "V") @ relu + given("feature", 4, "V") @ gelu),
    ((relu + gelu) @ pick("last"), (gelu + relu) @ pick("last")),
]


@pytest.mark.parametrize("one, other", PROVED)
def test_proved(one, other):
    assert prove(one, other).verdict == "proved"


LINKS, BACKWARDS = relation("links", "T", "T"), relation("backwards", "T", "T")
UNPROVED = [
    (F @ LINEAR, G @ LINEAR),
    (LINEAR @ (F + G), LINEAR @ F),
    ((F + G) @ symbol("N", q, p), F @ symbol("N", q, p) + G @ symbol("N", q, p)),
    (pick("last") @ weights(4, 4), weights(4, 4)),
    (relu @ gelu, gelu @ relu),
    (product(given(LINKS), I, over=mean), product(turn(turn(given(LINKS))), I, over=mean)),
    ((pick("last") + pick("first")) @ rotary(5, 4), (pick("first") + pick("last")) @ rotary(5, 4)),
    (given("tokens", 9) @ weights(9, 4), given("tokens", 9) @ weights(9, 4, 1)),
    (given("feature", 4, "V") @ relu, given("feature", 4, "V") @ gelu),
    (product(given(LINKS), I), product(given(BACKWARDS), I)),
    (pick(BACKWARDS), I),
    (given("positions", 5) @ weights(5, 4), I),
    ((I * 1e12 + I) - I * 1e12, I * 2),
    (I * 1e30 + I * 0.5, I * 1e30),
    (I * 1e-30, I * 2e-30),
]


@pytest.mark.parametrize("one, other", UNPROVED)
def test_not_proved(one, other):
    proof = prove(one, other)
    assert proof.verdict in ("refuted", "not found")
    if proof.verdict == "refuted" and proof.at.entry:
        left, right = (dense(side, proof.at.x, proof.at.batch)[proof.at.entry] for side in proof.at.sides)
        assert (left, right) == (proof.at.left, proof.at.right)


NOT_REFUTED = [
    ((I * 1e30 + I) - I * 1e30, I),
    ((I / 3 * 3 + I * 1e14) - I * 1e14, I),
    (I * INF * 0, I * 0),
    (I / 3 * 3, I),
    ((I + I * INF) - I * INF, I),
    (I * 0.1 + I * 0.2, I * 0.3),
    ((I * 0.1) * 1e13 - I * 1e12, I * 0),
    (I * 1e300 * 1e300 * 1e-300 * 1e-300, I),
    (relu * 1e16 + relu - relu * 1e16, relu),
    (centre @ square @ mean * 1e15 - centre @ square @ mean * 1e15 + I, I),
]


@pytest.mark.parametrize("one, other", NOT_REFUTED)
def test_what_rounding_explains_is_not_refuted(one, other):
    assert prove(one, other).verdict in ("proved", "not found")


def test_exact_numbers_refute_what_cancels():
    """No interval tells 1 from 2 beside 1e30, where numbers are whole fractions do."""
    big = float(2**100)
    assert prove((I * big + I) - I * big, I * 2).verdict == "refuted"
    assert prove((I * big + I) - I * big, I).verdict == "proved"


SHAPES = [
    (4, 4),
    (4, 3),
    (None, None),
    (None, 4),
    (p, p),
    (p, q),
    (4, Shape(2, T, 4)),
    (p, Shape(1, T, T)),
    (None, Shape(1, p, q)),
]
OF_SHAPE = {
    (4, 4): ("linear", "entrywise", "constant", "positively_homogeneous"),
    (None, None): ("linear", "entrywise", "maps_zero_to_zero"),
    (p, p): ("entrywise", "additive"),
    (p, q): ("linear", "constant", "row_wise"),
}


@pytest.mark.parametrize(
    "into, out, fact", [(*each, fact) for each in SHAPES for fact in (None, *OF_SHAPE.get(each, ()))]
)
def test_two_symbols_are_two_operators(into, out, fact):
    """Whatever is known of them: neither a refutation nor the judge of random pairs takes one for the other."""
    a, b = (symbol(name, into, out, **({fact: True} if fact else {})) for name in "ab")
    assert refute(a, b) is not None and proof_pairs.differ(*proof_pairs.drawn(a, b, 0))
    if into == out and fact not in ("linear", "positively_homogeneous", "additive"):
        assert refute(a @ b, b @ a) is not None, "nor one order for the other"


# ---- intervals


def test_intervals_hold_what_is_exact():
    """Sums, products and quotients of random numbers, some of them far apart, against fractions."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        exact = [Fraction(float(u)) for u in rng.normal(size=6) * 10.0 ** rng.integers(-12, 12, 6)]
        held = [Between(float(u)) for u in exact]
        for _ in range(12):
            i, j, join = rng.integers(6), rng.integers(6), (add, sub, mul, truediv)[rng.integers(4)]
            if join is truediv and exact[j] == 0:
                continue
            for of in (exact, held):
                of[i] = join(of[i], of[j])
        for u, v in zip(exact, held, strict=True):
            assert v.unknown or ((v.low == -INF or Fraction(v.low) <= u) and (v.high == INF or u <= Fraction(v.high)))


SMOOTH = ("exp", "tanh", "sqrt", "log", "erf", "expm1", "log1p", "sin", "cos", "arctan", "sinh", "expit", "cbrt")


@pytest.mark.parametrize("name", SMOOTH)
def test_functions_of_intervals_hold_those_of_their_numbers(name):
    """Many digits lie within; a wider interval gives a wider one."""
    import mpmath

    named = dict(arctan=mpmath.atan, expit=lambda u: 1 / (1 + mpmath.exp(-u)), log1p=lambda u: mpmath.log(1 + u))
    f, rng = named.get(name) or getattr(mpmath, name), np.random.default_rng(1)
    with mpmath.workdps(40):
        for low in rng.uniform(0.01, 8, 40):
            held = FUNCTIONS[name](Between(low, low + 0.5))
            assert all(held.low <= f(mpmath.mpf(at)) <= held.high for at in (low, low + 0.25, low + 0.5))
            point = FUNCTIONS[name](Between(low))
            assert point.high - point.low <= 1e-14 * max(1, abs(point.high))


@pytest.mark.parametrize("name", ["exp", "expit", "tanh", "erf", "expm1", "exp2"])
def test_functions_of_intervals_hold_at_the_ends_of_float64(name):
    """Where their numbers are among the smallest that there are."""
    import mpmath

    named = dict(expit=lambda u: 1 / (1 + mpmath.exp(-u)), exp2=lambda u: mpmath.mpf(2) ** u)
    f = named.get(name) or getattr(mpmath, name)
    with mpmath.workdps(400):
        for at in (-1100.0, -750.0, -744.5, -720.0, -705.0, -700.0, -699.5, -40.0, 5e-324, 1e-310, 40.0, 699.5):
            held = FUNCTIONS[name](Between(at))
            assert held.low <= f(mpmath.mpf(at)) <= held.high, at


def test_what_is_not_told_is_not_decided():
    one, other = Between(0.0, 2.0), Between(1.0, 3.0)
    with pytest.raises(Undecided):
        bool(one < other)
    both = choose_between(one < other, 5.0, 7.0)
    assert (both.low, both.high) == (5.0, 7.0) and choose_between(Between(0.0) < 1.0, 5.0, 7.0) == 5.0
    assert np.where(one < other, Between(5.0), 7.0).high == 7.0 and (Between(INF) - INF).unknown
    assert (Between(INF) * 0.0).unknown and (1.0 / one).unknown and not (one + other).unknown
    assert around(0.1).low < 0.1 < around(0.1).high and around(1e12).low == 1e12 == around(1e12).high


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("over", [each for each in monoids.MONOIDS if each.width is not None], ids=lambda m: m.__name__)
def test_a_term_lies_in_its_intervals(over):
    """Over every monoid, with masks and ties."""
    rng = np.random.default_rng(0)
    x, batch = rng.normal(size=(sum(ROWS), INPUT)), Batch([np.zeros(length, int) for length in ROWS])
    x[1] = x[0]
    for where in proof_pairs.PATTERNS[:6]:
        term = product(product(I, turn(I)) * 0.25, weights(INPUT, 3) @ gelu, over, where)
        if where is not proof_pairs.PATTERNS[0] and over.indexed:
            continue
        found, wanted = enclose(term, x, batch), dense(term, x, batch)
        assert all(
            u.low <= v <= u.high or (u.unknown and not np.isfinite(v)) or u.low == v == u.high
            for u, v in zip(found.flat, wanted.flat, strict=True)
            if np.isfinite(v)
        )


# ---- random pairs


def test_no_random_pair_is_judged_wrongly():
    """Thousands by benchmarks/fuzz.py proofs."""
    counts, wrong = tabulated(range(50))
    assert not wrong and {verdict for _, verdict in counts} == {"proved", "refuted", "not found"}


def test_pairs_are_what_they_were():
    """A pair belongs to its number, and those that identities made are equal."""
    made = [pair(seed) for seed in range(40)]
    assert [str(each.right) for each in made] == [str(pair(seed).right) for seed in range(40)]
    assert 5 < sum(each.equal for each in made) < 35 and {each.how for each in made} > {"cancel", "not cancel"}


def test_a_wrong_law_is_seen(monkeypatch):
    """The judge names a false proof where a law is none."""
    wrong = [law for law in EXACT_LAWS if law.name == "nothing"]
    monkeypatch.setattr(values, "VALUE_LAWS", (*values.VALUE_LAWS, *wrong))
    monkeypatch.setattr(proof_pairs, "prove", lambda one, other, budget: type("Proof", (), dict(verdict="proved"))())
    assert any(judged(seed)[2] == "false proof" for seed in range(12))
