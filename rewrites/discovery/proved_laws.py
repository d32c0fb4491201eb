"""Proofs of found laws by axioms alone: the entries of both sides as polynomials, or the laws of values. Laws of the
search are no axioms, and a found law is never used in its own proof. Of a monoid or a pattern that is a variable a
proof uses the flags alone."""

from rewrites.discovery.small_terms import OPEN_ATTRIBUTES
from rewrites.discovery.stated_laws import StatedEquation
from rewrites.laws.law import Law
from rewrites.laws.proving.values import VALUE_LAWS
from rewrites.proofs.equations import Prover, TriedEquation
from rewrites.proofs.open_attributes import close_term

PROOF_NODES = 2000  # nodes of the graph of a proof


def prove_equation(equation: StatedEquation) -> tuple[str, ...]:
    """Return the chain of a proof: `entries as polynomials`, or the names of the laws of values; empty if none was
    found."""
    left, right = (close_term(side, OPEN_ATTRIBUTES) for side in (equation.left, equation.right))
    tried = TriedEquation(left, right, PROOF_NODES)
    if tried.by_entries() is not None:
        return (tried.tried[-1].way,)
    proof = tried.by("the laws of values", VALUE_LAWS)
    if proof is None:
        return ()
    fired = [law for law in VALUE_LAWS if any(name.startswith(law.name) for name in proof.matches)]
    return tuple(law.name for law in shorten_chain(tried, fired))


def shorten_chain(tried: TriedEquation, laws: list[Law]) -> list[Law]:
    """Return laws from which none can be left out, of these: the proof is checked again by each rest."""
    for law in laws:
        rest = [other for other in laws if other is not law]
        if rest and Prover(rest).prove(*tried.sides, tried.budget):
            laws = rest
    return laws
