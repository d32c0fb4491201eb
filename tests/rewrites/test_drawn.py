"""Random operators through the whole of `optimize`, and what is rare in models that people trained: rows of zeros,
outputs that cancel or are inputs, no arrays, luck in rounding."""

import sys

import numpy as np
import pytest
import standin
from children import ROOT
from random_operators import degenerate_operator, random_operator
from searched import relative, structure

from formats.core.epilogue import UNIT
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import max as largest
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import (
    I,
    centre,
    const,
    exp,
    gelu,
    given,
    heads,
    pick,
    product,
    relation,
    relu,
    row,
    tanh,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, mask, sequence
from opmatrix.algebra.shapes import T
from opmatrix.algebra.term import formula
from rewrites.egraph.layers import outputs
from rewrites.egraph.template import shrunken
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import TURNED, Method
from rewrites.run import optimize
from rewrites.search.search import search
from rewrites.verify import Errors, VerificationError, check_term, unrounded
from rewrites.verify.certificate import as_json_value
from rewrites.verify.differences import Change, ratio
from rewrites.verify.lengths import SAMPLED
from rewrites.verify.nudged import NudgedSums, moved, row_scales
from rewrites.verify.programs import EQUAL, ROUNDING, allowed_rounding, verify_structure
from rewrites.workload.stated import MIN_SENTENCES, worst

sys.path.append(str(ROOT / "benchmarks"))

import fuzz

SEEDS = 3, 6, 10, 12, 13, 15, 29, 39, 59, 107, 893, 1070  # quick ones, by turns exact (even) and not
RNG = np.random.default_rng(0)
BATCH = Batch([[0, 1, 2], [3], [4, 4]], inputs={"x": RNG.normal(size=(6, 4)).astype(np.float32)})
ENTERING = given("x", 4, "T")
TABLE, POSITIONS = RNG.normal(size=(9, 4)), np.r_[np.zeros((1, 4)), RNG.normal(size=(63, 4))]


@pytest.fixture
def quick(monkeypatch):
    """Laws alone are verified by other tests, and what shows beyond some thousand rows is found by
    tests/rewrites/test_lengths.py; a machine that nobody measured."""
    monkeypatch.setattr("rewrites.verify.lengths.MAX_LENGTH", SAMPLED + 100)
    monkeypatch.setattr("rewrites.verify.verify_laws", lambda laws, **told: {"laws": len(laws), "draws": 2, "seed": 0})
    monkeypatch.setattr(fuzz, "machine", standin.machine)


@pytest.mark.deep(every=10)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operators_are_right_or_refused(seed, quick, monkeypatch):
    """What laws save is asked of two."""
    if seed not in SEEDS[:2]:
        standin.know_savings(monkeypatch)
    found = fuzz.drawn_one(seed, 0)
    assert found.outcome not in fuzz.DRAWN_BAD, f"seed {found.seed}: {found.said}"


def test_rare_things_are_drawn():
    models = [random_operator(seed).model for seed in range(60)]
    assert any(isinstance(model, dict) for model in models)
    nodes = {node for model in models if not isinstance(model, dict) for node in model.walk()}
    arrays = [node.args[0] for node in nodes if node.kind.name in ("weight", "const")]
    assert any(not each.array.any() for each in arrays) and {each.name for each in arrays} >= {"W", "b", None}
    assert any(random_operator(seed).lengths == (1,) for seed in range(20))


# ---- results that are operands, constants, one another

DEGENERATE_SEEDS = 1, 7, 13, 45, 137, 231  # of one output and several; the last are constants in heads


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("seed", DEGENERATE_SEEDS)
def test_degenerate_operators_are_right_through_every_door(seed, quick, laws_known):
    """The best program of an exploration, the searched one, that one saved and loaded, and the front."""
    for found in fuzz.through_doors(0, seed, degenerate_operator, fuzz.DOORS):
        assert found.outcome not in fuzz.DRAWN_BAD, f"{found.case}: {found.said}"


def test_degenerate_things_are_drawn():
    """Outputs that are inputs, the same value twice, constants of heads and of other spaces, one column."""
    models = [outputs(degenerate_operator(seed).model) for seed in range(200)]
    several = [model for model in models if len(model) > 1]
    terms = [term for model in models for term in model.values()]
    assert any(len({*model.values()}) < len(model) for model in several)
    assert any(term.kind.name in ("entered", "given") for model in several for term in model.values())
    last = [term.children[1] for term in terms if term.kind.name == "compose"]
    assert {"const", "total", "join", "ones", "place", "cols"} <= {each.kind.name for each in last}
    assert any(term.out.cols == 1 for term in terms) and any(term.out.rows is not T for term in terms)


SPACED = Batch(
    [[0, 1, 2], [3], [4, 4]],
    inputs={"s": RNG.normal(size=(3, 3)).astype(np.float32), "v": RNG.normal(size=(7, 3)).astype(np.float32)},
    relations={"edges": np.ones((2, 7)), "links": np.tri(7)},
)
ROW, TOKENS = const(RNG.normal(size=3)), weight(RNG.normal(size=(5, 3)))
POOLED = product(given("members"), TOKENS)
FORGETTING = {
    "tokens": TOKENS @ ROW,
    "picked": TOKENS @ pick("last") @ ROW,
    "then picked": TOKENS @ ROW @ pick("last"),
    "sequences": given("s", 3, "S") @ ROW,
    "another space": given("v", 3, "V") @ ROW,
    "pooled": POOLED @ ROW,
    "entries": product(given(relation("edges", "R", "V")), given("v", 3, "V")) @ ROW,
    "of a relation alone": product(given(relation("links", "V", "V")), given("v", 3, "V") @ ROW),
    "a constant pooled": product(given("members"), TOKENS @ ROW),
    "heads": TOKENS @ heads(3) @ const(RNG.normal(size=(3, 1, 2))),
    "heads of one row": TOKENS @ heads(3) @ ROW,
    "heads joined again": TOKENS @ heads(3) @ const(2.0) @ heads(3).T,
    "heads that read": TOKENS @ heads(3) @ tanh,
    "of both": {"a": given("v", 3, "V") @ ROW, "b": given("v", 3, "V"), "c": TOKENS @ ROW, "d": TOKENS @ ROW},
}


@pytest.mark.parametrize("name", FORGETTING)
def test_what_forgets_its_rows_or_heads_has_them(name):
    """A constant has the rows of the space, and the heads, of what it stands behind, though it reads nothing of that;
    heads lie side by side."""
    model = FORGETTING[name]
    extents = SPACED.extents(*collect_needs(*outputs(model).values()))
    found, _ = search(model, EXACT_LAWS, standin.machine(), extents).program({})
    for output, term in outputs(model).items():
        wanted, ran = dense(term, SPACED), found.run_all(SPACED)[output]
        assert ran.shape == wanted.shape
        np.testing.assert_allclose(ran, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("name", ["picked", "heads", "tokens", "another space", "heads that read", "of both"])
def test_what_forgets_is_verified(name, quick, laws_known):
    """Each step by a meaning that has as many rows."""
    result = optimize(FORGETTING[name], workload=SPACED, error=0.0, machine=standin.machine(), rounds=1)
    for output, term in outputs(FORGETTING[name]).items():
        given = result.best.program.run_all(SPACED)[output]
        np.testing.assert_allclose(given, dense(term, SPACED), rtol=1e-5, atol=1e-6)


def test_a_constant_of_rows_that_nothing_tells_is_refused():
    model = POOLED @ ROW + POOLED @ const(np.ones(3))
    with pytest.raises(InputError, match=r"a constant row for each row of space S.*put it behind one"):
        search(model, EXACT_LAWS, standin.machine(), SPACED.extents(*collect_needs(model)))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_a_small_number_keeps_its_shape_where_graphs_are_shrunk(shape):
    """A matrix of one number is no row."""
    made = shrunken(Data(np.full(shape, -1e-9)), {}, lambda shape: np.ones(shape))
    assert made.shape == shape and abs(made.array).min() > 1e-3


# ---- rows of zeros, luck, cancellation


def test_nothing_is_off_by_nothing():
    assert ratio([0.0, 1.0, 3.0, 0.0], [0.0, 0.0, 2.0, 5.0]).tolist() == [0.0, np.inf, 1.5, 0.0]
    zeros, rows = np.zeros((2, 3)), np.ones((3, 3))
    assert Errors.of([zeros, rows], [zeros, rows]) == Errors(0.0, 0.0, 5)
    assert Errors.of([zeros + 1, rows], [zeros, rows]).worst_row == np.inf
    assert as_json_value({"worst": np.inf, "mean": np.float64(0.5)}) == {"worst": None, "mean": 0.5}, "as JSON has it"
    assert Errors.of([zeros], [zeros]).relative == 0 and Errors.of([zeros + 1], [zeros]).relative == np.inf


@pytest.mark.parametrize("seed", range(40))
def test_what_is_stated_of_rare_outputs_are_numbers(seed):
    """Sentences of zeros, of one row, without any error, with numbers of any size: what is stated is no NaN, and never
    less than what is seen."""
    rng = np.random.default_rng(seed)
    rows = (
        np.where(rng.random(30) < rng.random(), 0.0, 1.0)[:, None]
        * rng.normal(size=(30, 2))
        * 10.0 ** rng.integers(-30, 30, (30, 1)) ** rng.integers(0, 2)
    )
    rows[0] = 1.0
    noise = np.where(rng.random((30, 1)) < rng.random(), 0.0, rng.normal(size=(30, 2)) * UNIT)
    change = Change.of(
        rows * (1 + noise) + rng.integers(0, 2) * UNIT**2 * rng.normal(size=(30, 2)), rows, np.arange(31)
    )
    single = worst(change.each)
    assert not np.isnan([change.relative, change.surely, change.likely, *change.each]).any()
    assert change.likely >= change.relative and (single is None or single >= change.each.max())
    assert worst(np.zeros(MIN_SENTENCES)) == 0


CANCELS = (I * 1e8 + I) @ weight(np.eye(4)[:, ::-1] * 1.0) - I * 1e8 @ weight(np.eye(4)[:, ::-1] * 1.0)


def test_rows_are_compared_beside_what_they_are_computed_from():
    plain, cancelled, none = (row_scales(ENTERING @ each, [BATCH], EQUAL) for each in (gelu, CANCELS, relu * 0.0))
    size = np.linalg.norm(dense(ENTERING, BATCH), axis=1)
    assert (plain < 3 * size).all() and (cancelled > 1e7 * size).all() and not none.any()


def test_what_cancels_is_verified_and_what_is_wrong_is_not():
    """The program of one form of a model stands for another form, in which numbers of 1e8 cancel; one that is off by a
    share of these does not."""
    found = structure(ENTERING @ weight(np.eye(4)[:, ::-1] * 1.0), batch=BATCH)
    program, emitter = found.program({})
    model = ENTERING @ CANCELS
    wanted = [dense(model, BATCH)]
    verify_structure(program, [BATCH], unrounded(found, emitter), wanted, model)
    with pytest.raises(VerificationError, match="differs from the model"):
        verify_structure(program, [BATCH], unrounded(found, emitter), [wanted[0] + 1.0], model)
    with pytest.raises(VerificationError, match="differs from the model"):
        verify_structure(program, [BATCH], unrounded(found, emitter), [wanted[0] * (1 + 1e-9)])


def test_an_import_that_happens_to_be_exact_forbids_no_rounding():
    model = ENTERING @ weight(RNG.normal(size=(4, 3))) @ tanh @ weight(RNG.normal(size=(3, 3)))
    once = allowed_rounding(UNIT, 0.0, model, [BATCH])
    assert UNIT < once < 100 * UNIT, "what rounding each number once does"
    assert allowed_rounding(1e-3, 0.0, model, [BATCH]) == once < 1e-3, "the same whatever asks"
    assert allowed_rounding(1e-7, 1e-7, model, [BATCH]) == ROUNDING * 1e-7, "an import that rounds is the measure"


@pytest.mark.parametrize("n", [1, 2, 30, 576, 1536])
def test_the_rounding_of_a_sum_of_many_terms_is_foreseen(n):
    """Sums in order in float32, of numbers of which one is far larger, beside the movement of the drawn readings."""
    rng = np.random.default_rng(n)
    x, w = rng.normal(size=(64, n)), rng.normal(size=(n, 8))
    x[:, 0] *= 100
    x, w = x.astype(np.float32), w.astype(np.float32)
    model = given("x", n, "T") @ weight(w.astype(np.float64))
    entered = Batch([[0] * len(x)], inputs={"x": x})
    terms = x[:, :, None] * w
    rounded = terms.cumsum(1, dtype=np.float32)[:, -1]
    measured = np.linalg.norm(rounded - dense(model, entered))
    foreseen = np.linalg.norm(moved(model, [entered], UNIT, NudgedSums))
    assert 1 / 3 < measured / foreseen < 3
    if n > 500:
        assert measured > 4 * np.linalg.norm(moved(model, [entered], UNIT)), "rounding each number once is less"


# ---- whole runs


def whole(model, batch, error=0.0):
    """The result of `optimize`, whose programs give what the model gives."""
    result = optimize(model, workload=batch, error=error, machine=standin.machine(), rounds=1)
    for name, term in outputs(model).items():
        wanted = dense(term, batch)
        for point in result.points:
            off = ratio(
                np.linalg.norm(point.program.run_all(batch)[name].reshape(wanted.shape) - wanted),
                np.linalg.norm(wanted),
            )
            assert off <= max(1e-5, point.stated_error), f"{point.name}: {name}"
    return result


def test_a_layer_of_a_graph(quick, laws_known):
    """Nodes beside the mean of their neighbours: some have none, and of some nothing is left."""
    rng, nodes = np.random.default_rng(1), 200
    edges = (rng.random((nodes, nodes)) < 0.01) * 1.0
    edges[:5] = 0
    beside = formula(lambda x: row(x, product(given(relation("edges", "T", "T")), x, over=mean)))
    layer = weight(rng.normal(size=(nodes, 6))) @ beside @ weight(rng.normal(size=(12, 2))) @ relu
    batch = Batch([range(nodes)], relations={"edges": edges})
    assert not dense(layer, batch).any(1).all(), "some rows are zeros"
    whole(layer, batch, 0.02)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("sentences, error", [([[3]], 0.02), ([[3], [4], [3], [0]], 0.0)], ids=["one", "several"])
def test_sentences_of_one_token(sentences, error, quick, laws_known):
    """Each is a row, which sees itself alone."""
    model, batch = weight(TABLE) @ formula(lambda x: x + product(x @ x.T, x, where=sequence)) @ gelu, Batch(sentences)
    result = optimize(model, workload=batch, error=error, machine=standin.machine(), rounds=1)
    for point in result.points:
        assert relative(point.program.run(batch), dense(model, batch)) <= max(1e-5, error)


def test_rows_of_zeros_at_real_width(quick, laws_known):
    """Tokens that pad, before and behind a product, beside others."""
    rng = np.random.default_rng(4)
    table = rng.normal(size=(40, 384)) * (np.arange(40) > 2)[:, None]
    whole(weight(table) @ weight(rng.normal(size=(384, 384)) / 20) @ relu, Batch([[0], [1, 2, 0], range(40)]), 0.02)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "model",
    [
        ENTERING,
        ENTERING @ heads(1),
        ENTERING @ heads(2) @ heads(2).T,
        ENTERING @ heads(2),
        ENTERING @ (I + gelu),
        {"same": ENTERING, "other": ENTERING @ relu},
    ],
    ids=str,
)
def test_models_without_arrays(model, quick, laws_known):
    whole(model, BATCH)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("order", [1, -1])
def test_one_output_of_tokens_and_one_of_an_input(order, quick, laws_known):
    """Whichever is first."""
    named = {"entering": ENTERING @ relu, "tokens": weight(RNG.normal(size=(5, 3)))}
    whole(dict([*named.items()][::order]), BATCH)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_rows_in_another_order_are_refused_of_any_output(names):
    """Whichever is the longest: what reads their positions is no program, and is said to be none."""
    swapped = pick(relation("swapped", "T", "T"))
    moved = weight(TABLE) @ swapped @ formula(lambda x: product(x @ x.T, x, where=causal))
    model = {"a": moved, "b": weight(TABLE) @ relu @ weight(TABLE.T) @ relu @ weight(TABLE)}
    batch = Batch([[0, 1, 2], [3]], relations={"swapped": np.eye(4)[::-1]})
    with pytest.raises(InputError, match=r"it reads the positions of rows that pick.* has reordered"):
        optimize({name: model[name] for name in names}, workload=batch, error=0.0, machine=standin.machine(), rounds=1)


def test_the_first_output_need_not_read_tokens(quick, laws_known):
    """Tokens are drawn below what another one reads."""
    table = weight(RNG.normal(size=(5, 64)))
    whole(
        {"positions": given("positions", 64) @ weight(RNG.normal(size=(64, 3))), "tokens": table},
        Batch([[1, 2, 3], [4, 4]]),
    )


def test_a_table_that_one_step_gathers_from_twice(quick, laws_known):
    """By two fields, and two leaves with equal numbers."""
    numbers = np.random.default_rng(2).normal(size=(64, 64))
    model = (weight(numbers) + given("positions", 64) @ weight(numbers.copy())) @ weight(numbers[:, :48])
    whole(model, Batch([range(40), range(20)]), 0.05)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("made", ["product", "blocks", "leaf"])
def test_a_table_in_panels_is_what_products_of_its_transpose_read(made, quick, laws_known):
    """A leaf, which both may share; one that is made of several leaves is stored for itself."""
    rng = np.random.default_rng(2)
    A, B, C = (weight(rng.normal(size=shape)) for shape in ((50, 64), (64, 64), (50, 64)))
    table, panels = {"leaf": A, "product": A @ B, "blocks": row(A, C)}[made], Method("int8")
    [lowering, *_] = structure(table @ relu).lowerings
    uses = [use for use in lowering.kernels[1] if lowering.gathers(use)]
    assert table in [lowering.terms[use.weight] for use in uses]
    for use in uses:
        stored, term = lowering.held(use, panels), lowering.terms[use.weight]
        content, numbers = lowering.content(stored), lowering.matrix(use.weight, TURNED)
        assert stored.layout == TURNED and content.method == panels
        assert np.allclose(numbers, dense(term, Batch([range(50)])).T)
        if term in (A, C):
            assert content[:2] == (weight(numbers), "columns")
        else:
            assert content[:2] == (term, TURNED)
    whole(table @ relu @ table.T, Batch([rng.integers(0, 50, 9)] * 3), 0.05)


@pytest.mark.deep
def test_a_weight_that_what_was_proposed_for_its_leaf_does_not_fit(quick, laws_known):
    """Its leaf has inputs in fours, it has three."""
    rng = np.random.default_rng(3)
    model = given("x", 3, "T") @ weight(rng.normal(size=(3, 64))) @ weight(rng.normal(size=(64, 64))) @ relu
    whole(model, Batch([range(40)], inputs={"x": rng.normal(size=(40, 3)).astype(np.float32)}), 0.3)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "model",
    [
        weight(TABLE) @ formula(lambda x: product(x @ x.T, x, over=largest, where=causal)),
        weight(TABLE) @ formula(lambda x: product(x @ x.T, x, where=mask(np.tri(6)) & sequence)),
        weight(TABLE) * 0.0 + given("positions", 64) @ weight(POSITIONS),
        weight(TABLE[:, :1]) @ centre @ gelu + given("positions", 64) @ weight(POSITIONS) @ relu,
    ],
    ids=["rows of other sentences", "a table of positions", "zeros of one token", "some rows of zeros"],
)
def test_other_lengths_than_the_workload_has(model, quick, laws_known):
    whole(model, Batch([[1, 2, 3], [4, 5]]))


@pytest.mark.parametrize(
    "model, said",
    [
        (
            product(given(relation("none", "T", "T")), ENTERING, over=largest),
            "-inf at .*a maximum over no entries is -inf",
        ),
        (ENTERING @ (I * 100.0) @ exp @ (I * 1e-30), "not finite in float32, as intermediate numbers are beyond 3.4e"),
        (ENTERING * 0.0, "at most 0"),
    ],
    ids=str,
)
def test_what_float32_does_not_carry_is_refused(model, said, quick, laws_known):
    batch = Batch([[0] * 3], relations={"none": np.zeros((3, 3))}, inputs={"x": np.full((3, 4), 1.0, np.float32)})
    with pytest.raises(InputError, match=said):
        optimize(model, workload=batch, error=0.0, machine=standin.machine(), rounds=1)


@pytest.mark.parametrize("wide", [-I, I + I, I * 2.0, centre, I @ (I * -0.5)], ids=str)
def test_what_has_as_many_columns_as_it_is_given_is_not_joined(wide):
    """A gate and what it multiplies, and queries and keys."""
    join = [law for law in EXACT_LAWS if law.name.startswith("join")]
    W = weight(RNG.normal(size=(4, 4)))
    for model in (
        formula(lambda x: (x @ wide @ tanh) * (x @ wide)),
        formula(lambda x: (x @ W @ tanh) * (x @ wide)),
        formula(lambda x: product((x @ wide) @ (x @ W).T, x @ wide)),
        const(np.ones(4)) + wide @ W,
    ):
        assert not check_term(ENTERING @ model, join, (1,), 0)
