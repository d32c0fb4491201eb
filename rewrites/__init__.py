"""Laws, the e-graph, extraction and verification. The public names are in `opmatrix`, such as `opmatrix.optimize`."""

from typing import TYPE_CHECKING, Any

import opmatrix as opmatrix  # first, as it checks that `formats` and `rewrites` are ours

if TYPE_CHECKING:
    from rewrites.run import optimize as optimize


def __getattr__(name: str) -> Any:
    """Import `optimize` on first access: it imports the whole engine."""
    if name == "optimize":
        from rewrites.run import optimize

        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
