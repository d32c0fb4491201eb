"""Sessions refuse what they do not hold, by the names and sizes of spaces; what is refused or interrupted leaves them
as they were."""

import signal

import numpy as np
import pytest
from searched import Round, relative
from test_session import by_steps as found
from test_session import counted, model, text

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs, patterns
from opmatrix.algebra.batch.relations import HELD, SLOTS
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, given, product, shift, softmax, turn, weight
from opmatrix.algebra.positions.patterns import among, sequence
from opmatrix.algebra.term import formula
from opmatrix.inference.cached import cached, decoder_of
from opmatrix.runtime.program import Program, Step
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search


def broken(steps, inputs=(), **state):
    """The cached step with other steps, more inputs and state."""
    own = found()[1]
    return Program(steps, own.constants, own.output, inputs=[*own.inputs, *inputs], state={**own.state, **state})


def test_state_that_is_read_before_it_is_written():
    steps = list(found()[1].steps)
    at = next(i for i, step in enumerate(steps) if step.kernel == "attention_cached")
    early = next(step for step in steps if step.kernel == "append").operands["cache"]
    steps[at] = Step(steps[at].kernel, {**steps[at].operands, "k": early}, steps[at].attributes, steps[at].output)
    with pytest.raises(
        ValueError,
        match=rf"state: '{early}', C×2×8 in space C: .* = attention_cached reads it before it is "
        r"written: read 'cached ",
    ):
        broken(steps)


def test_state_that_nobody_writes():
    lost, steps = Port("lost", "C", 8, 2), found()[1].steps
    last = [*found()[1].state.values()][-1]
    with pytest.raises(ValueError, match="state: 'lost', C×2×8 in space C: no step writes it"):
        broken(steps, [lost], lost=last)
    with pytest.raises(ValueError, match="state: input 'lost', C×2×8 in space C, has no next value"):
        broken(steps, [lost])
    first = next(iter(found()[1].state))
    with pytest.raises(ValueError, match=f"'{first}', .*: its next value is 'cached h.*', not '{last}'"):
        broken(steps, **{first: last})
    with pytest.raises(ValueError, match="state: no input is 'else'"):
        broken(steps, **{"else": last})
    with pytest.raises(ValueError, match="state: 'wide' is T×8: state must be rows of space C"):
        broken(steps, [Port("wide", "T", 8)], wide=last)


def test_a_batch_in_place_of_a_session():
    with pytest.raises(
        ValueError, match=r"has state in space C \(C×2×8, .*run it by a session, program.start\(capacity\)"
    ):
        found()[1].run([[1, 2]])
    with pytest.raises(ValueError, match="by a session"):
        found()[1].exact([[1, 2]])


def test_sequences_that_a_session_does_not_hold():
    program, step = found()
    session, other, stranger = step.start(64), step.start(64), cached(program).start(64)
    gone = session.join()
    session.leave(gone)
    with pytest.raises(InputError, match="step: sequence 1 has left; space C holds 0 sequences"):
        session.step({gone: [1]})
    with pytest.raises(InputError, match="fork: sequence 1 belongs to another session, of this program"):
        session.fork(other.join())
    with pytest.raises(InputError, match="leave: sequence 1 belongs to another session, of another program"):
        session.leave(stranger.join())
    with pytest.raises(InputError, match="is no sequence"):
        session.step({3: [1]})
    held = session.join()
    with pytest.raises(InputError, match="sequence 2 has 0 rows in space C: it cannot go back to 4"):
        session.rewind(held, 4)


def test_a_cache_that_is_full():
    session = found()[1].start(40)
    first, second = session.join(), session.join()
    session.step({first: text(20)})
    with pytest.raises(
        InputError, match=r"space C is full: 35 new rows of 2 sequences need 3 pages of 16 rows, and 1 of 3"
    ):
        session.step({first: text(17), second: text(18)})
    assert first.length == 20 and second.length == 0 and len(session.usage.free) == 1
    session.step({first: text(12), second: text(3)})
    for capacity in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="capacity is"):
            found()[1].start(capacity)


def test_a_step_that_is_refused_leaves_the_session_as_it_was():
    """Ids outside their table, and positions that RoPE has no angles for."""
    program, step = found()
    session = step.start(400)
    held = session.join()
    session.step({held: text(19)})
    with pytest.raises(ValueError, match="tokens: id 30"):
        session.step({held: [30]})
    with pytest.raises(ValueError, match="positions: id 330"):
        session.step({held: text(330)})
    with pytest.raises(ValueError, match="0 tokens"):
        session.step({held: []})
    assert held.length == 19 and len(session.usage.free) == 23
    assert relative(session.step({held: [7]}), program.exact([[*text(19), 7]])[-1:]) < 1e-5


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no alarms")
def test_an_interrupted_call_leaves_the_session_right():
    """Anywhere, in pages too: a step either happened to all of its sequences or to none, and later rows are right."""
    program, step = found()
    session, rng, struck = step.start(600), np.random.default_rng(0), 0
    texts = {session.join(): [], session.join(): []}

    def strike(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(120):
            held = list(texts)[rng.integers(2)]
            ids, length = text(int(rng.integers(1, 40)), struck), held.length
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-3))
                    session.step({held: ids})
                    forked = session.fork(held)
                    session.rewind(forked, length)
                    session.leave(forked)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                struck += 1  # the one that comes just before the timer is off, too
            assert held.length in (length, length + len(ids))
            if held.length > length:
                texts[held] += ids.tolist()
            for each in [*session.sequences.values()]:
                if each not in texts:
                    session.leave(each)
            counted(session)
            if held.length > 200:
                session.rewind(held, 11)
                del texts[held][11:]
            rows = session.step({held: [5]})
            texts[held].append(5)
            assert relative(rows, program.exact([texts[held]])[-1:]) < 1e-5
    finally:
        signal.signal(signal.SIGALRM, before)
    assert struck > 10


def test_a_call_within_a_call_is_refused():
    """By what it reads, here; whatever another session does is its own."""
    session, other = found()[1].start(64), found()[1].start(64)
    held = session.join()

    class Calling(list):
        def __len__(self):
            other.join()
            session.join()

    with pytest.raises(InputError, match="called within one of its own calls"):
        session.step({held: Calling([1])})
    assert session.join().number == 2 and [*other.sequences] == [1]


def test_caches_that_terms_read_too_early_or_never_hand_on():
    """Named by the input, its space and sizes."""
    table, cache = weight(np.ones((9, 8))), given("keys", 8, "C")
    new = formula(lambda x: cache + product(given(SLOTS), x))
    early = formula(lambda x: x + product(product(x, turn(cache)), cache, over=softmax, where=among(HELD)))
    late = formula(lambda x: x + product(product(x, turn(new(x))), new(x), over=softmax, where=among(HELD)))
    for outputs, words in [
        ({"y": table @ early, "keys": table @ new}, r"it reads keys: C × 8 float32 before it is written: append"),
        ({"y": table @ late}, r"keys: C × 8 float32: .* is appended to it, but is not the output of this name"),
        ({"y": table @ late, "keys": table @ new, "more": table @ new}, "output 'more': its rows, of space C, stay"),
    ]:
        with pytest.raises(InputError, match=words):
            parts(outputs)
    assert len(parts({"y": table @ late, "keys": table @ new})) == 2


def test_programs_that_have_no_cached_step():
    term = model(where=sequence)
    program, _ = search(term, EXACT_LAWS, Round(), Batch([[1, 2]]).extents(patterns(term))).program({})
    with pytest.raises(InputError, match=r"= attention: it reads other rows; .*'sequence & causal'"):
        cached(program)
    plain, _ = search(weight(Data(np.ones((4, 4)))) @ I, EXACT_LAWS, Round(), Batch([[1, 2]]).extents()).program({})
    with pytest.raises(InputError, match="there is nothing to cache"):
        cached(plain)
    with pytest.raises(InputError, match="no state"):
        plain.start(10)


@pytest.mark.parametrize("rows", [I, I + shift(2)], ids=["rows", "shifted"])
def test_programs_that_read_inputs_have_no_sessions(rows):
    """A session is given tokens, and no rows of an input beside them; so nothing of a session is verified."""
    term, x = given("x", 4, "T") @ rows, np.ones((2, 4), np.float32)
    extents = Batch([[1, 2]], inputs={"x": x}).extents(*collect_needs(term))
    program, _ = search(term, EXACT_LAWS, Round(), extents).program({})
    with pytest.raises(InputError, match="the program reads input x: a session is given tokens alone"):
        cached(program)
    assert decoder_of(program) is None
