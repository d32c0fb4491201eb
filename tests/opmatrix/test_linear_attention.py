"""Linear attention: oracles, the kernel and programs agree with a loop over rows that keeps a state; a search finds it
where it is written with scores of all pairs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

import opmatrix as om
from formats.core.errors import InputError
from formats.host.threads import limit
from formats.machine.calibration import GRID, REPLAYED, Numbers
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.operators import (
    I,
    const,
    delta_rule,
    gated_delta_rule,
    gated_linear_attention,
    heads,
    linear_attention,
    product,
    relu,
    scan,
    sigmoid,
    turn,
    unit_length,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, everyone, sequence, window
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import formula
from opmatrix.inference.cached_terms import cached_model, check_sessions
from opmatrix.parallel.ranks.virtual import run as run_ranks
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.kernels import KERNELS
from rewrites.lowering.phased import Generation, later_step, prefill
from rewrites.search.search import search
from rewrites.workload.decoded import predict_step
from tests.support import standin
from tests.support.terms_of_rows import share_of

LENGTHS = 1, 2, 63, 64, 65, 127, 128, 129, 3, 400
PREFIX = sequence & causal
DECAYS = np.array([0, 1e-30, 1e-6, 1e-3, 0.5, 0.999, 1], np.float32)
RECURRENT = KERNELS["recurrent"]
some = settings(max_examples=30, deadline=None, derandomize=True)


class Case(NamedTuple):
    """Heads and columns of q and k, and of v; decays of so many columns, 0 for none; the pattern; whether rows correct
    the state, by keys of unit length."""

    heads: tuple[int, int, int] = (2, 2, 2)
    d: int = 16
    e: int = 16
    decays: int = 0
    where: om.Pattern = PREFIX
    corrects: bool = False

    def drawn(self, lengths, seed=0):
        """Operands of the kernel for sequences of these lengths."""
        rng, rows = np.random.default_rng(seed), sum(lengths)
        q, k, v = (
            rng.standard_normal((rows, count, width), np.float32)
            for count, width in zip(self.heads, (self.d, self.d, self.e), strict=True)
        )
        decays = rng.choice(DECAYS, (rows, max(self.heads), self.decays)) if self.decays else None
        if not self.corrects:
            return dict(q=q, k=k, v=v, decays=decays)
        k /= np.linalg.norm(k, axis=2, keepdims=True)
        betas = rng.uniform(0, 2, (rows, max(self.heads), 1)).astype(np.float32)
        betas[::7] = 0
        return dict(q=q, k=k, v=v, decays=decays, betas=betas)


CASES = {
    "plain": Case(),
    "whole": Case(where=sequence),
    "one head, wide": Case((1, 1, 1), 70, 100),
    "narrow": Case((3, 3, 3), 1, 1),
    "a column more than a band": Case((1, 1, 1), 5, 33),
    "shared keys": Case((4, 2, 1), 8, 17),
    "decays of heads": Case((3, 3, 3), 64, 64, 1),
    "decays of heads, whole": Case(decays=1, where=sequence),
    "decays of columns": Case((2, 1, 2), 16, 20, 16),
    "delta rule": Case((2, 2, 2), 64, 64, corrects=True),
    "delta rule, odd": Case((4, 2, 1), 5, 33, corrects=True),
    "delta rule, narrow": Case((1, 1, 1), 1, 1, 1, corrects=True),
    "delta rule, decays of heads": Case((3, 3, 3), 64, 64, 1, corrects=True),
    "delta rule, decays of columns": Case((2, 1, 2), 16, 20, 16, corrects=True),
}


def looped(operands, lengths, whole=False):
    """Linear attention by definition: one row after another, in float64."""
    q, k, v, decays, *betas = (None if x is None else x.astype(np.float64) for x in operands.values())
    count = max(x.shape[1] for x in (q, k, v))
    q, k, v = (x.repeat(count // x.shape[1], 1) for x in (q, k, v))
    out, ends = np.zeros((len(q), count, v.shape[2])), np.cumsum(lengths)
    for begin, end in zip(ends - lengths, ends, strict=True):
        state = np.zeros((count, q.shape[2], v.shape[2]))
        for t in range(begin, end):
            if decays is not None:
                state = state * decays[t][:, :, None]
            value = v[t]
            for beta in betas:
                value = beta[t] * (value - np.einsum("hd,hde->he", k[t], state))
            state = state + k[t][:, :, None] * value[:, None, :]
            out[t] = np.einsum("hd,hde->he", q[t], state)
        if whole:
            out[begin:end] = np.einsum("thd,hde->the", q[begin:end], state)
    return out


def of_lengths(lengths):
    return om.Batch([np.zeros(length, int) for length in lengths])


def run(case, operands, lengths):
    out = np.full((sum(lengths), max(case.heads), case.e), np.nan, np.float32)
    RECURRENT.function(out, of_lengths(lengths), where=case.where.text, **operands)
    return out


def share(case, operands, lengths, made=None):
    """How far a result is from the kernel's meaning, in bounds."""
    batch = of_lengths(lengths)
    arguments = dict(betas=None) | dict(operands, rates=None, where=case.where.text, batch=batch)
    made = run(case, operands, lengths) if made is None else made
    return share_of(made, meaning(RECURRENT, arguments, batch), bound(RECURRENT, arguments))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_kernel_is_within_its_bound_and_the_loop(case):
    operands = case.drawn(LENGTHS)
    assert (share(case, operands, LENGTHS) <= 1).all()
    wanted = looped(operands, np.array(LENGTHS), case.where is sequence)
    absolute = {name: None if x is None else abs(x) for name, x in operands.items() if name != "betas"}
    size = abs(wanted) if case.corrects else looped(absolute, np.array(LENGTHS), True)
    assert (abs(run(case, operands, LENGTHS) - wanted) <= 1e-5 * size.max()).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_of_a_sequence_alone(case):
    """Not of its batch, nor of threads; under a causal pattern nor of the rows behind."""
    operands = case.drawn(LENGTHS, seed=1)
    whole, ends = run(case, operands, LENGTHS), np.cumsum(LENGTHS)
    with limit(1):
        assert run(case, operands, LENGTHS).tobytes() == whole.tobytes()
    for length, end in zip(LENGTHS, ends, strict=True):
        rows = slice(end - length, end)
        alone = {name: None if x is None else x[rows] for name, x in operands.items()}
        assert run(case, alone, [length]).tobytes() == whole[rows].tobytes()
        if case.where is PREFIX and length > 1:
            fewer = {name: None if x is None else x[: length // 2] for name, x in alone.items()}
            assert run(case, fewer, [length // 2]).tobytes() == whole[rows][: length // 2].tobytes()


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("columns", [1, 16])
@pytest.mark.parametrize("row", [1, 3, 4, 63, 64, 65])
def test_a_decay_of_zero_begins_anew(columns, row, corrects):
    """As a sequence that begins at that row."""
    case, lengths = Case(decays=columns, corrects=corrects), [130]
    operands = case.drawn(lengths)
    operands["decays"][row] = 0
    assert (run(case, operands, lengths) == run(case, operands, [row, 130 - row])).all()


def merged_sequences(right, out, batch, **given):
    right(out, of_lengths([batch.rows]), **given)


def lost_state(right, out, batch, **given):
    right(out, of_lengths([min(length - done, 64) for length in LENGTHS for done in range(0, length, 64)]), **given)


def squared_decay(right, out, batch, decays, **given):
    twice = decays.copy()
    twice[127] *= decays[127]
    right(out, batch, decays=twice, **given)


def late_decay(right, out, batch, decays, **given):
    right(out, batch, decays=np.roll(decays, 1, 0), **given)


def lost_tail(right, out, batch, v, **given):
    less = v.copy()
    less[batch.starts[1:] - 1] = 0
    right(out, batch, v=less, **given)


def seen_ahead(right, out, batch, where, **given):
    right(out, batch, where="sequence", **given)


def not_corrected(right, out, batch, betas=None, v=None, **given):
    right(out, batch, v=v if betas is None else v * betas, **given)


FAULTS = (merged_sequences, lost_state, squared_decay, late_decay, lost_tail, seen_ahead)
CORRECTED_FAULTS = (*FAULTS[:-1], not_corrected)


PLANTED = [*((False, fault) for fault in FAULTS), *((True, fault) for fault in CORRECTED_FAULTS)]


@pytest.mark.parametrize(("corrects", "fault"), PLANTED, ids=lambda part: getattr(part, "__name__", str(part)))
def test_planted_faults_are_found(corrects, fault):
    """The state of a sequence goes on in the next, is lost at a chunk's end, is decayed twice, or a row late; the last
    row is lost; all rows are seen; keys read nothing of the state."""
    case = Case(decays=1, corrects=corrects)
    operands = case.drawn(LENGTHS)
    operands["decays"] = np.random.default_rng(0).uniform(0.9, 1, operands["decays"].shape).astype(np.float32)
    out = np.empty(operands["v"].shape, np.float32)
    fault(RECURRENT.function, out, of_lengths(LENGTHS), where=case.where.text, **operands)
    assert not (share(case, operands, LENGTHS, out) <= 1).all()


@pytest.mark.deep
@pytest.mark.parametrize("columns", [0, 1, 8])
def test_sums_of_many_rows_are_within_the_bound(columns):
    case, lengths = Case((1, 1, 1), 8, 4, columns), [65_536]
    operands = case.drawn(lengths)
    if columns:
        operands["decays"] = np.random.default_rng(0).uniform(0.99, 1, operands["decays"].shape).astype(np.float32)
    assert (share(case, operands, lengths) <= 1).all()


# ---- new rows of sequences


@dataclass(frozen=True)
class Continued:
    """A batch of new rows of sequences of these lengths: every second one goes on from a state, the last rows of each
    leave states."""

    lengths: tuple[int, ...]
    starts: np.ndarray
    sources: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, lengths):
        count, ends = len(lengths), np.cumsum(lengths)
        targets = np.zeros(ends[-1], int)
        targets[ends - 1] = 1 + count + np.arange(count)
        targets[ends[-1] - 2] = 1 + 2 * count
        before = np.arange(1, count + 1) * (np.arange(count) % 2)
        return cls(lengths, np.append(0, ends), np.repeat(before, lengths), targets)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.where is PREFIX])
def test_kernels_of_new_rows_are_within_their_bounds(name):
    """And have the bits of the whole text, of which the first rows were passed before."""
    case, batch = CASES[name], Continued.of(LENGTHS)
    operands, rng = case.drawn(LENGTHS), np.random.default_rng(7)
    states = rng.standard_normal((2 * len(LENGTHS) + 2, max(case.heads), case.d * case.e), np.float32)
    states[0] = 0
    kept = {key: x for key, x in operands.items() if key != "q"} | dict(rates=None, state=states)
    read = operands | dict(rates=None, s0=states, where=PREFIX.text)
    for kernel, given, shape in (
        ("carried_recurrent", read, (sum(LENGTHS), max(case.heads), case.e)),
        ("keep_states", kept, states.shape),
    ):
        out = np.full(shape, np.nan, np.float32)
        KERNELS[kernel].function(out, batch, **given)
        arguments = dict(betas=None) | dict(given, batch=batch)
        assert (share_of(out, meaning(KERNELS[kernel], arguments, batch), bound(KERNELS[kernel], arguments)) <= 1).all()
    stayed = np.setdiff1d(np.arange(len(states)), batch.targets)
    assert out[stayed].tobytes() == states[stayed].tobytes()


def test_states_that_do_not_fit_are_refused():
    operands, batch = Case().drawn([3]), Continued.of((3,))
    states = np.zeros((4, 2, 255), np.float32)
    with pytest.raises(ValueError, match="states"):
        KERNELS["carried_recurrent"].function(np.zeros((3, 2, 16), np.float32), batch, **operands, s0=states)
    few = np.zeros((2, 2, 256), np.float32)
    with pytest.raises(IndexError, match="targets: 3 is outside"):
        del operands["q"]
        KERNELS["keep_states"].function(few, batch, **operands, state=few)


# ---- terms


@some
@forall(st.integers(0, 2**32 - 1))
def test_oracles_are_the_loop(seed):
    rng = np.random.default_rng(seed)
    h, d, e, where = (*rng.integers(1, 4, 3), (PREFIX, sequence)[rng.integers(2)])
    Q, K, V = (weight(rng.normal(size=(4, h * n))) @ heads(int(h)) for n in (d, d, e))
    A = weight(rng.normal(size=(4, h * rng.choice([1, d])))) @ sigmoid @ heads(int(h))
    lengths = rng.integers(1, 6, 3)
    x, batch = rng.normal(size=(lengths.sum(), 4)), of_lengths(lengths)
    by_rows = {
        name: np.reshape(om.dense(part, x, batch), (h, len(x), -1)).swapaxes(0, 1)
        for name, part in dict(q=Q, k=K, v=V, decays=A).items()
    }
    B = weight(rng.normal(size=(4, h))) @ sigmoid @ heads(int(h))
    betas = np.reshape(om.dense(B, x, batch), (h, len(x), 1)).swapaxes(0, 1)
    for term, decays in ((delta_rule(Q, K, V, B), None), (gated_delta_rule(Q, K, V, B, A), ...)):
        operands = (by_rows if decays is ... else by_rows | {"decays": None}) | {"betas": betas}
        wanted = looped(operands, lengths).swapaxes(0, 1)
        scale = 1e-10 * abs(wanted).max()
        np.testing.assert_allclose(np.reshape(om.dense(term, x, batch), wanted.shape), wanted, rtol=1e-9, atol=scale)
        np.testing.assert_allclose(om.entrywise(term, x, batch).astype(float), wanted, rtol=1e-9, atol=scale)
    for term, decays in ((linear_attention(Q, K, V, where), None), (gated_linear_attention(Q, K, V, A, where), ...)):
        operands = by_rows if decays is ... else by_rows | {"decays": None}
        wanted = looped(operands, lengths, where is sequence).swapaxes(0, 1)
        np.testing.assert_allclose(np.reshape(om.dense(term, x, batch), wanted.shape), wanted, rtol=1e-10, atol=1e-10)
        found = om.entrywise(term, x, batch).astype(float)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shared", ["qk", "v", "qkv", "a"])
def test_one_head_serves_several(shared):
    rng, lengths, x = np.random.default_rng(0), [3, 1], np.random.default_rng(1).normal(size=(4, 4))
    one, several = (
        {name: weight(rng.normal(size=(4, count * 2))) @ heads(count) for name in "qkva"} for count in (1, 3)
    )
    parts = {name: one[name] if name in shared else several[name] for name in "qkva"}
    spread = {name: part @ om.repeat(3) if name in shared else part for name, part in parts.items()}
    found, wanted = (om.dense(gated_linear_attention(*p.values()), x, of_lengths(lengths)) for p in (parts, spread))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("where", [causal, everyone, sequence & window(3)], ids=str)
def test_other_patterns_are_refused_in_a_line(where):
    for make in (lambda: linear_attention(relu, relu, relu, where), lambda: gated_linear_attention(*[relu] * 4, where)):
        with pytest.raises(ShapeError, match=r"where=sequence & causal") as caught:
            make()
        assert "\n" not in str(caught.value)


# ---- programs

RNG = np.random.default_rng(0)
N = 24
TABLE, Q, K, V, GATE = (weight(RNG.normal(size=size) / 4) for size in ((9, N), (N, N), (N, N), (N, N), (N, N)))
ONE_GATE, NARROW_GATE = (weight(RNG.normal(size=(N, count)) / 4) for count in (3, 1))
LONG = om.Batch([[1, 2, 3] * 200, [4], [4, 5] * 70])


def in_heads(x, W, h, feature=om.I):
    return x @ W @ feature @ heads(h) if h > 1 else x @ W @ feature


def joined(y, h):
    return y @ heads(h).T if h > 1 else y


def with_scores(h, where, feature=relu):
    """Linear attention as it is written with scores of all pairs of rows."""

    def mixed(x):
        scores = product(in_heads(x, Q, h, feature), turn(in_heads(x, K, h, feature)))
        return joined(product(scores, in_heads(x, V, h), "sum", where), h)

    return TABLE @ formula(mixed)


def gated(h, gate, where=PREFIX):
    def mixed(x):
        q, k, v = (in_heads(x, W, h) for W in (Q, K, V))
        return joined(gated_linear_attention(q, k, v, in_heads(x, gate, h, sigmoid), where), h)

    return TABLE @ formula(mixed)


def found_for(model, batch):
    found = search(model, om.laws, standin.machine(), batch.extents(*collect_needs(model)))
    return found.program({})[0]


def kernels(program):
    return [step.kernel for step in program.steps]


@pytest.mark.parametrize("feature", [om.I, relu], ids=str)
@pytest.mark.parametrize("h", [1, 3])
@pytest.mark.parametrize("where", [PREFIX, sequence], ids=str)
def test_a_search_finds_it(h, where, feature):
    model = with_scores(h, where, feature)
    program = found_for(model, LONG)
    assert "recurrent" in kernels(program) and not {"fold_term", "interpret"} & {*kernels(program)}
    wanted = om.dense(model, LONG)
    np.testing.assert_allclose(program.run(LONG), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


def test_rows_that_see_all_of_their_sequence_have_a_price_of_their_own():
    """They pass twice: into the state, then to read it."""
    names = (PREFIX, "recurrent", "recurrent.decayed"), (sequence, "recurrent.whole", "recurrent.decayed_whole")
    for where, price, decayed in names:
        assert price in [name for name, _ in found_for(with_scores(3, where), LONG).cost(LONG)]
        program = om.schedule(gated(3, ONE_GATE, where), LONG, machine=standin.machine()).program
        assert decayed in [name for name, _ in program.cost(LONG)]


@pytest.mark.parametrize("grid", [GRID, REPLAYED], ids=["called", "recorded"])
def test_prices_are_measured_of_a_step_and_of_long_texts(grid):
    """Every rule, in the room of numbers that calibrations inside runs have; times of one row are nearly a call's
    alone."""
    numbers = Numbers(1 << 20)
    for name, price in RECURRENT.prices.items():
        rows = [sizes["T"] for sizes, _ in price.cases(grid, numbers)]
        assert min(rows) == 1 and max(rows) >= 1024, name


@pytest.mark.deep
def test_a_search_keeps_scores_where_they_are_cheaper():
    """Both orders are priced: few rows of wide heads have few scores; a term that is written with states, too."""
    short, n = om.Batch([[1, 2, 3, 4]]), 512
    table, A, B, C = (weight(RNG.normal(size=size) / 20) for size in ((9, n), (n, n), (n, n), (n, n)))
    scored = table @ formula(lambda x: product(product(x @ A @ relu, turn(x @ B @ relu)), x @ C, "sum", PREFIX))
    stated = table @ formula(lambda x: linear_attention(x @ A @ relu, x @ B @ relu, x @ C, PREFIX))
    for model in (scored, stated):
        for batch, kernel in ((short, "fold_term"), (LONG, "recurrent")):
            program = found_for(model, batch)
            assert kernel in kernels(program)
            wanted = om.dense(model, batch)
            np.testing.assert_allclose(program.run(batch), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("where", [causal, sequence & window(2)], ids=str)
def test_other_patterns_keep_their_scores(where):
    program = found_for(with_scores(3, where), LONG)
    assert "recurrent" not in kernels(program)


@pytest.mark.parametrize(
    ("h", "gate"),
    [(3, ONE_GATE), (3, GATE), (1, NARROW_GATE), (1, GATE)],
    ids=["a head", "a column", "one head", "a column of one head"],
)
def test_decays_are_in_the_kernel(h, gate):
    model = gated(h, gate)
    program = om.schedule(model, LONG, machine=standin.machine()).program
    assert "recurrent" in kernels(program) and "interpret" not in kernels(program)
    wanted = om.dense(model, LONG)
    np.testing.assert_allclose(program.run(LONG), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
    alone = [program.run(om.Batch([tokens])) for tokens in np.split(LONG.tokens, LONG.starts[1:-1])]
    assert np.concatenate(alone).tobytes() == program.run(LONG).tobytes()


def corrected(h, gate=None):
    """The delta rule on keys of unit length."""

    def mixed(x):
        q, k, v, betas = (in_heads(x, W, h) for W in (Q, K, V, ONE_GATE if h > 1 else NARROW_GATE))
        parts = q, k @ unit_length(1e-6), v, betas @ sigmoid
        made = delta_rule(*parts) if gate is None else gated_delta_rule(*parts, in_heads(x, gate, h, sigmoid))
        return joined(made, h)

    return TABLE @ formula(mixed)


@pytest.mark.parametrize(
    ("h", "gate"),
    [(3, None), (3, ONE_GATE), (3, GATE), (1, None), (1, NARROW_GATE), (1, GATE)],
    ids=["plain", "a head", "a column", "one head", "a decay of one head", "a column of one head"],
)
def test_the_delta_rule_is_in_the_kernel(h, gate):
    model = corrected(h, gate)
    program = om.schedule(model, LONG, machine=standin.machine()).program
    assert "recurrent" in kernels(program) and "interpret" not in kernels(program)
    wanted = om.dense(model, LONG)
    np.testing.assert_allclose(program.run(LONG), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
    alone = [program.run(om.Batch([tokens])) for tokens in np.split(LONG.tokens, LONG.starts[1:-1])]
    assert np.concatenate(alone).tobytes() == program.run(LONG).tobytes()


def test_a_value_replaces_the_one_that_its_key_had():
    """With a beta of 1, keys of unit length and no decays: a query reads the last value of its key."""
    keys = np.eye(3)[[0, 1, 0, 2, 1]]
    x = np.concatenate([keys, [[5.0], [7], [11], [13], [17]], np.ones((5, 1))], 1)
    pick = [weight(np.eye(5)[:, lo:hi]) for lo, hi in ((0, 3), (3, 4), (4, 5))]
    read = om.dense(delta_rule(pick[0], pick[0], pick[1], pick[2]), x, of_lengths([5]))
    assert read[:, 0].tolist() == [5, 7, 11, 13, 17]
    last = om.dense(delta_rule(const(np.ones(3)), pick[0], pick[1], pick[2]), x, of_lengths([5]))
    assert last[:, 0].tolist() == [5, 12, 18, 31, 41]


def merged_maps(first, then):
    """The affine map S -> A S + B of two in turn."""
    (a, b), (c, d) = first, then
    return c @ a, c @ b + d


@some
@forall(st.integers(0, 2**32 - 1))
def test_the_delta_rule_is_a_merge_of_affine_maps_in_any_bracketing(seed):
    """A row maps the state S to decay (I - beta k kᵀ) S + beta k vᵀ, in which decays are those of a head."""
    rng = np.random.default_rng(seed)
    T, d, e = rng.integers(1, [9, 5, 5])
    case = Case((1, 1, 1), int(d), int(e), 1, corrects=True)
    operands = {name: x.astype(np.float64) for name, x in case.drawn([T], seed % 1000).items()}
    q, k, v, decays, betas = (x[:, 0] for x in operands.values())
    maps = [
        (a * (np.eye(d) - b * np.outer(key, key)), b * np.outer(key, value))
        for key, value, a, b in zip(k, v, decays, betas, strict=True)
    ]
    while len(maps) > 1:
        at = rng.integers(len(maps) - 1)
        maps[at : at + 2] = [merged_maps(*maps[at : at + 2])]
    np.testing.assert_allclose(q[-1] @ maps[0][1], looped(operands, np.array([T]))[-1, 0], rtol=1e-9, atol=1e-9)


COLUMNS = {count: weight(np.ones((6, count))) for count in (1, 2, 3)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: delta_rule(COLUMNS[3], COLUMNS[2], om.I, COLUMNS[1]),
        lambda: delta_rule(om.I, om.I, om.I, COLUMNS[2]),
        lambda: gated_delta_rule(om.I, om.I, om.I, COLUMNS[1], COLUMNS[2]),
        lambda: delta_rule(heads(2), heads(3), om.I, COLUMNS[1]),
    ],
    ids=["queries", "betas", "decays", "heads"],
)
def test_shapes_of_the_delta_rule_are_refused_in_a_line(make):
    with pytest.raises(ShapeError, match="delta rule: ") as caught:
        om.dense(make(), np.ones((2, 6)), of_lengths([2]))
    assert "\n" not in str(caught.value)


def test_unknown_sizes_of_the_delta_rule_are_those_of_its_other_operands():
    one, eight = om.const(np.ones(1)), om.weight(np.ones((8, 8)))
    assert delta_rule(om.const(np.ones(8)), om.I, om.I, one).into.cols == 8
    assert delta_rule(om.I @ om.total, eight, eight, one).into.cols == 8


@pytest.mark.parametrize(("h", "count"), [(1, 1), (1, N), (3, 3), (3, N)])
def test_decays_of_all_rows_are_in_the_kernel(h, count):
    """One number of each head, as RetNet has them, or of each column of k."""
    rates = const(np.linspace(0.8, 1, count)) @ heads(h) if h > 1 else const(np.linspace(0.8, 1, count))
    model = TABLE @ formula(lambda x: joined(gated_linear_attention(*(in_heads(x, W, h) for W in (Q, K, V)), rates), h))
    program = om.schedule(model, LONG, machine=standin.machine()).program
    assert "recurrent" in kernels(program) and "interpret" not in kernels(program)
    wanted = om.dense(model, LONG)
    np.testing.assert_allclose(program.run(LONG), wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("mesh", [dict(dp=(2, "data")), dict(tp=(3, "tensor")), dict(cp=(2, "ring"))], ids=str)
def test_ranks_have_the_same_numbers(mesh, corrects):
    """They share sequences and heads; rows are gathered."""
    ids = RNG.integers(0, 9, (4, 6))
    model = corrected(3) if corrects else gated(3, GATE)
    plan = om.partition(model, om.Mesh.of(**mesh), om.BatchSizes(4, 6))
    wanted = om.dense(model, om.Batch(list(ids))).reshape(4, 6, N)
    np.testing.assert_allclose(np.squeeze(run_ranks(plan, Feed(ids)).value), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: scan(const(np.array([0.5, np.nan])), I, om.decay),
        lambda: gated_linear_attention(I, I, I, I @ weight(np.array([[0.5], [np.nan]]))),
        lambda: gated_delta_rule(I, I, I, COLUMNS[1], const(np.array([np.nan]))),
    ],
    ids=["scan", "weights", "delta rule"],
)
def test_a_decay_that_is_no_number_is_refused_in_a_line(make):
    with pytest.raises(ValueError, match=r"^an operand of shape .*: NaN at") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_is_not_built_is_refused_by_name():
    model = gated(3, GATE)
    with pytest.raises(InputError, match="no term expresses states of sequences"):
        cached_model(model)
    with pytest.raises(InputError, match=r"recurrent: it reads other rows.*: its rows read the state behind the last"):
        om.cached(om.schedule(gated(3, GATE, sequence), LONG, machine=standin.machine()).program)


def test_a_search_for_generation_takes_what_sessions_run():
    """Also for prompts so short that scores of all pairs would be cheaper: a session has no kernel for these."""
    model = with_scores(3, PREFIX)
    check_sessions(model)
    phases = Generation(2, 4).phases([PREFIX])
    found = search(model, om.laws, standin.machine(), phases)
    program = found.program({})[0]
    assert "recurrent" in kernels(program)
    steps = [predict_step(standin.machine(), program.decoder, each) for each in (prefill(2, 1), later_step(4, 1))]
    assert found.time == pytest.approx(steps[0] + phases[1].times * steps[1], rel=1e-9)
    with pytest.raises(InputError, match="it reads other rows"):
        check_sessions(with_scores(3, sequence))


def test_constant_decays_are_those_of_retention():
    """Sun et al. 2023, RetNet, eq. 5 and 6: scores times powers of one number are a state that decays by it."""
    rows, decay = 9, 0.9
    x, at = RNG.normal(size=(rows, N)), np.arange(rows)
    powers = np.where(at[:, None] >= at, decay ** (at[:, None] - at), 0.0)
    q, k, v = (x @ W.args[0].array for W in (Q, K, V))
    term = formula(lambda x: gated_linear_attention(x @ Q, x @ K, x @ V, const(decay)))
    np.testing.assert_allclose(om.dense(term, x, of_lengths([rows])), (q @ k.T * powers) @ v, rtol=1e-10)
