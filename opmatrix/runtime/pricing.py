"""Prices of machines for programs: the products and stages of formats, every declared kernel, and the start of a run.
Code that prices, calibrates or searches takes the catalogue from here."""

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
    """Return the prices of formats and of all kernels that are declared by now."""
    prices = {name: price for kernel in KERNELS.values() for name, price in kernel.prices.items()}
    return Catalogue({**FORMAT_CATALOGUE.prices, **prices}, (begin_run,), FORMAT_CATALOGUE.optional)


def begin_run(sentences: int) -> Callable[[], object]:
    """Return a run of a program that gathers a row of each sentence: only Python before it and after it takes time."""
    table = FORMATS["dense"].pack(np.ones((1, 16), np.float32))
    program = Program([Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x")], {"table": table}, "x")
    batch = Batch([[0]] * sentences)
    program.run(batch)  # compiles its kernels
    return partial(program.run, batch)


def this_machine(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """Return this machine's model for all kernels: read from the cache, else begun and stored there."""
    return local_machine(catalogue(), progress)


def datasheet(name: str) -> datasheets.Datasheet:
    """Return a machine that was not measured here, by its name, for all kernels. Raises ValueError that names the known
    ones."""
    return datasheets.datasheet(name, catalogue())
