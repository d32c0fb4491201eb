"""egraph-serialize JSON, the format that e-graph engines share: read into a Problem, written from one."""
from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from .problem import Node, Problem


def from_json(data: Mapping[str, Any], where: str = "the graph") -> Problem:
    """A problem from egraph-serialize JSON: a node's cost is its time, its operator its label; a child names a node, and
    stands for the class of that node. `memory` and `error` are read where they are given.

    Raises ValueError naming what is missing, and where.
    """
    try:
        nodes = data["nodes"]
        roots = list(data["root_eclasses"])
        classes = {name: node["eclass"] for name, node in nodes.items()}
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(f"{where} is no egraph-serialize JSON: {missing} is missing") from None
    out = []
    for name, node in nodes.items():
        strange = [child for child in node.get("children", ()) if child not in nodes]
        if strange:
            raise ValueError(f"{where}: node {name!r} has the child {strange[0]!r}, which is no node of the file")
        children = tuple(classes[child] for child in node.get("children", ()))
        costs = [float(node.get(field, default)) for field, default in (("cost", 1.0), ("memory", 0.0), ("error", 0.0))]
        out.append(Node(node["eclass"], children, *costs, label=node.get("op", name)))
    unknown = set(roots).difference(classes.values())
    if unknown:
        raise ValueError(f"{where}: root class {sorted(map(str, unknown))[0]!r} has no node")
    return Problem(out, roots)


def to_json(problem: Problem) -> dict[str, Any]:
    """The egraph-serialize JSON of a problem; classes and labels are written as text.

    Raises ValueError for a child class without a node, which the format cannot say, and for classes with the same text.
    """
    first: dict[Hashable, str] = {}
    names = []
    for i, node in enumerate(problem.nodes):
        names.append(f"{node.cls}__{i}")
        first.setdefault(node.cls, names[-1])
    if len({str(cls) for cls in first}) < len(first):
        raise ValueError("two classes have the same text: name them apart before writing")
    nodes = {}
    for name, node in zip(names, problem.nodes, strict=True):
        missing = [child for child in node.children if child not in first]
        if missing:
            raise ValueError(f"node {node.label!r} of class {node.cls!r} has the child class {missing[0]!r} without a node")
        extra = {field: value for field, value in (("memory", node.memory), ("error", node.error)) if value}
        nodes[name] = dict(op=str(node.label), cost=node.time, eclass=str(node.cls),
                           children=[first[child] for child in node.children], **extra)
    return dict(nodes=nodes, root_eclasses=[str(root) for root in problem.roots])


def read(path: str | Path) -> Problem:
    """Read an egraph-serialize JSON file; see from_json."""
    try:
        data = json.loads(Path(path).read_text())
    except json.JSONDecodeError as fault:
        raise ValueError(f"{path} is no JSON: {fault}") from None
    return from_json(data, str(path))


def write(problem: Problem, path: str | Path) -> None:
    """Write a problem as egraph-serialize JSON; see to_json."""
    Path(path).write_text(json.dumps(to_json(problem), indent=1))
