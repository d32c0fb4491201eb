"""The rooms of the three packages in their order: each imports from those before it, in its own package and below.
docs/architecture.md prints them in this order. Opmatrix has arrows back, which are counted."""

ROOMS = {
    "formats": ("core", "disk", "host", "kernels", "machine", "storage"),
    "opmatrix": (
        "algebra",
        "spectra",
        "display",
        "models",
        "autodiff",
        "inference",
        "files",
        "runtime",
        "exports",
        "parallel",
    ),
    "rewrites": (
        "laws",
        "egraph",
        "extraction",
        "lowering",
        "search",
        "verify",
        "proofs",
        "discovery",
        "workload",
        "metrics",
        "approximate",
        "opened",
        "explain",
        "ranks",
        "report",
        "run",
        "encoders",
        "serving",
        "cli",
    ),
}
BACK = 5  # arrows of opmatrix against the order; 43 of 147 in 0.20


def order(package: str) -> list[str]:
    """The rooms of a package by their names in full."""
    return [f"{package}.{name}" for name in ROOMS[package]]
