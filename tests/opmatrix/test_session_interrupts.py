"""Calls of sessions interrupted at every line: each has happened, or has not, and whatever follows gives the same bits
as in a session that was never interrupted."""

import sys
from functools import cache
from linecache import getline
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import formats
import opmatrix
from formats import Dense
from formats.core.errors import InputError
from formats.kernels.attentions.chunks import PAGE
from formats.kernels.engine.pool import POOL
from opmatrix.algebra.batch.signature import Port
from opmatrix.inference import pages, session
from opmatrix.runtime.program import Program, Step

WORDS, WIDTH, PAGES = 30, 24, 12
LINES = {pages.__file__, session.__file__}
BELOW = tuple(str(Path(each.__file__).parent) for each in (formats, opmatrix))  # what a step runs in
APART = 11  # of lines below, every so many


@cache
def program():
    """Two layers of attention over caches, grouped keys, a residual."""
    rng = np.random.default_rng(3)

    def numbers(*shape):
        return Dense.pack(rng.standard_normal(shape).astype(np.float32) * shape[0] ** -0.5)

    steps, constants = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x")], {"E": numbers(WORDS, WIDTH)}
    ports, state = [], {}
    for at in range(2):
        x, parts = steps[-1].output, {}
        for part, heads in (("q", 2), ("k", 1), ("v", 1)):
            constants[part + str(at)] = numbers(WIDTH, heads * 8)
            steps.append(Step("linear", {"x": x, "weight": part + str(at)}, {}, f"{part} {at}"))
            steps.append(Step("heads", {"x": steps[-1].output}, {"heads": heads}, f"heads {part}{at}"))
            parts[part] = steps[-1].output
            if part == "q":
                continue
            ports.append(Port(f"cache {part}{at}", "C", 8, 1))
            steps.append(Step("append", {"x": parts[part], "cache": ports[-1].name}, {}, f"with {part}{at}"))
            parts[part] = state[ports[-1].name] = steps[-1].output
        constants[f"o{at}"] = numbers(16, WIDTH)
        steps.append(Step("attention_cached", parts, {"scale": 0.35}, f"mixed {at}"))
        steps.append(Step("join", {"x": steps[-1].output}, {}, f"joined {at}"))
        steps.append(Step("linear", {"x": steps[-1].output, "weight": f"o{at}", "residual": x}, {}, f"x{at}"))
    return Program(steps, constants, steps[-1].output, inputs=ports, state=state)


def text(count, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, count)


def prepared(exact=False):
    """Sequences 1 and 2 share a page in which 2 has fewer rows, 3 ends with a page, 4 has none and 5 has left."""
    made = program().start(PAGES * PAGE, exact)
    first = made.join()
    made.step({first: text(PAGE + 9)})
    second, third = made.fork(first), made.join()
    made.rewind(second, PAGE + 5)
    made.step({third: text(PAGE, 1)})
    made.join()
    fifth = made.fork(third)
    made.step({fifth: [1]})
    made.leave(fifth)
    return made


def by_numbers(made, *numbers):
    return [made.sequences[number] for number in numbers]


def stepping(counts):
    """A step of so many rows of each of these sequences."""

    def call(made):
        return made.step(
            {held: text(count, count) for held, count in zip(by_numbers(made, *counts), counts.values(), strict=True)}
        )

    return call


CALLS = {
    "join": lambda made: made.join(),
    "fork": lambda made: made.fork(*by_numbers(made, 1)),
    "fork of none": lambda made: made.fork(*by_numbers(made, 4)),
    "rewind": lambda made: made.rewind(*by_numbers(made, 1), 3),
    "rewind a page": lambda made: made.rewind(*by_numbers(made, 3), 0),
    "leave": lambda made: made.leave(*by_numbers(made, 2)),
    "step of one": stepping({3: 2}),
    "step in place": stepping({1: 3, 2: 1}),
    "step of a copy": stepping({2: 5}),
    "step of all": stepping({1: 8, 2: 9, 3: 2, 4: 1}),
}


# ---- what sessions are and give


def told(made):
    """Everything that a session says, and all that its sequences see."""
    rows = {}
    for number, held in made.sequences.items():
        page, chain = made.state.sequences[held].page, []
        while page >= 0:
            chain.append(page)
            page = int(made.before[page])
        assert len(chain) == -(-held.length // PAGE)
        seen = np.array([page * PAGE + at for page in chain[::-1] for at in range(PAGE)], np.int64)[: held.length]
        rows[number] = [chain, *(cache[seen].tobytes() for cache in made.caches.values())]
    return rows, made.state.made, sorted(made.usage.free), [*made.usage.users], repr(made)


def onwards(made):
    """What it gives from here on: rows of all, of a fork beside what it is of, of as many as there is room for."""
    held = [*made.sequences.values()]
    rows = [made.step({each: [3, 4] for each in held})]
    forked = made.fork(held[0])
    rows.append(made.step({forked: text(PAGE + 1, 2), held[0]: [2]}))
    for each in [*held, forked]:
        made.leave(each)
    last = made.join()
    rows += [made.step({last: text(PAGES * PAGE, 4)}), last.number]
    made.leave(last)
    assert sorted(made.usage.free) == [*range(PAGES)]
    return [each.tobytes() if isinstance(each, np.ndarray) else each for each in rows]


@cache
def wanted(name, exact):
    """Of sessions that were never interrupted, before a call and after it: what they say, and give from there on."""
    without, within = prepared(exact), prepared(exact)
    CALLS[name](within)
    return [told(each) for each in (without, within)], [onwards(each) for each in (without, within)]


# ---- interrupts


def interrupted(call, at, chosen, raised):
    """Whether a call was interrupted: where the so many-th line begins, or a function ends, in files that are
    chosen. Not where a `with` is left, which is its line again: there Python looks for no signals before a lock is let
    go of."""
    count = 0

    def traced(frame, event, argument):
        if not chosen(frame.f_code.co_filename):
            return None
        begun = set()

        def local(frame, event, argument):
            nonlocal count
            leaves = (
                event == "line"
                and frame.f_lineno in begun
                and getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
            )
            if event == "line":
                begun.add(frame.f_lineno)
            if event in ("line", "return") and not leaves:
                count += 1
                if count > at:
                    raise raised
            return local

        return local

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        call()
    except raised:
        return True
    finally:
        sys.settrace(before)
    return False


def check_each(name, exact, chosen, apart=1):
    """Interrupts a call everywhere; how often it then had not happened, and had."""
    (without, within), follows = wanted(name, exact)
    counts, at = [0, 0], 0
    while True:
        made = prepared(exact)
        raised = (KeyboardInterrupt, MemoryError)[at // apart % 2]
        struck = interrupted(lambda made=made: CALLS[name](made), at, chosen, raised)
        for lock in (made.lock, POOL.lock):
            assert "unlocked" in repr(lock), "other threads wait for ever"
        found = told(made)
        assert found == within if not struck else found in (without, within), f"{raised.__name__} at {at}"
        counts[happened := int(found == within)] += 1
        assert onwards(made) == follows[happened], f"{raised.__name__} at {at}, {happened}"
        if not struck:
            return counts
        at += apart


@pytest.mark.deep(every=10)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_interrupted_has_happened_or_has_not(name):
    """At each line of sessions and their pages, the copying of a fork's page among them."""
    without, within = check_each(name, False, LINES.__contains__)
    assert without > 10 and within > 1


def test_a_step_that_is_interrupted_below():
    """In what runs the program, of which some lines are taken: caches are written to by then."""
    without, within = check_each("step of all", False, lambda file: file.startswith(BELOW), APART)
    assert without > 10 and within


@pytest.mark.deep
def test_an_exact_step_that_is_interrupted():
    """Whose caches are replaced."""
    without, within = check_each("step of a copy", True, LINES.__contains__)
    assert without > 10 and within


# ---- what raises by itself


@pytest.mark.parametrize(
    "new, words",
    [
        ({1: [WORDS]}, "tokens: id 30"),
        ({1: [2], 2: [3], 3: []}, "0 tokens"),
        ({1: text(PAGES * PAGE), 2: [1]}, "space C is full"),
        ({1: ["x"]}, "ids are integers"),
    ],
)
def test_a_step_that_is_refused_has_not_happened(new, words):
    (without, _), (follows, _) = wanted("step of all", False)
    made = prepared()
    with pytest.raises((InputError, ValueError, TypeError), match=words):
        made.step({made.sequences[number]: ids for number, ids in new.items()})
    assert told(made) == without and onwards(made) == follows


def test_threads_step_in_turn():
    """Each its own sequence, of one session."""
    made, one = program().start(40 * PAGE), program().start(40 * PAGE)
    sequences, rows = [made.join() for _ in range(4)], {}

    def work(number):
        rows[number] = [made.step({sequences[number]: text(number + 1, at)}) for at in range(20)]

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number in range(4):
        alone = one.join()
        for at in range(20):
            assert np.allclose(one.step({alone: text(number + 1, at)}), rows[number][at], atol=1e-5)
        one.leave(alone)
    for each in sequences:
        made.leave(each)
    assert len(made.usage.free) == 40
