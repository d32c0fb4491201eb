"""egraph-serialize JSON, the format that e-graph engines share: read into a Problem, written from one."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from formats.disk.files import MAX_TEXT_BYTES, read_json
from rewrites.extraction.problem import Node, Problem

COSTS = ("cost", 1.0), ("memory", 0.0), ("error", 0.0)  # fields of a node's time, memory, squared error; defaults


def from_json(data: object, where: str = "the graph") -> Problem:
    """Read a problem from egraph-serialize JSON: a node's cost is its time, its operator its label; a child names a
    node, and means the class of that node. `memory` and `error` are optional. A node that costs Infinity may not be
    chosen.

    Raises InputError naming the place and the fault there."""
    nodes, roots = (part(data, name, kind, where) for name, kind in (("nodes", dict), ("root_eclasses", list)))
    classes = {name: part(node, "eclass", str, f"{where}: node {name!r:.80}") for name, node in nodes.items()}
    out = []
    for name, node in nodes.items():
        place = f"{where}: node {name!r:.80}"
        children = part(node, "children", list, place) if "children" in node else []
        strange = [child for child in children if not isinstance(child, str) or child not in classes]
        if strange:
            raise InputError(f"{place} has the child {strange[0]!r:.80}, which is not a node of the file")
        time, memory, error = (parse_cost(node.get(field, usual), f"{place}: {field}") for field, usual in COSTS)
        out.append(
            Node(classes[name], tuple(classes[child] for child in children), time, memory, error, node.get("op", name))
        )
    known = set(classes.values())
    unknown = [root for root in roots if not isinstance(root, str) or root not in known]
    if unknown:
        raise InputError(f"{where}: root class {unknown[0]!r:.80} has no node")
    return Problem(out, roots)


def part(data: object, name: str, kind: type, where: str) -> Any:
    """Return a field of a kind. Raises InputError if it is not there."""
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
        wrong = "is missing" if value is None else f"is {str(value)[:40]!r}"
        raise InputError(f"{where} is no egraph-serialize JSON: {name!r} {wrong}, must be {kinds[kind]}")
    return value


def parse_cost(value: object, place: str) -> float:
    """Return a cost. Raises InputError for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"{place} is {str(value)[:40]!r}, must be a number that is not negative")
    return float(value)


def to_json(problem: Problem) -> dict[str, object]:
    """Return the egraph-serialize JSON of a problem; classes and labels are written as text.

    Raises ValueError for a child class without a node, which the format cannot express, and for classes with the same
    text."""
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
            raise ValueError(
                f"node {node.label!r} of class {node.cls!r} has the child class {missing[0]!r} without a node"
            )
        extra = {field: value for field, value in (("memory", node.memory), ("error", node.error)) if value}
        nodes[name] = dict(
            op=str(node.label),
            cost=node.time,
            eclass=str(node.cls),
            children=[first[child] for child in node.children],
            **extra,
        )
    return dict(nodes=nodes, root_eclasses=[str(root) for root in problem.roots])


def read_problem(path: str | Path) -> Problem:
    """Read an egraph-serialize JSON file; see from_json. Raises InputError for a file that cannot be read."""
    return from_json(read_json(path, MAX_TEXT_BYTES, constant=float), str(path))


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem as egraph-serialize JSON; see to_json."""
    Path(path).write_text(json.dumps(to_json(problem), indent=1))
