"""States of sequences in sessions: shifts and scans go on from the last rows, with the bits of whole texts, whatever
calls there were."""

import sys
from functools import cache
from linecache import getline
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st
from test_expert_models import NEXT, made

import opmatrix as om
from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.attentions.chunks import PAGE
from opmatrix.algebra.batch.signature import STATE_SPACE, Port
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.inference import pages, session
from opmatrix.inference.cached import cached, rows_behind
from opmatrix.inference.chat.held_prefixes import MOST_STATES, HeldPrefixes
from opmatrix.inference.generation import Reply
from opmatrix.inference.pages import EACH_STATE, STATE_GAP, Holding, Past, Snapshot, StatePool, count_states
from opmatrix.models import build
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program
from rewrites.verify.failure import VerificationError
from rewrites.verify.sessions.verified_sessions import verify_states
from tests.support import standin

RNG = np.random.default_rng(0)
WORDS, WIDTH, COUNT = 30, 20, 3
TABLE = om.weight(RNG.normal(size=(WORDS, WIDTH)))
STEPS = 1, 5, 64


def matrix(n=WIDTH, p=WIDTH):
    return om.weight(RNG.normal(size=(n, p)) / n**0.5)


def selective():
    """A convolution and a selective scan, as Mamba has them."""
    dt, left, right = matrix() @ om.softplus, matrix(p=COUNT) @ om.heads(COUNT), matrix(p=COUNT) @ om.heads(COUNT)
    rates = om.const(-np.exp(RNG.normal(size=(COUNT, 1, WIDTH))))

    def scanned(x):
        rows = om.scan((x @ dt) @ om.repeat(COUNT) * rates @ om.exp, x @ om.repeat(COUNT) * (x @ left), om.decay)
        return (rows * (x @ right)) @ om.total

    return om.conv(RNG.normal(size=(4, WIDTH)) / 2) @ om.silu @ om.formula(scanned)


def attending():
    return om.attention(matrix(), matrix(), matrix(), 2, sequence & causal)


def linear(gate=None):
    """Linear attention of two heads, with decays of a head or of each column of keys."""
    q, k, v = (matrix() @ feature for feature in (om.relu, om.relu, om.I))
    parts = [part @ om.heads(2) for part in ((q, k, v) if gate is None else (q, k, v, matrix(p=gate) @ om.sigmoid))]
    made = om.linear_attention(*parts) if gate is None else om.gated_linear_attention(*parts)
    return made @ om.heads(2).T


def retained():
    """Decays that all rows have, one of a head; one head of keys and values serves two."""
    q, k, v = matrix() @ om.heads(2), matrix(p=WIDTH // 2), matrix(p=7)
    rates = om.const(np.array([0.9, 0.99])) @ om.heads(2)
    return om.gated_linear_attention(q, k, v, rates) @ om.heads(2).T @ matrix(14)


def corrected(gate=None):
    """The delta rule on keys of unit length, with decays of a head or of each column of keys, or without."""

    def mixed(x):
        q, v = x @ QUERY @ om.heads(2), x @ VALUE @ om.heads(2)
        k, betas = x @ KEY @ om.heads(2) @ om.rmsnorm(1e-6) * (2 / WIDTH) ** 0.5, x @ BETA @ om.sigmoid @ om.heads(2)
        if gate is None:
            return om.delta_rule(q, k, v, betas) @ om.heads(2).T
        return om.gated_delta_rule(q, k, v, betas, x @ GATES[gate] @ om.sigmoid @ om.heads(2)) @ om.heads(2).T

    return om.formula(mixed)


QUERY, KEY, VALUE, BETA = matrix(), matrix(), matrix(p=2 * 7), matrix(p=2)
GATES = {2: matrix(p=2), WIDTH: matrix()}
MODELS = {
    "selective": TABLE @ (om.I + selective()) @ (om.I + selective()),
    "hybrid": TABLE @ (om.I + selective()) @ (om.I + attending()),
    "shifts": TABLE @ matrix() @ (om.shift(2) + om.shift(5)) @ matrix() @ (om.I + om.shift(1) @ om.tanh),
    "linear": TABLE @ (om.I + linear()) @ (om.I + linear(2)) @ matrix(),
    "decays of columns": TABLE @ (om.I + om.shift(1)) @ linear(WIDTH) @ (om.I + retained() @ om.shift(1)),
    "delta rule": TABLE @ (om.I + corrected() @ matrix(14)) @ (om.I + corrected(2) @ matrix(14)) @ corrected(WIDTH),
    "qwen3-next": build(NEXT | dict(vocab_size=WORDS, max_position_embeddings=256), made()),
    "a maximum": TABLE @ om.scan(om.const(1.0), matrix(), "rectify"),
}

HYBRIDS = "hybrid", "qwen3-next"  # with attention over caches beside states


@cache
def programs(name):
    """The program of a model for whole texts, and that of its sessions."""
    program = om.schedule(MODELS[name], om.Batch([[1, 2, 3], [4]]), machine=standin.machine()).program
    return program, cached(program)


def whole(name, tokens):
    """The rows of a text as one: those of attention over caches are a session's, which has sums of its own."""
    program, decoder = programs(name)
    if name not in HYBRIDS:
        return program.run(om.Batch([tokens]))
    session = decoder.start(len(tokens))
    rows = session.step({session.join(): tokens})
    np.testing.assert_allclose(rows, program.run(om.Batch([tokens])), rtol=1e-4, atol=1e-4)
    return rows


def text(count, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, count)


def in_steps(session, held, tokens, count):
    return np.concatenate([session.step({held: tokens[at : at + count]}) for at in range(0, len(tokens), count)])


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_any_rows_are_whole_texts_to_the_bit(name):
    decoder, tokens = programs(name)[1], text(150)
    wanted = whole(name, tokens).tobytes()
    for count in (*STEPS, 150):
        session = decoder.start(200)
        assert in_steps(session, session.join(), tokens, count).tobytes() == wanted, count
    with limit(1):
        session = decoder.start(200)
        assert in_steps(session, session.join(), tokens, 7).tobytes() == wanted


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_forks_has_the_bits_of_each_alone(name):
    """Sequences of other lengths beside, forks that part, some that leave: no state is a neighbour's."""
    decoder = programs(name)[1]
    texts = [text(n, n) for n in (40, 3, 70, 1)]
    texts.append(np.concatenate([texts[0][:25], text(30, 9)]))
    session = decoder.start(40 * PAGE)
    held = [session.join() for _ in texts[:4]]
    rows = {each: [] for each in held}

    def step(counts):
        given = session.step({each: tokens for each, tokens in counts.items() if len(tokens)})
        for each in (each for each, tokens in counts.items() if len(tokens)):
            rows[each].append(given[: len(counts[each])])
            given = given[len(counts[each]) :]

    step({each: tokens[:25] for each, tokens in zip(held, texts, strict=False)})
    fork = session.fork(held[0])
    rows[fork] = [*rows[held[0]]]
    session.leave(held[3])
    live = dict(zip([*held[:3], fork], (*texts[:3], texts[4]), strict=True))
    for at in range(25, 70, 9):
        step({each: tokens[at : at + 9] for each, tokens in live.items()})
    for each, tokens in live.items():
        assert np.concatenate(rows[each]).tobytes() == whole(name, tokens).tobytes()


@settings(max_examples=15, deadline=None, derandomize=True)
@forall(st.sampled_from([*MODELS]), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_a_rewound_sequence_goes_on_as_if_it_had_not_gone_further(name, rewinds, seed):
    rng = np.random.default_rng(seed)
    session, tokens = programs(name)[1].start(20 * PAGE, rewinds=rewinds), text(0)
    held = session.join()
    for count in rng.integers(1, 12, 4):
        tokens = np.concatenate([tokens, text(count, count)])
        rows = session.step({held: tokens[-count:]})
        assert rows.tobytes() == whole(name, tokens)[-count:].tobytes()
        kept = len(session.state.sequences[held].past.states)
        assert min(count, rewinds + 1) <= kept <= rewinds + 1
        tokens = tokens[: len(tokens) - rng.integers(0, kept)]
        session.rewind(held, len(tokens))
    session.rewind(held, 0)
    assert session.step({held: tokens}).tobytes() == whole(name, tokens).tobytes()


@pytest.mark.parametrize("name", ["selective", "hybrid", "delta rule"])
def test_a_rewind_between_kept_states_passes_rows_again(name):
    """To every kind of row: beside kept states, just before and behind them; of forks, whose pages are shared."""
    session, tokens = programs(name)[1].start(80 * PAGE, rewinds=100), text(240)
    wanted, held = whole(name, tokens), session.join()
    for part in np.split(tokens, [1, 130, 131, 200, 201, 235]):
        session.step({held: part})
    assert len(session.state.sequences[held].past.states) <= count_states(100)
    first = (240 - 100) // STATE_GAP * STATE_GAP
    back = [239, 240 - EACH_STATE, 239 - EACH_STATE, 193, 192, 191, first + 1, first]
    forks = {length: session.fork(held) for length in back}
    for length, fork in forks.items():
        session.rewind(fork, length)
        assert session.step({fork: tokens[length : length + 1]}).tobytes() == wanted[length].tobytes(), length
        further = slice(length - 2 if length - 2 > first else 0, length + 20)
        session.rewind(fork, further.start)
        assert session.step({fork: tokens[further]}).tobytes() == wanted[further].tobytes(), length
    for fork in forks.values():
        session.leave(fork)
    assert session.step({held: [1]}).tobytes() == whole(name, np.append(tokens, 1))[240].tobytes()


def test_a_short_sequence_goes_back_to_any_of_its_rows():
    session, tokens = programs("shifts")[1].start(10 * PAGE, rewinds=1000), text(90)
    held = session.join()
    session.step({held: tokens})
    for length in range(89, -1, -11):
        session.rewind(held, length)
    assert held.length == 1 and session.step({held: tokens[1:]}).tobytes() == whole("shifts", tokens)[1:].tobytes()


@pytest.mark.parametrize("rewinds", [0, 1, EACH_STATE, EACH_STATE + 1, STATE_GAP - 1, STATE_GAP, 200, 1000])
def test_a_refused_rewind_says_what_is_enough(rewinds):
    """Of a sequence that went back before, too; no kept states are more than are said."""
    decoder, tokens = programs("shifts")[1], text(300)
    session = decoder.start(30 * PAGE, rewinds=rewinds)
    held = session.join()
    for count in (150, 1, 100, 49):
        session.step({held: tokens[held.length : held.length + count]})
        states = session.state.sequences[held].past.states
        assert len(states) * session.pool.each <= session.state_bytes
        assert states[-1].length == held.length and len({*states}) == len(states)
    session.rewind(held, max(1, 300 - rewinds))
    if rewinds >= 300:
        return
    with pytest.raises(InputError, match=r"start\(capacity, rewinds=(\d+)\)") as caught:
        session.rewind(held, 20)
    session = decoder.start(30 * PAGE, rewinds=int(str(caught.value).rpartition("=")[2][:-1]))
    held = session.join()
    session.step({held: tokens})
    session.rewind(held, max(1, 300 - rewinds))
    session.rewind(held, 20)
    assert session.step({held: tokens[20:22]}).tobytes() == whole("shifts", tokens)[20:22].tobytes()


@pytest.mark.parametrize("name", ["selective", *HYBRIDS])
def test_a_rewind_beyond_what_is_kept_is_refused_in_a_line(name):
    """Caches and states go back together, or not at all."""
    session = programs(name)[1].start(20 * PAGE)
    held = session.join()
    session.step({held: text(30)})
    before = session.state
    with pytest.raises(
        InputError,
        match=r"^rewind: sequence 1 of 30 rows keeps the states of its last 2: .* start\(capacity, rewinds=2\)",
    ) as caught:
        session.rewind(held, 28)
    assert "\n" not in str(caught.value) and session.state is before
    session.rewind(held, 29)
    assert held.length == 29


def test_bytes_of_states_are_said_and_depend_on_no_length():
    decoder = programs("selective")[1]
    session = decoder.start(40 * PAGE, rewinds=0)
    each = 2 * 4 * (3 * WIDTH + COUNT * WIDTH)
    assert session.state_bytes == each and f"{each:,} bytes of states a sequence" in repr(session)
    assert f"{each:,} bytes a state of a sequence" in str(decoder) and rows_behind(decoder) == 0
    held, used = session.join(), set()
    for count in (1, 60, 1, 300, 1):
        session.step({held: text(count)})
        used.add(session.bytes)
    assert max(used) == 3 * each  # none, the one before, the next


def test_sums_of_linear_attention_are_states_of_a_size():
    """Of each head d × e numbers, whatever the length; the last row that a shift reads, beside them."""
    decoder = programs("linear")[1]
    assert decoder.start(PAGE, rewinds=0).state_bytes == 4 * 2 * 2 * (WIDTH // 2) ** 2
    sums = [port for port in decoder.inputs if port.name.startswith("sums ")]
    assert [(port.heads, port.columns) for port in sums] == [(2, (WIDTH // 2) ** 2)] * 2


def test_exact_sessions_are_whole_texts_in_float64():
    for name in MODELS:
        program, decoder = programs(name)
        session, tokens = decoder.start(64, exact=True), text(30)
        rows = in_steps(session, session.join(), tokens, 4)
        np.testing.assert_allclose(rows, program.exact(om.Batch([tokens])), rtol=1e-11, atol=1e-11)


def test_a_program_with_states_is_saved_as_it_is(tmp_path):
    decoder = programs("hybrid")[1]
    decoder.save(tmp_path / "saved")
    session = Program.load(tmp_path / "saved").start(64)
    tokens = text(40)
    assert in_steps(session, session.join(), tokens, 3).tobytes() == whole("hybrid", tokens).tobytes()


def test_states_that_do_not_fit_are_refused_by_name():
    decoder = programs("shifts")[1]
    narrow = [Port(port.name, port.space, 3, port.heads) for port in decoder.inputs]
    with pytest.raises(ValueError, match="states×1×3 do"):
        Program(decoder.steps, decoder.constants, decoder.outputs, inputs=narrow, state=decoder.state)


def test_pools_hand_out_states_that_nobody_holds():
    pool = StatePool([Port("state a", STATE_SPACE, 3)], False)
    first = pool.take([], 2)
    assert first == [1, 2] and len(pool) == 3
    pool.arrays["state a"][1] = 7
    arrays = pool.arrays
    assert pool.take([Holding(5, 0, Past((Snapshot(5, 1),)))], 3) == [2, 3, 4]
    assert pool.arrays is not arrays and (pool.arrays["state a"][1] == 7).all()
    assert pool.take([Holding(5, 0, Past((Snapshot(4, 1), Snapshot(5, 4))))], 2) == [2, 3]


def test_verification_finds_a_state_that_is_lost(monkeypatch):
    """Of each row: the first of a step then begins anew."""
    decoder, texts = programs("selective")[1], om.Batch([text(30)])
    assert verify_states(decoder, texts, 80).rows == 3 * 80 + 1 + 10 + 16 + 40

    def lost(batch, states):
        keep(batch, [(0, targets) for _, targets in states])

    keep = session.New.carry
    monkeypatch.setattr(session.New, "carry", lost)
    with pytest.raises(VerificationError, match="its states give other bits in steps than at once"):
        verify_states(decoder, texts, 70)


def other_tokens(past):
    """The tokens that are passed again are those of the row before."""
    return past._replace(tokens=(0, *past.tokens[:-1]))


def begun_anew(past):
    """Rows that are passed again go on from no row."""
    return past._replace(states=tuple(each._replace(state=0) for each in past.states))


def a_row_further(past):
    """The state that rows go on from is another one's."""
    return past._replace(states=tuple(each._replace(state=each.state + 1) for each in past.states))


@pytest.mark.parametrize("fault", [other_tokens, begun_anew, a_row_further], ids=lambda f: f.__name__)
def test_verification_finds_rewinds_that_lose_rows(fault, monkeypatch):
    decoder, texts = programs("selective")[1], om.Batch([text(30)])
    right = session.Session.passed_again
    monkeypatch.setattr(session.Session, "passed_again", lambda at, held, past, end: right(at, held, fault(past), end))
    with pytest.raises(VerificationError, match="its states give other bits after a rewind than at once"):
        verify_states(decoder, texts, 80)


def neighbours_state(right, out, batch, state, **given):
    """The state behind a sequence is kept in that of another."""
    right(out, batch=carried_as(batch, targets=np.where(batch.targets > 1, batch.targets - 1, 0)), state=state, **given)


def not_begun(right, out, batch, state, **given):
    """A sequence without rows goes on from another's state."""
    right(out, batch=carried_as(batch, sources=np.maximum(batch.sources, 1)), state=state, **given)


def lost_boundary(right, out, batch, k, **given):
    """The last row of a step does not enter the state."""
    fewer = k.copy()
    fewer[batch.starts[1:] - 1] = 0
    right(out, batch=batch, k=fewer, **given)


def squared_decay(right, out, batch, decays=None, **given):
    """The first row of a step decays twice."""
    if decays is not None:
        decays = decays.copy()
        decays[batch.starts[:-1]] **= 2
    right(out, batch=batch, decays=decays, **given)


def carried_as(batch, **changed):
    return SimpleNamespace(**{name: getattr(batch, name) for name in ("starts", "sources", "targets")} | changed)


@pytest.mark.parametrize("fault", [neighbours_state, not_begun, lost_boundary, squared_decay], ids=lambda f: f.__name__)
def test_verification_finds_faults_of_kept_sums(fault, monkeypatch):
    program, texts = programs("linear")[0], om.Batch([text(30)])
    keep = KERNELS["keep_states"]
    right = keep.function
    monkeypatch.setattr(keep, "function", lambda out, **given: fault(right, out, **given))
    monkeypatch.setattr(keep, "launches", False)
    with pytest.raises(VerificationError, match="its states give other bits in steps than at once"):
        verify_states(cached(program), texts, 70)


LINES = {pages.__file__, session.__file__}


def interrupted(call, at):
    """True if a call was interrupted, where the so many-th line of sessions or their pages begins."""
    count = 0

    def traced(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename not in LINES:
            return None
        line = getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith("with "):  # a lock is let go of there
            count += 1
            if count > at:
                raise KeyboardInterrupt
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("at", range(0, 240, 3))
def test_a_step_that_is_interrupted_has_happened_or_has_not(at):
    """Caches and states of a hybrid: two sequences that share both, of which one is rewound."""
    made = programs("hybrid")[1].start(12 * PAGE, rewinds=3)
    one = made.join()
    tokens = text(20)
    made.step({one: tokens})
    two = made.fork(one)
    made.rewind(two, 18)
    texts = {one: [*tokens], two: [*tokens[:18]]}
    new = {one: [1, 2, 3, 4, 5], two: [6]}
    interrupted(lambda: made.step(new), at)
    lengths = {each: each.length for each in new}
    assert lengths in ({one: 20, two: 18}, {one: 25, two: 19})
    for each, tokens in texts.items():
        tokens += new[each][: lengths[each] - len(tokens)]
        rows = made.step({each: [7, 8]})
        assert rows.tobytes() == whole("hybrid", np.array([*tokens, 7, 8]))[-2:].tobytes()


def test_of_prompts_that_are_kept_few_have_states():
    """However many rows a session has: states are counted by sequences, and the least recently used go first."""
    held = HeldPrefixes(programs("qwen3-next")[1], None, 64 * PAGE)
    for first in range(MOST_STATES + 5):
        reply = Reply(0, [first, 1, 2], 1, None)
        sequence = held.take(reply)
        held.session.step({sequence: reply.rest})
        held.keep(sequence, reply)
    assert [tokens[0] for tokens in held.tokens.values()] == [*range(5, MOST_STATES + 5)]
    assert len(held.session.sequences) == MOST_STATES and len(held.session.pool) <= 3 * MOST_STATES
    assert held.take(Reply(0, [7, 1, 2, 3], 1, None)).length == 3
