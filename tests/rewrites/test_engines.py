"""Engines that know the same laws are shared by graphs, one after another."""
import pytest
from test_egraph import graph_of, matrices, numbers

from opmatrix.algebra.operators import const, gelu
from rewrites.graph.egraph import ENGINES, KEPT_ENGINES, shared_engine
from rewrites.laws import EXACT_LAWS


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
    def interrupted(*_): raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("rewrites.graph.egraph.freeze", interrupted)
        graph_of(A, laws)
    assert shared_engine(laws) is not spoiled and graph_of(A, laws)[0].nodes == wanted.nodes


def test_few_are_kept_and_those_that_are_asked_for_most():
    for _ in range(3): often = shared_engine(EXACT_LAWS[:2])
    for count in range(3, 7): shared_engine(EXACT_LAWS[:count])
    assert len(ENGINES.kept) == KEPT_ENGINES and shared_engine(EXACT_LAWS[:2]) is often
