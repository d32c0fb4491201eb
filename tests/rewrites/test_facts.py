"""Class facts: what a graph derives of its classes is what the algebra says of their terms, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from generate import Grower, random_batch

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, gelu, heads, product, rotary, softmax, symbol, tanh, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import KINDS, PROPERTIES, Operator, holding
from rewrites.egraph.egraph import saturate
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS, facts
from rewrites.laws.flat import flat
from rewrites.laws.law import SIMPLIFY, Sort, h, law, n, rotation, value
from rewrites.verify.graphs import disagreements

TERMS, TOGETHER = 2000, 100


def numbers(*shape, seed=0):
    return Data(np.random.default_rng(seed).normal(size=shape))


def border(width):
    return symbol("border", Shape(1, T, width), Shape(1, T, width))


@pytest.fixture
def everything(monkeypatch):
    """Rules of all properties, not of those alone that laws ask for."""
    monkeypatch.setattr(facts, "ALWAYS", tuple(PROPERTIES))


# ---- facts are properties


def random_terms(seed):
    """Terms of many kinds, and kinds that only rewriting makes over some of them."""
    grower = Grower(np.random.default_rng(seed))
    for _ in range(TOGETHER):
        term = grower.term(5, grower.pick(3, 5), int(grower.rng.integers(0, 4)))
        yield term
        if term.storable:
            yield KINDS["adjoint"](term)


def differing(terms):
    """Facts that a graph has and the term has not, or the other way round; and how many there are of each."""
    template = Template.of({f"root{k}": term for k, term in enumerate(terms)})
    graph = saturate(template, ())
    known = template.instance(template.values)
    counts = {name: 0 for name in PROPERTIES}
    wrong = []
    for cls_name, term in known.items():
        for name in PROPERTIES:
            has = graph.named[cls_name] in graph.facts[name]
            counts[name] += has
            if has != getattr(term, name):
                wrong.append((name, has, term))
    return wrong, counts


@pytest.mark.deep
def test_every_fact_is_the_property_on_random_terms(everything):
    total = {name: 0 for name in PROPERTIES}
    for seed in range(TERMS // TOGETHER):
        wrong, counts = differing([*random_terms(seed)])
        assert not wrong, wrong[0]
        for name, count in counts.items():
            total[name] += count
    assert min(total.values()) > 20, total  # every property is among them


@pytest.mark.parametrize(
    "planted",
    [
        "(rule ((= e (K_compose c a)) (constant c) (additive a)) ((uniform e)) :ruleset facts)",
        "(rule ((= e (K_add a b)) (linear a)) ((linear e)) :ruleset facts)",
        "(rule ((= e (K_mul a b)) (column b)) ((column e)) :ruleset facts)",
    ],
)
def test_a_fact_that_is_no_property_is_found(everything, monkeypatch, planted):
    monkeypatch.setattr(facts, "MARKERS", facts.MARKERS + planted)
    assert any(has for seed in range(3) for _, has, _ in differing([*random_terms(seed)])[0])


def test_a_fact_that_is_not_derived_is_found(everything, monkeypatch):
    kept = [row for row in facts.derive_facts() if not (row[0].startswith("(K_add") and row[2] == "linear")]
    monkeypatch.setattr(facts, "derive_facts", lambda: kept)
    assert any(not has for seed in range(3) for _, has, _ in differing([*random_terms(seed)])[0])


KINDS_AND_PROPERTIES = [(kind, name) for kind in KINDS.values() for name in kind.properties if facts.variables(kind)]


@pytest.mark.parametrize("kind, name", KINDS_AND_PROPERTIES, ids=lambda each: getattr(each, "name", each))
def test_the_least_premises_say_when_a_property_holds(kind, name):
    """Whatever is known of the operands: the predicate holds where a premise is known, and nowhere else."""
    rng, predicate = np.random.default_rng(0), kind.properties[name]
    found, names = facts.premises(kind, predicate), facts.variables(kind)
    about = [
        (variable, each)
        for variable in names
        for each in (*PROPERTIES, "linear_over", "right_linear", "homogeneous_over")
    ]
    for _ in range(60):
        known = frozenset(one for one in about if rng.random() < 0.6) | (
            found[rng.integers(len(found))] if found and rng.random() < 0.3 else frozenset()
        )
        arguments = [
            (facts.Asked if k < kind.arity else facts.AskedFlags)(each, known, set()) for k, each in enumerate(names)
        ]
        assert bool(predicate(*arguments)) == any(least <= known for least in found)


def test_a_fact_is_generated_for_whatever_a_law_asks():
    """Rules of properties that nobody asks for are left out."""

    def text(*names):
        return "\n".join(facts.rules(names))

    assert "((row_wise e))" not in text() and "((row_wise e))" in text("row_wise")
    assert len(facts.needed(["row_wise"])) > len(facts.needed([]))


# ---- constant and uniform


def graph_of(term, laws=EXACT_LAWS, width=6, **options):
    x = border(width)
    template = Template.of({"full": flat(term, x), "border": x}, [x])
    return saturate(template, laws, **options), template


R = rotary(5, 4)


@pytest.mark.parametrize(
    "position", [R, I * (KINDS["given"]("positions", 5) @ weight(numbers(5, 4)))], ids=["rotary", "times a table"]
)
def test_a_kind_that_depends_on_the_position_makes_no_row_of_constants(position):
    """It is additive, so what is the same row before it is constant behind it, but another row at each position."""
    assert position.row_linear and position.additive and not position.uniform and not position.linear
    term = const(numbers(4)) @ position
    graph = saturate(template := Template.of({"c": const(numbers(4)), "full": term}), EXACT_LAWS)
    full, c = graph.named["$full"], graph.named["$c"]
    assert full in graph.facts["constant"] and full not in graph.facts["uniform"] and full not in graph.fixed
    assert c in graph.fixed and not disagreements(graph, template, np.random.default_rng(0))
    found = dense(term, np.zeros((6, 4)), random_batch(np.random.default_rng(0)))
    assert abs(found[0] - found[1]).max() > 0.1


ADDITIVE = (
    "(rule ((= e (K_compose c a)) (constant c) (uniform c) (additive a)) ((constant e) (uniform e)) :ruleset facts)"
)


@law(phase=SIMPLIFY)
def rotated_sum(x: value[h, n], c: Sort("constant", ("constant",), (h, n)), R: rotation[n, n]):
    """A rotation is additive. It takes a bias of keys to where it could drop, if it were the same for all keys."""
    return (x + c) @ R, x @ R + c @ R


def rotated_attention(position):
    """Two heads of four columns, all three with biases; queries and keys through `position`."""
    W = [weight(numbers(6, 8, seed=s)) + const(numbers(8, seed=s + 3)) for s in range(3)]
    x = border(6)
    q, k, v = (flat(each @ heads(2), x) for each in W)
    q, k = q @ position, k @ position
    full = product(product(q, turn(k)) @ (I * 0.5), v, over=softmax, where=sequence) @ heads(2).T
    return Template.of({"full": full, "border": x}, [x])


def test_a_bias_of_keys_stays_behind_rope_and_drops_without():
    laws = (*EXACT_LAWS, rotated_sum)
    rotated_sum.check(np.random.default_rng(0))
    graph, plain = (saturate(template, laws) for template in (rotated_attention(R), rotated_attention(I)))
    assert graph.matches["rotated_sum"] and not graph.matches["shift_scores"] and not graph.cut
    assert plain.matches["shift_scores"] and not plain.matches["rotated_sum"]


def test_the_rule_that_dropped_it_is_found(monkeypatch):
    """Additive alone does not make a constant one row: with that rule the bias goes, and the check of classes says
    so."""
    monkeypatch.setattr(facts, "MARKERS", facts.MARKERS + ADDITIVE)
    monkeypatch.setattr(facts, "ALWAYS", (*facts.ALWAYS, "additive"))
    template = rotated_attention(R)
    graph = saturate(template, (*EXACT_LAWS, rotated_sum), trace=True, rounds=6, budget=1500)
    assert graph.matches["shift_scores"]
    found = disagreements(graph, template, np.random.default_rng(0))
    assert any("uniform" in str(each) for each in found)


def test_a_scale_passes_rope_into_the_queries():
    graph = saturate(template := rotated_attention(R), EXACT_LAWS)
    assert graph.matches["scale_scores"] and graph.matches["scale_rotated"]
    terms = graph.terms(template)
    folded = [
        node
        for node in graph.nodes
        if node.kind == "compose"
        and node.children[1] in graph.facts["turning"]
        and not any(kept.kind == "mul" for kept in terms[node.children[0]].children)
    ]
    assert folded and not disagreements(graph, template, np.random.default_rng(0))


# ---- adding one


def test_a_property_is_declared_in_one_place():
    """By its meaning, and by who has it: operators, facts, guards and checks of classes know it then."""

    @holding("additive")
    def odd(f, x, y):
        """(-x) @ A = -(x @ A)"""
        return f(-x), -f(x)

    KINDS["tanh"].properties["odd"] = lambda: True
    KINDS["compose"].properties["odd"] = lambda a, b: a.odd and b.odd
    try:
        A = weight(numbers(6, 4)) @ tanh
        assert A.odd and (A @ heads(2)).odd and not (A + 1.0).odd and not gelu.odd
        template = Template.of({"odd": A, "even": weight(numbers(6, 4)) @ gelu})
        graph = saturate(template, (replace(rotated_sum, when=("(odd R)",)),))
        assert graph.named["$odd"] in graph.facts["odd"] and graph.named["$even"] not in graph.facts["odd"]
        assert not disagreements(graph, template, np.random.default_rng(0))
    finally:
        del PROPERTIES["odd"], Operator.odd, KINDS["tanh"].properties["odd"], KINDS["compose"].properties["odd"]
