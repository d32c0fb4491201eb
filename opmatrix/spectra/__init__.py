"""Spectra of weights and activations, the errors that they predict for an approximation, and the approximations that
they propose."""

from opmatrix.spectra.co_methods import unite_processes
from opmatrix.spectra.gram import Gram, low_rank, low_rank_errors, mask_errors, predicted_error, prune_scores, whitened
from opmatrix.spectra.krylov_schur import krylov_schur
from opmatrix.spectra.measures import LEVELS, PowerLaw, Spectrum, elbow, leverage, power_law
from opmatrix.spectra.propose import Candidate, Limits, Proposal, Proposals, Rejected, propose
from opmatrix.spectra.solvers import eigenvalues, randomised_svd, singular_values
from opmatrix.spectra.two_sided import (
    Factors,
    damped,
    entry_losses,
    refitted,
    two_sided,
    two_sided_errors,
    two_sided_values,
)
from opmatrix.spectra.unite import Eigenpairs, restarted_arnoldi, unite_and_conquer

__all__ = [
    "LEVELS",
    "Candidate",
    "Eigenpairs",
    "Factors",
    "Gram",
    "Limits",
    "PowerLaw",
    "Proposal",
    "Proposals",
    "Rejected",
    "Spectrum",
    "damped",
    "eigenvalues",
    "elbow",
    "entry_losses",
    "krylov_schur",
    "leverage",
    "low_rank",
    "low_rank_errors",
    "mask_errors",
    "power_law",
    "predicted_error",
    "propose",
    "prune_scores",
    "randomised_svd",
    "refitted",
    "restarted_arnoldi",
    "singular_values",
    "two_sided",
    "two_sided_errors",
    "two_sided_values",
    "unite_and_conquer",
    "unite_processes",
    "whitened",
]
