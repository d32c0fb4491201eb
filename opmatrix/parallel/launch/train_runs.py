"""Steps of training, and of decoding token by token, over a wire: ranks drive the generators of
`opmatrix.parallel.train`."""

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
    """Return the training plan of a job. Raises InputError for a mesh that does not fit, and for an operator that has
    no pullback."""
    return TrainPlan(job.plan(model), job.learns or TrainAsked())


class TrainingRun:
    """One rank that trains over a wire; its weights stay from step to step."""

    def __init__(self, job: Job, place: Coordinates) -> None:
        train = train_plan(job)
        self.rank, self.feeds = TrainingRank(train, place), train.feeds(job.feed)

    def run(self, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """Run a step, and return the rank's part of the losses. Raises NotFinite for a loss or a gradient that is not
        finite."""
        line.begin(Meter())
        try:
            return follow(self.rank.step(self.feeds, line.meter), line, moments)
        except LossNotFinite as error:
            raise NotFinite(f"rank {line.here}: {error}") from None


def decode_plan(job: Job, model: Operator | None = None) -> DecodePlan:
    """Return the decoding plan of a job. Raises InputError for a mesh that does not fit, and for attention that has no
    caches."""
    sequences, tokens = np.shape(job.ids)
    return DecodePlan(model or job.operator(), job.mesh, sequences, tokens, job.stages)


class DecodingRun:
    """One rank that generates text over a wire; its caches grow from step to step."""

    def __init__(self, job: Job, place: Coordinates) -> None:
        self.rank, self.new = DecodingRank(decode_plan(job), place), np.asarray(job.ids, np.int64)

    def run(self, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """Return the next token of each sequence that this rank has."""
        line.begin(Meter())
        tokens = follow(self.rank.step(self.new, line.meter), line, moments)
        self.new = np.maximum(tokens, 0)[:, None]
        return tokens


def run_of(job: Job, place: Coordinates) -> TrainingRun | DecodingRun | PreparedRun:
    """Return the run of a rank in a job, step by step. Raises InputError for a job that trains and decodes at once."""
    if job.train is not None and job.decode:
        raise InputError("job: it trains or it decodes: give one of the two")
    if job.decode:
        return DecodingRun(job, place)
    return PreparedRun(job, place) if job.train is None else TrainingRun(job, place)


def made_tokens(values: Mapping[Coordinates, Numeric]) -> Numeric:
    """Return the tokens as sequences x steps, from those that ranks know."""
    return known_tokens([*values.values()]).T.astype(np.int64)


def mean_losses(train: TrainPlan, values: Mapping[Coordinates, Numeric]) -> Sequence[float]:
    """Return the mean loss of each step, from the losses of rows that ranks have."""
    steps = len(next(iter(values.values())))
    by_step = [train.losses({place: parts[k] for place, parts in values.items()}) for k in range(steps)]
    return [float(np.mean(losses)) for losses in by_step]
