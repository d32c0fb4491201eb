"""This machine's prices in the cache: read from there, or measured and stored. A calibration begins with few kernels;
others are measured when a search first uses them, each part stored in a file of its own."""

import os
from collections.abc import Callable, Collection
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from formats.disk.cache import say
from formats.host.quiet import drift, probe
from formats.machine.calibration import calibrate, calibrate_more
from formats.machine.model import FROM_PYTHON, Machine, NotThisMachine, UnknownPrice, digested, identity, machine_file
from formats.machine.peaks import Progress
from formats.machine.prices import Catalogue

T = TypeVar("T")


def local_machine(catalogue: Catalogue, progress: Progress = lambda *_: None) -> Machine:
    """Return this machine's model for the kernels of a catalogue: read from the cache, else begun and stored there. A
    model that cannot be read, belongs to another machine, or could have been written by others, is measured again, and
    that is reported; so is a model that cannot be stored. A model that was measured while the machine was busy is
    measured again by the first process that finds it quiet; until then it is used, with its mark (`marks`)."""
    return load_or_measure(machine_file(), catalogue, partial(calibrate, catalogue), progress)


def learn(unknown: UnknownPrice, progress: Progress = lambda *_: None) -> None:
    """Measure a price that a machine lacks, together with all common prices or alone, or read it from the cache, and
    add it to the machine. Raise the error again where the machine is not the one at hand."""
    machine, kernel, way, catalogue = unknown.machine, unknown.kernel, unknown.way, unknown.machine.catalogue
    known = machine.rates(way).coefficients
    names = [
        name
        for name in (catalogue.common if catalogue[kernel].common else [kernel])
        if name not in known and (way == FROM_PYTHON or catalogue[name].recorded)
    ]
    if kernel not in names or machine.identity != identity():
        raise unknown
    measure = partial(calibrate_more, catalogue, names, way)
    machine.add(names, way, load_or_measure(part_file([way, *names]), catalogue, measure, progress, names, way))


def learning(ask: Callable[[], T], progress: Progress = lambda *_: None) -> T:
    """Return the result of `ask`, after the prices that it lacks were measured, each kernel once."""
    learned = set[tuple[str, str]]()
    while True:
        try:
            return ask()
        except UnknownPrice as unknown:
            if (key := (unknown.kernel, unknown.way)) in learned:
                raise
            learned.add(key)
            learn(unknown, progress)


def part_file(names: Collection[str]) -> Path:
    """Return the file for the rates of kernels that were measured after the machine's model."""
    return machine_file().with_suffix(f".{digested(' '.join(sorted(names)))}.json")


@cache
def find_others() -> str:
    """Return the signs of a busy machine now: observed once a process, when a price is first read."""
    return probe()


def load_or_measure(
    file: Path,
    catalogue: Catalogue,
    measure: Callable[..., Machine],
    progress: Progress,
    wanted: Collection[str] = (),
    way: str = FROM_PYTHON,
) -> Machine:
    """Load the machine in a file, with rates of these kernels in this way of running, at its present pace; or else
    measure and store it. A machine without rates is not stored: its kernels are all measured on first use."""
    if os.path.lexists(file):
        try:
            machine = Machine.load(file, catalogue, wanted, way)
        except NotThisMachine as error:
            say(f"measured again: {error}")
        else:
            if not machine.busy or find_others():
                return machine.slowed(drift(machine.pace))
            say("measured again: prices that were measured while the machine was busy, as it is quiet now")
    machine = measure(progress=progress)
    if machine.coefficients or wanted:
        machine.save(file)
    return machine
