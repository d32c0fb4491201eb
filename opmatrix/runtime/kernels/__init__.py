"""The kernels that steps may name, a file each, or a family: what it reads, gives, means, rounds and costs, and how it
is called. The index is made of the files.

An operand with a default may be absent, and is None then."""
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from formats import FORMATS
from formats.machine.prices import LATER, PRICES
from formats.machine.running import BEGINNINGS
from opmatrix.runtime.kernel import Declared

KERNELS: dict[str, Declared] = {}


def enter(declared: Declared) -> None:
    """A kernel into the table, and its prices into the machines'. ValueError where there is one of its name."""
    if declared.name in KERNELS: raise ValueError(f"kernel {declared.name}: there is one already; give it another name")
    KERNELS[declared.name] = declared
    for name, price in declared.prices.items(): (PRICES if price.common else LATER)[name] = price


def beginning(sentences: int) -> Callable[[], Any]:
    """A run of a program that gathers a row of each sentence: Python before it and after it is all that takes time."""
    from opmatrix.patterns import Batch
    from opmatrix.program import Program, Step
    table = FORMATS["dense"].pack(np.ones((1, 16), np.float32))
    program = Program([Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x")], {"table": table}, "x")
    batch = Batch([[0]] * sentences)
    program.run(batch)                                      # compiles
    return partial(program.run, batch)


for file in iter_modules(__path__):
    for each in vars(import_module(f"{__name__}.{file.name}")).values():
        if isinstance(each, Declared): enter(each)
BEGINNINGS.append(beginning)
