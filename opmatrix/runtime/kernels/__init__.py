"""The kernels that steps may name, a file each, or a family: what it reads, gives, means, rounds and costs, and how it
is called. The index is made of the files.

An operand with a default may be absent, and is None then."""
from importlib import import_module
from pkgutil import iter_modules

from opmatrix.runtime.declarations.kernel import Declared

KERNELS: dict[str, Declared] = {}


def enter(declared: Declared) -> None:
    """A kernel into the table. ValueError where there is one of its name."""
    if declared.name in KERNELS: raise ValueError(f"kernel {declared.name}: there is one already; give it another name")
    KERNELS[declared.name] = declared


for file in iter_modules(__path__):
    for each in vars(import_module(f"{__name__}.{file.name}")).values():
        if isinstance(each, Declared): enter(each)
