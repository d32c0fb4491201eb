"""Extraction: the cheapest program of an e-graph, with a proof, from plain data.

`extract` is the entry point: presolve (presolve.py), greedy programs (greedy.py), landmark bounds (landmarks.py), a
linear relaxation with cuts and the 0/1 program (exact.py, cuts.py), and neighbourhoods of the best program
(bounding.py, anneal.py); solve.py runs them in order. `Repriced` is for a problem that is solved at many prices."""

from rewrites.extraction.epsilon_constraint import front, undominated
from rewrites.extraction.problem import Extraction, Infeasible, Node, Problem, order, verify
from rewrites.extraction.repriced import Repriced
from rewrites.extraction.serialised import from_json, read_problem, to_json, write_problem
from rewrites.extraction.solve import extract

__all__ = [
    "Extraction",
    "Infeasible",
    "Node",
    "Problem",
    "Repriced",
    "extract",
    "from_json",
    "front",
    "order",
    "read_problem",
    "to_json",
    "undominated",
    "verify",
    "write_problem",
]
