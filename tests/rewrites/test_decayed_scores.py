"""Scores times decays between their rows: models as papers write them are the loops over a state that they state, and a
search finds the state where rows are many, and scores where they are few."""

import numpy as np
import pytest

import opmatrix as om
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.operators import (
    I,
    const,
    cumsum,
    exp,
    gated_linear_attention,
    heads,
    ones,
    product,
    segsum,
    shift,
    sigmoid,
    softplus,
    turn,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula
from rewrites.proofs.equations import prove
from rewrites.search.search import search
from tests.support import standin

RNG = np.random.default_rng(0)
N, H, WORDS = 24, 3, 9
PREFIX = sequence & causal
TABLE = weight(RNG.normal(size=(WORDS, N)) / 2)
Q, K, V = (weight(RNG.normal(size=(N, N)) / 4) @ heads(H) for _ in range(3))
OF_HEADS, OF_COLUMNS = (weight(RNG.normal(size=(N, count)) / 4) for count in (H, N))
RETENTION = const(np.log(1 - 2.0 ** (-5.0 - np.arange(H)))) @ heads(H)  # Sun et al. 2023, eq. 8
RATES, BONUS = const(-RNG.uniform(0.5, 2, H)), const(RNG.normal(size=N)) @ heads(H)
RAGGED = om.Batch([RNG.integers(0, WORDS, length) for length in (70, 1, 2, 33)])
LONG, SHORT = (om.Batch([RNG.integers(0, WORDS, length)]) for length in (4096, 16))


def scored(q, k, v, g, where=PREFIX):
    """Scores times exp of sums of logarithms of decays: Dao and Gu 2024, listing 1."""
    return product(q @ turn(k) * (g @ segsum @ exp), v, where=where)


def scored_by_columns(q, k, v, g, where=PREFIX):
    """Queries times decays since the first row, keys divided by them: Yang et al. 2024, section 4.1."""
    sums = g @ cumsum
    return product(q * (sums @ exp) @ turn(k * (sums * -1.0 @ exp)), v, where=where)


def stated(q, k, v, g, where=PREFIX):
    return gated_linear_attention(q, k, v, g @ exp, where)


LOGARITHMS = {
    "RetNet": lambda x: RETENTION,
    "Mamba 2": lambda x: (x @ OF_HEADS @ softplus * RATES) @ heads(H),
    "a gate of each head": lambda x: (x @ OF_HEADS @ softplus * -0.25) @ heads(H),
    "GLA": lambda x: (x @ OF_COLUMNS @ softplus * (-1 / 16)) @ heads(H),
}
ORDERS = {name: (scored_by_columns if name == "GLA" else scored, stated) for name in LOGARITHMS}
FIRED = {name: "decay_by_columns" if name == "GLA" else "as_gated_linear_attention" for name in LOGARITHMS}
named = pytest.mark.parametrize("name", LOGARITHMS)


def layer(order, logarithms, where=PREFIX):
    return TABLE @ formula(lambda x: order(x @ Q, x @ K, x @ V, logarithms(x), where) @ heads(H).T)


def rows_of(operator, batch):
    """A value of the model's rows, (rows, heads, columns), in float64."""
    value = np.broadcast_to(om.dense(TABLE @ formula(operator), batch), (H, batch.rows, N // H))
    return np.moveaxis(value, 1, 0)


def looped(logarithms, batch, bonus=None):
    """The state row by row, in float64: what papers state as the recurrence. With a bonus, a row reads the state before
    it, and its own key times the bonus (Peng et al. 2024, RWKV-6, eq. 17)."""
    q, k, v, g = (
        rows_of(operator, batch) for operator in (lambda x: x @ Q, lambda x: x @ K, lambda x: x @ V, logarithms)
    )
    out = np.empty((batch.rows, H, N // H))
    for begin, end in zip(batch.starts, batch.starts[1:], strict=False):
        state = np.zeros((H, N // H, N // H))
        for t in range(begin, end):
            added = k[t][:, :, None] * v[t][:, None, :]
            decayed = np.exp(g[t])[:, :, None] * state
            seen = decayed + added if bonus is None else state + bonus[:, :, None] * added
            out[t] = np.einsum("hd,hde->he", q[t], seen)
            state = decayed + added
    return out.reshape(batch.rows, N)


def rwkv(x):
    """A row reads the state before it, so keys, values and decays are those of the row before (Peng et al. 2024)."""
    q, k, v, g = x @ Q, x @ K, x @ V, LOGARITHMS["GLA"](x)
    before = gated_linear_attention(q, k @ shift(1), v @ shift(1), g @ exp @ shift(1))
    return (before + (q * k * BONUS @ ones) * v) @ heads(H).T


def found_for(model, batch):
    return search(model, om.laws, standin.machine(), batch.extents(*collect_needs(model)))


def kernels(program):
    return [step.kernel for step in program.steps]


@named
def test_models_are_their_loops(name):
    wanted = looped(LOGARITHMS[name], RAGGED)
    for order in ORDERS[name]:
        made = om.dense(layer(order, LOGARITHMS[name]), RAGGED)
        np.testing.assert_allclose(made, wanted, rtol=1e-9, atol=1e-10 * abs(wanted).max())


def test_a_bonus_of_the_row_is_beside_the_state_before_it():
    wanted = looped(LOGARITHMS["GLA"], RAGGED, om.dense(BONUS, np.zeros((1, 1)))[:, 0])
    model = TABLE @ formula(rwkv)
    np.testing.assert_allclose(om.dense(model, RAGGED), wanted, rtol=1e-9, atol=1e-10 * abs(wanted).max())
    program = found_for(model, RAGGED).program({})[0]
    assert "recurrent" in kernels(program) and "interpret" not in kernels(program)
    np.testing.assert_allclose(program.run(RAGGED), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


@named
def test_a_search_finds_the_state_where_rows_are_many(name):
    model = layer(ORDERS[name][0], LOGARITHMS[name])
    program = found_for(model, LONG).program({})[0]
    assert "recurrent" in kernels(program) and not {"fold_term", "interpret"} & {*kernels(program)}
    wanted = looped(LOGARITHMS[name], RAGGED)
    np.testing.assert_allclose(program.run(RAGGED), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


@pytest.mark.deep
@pytest.mark.parametrize("name", ["Mamba 2", "a gate of each head"])
def test_a_search_takes_scores_where_rows_are_few(name):
    """Wherever they are written: both laws of the order are rewrites in both directions."""
    wanted = looped(LOGARITHMS[name], SHORT)
    for order in ORDERS[name]:
        program = found_for(layer(order, LOGARITHMS[name]), SHORT).program({})[0]
        assert "fold_term" in kernels(program) and not {"recurrent", "interpret"} & {*kernels(program)}
        np.testing.assert_allclose(program.run(SHORT), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


TO_EDGES = om.Batch([RNG.integers(0, WORDS, length) for length in (1, 2, 63, 64, 65, 129)])


@pytest.mark.parametrize("laws", [om.laws, [law for law in om.laws if law.name not in FIRED.values()]], ids=len)
def test_scores_with_decays_that_all_rows_have_are_kernels(laws):
    """As states, by a law, and as they are written, in which logarithms are summed though no input has them; those of
    the head without decays, too."""
    model, wanted = layer(scored, LOGARITHMS["RetNet"]), looped(LOGARITHMS["RetNet"], TO_EDGES)
    for batch in (TO_EDGES, om.Batch([[1]])):
        program = search(model, laws, standin.machine(), batch.extents(*collect_needs(model))).program({})[0]
        assert "interpret" not in kernels(program)
        assert {"recurrent"} & {*kernels(program)} or {"scan_term", "fold_term"} <= {*kernels(program)}
    whole = program.run(TO_EDGES)
    np.testing.assert_allclose(whole, wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
    alone = [program.run(om.Batch([tokens])) for tokens in np.split(TO_EDGES.tokens, TO_EDGES.starts[1:-1])]
    assert np.concatenate(alone).tobytes() == whole.tobytes()
    for _, rounded, meant in program.trace(TO_EDGES):
        assert np.isfinite(rounded).all() and abs(rounded - meant).max() <= 1e-4 * abs(meant).max()


def test_a_scan_of_constants_has_sessions():
    """Its rows depend on their places alone; a session goes on from its last result."""
    model = TABLE @ formula(lambda x: ((x @ Q) * (RETENTION @ cumsum)) @ heads(H).T)
    program = om.schedule(model, TO_EDGES, machine=standin.machine()).program
    assert "scan_term" in kernels(program) and "interpret" not in kernels(program)
    np.testing.assert_allclose(program.run(TO_EDGES), om.dense(model, TO_EDGES), rtol=1e-5, atol=1e-5)
    session, tokens = om.cached(program).start(200), TO_EDGES.tokens[:130]
    held = session.join()
    rows = [session.step({held: part}) for part in np.split(tokens, [1, 6, 70])]
    assert np.concatenate(rows).tobytes() == program.run(om.Batch([tokens])).tobytes()


@named
def test_its_law_is_in_the_derivation(name):
    model = layer(ORDERS[name][0], LOGARITHMS[name])
    many = om.explore(model, LONG.rows, machine="A100")
    assert FIRED[name] in str(many.derivation)
    assert many.seconds < many.without(*{*FIRED.values(), "as_linear_attention"}).seconds / 10


@named
def test_both_orders_are_proved_equal(name):
    first, second = (layer(order, LOGARITHMS[name]) for order in ORDERS[name])
    assert prove(first, second)
    assert not prove(first, layer(stated, lambda x: LOGARITHMS[name](x) * 2.0))


@pytest.mark.parametrize("order", [scored, scored_by_columns])
def test_decays_under_the_whole_sequence_are_no_such_state(order):
    """Rows behind a query have decays above 1, which no state up to the last row has."""
    gate = LOGARITHMS["a gate of each head"]
    one, other = (om.dense(layer(by, gate, sequence), RAGGED) for by in (order, stated))
    assert abs(one - other).max() > 1e-3 * abs(one).max()
    assert not {*FIRED.values()} & {*found_for(layer(order, gate, sequence), RAGGED).fired}


def test_decays_that_vanish_are_those_of_the_state():
    """Sums of logarithms pass where powers are zero in float32, and where those of rows behind overflow."""
    steep = lambda x: (x @ OF_HEADS @ sigmoid * -200.0) @ heads(H)
    wanted = looped(steep, RAGGED)
    for order in (scored, stated):
        with np.errstate(over="ignore"):
            assert np.allclose(om.dense(layer(order, steep), RAGGED), wanted, rtol=1e-9, atol=1e-9)
        for batch in (LONG, SHORT):
            program = found_for(layer(order, steep), batch).program({})[0]
            np.testing.assert_allclose(program.run(RAGGED), wanted, rtol=1e-3, atol=1e-4 * abs(wanted).max())


def test_sums_of_segments():
    """Of the rows behind each row up to another; in each sequence."""
    g, batch = np.array([[1.0], [2], [4], [8]]), om.Batch([[0, 0, 0], [0]])
    sums = om.dense(segsum, g, batch)
    assert [sums[t, s] for t in range(3) for s in range(t + 1)] == [0, 2, 0, 6, 4, 0] and sums[3, 3] == 0
    assert str(I @ segsum) == "segsum"
