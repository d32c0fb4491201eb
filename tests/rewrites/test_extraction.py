"""Extraction against the definition: brute force on small problems, the gym's proved optima, and a checker."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import inf
from random import Random

import pytest
from fetched import data
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import programs, small_problems

from formats.core.errors import InputError
from rewrites.extraction import (
    Infeasible,
    Node,
    Problem,
    cuts,
    extract,
    from_json,
    front,
    greedy,
    landmarks,
    read_problem,
    to_json,
    undominated,
    verify,
    write_problem,
)
from rewrites.extraction.anneal import Walk, anneal
from rewrites.extraction.bounding import Search
from rewrites.extraction.exact import CoveringProgram
from rewrites.extraction.indexed import IndexedGraph, components, find_components, index
from rewrites.extraction.presolve import presolve, prune


def brute(problem: Problem, memory: float = inf, error: float = inf, weights: tuple[float, ...] = (1, 0, 0)) -> float:
    """The least cost over all programs."""
    best = inf
    for nodes in programs(problem):
        totals = [sum(costs) for costs in zip(*(node[2:5] for node in nodes), strict=True)]
        if totals[1] <= memory and totals[2] <= error:
            best = min(best, sum(w * t for w, t in zip(weights, totals, strict=True)))
    return best


def indexed(problem: Problem) -> IndexedGraph:
    return index(problem, [(node.time,) for node in problem.nodes], ())[0]


@settings(max_examples=300, deadline=None)
@given(
    small_problems,
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.sampled_from([(1, 0, 0), (1, 2, 0.5)]),
)
def test_equals_brute_force(problem, memory, error, weights):
    """Optimum, bounds in order, budgets, infeasibility: all as the definition says."""
    optimum = brute(problem, inf if memory is None else memory, inf if error is None else error, weights)
    if optimum == inf:
        with pytest.raises(Infeasible):
            extract(problem, memory=memory, error=error, weights=weights)
        return
    answer = extract(problem, memory=memory, error=error, weights=weights)
    verify(problem, answer, memory, error)
    assert answer.optimal
    assert answer.cost == pytest.approx(optimum, rel=1e-6, abs=1e-9)
    assert answer.bound <= optimum * (1 + 1e-9) + 1e-12 and answer.cost <= answer.greedy


@settings(max_examples=150, deadline=None)
@given(small_problems)
def test_presolve_and_bounds_keep_the_optimum(problem):
    """What presolve leaves has the same optimum; landmarks and the relaxation bound it, and what nodes add too."""
    optimum = brute(problem)
    pruned = prune(indexed(problem))
    graph = None if pruned is None else presolve(pruned)
    assert (graph is None) == (optimum == inf)
    if graph is None:
        return
    again = Problem(
        [
            Node(c, tuple(kids), *cost, label=i)
            for i, (c, kids, cost) in enumerate(zip(graph.cls, graph.kids, graph.cost, strict=True))
        ],
        sorted(graph.roots),
    )
    costs = [(sum(node.time for node in nodes), [node.label for node in nodes]) for nodes in programs(again)]
    assert min(cost for cost, _ in costs) == pytest.approx(optimum)
    for steps in (1, 3, 10**9):
        bound = landmarks.bound_by_landmarks(graph, graph.price, steps)
        detours = landmarks.detours(graph, bound.spare)
        for cost, used in costs:
            assert bound.value + max(detours[i] for i in used) <= cost + 1e-9
            assert all(set(used) & set(landmark) for landmark in bound.landmarks), "a program without the landmark"
    relaxation = CoveringProgram(graph).relax(10.0)
    assert relaxation is not None and relaxation.value <= optimum + 1e-6


@settings(max_examples=150, deadline=None)
@given(small_problems, st.randoms(use_true_random=False))
def test_cuts_hold_for_every_program(problem, random):
    """Cuts found at any fractional point are landmarks: without their nodes the class cannot be derived."""
    graph = prune(indexed(problem))
    if graph is None:
        return
    x = [random.choice((0.0, 0.3, 0.5, 1.0)) for _ in graph.cls]
    chosen = [i for i, q in enumerate(x) if q > 0.4]
    for landmark, c in [*cuts.thresholds(graph, x), *cuts.flows(graph, x, Random(0)), *cuts.cycles(graph, chosen)]:
        have = graph.derive(i for i in range(len(graph.cls)) if i not in landmark)
        assert (c not in have) if c is not None else (not graph.roots <= have.keys())


def test_gym_optima():
    """Every graph of the gym is solved to its proved optimum; greedy is at most the gym's greedy."""
    gym = data("extraction_gym")
    with (gym / "optima.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        problem = read_problem(gym / row["file"])
        answer = extract(problem)
        verify(problem, answer)
        assert answer.optimal and answer.cost == pytest.approx(float(row["optimum"]), rel=1e-6), row["file"]
        assert answer.greedy <= float(row["greedy_dag"]) * (1 + 1e-6), row["file"]
        assert len(problem.nodes) == int(row["nodes"]) and len({n.cls for n in problem.nodes}) == int(row["classes"])


def shared() -> Problem:
    """Two roots; a shared node that costs more than each private one, less than both; a cycle that costs nothing."""
    return Problem(
        [
            Node("a", ("s",), 0.0, label="a shared"),
            Node("a", ("p",), 0.0, label="a private"),
            Node("b", ("s",), 0.0, label="b shared"),
            Node("b", ("q",), 0.0, label="b private"),
            Node("s", (), 3.0, 5.0, label="s"),
            Node("p", (), 2.0, 1.0, label="p"),
            Node("q", (), 2.0, 1.0, label="q"),
            Node("p", ("q",), 0.0, 9.0, 1.0, label="p of q"),
            Node("q", ("p",), 0.0, 9.0, 1.0, label="q of p"),
        ],
        ["a", "b"],
    )


def test_sharing_cycles_and_budgets():
    """The free cycle p, q is no program; sharing s beats two private nodes; budgets and what is forbidden decide."""
    assert extract(shared()).cost == 2.0
    answer = extract(shared(), error=0.0)
    assert answer.cost == 3.0 and [n.label for n in answer.nodes] == ["s", "a shared", "b shared"]
    assert extract(shared(), memory=4.0).cost == 4.0
    assert extract(shared(), forbidden=[shared().nodes[4]], error=0.0).cost == 4.0
    assert extract(shared(), weights=(0, 1, 0)).cost == 2.0
    with pytest.raises(Infeasible, match=r"memory 1\.5"):
        extract(shared(), memory=1.5)


def test_order_is_children_first():
    """Nodes come in an order that can be run."""
    answer = extract(shared())
    seen = set()
    for node in answer.nodes:
        assert seen.issuperset(node.children)
        seen.add(node.cls)


@pytest.mark.parametrize(
    "nodes, words",
    [
        ([Node("r", ("x",))], "no program covers root 'r'"),
        ([Node("r", ("x",)), Node("x", ("r",))], "depend on themselves"),
        ([Node("x", ())], "it has no node"),
    ],
)
def test_infeasible_in_words(nodes, words):
    """The message names the root and the reason."""
    with pytest.raises(Infeasible, match=words):
        extract(Problem(nodes, ["r"]))


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_costs_must_be_numbers_and_not_negative(cost):
    """A negative cost would make an optimum meaningless: it is named."""
    with pytest.raises(ValueError, match="time of node 'bad' in class 'r'"):
        extract(Problem([Node("r", (), cost, label="bad")], ["r"]))


def test_what_is_infinite_is_no_choice():
    """A node of infinite cost is left out, whichever cost it is; a root that has no other is named."""
    dear = [Node("r", (), inf, label="time"), Node("r", (), 0.0, inf, label="memory"), Node("r", (), 0.0, 0.0, inf)]
    assert extract(Problem([*dear, Node("r", (), 1e12 + 0.25)], ["r"])).cost == 1e12 + 0.25
    with pytest.raises(Infeasible, match="no program covers root 'r'"):
        extract(Problem(dear, ["r"]))


def test_roots_repeated_free_and_on_a_cycle():
    """Roots may repeat, need each other, cost nothing; children may repeat."""
    problem = Problem(
        [
            Node("a", ("b", "b"), 0.0),
            Node("a", ("c",), 1.0),
            Node("b", ("a",), 0.5),
            Node("b", ("c", "c"), 2.0),
            Node("c", ("a", "b"), 0.0),
            Node("c", (), 0.0),
        ],
        ["b", "a", "b"],
    )
    answer = extract(problem)
    verify(problem, answer)
    assert answer.optimal and answer.cost == 1.5
    with pytest.raises(ValueError, match="no root class"):
        extract(problem._replace(roots=[]))


def test_a_deep_chain_is_no_matter():
    """Ten thousand classes in a row, each with a choice: no recursion, no overflow of tree costs."""
    nodes = [Node(0, (), 1.0)]
    for c in range(1, 10_000):
        nodes += [Node(c, (c - 1, max(0, c - 2)), 2.0), Node(c, (c - 1,), 2.0 if c % 2 else 1.0)]
    problem = Problem(nodes, [9_999])
    answer = extract(problem)
    verify(problem, answer)
    assert answer.optimal and answer.cost == 1 + 5_000 * 2 + 4_999


@settings(max_examples=60, deadline=None)
@given(small_problems, st.integers(0, 9))
def test_annealing_walks_among_programs(problem, seed):
    """After any number of steps the chosen nodes are a program without cycles, and its cost is what is counted."""
    graph = prune(indexed(problem))
    if graph is None:
        return
    walk = Walk(graph, greedy.trees(graph, graph.price)[0].values(), Random(seed))
    for _ in range(30):
        walk.step(heat=1.0)
        chosen = walk.nodes()
        assert graph.roots <= graph.derive(chosen).keys()
        assert walk.cost == pytest.approx(sum(graph.price[i] for i in chosen))
        assert {graph.cls[i] for i in chosen} == {c for c in range(graph.classes) if walk.uses[c]} <= walk.listed
    assert graph.roots <= graph.derive(anneal(graph, (), Random(seed), 0.0)).keys()


def test_checker_refuses():
    """The checker is no formality: wrong sums, a missing child, a node nobody needs, a bound above the cost."""
    problem = shared()
    good = extract(problem, error=0.0)
    verify(problem, good)
    for bad in (
        replace(good, time=good.time + 1),
        replace(good, nodes=good.nodes[1:]),
        replace(good, bound=good.cost + 1),
        replace(good, nodes=(*good.nodes, problem.nodes[5])),
        replace(good, greedy=good.cost - 1),
        replace(good, nodes=good.nodes[::-1]),
    ):
        with pytest.raises(AssertionError):
            verify(problem, bad)
    with pytest.raises(AssertionError, match="memory"):
        verify(problem, good, memory=4.0)


def tangled(nodes: int, seed: int = 0) -> Problem:
    """A random problem with cycles, too hard to solve at once."""
    random = Random(seed)
    classes = nodes // 3
    child = lambda c: random.randrange(max(0, c - 30), min(classes, c + 10) if random.random() < 0.3 else c)
    return Problem(
        [
            Node(c, tuple(child(c) for _ in range(random.choice((1, 2, 3)))) if c > 20 else (), random.random())
            for c in (i % classes for i in range(nodes))
        ],
        [classes - 1, classes - 2],
    )


@pytest.mark.parametrize("limit", [0.0, 0.05, 1.0])
def test_a_time_limit_returns_the_best_so_far(limit):
    """However little time there is, a checked program and a valid bound come back."""
    problem = tangled(1500)
    answer = extract(problem, time_limit=limit)
    verify(problem, answer)
    assert 0 <= answer.bound <= answer.cost <= answer.greedy


def test_stages_agree():
    """Each stage alone finds or bounds the same optimum: the 0/1 program with order variables, and without."""
    problem = tangled(150, 3)
    graph = presolve(prune(indexed(problem)))
    whole = CoveringProgram(graph)
    whole.order()
    answer = whole.solve(60.0, 1e-9)
    assert answer.finished and not cuts.cycles(graph, answer.nodes)
    cost = sum(graph.price[i] for i in answer.nodes)
    assert extract(problem).cost == pytest.approx(cost)
    search = Search(graph, (), inf, 1e-9, True)
    search.first()
    assert search.cost >= cost * (1 - 1e-9) and search.graph is graph


def test_greedy_programs_are_programs():
    """Tree and DAG greedy cover the roots; the set cost of DAG greedy counts shared work once."""
    graph = prune(indexed(shared()))
    for choice in (greedy.trees(graph, graph.price)[0], greedy.dag(graph, graph.price)):
        assert graph.roots <= graph.derive(choice.values()).keys()


@settings(max_examples=50, deadline=None)
@given(small_problems)
def test_components(problem):
    """Classes on a common cycle share a component, children have no larger number; parts share no class."""
    graph = prune(indexed(problem))
    if graph is None:
        return
    part = components(graph)
    below = [{k for i in nodes for k in graph.kids[i]} for nodes in graph.members]
    reach = [set(b) for b in below]
    for _ in range(graph.classes):
        reach = [r.union(*(reach[k] for k in r)) for r in reach]
    for c in range(graph.classes):
        for d in range(graph.classes):
            assert (part[c] == part[d]) == (c == d or (c in reach[d] and d in reach[c]))
            assert d not in below[c] or part[d] <= part[c]
    assert sorted(o for p in find_components(graph) for origin in p.origin for o in origin) == sorted(
        o for origin in graph.origin for o in origin
    )


@settings(max_examples=100, deadline=None)
@given(small_problems)
def test_json_round_trip(problem):
    """What is written is read back, with classes and labels as text."""
    named = {node.cls for node in problem.nodes}
    text = Problem(
        [
            Node(str(n.cls), tuple(str(k) for k in n.children), *n[2:5], label=str(n.label))
            for n in problem.nodes
            if named.issuperset(n.children)
        ],
        [str(r) for r in problem.roots],
    )
    alive = {node.cls for node in text.nodes}
    if alive.issuperset(k for n in text.nodes for k in n.children) and alive.issuperset(text.roots):
        back = from_json(to_json(text))
        assert list(back.nodes) == list(text.nodes) and back.roots == text.roots


def test_files(tmp_path):
    """A file is written and read; broken ones are named with what is wrong."""
    path = tmp_path / "graph.json"
    write_problem(shared(), path)
    assert extract(read_problem(path)).cost == extract(shared()).cost
    node = '{"nodes": {"n": {"eclass": "c", "children": [%s], "cost": %s}}, "root_eclasses": [%s]}'
    for text, words in (
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "'nodes' is missing"),
        ("{}", "'nodes' is missing"),
        ('{"nodes": [], "root_eclasses": []}', r"'nodes' is '\[\]', must be an object"),
        ('{"nodes": {"n": 3}, "root_eclasses": []}', "node 'n' is no egraph-serialize JSON: 'eclass'"),
        (node % ('"m"', 1, '"c"'), "node 'n' has the child 'm'"),
        (node % ("[]", 1, '"c"'), r"the child \[\]"),
        (node % ("", 1, '"d"'), "class 'd' has no node"),
        (node % ("", 1, "{}"), "class {} has no node"),
        (node % ("", '"x"', '"c"'), "node 'n': cost is 'x', must be a number"),
        (node % ("", -1, '"c"'), "cost is '-1'"),
        (node % ("", "NaN", '"c"'), "cost is 'nan'"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words) as fault:
            read_problem(path)
        assert str(path) in str(fault.value)
    path.write_text(node % ("", "Infinity", '"c"'))
    with pytest.raises(Infeasible, match="root 'c'"):
        extract(read_problem(path))
    with pytest.raises(InputError, match="it is a directory"):
        read_problem(tmp_path)
    with pytest.raises(ValueError, match="child class 'x' without a node"):
        to_json(Problem([Node("r", ("x",))], ["r"]))
    with pytest.raises(ValueError, match="same text"):
        to_json(Problem([Node(1, ()), Node("1", ())], [1]))


def methods(uses: int = 5) -> Problem:
    """`uses` products with three methods each: exact, half the bytes, a quarter of the bytes at a larger error."""
    nodes = [Node("out", tuple(f"use{u}" for u in range(uses)))]
    for u in range(uses):
        for name, time, memory, error in (
            ("f32", 4.0, 4.0, 0.0),
            ("f16", 3.0, 2.0, 0.1 * u),
            ("csr", 1.0, 1.0, 1.0 + u),
        ):
            nodes += [Node(f"use{u}", (f"{name}{u}",), time + u, 0.0, error, name), Node(f"{name}{u}", (), 0.0, memory)]
    return Problem(nodes, ["out"])


def test_front():
    """The front holds the ends, is undominated, and every point meets a budget that was asked for."""
    problem = methods()
    points = front(problem, errors=(0.0, 1.0, 4.0, None))
    assert undominated(points) == points and len(points) > 3
    assert points[0].time == extract(problem).time
    assert min(p.memory for p in points if p.error == 0) == extract(problem, error=0.0, weights=(0, 1, 0)).memory
    for p in points:
        verify(problem, p)
    with pytest.raises(Infeasible, match="squared errors"):
        front(Problem([Node("r", (), 1.0, 1.0, 2.0)], ["r"]), errors=(1.0,))


def test_families_are_hints_only():
    """Cuts from families change no answer."""
    problem = methods()
    families = lambda cls: [cls] if str(cls).startswith("use") else ()
    for memory, error in ((12.0, 3.0), (9.0, None), (None, 2.0)):
        budgets = dict(memory=memory, error=error)
        plain, hinted = extract(problem, **budgets), extract(problem, **budgets, families=families)
        assert plain.cost == hinted.cost == brute(problem, memory or inf, inf if error is None else error)
