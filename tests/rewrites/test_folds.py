"""Products over any monoid are kernels of their own: right within their bounds, chosen, and refused in a line."""

import numpy as np
import pytest

import opmatrix as om
from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.engine import from_text
from formats.kernels.engine.compiled import provide
from formats.kernels.generated.folding import fold_lanes
from formats.kernels.generated.folding.fold_kernel import FoldKernel
from formats.kernels.generated.rowwise.stored import Stores
from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import by_distance, product, related, turn
from opmatrix.algebra.operators import const, heads, join, over, tanh, weight
from opmatrix.algebra.positions.patterns import everyone, pattern, sequence, window
from opmatrix.algebra.term import formula
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.fold_term import find_fold
from tests.support import standin
from tests.support.terms_of_folds import EDGES, MOST, REACH, Case, cases, minplus
from tests.support.terms_of_rows import share_of, value

LENGTHS = 1, 70, 0, 16
BATCH = om.Batch([[1, 2, 3], [8], [4, 5]])
FAULTS = {
    "a lost tile": ("capped attention", "for b in range(at, last):", "for b in range(at, last - 1):"),
    "a tile before it": ("ways by distance", "for b in range(at, last):", "for b in range(at + 1, last):"),
    "a bias shifted by one": ("ways by distance", "low - key - keys + 1,", "low - key - keys + 2,"),
    "a key ahead": ("sliding max", "row + c.ahead + 1", "row + c.ahead"),
    "a lost key": ("min-plus", "for j in range(keys):", "for j in range(keys - 1):"),
}


@pattern(reflexive=True, within=True)
def every_third(q, k):
    """Those three positions away, and so on."""
    return (q.sequence == k.sequence) & ((q.position - k.position) % 3 == 0)


class longest(Monoid):
    """The largest, where order counts."""

    identity, commutative = -np.inf, False

    def lift(x, w):
        return x + w

    def merge(a, b):
        return np.maximum(a, b)


def found_of(case):
    return find_fold(case.operands | {"term": case.text}).kernel


@pytest.fixture(scope="module")
def compiled():
    """The products by name and their batch; their kernels, and faulty ones, compiled together."""
    made, batch = cases(np.random.default_rng(0), [each for each in LENGTHS if each], n=21, p=70)
    faulty = {
        name: from_text.TextKernel(found_of(made[case]).text.replace(*change), fold_lanes.__name__)
        for name, (case, *change) in FAULTS.items()
    }
    provide([*(found_of(case).function for case in made.values()), *faulty.values()])
    return made, batch, faulty


def run(case, batch):
    """What a kernel gives, and how far it is from its meaning, in bounds."""
    kernel, plan = KERNELS[case.kernel], found_of(case).plan
    rows = len(next(iter(case.operands.values())))
    out = np.full((rows, plan.heads, plan.cols) if plan.heads > 1 else (rows, plan.cols), np.nan, np.float32)
    reading = kernel.batched
    kernel.function(out, *([batch] if reading else []), **case.operands, term=case.text)
    arguments = case.operands | {"term": case.text} | ({"batch": batch} if reading else {})
    meant, most = meaning(kernel, arguments, batch), bound(kernel, arguments)
    return out, share_of(out, meant, most)


NAMES = (
    "min-plus",
    "log-sum-exp",
    "top-2 over keys",
    "sliding max",
    "shortest paths",
    "capped attention",
    "ways by distance",
)


@pytest.mark.parametrize("name", NAMES)
def test_products_are_within_their_bounds_and_as_numpy(compiled, name):
    made, batch, _ = compiled
    out, share = run(made[name], batch)
    assert (share <= 1).all(), share.max()
    seen = 1 / share[share > 0]
    assert not seen.size or np.median(seen) <= 1000  # nor are bounds far from what is seen
    wanted = made[name].by_hand()
    both = np.isfinite(wanted)
    np.testing.assert_allclose(out[both], wanted[both], rtol=1e-4, atol=1e-4)


def restricted(case, rows):
    return case._replace(
        operands={name: each[rows] if name.startswith("x") else each for name, each in case.operands.items()}
    )


@pytest.mark.parametrize("name", ["min-plus", "sliding max", "capped attention", "ways by distance"])
def test_rows_are_the_same_alone_in_a_batch_and_on_other_threads(compiled, name):
    made, batch, _ = compiled
    whole, _ = run(made[name], batch)
    with limit(1):
        one, _ = run(made[name], batch)
    alone, _ = run(restricted(made[name], slice(1, 71)), om.Batch([[0] * 70]))
    assert whole.tobytes() == one.tobytes() and whole[1:71].tobytes() == alone.tobytes()


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(compiled, fault, monkeypatch):
    made, batch, faulty = compiled
    case = made[FAULTS[fault][0]]
    assert faulty[fault].text != found_of(case).text
    monkeypatch.setitem(vars(found_of(case)), "function", faulty[fault])
    assert not (run(case, batch)[1] <= 1).all()


def steps(program):
    return [step.kernel for step in program.program.steps]


def test_programs_have_such_kernels_and_interpret_nothing():
    rng = np.random.default_rng(1)
    A, B, W, table = (weight(rng.normal(size=size)) for size in ((12, 12), (12, 12), (12, 20), (9, 12)))
    mixed = formula(lambda x: product(product(x @ A, turn(x @ B)) @ tanh, x @ A, longest, sequence & every_third))
    model = table @ mixed @ over(W, minplus) @ weight(rng.normal(size=(20, 5)))
    program = om.schedule(model, BATCH, machine=standin.machine())
    assert {"fold_term", "fold_rows"} <= {*steps(program)} and "interpret" not in steps(program)
    np.testing.assert_allclose(program.run(BATCH), om.dense(model, BATCH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where, kernel", [(sequence & window(REACH), "fold_term"), (everyone, "interpret")])
def test_a_bias_by_distance_is_in_the_kernel_or_the_term_is_read(compiled, where, kernel):
    """Positions are those of a sequence, so where all see all no kernel says distances."""
    rng = np.random.default_rng(2)
    A, B, table = (weight(rng.normal(size=size) / 4) for size in ((12, 21), (12, 21), (9, 12)))
    near = rng.normal(size=(3, 2 * MOST + 1))

    def mixed(x):
        q, k = x @ A @ heads(3), x @ B @ heads(3)
        return product(product(q, turn(k)) @ tanh + by_distance(near, MOST), k, minplus, where) @ join(3)

    model = table @ formula(mixed)
    program = om.schedule(model, BATCH, machine=standin.machine())
    assert {"fold_term", "interpret"} & {*steps(program)} == {kernel}
    np.testing.assert_allclose(program.run(BATCH), om.dense(model, BATCH), rtol=1e-4, atol=1e-5)


def refused(term, values):
    text, arrays = write_term(term, {each: k for k, each in enumerate(values)})
    operands = {f"x{k}": np.zeros((2, int(each.out.cols)), np.float32) for k, each in enumerate(values)}
    operands |= {f"c{k}": np.zeros(each.shape, np.float32) for k, each in enumerate(arrays)}
    with pytest.raises(InputError) as caught:
        find_fold(operands | {"term": text})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def over_one(**parts):
    """A product over a monoid of these parts."""
    usual = dict(identity=0.0, lift=lambda x, w: x * w, merge=lambda a, b: a + b)
    x = value(0, 4)
    return x @ over(weight(np.ones((4, 2))), type("mine", (Monoid,), usual | parts)), [x]


BROKEN = {
    "a merge that is not associative": (dict(merge=lambda a, b: a + b + a * a * b), "mine breaks its promise"),
    "a false flag": (dict(merge=lambda a, b: a + b, idempotent=True), "mine breaks its promise: idempotent"),
    "an order that counts": (
        dict(
            identity=(0.0, 0.0),
            lift=lambda x, w: (x * w, 1.0),
            merge=lambda a, b: (np.where(b[1] > 0, b[0], a[0]), a[1] + b[1]),
        ),
        "mine breaks its promise: commutative",
    ),
    "a merge with NaN": (dict(merge=lambda a, b: (a + b) + 0 * (1 / a)), "mine"),
    "a merge of another shape": (dict(merge=lambda a, b: (a, b)), "mine"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_monoid_that_breaks_a_promise_is_refused_in_a_line(fault):
    parts, said = BROKEN[fault]
    assert f"monoid {said}" in refused(*over_one(**parts))


def test_a_monoid_without_identity_is_refused_where_it_is_declared():
    with pytest.raises(TypeError, match=r"^monoid nothing: no identity.*") as caught:
        type("nothing", (Monoid,), dict(lift=lambda x, w: x, merge=lambda a, b: a))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "reach, said",
    [((1, 0), "sees position 0, though its reach is 1 behind"), ((3, 0), "does not see position 0, though")],
)
def test_a_pattern_that_looks_elsewhere_than_it_says_is_refused(reach, said):
    @pattern(reflexive=True, within=True, reach=reach)
    def looks(q, k):
        return (q.sequence == k.sequence) & (k.position <= q.position) & (k.position >= q.position - 2)

    x = value(0, 4)
    one = x @ const(1.0)
    assert said in refused(product(product(one, turn(one)), x, monoids.max, looks), [x])


class alike(Monoid):
    """The same number twice."""

    identity, width = 0.0, 2

    def lift(x, w):
        return x * w

    def merge(a, b):
        return a + b

    def finish(a):
        return a, a


class fixed(Monoid):
    """A number that nothing changes."""

    identity, idempotent = -np.inf, True

    def lift(x, w):
        return x * w

    def merge(a, b):
        return np.maximum(a, b)

    def finish(a):
        return 3.0 + 0.0 * np.minimum(np.maximum(a, 0.0), 1.0)


class scores_alone(Monoid):
    """The largest score: no column is read."""

    identity, idempotent = -np.inf, True

    def lift(x, w):
        return x + 0.0 * np.minimum(np.maximum(w, 0.0), 1.0)

    def merge(a, b):
        return np.maximum(a, b)


class rows_alone(Monoid):
    """The largest of each column: no score is read."""

    identity, idempotent = -np.inf, True

    def lift(x, w):
        return w

    def merge(a, b):
        return np.maximum(a, b)


def narrow_case(over_by, way, columns):
    """A product of so many columns, by a way in which kernels are written, and the batch for it."""
    rng = np.random.default_rng(columns)
    x, y, batch = value(0, columns), value(1, 4), om.Batch([[0] * 65, [0]], relations={"edges": np.eye(66, k=-1)})
    one = x @ const(1.0)
    kernel, term, values = {
        "stored": ("fold_rows", y @ over(weight(rng.normal(size=(4, columns))), over_by), [y]),
        "scored": ("fold_term", product(product(y, turn(y)), x, over_by, sequence), [x, y]),
        "windowed": ("fold_term", product(product(one, turn(one)), x, over_by, sequence & window(1)), [x]),
        "entries": ("fold_entries", product(related(EDGES), x, over_by), [x]),
    }[way]
    text, arrays = write_term(term, {each: k for k, each in enumerate(values)})
    operands = {f"x{k}": rng.normal(size=(66, int(each.out.cols))).astype(np.float32) for k, each in enumerate(values)}
    operands |= {f"c{k}": np.atleast_1d(np.asarray(each.array, np.float32)) for k, each in enumerate(arrays)}
    return Case(kernel, text, operands, None), batch


WAYS = "stored", "scored", "windowed", "entries"


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("columns", [1, 17, 70])
def test_every_number_of_a_product_is_written(way, columns):
    """Of monoids that give a number twice, or always the same, or read scores or columns alone; of rows that nothing
    is merged to."""
    made = [narrow_case(each, way, columns) for each in (alike, fixed, scores_alone, rows_alone)]
    provide([found_of(case).function for case, _ in made])
    for case, batch in made:
        share = run(case, batch)[1]
        assert (share <= 1).all(), (case.text, share.max())


@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_leaves_out_numbers_is_refused(way, monkeypatch):
    """In a line that names the result."""
    plan = found_of(narrow_case(alike, way, 70)[0]).plan
    add = Stores.add
    monkeypatch.setattr(Stores, "add", lambda stores, word, stored: stored.first or add(stores, word, stored))
    with pytest.raises(ValueError, match=r"^out: its kernel writes \d+ of \d+ columns of 1 heads, and leaves"):
        FoldKernel(plan).text  # noqa: B018


@pytest.mark.parametrize(
    "way, said",
    [
        ("windowed", "starts: sequences end at row 65, but out has 66 rows"),
        ("entries", "starts: it describes 65 rows, but out has 66"),
    ],
)
def test_rows_that_no_sequence_has_are_refused(way, said):
    """They would be left as they were."""
    case, batch = narrow_case(rows_alone, way, 3)
    kernel, x, out = found_of(case), [case.operands["x0"]], np.zeros((66, 3), np.float32)
    with pytest.raises(ValueError, match=said):
        if way == "windowed":
            kernel(x, [np.ones(1, np.float32)], out, np.array([0, 65]), (1, 1))
        else:
            links = batch.relation(EDGES)
            kernel.gather(x, out, links.starts[:-1], links.at, links.numbers)
