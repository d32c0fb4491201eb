"""Steps of training over a wire: the ranks of this room drive the generators of `opmatrix.stepping`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.algebra.term import Operator
from opmatrix.launching.exchanges import Crossings, NotFinite
from opmatrix.launching.jobs import Job
from opmatrix.launching.prepared import Moment, follow
from opmatrix.partitions.ranks import Meter
from opmatrix.split.placement import Coordinates
from opmatrix.stepping.train_ranks import LossNotFinite, TrainAsked, TrainingRank, TrainPlan


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


def mean_losses(train: TrainPlan, values: Mapping[Coordinates, Numeric]) -> Sequence[float]:
    """The mean loss of each step, of what ranks have of those of rows."""
    steps = len(next(iter(values.values())))
    each = [train.losses({place: own[k] for place, own in values.items()}) for k in range(steps)]
    return [float(np.mean(losses)) for losses in each]
