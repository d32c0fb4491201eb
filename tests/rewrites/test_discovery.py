"""Laws that are found: they hold, are written as a file that is read back, and the laws of the search over the same
kinds follow from them. Equations that hold on some sizes or inputs alone are refused."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from planted_equalities import CHANGES, LAWS, WRONG, list_planted
from typer.testing import CliRunner

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, gelu, given, pick, product, relu, row, square, tanh, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import KINDS, PROPERTIES, Operator
from opmatrix.runtime.pricing import datasheet
from rewrites.cli.commands import app
from rewrites.discovery import rounds
from rewrites.discovery.derived import Consequences
from rewrites.discovery.exact_values import draw_whole, make_polynomial
from rewrites.discovery.fingerprints import Fingerprints
from rewrites.discovery.near import propose_near, tell_near
from rewrites.discovery.priced_sides import SidePricer
from rewrites.discovery.proved_laws import prove_equation
from rewrites.discovery.rounds import Discovery, RoundCounts
from rewrites.discovery.small_terms import FOLLOWS, OPERAND_ROLES, SmallTerm, flagged_name, read_kinds, variable
from rewrites.discovery.stated_laws import StatedEquation, count_operators, exact_differences, judge
from rewrites.discovery.widened import list_wider, widen_equation, widen_guards
from rewrites.discovery.written import restate, spell_side, write_laws
from rewrites.explain.exploring.exploration import explore
from rewrites.explain.exploring.payoffs import find_payoffs, price_laws
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import (
    Law,
    Name,
    column,
    constant,
    entrywise,
    find,
    law,
    matrix,
    mixing,
    n,
    normalised,
    operator,
    over,
    p,
    placed,
    reflexive,
    right_linear,
    scalar,
    scores,
    stand_in,
    value,
    varying,
    where,
)
from rewrites.verify.user_laws import load_laws

x, y, c, r = (variable(name) for name in "xycr")
A, C, U, R, s, t, a, e, f = (variable(name) for name in "ACURstaef")
M, S, N, P, Q = (flagged_name(name) for name in "MSNPQ")
KINDS_OF_TEST = ("add", "mul", "compose")


def equation(left, right):
    return StatedEquation(left, right, count_operators(left) + count_operators(right))


@pytest.fixture(scope="module")
def found():
    """The discovery of all rounds of three kinds up to two operators."""
    discovery = Discovery(KINDS_OF_TEST, 2)
    return discovery, [*discovery.run(float("inf"))]


def test_found_laws_hold_and_are_proved(found):
    discovery, counts = found
    assert sum(one.laws for one in counts) == len(discovery.laws) > 5
    for one in discovery.laws:
        one.law.check(np.random.default_rng(1))
        assert one.trials > 100 and (one.chain or "R" in one.equation.names)  # entries know no rotation


def test_found_laws_depend_on_the_seed_alone(found):
    again = Discovery(KINDS_OF_TEST, 2)
    prefix = [counts for counts, _ in zip(again.run(float("inf")), range(8), strict=False)]
    assert [str(counts) for counts in prefix] == [str(counts) for counts in found[1][: len(prefix)]]
    assert [spell_side(one.equation.left) for one in again.laws] == [
        spell_side(one.equation.left) for one in found[0].laws[: len(again.laws)]
    ]


@pytest.mark.deep
def test_laws_of_the_search_follow_from_what_is_found(found):
    """Every exact law whose nodes are sums, products and compositions of at most three operators a side."""
    discovery, _ = found
    discovery.run_round(("add", "compose"), 3)
    deriver = Consequences([one.equation.undirected(one.law.name) for one in discovery.laws])
    concerned = [law for law in EXACT_LAWS if is_concerned(law)]
    assert len(concerned) >= 7
    missing = [law.name for law in concerned if deriver.open_in_graph([equation_of(law)])]
    assert missing == []


def is_concerned(law: Law) -> bool:
    nodes = [node for side in law.sides() for term in side for node in term.walk()]
    small = all(count_operators(term) <= 3 for side in law.sides() for term in side)
    return small and {node.kind.name for node in nodes} <= {"symbol", "I", *KINDS_OF_TEST} and not law.when


def equation_of(law: Law) -> StatedEquation:
    """The equation of a law, over symbols that have the facts of their sorts."""
    (left,), (right,) = law.of({name: of_sort(name, sort) for name, sort in law.variables.items()})
    return equation(left, right)


def of_sort(name, sort):
    symbol = stand_in(name, sort)
    called, into, out, known = symbol.args
    return Operator(
        symbol.kind, called, into, out, tuple(sorted({*known, *(f for f in sort.facts if f in PROPERTIES)}))
    )


def test_nothing_found_follows_from_the_rest_once_these_are_dropped(found):
    discovery = Discovery(KINDS_OF_TEST, 2)
    discovery.laws = [*found[0].laws]
    discovery.drop_derived()
    assert 0 < len(discovery.laws) <= len(found[0].laws)
    for one in discovery.laws:
        others = [other.equation.undirected(other.law.name) for other in discovery.laws if other is not one]
        assert Consequences(others).open_in_graph([one.equation])


def test_a_written_file_is_read_back(found, tmp_path):
    discovery, _ = found
    write_laws(tmp_path / "mine.py", discovery.laws, "opmatrix discover")
    declared = load_laws(tmp_path / "mine.py")
    assert [one.name for one in declared.laws] == [one.law.name for one in discovery.laws]
    for one, other in zip(discovery.laws, declared.laws, strict=True):
        assert other.sides() == one.law.sides() and other.both == one.law.both
        assert other.without == one.law.without and restate(other) == one.equation
    with pytest.raises(InputError, match="exists"):
        write_laws(tmp_path / "mine.py", discovery.laws, "opmatrix discover")


PLANTED = {
    "a matrix where any operator may stand": ((x + y) @ A, x @ A + y @ A),
    "a shift through any operator": ((x + c) @ A, x @ A + c @ A),
    "factors of rows through any operator": ((x * r) @ A, (x @ A) * r),
    "wrong order": (product(product(s, t), x), product(product(t, s), x)),
    "wrong monoid": (product(s + t, x, M, P), product(s, x, M, P)),
    "wrong flag": (product(s + t, x, N, Q), product(s, x, N, Q)),
    "shift of any scores": (product(s + s, x, S, P), product(s, x, S, P)),
    "a row without keys": (product(s, c, S, P), c),
    "a constant under weights that need not add to one": (product(s * s, c, S, P), product(s, c, S, P)),
    "factors of weights that need not add to one": (product(s, x, S, P) * product(s, c, S, Q), product(s, x * c, S, P)),
    "factors of such weights where each row sees itself": (
        product(s, x, S, Q) * product(s, c, S, Q),
        product(s, x * c, S, Q),
    ),
    "a map of values over any monoid": (product(product(s, x, M, P), e), product(s, product(x, e), M, P)),
    "equal only where relu does nothing": (x @ relu, x),
    "a product for a sum": (product(a, e + f), product(a, e) * product(a, f)),
}


@pytest.mark.parametrize("sides", PLANTED.values(), ids=PLANTED)
def test_planted_equations_are_refused(sides):
    assert refused(equation(*sides).law("planted"))


@pytest.mark.deep(every=36)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_equalities_planted_in_true_laws_are_refused(law):
    """At other sizes, at one row, at equal rows, in rows without keys, by a ten millionth, in a guard, in order."""
    planted = list(list_planted([law]))
    assert [str(one) for one in planted if not judge(one.law, 0).refuted] == []


def test_equalities_are_planted_in_every_way():
    laws = [find(LAWS, name) for name in ("late_values", "associate", "outward")]
    assert {one.wrong.split(",")[0] for one in list_planted(laws)} == {*CHANGES, *WRONG.values()}


def refused(law: Law) -> bool:
    verdict = judge(law, 0)
    return bool(verdict.refuted or verdict.unusable)


@law()
def true_at_one_row(v: scores[1], x: value[n]):
    """A mean over a single key is a sum."""
    return product(v, x, monoids.mean), product(v, x, monoids.sum)


@law()
def true_up_to_thirty_columns(x: value[n], y: value[n]):
    """A sum with y only where there are many columns."""
    return x, x if (x.out.cols if isinstance(x.out.cols, int) else 0) <= 30 else x + y


@law()
def true_of_different_sizes(x: value[n], A: matrix[n, p], c: constant[n]):
    """The shift forgets the matrix where it is square."""
    return (x + c) @ A, x @ A + (c if x.out.cols == A.out.cols else c @ A)


@law()
def true_below_a_millionth(x: value[n], A: matrix[n, p]):
    """A relative difference of 1e-7."""
    return x @ A, (x @ A) * (1 + 1e-7)


@pytest.mark.parametrize(
    "planted",
    [true_at_one_row, true_up_to_thirty_columns, true_of_different_sizes, true_below_a_millionth],
    ids=lambda planted: planted.name,
)
def test_planted_laws_are_refused(planted):
    assert refused(planted)


def test_true_laws_are_not_refused():
    for sides in ((x + y, y + x), ((x + y) @ U, x @ U + y @ U), (product(s + t, x, S, P), product(s, x, S, P))):
        assert not judge(equation(*sides).law("true"), 0).refuted


def test_proofs_use_axioms_alone():
    assert prove_equation(equation((x + y) @ U, x @ U + y @ U))
    assert prove_equation(equation(turn(turn(a)), a))
    assert prove_equation(equation(product(s + t, x, S, P), product(s, x, S, P)))
    assert prove_equation(equation(product(s + t, x, M, P), product(s, x, M, P))) == ()
    assert prove_equation(equation((x + y) @ A, x @ A + y @ A)) == ()


@pytest.fixture(scope="module")
def prints():
    return Fingerprints.of(0)


def test_fingerprints_tell_terms_apart(prints):
    assert prints.equal(x + y, y + x) and prints.equal((x @ A) @ C, x @ (A @ C))
    assert not prints.equal(x + y, x * y) and not prints.equal((x + y) @ A, x @ A + y @ A)
    assert not prints.equal(product(s, x, S, P), product(s, x, N, Q))


RELATED, LINEAR, PICKED = given(Name("E")), flagged_name("L"), pick(Name("F"))
POLYNOMIALS = {
    "a sum": (x + y, y + x),
    "products of entries": (x * (y + c), x * y + x * c),
    "an operator": ((x @ A) @ C, x @ (A @ C)),
    "a matrix": ((x + y) @ U, x @ U + y @ U),
    "a rotation": ((x + y) @ R, x @ R + y @ R),
    "arrays": (product(a, e + f), product(a, e) + product(a, f)),
    "transposes": (turn(product(a, e)), product(turn(e), turn(a))),
    "rows side by side": (row(x + y, c), row(y + x, c)),
    "a relation": (product(RELATED, x + y, LINEAR), product(RELATED, x, LINEAR) + product(RELATED, y, LINEAR)),
    "rows of a relation": ((x + y) @ PICKED, x @ PICKED + y @ PICKED),
    "a pattern": (product(s, x + y, LINEAR, P), product(s, x, LINEAR, P) + product(s, y, LINEAR, P)),
    "a weighted mean": (product(s, x + c, N, Q), product(s, x, N, Q) + c),
}


@pytest.mark.parametrize("left, right", POLYNOMIALS.values(), ids=POLYNOMIALS)
def test_polynomials_that_are_nearly_equal_are_told_apart(left, right, prints):
    """By a factor of 1 + 2⁻⁴⁰ or 1 + 2⁻⁵⁰, which rounded numbers do not show."""
    before = prints.apart
    assert prints.equal(left, right) and differ_in_fractions(left, right) == [0.0, 0.0]
    for near in (right @ (I * (1 + 2.0**-power)) for power in (40, 50)):
        assert all(prints.at(left, draw) == prints.at(near, draw) for draw in range(len(prints.draws)))
        assert not prints.equal(left, near) and min(differ_in_fractions(left, near)) > 0
    assert prints.apart == before + 2


def differ_in_fractions(left, right):
    return [*islice(exact_differences(equation(left, right).law("near"), 0), 2)]


def test_a_judgement_refuses_what_differs_in_fractions_alone():
    verdict = judge(equation(x + y, (x + y) @ (I * (1 + 2.0**-45))).law("near"), 0)
    assert verdict.trials > 100 and "in fractions the sides differ by" in verdict.refuted


def test_exact_numbers_say_nothing_of_what_is_not_polynomial(prints):
    bent, shifted = x @ gelu, product(s, x, S, P)
    for term in (bent, shifted):
        assert prints.read_exactly(term) is None and prints.equal(term, term @ (I * (1 + 2.0**-50)))


def test_a_square_is_drawn_only_where_it_has_the_facts_of_its_sort():
    rng = draw_whole(0)
    assert make_polynomial(relu, operator[n, n]) is relu and make_polynomial(tanh, operator[n, n]) is square
    with pytest.raises(TypeError, match="entrywise"):
        make_polynomial(tanh, replace(entrywise, facts=("keeps_order",)))
    assert {*rng.normal(size=(40, 5)).flat} == {-3, -2, -1, 1, 2, 3}


def test_an_operator_that_fits_no_value_is_left_out():
    """A sum that takes half as many columns as a constant has."""
    prints = Fingerprints.of(0)
    misfit = SmallTerm(Operator(KINDS["add"], row(I, I), c), FOLLOWS, 2)
    assert prints.probe(misfit) is None and prints.left_out["do not fit"] == 1
    assert prints.probe(SmallTerm(I + I, FOLLOWS, 1)) is not None


def test_terms_are_counted_where_a_round_is_cut(monkeypatch):
    monkeypatch.setattr(rounds, "TERMS_PER_ROUND", 30)
    counts = Discovery(("add",), 2).run_round(("add",), 2)
    assert isinstance(counts, RoundCounts) and counts.terms == 30 and "add was growing" in str(counts)


@pytest.mark.parametrize("text, words", [("add,ad", "add"), ("add,add", "twice"), ("heads", "heads"), ("", "add")])
def test_kinds_that_are_not_enumerated_are_named(text, words):
    with pytest.raises(InputError, match=words):
        read_kinds(text)
    assert read_kinds(",".join(OPERAND_ROLES)) == tuple(OPERAND_ROLES)


def test_the_command_prints_and_writes(tmp_path):
    out = tmp_path / "mine.py"
    arguments = ["discover", "--kinds", "compose,relu", "--size", "2", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "x @ relu @ relu → x @ relu" in done.stdout and "relu" in out.read_text()
    assert isinstance(CliRunner().invoke(app, arguments).exception, InputError)


def test_an_interrupted_run_goes_on_to_the_same_laws(tmp_path, monkeypatch):
    """Interrupted inside a round, by an exception behind the second law."""
    arguments = ["discover", "--kinds", "add,mul", "--size", "2", "--out"]
    whole, parts = tmp_path / "whole.py", tmp_path / "parts.py"
    assert CliRunner().invoke(app, [*arguments, str(whole)]).exit_code == 0
    consider = Discovery.consider

    def stop(self, *given):
        if len(self.laws) == 2:
            raise KeyboardInterrupt
        consider(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Discovery, "consider", stop)
        assert CliRunner().invoke(app, [*arguments, str(parts)]).exit_code
    assert "interrupted behind" in parts.read_text()
    assert isinstance(CliRunner().invoke(app, [*arguments, str(parts)]).exception, InputError)
    done = CliRunner().invoke(app, [*arguments, str(parts), "--resume"])
    assert done.exit_code == 0 and parts.read_text() == whole.read_text()


def test_only_an_interrupted_run_of_the_same_command_goes_on(tmp_path):
    out = tmp_path / "mine.py"
    arguments = ["discover", "--kinds", "add", "--size", "2", "--out", str(out)]
    assert "--out" in str(CliRunner().invoke(app, [*arguments, "--resume"]).exception)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    for more in ([], ["--seed", "1"]):
        assert "no interrupted" in str(CliRunner().invoke(app, [*arguments, *more, "--resume"]).exception)


# ---- guards

NARROW = {
    "a rotation": ((x + x) @ R, x @ (R + R), {}, [("R", operator[n, n])]),
    "any operator in place of a rotation": (x @ (R + I), x + x @ R, {"R": operator[n, n]}, []),
    "rows by position": (x @ (c * I), x * c, {"c": placed[n]}, [("c", varying[n])]),
    "a flag of a monoid": (product(RELATED, x, N) @ U, product(RELATED, x @ U, N), {"N": over[right_linear]}, []),
    "nothing to widen": (x + y, y + x, {}, []),
}


@pytest.mark.parametrize("left, right, wider, refuted", NARROW.values(), ids=NARROW)
def test_guards_are_widened_until_a_counterexample_is_found(left, right, wider, refuted):
    narrow = equation(left, right)
    widened, found = widen_equation(narrow, "narrow", 0)
    assert {name: str(sort) for name, sort in widened.widened} == {name: str(sort) for name, sort in wider.items()}
    assert widened.sorts == found.variables
    shown = [(name, sort) for other in found.without for name, sort in other.items()]
    assert [(name, str(sort)) for name, sort in refuted] == [(name, str(sort)) for name, sort in shown][: len(refuted)]
    found.check(np.random.default_rng(5))  # counterexamples fit, and fail


def test_the_proof_of_a_wider_law_assumes_nothing_of_the_narrow_sort():
    linear = equation((x + x) @ R, x @ R + x @ R)
    assert prove_equation(linear) and not prove_equation(linear.widen("R", operator[n, n]))


def test_a_wider_sort_asks_one_thing_less():
    """A flag, or what follows from it; a fact; a column; of several facts each alone."""
    acting = replace(operator, facts=("row_wise", "uniform"))[n, p]
    steps = {
        over[normalised]: [over[right_linear]],
        over: [],
        where[reflexive]: [where[()]],
        matrix[n, p]: [operator[n, p]],
        constant[n]: [placed[n]],
        scalar: [placed[1], constant[n]],
        column: [value[n]],
        acting: [mixing[n, p], replace(operator, facts=("row_wise",))[n, p]],
        value[n]: [],
    }
    assert {sort: [*list_wider(sort, [n])] for sort in steps} == steps


def test_laws_of_the_search_have_the_counterexamples_that_widening_finds():
    guards = widen_guards(find(EXACT_LAWS, "late_scale"), 0)
    assert not guards.wider and [(name, str(sort)) for name, sort, _ in guards.refuted] == [
        ("r", "value[n]"),
        ("A", "operator[n, p]"),
    ]


# ---- what laws pay


def spread_over_relations():
    """The sum of two products over a relation, as it is found."""
    related = given(Name("E"))
    left = product(related, x, flagged_name("L")) + product(related, y, flagged_name("L"))
    return StatedEquation(left, product(related, x + y, flagged_name("L")), 5)


def test_a_mean_over_a_relation_of_a_sum_is_found_and_proved():
    discovery = Discovery(("add", "related"), 3)
    discovery.run_round(("add", "related"), 3)
    wanted = spread_over_relations()
    (one,) = [one for one in discovery.laws if one.equation.left is wanted.left]
    assert one.equation.right is wanted.right and one.chain and one.law.both


def test_a_mean_over_a_relation_loses_a_constant_where_a_row_has_no_entry():
    left = product(given(Name("E")), c, N)
    assert judge(StatedEquation(left, c, 1).law("planted"), 0).refuted


def test_sides_of_equal_cost_pay_nothing():
    pricer = SidePricer([datasheet("A100"), datasheet("H100")])
    assert not pricer.pays(equation(x + y, y + x).law("swapped"))
    assert pricer.pays(equation((x + y) @ U, x @ U + y @ U).law("spread_sum"))


def test_a_law_that_pays_is_told_with_what_it_saves():
    """A mean of each graph of the sum of two products: one row a graph is multiplied, not one row a node."""
    rng = np.random.default_rng(0)
    one, other = (weight(Data(rng.normal(size=(64, 64)))) for _ in range(2))
    nodes = given("features", 64, "V")
    model = product(given(relation("graphs", "G", "V")), nodes @ one @ relu + nodes @ other, monoids.mean)
    batch = Batch(relations={"graphs": np.ones((2, 300))}, inputs={"features": rng.normal(size=(300, 64))})
    explored = explore(model, batch, machine="A100")
    law = spread_over_relations().law("spread_over_relations")
    payoffs = [payoff for payoff, _ in find_payoffs(explored, [law])]
    assert [one.law for one in payoffs] == ["all together", law.name] and payoffs[1].saved > 0.03
    assert law.name in price_laws(explored, [law]) and f"{100 * payoffs[1].saved:.2f} %" in price_laws(explored, [law])


# ---- nearly equal


def test_terms_that_are_nearly_equal_are_proposals_with_measured_errors():
    """GELU and its form by tanh, on what a small model reads before it; the error is numpy's own."""
    rng = np.random.default_rng(0)
    table, W = rng.normal(size=(20, 6)), rng.normal(size=(6, 5))
    model, batch = weight(Data(table)) @ weight(Data(W)) @ gelu, Batch([np.arange(20)])
    proposals = propose_near(model, batch, 0.02, ("gelu", "gelu_tanh", "relu"), 1)
    (one,) = [one for one in proposals if spell_side(one.instead) == "x @ gelu_tanh"]
    exact, other = (dense(weight(Data(table @ W)) @ function, batch) for function in (gelu, KINDS["gelu_tanh"]()))
    assert one.function == "gelu" and one.worst == pytest.approx(
        np.linalg.norm(other - exact) / np.linalg.norm(exact), rel=1e-9
    )
    assert all(1e-9 < each.worst <= 0.02 for each in proposals) and "gelu_tanh" in tell_near(proposals)
    assert tell_near(propose_near(model, batch, 1e-7, ("gelu", "relu"), 1)) == "no term is that close at every place"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--near", "0.02"], "give both"),
        (["--on", "minilm"], "give both"),
        (["--near", "2", "--on", "minilm"], "between 0 and 1"),
        (["--near", "0.02", "--on", "minilm", "--out", "mine.py"], "no law"),
    ],
)
def test_proposals_are_no_laws(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in str(CliRunner().invoke(app, ["discover", *arguments]).exception)
    assert not [*tmp_path.iterdir()]
