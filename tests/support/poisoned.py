"""Memory that nothing has written yet, filled with bytes of ones: NaN in every type of number, -1 as a whole number.

What a program reads or gives without having written it shows in any test that looks at a number: no fresh page of
zeros and no result of the run before can pass for it. Filled are the buffers of whole batches and of single steps,
what lies between the launches of recordings, and the scratch of kernels, before every run."""

import sys

import numpy as np

from formats.kernels.engine import launch
from opmatrix.runtime import segments

ONES = 0xFF


def fill(array):
    """The array, with bytes of ones."""
    array.reshape(-1).view(np.uint8).fill(ONES)
    return array


def replaced(patch, function, other):
    """Puts another function in the place of one, in every module that has it by its name."""
    name = function.__name__
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get(name) is function:
            patch.setattr(module, name, other)


def poison(patch):
    """From here on nothing is what it was before it is written."""
    reserve, unwritten, temporary = launch.Room.reserve, segments.unwritten, launch.temporary
    compute = segments.Values.compute

    def reserved(room, size, workers):
        found = reserve(room, size, workers)
        if isinstance(found, launch.Reserved):  # a recording has marks in its place
            start, step = found
            at = start - launch.begins_at(found.memory)
            fill(found.memory[at : at + step * workers])
        return found

    def computed(values, step):
        base = values.schedule.base[step]
        if base == step and launch.RECORDING.get() is None:
            fill(values[step])  # of its own, and run here and now
        compute(values, step)

    patch.setattr(launch.Room, "reserve", reserved)
    patch.setattr(segments.Values, "compute", computed)
    replaced(patch, unwritten, lambda shape, number: fill(unwritten(shape, number)))
    replaced(patch, temporary, lambda shape: fill(temporary(shape)))
