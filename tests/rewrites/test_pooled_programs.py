"""Programs that give a row a sequence: pooled as checkpoints say, or of one token alone, whose other rows vanish behind
the last attention."""

import numpy as np
import pytest
import standin
from searched import KINDS, RAGGED, model, relative, structure

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoids import max as largest
from opmatrix.algebra.monoids import mean, softmax
from opmatrix.algebra.operators import (
    at_distances,
    attention,
    const,
    gelu,
    given,
    heads,
    pick,
    product,
    relation,
    rotary,
    row,
    unit_length,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.algebra.term import formula
from opmatrix.inference.pooling import MODES, Pooling
from opmatrix.runtime.program import Program
from rewrites import optimize
from rewrites.egraph.layers import parts
from rewrites.explain.derivations.chain import derive_chain
from rewrites.laws import EXACT_LAWS
from rewrites.verify import unrounded, verify_steps

ROWS_ONLY = model()


def program(operator, kind="exact", batch=RAGGED):
    found = structure(operator, *KINDS[kind], batch=batch)
    return (*found.program({}), found)


@pytest.mark.deep(every=24)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "modes, normalise", [*(((mode,), True) for mode in MODES), (("mean",), False), (("mean", "max"), True)], ids=str
)
def test_a_program_pools_as_numpy_does(modes, normalise, kind, tmp_path):
    """By the pooling of rows, which programs of rows are still embedded with."""
    pooling = Pooling(modes, normalise)
    made, emitter, found = program(ROWS_ONLY @ pooling.operator(), kind)
    wanted = pooling(dense(ROWS_ONLY, RAGGED), RAGGED.starts)
    assert made.pooled and made.run(RAGGED).shape == wanted.shape
    assert relative(made.run(RAGGED), wanted) < 3e-6
    assert relative(made.exact(RAGGED, unrounded(found, emitter)), wanted) < 1e-12
    verify_steps(made, [RAGGED])
    made.save(tmp_path / "p")
    assert (Program.load(tmp_path / "p").run(RAGGED) == made.run(RAGGED)).all()


def test_a_pooled_program_has_the_steps_of_rows_and_at_most_three_more():
    rows, pooled = (program(operator)[0] for operator in (ROWS_ONLY, ROWS_ONLY @ Pooling().operator()))
    lines = [str(each).splitlines()[1:-1] for each in (rows, pooled)]
    assert lines[1][: len(lines[0])] == lines[0] and len(lines[1]) == len(lines[0]) + 1
    assert not rows.pooled and (rows.vectors(RAGGED) == Pooling()(rows.run(RAGGED), RAGGED.starts)).all()
    np.testing.assert_allclose(np.linalg.norm(pooled.vectors(RAGGED), axis=1), 1, rtol=1e-6)


def test_sentences_in_groups_are_as_if_alone():
    """A recording serves any number of sequences with as many rows, and groups write their own rows."""
    made = program(ROWS_ONLY @ Pooling().operator())[0]
    rng = np.random.default_rng(0)
    for lengths in ([12] * 64, [1] * 40, [3, 1, 8], [8, 3, 1], [12], [6, 6], *rng.integers(1, 12, (5, 30)).tolist()):
        batch = Batch([rng.integers(0, 40, n) for n in lengths])
        alone = np.concatenate([made.run(one) for one in batch])
        np.testing.assert_allclose(made.run(batch), alone, rtol=0, atol=2e-6)
    scripts = made.schedule.segments[0].scripts
    assert len({(rows, workers) for rows, _, workers in scripts}) == len(scripts)
    assert made.peak_bytes(batch) > 0


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["cls", "lasttoken"])
def test_few_scripts_serve_a_stream_of_fresh_lengths(mode):
    """Where kernels have a row a sequence, a script is for a power of two of them: it writes the rows of those that
    there are, in every group, and no others."""
    made = program(ROWS_ONLY @ Pooling((mode,)).operator())[0]
    rng, recorded = np.random.default_rng(0), made.schedule.segments[0]
    for lengths in (
        [1] * 40,
        [3, 1, 8],
        [3, 1, 8, 1],
        [6, 6],
        [12],
        *(rng.integers(1, 12, rng.integers(30, 90)) for _ in range(12)),
    ):
        batch = Batch([rng.integers(0, 40, n) for n in lengths])
        alone = np.concatenate([made.run(one) for one in batch])
        np.testing.assert_allclose(made.run(batch), alone, rtol=0, atol=2e-6)
    assert recorded.counted and all(many & (many - 1) == 0 or many == rows for rows, many, _ in recorded.scripts)
    assert made.peak_bytes(batch) > 0


# ---- one token that is read


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("mode", ["cls", "lasttoken"])
def test_behind_the_last_attention_there_are_only_rows_that_are_read(mode):
    made, emitter, found = program(ROWS_ONLY @ Pooling((mode,)).operator())
    calls = made.schedule.calls
    at = next(i for i, call in enumerate(calls) if call.kernel.name == "attend_once")
    behind = [call for call in calls[at + 1 :] if not call.kernel.view]
    assert len(behind) > 3 and {call.shape.space for call in behind} == {made.schedule.calls[at].shape.space}
    assert not any(call.kernel.name == "attention" for call in calls[at:])
    assert "pick_queries" in str(derive_chain(found, EXACT_LAWS)) and "pick_before" in found.fired
    assert (
        relative(made.exact(RAGGED, unrounded(found, emitter)), dense(ROWS_ONLY @ Pooling((mode,)).operator(), RAGGED))
        < 1e-12
    )


def test_a_head_is_of_the_rows_that_are_read():
    head = weight(np.random.default_rng(1).normal(size=(24, 50)))
    term = ROWS_ONLY @ pick("last") @ (head + const(np.arange(50.0))) @ gelu
    made, emitter, found = program(term)
    assert made.schedule.calls[-1].shape.space == made.schedule.calls[made.schedule.result].shape.space
    assert made.run(RAGGED).shape == (3, 50)
    assert relative(made.exact(RAGGED, unrounded(found, emitter)), dense(term, RAGGED)) < 1e-12


def test_parts_are_those_of_rows():
    """What is picked belongs to the layer that it is picked of; what is pooled is a part of its own."""
    assert len(parts(ROWS_ONLY @ pick("last") @ unit_length())) == len(parts(ROWS_ONLY))
    assert len(parts(ROWS_ONLY @ Pooling().operator())) == len(parts(ROWS_ONLY)) + 1


# ---- relations of a batch

EDGES = relation("edges", "T", "T")


def graph_layer(over, nodes=7, width=6):
    """GraphSAGE (Hamilton et al. 2017): a node beside what its neighbours are together."""
    rng = np.random.default_rng(0)
    features, W = weight(rng.normal(size=(nodes, width))), weight(rng.normal(size=(2 * width, width)))
    return features @ formula(lambda x: row(x, product(given(EDGES), x, over=over)) @ W) @ gelu


def nodes(count=7, seed=0):
    rng = np.random.default_rng(seed)
    links = rng.normal(size=(count, count)) * (rng.random((count, count)) < 0.4) + np.eye(count)
    return Batch([range(count)], relations={"edges": links})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", [mean, largest], ids=str)
def test_a_layer_of_a_graph(over, kind):
    batch, term = nodes(), graph_layer(over)
    made, emitter, found = program(term, kind, batch)
    assert "link" in [step.kernel for step in made.steps]
    assert relative(made.exact(batch, unrounded(found, emitter)), dense(term, batch)) < 1e-12
    assert relative(made.run(batch), dense(term, batch)) < 1e-5
    verify_steps(made, [batch])
    other = nodes(seed=3)  # other entries, another number of them
    assert relative(made.run(other), dense(term, other)) < 1e-5


@pytest.mark.parametrize(
    "batch, words",
    [
        (Batch([range(7)]), "relation edges: T × T: the batch has no relation of this name"),
        (
            Batch([range(7)], relations={"edges": np.eye(6)}),
            "relation edges: T × T: it is 6 × 6, but space T has 7 rows",
        ),
    ],
)
def test_a_relation_that_does_not_fit_is_said(batch, words):
    made = program(graph_layer(mean), batch=nodes())[0]
    with pytest.raises(ValueError, match=words):
        made.run(batch)


@pytest.mark.deep
def test_a_pick_that_has_no_single_entry_is_said():
    made = program(
        ROWS_ONLY @ pick(relation("seen", "T", "T")), batch=Batch([[3, 4, 5]], relations={"seen": np.eye(3)[::-1]})
    )[0]
    found = made.run(Batch([[3, 4, 5]], relations={"seen": np.eye(3)[::-1]}))
    np.testing.assert_allclose(found, dense(ROWS_ONLY, Batch([[3, 4, 5]]))[::-1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="seen: T × T: row 1 of 3 in space T has 0 entries: a pick takes"):
        made.run(Batch([[3, 4, 5]], relations={"seen": np.diag([1, 0, 1])}))


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_another_order_keep_their_positions(kind):
    """Attention and rotations of kernels take row i for token i: before a pick they are computed of all rows, behind it
    refused."""
    rng, swapped = np.random.default_rng(0), pick(relation("swapped", "T", "T"))
    Q, K, V = (weight(rng.normal(size=(24, 24)) / 5) for _ in range(3))
    layer = formula(lambda x: x + attention(Q, K, V, 3, sequence & causal, rotary(9, 8))(x))
    batch = Batch([[3, 4, 5], [6, 7]], relations={"swapped": np.eye(5)[[1, 0, 2, 4, 3]]})
    term = ROWS_ONLY @ layer @ swapped @ gelu
    made, emitter, found = program(term, kind, batch)
    assert relative(made.exact(batch, unrounded(found, emitter)), dense(term, batch)) < 1e-12
    assert relative(made.run(batch), dense(term, batch)) < 1e-5
    for behind in (layer, formula(lambda x: x @ rotary(9, 24))):
        with pytest.raises(
            InputError, match=r"it reads the positions of rows that pick.* has reordered: .* pick after this operator"
        ):
            program(ROWS_ONLY @ swapped @ gelu @ behind, kind, batch)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_another_space_are_picked(kind):
    """A node for some of the tokens, one of them twice."""
    term = ROWS_ONLY @ pick(relation("nodes", "V", "T")) @ weight(np.random.default_rng(0).normal(size=(24, 7)))
    batch = Batch([[3, 4, 5], [6]], relations={"nodes": np.eye(4)[[3, 0, 0, 2, 1]]})
    made, emitter, found = program(term, kind, batch)
    assert made.space == "V" and relative(made.exact(batch, unrounded(found, emitter)), dense(term, batch)) < 1e-12
    assert relative(made.run(batch), dense(term, batch)) < 1e-5


def picked_attention(queries, keys, where=sequence & causal, width=24):
    """Attention over a model's rows, of which queries or keys are picked."""
    Q = weight(np.random.default_rng(0).normal(size=(24, 24)) / 5)
    split = formula(lambda x: x @ Q @ heads(24 // width))

    def attend(x):
        q, k = x if queries is None else x @ queries, x if keys is None else x @ keys
        mixed = product((q @ split) @ (k @ split).T, k @ split, over=softmax, where=where)
        return mixed @ heads(24 // width).T @ gelu

    return formula(attend)


PLACED = {
    "queries": picked_attention(pick("last"), None),
    "queries of heads": picked_attention(pick("first"), None, sequence, 8),
    "keys": picked_attention(None, pick("first")),
    "both": picked_attention(pick("last"), pick("first"), sequence & window(2)),
    "rotated": pick("last") @ gelu @ rotary(15, 24) @ gelu,
}


@pytest.mark.parametrize("name", PLACED)
def test_picked_rows_keep_their_positions(name):
    """A buffer does not say where picked rows stood, so a step that reads their positions picks them itself."""
    made, _, _ = program(ROWS_ONLY @ PLACED[name])
    for batch in (RAGGED, Batch([[3, 4, 5], [6]])):
        assert relative(made.run(batch), dense(ROWS_ONLY @ PLACED[name], batch)) < 1e-5


def test_rows_are_not_picked_before_they_have_a_column_for_each_row():
    """Columns by distance are of all tokens, whichever rows are picked behind."""
    tables = at_distances(np.random.default_rng(0).normal(size=(1, 24, 5)))
    assert tables.row_linear and tables.selective and not tables.row_wise and rotary(9, 24).row_wise
    backwards = Batch([[3, 4, 5]], relations={"swapped": np.eye(3)[::-1]})
    for rows, batch in ((pick("last"), RAGGED), (pick(relation("swapped", "T", "T")), backwards)):
        term = formula(lambda x, rows=rows: product((x @ tables) @ gelu @ rows, x))
        assert relative(program(ROWS_ONLY @ term, batch=batch)[0].run(batch), dense(ROWS_ONLY @ term, batch)) < 1e-5


def test_what_no_kernel_computes_of_sequences_is_read():
    term = ROWS_ONLY @ pick("last") @ formula(lambda x: (x + x @ gelu) + (x @ weight(np.ones((24, 1))) @ gelu))
    made, emitter, found = program(term, "imported")
    assert "row_term" in [step.kernel for step in made.steps] and made.pooled
    assert relative(made.exact(RAGGED, unrounded(found, emitter)), dense(term, RAGGED)) < 1e-12
    assert relative(made.run(RAGGED), dense(term, RAGGED)) < 1e-5


@pytest.mark.deep
def test_a_layer_of_a_graph_is_optimized(savings_known):
    """The batch with its relation stands for all, as nobody draws another; columns side by side stay so at shrunken
    sizes."""
    batch = nodes(40)
    found = optimize(graph_layer(mean, 40), workload=batch, machine=standin.machine(), rounds=3)
    assert found.points[0].verified and found.workload.verify is batch and found.points[0].stated_error < 1e-5
