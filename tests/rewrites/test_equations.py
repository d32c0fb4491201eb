"""Equality by laws: every law of values holds and is guarded, what is proved is equal, and the engine decides."""

import csv
import re
import sys
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import sympy
from children import ROOT
from test_laws import Whole

sys.path.append(str(ROOT / "benchmarks"))

import extraction

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import I, centre, gelu, product, relu, row, symbol, turn, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.shapes import N, Shape, size
from opmatrix.algebra.term import formula
from rewrites.laws import EXACT_LAWS
from rewrites.laws.kinds import left, right
from rewrites.laws.law import INPUT, ROWS, Sort, array, drawn, k, law, n, operator, p, q, stand_in, varying
from rewrites.laws.proving.blocks import EQUALLY_WIDE
from rewrites.laws.proving.value_kinds import below, unit
from rewrites.laws.proving.values import SORTED
from rewrites.laws.proving.values import VALUE_LAWS as LAWS
from rewrites.proofs.equations import Prover, encode_size, prove
from rewrites.proofs.refute import instance, refute

EACH = pytest.mark.parametrize("each", LAWS, ids=lambda law: law.name)


# ---- every law alone


@pytest.mark.deep(every=3)
@EACH
@pytest.mark.parametrize("seed", range(3))
def test_declared(each, seed):
    each.check(np.random.default_rng(seed))


@pytest.mark.deep(every=6)
@pytest.mark.parametrize(
    "each",
    [
        law
        for law in LAWS
        if "relu" not in law.name and all(sort.name != "entrywise" for sort in law.variables.values())
    ],
    ids=lambda law: law.name,
)
def test_polynomial_laws_hold_exactly(each):
    """In rationals, without any tolerance."""
    rng = Whole(3)
    x, batch = rng.normal((sum(ROWS), INPUT)), Batch([np.zeros(length, int) for length in ROWS])
    for sides in zip(*each.of(each.drawn(rng)), strict=True):
        a, b = (entrywise(side, x, batch, Fraction) for side in sides)
        assert (a == b).all() and a.any()


# what gives the same of a row wherever it stands
SAME_BY_ROWS = Sort("operator", ("row_wise", "uniform", "maps_zero_to_zero"))


@EACH
def test_a_guard_without_a_counterexample_is_none_of_truth(each):
    """The law holds without it, and says so."""
    needed = {name for other in each.without for name in other}
    for name, sort in each.variables.items():
        if name in needed or not sort.facts or "Hardly another fits" in each.doc:
            continue
        assert f"True of any {name}" in each.doc or f"any {name}" in each.doc, (
            f"{each.name} does not say why {name} is guarded"
        )
        anything = SAME_BY_ROWS if f"any {name} that acts on single rows" in each.doc else operator
        other = {"scalar": varying[1], "entrywise": anything[n, n], "matrix": operator}[sort.name]
        assert all(each.holds(np.random.default_rng(seed), **{name: other}) for seed in range(3))


@pytest.mark.parametrize("each", [law for law in LAWS if "Hardly another fits" in law.doc], ids=lambda law: law.name)
def test_what_is_no_function_of_single_entries_fails(each):
    """Taking off a row's mean fits any number of columns too."""
    x, sides = (
        np.random.default_rng(0).normal(size=(sum(ROWS), INPUT)),
        each.of(each.drawn(np.random.default_rng(1)) | {"f": centre}),
    )
    a, b = (dense(side[0], x) for side in sides)
    assert a.shape == b.shape and abs(a - b).max() > 1e-3


# ---- sizes are guards: in the graph, blocks that do not meet are left alone


def misfit(each):
    """Variables of other sizes, which the guard tells apart: the left side fits all the same."""
    sorts = dict(each.variables)
    if each.when == EQUALLY_WIDE:
        sorts["b"] = array[k, 1]
    elif "d" in sorts:
        sorts["c"], sorts["d"] = sorts["d"], sorts["c"]
    else:
        sorts["c"] = array[q, p]
    return {name: stand_in(name, sort) for name, sort in sorts.items()}


def over(term, by):
    """The term with its symbols replaced."""
    if term.kind.name == "symbol":
        return by[term.args[0]]
    return term.kind(*(over(child, by) for child in term.children), *term.attributes)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("each", [law for law in LAWS if law.when and law.when != SORTED], ids=lambda law: law.name)
def test_the_graph_refuses_what_does_not_fit(each):
    before, other = each.sides()[0][0], misfit(each)
    fits, misfits = before, over(before, other)
    assert each.name in prove(fits, symbol("other", None, fits.out)).matches
    assert each.name not in prove(misfits, symbol("other", None, misfits.out)).matches
    try:
        ((_, after),) = zip(*each.of(other), strict=True)
    except TypeError:
        return
    assert after.out != misfits.out  # without the guard two sizes were one


def test_sizes_are_told_apart():
    m, r = size("m"), size("r")
    powers = {sympy.S.One: 0}
    sizes = [1, 2, 3, m, r, m + r, 2 * m, 2 * r, m + 1, m * r, m / 2, m / 2 + r, m - r]
    numbers = [encode_size(each, powers) for each in sizes]
    assert len(set(numbers)) == len(sizes) and numbers[5] == numbers[3] + numbers[4] == encode_size(r + m, powers)
    assert encode_size(N, powers) is encode_size(N + 1, powers) is None


# ---- proofs

M, K, S = size("m"), size("k"), size("r")
A, B, C = (symbol(name, None, Shape(1, M, K)) for name in "ABC")
D, E = (symbol(name, None, Shape(1, K, S)) for name in "DE")
Q = symbol("Q", None, Shape(1, K, K))
s, t = (symbol(name, None, 1, constant=True, uniform=True) for name in "st")


def scaled(a, number):
    return compose(a, I * number)


EQUAL = [
    (turn(product(scaled(A + B, s), D)), scaled(product(turn(D), turn(B)) + product(turn(D), turn(A)), s)),
    (scaled(scaled(A, s) * B, t), scaled(B, t * s) * A),
    (scaled(A, s + t), scaled(A, t) + scaled(A, s)),
    (product(row(A, B), below(D, E)), product(B, E) + product(A, D)),
    (product(A * (B + C), D), product(C * A, D) + product(B * A, D)),
    (turn(row(A, compose(B, relu))), below(turn(A), compose(turn(B), relu))),
    (left(compose(row(A, B), gelu), C), compose(A, gelu)),
    (right(row(below(A, B), below(C, B)), A), below(C, B)),
    (row(below(A, B), below(B, C)), below(row(A, B), row(B, C))),
    (product(unit(turn(A)), product(product(A, unit(A)), product(Q, Q))), product(product(A, Q), Q)),
    ((A + B) * (B + C) * (C + A), (C + B) * (A + C) * (B + A)),
    ((A + B) * (B + C), A * B + B * B + A * C + C * B),
    (product(A, D, over=softmax), product(turn(turn(A)), D, over=softmax)),
]
DIFFERENT = [
    (A, B),
    (A + A, A),
    (A * A, A),
    (Q, turn(Q)),
    (product(Q, turn(Q)), product(turn(Q), Q)),
    (scaled(A, s), scaled(A, t)),
    (compose(A + B, gelu), compose(A, gelu) + compose(B, gelu)),
    (compose(scaled(A, s), relu), scaled(compose(A, relu), s)),
    (row(A, B), row(B, A)),
    (left(row(A, B), C), B),
    ((A + B) * C, A * C + B),
    (product(A, D), product(A, E)),
    (product(A, D, over=softmax), product(A, D)),
    (turn(product(A, D, over=softmax)), product(turn(D), turn(A), over=softmax)),
    (compose(A, gelu), compose(A, relu)),
    (unit(A), Q),
]


@pytest.mark.parametrize("one, other", EQUAL)
def test_proved(one, other):
    proof = prove(one, other)
    assert proof and not proof.cut and proof.matches


@pytest.mark.parametrize("one, other", DIFFERENT)
def test_refuted(one, other):
    """Not proved, and numbers say where they differ."""
    proof = prove(one, other)
    assert not proof and not proof.cut and proof.verdict == "refuted"
    assert abs(proof.at.left - proof.at.right) > 1e-6 and str(proof).startswith("refuted: entry ")
    left, right = (
        (
            instance(side, {leaf: proof.at.symbols[leaf.args[0]] for leaf in side.walk() if leaf.kind.name == "symbol"})
            for side in (one, other)
        )
        if not sizes(one, other)
        else (None, None)
    )
    if left is not None:
        assert not np.allclose(dense(left, proof.at.x), dense(right, proof.at.x))


def sizes(*terms):
    """Sizes without numbers among the attributes of terms, beside those of symbols."""
    nodes = [node for term in terms for node in term.walk() if node.kind.name != "symbol"]
    return {a for node in nodes for a in node.attributes if isinstance(a, sympy.Basic)}


@pytest.mark.parametrize("one, other", EQUAL)
def test_what_is_equal_is_not_refuted(one, other):
    assert refute(one, other, draws=5) is None


@pytest.mark.parametrize("each", [*LAWS, *EXACT_LAWS], ids=lambda law: law.name)
def test_no_law_is_refuted(each):
    assert not any(refute(one, other) for one, other in zip(*each.sides(), strict=True))


def largest(a, b):
    return b + compose(a + scaled(b, -1.0), relu)


def least(a, b):
    return scaled(largest(scaled(a, -1.0), scaled(b, -1.0)), -1.0)


def test_what_laws_do_not_reach_is_not_found():
    """Equal in all numbers that are tried, and no law says so: maxima distribute over minima."""
    proof = prove(largest(A, least(B, C)), least(largest(A, B), largest(A, C)))
    assert (proof.verdict, proof.at) == ("not found", None)
    tried = [each.way for each in proof.tried]
    assert len(tried) == 5 and all(way in str(proof) for way in tried) and f"; next: {proof.next}" in str(proof)


def test_what_no_drawn_operator_is_is_not_refuted():
    """A symbol of which more is declared than any drawn operator has."""
    odd = symbol("f", None, None, linear=True, row_wise=True, constant=True)
    assert refute(odd, I) is None


def test_other_laws_may_be_asked():
    x, W, V = symbol("x", None, 6), symbol("W", 6, 4, linear=True), symbol("V", 4, 3, linear=True)
    one, other = (x @ W) @ V, x @ (W @ V)
    assert prove(one, other, laws=EXACT_LAWS).proved
    wrong = prove((x @ W) @ gelu, x @ W, laws=EXACT_LAWS)
    assert wrong.verdict == "refuted" and {"x", "W"} <= wrong.at.symbols.keys()


def test_different_shapes_refute():
    a, b = symbol("a", 4, 6), symbol("b", 4, 5)
    proof = prove(product(turn(a), b), product(turn(b), a))
    assert proof.verdict == "refuted" and proof.at.left == proof.at.right[::-1]
    assert str(proof).startswith(f"refuted: the shape is {proof.at.left} and {proof.at.right} at x = [[")


def test_what_is_no_operator_is_named():
    with pytest.raises(TypeError, match="prove: the right side is 'p', not an operator"):
        prove(A, "p")


@EACH
def test_every_law_proves_itself(each):
    for one, other in zip(*each.sides(), strict=True):
        assert prove(one, other)


def test_laws_decide():
    """What a prover was not told it does not know; what it was told wrongly it believes, whatever the numbers are."""

    @law()
    def symmetric(a: array[n, n]):
        """Wrong."""
        return turn(a), a

    without = Prover([law for law in LAWS if law.name not in ("turn_product", "sum_order", "sum_exchange")])
    assert prove(*EQUAL[0]) and not without.prove(*EQUAL[0]) and not without.prove(A + B, B + A)
    assert without.prove((A + B) + C, A + (B + C))
    assert Prover([*LAWS, symmetric]).prove(Q, turn(Q)) and not symmetric.holds(np.random.default_rng(0))


def test_laws_of_the_search_prove_too():
    both, x = Prover([*EXACT_LAWS, *LAWS]), formula(lambda x: x)
    V, W = np.ones((6, 4)), np.ones((4, 5))
    one, other = formula(lambda x: (x @ gelu @ V) @ W), gelu @ (symbol("V", 6, 4, linear=True) @ W)
    assert x is I and not both.prove(one, other)
    assert both.prove(one, gelu @ (weight(V) @ weight(W))) and prove(one, gelu @ (weight(V) @ weight(W)))


def test_linear_attention_is_associativity():
    V = [np.random.default_rng(i).normal(size=(6, 4)) for i in range(3)]

    def attention(first, over=None):
        def read(x):
            q, k, v = (x @ W for W in V)
            return (q @ k.T) @ v if first else q @ (k.T @ v)

        return formula(read)

    assert prove(attention(True), attention(False))
    assert dense(attention(True), np.ones((5, 6))) == pytest.approx(dense(attention(False), np.ones((5, 6))))


def test_what_spreads_is_not_taken_apart():
    """One column added to many is a sum of entries, but no product of the column exists."""
    column = symbol("column", None, Shape(1, M, 1))
    assert prove(product(A + column, D), product(column + A, D))
    assert not prove(product(A + column, D), product(A, D)).matches.get("sum_left")


def test_a_budget_is_reported():
    def sums(names):
        return [symbol(a, None, Shape(1, M, K)) + symbol(b, None, Shape(1, M, K)) for a, b in names]

    pairs = sums(["ab", "cd", "ef", "gh"])
    whole, last = pairs[0] * pairs[1] * pairs[2] * pairs[3], pairs[3].children
    parted = pairs[0] * pairs[1] * pairs[2] * last[0] + pairs[0] * pairs[1] * pairs[2] * last[1]
    assert prove(whole, parted)
    proof = prove(whole, parted + A, budget=100)
    assert not proof and proof.nodes > 100 and "was growing" in proof.cut and str(proof.nodes) in proof.cut
    assert not prove(A, B).cut


def test_sums_are_sorted():
    many = [symbol(f"x{i}", None, Shape(1, M, K)) for i in range(8)]
    assert prove(sum(many[1:], many[0]), sum(many[-2::-1], many[-1]))
    assert not prove(sum(many[1:], many[0]), sum(many[2:], many[0]))


# ---- what is proved is equal, and here what is equal is proved


def random_term(rng, depth, leaves):
    """A term over square leaves; blocks are cut or multiplied away at once."""

    def part():
        return random_term(rng, depth - 1, leaves)

    a = leaves["a"]
    if depth == 0:
        return leaves[rng.choice(sorted(leaves))]
    match rng.integers(8):
        case 0:
            return part() + part()
        case 1:
            return part() * part()
        case 2:
            return product(part(), part())
        case 3:
            return turn(part())
        case 4:
            return compose(part(), relu)
        case 5:
            return turn(left(turn(below(part(), part())), a))
        case 6:
            return right(row(part(), part()), a)
        case 7:
            return product(row(part(), part()), below(part(), part()))


@pytest.mark.deep
def test_proved_is_equal():
    """Random terms of the same leaves, as symbols for the proof and as numbers."""
    x, found = np.random.default_rng(0).normal(size=(sum(ROWS), INPUT)), 0
    symbols = {name: stand_in(name, array[n, n]) for name in "ab"}
    numbers = {name: drawn(np.random.default_rng(ord(name)), array[n, n], name) for name in "ab"}
    for seed in range(4):
        terms, meant = (
            [random_term(np.random.default_rng([seed, i]), 1 + i % 2, leaves) for i in range(14)]
            for leaves in (symbols, numbers)
        )
        values = [dense(term, x) for term in meant]
        for i, j in combinations(range(14), 2):
            equal = np.allclose(values[i], values[j])
            assert bool(prove(terms[i], terms[j])) == equal
            found += equal and terms[i] is not terms[j]
    assert found > 3


# ---- others' equations

PEERS = [
    ("true", "(Sp10 (T (Cat1 (In a) (In b))))", "(Sp11 (T (Cat0 (In a) (In b))))"),
    ("true", '(MM (In "a") (S (Imm) (In "s")))', '(T (S (T (In "a")) (In "s")))'),
    ("true", "(S (In a) (S (In s) (In t)))", "(S (S (In a) (In t)) (In s))"),
    ("true", "(Cat0 (Cat1 (In a) (In b)) (Cat1 (In c) (In d)))", "(Cat1 (Cat0 (In a) (In c)) (Cat0 (In b) (In d)))"),
    ("true", "(Add (MM (In a) (In b)) (MM (In c) (In d)))", "(MM (Cat1 (In a) (In c)) (Cat0 (In b) (In d)))"),
    ("true", "(Sp00 (Cat0 (Cat0 (In a) (In b)) (In c)))", "(Cat0 (In a) (In b))"),
    ("true", "(Cat0 (Sp00 (In a)) (Sp10 (In a)))", "(In a)"),
    ("false", "(Sp00 (Cat0 (In a) (In b)))", "(In b)"),
    ("false", "(Relu (S (In a) (In s)))", "(S (Relu (In a)) (In s))"),
    ("false", "(MM (In a) (In b))", "(MM (In b) (In a))"),
    ("false", "(Cat0 (In a) (In b))", "(Cat1 (In a) (In b))"),
    ("false", "(Cat0 (In a) (In a))", "(In a)"),
    ("needs_ones_constant", "(Add (In a) (Mul (In a) (In b)))", "(Mul (In a) (Add (In b) (In Iewmul)))"),
]


def test_equations_are_read_and_judged(tmp_path, monkeypatch, capsys):
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([("truth", "lhs", "rhs"), *PEERS])
    monkeypatch.setattr("sys.argv", ["peer_laws", str(file), "--csv", str(out)])
    extraction.main()
    with out.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["truth"], row["lhs"], row["rhs"]) for row in rows] == PEERS
    assert [row["proved"] for row in rows] == [str(truth == "true") for truth, _, _ in PEERS]
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert "no sizes fit: 2 blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, said",
    [
        ("(Foo (In a))", "token 1 stands ( Foo"),
        ("(MM (In a))", "MM takes 2 operands, not 1"),
        ("(T (In a)", "T takes 1 operand"),
        ("(In a) (In b)", "( In b ) stands behind its end"),
        ("", "nothing"),
        ("In a", "token 1 stands In a"),
        ("(T a)", "T was given ['a']"),
        ("(In (In a))", "In takes a name"),
        ("(S (In a) (MM (In s) (In t)))", "the second operand of S is a number"),
        ("(S (In a) (In a))", "a is a matrix in one place and a number in another"),
        (
            "(Add (In a) (Cat1 (In a) (In b)))",
            "no sizes fit: 2 blocks of rows or columns would be as many as one of them",
        ),
    ],
)
def test_what_is_no_equation_is_named(text, said):
    with pytest.raises(InputError, match=re.escape(said)):
        extraction.Reader().sides(text, "(In a)")


def test_a_file_without_the_columns_is_named(tmp_path):
    (tmp_path / "in.csv").write_text("left,right\n")
    with pytest.raises(InputError, match=r"in\.csv: the columns lhs, rhs, truth are missing"):
        list(extraction.equations(tmp_path / "in.csv"))
