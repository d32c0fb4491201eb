"""Laws, the e-graph, extraction and verification; what people use of it is found in `opmatrix`: `opmatrix.optimize`."""
from typing import TYPE_CHECKING, Any

import opmatrix as opmatrix  # its check that `formats` and `rewrites` are ours comes before what else is imported

if TYPE_CHECKING:
    from rewrites.run import optimize as optimize


def __getattr__(name: str) -> Any:
    """`optimize` is imported when first asked for: it brings the whole engine along."""
    if name == "optimize":
        from rewrites.run import optimize
        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
