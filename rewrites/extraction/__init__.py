"""Extraction: the cheapest program of an e-graph, with a proof, from plain data."""
from .files import read
from .problem import Extraction, Infeasible, Node, Problem, verify
from .solve import extract

__all__ = ["Extraction", "Infeasible", "Node", "Problem", "extract", "read", "verify"]
