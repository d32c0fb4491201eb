"""The kernels that steps may name, one or a family in each file: its operands, result, meaning, rounding and cost, and
its call. The index is made from the files.

An operand with a default may be absent, and is None then."""

from importlib import import_module
from pkgutil import iter_modules

from opmatrix.runtime.declarations.kernel import Declared

KERNELS: dict[str, Declared] = {}


def enter(declared: Declared) -> None:
    """Enter a kernel into the table. Raises ValueError if there is one of its name."""
    if declared.name in KERNELS:
        raise ValueError(f"kernel {declared.name}: there is one already; give it another name")
    KERNELS[declared.name] = declared


for file in iter_modules(__path__):
    for each in vars(import_module(f"{__name__}.{file.name}")).values():
        if isinstance(each, Declared):
            enter(each)
