"""Small random problems of extraction, and every program of one."""

from collections.abc import Iterator
from random import Random

from hypothesis import strategies as st

from rewrites.extraction import Node, Problem, order


def random_problem(seed: int) -> Problem:
    """Up to 7 classes, cycles, empty classes, repeated children and members, zero and equal costs, some roots."""
    random = Random(seed)
    classes = random.randint(1, 7)
    cost = random.choice((lambda: float(random.randint(0, 3)), lambda: random.choice((0.0, 0.0, 1.0)), random.random))
    name = lambda: random.randrange(classes)
    nodes = [
        Node(name(), tuple(name() for _ in range(random.choice((0, 1, 1, 2, 2, 3)))), cost(), cost(), cost())
        for _ in range(random.randint(1, 16))
    ]
    return Problem(nodes, [name() for _ in range(random.randint(1, 3))])


small_problems = st.builds(random_problem, st.integers(0, 2**32))


def programs(problem: Problem) -> Iterator[tuple[Node, ...]]:
    """Every acyclic choice of one node for each class that is needed."""
    members = {cls: [node for node in problem.nodes if node.cls == cls] for cls in {node.cls for node in problem.nodes}}
    todo: list[tuple[dict, tuple]] = [({}, tuple(problem.roots))]
    while todo:
        choice, needed = todo.pop()
        missing = [cls for cls in needed if cls not in choice]
        if missing:
            todo += [
                ({**choice, node.cls: node}, (*missing[1:], *node.children)) for node in members.get(missing[0], ())
            ]
            continue
        try:
            yield order(choice, problem.roots)
        except ValueError:
            pass
