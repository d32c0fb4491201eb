"""egraph-serialize JSON, the format that e-graph engines share: read into a Problem, written from one."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .problem import Node, Problem


def from_json(data: Mapping[str, Any], where: str = "the graph") -> Problem:
    """A problem from egraph-serialize JSON: a node's cost is its time, its operator is its label, a child names a node of its class.

    Raises ValueError naming the node at fault.
    """
    nodes = data["nodes"]
    for name, node in nodes.items():
        missing = [child for child in node["children"] if child not in nodes]
        if missing:
            raise ValueError(f"{where}: node {name!r} has a child {missing[0]!r} that is no node of the file")
    return Problem([Node(node["eclass"], tuple(nodes[child]["eclass"] for child in node["children"]),
                         float(node.get("cost", 1.0)), label=node["op"]) for node in nodes.values()],
                   list(data["root_eclasses"]))


def read(path: str | Path) -> Problem:
    """Read an egraph-serialize JSON file."""
    return from_json(json.loads(Path(path).read_text()), str(path))
