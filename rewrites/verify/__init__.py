"""Verification of laws (level 1), of the graphs that laws make (level 2) and of programs (level 3). A failure raises
VerificationError."""

from rewrites.verify.failure import VerificationError
from rewrites.verify.graphs import Disagreement, check_graph, check_seeded
from rewrites.verify.lengths import verify_lengths
from rewrites.verify.levels import verify_graphs, verify_laws
from rewrites.verify.programs import (
    Errors,
    reading,
    unrounded,
    verify_approximate,
    verify_exact,
    verify_outputs,
    verify_steps,
    verify_structure,
)
from rewrites.verify.shrink import check_term, reproducer

__all__ = [
    "Disagreement",
    "Errors",
    "VerificationError",
    "check_graph",
    "check_seeded",
    "check_term",
    "reading",
    "reproducer",
    "unrounded",
    "verify_approximate",
    "verify_exact",
    "verify_graphs",
    "verify_laws",
    "verify_lengths",
    "verify_outputs",
    "verify_steps",
    "verify_structure",
]
