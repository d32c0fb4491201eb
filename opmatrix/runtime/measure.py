"""Measuring programs: interleaved, so that a disturbance affects all of them; and measuring the memory that a call
allocates."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opmatrix.runtime.program import Given, Program

Seconds = dict[str, list[float]]


def measure(
    programs: Mapping[str, Any],
    batches: Sequence[object],
    rounds: int = 20,
    warm: int = 2,
    progress: Callable[[int, int], None] = lambda done, of: None,
    shares: Sequence[float] | None = None,
) -> Seconds:
    """Return the seconds that each program takes for all batches, or for the mean of batches with these shares, one
    number a round. A program has `run(batch)`, or is called.

    In every round each program runs each batch once, one after the other, in an order that rotates from round to round;
    `warm` rounds before are not counted. progress(done, of) is called after each round."""
    if not programs or not batches or rounds < 1:
        raise ValueError(
            f"measure: {len(programs)} programs, {len(batches)} batches and {rounds} rounds: give at least one of each"
        )
    calls = {name: getattr(program, "run", program) for name, program in programs.items()}
    taken: Seconds = {name: [] for name in calls}
    with undisturbed():
        for turn in range(-warm, rounds):
            total = dict.fromkeys(calls, 0.0)
            for at, batch in enumerate(batches):
                share = 1.0 if shares is None else shares[at]
                for name in rotate_order(list(calls), turn + at):
                    total[name] += share * seconds(calls[name], batch)
            if turn >= 0:
                for name in calls:
                    taken[name].append(total[name])
            progress(max(0, turn + 1), rounds)
    return taken


def seconds(call: Callable[..., object], batch: object) -> float:
    """Return the seconds of one call; its result is dropped after the clock stops."""
    start = time.perf_counter()
    result = call(batch)
    end = time.perf_counter()
    del result
    return end - start


def rotate_order(names: list[str], by: int) -> list[str]:
    """Return the names from the `by`-th on, then the first ones, so that each program is first in turn."""
    return names[by % len(names) :] + names[: by % len(names)]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable the garbage collector inside, as timeit does."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def collected() -> Iterator[None]:
    """Collect garbage before, and freeze the remaining objects inside: after a search there are so many that scanning
    them takes longer than a program's runs. Objects that a caller has frozen stay frozen."""
    gc.collect()
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def medians(taken: Seconds) -> dict[str, float]:
    """Return the median round of each program, in seconds."""
    return {name: median(times) for name, times in taken.items()}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile of the values."""
    low, _, high = quantiles(values if len(values) > 1 else [*values, *values], n=4, method="inclusive")
    return low, high


def noisy(repeats: Sequence[Sequence[float]]) -> bool:
    """True if differences in seconds between two programs, by repeat and round, do not show which is faster: quartiles
    of all rounds are on both sides of 0, or medians of repeats are."""
    ends = *quartiles([difference for rounds in repeats for difference in rounds]), *map(median, repeats)
    return min(ends) <= 0 <= max(ends)


def ratio(taken: Seconds, name: str, base: str) -> float:
    """Return the median over rounds of name's time over base's in the same round: below 1 if name is faster."""
    return median(a / b for a, b in zip(taken[name], taken[base], strict=True))


def peak(program: "Program", batch: "Given", runs: int = 1) -> int:
    """Return the most bytes that a call holds at a time beyond those held before; the most over `runs` runs."""
    return most_held(partial(program.run, batch), program.schedule.forget, runs)


def most_held(call: Callable[[], object], forget: Callable[[], None], runs: int = 1) -> int:
    """Return the most bytes that a call holds at a time beyond those held before, as tracemalloc counts (numpy reports
    to it); the most over `runs` calls.

    It is called once before, so that compiling, first imports and objects that Python itself keeps are not counted.
    Buffers that calls pass on to one another are released before each: the shared ones, and those that `forget`
    releases. The garbage collector is off, so no older garbage is freed while a call is measured."""
    from formats.kernels.engine.launch import ARENA

    running, was = tracemalloc.is_tracing(), gc.isenabled()
    if not running:
        tracemalloc.start()
    try:
        gc.disable()
        call()
        most = 0
        for _ in range(runs):
            ARENA.release()
            forget()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            result = call()
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
            del result
        return most
    finally:
        if was:
            gc.enable()
        if not running:
            tracemalloc.stop()
