"""Collectives over a wire: what ranks give is what virtual ranks give, to the bit, and what crosses is what formulas
say. Ranks are threads here, with queues between them; over torch they are in tests/peers/test_launch.py."""

import numpy as np
import pytest
from partitioned import ANY, BERT, LLAMA, differences, ids_of, made, planned
from threaded_ranks import run_steps, run_threads

from opmatrix.parallel.launch.counters import tallies, unlike_said
from opmatrix.parallel.launch.exchanges import Crossings, NotFinite
from opmatrix.parallel.launch.headings import RanksDisagree
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.prepared import Prepared
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition

TERM = made(LLAMA, num_hidden_layers=2)
MESHES = {
    "dp x tp": dict(d=(2, "zero3"), t=(2, "sequence-vocabulary")),
    "pp": dict(p=(2, "pipeline"), t=(2, "tensor")),
    "ring": dict(r=(3, "ring")),
    "ulysses": dict(u=(2, "ulysses")),
    "keys": dict(k=(3, "keys")),
}


def prepared(axes, term=TERM):
    return Prepared(planned(term, Mesh.of(**axes), 4, 7))


@pytest.mark.parametrize("name", MESHES)
def test_threads_give_what_virtual_ranks_give(name):
    """In a first run, in which headings go before, and in a second one, in which they go with what crosses."""
    ready, feed = prepared(MESHES[name]), Feed(ids_of(4, 7))
    wanted = ready.virtual(feed)
    for runs in (1, 2):
        found = run_threads(ready, ready.plan.mesh, feed, runs)
        assert found.value.tobytes() == wanted.value.tobytes()
        off = [each for each in differences(ready.plan, found.meters) if each[0] != "wire" or name != "keys"]
        assert not off and not [*unlike_said(tallies(ready.plan, found.meters))]


def test_a_crossing_that_is_left_out_of_the_formulas_is_found(monkeypatch):
    ready, whole = prepared(MESHES["dp x tp"]), Partition.crossings
    meters = ready.virtual(Feed(ids_of(4, 7))).meters
    assert not [*unlike_said(tallies(ready.plan, meters))]
    for at in range(len([*whole(ready.plan)])):
        with monkeypatch.context() as patched:
            patched.setattr(
                Partition,
                "crossings",
                lambda self, stage=0, at=at: (each for k, each in enumerate(whole(self, stage)) if k != at),
            )
            assert {each.name.rpartition(", ")[2] for each in unlike_said(tallies(ready.plan, meters))} == {
                "payload",
                "messages",
            }


class Changed(Crossings):
    """Crossings of which rank 1 changes one, at its third."""

    run = 1

    def cross(self, message):
        self.count = getattr(self, "count", 0) + 1
        if self.here == 1 and self.count == self.third:
            message = self.change(message)
        return super().cross(message)


def changing(how, third=3):
    return type("Changed", (Changed,), dict(change=staticmethod(how), third=third))


def other_numbers(message):
    message.arrays[0][..., 0] = np.nan
    return message


@pytest.mark.parametrize(
    "how, words",
    [
        (
            lambda m: m._replace(at=m.at + 1),
            r"ranks 0 and 1 disagree: rank 0 is in all_reduce of step (\d+) of factor \d on axis t with 4 × 1 × 7 × "
            r"12, rank 1 in all_reduce of step (?!\1)",
        ),
        (lambda m: m._replace(op="reduce_scatter"), "rank 1 in reduce_scatter of step"),
        (lambda m: m._replace(unfinished=True), "and would shard or reduce it differently$"),
        (lambda m: m._replace(among=(0, 1)), "and would shard or reduce it differently$"),
        (lambda m: m._replace(arrays=(m.arrays[0][:, :, 1:],)), "with 4 × 1 × 7 × 12, rank 1 .* with 4 × 1 × 6 × 12"),
    ],
)
def test_ranks_that_disagree_are_named(how, words):
    ready = prepared(dict(t=(2, "tensor")))
    with pytest.raises(RanksDisagree, match=words):
        run_threads(ready, ready.plan.mesh, Feed(ids_of(4, 7)), crossings=changing(how))


def test_a_second_run_is_checked_too():
    """A step that is another, though as long: the heading in front of the numbers says so."""
    ready = prepared(dict(t=(2, "tensor")), made(BERT, num_hidden_layers=1))
    with pytest.raises((RanksDisagree, AssertionError), match="disagree"):
        run_threads(ready, ready.plan.mesh, Feed(ids_of(4, 7)), 2, changing(lambda m: m._replace(unit=7), third=4))


def test_what_is_no_number_is_named():
    ready = prepared(dict(t=(2, "tensor")))
    with pytest.raises(NotFinite, match=r"^rank 1: it sends NaN in all_reduce of step"):
        run_threads(ready, ready.plan.mesh, Feed(ids_of(4, 7)), crossings=changing(other_numbers))


def test_an_output_that_is_not_finite_is_named():
    """A gain of a last norm that is infinite."""
    from opmatrix.algebra.data import Data
    from opmatrix.models import build

    rng = np.random.default_rng(0)

    def at(name, *shape):
        return Data(np.full(shape, np.inf) if name == "norm.weight" else rng.normal(size=shape), name)

    ready = prepared(dict(d=(2, "data")), build(ANY | dict(norm="rms", num_hidden_layers=1), at))
    with pytest.raises(NotFinite, match=r"^rank [01]: the output is not finite$"), np.errstate(all="ignore"):
        run_threads(ready, ready.plan.mesh, Feed(ids_of(4, 7)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_not_finite_is_named_by_its_rank():
    job = Job(LLAMA | dict(num_hidden_layers=1), dict(d=(2, "data")), ids_of(2, 5).tolist(), 2, train=dict(rate=1e200))
    with pytest.raises(NotFinite, match=r"^rank [01]: the (loss|gradient of \S+) is not finite: a smaller rate than"):
        run_steps(job)
