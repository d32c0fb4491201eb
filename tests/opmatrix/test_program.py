"""Programs against their oracles: every kernel and format, ragged batches, threads, bits, memory, what is refused."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
from alone import alone, rows
from checkpoints import CONFIG, arrays
from programs import Writer, bert_program, fused_layer, held, unfused_layer

from formats import CSC, CSR, NM, SELL, Block, Dense, Half, LowRank
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, T, counted
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.inference.session import New
from opmatrix.models import build
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Rows
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.measure import peak
from opmatrix.runtime.pricing import catalogue
from opmatrix.runtime.program import Program, Step

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]
LAYERS = [fused_layer, unfused_layer]
FORMATS = {
    "dense": Dense.pack,
    "half": Half.approximate,
    "csr": lambda W: CSR.approximate(W, density=0.4),
    "block": lambda W: Block.approximate(W, density=0.5, tile=(4, 8)),
    "nm": NM.approximate,
    "lowrank": lambda W: LowRank.approximate(W, rank=7),
    "sell": SELL.approximate,
    "csc": CSC.approximate,
}


@pytest.fixture(scope="module")
def weights():
    return arrays(CONFIG)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def oracle(program, weights, batch):
    """The algebra's model in float64, with the numbers that the program's weights hold."""
    numbers = held(program, weights)
    model = build(CONFIG, lambda name, *shape: Data(numbers[name], name))
    return dense(model, batch.selection("tokens", CONFIG["vocab_size"]), batch)


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


# ---- the right numbers


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_bert_is_the_algebra_s(weights, layer, format):
    program, batch = bert_program(CONFIG, weights, layer, FORMATS[format]), Batch(RAGGED)
    found, wanted = program.run(batch), oracle(program, weights, batch)
    assert found.shape == (23, 24) and found.dtype == np.float32
    assert relative(found, wanted) < 2e-6
    assert relative(program.exact(batch), wanted) < (1e-7 if format == "lowrank" else 1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_its_meaning(kernel, rng):
    program = alone(kernel, rng)
    assert kernel in [step.kernel for step in program.steps]
    batch = stepped(program, rng) if program.schedule.state else RAGGED
    for step, found, exact in program.trace(batch):
        assert found.shape == exact.shape and relative(found, exact) < 1e-6, step
    assert relative(program.run(batch), program.exact(batch)) < 1e-6


def stepped(program, rng):
    """The rows of RAGGED as new rows of sequences that have some already."""
    session = program.start(200)
    for cache in session.caches.values():
        cache[...] = rng.standard_normal(cache.shape)
    slots, _ = session.take({session.join(): 3 + len(ids) for ids in RAGGED})
    ends = np.cumsum([3 + len(ids) for ids in RAGGED])
    new = np.concatenate([slots[end - len(ids) : end] for end, ids in zip(ends, RAGGED, strict=True)])
    count = len(RAGGED)
    if session.pool.arrays:
        session.pool.take([], 2 * count)
    for states in session.pool.arrays.values():
        states[1:] = rng.standard_normal(states[1:].shape)
    batch = New(RAGGED, [3] * count, new, session)
    if session.pool.arrays:
        batch.carry([(1 + n, [(3 + len(ids), 1 + count + n)]) for n, ids in enumerate(RAGGED)])
    return batch


def test_columns_of_a_wider_value_are_read_in_place(rng):
    """As what is multiplied, passed over, multiplied with and added; what they lie in is not written over."""
    constants = {
        "E": Dense.pack(rows(rng, 26, 24)),
        "w": CSR.approximate(rows(rng, 12, 12), density=0.5),
        "u": LowRank.approximate(rows(rng, 12, 12), rank=3),
    }
    write = Writer({})
    write.steps.append(Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"))
    left, right = (write.step("columns", {"lo": lo, "hi": lo + 12}, x="x") for lo in (0, 12))
    gated = write.step("linear", {"activation": "silu"}, x=left, weight="w", times=right, residual=left)
    passed = write.step("pointwise", {"activation": "relu"}, x=right, residual=gated)
    last = write.step("linear", {}, x=left, weight="u", residual=passed, times=right)
    program = Program(write.steps, constants, last)
    assert relative(program.run(RAGGED), program.exact(RAGGED)) < 1e-6


def test_a_kernel_is_one_entry(rng, monkeypatch):
    """A kernel that is declared nowhere but here is checked, planned, run, read in float64, priced and printed."""

    @kernel(inplace="x", prices={})
    class largest(Arguments):
        """The largest number of a row, or least."""

        def run(out, x: Rows, *, least: float = 0.0):
            np.maximum(x.max(1, keepdims=True), least, out=out)

        def shape(a) -> Rows:
            return Rows(1)

        def reference(a):
            return np.maximum(a.x.max(1, keepdims=True), a.least)

        def bound(a):
            return np.zeros(1)

        def cost(a, out, extents):
            return [("gather", {"T": extents[T], "p": a.x.cols})]

    monkeypatch.setitem(KERNELS, "largest", largest)
    table = {"E": Dense.pack(rows(rng, 4, 6))}
    program = Program([*START, Step("largest", {"x": "x"}, {"least": 0.5}, "y")], table, "y")
    np.testing.assert_array_equal(program.run([[0, 1], [3]]), program.exact([[0, 1], [3]]))
    assert program.schedule.base == [0, 1], "a result of another shape does not lie over x"
    assert program.cost([[0]])[-1] == ("gather", {"T": 1, "p": 6}) and "y = largest(x=x, least=0.5)" in str(program)
    wrong = Step("largest", {"x": "x"}, {"most": 1}, "y")
    with pytest.raises(ValueError, match=r"largest\(x; least\) has no most"):
        Program([*START, wrong], table, "y")


def test_meanings_by_hand():
    """The float64 readings, on numbers that one can check."""
    one = Dense.pack(np.array([[1, 0], [0, 2]], np.float32))
    steps = [
        *START,
        Step("heads", {"x": "x"}, {"heads": 1}, "h"),
        Step("attention", {"q": "h", "k": "h", "v": "h"}, {"scale": np.log(3)}, "o"),
        Step("join", {"x": "o"}, {}, "y"),
        Step("linear", {"x": "y", "weight": "w", "bias": "b"}, {}, "z"),
    ]
    constants = {"E": Dense.pack(np.eye(2, dtype=np.float32)), "w": one, "b": np.array([0, 1], np.float32)}
    program = Program(steps, constants, "z")
    wanted = [[0.75, 1.5], [0.25, 2.5], [1, 1]]  # weights 3 : 1 on the token itself; the last is alone
    np.testing.assert_allclose(program.exact([[0, 1], [0]]), wanted, rtol=1e-12)
    np.testing.assert_allclose(program.run([[0, 1], [0]]), wanted, rtol=1e-6)
    np.testing.assert_allclose(program.exact([[1]], {"b": np.zeros(2)}), [[0, 2]])


@pytest.mark.parametrize("products", [4, 40])
def test_a_float64_reading_holds_live_values_only(products):
    """Memory of `exact` is that of the few values that later steps read, whatever the number of steps."""
    steps = [*START, *(Step("linear", {"x": x, "weight": "w"}, {}, f"x{i}") for i, x in enumerate(chain(products)))]
    constants = {"E": Dense.pack(np.eye(8, dtype=np.float32)), "w": Dense.pack(np.eye(8, dtype=np.float32))}
    program, batch = Program(steps, constants, {"last": f"x{products - 1}", "first": "x"}), Batch([[0, 1, 2] * 1000])
    value = 8 * batch.rows * 8  # bytes of one value
    wanted = np.eye(8)[batch.tokens]
    program.exact(batch)
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(program.exact(batch), wanted)
        assert tracemalloc.get_traced_memory()[1] < 8 * value
    finally:
        tracemalloc.stop()
    both = program.exact_all(batch)
    assert [*both] == ["last", "first"] and all((rows == wanted).all() for rows in both.values())


def chain(products):
    """The values that a chain of products reads."""
    return ["x", *(f"x{i}" for i in range(products - 1))]


@pytest.mark.parametrize("layer", LAYERS)
def test_sentences_do_not_see_one_another(weights, layer):
    program = bert_program(CONFIG, weights, layer)
    whole = program.run(RAGGED)
    apart = np.concatenate([program.run([sentence]) for sentence in RAGGED])
    np.testing.assert_allclose(whole, apart, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_bits_every_time(weights, layer):
    program, again = (bert_program(CONFIG, weights, layer) for _ in range(2))
    first = program.run(RAGGED)
    kept = first.copy()
    program.run([[1]])  # another size in between
    for other in (program, again):
        assert np.array_equal(other.run(RAGGED), kept)
    assert np.array_equal(first, kept), "a later call wrote into an earlier result"


@pytest.mark.parametrize("layer", LAYERS)
def test_threads_share_a_program(weights, layer):
    program = bert_program(CONFIG, weights, layer)
    batches = [[list(range(3, 3 + n)) for n in lengths] for lengths in ([5, 1, 17], [20, 20, 19, 3], [2], [8, 8])]
    wanted, wrong = [program.run(batch) for batch in batches], []

    def work(offset):
        for i in range(40):
            at = (i + offset) % len(batches)
            if not np.array_equal(program.run(batches[at]), wanted[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- memory


def wide(layer, pack=Dense.pack):
    """Large enough for Python's own objects not to count."""
    config = CONFIG | {"hidden_size": 240, "intermediate_size": 480, "max_position_embeddings": 400}
    return bert_program(config, arrays(config), layer, pack)


def first_columns(W):
    """Store the first 150 columns of a matrix, or all, as two factors: memory depends on no decomposition."""
    return LowRank.pack_factors(W[:, :150], np.eye(min(150, W.shape[1]), W.shape[1]))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("pack", [Dense.pack, first_columns], ids=["dense", "lowrank"])
def test_the_planned_peak_is_what_a_call_allocates(layer, pack):
    program = wide(layer, pack)
    batch = Batch([np.full(n, 3) for n in (400, 1, 390, 57, 220)])
    assert abs(peak(program, batch) / program.peak_bytes(batch) - 1) < 0.01
    assert program.schedule.scored or program.peak_bytes(Batch([np.full(267, 3)] * 4)) >= 0.9 * program.peak_bytes(
        Extents({T: 1068})
    )


def test_a_fused_layer_needs_no_more_than_what_is_alive(weights):
    """The widest moment: x, the joined q, k, v and the mixed heads; or x, the hidden features and the output."""
    n, hidden = 24 + 8, 40 + 8  # numbers of a row in whole cache lines
    schedule = bert_program(CONFIG, weights).schedule
    assert schedule.plan(Extents({T: 100})).end == 100 * 4 * max(n + 80 + n, n + hidden + n)


def test_calls_leave_nothing_behind(rng):
    program, batches = alone("attention", rng), [Batch([list(range(n))]) for n in range(1, 20)]
    arrays_only = [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]  # Python keeps some freed tuples itself
    held = lambda: sum(t.size for t in tracemalloc.take_snapshot().filter_traces(arrays_only).traces)
    for batch in batches:
        program.run(batch)
    tracemalloc.start()
    try:
        seen = []
        for _ in range(2):  # tables of the last few batches are remembered: the same
            for i in range(100):
                program.run(batches[i % 5])
            gc.collect()
            seen.append(held())
        assert seen[0] == seen[1] < 4000
    finally:
        tracemalloc.stop()


def test_buffers_begin_on_cache_lines(weights):
    program = bert_program(CONFIG, weights, unfused_layer)
    assert all(at % 64 == 0 for at in program.schedule.plan(counted([5, 1, 17])).offsets)
    assert program.run(RAGGED).ctypes.data % 64 == 0


def test_a_pass_writes_over_what_nobody_reads_later(rng):
    write = Writer({})
    a = write.step("embed", {"fields": "tokens"}, table0="E")
    b = write.step("pointwise", {"activation": "gelu"}, x=a)  # over a
    c = write.step("scale", {"factor": 2.0}, x=b)  # over b
    d = write.step("pointwise", x=c, residual=c)  # not over c, which it adds
    e = write.step("columns", {"lo": 0, "hi": 16}, x=d)
    f = write.step("scale", {"factor": 3.0}, x=d)  # not over d, which e still shows
    g = write.step("linear", x=f, weight="w")
    h = write.step("heads", {"heads": 2}, x=e)
    j = write.step("join", x=write.step("attention", q=h, k=h, v=h))
    k = write.step("pointwise", x=j, residual=g)  # over j, a view of all of a buffer
    program = Program(write.steps, {"E": Dense.pack(rows(rng, 26, 32)), "w": Dense.pack(rows(rng, 32, 16))}, k)
    home = {step.output: at for step, at in zip(program.steps, program.schedule.base, strict=True)}
    assert home[a] == home[b] == home[c] != home[d] == home[e]
    assert home[f] != home[d] and home[k] == home[j] != home[g]
    assert relative(program.run(RAGGED), program.exact(RAGGED)) < 1e-6


# ---- what it says


def test_it_prints_as_python(rng):
    program = alone("linear", rng).replace(model="tiny")
    assert str(program).splitlines() == [
        "# tiny: 1 to any number of rows, 8,736 bytes stored",
        "x = embed(table0=table[dense, 26x24], table1=other[half, 26x24], gain=gain, shift=shift, "
        'fields="tokens,positions", eps=0.1)',
        "y = linear(x=x, weight=w[dense, 24x40], bias=b)",
        "h = heads(x=x, heads=3)",
        'h3 = linear(x=x, weight=w[dense, 24x40], residual=y, bias=b, gain=g, shift=c, activation="gelu", eps=0.1)',
        "return h3",
    ]
    sparse = bert_program(CONFIG, arrays(CONFIG), pack=FORMATS["csr"])
    assert "weight=encoder.layer.0.intermediate.dense[csr 0.4, 24x40]" in str(sparse)


def test_what_it_stores_is_counted_to_the_byte(weights):
    program = bert_program(CONFIG, weights)
    assert program.stored_bytes == 4 * sum(array.size for array in weights.values())
    half = bert_program(CONFIG, weights, pack=Half.approximate)
    linear = sum(array.size for name, array in weights.items() if array.ndim == 2 and "embeddings" not in name)
    assert half.stored_bytes == program.stored_bytes - 2 * linear


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_step_has_a_price(weights, layer, format):
    """The machine knows every kernel that a run calls, and every size that it is priced by."""
    program = bert_program(CONFIG | {"num_hidden_layers": 1}, weights, layer, FORMATS[format])
    priced = program.cost(RAGGED)
    assert priced == program.cost(counted([5, 1, 17]))
    prices = catalogue()
    for name, sizes in priced:
        assert all(0 < feature < np.inf for feature in prices.evaluate_features(name, sizes)), name
    products = [sizes for name, sizes in priced if name == f"linear.{format}"]
    assert sum(sizes["n"] * sizes["p"] for sizes in products) == 24 * 24 * 4 + 2 * 24 * 40


def test_a_price_has_every_part(rng):
    """The product, then what its epilogue does; the first part of a pass of its own has another name, the others ride
    along."""
    names = [name for name, _ in alone("linear", rng).cost(RAGGED)]
    parts = ["bias", "activation", "residual", "norm", "affine"]
    assert names == ["gather", "gather", "norm", "affine", "linear.dense", "bias", "linear.dense", *parts]
    assert [name for name, _ in alone("pointwise", rng).cost(RAGGED)][-5:] == ["pointwise.bias", *parts[1:]]
    sizes = dict(alone("headwise", rng).cost(RAGGED))["headwise"]
    assert sizes == {"T": 23, "h": 3, "n": 8, "p": 5}


E, W = Dense.pack(np.eye(4, 6, dtype=np.float32)), Dense.pack(np.ones((6, 8), np.float32))
VECTOR = np.ones(8, np.float32)
START = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x")]


@pytest.mark.parametrize(
    "steps, complaint",
    [
        ([Step("conv", {"x": "x"}, {}, "y")], "step 1, y = conv: there is no such kernel; there are append"),
        ([Step("scale", {"x": "z"}, {"factor": 2.0}, "y")], "x is 'z', which is neither the output of an earlier step"),
        ([Step("scale", {"x": "x"}, {"factor": 2.0}, "x")], "'x' is already defined"),
        ([Step("scale", {"x": "x"}, {"factor": 2.0}, "E")], "'E' is already defined"),
        ([Step("scale", {"x": "x"}, {}, "y")], "factor is missing"),
        ([Step("scale", {}, {"factor": 2.0}, "y")], "x is missing"),
        ([Step("scale", {"x": "x"}, {"factor": "two"}, "y")], "factor is 'two'; it must be a real number from"),
        ([Step("scale", {"x": "x"}, {"factor": float("nan")}, "y")], "factor is nan"),
        ([Step("scale", {"x": "x"}, {"factor": 2.0, "by": 3}, "y")], "has no by"),
        ([Step("scale", {"x": "E"}, {"factor": 2.0}, "y")], "it must be Rows: (T, cols)"),
        ([Step("linear", {"x": "x", "weight": "x"}, {}, "y")], "weight is T×6; it must be Weight"),
        ([Step("linear", {"x": "x", "weight": "E"}, {}, "y")], "x columns: 6, where 4 is needed"),
        ([Step("linear", {"x": "x", "weight": "W", "bias": "W"}, {}, "y")], "it must be Vector"),
        (
            [Step("linear", {"x": "x", "weight": "W", "residual": "x"}, {}, "y")],
            "residual columns: 6, where 8 is needed",
        ),
        ([Step("linear", {"x": "x", "weight": "W", "bias": "v", "bais": "v"}, {}, "y")], "has no bais"),
        (
            [Step("linear", {"x": "x", "weight": "W"}, {"activation": "sine"}, "y")],
            "activation is 'sine'; it may be '' or 'gelu' or",
        ),
        ([Step("pointwise", {"x": "x", "bias": "v"}, {}, "y")], "bias: (8,), where (6,) is needed"),
        ([Step("embed", {"table0": "E"}, {"fields": "tokens,kinds"}, "y")], "fields: 2, where 1 is needed"),
        ([Step("embed", {"table1": "E"}, {"fields": "tokens"}, "y")], "table0 is missing"),
        ([Step("embed", {}, {"fields": "tokens"}, "y")], "table0 is missing"),
        ([Step("heads", {"x": "x"}, {"heads": 4}, "y")], "4 heads do not divide x of T×6"),
        ([Step("heads", {"x": "x"}, {"heads": 2.0}, "y")], "heads is 2.0; it must be a whole number from 1 to"),
        ([Step("heads", {"x": "x"}, {"heads": 2}, "y")], "output: 'y' is T×2×3; a program gives one row a token"),
        ([Step("columns", {"x": "x"}, {"lo": 2, "hi": 7}, "y")], "x of T×6 has no columns 2 to 7"),
        (
            [Step("columns", {"x": "x"}, {"lo": 0, "hi": 3}, "c"), Step("scale", {"x": "c"}, {"factor": 1.0}, "y")],
            "x: its rows are columns of a wider value, 6 numbers apart",
        ),
        (
            [
                Step("heads", {"x": "x"}, {"heads": 2}, "q"),
                Step("heads", {"x": "x"}, {"heads": 3}, "k"),
                Step("attention", {"q": "q", "k": "k", "v": "k"}, {}, "y"),
            ],
            "q heads: 2, which do not divide 3",
        ),
        (
            [
                Step("heads", {"x": "x"}, {"heads": 2}, "q"),
                Step("attention", {"q": "q", "k": "q", "v": "q"}, {"where": "causal"}, "y"),
            ],
            "where: 'causal' looks beyond sequences",
        ),
        (
            [
                Step("heads", {"x": "x"}, {"heads": 2}, "q"),
                Step("attention", {"q": "q", "k": "q", "v": "q"}, {"where": "sequence & often"}, "y"),
            ],
            "'often' of 'sequence & often'",
        ),
        ([], "output: no step gives 'y'"),
    ],
)
def test_what_does_not_fit_is_refused(steps, complaint):
    with pytest.raises(ValueError) as error:
        Program(START + steps, {"E": E, "W": W, "v": VECTOR}, "y")
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "batch, complaint",
    [([], "no sentences"), ([[1], []], "0 tokens"), ([[1, 2], [3, 4]], "id 4 of sentence 1"), ([[-1]], "id -1")],
)
def test_batches_that_cannot_run(batch, complaint):
    program = Program(START, {"E": E}, "x")
    with pytest.raises(ValueError, match=complaint):
        program.run(batch)


def test_it_cannot_be_changed(weights):
    program = bert_program(CONFIG, weights)
    with pytest.raises(AttributeError):
        program.steps[0].output = "y"
    for table in (program.steps[0].operands, program.constants, program.meta):
        with pytest.raises(TypeError):
            table["x"] = "y"
