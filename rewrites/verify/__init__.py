"""Verification, four levels of which three are here: laws, graphs, programs. What fails raises; nothing is returned unproved."""
from rewrites.verify.failure import VerificationError
from rewrites.verify.graph import Disagreement, check_graph, check_seeded
from rewrites.verify.levels import verify_graphs, verify_laws
from rewrites.verify.program import Errors, unrounded, verify_approximate, verify_exact

__all__ = ["Disagreement", "Errors", "VerificationError", "check_graph", "check_seeded", "unrounded", "verify_approximate",
           "verify_exact", "verify_graphs", "verify_laws"]
