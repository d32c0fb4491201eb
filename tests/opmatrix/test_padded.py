"""Padded readings of kernels, patterns and terms against their meanings, and what has none."""

import numpy as np
import pytest
from alone import alone
from padded import run_padded
from programs import Writer
from terms_of_rows import random_term

from formats import Dense
from formats.core.errors import InputError
from formats.core.reductions import HOW
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.nodes import by_distance, join, keep_top, product, related, symbol, turn
from opmatrix.algebra.operators import at_distances, const, given, heads, pick, relu, row, scan, tanh, weight
from opmatrix.algebra.positions.patterns import causal, coarse, everyone, hubs, mask, scattered, sequence, window
from opmatrix.algebra.shapes import Shape, T
from opmatrix.exports.program_graph import read_program
from opmatrix.inference.pooling import LAST
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Rows
from opmatrix.runtime.declarations.padded import Unpadded
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step

RAGGED = [[3, 4, 5, 6, 7], [8], list(range(9, 26))]
# Kernels that read a session's caches and states, or all sequences at once:
REFUSED = {"append", "attention_cached", "fold_batch", "keep_rows", "carried_rows", "carried_scan"} | {
    "keep_states",
    "carried_recurrent",
}
WIDTH, HEADS = 12, 3
TABLE = np.random.default_rng(3).random((9, 9)) < 0.4
PATTERNS = {
    "sequence": sequence,
    "causal": sequence & causal,
    "window": sequence & window(3),
    "causal window": sequence & causal & window(2),
    "hubs": sequence & (window(1) | hubs(2)),
    "scattered": sequence & (window(0) | scattered(3)),
    "coarse": sequence & coarse(window(1) | hubs(1), 4),
    "mask": sequence & mask(TABLE, 4),
}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def begun(rng):
    """A writer whose value h0 is a row for each token."""
    write = Writer({})
    write.constants["E"] = Dense.pack(rng.standard_normal((26, WIDTH), np.float32))
    write.step("embed", {"fields": "tokens"}, table0="E")
    return write


def interpreted(write, term, values):
    """The program of a term over values that are all h0."""
    text, arrays = write_term(term, {value: k for k, value in enumerate(values)})
    constants = {f"c{k}": np.asarray(data.array, np.float32) for k, data in enumerate(arrays)}
    write.constants |= constants
    operands = {f"x{k}": "h0" for k in range(len(values))} | {name: name for name in constants}
    last = write.step("interpret", {"term": text}, **operands)
    return Program(write.steps, write.constants, last)


def compare(program, left=False):
    """The padded reading is the meaning, but for roundings in float64 of values of this size."""
    rows, wanted = run_padded(program, RAGGED, left), program.exact(RAGGED, rounded=False)
    assert rows.shape == wanted.shape
    np.testing.assert_allclose(rows, wanted, rtol=1e-8, atol=1e-8 * abs(wanted[np.isfinite(wanted)]).max())


@pytest.mark.parametrize("left", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_padded_reading_is_the_meaning(name, left, rng):
    program = alone(name, rng)
    assert name in [step.kernel for step in program.steps]
    if name in REFUSED:
        with pytest.raises(Unpadded):
            run_padded(program, RAGGED, left)
    else:
        compare(program, left)


def test_every_kernel_declares_a_padded_reading():
    assert all(kernel.padded for kernel in KERNELS.values())


def attending(name, shared, rng):
    """A program of attention under a pattern, with a table by distance; so many heads of keys."""
    write, where = begun(rng), PATTERNS[name]
    cut = write.step("columns", {"lo": 0, "hi": WIDTH // HEADS * shared}, x="h0")
    q, k = write.step("heads", {"heads": HEADS}, x="h0"), write.step("heads", {"heads": shared}, x=cut)
    tables = {f"mask{i}": f"mask{i}" for i, _ in enumerate(where.data)}
    write.constants |= {f"mask{i}": data.array.astype(np.float32) for i, data in enumerate(where.data)}
    write.constants["near"] = rng.standard_normal((HEADS, 7), np.float32)
    seen = {"scale": 0.4, "where": where.text}
    last = write.step("join", x=write.step("attention", seen, q=q, k=k, v=k, bias="near", **tables))
    return Program(write.steps, write.constants, last)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("shared", [1, HEADS])
def test_attention_sees_what_its_pattern_says(name, shared, rng):
    compare(attending(name, shared, rng))


def pooling(how, rng):
    """A program that pools the rows of each sequence."""
    write = begun(rng)
    last = write.step("pool", {"how": how}, x="h0")
    return Program(write.steps, write.constants, last)


@pytest.mark.parametrize("how", HOW)
def test_pooling_leaves_padding_out(how, rng):
    for left in (False, True):
        compare(pooling(how, rng), left)


def attending_once(end, rng):
    """A program in which one query of each sequence, turned by its position, sees a window."""
    write = begun(rng)
    write.constants |= {name: rng.standard_normal((26, 2), np.float32) for name in ("cos", "sin")}
    k = write.step("heads", {"heads": HEADS}, x="h0")
    q = write.step("heads", {"heads": HEADS}, x=write.step("pool", {"how": end}, x="h0"))
    turned = write.step("rotate", {"rows": end}, x=q, cos="cos", sin="sin")
    once = write.step("attend_once", {"where": "sequence & window(3)", "query": end}, q=turned, k=k, v=k)
    last = write.step("join", x=once)
    return Program(write.steps, write.constants, last)


@pytest.mark.parametrize("end", ["first", "last"])
def test_one_query_of_each_sequence_attends(end, rng):
    for left in (False, True):
        compare(attending_once(end, rng), left)


# ---- terms


@pytest.mark.parametrize("seed", range(30))
def test_a_random_term_of_rows_is_read_as_it_means(seed):
    rng = np.random.default_rng(seed)
    compare(interpreted(begun(rng), *random_term(rng, WIDTH)))


x = symbol("x0", Shape(), Shape(1, T, WIDTH), ())
q = x @ heads(HEADS)
COLUMNS = np.random.default_rng(6).standard_normal((HEADS, WIDTH // HEADS, 7))
NEAR = np.random.default_rng(4).standard_normal((HEADS, 9))
TERMS = {
    **{f"members, {over.__name__}": product(related("members"), x, over) for over in (monoids.sum, monoids.mean)},
    "members, max": product(related("members"), x, monoids.max),
    "members, logsumexp": product(related("members_by_root"), x, monoids.logsumexp),
    "picked": row(x @ pick("first"), x @ pick("last")),
    **{
        f"scan, {over.__name__}{', whole' * (where is sequence)}": scan(x @ tanh, x, over, where)
        for over in (monoids.sum, monoids.max, monoids.logsumexp, monoids.mean)
        for where in (sequence & causal, sequence)
    },
    "running sum": scan(const(1.0), x),
    "by distances": product((q @ at_distances(COLUMNS)) @ tanh, q, monoids.softmax, sequence) @ join(HEADS),
    "ties": keep_top(x, x @ relu, 7),
    "fields": x + given("positions", 26) @ weight(np.ones((26, WIDTH))),
    "distance": product(product(q, turn(q)) + by_distance(NEAR, 4), q, monoids.softmax, sequence) @ join(HEADS),
    **{
        f"scores, {over.__name__}": product(product(x, turn(x)) @ tanh, x, over, sequence & causal)
        for over in (
            monoids.sum,
            monoids.mean,
            monoids.max,
            monoids.min,
            monoids.sumsq,
            monoids.logsumexp,
            monoids.softmax,
            monoids.moments,
            monoids.rectify,
        )
    },
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_in_which_rows_meet_is_read_as_it_means(name, rng):
    for left in (False, True):
        compare(interpreted(begun(rng), TERMS[name], [x]), left)


# ---- what has no reading


SCORES = product(x, turn(x))
REFUSALS = {
    "all rows of a batch": (product(SCORES, x, monoids.max, everyone), "lets rows of one sequence see another"),
    "a monoid of any number of tokens": (product(SCORES, x, monoids.topk(2), sequence), "any number of tokens at once"),
    "a relation of a batch": (product(related(relation("edges", "T", "T")), x), "which only a batch of this project"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_term_without_a_reading_is_refused_with_its_step(name, rng):
    term, said = REFUSALS[name]
    with pytest.raises(InputError, match=rf"^step h1 = interpret: .*{said}.*: it cannot be exported$"):
        read_program(interpreted(begun(rng), term, [x]))


def test_a_kernel_without_a_reading_and_an_input_are_refused(rng, monkeypatch):
    @kernel(prices={})
    class plain(Arguments):
        """Rows as they are."""

        def run(out, x: Rows):
            out[...] = x

        def shape(a) -> Rows:
            return Rows(a.x.cols)

        def reference(a):
            return a.x

        def bound(a):
            return np.zeros(1)

        def cost(a, out, extents):
            return []

    monkeypatch.setitem(KERNELS, "plain", plain)
    write = begun(rng)
    last = write.step("plain", x="h0")
    with pytest.raises(InputError, match=r"^step h1 = plain: this kernel declares no padded reading: it cannot be"):
        read_program(Program(write.steps, write.constants, last))
    port = Port("features", "V", WIDTH)
    program = Program([Step("scale", {"x": "features"}, {"factor": 2.0}, "y")], {}, "y", inputs=[port])
    with pytest.raises(InputError, match=r"^input features.*: an export takes token ids alone"):
        read_program(program)


# ---- names


SPEAKS = {"pooling": LAST.described(), "config": {"vocab_size": WIDTH}}
SCORES_TEXTS = {"scoring": {"labels": ["yes"], "activation": "identity", "kinds": False}}


@pytest.mark.parametrize(
    "how, meta, name",
    [
        ("", {}, "last_hidden_state"),
        ("", SPEAKS, "logits"),
        ("mean", {}, "sentence_embedding"),
        ("first", SCORES_TEXTS, "logits"),
    ],
)
def test_an_output_has_the_name_that_runtimes_know(how, meta, name, rng):
    write = begun(rng)
    last = write.step("pool", {"how": how}, x="h0") if how else write.step("scale", {"factor": 2.0}, x="h0")
    read = read_program(Program(write.steps, write.constants, last, meta))
    sizes = ("batch", WIDTH) if how else ("batch", "length", WIDTH)
    assert {output: value.shape for output, value in read.outputs.items()} == {name: sizes}
    assert [*read.inputs] == ["input_ids", "attention_mask"]


def test_several_outputs_keep_their_names_and_kinds_are_asked_for_where_they_are_read(rng):
    write = begun(rng)
    write.constants["K"] = Dense.pack(rng.standard_normal((2, WIDTH), np.float32))
    kinds = write.step("embed", {"fields": "kinds"}, table0="K")
    read = read_program(Program(write.steps, write.constants, {"rows": "h0", "kinds": kinds}))
    assert [*read.outputs] == ["rows", "kinds"] and [*read.inputs][-1] == "token_type_ids"
