"""Engines that know the same laws are shared by graphs, one after another."""

import numpy as np
import pytest
from random_programs import VOCABULARY, Choices, Grower
from test_egraph import graph_of, matrices, numbers
from test_random_programs import STEPS

from opmatrix.algebra.operators import const, gelu, given
from opmatrix.algebra.term import KINDS, formula
from rewrites.egraph.egraph import ENGINES, KEPT_ENGINES, engine, prelude, saturate, shared_engine
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS, facts
from rewrites.laws.flat import flat


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    """As in a process that has searched nothing."""
    monkeypatch.setattr(ENGINES, "kept", {})


def test_a_graph_is_as_it_were_alone_in_an_engine_that_others_used():
    """To the order of its nodes. Others of other laws, and with a trace, have their own."""
    (A, B), c, some = matrices(6, 5, 4), const(numbers(4)), EXACT_LAWS[:12]
    alone = [graph_of(A @ B + c, some)[0]]
    ENGINES.kept.clear()
    alone.append(graph_of((A @ gelu) @ B, some)[0])
    made = shared_engine(some)
    after = graph_of(A @ B + c, some)[0], graph_of((A @ gelu) @ B, some)[0]
    for one, other in zip(alone, after, strict=True):
        assert (one.nodes, one.named, one.matches, one.facts) == (other.nodes, other.named, other.matches, other.facts)
    assert shared_engine(some) is made is not shared_engine(some, trace=True)


def test_a_graph_that_has_its_engine_alone_is_the_same_and_leaves_none():
    (A, B), c, some = matrices(6, 5, 4), const(numbers(4)), EXACT_LAWS[:12]
    alone, kept = graph_of(A @ B + c, some, alone=True)[0], dict(ENGINES.kept)
    other = graph_of(A @ B + c, some)[0]
    assert not kept and (alone.nodes, alone.named, alone.facts) == (other.nodes, other.named, other.facts)


def test_an_engine_whose_graph_was_interrupted_is_not_used_again(monkeypatch):
    (A,), laws = matrices(6, 5), EXACT_LAWS[:3]
    wanted, spoiled = graph_of(A, laws)[0], shared_engine(laws)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("rewrites.egraph.egraph.freeze", interrupted)
        graph_of(A, laws)
    assert shared_engine(laws) is not spoiled and graph_of(A, laws)[0].nodes == wanted.nodes


def test_few_are_kept_and_those_that_are_asked_for_most():
    for _ in range(3):
        often = shared_engine(EXACT_LAWS[:2])
    for count in range(3, 7):
        shared_engine(EXACT_LAWS[:count])
    assert len(ENGINES.kept) == KEPT_ENGINES and shared_engine(EXACT_LAWS[:2]) is often


def grown(seed):
    """A program of some random steps."""
    rng, draw = np.random.default_rng(seed), Choices(seed)

    def made(x):
        grower = Grower(draw, rng, x, False)
        for step in rng.choice(STEPS, 4):
            grower.pool.append(getattr(grower, step)(grower.pool[-1]))
        return grower.pool[-1]

    return formula(made)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("laws", [(), EXACT_LAWS], ids=len)
def test_what_can_never_match_is_left_out_and_nothing_else(laws, seed):
    """A graph is the same to the order of its nodes in an engine that knows of all kinds and in one that knows of those
    that it begins with, and all that it holds is among what is reached."""
    template = Template.of({"full": flat(grown(seed), given("tokens", VOCABULARY))})
    begun = {entry.kind for entry in template.entries}
    whole, part = (
        saturate(template, laws, rounds=4, budget=800, shared=each)
        for each in (engine(laws), engine(laws, begun=begun))
    )
    assert (whole.nodes, whole.named, whole.matches, whole.cut) == (part.nodes, part.named, part.matches, part.cut)
    assert all(whole.facts[name] == part.facts[name] for name in {*whole.facts, *part.facts})
    assert len(prelude(laws, begun=begun)) < len(prelude(laws))


def test_what_markers_make_is_what_they_are_said_to_make():
    """Of conclusions alone: what a rule matches, it does not make."""
    stated = [rule.rpartition(")) ")[0].rpartition("((")[2] for rule in facts.MARKERS.split("(rule ")[1:]]
    assert {kind for each in stated for kind in facts.KIND.findall(f"({each}")} == facts.MADE <= KINDS.keys()
