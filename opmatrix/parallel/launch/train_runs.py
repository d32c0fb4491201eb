"""Steps of training, and tokens one by one, over a wire: ranks drive the generators of `opmatrix.parallel.train`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.term import Operator
from opmatrix.parallel.launch.exchanges import Crossings, NotFinite
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.prepared import Moment, PreparedRun, follow
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.train.decode_ranks import DecodePlan, DecodingRank, known_tokens
from opmatrix.parallel.train.requested_steps import TrainAsked, TrainPlan
from opmatrix.parallel.train.train_ranks import LossNotFinite, TrainingRank


def train_plan(job: Job, model: Operator | None = None) -> TrainPlan:
    """What a job trains. Raises InputError for a mesh that does not fit, and for what has no pullback."""
    return TrainPlan(job.plan(model), job.learns or TrainAsked())


class TrainingRun:
    """One rank that trains over a wire; its numbers stay from step to step."""
    def __init__(self, job: Job, place: Coordinates) -> None:
        train = train_plan(job)
        self.rank, self.feeds = TrainingRank(train, place), train.feeds(job.feed)

    def run(self, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """A step; what the rank has of the losses. Raises NotFinite for a loss or a gradient that is no number."""
        line.begin(Meter())
        try: return follow(self.rank.step(self.feeds, line.meter), line, moments)
        except LossNotFinite as error: raise NotFinite(f"rank {line.here}: {error}") from None


def decode_plan(job: Job, model: Operator | None = None) -> DecodePlan:
    """What a job decodes. Raises InputError for a mesh that does not fit, and for attention that has no caches."""
    sequences, tokens = np.shape(job.ids)
    return DecodePlan(model or job.operator(), job.mesh, sequences, tokens, job.stages)


class DecodingRun:
    """One rank that makes text over a wire; its caches grow from step to step."""
    def __init__(self, job: Job, place: Coordinates) -> None:
        self.rank, self.new = DecodingRank(decode_plan(job), place), np.asarray(job.ids, np.int64)

    def run(self, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """The next token of each sequence that this rank has."""
        line.begin(Meter())
        found = follow(self.rank.step(self.new, line.meter), line, moments)
        self.new = np.maximum(found, 0)[:, None]
        return found


def run_of(job: Job, place: Coordinates) -> TrainingRun | DecodingRun | PreparedRun:
    """What a rank does at each step of a job. Raises InputError for a job that trains and decodes at once."""
    if job.train is not None and job.decode: raise InputError("job: it trains or it decodes: ask for one of both")
    if job.decode: return DecodingRun(job, place)
    return PreparedRun(job, place) if job.train is None else TrainingRun(job, place)


def made_tokens(values: Mapping[Coordinates, Numeric]) -> Numeric:
    """Sequences x steps, of what ranks know of them."""
    return known_tokens([*values.values()]).T.astype(np.int64)


def mean_losses(train: TrainPlan, values: Mapping[Coordinates, Numeric]) -> Sequence[float]:
    """The mean loss of each step, of what ranks have of those of rows."""
    steps = len(next(iter(values.values())))
    each = [train.losses({place: own[k] for place, own in values.items()}) for k in range(steps)]
    return [float(np.mean(losses)) for losses in each]
