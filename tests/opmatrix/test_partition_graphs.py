"""A graph by rows with its halo, attention at the edges of one, and rows that are pooled or picked: what ranks count is
what the formulas say, and they give what one rank gives."""

import numpy as np
import pytest
import sympy
from partitioned import BERT, GPT2, crossed, differences, made, value_at
from scipy.sparse import csr_array

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.operators import given, heads, layernorm, pick, product, relation, relu, row, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import among, causal, sequence
from opmatrix.algebra.term import formula
from opmatrix.parallel.cost.formulas import Formulas
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.cost_formulas import Booked
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

EDGES, WIDTH = relation("edges", "V", "V"), 6
RNG = np.random.default_rng(0)
MESHES = [
    Mesh.of(),
    Mesh.of(gp=(3, "rows")),
    Mesh.of(gp=(3, "rows"), tp=(2, "tensor")),
    Mesh.of(cp=(4, "ring")),
    Mesh.of(cp=(2, "ring"), tp=(2, "sequence")),
    Mesh.of(gp=(2, "rows"), dp=(2, "zero3")),
    Mesh.of(pp=(2, "pipeline"), gp=(2, "gathered")),
]
OVER = monoids.sum, monoids.max, monoids.softmax, monoids.logsumexp, monoids.topk(2)


def named(each):
    """What a test of a mesh or a monoid is called."""
    if not isinstance(each, Mesh):
        return getattr(each, "__name__", None)
    return ", ".join(f"{axis.ranks} {axis.strategy.name}" for axis in each) or "one rank"


def drawn(*shape):
    return weight(RNG.normal(size=shape) * 0.4)


def random_edges(count, share=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((count, count)) < share, rng.normal(size=(count, count)), 0)


def layer(over=monoids.mean):
    """What neighbours have, beside what a vertex has, which is behind it in a residual."""
    columns = WIDTH * over.width
    return formula(lambda x: x + row(x, product(given(EDGES), x, over=over)) @ drawn(WIDTH + columns, WIDTH) @ relu)


def network(tail, layers=2):
    term = given("features", WIDTH, "V")
    for each in [tail] * layers:
        term = term @ each
    return term @ drawn(WIDTH, 3)


def planned_graph(term, mesh, edges, **more):
    sizes = BatchSizes(
        1,
        1,
        {"V": edges.shape[0], **{name: n for name, n in more.items() if isinstance(n, int)}},
        dict(edges=edges) | {name: each for name, each in more.items() if not isinstance(each, int)},
    )
    return partition(term, mesh, sizes)


def ran_graph(term, mesh, edges, **more):
    """A plan, what its ranks did, and how far they are off one rank."""
    x = np.random.default_rng(1).normal(size=(edges.shape[0], WIDTH))
    relations = dict(edges=edges) | {name: each for name, each in more.items() if not isinstance(each, int)}
    plan = planned_graph(term, mesh, edges, **more)
    ran = run(plan, Feed(np.zeros((1, 1), np.int64), inputs=dict(features=x[None]), relations=relations))
    wanted = dense(term, Batch(relations=relations, inputs=dict(features=x)))
    np.testing.assert_allclose(ran.value[0, 0], wanted, rtol=1e-12, atol=1e-12)
    return plan, ran


def payload(ran, op="halo"):
    """What each rank hands over, by its coordinates."""
    return {place: sum(n for (kind, _), n in each.payload.items() if kind == op) for place, each in ran.meters.items()}


@pytest.mark.parametrize(
    "over, mesh",
    [*((monoids.mean, mesh) for mesh in MESHES), *((over, mesh) for over in OVER for mesh in MESHES[1:3])],
    ids=named,
)
def test_counts_and_outputs_of_a_graph_network(over, mesh):
    """13 vertices, which no mesh divides. Largest and logarithm of a vertex without edges are not a finite numbers, so
    every vertex has one."""
    edges = random_edges(13) + np.eye(13)
    plan, ran = ran_graph(network(layer(over)), mesh, edges)
    assert not differences(plan, ran.meters)
    if any(axis.strategy.home == "rows" for axis in mesh):
        assert sum(payload(ran).values())


def halo_by_hand(edges, n):
    """Rows that each rank sends, in loops: for every other rank, those of its rows that the other's edges name."""
    owner = {v: r for r, own in enumerate(np.array_split(np.arange(len(edges)), n)) for v in own}
    wanted = {(owner[i], j) for i, j in zip(*np.nonzero(edges), strict=True) if owner[i] != owner[j]}
    return {(r,): sum(owner[j] == r for _, j in wanted) for r in range(n)}


STAR = np.zeros((9, 9))
STAR[1:, 0] = 1
BLOCKS = np.kron(np.eye(3), np.ones((3, 3)))


@pytest.mark.parametrize(
    "edges, sent",
    [
        (BLOCKS, [0, 0, 0]),  # no edge between ranks
        (np.eye(9), [0, 0, 0]),  # a loop at every vertex
        (STAR, [2, 0, 0]),  # the middle goes once to each other rank
        (STAR.T, [0, 3, 3]),  # its edges name every vertex
        (np.vstack([np.zeros((3, 9)), np.ones((6, 9))]), [6, 3, 3]),  # the first rank has no edge
        (np.ones((9, 9)), [6, 6, 6]),  # a row goes to each of two
        (np.zeros((9, 9)), [0, 0, 0]),
    ],
    ids=["blocks", "loops", "star", "star turned", "none of one", "all", "none"],
)
def test_what_crosses_is_the_halo(edges, sent):
    found = formula(lambda x: product(given(EDGES), x, over=monoids.mean))
    plan, ran = ran_graph(given("features", WIDTH, "V") @ found, Mesh.of(gp=(3, "rows")), edges)
    assert [*payload(ran).values()] == [WIDTH * rows for rows in sent]
    assert halo_by_hand(edges, 3) == {(r,): rows for r, rows in enumerate(sent)}
    assert not differences(plan, ran.meters)
    messages = [meter.messages["halo", "gp"] for meter in ran.meters.values()]
    assert [bool(n) for n in messages] == [bool(rows) for rows in sent]


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(seed):
    """Any number of vertices, edges and ranks; what is sent is also counted by hand."""
    rng = np.random.default_rng(seed)
    n, count = int(rng.integers(2, 6)), int(rng.integers(6, 25))
    edges = random_edges(count, rng.choice([0.02, 0.1, 0.5]), seed)
    plan, ran = ran_graph(network(layer(), 1), Mesh.of(gp=(n, "rows")), csr_array(edges))
    assert not differences(plan, ran.meters)
    assert payload(ran) == {place: WIDTH * rows for place, rows in halo_by_hand(edges, n).items()}
    [halo] = [each for _, each in plan.crossings() if each.op == "halo"]
    assert sum(meter.flops for meter in ran.meters.values()) == 2 * WIDTH * np.count_nonzero(edges) + 2 * count * (
        2 * WIDTH * WIDTH + 3 * WIDTH
    )
    assert halo.supersteps == 1


def test_formulas_have_names_for_what_a_relation_says():
    """Without a relation the sizes are symbols, V vertices too, and numbers follow when it is given."""
    term, mesh = given("features", WIDTH, "V") @ formula(lambda x: product(given(EDGES), x)), Mesh.of(gp=(3, "rows"))
    plan = partition(term, mesh, BatchSizes(1))
    [(_, halo)] = plan.crossings()
    assert str(halo.payload) == "6*halo_edges(r_gp)" and str(plan.flops()) == "12*entries_edges(r_gp)"
    assert str(plan.on(halo.payload, (1,))) == "6*halo_edges(1)"
    formulas = Formulas(plan, number=4)
    assert {"entries_edges_gp", "halo_edges_gp", "V"} <= {*formulas.sizes}
    assert str(formulas.flops) == "12*entries_edges_gp" and r"\mathrm{halo}" in sympy.latex(halo.payload)
    with pytest.raises(InputError, match=r"relation edges: the shards of ranks depend on its entries: BatchSizes"):
        partition(term, mesh, BatchSizes(1, 1, {"V": 9})).peak((0,))
    edges = random_edges(9)
    told = planned_graph(term, mesh, edges)
    assert sum(value_at(told, told.flops(), (r,)) for r in range(3)) == 2 * WIDTH * np.count_nonzero(edges)


def test_two_aggregations_share_a_halo():
    """What two products with a relation name is sent once."""

    def both(x):
        return row(*(product(given(EDGES), x, over=over) for over in (monoids.sum, monoids.mean)))

    edges = random_edges(13)
    plan, ran = ran_graph(given("features", WIDTH, "V") @ formula(both), Mesh.of(gp=(3, "rows")), edges)
    assert payload(ran) == {place: WIDTH * rows for place, rows in halo_by_hand(edges, 3).items()}
    assert not differences(plan, ran.meters)


def test_a_formula_without_its_halo_is_noticed(monkeypatch):
    """The control: one crossing less, rows that a rank names itself counted as sent, entries of all ranks."""
    plan, ran = ran_graph(network(layer(), 1), Mesh.of(gp=(3, "rows")), random_edges(13))
    with monkeypatch.context() as patch:
        patch.setattr(type(plan), "crossings", lambda plan, stage: iter(()))
        assert {what for what, *_ in differences(plan, ran.meters)} == {"payload", "wire", "messages"}
    whole = planned_graph(network(layer(), 1), Mesh.of(gp=(3, "gathered")), np.ones((13, 13)))
    assert {"payload", "flops", "peak"} <= {what for what, *_ in differences(whole, ran.meters)}
    with monkeypatch.context() as patch:
        patch.setattr(Booked, "entries", lambda booked, at: sympy.Integer(13 * 13))
        other = planned_graph(network(layer(), 1), Mesh.of(gp=(3, "rows")), random_edges(13))
        assert {what for what, *_ in differences(other, ran.meters)} == {"flops", "peak"}


# ---- spaces of several kinds

BUYS, SHOPS, ROOTS = relation("buys", "U", "V"), relation("shops", "G", "U"), relation("roots", "R", "V")


@pytest.mark.parametrize("mesh", MESHES[:5], ids=named)
def test_relations_between_spaces(mesh):
    """Users take what they buy, shops what their users have: two halos, of pieces of different sizes."""
    rng = np.random.default_rng(3)
    buys, shops = (rng.random((8, 13)) < 0.3).astype(float), np.repeat(np.eye(4), 2, 1)
    users = formula(lambda x: product(given(BUYS), x @ relu, over=monoids.mean))
    sold = formula(lambda x: product(given(SHOPS), x @ drawn(WIDTH, 5), over=monoids.max))
    plan, ran = ran_graph(
        given("features", WIDTH, "V") @ users @ sold, mesh, random_edges(13), U=8, G=4, buys=buys, shops=shops
    )
    assert not differences(plan, ran.meters)


@pytest.mark.parametrize("mesh", MESHES[:6], ids=named)
def test_rows_that_a_relation_picks(mesh):
    roots = np.eye(13)[[12, 0, 5, 5]]
    plan, ran = ran_graph(
        given("features", WIDTH, "V") @ layer() @ pick(ROOTS) @ drawn(WIDTH, 4),
        mesh,
        random_edges(13),
        R=4,
        roots=roots,
    )
    assert not differences(plan, ran.meters)


# ---- attention at the edges


def attend(h, over=monoids.softmax, through=lambda z: z):
    Q, K, V = (drawn(WIDTH, WIDTH) for _ in range(3))

    def mixed(x):
        q, k, v = (x @ each @ heads(h) if h > 1 else x @ each for each in (Q, K, V))
        found = product(through(q @ k.T * 0.5), v, over=over, where=among(EDGES))
        return x + (found @ heads(h).T if h > 1 else found) @ layernorm(1e-5)

    return formula(mixed)


@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.parametrize(
    "h, through",
    [(1, lambda z: z), (2, lambda z: z), (2, lambda z: z @ relu)],
    ids=["one head", "two heads", "behind a function"],
)
def test_attention_on_a_graph(mesh, h, through):
    """Scores at entries alone, one of which is stored as a zero and is seen; a vertex without edges has zeros."""
    edges = csr_array(random_edges(13))
    edges.data[2], found = 0, attend(h, through=through)
    plan, ran = ran_graph(network(found), mesh, edges)
    assert not differences(plan, ran.meters)
    if len(mesh) == 1 and mesh.axes[0].name == "gp":  # keys and values, in two layers
        own = halo_by_hand(edges.toarray() + np.where(edges.toarray() == 0, structure(edges), 0), 3)
        assert payload(ran) == {place: 2 * 2 * WIDTH * rows for place, rows in own.items()}
    if not len(mesh):
        assert plan.on(plan.flops(), ()) == 2 * (2 * 2 * WIDTH * edges.nnz + 3 * 2 * 13 * WIDTH**2) + 2 * 13 * WIDTH * 3


def structure(edges):
    return csr_array((np.ones(edges.nnz), edges.indices, edges.indptr), shape=edges.shape).toarray()


@pytest.mark.parametrize("mesh", MESHES[:5], ids=named)
def test_scores_that_something_else_reads_are_whole(mesh):
    """Numbers of edges are added to scores: all are computed, of keys that are gathered."""

    def mixed(x):
        y = x + product(given(EDGES), x)
        return product(y @ y.T + given(EDGES), y, over=monoids.softmax, where=among(EDGES))

    plan, ran = ran_graph(given("features", WIDTH, "V") @ formula(mixed), mesh, random_edges(13))
    assert not differences(plan, ran.meters)


# ---- embeddings of sentences


def pooled(name, over):
    return formula(lambda x: product(given(name), x, over=over))


POOLED = {
    "mean": pooled("members", monoids.mean),
    "largest": pooled("members", monoids.max),
    "by places": pooled("members_by_place", monoids.sum),
    "by root": pooled("members_by_root", monoids.sum),
    "soft": pooled("members_by_place", monoids.softmax),
    "last": pick("last"),
    "first": pick("first"),
    "mean of last": pooled("last", monoids.mean),
    "both": formula(lambda x: row(x @ pick("last"), product(given("members"), x, over=monoids.mean))),
    "normed": pick("last") @ layernorm(1e-5),
}
SPLIT = [
    Mesh.of(dp=(2, "data")),
    Mesh.of(tp=(2, "sequence")),
    Mesh.of(cp=(3, "ring")),
    Mesh.of(cp=(3, "ulysses")),
    Mesh.of(dp=(2, "zero3"), cp=(2, "ring"), tp=(2, "sequence")),
    Mesh.of(pp=(2, "pipeline"), tp=(2, "tensor")),
]


@pytest.mark.parametrize("mesh", SPLIT, ids=named)
@pytest.mark.parametrize("how", ["mean", "last"])
def test_embeddings_of_sentences(how, mesh):
    sentences(
        made(BERT, num_hidden_layers=1) if how == "mean" else made(GPT2, n_layer=1 + (mesh.stages is not None)),
        how,
        mesh,
    )


@pytest.mark.parametrize("mesh", [SPLIT[2], Mesh.of(cp=(2, "ring"), tp=(2, "sequence"))], ids=named)
@pytest.mark.parametrize("how", POOLED)
def test_every_way_of_pooling(how, mesh):
    """Of rows of a table; cut on two axes, too, where what two ranks carry is merged before it is finished."""
    sentences(drawn(23, 12), how, mesh)


def sentences(model, how, mesh):
    """The plan of a model with its pooling. Raises AssertionError where outputs or counts are off."""
    ids = np.random.default_rng(2).integers(0, 23, (4, 11))
    plan = partition(model @ POOLED[how], mesh, BatchSizes(4, 11))
    ran = run(plan, Feed(ids))
    wanted = dense(model @ POOLED[how], Batch([*ids]))
    np.testing.assert_allclose(ran.value[:, 0, 0], wanted, rtol=1e-11, atol=1e-12)
    assert not differences(plan, ran.meters)
    return plan


@pytest.mark.parametrize("how, columns", [("mean", 13), ("last", 12), ("largest", 12)])
def test_pooling_sends_a_row_a_sentence(how, columns):
    """Of rows that are cut between ranks a carrier crosses for each sentence: a mean's count beside its columns. Of
    sentences that are, nothing."""
    model = made(GPT2, n_layer=1)
    plan = sentences(model, how, Mesh.of(cp=(3, "ring")))
    assert crossed(plan, (0,), "payload")["all_reduce", "cp"] == 4 * columns
    assert not crossed(sentences(model, how, Mesh.of(dp=(2, "data"))), (0,), "payload")


# ---- what is refused


@pytest.mark.parametrize(
    "term, sizes, words",
    [
        (
            network(layer(), 1),
            BatchSizes(1, 1, {"V": 8}, dict(edges=np.eye(9))),
            "relation edges: V × V is 9 × 9, and the sizes are 8 × 8",
        ),
        (network(layer(), 1), BatchSizes(1, 1, {"V": 2}), "mesh: gp has 3 ranks and there are 2 rows: at most 2 ranks"),
        (
            formula(lambda x: product(given(relation("links", "T", "T")), x)),
            BatchSizes(2, 9),
            "relation links: T × T spans all 2 sequences",
        ),
        (
            pick("last") @ given("positions", 4) @ weight(np.eye(4)),
            BatchSizes(2, 9),
            "positions of rows of S is not supported, only of tokens",
        ),
        (
            given("features", WIDTH, "V") @ formula(lambda x: product(x @ x.T, x, where=among(EDGES) & causal)),
            BatchSizes(1),
            "joins a relation and another pattern",
        ),
        (
            formula(lambda x: product(x @ pick("last") @ x.T, x, where=sequence & causal)),
            BatchSizes(2, 9),
            r"scores of S × T where sequence & causal, which is of T × T",
        ),
        (
            given("features", WIDTH, "V") @ formula(lambda x: product(given(EDGES), x, where=among(EDGES))),
            BatchSizes(1),
            "relation edges: V × V under pattern among",
        ),
    ],
)
def test_what_does_not_fit_is_said(term, sizes, words):
    with pytest.raises(InputError, match=words):
        partition(term, Mesh.of(gp=(3, "rows")), sizes, tokens=False)


def test_a_feed_that_does_not_fit_is_said():
    plan, x = planned_graph(network(layer(), 1), Mesh.of(gp=(3, "rows")), np.eye(9)), np.zeros((1, 9, WIDTH))
    with pytest.raises(InputError, match="relation edges: V × V: the feed has no relation of this name"):
        run(plan, Feed(np.zeros((1, 1)), inputs=dict(features=x)))
    with pytest.raises(InputError, match="the feed's is 8 × 9, and the plan is for 9 × 9"):
        run(plan, Feed(np.zeros((1, 1)), inputs=dict(features=x), relations=dict(edges=np.eye(8, 9))))
