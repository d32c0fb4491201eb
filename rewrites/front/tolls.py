"""What each detour of a model costs in error."""
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from opmatrix.oracles import Dense, apply_factor, entered
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.term import Operator
from rewrites.compiler.detours import DROPPED, Detour, detours
from rewrites.front.differences import difference
from rewrites.front.ladder import LARGE
from rewrites.front.trials import SHORTEST, sample

LEAST = 2.0 ** -24                                          # relative: what float32 does not tell from nothing
PROBED = 8                                                  # sentences, of which the longest says first what may serve
FARTHER = 4.0                                               # times the error allowed: how far the residual stream may
                                                            # be off there
PASSES = 300                                                # of a trial by kernels: what a pass of the oracle takes


def offered(groups: Sequence[Sequence[Operator]], program: Program, batch: Batch, most: float) -> list[Detour]:
    """The detours of a model that change its output by at most `most`, relative, each alone, on the rows of a batch.
    One sentence says first which may: those that leave the residual stream near what it was. Of a large model only
    layers may be left out, as its stream says at once which."""
    found = [each for each in detours(groups) if each.what == DROPPED or program.stored_bytes <= LARGE]
    if not found or not most: return []
    if not batch.alone:
        one = max(islice(batch, PROBED), key=lambda each: each.rows)
        stream = walked(groups, Batch([one.tokens[:SHORTEST]], [one.kinds[:SHORTEST]]))
        found = [each for each in found if changed_by(each.factors, stream[each.first], stream[each.last + 1])
                 <= FARTHER * most]
    return tolled(groups, found, sample(program, batch, PASSES * len(found)), most) if found else []


def tolled(groups: Sequence[Sequence[Operator]], found: Sequence[Detour], batch: Batch, most: float) -> list[Detour]:
    """Detours with what each alone does to the output on a batch; those whose relative change is at most `most`."""
    stream, kept = walked(groups, batch), []
    for each in found:
        rest = (factor for group in groups[each.last + 1:] for factor in group)
        off = changed_by([*each.factors, *rest], stream[each.first], stream[-1])
        if off <= most: kept.append(replace(each, error=max(LEAST, off) ** 2))
    return kept


def walked(groups: Sequence[Sequence[Operator]], batch: Batch) -> list[Dense]:
    """The residual stream of a batch: what enters, then what every part makes of it."""
    stream = [entered(groups[0][0], batch, dtype=np.float32)]
    for group in groups: stream.append(through(group, stream[-1]))
    return stream


def changed_by(factors: Sequence[Operator], x: Dense, wanted: Dense) -> float:
    """How far what factors make of a value is from what is wanted, relative."""
    return difference(through(factors, x).array, wanted.array)


def through(factors: Sequence[Operator], x: Dense) -> Dense:
    """What factors make of a value, one after another."""
    for factor in factors: x = apply_factor(factor, x)
    return x
