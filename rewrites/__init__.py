"""Laws, the e-graph, extraction and verification: `from rewrites import optimize`."""
from typing import Any


def __getattr__(name: str) -> Any:
    """`optimize` is imported when first asked for: it brings the whole engine along."""
    if name == "optimize":
        from rewrites.run import optimize
        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
