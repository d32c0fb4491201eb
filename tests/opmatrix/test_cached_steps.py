"""Steps of sessions: the same bits whoever else is in them, few scripts for prompts of any length, tables that are kept
from step to step, memory that stays as it is, and a full cache."""

import gc
import tracemalloc
import weakref
from functools import cache

import numpy as np
import pytest
from searched import structure
from speakers import LLAMA, SHORT

from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.attentions.chunks import CHUNK, PAGE
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import pick
from opmatrix.inference.cached import cached
from opmatrix.models import build, tensors
from opmatrix.runtime.recorded import Recorded

POSITIONS = CHUNK + 90


@cache
def program(number="float32", every=False):
    """Of the last row of each sequence, or of every row: a LLaMA for texts of more than a chunk."""
    config, rng = LLAMA | {"max_position_embeddings": POSITIONS}, np.random.default_rng(3)
    numbers = {
        name: (rng.normal(size=shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1)).astype(np.float32)
        for name, shape in tensors(config).items()
    }
    model = build(config, lambda name, *shape: Data(numbers[name], name))
    return cached(
        structure(model if every else model @ pick("last"), (), batch=SHORT).program({"config": config})[0], number
    )


def text(count, seed=0):
    return np.random.default_rng(seed).integers(0, LLAMA["vocab_size"], count).tolist()


def scripts(made):
    return sum(len(each.scripts) for each in made.schedule.segments if isinstance(each, Recorded))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("number", ["float32", "bf16"])
def test_a_row_has_the_same_bits_whatever_is_around_it(number, threads):
    """Alone and token by token; as a prompt; in steps of five rows; among seven others that join and leave; behind a
    fork; after rows that were taken back."""
    whole = text(CHUNK + 30)
    with limit(1):
        session = program(number).start(POSITIONS)
        own = session.join()
        wanted = {at: session.step({own: [each]})[0] for at, each in enumerate(whole)}
    with limit(threads):
        session, got = program(number).start(8 * POSITIONS), {}
        own, others = session.join(), [session.join() for _ in range(7)]
        new = {each: text(3 + 30 * k, k + 1) for k, each in enumerate(others[:3])}
        got[200] = session.step({**new, own: whole[:201]})[len(new)]
        session.step({each: text(PAGE, 9) for each in others})
        session.leave(others[1])
        split = session.fork(own)
        session.step({split: text(40, 5)})
        for low in range(201, 241, 5):
            got[low + 4] = session.step({own: whole[low : low + 5], others[4]: [1]})[0]
        session.rewind(split, 150)
        got[180] = session.step({split: whole[150:181]})[0]
        session.leave(others[2])
        for at in range(241, len(whole)):
            got[at] = session.step({others[3]: [at % 50], own: [whole[at]]})[1]
    for at, row in got.items():
        assert np.array_equal(row, wanted[at]), at


def test_a_row_of_every_row_is_its_own():
    """Where rows of nobody's stand before a prompt, what is given is the prompt's."""
    with limit(2):
        session, ids = program(every=True).start(200), text(37)
        one, other = session.join(), session.join()
        found = session.step({one: ids, other: [7]})
        alone = [session.step({each: [token]}) for each in (session.join(),) for token in ids]
    assert found.shape == (38, 24) and np.array_equal(found[:37], np.concatenate(alone))


def test_few_scripts_serve_prompts_of_any_length():
    made = program().over(program().steps)
    with limit(2):
        session = made.start(POSITIONS)
        for length in range(17, 129):
            own = session.join()
            session.step({own: text(length)})
            session.leave(own)
    assert scripts(made) == (128 - 16) // PAGE


def test_tables_are_kept_from_step_to_step():
    """The next step of as many rows has the same arrays, and the numbers of its own."""
    session = program().start(200)
    one, other = session.join(), session.join()
    session.step({one: text(20), other: [3]})
    session.step({one: [1], other: [2]})
    batch, repeated = session.kept[0]
    places = batch.slots.ctypes.data
    for k in range(PAGE + 2):
        session.step({one: [k], other: [2 * k]})
        assert session.kept == [(batch, repeated)] and batch.slots.ctypes.data == places
        assert batch.tokens.tolist() == [k, 2 * k] and batch.positions.tolist() == [21 + k, 2 + k]
    session.step({one: [1]})
    assert session.kept != [(batch, repeated)]
    for wrong, said in ((50, "id 50 of .* is outside 0..49"), (1.5, "token ids are integers")):
        with pytest.raises((ValueError, TypeError), match=said):
            session.step({one: [wrong]})
    assert one.length == 20 + PAGE + 4


def test_what_a_step_gave_stays_as_threads_come_and_go():
    """What a step asks once serves the next: results are their caller's, on however many threads, and ids are of any
    type."""
    made, ids = program(), text(2 * PAGE + 3)
    one, other = made.start(60), made.start(60)
    own, its = one.join(), other.join()
    with limit(1):
        wanted = [other.step({its: np.array([token], np.int32)})[0] for token in ids]
    found = []
    for at, token in enumerate(ids):
        with limit(1 + at % 3):
            found.append(one.step({own: [token]}))
    assert all(np.array_equal(each[0], row) for each, row in zip(found, wanted, strict=True))
    assert not any(np.shares_memory(each, found[-1]) for each in found[:-1])


def test_sessions_of_one_program_take_turns():
    """A table knows where the arrays of its last step begin: those of another session are asked for, and none of one
    that is gone is held."""
    made, ids = program(), text(24)

    def begun():
        session = made.start(60)
        return session, session.join()

    with limit(2):
        (one, own), (other, its) = begun(), begun()
        alone = [one.step({own: [token]})[0] for token in ids]
        one.leave(own)
        own = one.join()
        for token, wanted in zip(ids, alone, strict=True):
            assert np.array_equal(other.step({its: [token]})[0], wanted)
            assert np.array_equal(one.step({own: [token]})[0], wanted)
    gone = [weakref.ref(each) for each in other.caches.values()]
    del other, its
    gc.collect()
    assert not any(each() is not None for each in gone)


def test_a_full_cache_says_what_to_set_and_loses_nothing():
    session = program().start(40)  # three pages
    one, other = session.join(), session.join()
    session.step({one: text(30), other: [3]})
    for new, capacity in (({one: text(5), other: text(20)}, 80), ({one: text(3)}, 64), ({other: text(60)}, 96)):
        with pytest.raises(InputError, match=rf"space C is full: .*: start\(capacity={capacity}\), or let seq"):
            session.step(new)
        assert (one.length, other.length) == (30, 1)
    with limit(1):
        again = program().start(64)
        kept = again.join()
        again.step({kept: text(30)})
        assert np.array_equal(session.step({one: [7]}), again.step({kept: [7]}))


def test_memory_stays_flat():
    """Hundreds of tokens of sequences that join, fork and leave: what is held is what was held."""
    session, sizes = program().start(12 * 60), []
    for lap in range(6):
        live = [session.join() for _ in range(6)]
        session.step({each: text(18 + k) for k, each in enumerate(live)})
        live += [session.fork(live[0])]
        for at in range(30):
            session.step({each: [at] for each in live})
        for each in live:
            session.leave(each)
        gc.collect()
        if not lap:
            tracemalloc.start()
        else:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(session.usage.free) == 45 and not session.sequences
    assert max(sizes[1:]) - sizes[0] < 20_000, sizes
