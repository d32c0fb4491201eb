"""In place of what takes long: a machine that nobody measured, with prices of the right order, the same every day, so
that tests need not calibrate; and laws that are verified already."""

import sympy

from formats.machine.model import Machine
from opmatrix.runtime.pricing import catalogue
from rewrites.laws import EXACT_LAWS

EVERY_LAW = [law.name for law in EXACT_LAWS]  # left out by runs of which no law is the subject
CALL, NUMBER, PRODUCT = 2e-6, 2e-10, 1e-11  # seconds for a call, a number read, a multiplication
DEARER = {"linear.csr": 4.0, "linear.block": 1.5, "linear.nm": 3.0, "softmax": 40.0, "attention": 4.0}  # arithmetic


def coefficients(kernel, price):
    """The first feature of a kernel is its arithmetic, 1 is the call, all others move numbers."""
    first, *others = price.terms
    arithmetic = PRODUCT if len(sympy.Mul.make_args(first)) > 2 else NUMBER
    return [DEARER.get(kernel, 1.0) * arithmetic, *(CALL if feature == 1 else NUMBER for feature in others)]


def machine():
    prices = catalogue()
    return Machine(
        {kernel: coefficients(kernel, each) for kernel, each in prices.prices.items()},
        name="stand-in",
        catalogue=prices,
    )


def know_savings(patch):
    """What each law saves is not asked by a whole run: that is a dozen searches of which no program depends."""
    patch.setattr("rewrites.report.judged_laws.rank_savings", lambda opened, exact: [])


def know_laws(patch):
    """Laws and their graphs, which tests/rewrites/test_verify.py verifies, are not verified once more by a whole run,
    nor is asked what each saves."""
    found = {"draws": 2, "seed": 0}
    know_savings(patch)
    patch.setattr("rewrites.verify.verify_laws", lambda laws, **options: {"laws": len(laws), **found})
    patch.setattr(
        "rewrites.verify.verify_graphs", lambda templates, laws, **options: {"graphs": len(templates), **found}
    )
