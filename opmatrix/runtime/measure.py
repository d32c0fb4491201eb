"""Measuring programs: interleaved, so that what disturbs one disturbs all; and what a call allocates."""
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


def measure(programs: Mapping[str, Any], batches: Sequence[object], rounds: int = 20, warm: int = 2,
            progress: Callable[[int, int], None] = lambda done, of: None,
            shares: Sequence[float] | None = None) -> Seconds:
    """Seconds that each program takes for all batches, or for the mean of batches with these shares, one number a
    round. A program has `run(batch)`, or is called.

    In every round each program runs each batch once, one after the other, in an order that turns from round to round;
    `warm` rounds before are not counted. progress(done, of) is called after each round."""
    if not programs or not batches or rounds < 1:
        raise ValueError(f"measure: {len(programs)} programs, {len(batches)} batches and {rounds} rounds: give some")
    calls = {name: getattr(program, "run", program) for name, program in programs.items()}
    taken: Seconds = {name: [] for name in calls}
    with undisturbed():
        for turn in range(-warm, rounds):
            total = dict.fromkeys(calls, 0.0)
            for at, batch in enumerate(batches):
                share = 1.0 if shares is None else shares[at]
                for name in rotate_order(list(calls), turn + at): total[name] += share * seconds(calls[name], batch)
            if turn >= 0:
                for name in calls: taken[name].append(total[name])
            progress(max(0, turn + 1), rounds)
    return taken


def seconds(call: Callable[..., object], batch: object) -> float:
    """How long one call takes; its result is dropped outside of that."""
    start = time.perf_counter()
    kept = call(batch)
    end = time.perf_counter()
    del kept
    return end - start


def rotate_order(names: list[str], by: int) -> list[str]: return names[by % len(names):] + names[:by % len(names)]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, as timeit does."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try: yield
    finally:
        if was: gc.enable()


@contextmanager
def collected() -> Iterator[None]:
    """Garbage is gone, and what is left is not looked through again meanwhile: after a search there is so much of it
    that looking takes longer than a program's runs. What somebody froze stays as it is."""
    gc.collect()
    frozen = gc.get_freeze_count()
    if not frozen: gc.freeze()
    try: yield
    finally:
        if not frozen: gc.unfreeze()


def medians(taken: Seconds) -> dict[str, float]:
    """The median round of each program, in seconds."""
    return {name: median(times) for name, times in taken.items()}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """What a quarter of the values stays below, and a quarter above."""
    low, _, high = quantiles(values if len(values) > 1 else [*values, *values], n=4, method="inclusive")
    return low, high


def noisy(repeats: Sequence[Sequence[float]]) -> bool:
    """Whether differences in seconds between two programs, by repeat and round, do not say which is faster: quartiles
    of all rounds lie on both sides of 0, or medians of repeats do."""
    ends = *quartiles([each for rounds in repeats for each in rounds]), *map(median, repeats)
    return min(ends) <= 0 <= max(ends)


def ratio(taken: Seconds, name: str, base: str) -> float:
    """The median over rounds of name's time over base's in the same round: below 1 where name is faster."""
    return median(a / b for a, b in zip(taken[name], taken[base], strict=True))


def peak(program: "Program", batch: "Given", runs: int = 1) -> int:
    """The most bytes that a call holds at a time beyond what was held before; of so many runs the most."""
    return most_held(partial(program.run, batch), program.schedule.forget, runs)


def most_held(call: Callable[[], object], forget: Callable[[], None], runs: int = 1) -> int:
    """The most bytes that a call holds at a time beyond what was held before, as tracemalloc counts (numpy tells it);
    of so many calls the most.

    It is called once before, so that compiling, first imports and what Python itself keeps are not counted; buffers
    that calls hand on to one another are given back before each: those of all, and what `forget` gives back. No garbage
    is looked for meanwhile, so none that was there before goes while a call is measured."""
    from formats.kernels.engine.launch import ARENA
    running, was = tracemalloc.is_tracing(), gc.isenabled()
    if not running: tracemalloc.start()
    try:
        gc.disable()
        call()
        most = 0
        for _ in range(runs):
            ARENA.release()
            forget()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            kept = call()
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
            del kept
        return most
    finally:
        if was: gc.enable()
        if not running: tracemalloc.stop()
