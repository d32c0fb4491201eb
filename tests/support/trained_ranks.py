"""Forward and backward that are run on virtual ranks: what they count beside what the formulas say, gradients beside
one rank's, and random models on random meshes under random policies."""

from contextlib import contextmanager
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from partitioned import Compared, advised, ids_of, random_arrays, random_axes, random_config

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.autodiff.learning import cross_entropy
from opmatrix.autodiff.pullback import pullback
from opmatrix.models import build, head
from opmatrix.parallel.cost.step_costs import training_step
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.train.backward_ranks import run_backward
from opmatrix.parallel.train.backward_split import BackwardSplit

SPEAKING = "gpt2", "llama"  # families of whose configurations the head is known
POLICIES = "units", "selective", "full", "least", "reads"


def given(term, sequences, tokens):
    """Ids and a cotangent of what a term gives."""
    return ids_of(sequences, tokens), np.random.default_rng(1).normal(size=(sequences, tokens, term.out.cols))


def drawn(term, sequences, tokens, **inputs):
    """Ids and a cotangent, and what one rank makes of them."""
    ids, g = given(term, sequences, tokens)
    batch = Batch(list(ids), inputs={name: each.reshape(-1, 1) for name, each in inputs.items()})
    return ids, g, pullback(term, tokens=True).at(batch, cotangent=g.reshape(sequences * tokens, -1))


def differences(ran):
    """What was counted otherwise than the formulas say, at any rank."""
    found = []
    for place, counted in ran.meters.items():
        pairs = zip(("", " of gradients"), ran.foreseen(place), (counted, ran.summed[place]), strict=True)
        found += [
            field.name + of
            for of, said, own in pairs
            for field in fields(Meter)
            if getattr(said, field.name) != getattr(own, field.name)
        ]
    return found


def off(ran, alone, least=1):
    """How far gradients are from one rank's, by name, of the largest, or of `least`."""
    assert ran.gradients.keys() == alone.keys()
    return max(
        np.abs(ran.gradients[name] - each).max() / max(least, np.abs(each).max()) for name, each in alone.items()
    )


class TrainedCase(NamedTuple):
    """A configuration, a mesh that it fits, a batch, what is kept, the rate of dropout."""

    config: dict[str, object]
    mesh: Mesh
    sequences: int
    tokens: int
    keep: str
    dropout: float
    loss: bool = False  # cross entropy, of the vocabulary where scores are known
    changed: int = 0  # times that a mesh was refused and changed

    def __str__(self):
        axes = ", ".join(f"{axis.name}={axis.ranks} {axis.strategy.name}" for axis in self.mesh)
        return f"{self.config}, {axes}, {self.sequences} x {self.tokens}, {self.keep}, dropout {self.dropout}" + (
            ", cross entropy" if self.loss else ""
        )

    @property
    def term(self):
        """The model, and the loss of what it gives or of scores of the next token."""
        at = random_arrays()
        model = build(self.config, at)
        if not self.loss:
            return model
        if self.config["model_type"] in SPEAKING:
            model = model @ head(self.config, at)
        return model @ cross_entropy(int(model.out.cols))


def has_pullback(strategy):
    """Whether virtual ranks go backward under a strategy."""
    return not strategy.layers


def random_training_case(seed):
    """A model of any family of random sizes, a mesh of up to 8 ranks and 3 axes, a batch, a policy, a third with
    dropout, half with a loss. Where a mesh is refused, what the refusal advises is done."""
    rng = np.random.default_rng(seed)
    config, sequences, tokens = random_config(rng), int(rng.integers(2, 7)), int(rng.integers(3, 12))
    keep, dropout = str(rng.choice(POLICIES)), 0.25 * float(rng.integers(3) == 0)
    loss, axes, said = bool(rng.integers(2)), random_axes(rng, has_pullback), 0
    while True:
        mesh = Mesh.of(**axes)
        case = TrainedCase(config, mesh, sequences, tokens, keep, dropout, loss, said)
        try:
            check(case)
        except InputError as refused:
            said += 1
            axes = advised(axes, str(refused))
        else:
            return case


def check(case):
    """Raises InputError for a mesh that a model does not fit, forward or backward."""
    sizes = BatchSizes(case.sequences, case.tokens)
    training_step(partition(case.term, case.mesh, sizes), case.keep, case.dropout)


def trained(case, least=1):
    """Runs a case, and compares its gradients with one rank's and its counts with the formulas; `least` as above."""
    term = case.term
    ids, g = given(term, case.sequences, case.tokens)
    targets = dict(targets=np.roll(ids, -1, 1) % scored(term)) if case.loss else {}
    feed = Feed(ids, targets, masks_of(term, case))
    ran = run_backward(term, case.mesh, feed, g, keep=case.keep, dropout=case.dropout)
    if case.dropout:
        alone = run_backward(term, Mesh.of(), feed, g, dropout=case.dropout).gradients
    else:
        alone = drawn(term, case.sequences, case.tokens, **targets)[2].arrays
    return Compared(off(ran, alone, least), differences(ran))


SMALL = 1e-9  # gradients below are rounding


def noticed(case):
    """Whether gradients differ where a dual is left out, each of its own largest: behind a norm of two columns all are
    small. Ranks that then have other shapes to sum notice it at once."""
    with without_a_dual():
        try:
            return trained(case, SMALL).error > 1e-6
        except (ValueError, RuntimeError):
            return True


def scored(term):
    """How many classes a loss is of."""
    return next(node.args[1] for node in term.walk() if node.kind.name == "given" and node.args[0] == "targets")


def masks_of(term, case):
    """Random masks of what a term drops, by name: sequences x heads x rows x columns."""
    if not case.dropout:
        return {}
    pulled, rng = pullback(term, dropout=case.dropout, tokens=True), np.random.default_rng(2)
    shapes = {
        line.more[0]: BatchSizes(case.sequences, case.tokens).dims(line.shape)
        for line in pulled.lines
        if line.op == "dropped"
    }
    return {name: rng.random(tuple(map(int, dims))) >= case.dropout for name, dims in shapes.items()}


@contextmanager
def without_a_dual():
    """Cotangents of which each rank has a part, behind a matrix whose rows are cut, are taken for the whole: nobody
    sums them."""
    right = BackwardSplit.lying

    def wrong(*args):
        demand, out, stored, why = right(*args)
        return demand, None if why == "rows of a matrix" else out, stored, why

    BackwardSplit.lying = wrong
    try:
        yield
    finally:
        BackwardSplit.lying = right
