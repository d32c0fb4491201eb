"""A problem that is asked at many prices, against every program of it."""

from math import inf
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import programs, small_problems

from rewrites.extraction import Infeasible, Problem, Repriced

prices = st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 3.0])] * 4)


@settings(max_examples=150, deadline=None)
@given(small_problems, st.lists(prices, min_size=1, max_size=3), st.sampled_from([0.0, 1.0, inf]), st.integers(0, 9))
def test_a_problem_is_asked_at_any_prices(problem, asked, most, marked):
    """The optimum of each, with a fourth thing that one node takes; a program that is known is improved on, or is the
    best."""
    repriced = Repriced(problem, [(*node[2:5], float(at == marked)) for at, node in enumerate(problem.nodes)])
    allowed = Problem([node for node in problem.nodes if node.error <= most], problem.roots)
    marker = problem.nodes[marked] if marked < len(problem.nodes) else None
    for each in asked:

        def cost(nodes, each=each):
            return sum(sum(map(mul, each, (*n[2:5], float(n is marker)))) for n in nodes)

        best = min(map(cost, programs(allowed)), default=inf)
        if best == inf:
            with pytest.raises(Infeasible):
                repriced.cheapest(each, most)
            continue
        found = repriced.cheapest(each, most)
        assert found.nodes and cost(found.nodes) == pytest.approx(best, abs=1e-9) == found.bound
        assert max(node.error for node in found.nodes) <= most
        for known in (best / 2, best, best + 1):
            again = repriced.cheapest(each, most, known)
            assert again.bound == pytest.approx(min(best, known), abs=1e-9)
            assert not again.nodes if known <= best else cost(again.nodes) == pytest.approx(best, abs=1e-9)
