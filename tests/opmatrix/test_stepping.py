"""Steps of training on virtual ranks and on threads: losses of one rank with one Adam, counts as the formulas say."""

import numpy as np
import pytest
from partitioned import GPT2, LLAMA, ids_of, random_arrays
from threaded_ranks import run_steps
from trained_ranks import without_a_dual

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.autodiff.learning import Adam, cross_entropy
from opmatrix.autodiff.pullback import pullback
from opmatrix.models import build, head
from opmatrix.parallel.cost.step_costs import BackwardBooked
from opmatrix.parallel.cost.timed_step import mesh_of_chunks
from opmatrix.parallel.cost.train_formulas import step_peak
from opmatrix.parallel.launch.counters import train_tallies, unlike_said
from opmatrix.parallel.launch.jobs import Job, drawn_model
from opmatrix.parallel.launch.train_runs import train_plan
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.train.decode_ranks import DecodePlan, decode_virtual
from opmatrix.parallel.train.requested_steps import TrainAsked, TrainPlan
from opmatrix.parallel.train.train_ranks import LossNotFinite, train_virtual

SHARED = LLAMA | dict(hidden_size=8, intermediate_size=6, num_attention_heads=4, num_key_value_heads=2)
TIED = GPT2 | dict(n_embd=8, n_head=4)  # the table of tokens scores them, too
EXPERTS = SHARED | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=1)
RATE, STEPS = 1e-2, 3
IDS, TARGETS = ids_of(4, 5), ids_of(4, 5, seed=3)


def drawn(config, arrays):
    """A model with its loss, whose arrays are drawn where they are not there yet."""
    draw = random_arrays(len(str(config)))

    def at(name, *shape):
        if name not in arrays:
            arrays[name] = draw(name, *shape).array
        return Data(arrays[name], name)

    return build(config, at) @ head(config, at) @ cross_entropy(config["vocab_size"])


@pytest.fixture(scope="module")
def one_rank():
    """The losses of steps of one Adam over whole arrays, by the pullback of the whole term."""

    def losses(config):
        arrays, adam, found = {}, Adam(RATE), []
        for _ in range(STEPS):
            went = pullback(drawn(config, arrays), tokens=True).at(
                Batch(list(IDS), inputs={"targets": TARGETS.reshape(-1, 1)}), cotangent=np.full((20, 1), 1 / 20)
            )
            found.append(went.value.mean())
            arrays = adam.step(arrays, went.arrays)
        return found

    return {id(config): losses(config) for config in (SHARED, TIED, EXPERTS)}


def planned(config, axes, micro_batches=1, **how):
    sizes, asked = BatchSizes(len(IDS) // micro_batches, 5), TrainAsked(RATE, micro_batches=micro_batches, **how)
    mesh = mesh_of_chunks(Mesh.of(**axes), asked.kind, config.get("n_layer") or config["num_hidden_layers"])
    return TrainPlan(partition(drawn(config, {}), mesh, sizes), asked)


def ran(train, steps=STEPS):
    return train_virtual(train, Feed(IDS, {"targets": TARGETS}), steps)


CASES = {
    "copied keys": (SHARED, dict(t=(4, "sequence-vocabulary")), 1),
    "ring": (SHARED, dict(r=(2, "ring")), 1),
    "ZeRO of two": (TIED, dict(n=(2, "zero1"), x=(2, "zero3")), 2),
    "experts": (EXPERTS, dict(d=(2, "zero1"), t=(2, "tensor"), e=(2, "experts")), 1),
    "tied over stages": (TIED, dict(p=(2, "pipeline"), t=(2, "tensor-vocabulary")), 2),
    "copies of experts": (EXPERTS, dict(d=(4, "data"), e=(2, "experts")), 1),
    "copies that store the optimiser once": (EXPERTS, dict(z=(4, "zero3"), t=(2, "tensor"), e=(2, "experts")), 1),
    "micro-batches, ZeRO-3": (SHARED, dict(p=(2, "pipeline"), z=(3, "zero3")), 1),
}


@pytest.mark.deep(every=8)
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_one_rank(name, one_rank):
    config, axes, micro_batches = CASES[name]
    train = planned(config, axes, micro_batches)
    found = ran(train)
    np.testing.assert_allclose(found.losses, one_rank[id(config)], rtol=1e-12)
    assert [*unlike_said(train_tallies(train, found.meters))] == []
    even = name == "experts"  # whose rows are as many for each: then rank by rank
    if even:
        found = train_virtual(train, Feed(IDS, {"targets": TARGETS}, even=True), 1)
    if even or "e" not in axes:
        assert [each for each in train_tallies(train, found.meters, even) if not each.holds] == []


def test_copies_of_experts_are_summed(monkeypatch, one_rank):
    """The second step of copies that learn apart has another loss; over axes whose parts would have to end within each
    other they are refused."""
    monkeypatch.setattr("opmatrix.parallel.train.learned_arrays.expert_copies", lambda *_: ())
    found = ran(planned(EXPERTS, dict(d=(4, "data"), e=(2, "experts"))), 2).losses
    wanted = one_rank[id(EXPERTS)]
    assert found[0] == pytest.approx(wanted[0], rel=1e-12) and abs(found[1] - wanted[1]) > 1e-6


@pytest.mark.parametrize(
    "axes, micro_batches", [(dict(p=(2, "pipeline")), 2), (dict(p=(2, "pipeline"), d=(2, "zero1")), 2)]
)
def test_stages_of_several_chunks_are_one_rank(axes, micro_batches, deep):
    """A table that the first chunk and the last share, on two ranks; the peak is that of this order."""
    config, losses = deep
    train = planned(config, axes, micro_batches, schedule="interleaved:2")
    assert train.stages == 2 and train.legs == 4 and [*train.legs_of(1)] == [1, 3]
    found = ran(train)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-12)
    assert [each for each in train_tallies(train, found.meters) if not each.holds] == []


@pytest.fixture(scope="module")
def deep():
    """Four layers, and the losses of one rank."""
    config = TIED | dict(n_layer=4)
    return config, ran(planned(config, {})).losses


def test_what_is_dropped_is_alike_on_any_mesh():
    """However a batch is cut into micro-batches, sequences, heads or stages; another seed drops other entries."""
    one = ran(planned(TIED, {}, dropout=0.25)).losses
    for axes, often in ((dict(p=(2, "pipeline"), t=(2, "sequence")), 2), (dict(d=(4, "zero3")), 1)):
        train = planned(TIED, axes, often, dropout=0.25)
        found = ran(train)
        np.testing.assert_allclose(found.losses, one, rtol=1e-12)
        assert [each for each in train_tallies(train, found.meters) if not each.holds] == []
    for other in (dict(dropout=0), dict(dropout=0.25, seed=1)):
        assert abs(ran(planned(TIED, {}, **other), 1).losses[0] - one[0]) > 1e-4


def test_a_peak_is_that_of_its_order():
    """All forward first holds more than one forward, one backward; a formula that forgot what waits would differ."""
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        train = planned(TIED, dict(p=(2, "pipeline")), 4, schedule=schedule)
        meters = ran(train, 1).meters
        peaks[schedule] = [meters[place].peak for place in sorted(meters)]
        assert peaks[schedule] == [step_peak(train, place) for place in sorted(meters)]
    assert peaks["gpipe"][1] > 1.5 * peaks["1f1b"][1] and peaks["1f1b"][0] < peaks["gpipe"][0]


def test_what_is_left_out_is_found(monkeypatch, one_rank):
    """A crossing of the formulas, and a sum of cotangents of which ranks have parts: the loss of the second step is
    another."""
    train = planned(SHARED, dict(t=(2, "tensor")))
    meters, whole = ran(train, 1).meters, BackwardBooked.crossings_of
    monkeypatch.setattr(BackwardBooked, "crossings_of", lambda self, *phases: [*whole(self, *phases)][:-1])
    assert {each.name.rpartition(", ")[2] for each in train_tallies(train, meters) if not each.holds} == {
        "payload",
        "wire",
        "messages",
    }
    with without_a_dual():
        found = ran(planned(SHARED, dict(t=(2, "tensor"))), 2).losses
    wanted = one_rank[id(SHARED)]
    assert found[0] == pytest.approx(wanted[0], rel=1e-12) and abs(found[1] - wanted[1]) > 1e-4


def test_threads_give_the_bits_of_virtual_ranks():
    """With what each hands over counted at its wire, in a step whose headings go with the numbers."""
    job = Job(SHARED, dict(p=(2, "pipeline"), d=(2, "zero1")), ids_of(4, 6).tolist(), 2, train=dict(micro_batches=2))
    losses, meters = run_steps(job)
    train = train_plan(job)
    assert losses == train_virtual(train, job.feed, 2).losses
    assert [each for each in train_tallies(train, meters) if not each.holds] == []


def test_threads_run_stages_of_several_chunks():
    """What goes on from the last stage to the first, and back, is taken in another order than it was given."""
    job = Job(
        SHARED | dict(num_hidden_layers=4),
        dict(p=(2, "pipeline")),
        ids_of(4, 6).tolist(),
        2,
        train=dict(micro_batches=4, schedule="interleaved:2", dropout=0.1),
    )
    losses, meters = run_steps(job)
    train = train_plan(job)
    assert losses == train_virtual(train, job.feed, 2).losses
    assert [each for each in train_tallies(train, meters) if not each.holds] == []


def test_tokens_over_caches_are_those_of_whole_texts():
    """On heads and layers of several ranks, copied keys among them; without the caches other tokens come out."""
    model = drawn_model(SHARED, 1, True)
    text = IDS
    for _ in range(4):
        scores = dense(model, Batch([*text])).reshape(*text.shape, -1)[:, -1]
        text = np.concatenate([text, scores.argmax(-1)[:, None]], 1)
    assert len({*text[:, 5:].ravel()}) > 3
    for axes in (dict(t=(4, "tensor-vocabulary")), dict(p=(2, "pipeline"), d=(2, "data"))):
        assert (decode_virtual(DecodePlan(model, Mesh.of(**axes), 4, 5), IDS, 4) == text[:, 5:]).all()
    alone = np.stack(
        [decode_virtual(DecodePlan(model, Mesh.of(), 4, 1), text[:, at : at + 1], 1)[:, 0] for at in range(4, 8)], 1
    )
    assert (alone != text[:, 5:]).any()


@pytest.mark.parametrize(
    "axes, words",
    [
        (
            dict(r=(2, "ring")),
            "mesh: r: a step has one row a sequence, which ring would shard: use data, tensor or pipeline",
        )
    ],
)
def test_what_no_step_of_one_row_has_is_refused(axes, words):
    with pytest.raises(InputError, match=words):
        DecodePlan(drawn_model(SHARED, 1, True), Mesh.of(**axes), 4, 5)


def test_a_loss_that_is_not_finite_is_named():
    train = TrainPlan(planned(SHARED, {}).plan, TrainAsked(1e200))
    with pytest.raises(LossNotFinite, match=r"^the (loss|gradient of \S+) is not finite: a smaller rate than 1e"):
        with np.errstate(all="ignore"):
            ran(train)


@pytest.mark.parametrize(
    "how, words",
    [
        (dict(schedule="zb-h1"), "schedule zb-h1: ranks run 1f1b, gpipe or interleaved:V; others are only simulated"),
        (dict(schedule="1f2b"), "schedule 1f2b: "),
        (dict(rate=0.0), "rate 0: more than 0"),
        (dict(schedule="interleaved:2"), "schedule interleaved:2: 1 virtual stages: give a multiple of 2"),
        (dict(dropout=1.0), "dropout 1: from 0 to below 1"),
    ],
)
def test_what_no_rank_runs_is_refused(how, words):
    with pytest.raises(InputError, match=words):
        TrainPlan(planned(SHARED, {}).plan, TrainAsked(**how))


def test_a_model_without_scores_is_refused():
    from partitioned import BERT

    with pytest.raises(InputError, match="scores"):
        Job(BERT, {}, IDS.tolist(), train={}).operator()
