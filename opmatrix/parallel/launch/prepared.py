"""A partition that is ready to run: its splits are made once, each run is a generator driven over a wire."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.parallel.launch.exchanges import Crossings, NotFinite
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.ranks.ranks import Message, Meter
from opmatrix.parallel.ranks.virtual import Ran, assembled, factor_by_factor, last_stage, rank, run_ranks
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates


class Moment(NamedTuple):
    """An event of a rank: it computed, or communicated."""

    what: str  # compute, or the operation
    axis: str  # name of the axis; empty for compute
    at: int  # number of the step; -1 at the end
    begin: float  # seconds of the machine's clock
    end: float  # seconds of the machine's clock
    numbers: int  # numbers that were handed over


class Prepared:
    """A partition with the splits of all its factors."""

    def __init__(self, plan: Partition) -> None:
        self.plan = plan
        self.splits = {at: plan.split_of(at) for at in range(len(plan.chain))}

    def virtual(self, feed: Feed) -> Ran:
        """Run all ranks in this process."""
        final = self.splits[len(self.plan.chain) - 1]
        return run_ranks(self.plan, partial(factor_by_factor, self.plan, self.splits, feed), final.steps[final.out])

    def run(self, place: Coordinates, feed: Feed, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """Run one rank over a wire; its counts are in `line.meter`. Raises NotFinite for an output that is not
        finite."""
        line.begin(Meter())
        body = partial(factor_by_factor, self.plan, self.splits, feed)
        value = follow(rank(self.plan, place, body, line.meter), line, moments)
        if not np.isfinite(value).all():
            raise NotFinite(f"rank {line.here}: the output is not finite")
        return value

    def assembled(self, results: Mapping[Coordinates, Numeric]) -> Numeric:
        """Return the whole value from the results of the ranks of the last stage."""
        final = self.splits[len(self.plan.chain) - 1]
        return assembled(final.steps[final.out], last_stage(self.plan, results), self.plan.mesh.flat)


class PreparedRun:
    """One rank of a job that runs forward over a wire, step by step."""

    def __init__(self, job: Job, place: Coordinates) -> None:
        self.prepared, self.place, self.feed = Prepared(job.plan()), place, job.feed

    def run(self, line: Crossings, moments: list[Moment] | None = None) -> Numeric:
        """Run forward over the wire; return this rank's part of the output."""
        return self.prepared.run(self.place, self.feed, line, moments)


def follow(running: Generator[Message, Any, Numeric], line: Crossings, moments: list[Moment] | None) -> Numeric:
    """Run one rank until it is done, and record its events."""
    value, began = None, monotonic()
    while True:
        try:
            message = running.send(value)
        except StopIteration as end:
            if moments is not None:
                moments.append(Moment("compute", "", -1, began, monotonic(), 0))
            result: Numeric = end.value
            return result
        met = monotonic()
        value = line.cross(message)
        done = monotonic()
        if moments is not None:
            axis = line.mesh.axes[message.axis].name
            moments += [
                Moment("compute", "", message.at, began, met, 0),
                Moment(message.op, axis, message.at, met, done, message.numbers),
            ]
        began = done
