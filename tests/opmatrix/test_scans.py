"""Rows merged with those before them: oracles, kernels and programs agree with a loop, over any monoid."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

import opmatrix as om
from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.engine import from_text
from formats.kernels.engine.compiled import provide
from formats.kernels.generated.folding import fold_lanes
from formats.kernels.generated.folding.scan_kernel import LEAST_VECTORS, MOST_VECTORS, ScanItems
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import I, const, heads, scan, sigmoid, turn, weight
from opmatrix.algebra.positions.patterns import causal, everyone, pattern, sequence, window
from opmatrix.algebra.shapes import Shape, ShapeError, T
from opmatrix.algebra.term import formula
from opmatrix.inference.cached_terms import cached_model
from opmatrix.parallel.ranks.virtual import run as run_ranks
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.runtime.codegen.scanned_term import scanned_term
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from rewrites.search.search import search
from tests.support import standin
from tests.support.terms_of_rows import share_of

LENGTHS = 1, 2, 63, 64, 65, 127, 128, 129, 700
PREFIX = sequence & causal
DECAYS = np.array([0, 1e-30, 1e-6, 1e-3, 0.5, 0.999, 1], np.float32)
some = settings(max_examples=40, deadline=None, derandomize=True)


class maxplus(om.Monoid):
    """The longest way."""

    identity, idempotent = -np.inf, True

    def lift(a, b):
        return a + b

    def merge(one, other):
        return np.maximum(one, other)


class turning(om.Monoid):
    """The corner of a product of matrices [[a, b], [0.5, 0.25]]."""

    identity, commutative = (1.0, 0.0, 0.0, 1.0), False

    def lift(a, b):
        return 0.5 * a, 0.5 * b, 0.5 + 0 * a, 0.25 + 0 * b

    def merge(one, other):
        (a, b, c, d), (e, f, g, h) = one, other
        return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h

    def finish(a, b, c, d):
        return b


class latest(om.Monoid):
    """The last number whose mark is above 0."""

    identity, commutative, idempotent = (0.0, 0.0), False, True

    def lift(a, b):
        return 1.0 * (a > 0), np.where(a > 0, b, 0.0)

    def merge(one, other):
        return np.maximum(one[0], other[0]), np.where(other[0] > 0, other[1], one[1])

    def finish(mark, value):
        return value


OWN = maxplus, turning, latest
ANY = *OWN, *(over for over in monoids.MONOIDS if over.width == 1 and not over.indexed)


class Case(NamedTuple):
    """A scan of heads of a left and a right value, of so many columns."""

    over: type
    where: object = PREFIX
    heads: int = 1
    left: int = 37
    right: int = 37

    @property
    def term(self):
        return scan(*self.values, self.over, self.where)

    @property
    def values(self):
        widths = enumerate((self.left, self.right))
        return [symbol(f"x{k}", Shape(), Shape(self.heads, T, n), ()) for k, n in widths]

    @property
    def text(self):
        return write_term(self.term, {part: k for k, part in enumerate(self.values)})[0]

    @property
    def kernel(self):
        return scanned_term(self.text, ((self.heads, self.left), (self.heads, self.right)), ())


CASES = {
    "decay": Case(om.decay, right=301, left=301),
    "decay a head": Case(om.decay, heads=3, left=1, right=20),
    "maxplus, whole": Case(maxplus, sequence, left=1),
    "turning": Case(turning, heads=2),
    "latest, one mark": Case(latest, left=1),
    "softmax, one score": Case(monoids.softmax, left=1),
    "softmax, scores a column": Case(monoids.softmax, sequence),
    "mean": Case(monoids.mean),
    "sum": Case(monoids.sum, left=1, right=5),
}
FAULTS = {
    "a row of the sequence before": (
        "decay",
        "range(begins[at], begins[at + 1])",
        "range(max(0, begins[at] - 1), begins[at + 1])",
    ),
    "sides exchanged": ("decay", "v5 = v4 + v3", "v5 = v3 * v1 + v2"),
    "a decay once too often": ("decay", "v5 = v4 + v3", "v5 = v2 * (v4 + v3)"),
    "a lost row": ("mean", "range(begins[at], begins[at + 1])", "range(begins[at], begins[at + 1] - 1)"),
    "carriers of the first vector alone": ("turning", "place + 4 * (col + 16)", "place + 4 * (col + 0)"),
    "a head of another": ("decay a head", "(head - top) * c.columns", "0 * c.columns"),
}


@pytest.fixture(scope="module")
def faulty():
    """Kernels with faults; all kernels are compiled together."""
    made = {
        name: from_text.TextKernel(CASES[case].kernel.text.replace(*change), fold_lanes.__name__)
        for name, (case, *change) in FAULTS.items()
    }
    provide([*(case.kernel.function for case in CASES.values()), *made.values()])
    return made


def looped(over, a, b, lengths, whole=False):
    """The scan by definition: one number after another."""
    a, b = np.broadcast_arrays(a, b)
    out, ends = np.zeros(a.shape), np.cumsum(lengths)
    for begin, end in zip(ends - lengths, ends, strict=True):
        for j in np.ndindex(a.shape[1:]):
            total = over.unit()
            for t in range(begin, end):
                total = over.merged(total, over.lifted(float(a[t][j]), float(b[t][j])))
                out[t][j] = over.finish(*total)
        out[begin:end] = out[end - 1] if whole else out[begin:end]
    return out


def of_lengths(lengths):
    return om.Batch([np.zeros(length, int) for length in lengths])


def drawn(case, lengths, seed=0):
    """Numbers of a case's values: decays on the left."""
    rng, rows = np.random.default_rng(seed), sum(lengths)
    shapes = [(rows, n) if case.heads == 1 else (rows, case.heads, n) for n in (case.left, case.right)]
    return rng.choice(DECAYS, shapes[0]), rng.standard_normal(shapes[1], np.float32)


def run(case, a, b, lengths):
    plan = case.kernel.plan
    shape = (len(a), plan.cols) if plan.heads == 1 else (len(a), plan.heads, plan.cols)
    return case.kernel([a, b], [], np.full(shape, np.nan, np.float32), np.cumsum([0, *lengths]))


def share(case, a, b, lengths):
    """How far a kernel is from its meaning, in bounds."""
    batch, kernel = of_lengths(lengths), KERNELS["scan_term"]
    arguments = dict(x0=a, x1=b, term=case.text, batch=batch)
    return share_of(run(case, a, b, lengths), meaning(kernel, arguments, batch), bound(kernel, arguments))


@pytest.mark.parametrize("over", OWN, ids=lambda over: over.__name__)
def test_they_are_monoids(over):
    over.check(np.random.default_rng(0))


@some
@forall(st.integers(0, 2**32 - 1))
def test_oracles_are_the_loop(seed):
    rng = np.random.default_rng(seed)
    over, where = ANY[rng.integers(len(ANY))], (PREFIX, sequence)[rng.integers(2)]
    lengths = rng.integers(1, 6, 3)
    A, B = rng.normal(size=(4, rng.choice([1, 3]))), rng.normal(size=(4, 3))
    x, batch, term = rng.normal(size=(lengths.sum(), 4)), of_lengths(lengths), scan(weight(A), weight(B), over, where)
    wanted = looped(over, x @ A, x @ B, lengths, where is sequence)
    np.testing.assert_allclose(om.dense(term, x, batch), wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(om.entrywise(term, x, batch)[0].astype(float), wanted, rtol=1e-10, atol=1e-10)


@some
@forall(st.integers(0, 2**32 - 1))
def test_scores_of_keys_alone_are_a_scan(seed):
    """One row of scores serves all queries."""
    rng = np.random.default_rng(seed)
    over, where = ANY[rng.integers(len(ANY))], (PREFIX, sequence)[rng.integers(2)]
    a, v = weight(rng.normal(size=(4, 1))), weight(rng.normal(size=(4, 3)))
    x, batch = rng.normal(size=(9, 4)), of_lengths(rng.permutation([1, 3, 5]))
    wanted = om.dense(scan(a, v, over, where), x, batch)
    for scores in (turn(a), om.product(const(1.0), turn(a))):
        np.testing.assert_allclose(om.dense(om.product(scores, v, over, where), x, batch), wanted, rtol=1e-9, atol=1e-9)


def test_sums_up_to_each_row():
    x = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(om.dense(om.cumsum, x, of_lengths([5])), x.cumsum(0))


@pytest.mark.parametrize("where", [causal, everyone, sequence & window(3), window(2)], ids=str)
def test_other_patterns_are_refused_in_a_line(where):
    with pytest.raises(
        ShapeError, match=r"^scan over sum where .*: write|up to each row, where=sequence & causal"
    ) as caught:
        scan(I, I, "sum", where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", [causal, sequence & window(1)], ids=str)
def test_products_under_other_patterns_are_no_scan(where):
    """Rows of other sequences, and rows far behind."""
    rng = np.random.default_rng(0)
    a, v, batch = weight(rng.normal(size=(4, 1))), weight(rng.normal(size=(4, 3))), of_lengths([4, 3])
    x = rng.normal(size=(7, 4))
    merged = om.dense(om.product(turn(a), v, "sum", where), x, batch)
    for prefix in (PREFIX, sequence):
        assert abs(merged - om.dense(scan(a, v, "sum", prefix), x, batch)).max() > 0.1


def test_what_keeps_all_numbers_and_rows_of_other_spaces_are_refused():
    with pytest.raises(ShapeError, match="as many columns as rows are merged"):
        scan(I, I, monoids.concat)
    with pytest.raises(ShapeError, match="rows of S"):
        om.pick("last") @ scan(I, I)
    moved = om.pick(om.relation("swapped", "T", "T")) @ scan(I, I)
    batch = om.Batch([[0, 0, 0]], relations={"swapped": np.eye(3)[::-1]})
    for oracle in (om.dense, om.entrywise):
        with pytest.raises(ShapeError, match="not the tokens of the batch in order"):
            oracle(moved, np.ones((3, 2)), batch)


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_within_their_bounds_and_the_loop(faulty, name):
    case = CASES[name]
    a, b = drawn(case, LENGTHS)
    assert (share(case, a, b, LENGTHS) <= 1).all()
    lengths = LENGTHS[:4]
    a, b = a[: sum(lengths)], b[: sum(lengths)]
    wanted = looped(case.over, a, b, np.array(lengths), case.where is sequence)
    np.testing.assert_allclose(run(case, a, b, lengths), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_a_sequence_alone(faulty, name):
    """Not of its batch, nor of threads."""
    case = CASES[name]
    a, b = drawn(case, LENGTHS, seed=1)
    whole, ends = run(case, a, b, LENGTHS), np.cumsum(LENGTHS)
    with limit(1):
        assert run(case, a, b, LENGTHS).tobytes() == whole.tobytes()
    for length, end in zip(LENGTHS, ends, strict=True):
        rows = slice(end - length, end)
        assert run(case, a[rows], b[rows], [length]).tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(faulty, fault, monkeypatch):
    case = CASES[FAULTS[fault][0]]
    assert faulty[fault].text != case.kernel.text
    monkeypatch.setitem(vars(case.kernel), "function", faulty[fault])
    lengths = LENGTHS[:5]
    assert not (share(case, *drawn(case, lengths), lengths) <= 1).all()


@some
@forall(st.integers(1, 70), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 64))
def test_items_cover_all_columns_of_all_heads(h, cols, count, workers):
    plan = Case(om.decay, heads=h, left=cols, right=cols).kernel.plan
    cut = ScanItems.of(plan, count, workers)
    assert (cut.parts - 1) * cut.columns < cols <= cut.parts * cut.columns
    assert (cut.groups - 1) * cut.share < h <= cut.groups * cut.share
    vectors = cut.columns // 16 * cut.share
    assert vectors <= 2 * MOST_VECTORS and (cut.parts * cut.groups == 1 or vectors >= LEAST_VECTORS // 2)


# ---- programs

RNG = np.random.default_rng(0)
TABLE, A, B, K = (weight(RNG.normal(size=size) / 4) for size in ((9, 24), (24, 24), (24, 24), (24, 1)))
BATCH = om.Batch([[1, 2, 3] * 30, [8], [4, 5] * 40])


def kernels(program):
    return [step.kernel for step in program.steps]


def test_programs_have_the_kernel_and_interpret_nothing():
    """Gated sums (Qin et al. 2023, HGRN, eq. 3), by heads."""

    def gated(x):
        f = x @ A @ sigmoid
        return scan((f @ heads(3)), ((1.0 - f) * (x @ B)) @ heads(3), om.decay) @ heads(3).T

    model = TABLE @ formula(gated)
    program = om.schedule(model, BATCH, machine=standin.machine()).program
    assert "scan_term" in kernels(program) and "interpret" not in kernels(program)
    wanted = om.dense(model, BATCH)
    np.testing.assert_allclose(program.run(BATCH), wanted, rtol=1e-4, atol=1e-5)
    alone = [program.run(om.Batch([tokens])) for tokens in np.split(BATCH.tokens, BATCH.starts[1:-1])]
    assert np.concatenate(alone).tobytes() == program.run(BATCH).tobytes()


def test_what_makes_the_pairs_is_in_the_kernel():
    """A selective scan (Gu and Dao 2023, Mamba): steps, rates and inputs are never stored by states."""
    C = weight(RNG.normal(size=(24, 4)))
    rates = const(-np.exp(RNG.normal(size=(4, 1, 24))))

    def selective(x):
        dt, inward = x @ A @ om.softplus, x @ C @ heads(4)
        return scan(dt @ om.repeat(4) * rates @ om.exp, (dt * x) @ om.repeat(4) * inward, om.decay) @ om.total

    model = TABLE @ formula(selective)
    program = om.schedule(model, BATCH, machine=standin.machine()).program
    made = kernels(program)
    assert "interpret" not in made and "row_term" not in made[: made.index("scan_term")]
    np.testing.assert_allclose(program.run(BATCH), om.dense(model, BATCH), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", [dict(dp=(2, "data")), dict(tp=(2, "tensor")), dict(cp=(2, "ring"))], ids=str)
def test_ranks_have_the_same_numbers(mesh):
    """They share sequences, columns and heads; rows are gathered."""
    ids = RNG.integers(0, 9, (4, 6))
    gated = formula(lambda x: scan((x @ A @ sigmoid) @ heads(3), (x @ B) @ heads(3), om.decay) @ heads(3).T)
    model = TABLE @ gated @ scan(const(0.5), I, om.decay, sequence)
    plan = om.partition(model, om.Mesh.of(**mesh), om.BatchSizes(4, 6))
    wanted = om.dense(model, om.Batch(list(ids))).reshape(4, 6, 24)
    np.testing.assert_allclose(np.squeeze(run_ranks(plan, Feed(ids)).value), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("over, where", [(monoids.mean, PREFIX), (om.decay, sequence)], ids=["mean", "whole"])
def test_no_session_has_scans_whose_results_are_not_all_that_later_rows_need(over, where):
    model = TABLE @ scan(A, B, over, where)
    with pytest.raises(InputError, match=r"no term expresses states|it reads other rows"):
        cached_model(model)
    with pytest.raises(InputError, match=r"scan_term: it reads other rows.*: its last result is not all") as caught:
        om.cached(om.schedule(model, BATCH, machine=standin.machine()).program)
    assert "\n" not in str(caught.value)


def test_a_monoid_that_gives_several_columns_is_interpreted():
    model = TABLE @ scan(A, B, monoids.topk(2))
    program = om.schedule(model, BATCH, machine=standin.machine()).program
    assert "interpret" in kernels(program)
    np.testing.assert_allclose(program.run(BATCH), om.dense(model, BATCH), rtol=1e-4, atol=1e-5)


def test_what_is_not_associative_is_refused_with_its_promise():
    class wrong(om.Monoid):
        identity = 0.0

        def lift(a, b):
            return a * b

        def merge(one, other):
            return one + other + one * one * other

    with pytest.raises(InputError, match=r"^monoid wrong breaks its promise: a split") as caught:
        om.schedule(TABLE @ scan(A, B, wrong), BATCH, machine=standin.machine()).program.run(BATCH)
    assert "\n" not in str(caught.value)


@pattern(reflexive=True, within=True, reach=(2**40, 0))
def backwards(q, k):
    """What it says it is not."""
    return (q.sequence == k.sequence) & (k.position >= q.position)


def test_a_pattern_that_breaks_its_promise_is_refused():
    with pytest.raises(InputError, match="backwards"):
        om.schedule(TABLE @ scan(A, B, "sum", backwards), BATCH, machine=standin.machine()).program.run(BATCH)


QUERY = np.linspace(-1, 1, 24) / 24  # a decay of at most one, so that no row grows with those before it
SCORES = {
    "one row of scores": lambda x: turn(x @ K),
    "queries of ones": lambda x: om.product(const(1.0), turn(x @ K)),
    "queries that are a row": lambda x: om.product(const(QUERY), turn(x @ A @ om.tanh)),
}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("where", [PREFIX, sequence], ids=str)
def test_a_search_finds_the_scan(scores, where):
    model = TABLE @ formula(lambda x: om.product(SCORES[scores](x), x @ B, om.decay, where))
    batch = om.Batch([[1, 2, 3] * 200, [4, 5] * 70])
    found = search(model, om.laws, standin.machine(), batch.extents(*collect_needs(model)))
    program, _ = found.program({})
    assert "scan_term" in kernels(program)
    np.testing.assert_allclose(program.run(batch), om.dense(model, batch), rtol=1e-4, atol=1e-5)
