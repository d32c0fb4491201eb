"""Forward and backward on virtual ranks: gradients are one rank's, and what is counted is what the formulas say, for
every strategy, pairs of them, and random models on random meshes."""
import numpy as np
import pytest
import sympy
from partitioned import BERT, GPT2, LLAMA, TABLES, advised, ids_of, made, random_axes, random_config

from formats.core.errors import InputError
from opmatrix.batch import Batch
from opmatrix.partitions.booked import add_up
from opmatrix.partitions.feeds import Feed
from opmatrix.split.mesh import Mesh
from opmatrix.training.backward_ranks import run_backward
from opmatrix.training.backward_split import BackwardSplit
from opmatrix.training.pullback import pullback
from opmatrix.training.step_costs import BackwardBooked

ONE = dict(num_hidden_layers=1)
EVERY = "forward", "kept", "again", "backward"
STRATEGIES = [dict(x=(3, "data")), dict(x=(2, "zero2")), dict(x=(2, "tensor")), dict(x=(2, "sequence")),
              dict(x=(2, "ulysses")), dict(x=(2, "gathered")), dict(x=(2, "sequence-vocabulary")),
              dict(d=(2, "zero1"), x=(2, "tensor-vocabulary")), dict(d=(2, "data"), x=(2, "sequence"))]


def drawn(term, sequences, tokens):
    """Ids and a cotangent, and what one rank makes of them."""
    ids = ids_of(sequences, tokens)
    g = np.random.default_rng(1).normal(size=(sequences, tokens, term.out.cols))
    alone = pullback(term, tokens=True).at(Batch(list(ids)), cotangent=g.reshape(sequences * tokens, -1))
    return ids, g, alone


def at_place(e, mesh, place):
    return int(sympy.sympify(e).xreplace({axis.at: sympy.Integer(r) for axis, r in zip(mesh.axes, place, strict=True)}))


def by_axis(crossings):
    """Sums of what crosses, by operation and axis, of each table."""
    found = {table: {} for table in TABLES}
    for each in crossings:
        for table, sums in found.items(): sums.setdefault((each.op, each.axis), []).append(getattr(each, table))
    return {table: {key: add_up(parts) for key, parts in sums.items()} for table, sums in found.items()}


def differences(ran, mesh):
    """What was counted otherwise than the formulas say; weights that are stored in pieces are the partition's."""
    found, booked = [], ran.booked
    pieces = [axis.name for axis in mesh if axis.strategy.stored > 2]
    flops, values, sums = booked.flops_of(*EVERY), by_axis(booked.crossings_of(*EVERY)), by_axis(booked.reductions())
    for place, meter in ran.meters.items():
        if at_place(flops, mesh, place) != meter.flops: found.append("flops")
        for table in TABLES:
            said, wanted = ({key: at_place(e, mesh, place) for key, e in each[table].items()}
                            for each in (values, sums))
            if said != {key: n for key, n in getattr(meter, table).items() if key[1] not in pieces}: found.append(table)
            if wanted != getattr(ran.summed[place], table): found.append(f"{table} of gradients")
    return found


def off(ran, alone):
    """How far gradients are from one rank's, of the largest."""
    return max(np.abs(ran.gradients[name] - each).max() / max(1, np.abs(each).max())
               for name, each in alone.arrays.items())


@pytest.mark.parametrize("axes", STRATEGIES, ids=str)
def test_gradients_and_counts_of_every_strategy(axes):
    """A family for each, with a policy for each."""
    k = STRATEGIES.index(axes)
    term, mesh = made((GPT2 | dict(n_layer=1), LLAMA | ONE, BERT | ONE)[k % 3]), Mesh.of(**axes)
    ids, g, alone = drawn(term, 4, 5)
    ran = run_backward(term, mesh, Feed(ids), g, keep=("units", "selective", "full")[k // 3])
    assert off(ran, alone) < 1e-13 and differences(ran, mesh) == []


@pytest.mark.parametrize("seed", range(3))
def test_random_models_on_random_meshes(seed):
    """Sizes of cuts that do not divide among them."""
    rng = np.random.default_rng(100 + seed)
    config, axes = random_config(rng), random_axes(rng)
    term = made(config | (dict(n_layer=1) if config["model_type"] == "gpt2" else ONE))
    axes = {name: axis for name, axis in axes.items()
            if not axis[1].layers and axis[1].mixing not in ("ring", "keys")} or dict(x=(2, "data"))
    ids, g, alone = drawn(term, int(rng.integers(2, 5)), int(rng.integers(4, 9)))
    for _ in range(9):
        try:
            mesh = Mesh.of(**axes)
            ran = run_backward(term, mesh, Feed(ids), g, keep=str(rng.choice(["units", "full", "least"])))
        except InputError as refusal:
            if "would copy" in str(refusal): axes = dict(x=(2, "data"))
            else: axes = advised(axes, str(refusal))
            continue
        assert off(ran, alone) < 1e-12 and differences(ran, mesh) == []
        return
    raise AssertionError(axes)


def test_a_crossing_or_a_dual_that_is_left_out_is_found(monkeypatch):
    """Formulas without the last crossing differ from what was counted; cotangents of which each rank has a part, taken
    for the whole, give other gradients."""
    term, mesh = made(GPT2 | dict(n_layer=1)), Mesh.of(x=(2, "tensor"))
    ids, g, alone = drawn(term, 2, 5)
    ran = run_backward(term, mesh, Feed(ids), g)
    whole = BackwardBooked.crossings_of
    with monkeypatch.context() as patched:
        patched.setattr(BackwardBooked, "crossings_of", lambda self, *phases: [*whole(self, *phases)][:-1])
        assert {*differences(ran, mesh)} == {*TABLES}
    right = BackwardSplit.lying

    def wrong(*args):
        demand, out, stored, why = right(*args)
        return demand, None if why == "rows of a matrix" else out, stored, why
    monkeypatch.setattr(BackwardSplit, "lying", wrong)
    assert off(run_backward(term, mesh, Feed(ids), g), alone) > 0.01


def test_dropout_is_the_same_on_every_mesh():
    """Masks are data: whoever holds a part of a value reads that part of its mask."""
    term, rng = made(GPT2 | dict(n_layer=1)), np.random.default_rng(0)
    ids, g, _ = drawn(term, 2, 5)
    shapes = (6, 5, 5), (1, 5, 12), (1, 5, 12)
    masks = {f"dropout {k}": rng.random((2, *shape)) < 0.7 for k, shape in enumerate(shapes)}
    one, two = (run_backward(term, Mesh.of(**axes), Feed(ids, inputs=masks), g, dropout=0.3)
                for axes in ({}, dict(x=(2, "sequence"))))
    for name, each in one.gradients.items(): np.testing.assert_allclose(two.gradients[name], each, atol=1e-12)
    plain = run_backward(term, Mesh.of(), Feed(ids), g)
    assert np.abs(plain.value - one.value).max() > 0.1


def test_stages_are_refused():
    with pytest.raises(InputError, match="virtual ranks run one stage forward and back: leave stages out"):
        run_backward(made(GPT2), Mesh.of(p=(2, "pipeline")), Feed(ids_of(2, 4)), np.ones((2, 4, 12)))
