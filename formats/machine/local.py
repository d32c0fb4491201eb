"""This machine's prices, kept in the cache: read from there, or measured and kept. A calibration begins with little;
what a search then asks for and nobody measured is measured on demand, each part kept in a file of its own."""
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
    """This machine's model for the kernels of a catalogue: read from the cache, else begun and kept there. What cannot
    be read, belongs to another machine, or could be somebody else's, is measured again, and that is said; so is what
    cannot be kept. What was measured while the machine was busy is measured again by the first process that finds it
    quiet; until then it is used, with its mark (`marks`)."""
    return load_or_measure(machine_file(), catalogue, partial(calibrate, catalogue), progress)


def learn(unknown: UnknownPrice, progress: Progress = lambda *_: None) -> None:
    """Measure what a machine does not know, with all that every search meets or alone, or read it from the cache, and
    add it to the machine. Raises the error again where the machine is not the one at hand."""
    machine, kernel, way, catalogue = unknown.machine, unknown.kernel, unknown.way, unknown.machine.catalogue
    own = machine.rates(way).coefficients
    names = [name for name in (catalogue.common if catalogue[kernel].common else [kernel])
             if name not in own and (way == FROM_PYTHON or catalogue[name].recorded)]
    if kernel not in names or machine.identity != identity(): raise unknown
    measure = partial(calibrate_more, catalogue, names, way)
    machine.add(names, way, load_or_measure(part_file([way, *names]), catalogue, measure, progress, names, way))


def learning(ask: Callable[[], T], progress: Progress = lambda *_: None) -> T:
    """What is asked of machines, after what they lack for it was measured, each kernel once."""
    learned = set[tuple[str, str]]()
    while True:
        try: return ask()
        except UnknownPrice as unknown:
            if (key := (unknown.kernel, unknown.way)) in learned: raise
            learned.add(key)
            learn(unknown, progress)


def part_file(names: Collection[str]) -> Path:
    """Where the rates of kernels are kept that were measured after the machine's model."""
    return machine_file().with_suffix(f".{digested(' '.join(sorted(names)))}.json")


@cache
def find_others() -> str:
    """What is seen of others now: looked for once a process, by the first prices that ask."""
    return probe()


def load_or_measure(file: Path, catalogue: Catalogue, measure: Callable[..., Machine], progress: Progress,
                    wanted: Collection[str] = (), way: str = FROM_PYTHON) -> Machine:
    """The machine in a file, with rates of these kernels in this way, at the pace that it has now; or else measured and
    kept there. A machine without rates is not kept: it was begun for kernels that are all measured when they are first
    asked for."""
    if os.path.lexists(file):
        try: machine = Machine.load(file, catalogue, wanted, way)
        except NotThisMachine as error: say(f"measured again: {error}")
        else:
            if not machine.busy or find_others(): return machine.slowed(drift(machine.pace))
            say("measured again: prices that were measured while the machine was busy, as it is quiet now")
    machine = measure(progress=progress)
    if machine.coefficients or wanted: machine.save(file)
    return machine
