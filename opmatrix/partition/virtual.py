"""Ranks that are run here, in one process: generators that wait for each other, merged in the order of ranks, so the
same numbers come out to the bit whenever they run. What crosses is counted at the arrays."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.partition.cuts import Cut, bounds
from opmatrix.partition.feeds import Feed, window
from opmatrix.partition.lies import found_at
from opmatrix.partition.mesh import Mesh
from opmatrix.partition.ranks import AXES, Carriers, Message, Meter, Rank, cut_piece
from opmatrix.partition.spreading import Split, Step

Place = tuple[int, ...]


class Stuck(RuntimeError):
    """Ranks that wait for ever, each named with what it waits for."""


@dataclass(frozen=True)
class Ran:
    """What came out: the whole value, and what each rank counted."""
    value: Numeric
    meters: Mapping[Place, Meter]


def run(split: Split, feed: Feed) -> Ran:
    """Runs every rank of a mesh at the numbers of a batch. Raises Stuck for ranks that wait for ever."""
    mesh = split.mesh
    ranks = {place: Rank(split.steps, split.out, mesh, place, feed) for place in mesh.places()}
    results = drive({place: rank.run() for place, rank in ranks.items()}, mesh,
                    {place: rank.meter for place, rank in ranks.items()})
    return Ran(assembled(split.steps[split.out], results, mesh), {place: rank.meter for place, rank in ranks.items()})


def drive(running: Mapping[Place, Any], mesh: Mesh, meters: Mapping[Place, Meter]) -> dict[Place, Numeric]:
    """Lets ranks run until each is done; a group goes on when all of it hand over the same thing."""
    results: dict[Place, Numeric] = {}
    waits: dict[Place, Message] = {}

    def advance(place: Place, value: Any) -> None:
        try: waits[place] = running[place].send(value)
        except StopIteration as end: results[place] = end.value
    for place in running: advance(place, None)
    while waits:
        groups = {group_of(place, message.axis, mesh): message for place, message in waits.items()}
        ready = [(group, message) for group, message in groups.items()
                 if all(p in waits and alike(waits[p], message) for p in group)]
        if not ready:
            raise Stuck("; ".join(f"rank {p} waits in {m.op} of step {m.at} on axis {mesh.axes[m.axis].name}"
                                  for p, m in waits.items()))
        for group, message in ready:
            sent = [waits.pop(p) for p in group]
            found = MERGES[message.op](sent, [meters[p] for p in group], mesh.axes[message.axis].name)
            for place, value in zip(group, found, strict=True): advance(place, value)
    return results


def alike(one: Message, other: Message) -> bool:
    return one[:2] + (one.at,) == other[:2] + (other.at,)


def group_of(place: Place, axis: int, mesh: Mesh) -> tuple[Place, ...]:
    """The ranks that differ in one coordinate alone, in order."""
    return tuple((*place[:axis], r, *place[axis + 1:]) for r in range(int(mesh.axes[axis].ranks)))


def pieces_of(cut: Cut, sent: Sequence[Message]) -> Numeric:
    """The whole of what is cut; what ranks copy is taken once."""
    n, units = len(sent), sent[0].units
    own = [m.arrays[0] for r, m in enumerate(sent)
           if not (cut.copied and r and cut.bounds(n, r, units) == cut.bounds(n, r - 1, units))]
    return np.concatenate(own, AXES[cut.role])


def gather(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric]:
    cut = sent[0].cut
    assert cut is not None
    whole = pieces_of(cut, sent)
    for m, meter in zip(sent, meters, strict=True):
        meter.sent((m.op, axis), m.numbers, whole.size - m.numbers, len(sent) - 1)
    return [whole] * len(sent)


def merged(sent: Sequence[Message]) -> Numeric:
    """The finished value of what ranks carry, merged in their order."""
    over = sent[0].over
    assert over is not None
    total: Carriers = reduce(over.merged, (m.arrays for m in sent))
    shape = np.broadcast_shapes(*(each.shape for each in total))
    return np.asarray(over.finished(total, shape), np.float64)


def all_reduce(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric]:
    value, n = merged(sent), len(sent)
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        lo, hi = bounds(m.numbers, n, r)
        meter.sent((m.op, axis), m.numbers, 2 * (m.numbers - (hi - lo)), 2 * (n - 1))
    return [value] * n


def reduce_scatter(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric]:
    value, n = merged(sent), len(sent)
    out = [cut_piece(value, m.then, m.unit, n, r) for r, m in enumerate(sent)]             # type: ignore[arg-type]
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        kept = sum(cut_piece(each, m.then, m.unit, n, r).size for each in m.arrays)        # type: ignore[arg-type]
        meter.sent((m.op, axis), m.numbers, m.numbers - kept, n - 1)
    return out


def all_to_all(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Numeric]:
    cut, n = sent[0].cut, len(sent)
    assert cut is not None
    whole = pieces_of(cut, sent)
    for r, (m, meter) in enumerate(zip(sent, meters, strict=True)):
        kept = cut_piece(m.arrays[0], m.then, m.unit, n, r).size                           # type: ignore[arg-type]
        meter.sent((m.op, axis), m.numbers, m.numbers - kept, n - 1)
    return [cut_piece(whole, m.then, m.unit, n, r) for r, m in enumerate(sent)]            # type: ignore[arg-type]


def hand_on(sent: Sequence[Message], meters: Sequence[Meter], axis: str) -> list[Carriers]:
    """Each rank's to its right neighbour."""
    for m, meter in zip(sent, meters, strict=True):
        meter.sent((m.op, axis), m.numbers, m.numbers, int(bool(m.arrays)))
    return [sent[r - 1].arrays for r in range(len(sent))]


MERGES = dict(all_gather=gather, all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_to_all=all_to_all, send=hand_on)


def assembled(step: Step, results: Mapping[Place, Numeric], mesh: Mesh) -> Numeric:
    """The whole value of what ranks hold of it: sequences x heads x rows x columns."""
    whole = np.full(tuple(map(int, step.dims)), np.nan)
    for place, value in results.items():
        whole[window(step.dims, found_at(step.dims, step.lie, mesh, place))] = value
    return whole
