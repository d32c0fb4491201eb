"""Where what kernels read lies: a recording has addresses, and keeps all that they are of; arrays begin anywhere."""

import gc
import threading
import time
import weakref
from array import array

import numpy as np
import pytest
from alone import alone, rows
from test_program import RAGGED, stepped

from formats import FORMATS, Dense
from formats.kernels.attentions.heads import ALL
from formats.kernels.engine.compiled import FUNCTIONS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.positions import patterns
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step

LOWEST, HIGHEST = 1 << 32, 1 << 47  # between them are addresses; counts are below, floats above
PATTERNS = "window(1) | window(-1)", "causal & (window(9) | hubs(2))", "coarse(window(0) | scattered(2), 3)"


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def odd(given):
    """The same numbers, from an odd address on."""
    memory = np.empty(given.nbytes + 65, np.uint8)
    at = (1 - memory.ctypes.data) % 64
    moved = memory[at : at + given.nbytes].view(given.dtype).reshape(given.shape)
    moved[...] = given
    return moved


def scripts(program):
    return [script for segment in program.schedule.segments for script in getattr(segment, "scripts", {}).values()]


def lost(script):
    """Words of a script that are addresses of nothing that it holds."""

    def begins(each):
        return each.buffer_info()[0] if isinstance(each, array) else each.ctypes.data

    words = np.delete(script.content, np.concatenate(script.indices))
    words = words[(words >= LOWEST) & (words < HIGHEST) & (words != ALL)]
    held = [(begins(each), memoryview(each).nbytes) for each in script.read]
    held += [(function.place, 0) for function in FUNCTIONS.values() if function.place]
    return [hex(word) for word in words if not any(low <= word <= low + size for low, size in held)]


def attending(rng, *wheres):
    """A program of attention by these patterns, one after another."""
    steps, constants = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x")], {"E": Dense.pack(rows(rng, 26, 24))}
    steps.append(Step("heads", {"x": "x"}, {"heads": 3}, "h0"))
    for at, where in enumerate(wheres):
        steps.append(
            Step("attention", {each: f"h{at}" for each in "qkv"}, {"where": f"sequence & ({where})"}, f"h{at + 1}")
        )
    return Program([*steps, Step("join", {"x": f"h{len(wheres)}"}, {}, "y")], constants, "y")


# ---- what recordings keep


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_recording_holds_what_it_has_addresses_of(kernel, rng):
    """Whoever else does, and wherever the constants begin."""
    program = alone(kernel, rng)
    moved = program.over(
        program.steps,
        {name: odd(each) if isinstance(each, np.ndarray) else each for name, each in program.constants.items()},
    )
    batches = [stepped(each, rng) if each.schedule.state else RAGGED for each in (program, moved)]
    if program.schedule.state:
        for name, cache in batches[1].caches.items():
            cache[...] = batches[0].caches[name]
    assert np.array_equal(program.run(batches[0]), moved.run(batches[1]))
    assert all(each.flags.aligned for each in moved.constants.values() if isinstance(each, np.ndarray))
    for each in (program, moved):
        assert scripts(each) and not [word for script in scripts(each) for word in lost(script)]


@pytest.mark.parametrize("format", FORMATS)
def test_recordings_hold_weights_and_masks(format, rng):
    program = attending(rng, *PATTERNS)
    steps = [*program.steps, Step("linear", {"x": "y", "weight": "W"}, {}, "z")]
    whole = Program(steps, {**program.constants, "W": FORMATS[format].approximate(rows(rng, 24, 24))}, "z")
    for batch in (RAGGED, [[1] * 90]):
        whole.run(batch)
    assert scripts(whole) and not [word for script in scripts(whole) for word in lost(script)]


def test_a_mask_lasts_as_long_as_what_replays_it(rng):
    """Its arrays, once nobody else remembers it; not longer."""
    program = attending(rng, PATTERNS[0])
    wanted = program.run([[1] * 90])
    patterns.masked.cache_clear()
    (mine,) = scripts(program)
    held = [weakref.ref(each) for each in mine.read if isinstance(each, np.ndarray) and each.dtype.kind == "u"]
    del mine
    gc.collect()
    assert len(held) == 4 and all(each() is not None for each in held), "ptr, idx, edge, bits"
    assert np.array_equal(program.run([[1] * 90]), wanted)
    del program
    gc.collect()
    assert all(each() is None for each in held)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("round", range(2))
def test_threads_that_record_and_trace_with_masks(round, rng, monkeypatch):
    """A program that nobody ran before, by some threads at once, while one traces it, where nothing is remembered: each
    asks for masks, and gets its own. What they leave free is written over; the numbers are those of one thread."""
    made, slowly = patterns.masked.__wrapped__, {"tracing": 0.02}
    monkeypatch.setattr(
        patterns,
        "masked",
        lambda pattern, rows: (time.sleep(slowly.get(threading.current_thread().name, 1e-3)), made(pattern, rows))[1],
    )
    program = attending(rng, *(f"window({3 * round + at}) | window(-1)" for at in (50, 51, 52)))
    batches, found, together = [[[1] * 90], RAGGED, [[2] * 200, [3]]], {}, threading.Barrier(3)

    def work(number):
        together.wait()
        for at, batch in enumerate(batches):
            found[number, at, "first"] = [*program.trace(Batch(batch))][-1][1] if number == 0 else program.run(batch)
        together.wait()
        gc.collect()
        over = [np.full(size, 255, np.uint8) for size in range(4, 9000, 4)]
        for at, batch in enumerate(batches):
            found[number, at, len(over)] = program.run(batch)

    workers = [
        threading.Thread(target=work, args=(number,), name="running" if number else "tracing") for number in range(3)
    ]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    again = program.over(program.steps)
    wanted = [again.run(batch) for batch in batches]
    assert len(found) == 3 * 3 * 2
    assert not [key for key, each in found.items() if not np.array_equal(each, wanted[key[1]])]
    assert len(scripts(program)) == 3 and not [word for script in scripts(program) for word in lost(script)]


# ---- where arrays begin


def test_inputs_begin_anywhere(rng):
    """At odd addresses, backwards, of other numbers: kernels get float32 that begins where a number may."""
    program = Program(
        [Step("linear", {"x": "more", "weight": "W"}, {}, "y")],
        {"W": Dense.pack(rows(rng, 6, 9))},
        "y",
        inputs=[Port("more", "T", 6)],
    )
    given = rows(rng, 5, 6)
    wanted = program.run(Batch([[1, 2], [3, 4, 5]], inputs={"more": given}))
    for each in (odd(given), odd(given[::-1])[::-1], odd(given.astype(">f4")), given.astype(np.float64)):
        batch = Batch([[1, 2], [3, 4, 5]], inputs={"more": each})
        assert all(array.flags.carray for array in program.schedule.entered(batch))
        assert np.array_equal(program.run(batch), wanted)


def test_constants_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="W: given complex64; give real numbers"):
        Program([Step("scale", {"x": "x"}, {"factor": 2.0}, "y")], {"W": np.ones(3, np.complex64)}, "y")
