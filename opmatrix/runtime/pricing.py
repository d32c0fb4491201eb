"""What machines price for programs: the products and stages of formats, every kernel that is declared, and how a run
begins. Whoever prices, calibrates or searches takes the catalogue from here and hands it over."""
from collections.abc import Callable
from functools import partial

import numpy as np

from formats import FORMATS
from formats.machine import datasheets
from formats.machine.local import local_machine
from formats.machine.model import Machine
from formats.machine.prices import FORMAT_CATALOGUE, Catalogue
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step


def catalogue() -> Catalogue:
    """The prices of formats and of all kernels that are declared by now."""
    prices = {name: price for kernel in KERNELS.values() for name, price in kernel.prices.items()}
    return Catalogue({**FORMAT_CATALOGUE.prices, **prices}, (begin_run,), FORMAT_CATALOGUE.optional)


def begin_run(sentences: int) -> Callable[[], object]:
    """A run of a program that gathers a row of each sentence: Python before it and after it is all that takes time."""
    table = FORMATS["dense"].pack(np.ones((1, 16), np.float32))
    program = Program([Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x")], {"table": table}, "x")
    batch = Batch([[0]] * sentences)
    program.run(batch)                                      # compiles
    return partial(program.run, batch)


def this_machine(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """This machine's model for all kernels: read from the cache, else begun and kept there."""
    return local_machine(catalogue(), progress)


def datasheet(name: str) -> datasheets.Datasheet:
    """A machine that nobody here has measured, by its name, for all kernels; ValueError names those there are."""
    return datasheets.datasheet(name, catalogue())
