"""Programs against their oracles: every kernel and format, ragged batches, threads, bits, memory, what is refused."""
import gc
import threading
import tracemalloc

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from programs import bert_program, fused_layer, held, unfused_layer

from formats import CSR, NM, Block, Dense, Half, LowRank
from opmatrix.data import Data
from opmatrix.measure import measure, medians, peak, ratio
from opmatrix.models import build
from opmatrix.oracles import dense
from opmatrix.patterns import Batch
from opmatrix.program import Program, Step
from opmatrix.runtime.kernels import KERNELS

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]
LAYERS = [fused_layer, unfused_layer]
FORMATS = {
    "dense": Dense.pack, "half": Half.approximate, "csr": lambda W: CSR.approximate(W, density=0.4),
    "block": lambda W: Block.approximate(W, density=0.5, tile=(4, 8)), "nm": NM.approximate,
    "lowrank": lambda W: LowRank.approximate(W, rank=7),
}


@pytest.fixture(scope="module")
def weights(): return arrays(CONFIG)

@pytest.fixture
def rng(): return np.random.default_rng(7)


def oracle(program, weights, batch):
    """The algebra's model in float64, with the numbers that the program's weights hold."""
    numbers = held(program, weights)
    model = build(CONFIG, lambda name, *shape: Data(numbers[name], name))
    return dense(model, batch.selection("tokens", CONFIG["vocab_size"]), batch)


def relative(found, wanted): return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


# ---- the right numbers

@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_bert_is_the_algebra_s(weights, layer, format):
    program, batch = bert_program(CONFIG, weights, layer, FORMATS[format]), Batch(RAGGED)
    found, wanted = program.run(batch), oracle(program, weights, batch)
    assert found.shape == (23, 24) and found.dtype == np.float32
    assert relative(found, wanted) < 2e-6
    assert relative(program.exact(batch), wanted) < (1e-7 if format == "lowrank" else 1e-12)


def rows(rng, *shape): return rng.standard_normal(shape).astype(np.float32)


def alone(kernel, rng):
    """A program that ends in this kernel, with everything that the kernel may be given."""
    vector, V = (lambda n: rows(rng, n)), 26
    constants = {"table": Dense.pack(rows(rng, V, 24)), "other": Half.approximate(rows(rng, V, 24)), "w": Dense.pack(rows(rng, 24, 40)),
                 "b": vector(40), "g": vector(40), "c": vector(40), "g24": vector(24), "c24": vector(24), "stack": rows(rng, 3, 8, 5)}
    steps = [Step("embed", {"table0": "table", "table1": "other", "gain": "g24", "shift": "c24"}, {"fields": "tokens,positions", "eps": 0.1}, "x"),
             Step("linear", {"x": "x", "weight": "w", "bias": "b"}, {}, "y"), Step("heads", {"x": "x"}, {"heads": 3}, "h")]
    end = {"embed": [],
           "linear": [Step("linear", {"x": "x", "weight": "w", "bias": "b", "residual": "y", "gain": "g", "shift": "c"}, {"activation": "gelu", "eps": 0.1}, "z")],
           "pointwise": [Step("pointwise", {"x": "y", "bias": "b", "residual": "y", "gain": "g", "shift": "c"}, {"activation": "gelu", "eps": 0.1}, "z")],
           "scale": [Step("scale", {"x": "y"}, {"factor": -0.5}, "z")],
           "attention": [Step("attention", {"q": "h", "k": "h", "v": "h"}, {"scale": 0.3}, "o"), Step("join", {"x": "o"}, {}, "z")],
           "headwise": [Step("headwise", {"x": "h", "weight": "stack"}, {}, "o"), Step("join", {"x": "o"}, {}, "z")],
           "columns": [Step("columns", {"x": "y"}, {"lo": 8, "hi": 24}, "z")]}
    scored = [Step("scores", {"q": "h", "k": "h"}, {"scale": 0.3}, "s"), Step("softmax", {"x": "s"}, {}, "p"),
              Step("values", {"p": "p", "v": "h"}, {}, "o"), Step("join", {"x": "o"}, {}, "z")]
    steps += end.get(kernel, scored)
    return Program(steps, constants, steps[-1].output if kernel != "embed" else "x")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_its_meaning(kernel, rng):
    program = alone(kernel, rng)
    assert kernel in [step.kernel for step in program.steps]
    for step, found, exact in program.trace(RAGGED):
        assert found.shape == exact.shape and relative(found, exact) < 1e-6, step
    assert relative(program.run(RAGGED), program.exact(RAGGED)) < 1e-6


def test_meanings_by_hand():
    """The float64 readings, on numbers that one can check."""
    one = Dense.pack(np.array([[1, 0], [0, 2]], np.float32))
    steps = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"), Step("heads", {"x": "x"}, {"heads": 1}, "h"),
             Step("attention", {"q": "h", "k": "h", "v": "h"}, {"scale": np.log(3)}, "o"), Step("join", {"x": "o"}, {}, "y"),
             Step("linear", {"x": "y", "weight": "w", "bias": "b"}, {}, "z")]
    program = Program(steps, {"E": Dense.pack(np.eye(2, dtype=np.float32)), "w": one, "b": np.array([0, 1], np.float32)}, "z")
    wanted = [[0.75, 1.5], [0.25, 2.5], [1, 1]]              # weights 3 : 1 on the token itself; the last is alone
    np.testing.assert_allclose(program.exact([[0, 1], [0]]), wanted, rtol=1e-12)
    np.testing.assert_allclose(program.run([[0, 1], [0]]), wanted, rtol=1e-6)
    np.testing.assert_allclose(program.exact([[1]], {"b": np.zeros(2)}), [[0, 2]])


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
    program.run([[1]])                                       # another size in between
    for other in (program, again): assert np.array_equal(other.run(RAGGED), kept)
    assert np.array_equal(first, kept), "a later call wrote into an earlier result"


@pytest.mark.parametrize("layer", LAYERS)
def test_threads_share_a_program(weights, layer):
    program = bert_program(CONFIG, weights, layer)
    batches = [[list(range(3, 3 + n)) for n in lengths] for lengths in ([5, 1, 17], [20, 20, 19, 3], [2], [8, 8])]
    wanted, wrong = [program.run(batch) for batch in batches], []

    def work(offset):
        for i in range(40):
            at = (i + offset) % len(batches)
            if not np.array_equal(program.run(batches[at]), wanted[at]): wrong.append(at)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong


# ---- memory

def wide(weights, layer, pack=Dense.pack):
    """Large enough for Python's own objects not to count."""
    config = CONFIG | {"hidden_size": 240, "intermediate_size": 480, "max_position_embeddings": 400}
    return bert_program(config, arrays(config), layer, pack)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("format", ["dense", "lowrank"])
def test_the_planned_peak_is_what_a_call_allocates(weights, layer, format):
    program = wide(weights, layer, FORMATS[format])
    batch = Batch([np.full(n, 3) for n in (400, 1, 390, 57, 220)])
    assert abs(peak(program, batch) / program.peak_bytes(batch) - 1) < 0.01
    assert program.peak_bytes(batch) == program.peak_bytes((1068, 400**2 + 1 + 390**2 + 57**2 + 220**2))


def test_a_fused_layer_needs_no_more_than_what_is_alive(weights):
    """The widest moment: x, the joined q, k, v and the mixed heads; or x, the hidden features and the output."""
    n, hidden = 24 + 8, 40 + 8                               # numbers of a row in whole cache lines
    program = bert_program(CONFIG, weights)
    assert program.peak_bytes((100, 0)) == 100 * 4 * max(n + 80 + n, n + hidden + n) + 128


def test_calls_leave_nothing_behind(weights):
    program, batches = bert_program(CONFIG, weights), [Batch([list(range(n))]) for n in range(1, 20)]
    arrays_only = [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]    # Python keeps some freed tuples itself
    held = lambda: sum(t.size for t in tracemalloc.take_snapshot().filter_traces(arrays_only).traces)
    for batch in batches: program.run(batch)
    tracemalloc.start()
    try:
        for i in range(200): program.run(batches[i % len(batches)])
        gc.collect()
        assert held() == 0
    finally: tracemalloc.stop()


def test_buffers_begin_on_cache_lines(weights):
    program = bert_program(CONFIG, weights, unfused_layer)
    assert all(at % 64 == 0 for at in program.schedule.plan(23, 315).offsets)
    assert program.run(RAGGED).ctypes.data % 64 == 0


def test_a_pass_writes_over_what_nobody_reads_later(rng):
    steps = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, "a"), Step("pointwise", {"x": "a"}, {"activation": "gelu"}, "b"),
             Step("scale", {"x": "b"}, {"factor": 2.0}, "c"), Step("pointwise", {"x": "c", "residual": "c"}, {}, "d"),
             Step("columns", {"x": "d"}, {"lo": 0, "hi": 16}, "e"), Step("scale", {"x": "d"}, {"factor": 3.0}, "f"),
             Step("linear", {"x": "f", "weight": "w"}, {}, "g"), Step("heads", {"x": "e"}, {"heads": 2}, "h"),
             Step("attention", {"q": "h", "k": "h", "v": "h"}, {}, "i"), Step("join", {"x": "i"}, {}, "j"),
             Step("pointwise", {"x": "j", "residual": "g"}, {}, "k")]
    program = Program(steps, {"E": Dense.pack(rows(rng, 26, 32)), "w": Dense.pack(rows(rng, 32, 16))}, "k")
    home = dict(zip("abcdefghijk", program.schedule.home, strict=True))
    assert home["a"] == home["b"] == home["c"] != home["d"] == home["e"]     # c is the residual of d
    assert home["f"] != home["d"] and home["k"] == home["i"]                 # e still shows d; j is a view of all of i
    assert relative(program.run(RAGGED), program.exact(RAGGED)) < 1e-6
