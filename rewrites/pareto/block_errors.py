"""What each detour of a model costs in error: of layers left out and side by side by the model's own factors; of
attention that sees fewer keys by the exact program with another pattern in one step."""
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.oracles import DenseReading, apply_factor, entered
from opmatrix.algebra.term import Operator
from opmatrix.batch import Batch
from opmatrix.extents import count_scores
from opmatrix.program import Program
from opmatrix.runtime.schedule import Call, Walked, call
from opmatrix.runtime.seen import pattern
from rewrites.approximate.trials import SHORTEST, WORK, half_pass, joined, sample
from rewrites.compiler.sparse_attention import unseeing
from rewrites.compiler.substitutions import DROPPED, Detour, detours
from rewrites.lower.mixed import Mean
from rewrites.lower.price import Prices
from rewrites.pareto.error_levels import LARGE
from rewrites.verify.differences import difference
from rewrites.workload.workload import Workload

LEAST = 2.0 ** -24                                          # relative: what float32 does not tell from nothing
PROBED = 8                                                  # sentences, of which the longest says first what may serve
FARTHER = 4.0                                               # times the error allowed: how far the residual stream may
                                                            # be off there
PASSES = 300                                                # of a trial by kernels: what a pass of the oracle takes
REPAID = 0.01                                               # share of a program's seconds that a pattern saves, in all
                                                            # parts together, at least
ALIKE = 0.9                                                 # times the share of scores that is left out of what is
                                                            # timed: at least as much is of what says the error
SENTENCES = 2                                               # that errors are measured on


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


def walked(groups: Sequence[Sequence[Operator]], batch: Batch) -> list[DenseReading]:
    """The residual stream of a batch: what enters, then what every part makes of it."""
    stream = [entered(groups[0][0], batch, dtype=np.float32)]
    for group in groups: stream.append(through(group, stream[-1]))
    return stream


def changed_by(factors: Sequence[Operator], x: DenseReading, wanted: DenseReading) -> float:
    """How far what factors make of a value is from what is wanted, relative."""
    return difference(through(factors, x).array, wanted.array)


def through(factors: Sequence[Operator], x: DenseReading) -> DenseReading:
    """What factors make of a value, one after another."""
    for factor in factors: x = apply_factor(factor, x)
    return x


@dataclass
class Unseen:
    """What to try on an exact program, for what its workload times: `parts` has the part of each step's output. Errors
    are measured on sentences that choose, and will be stated of those that state."""

    program: Program
    parts: Mapping[str, int]
    prices: Prices | Mean
    workload: Workload

    def offered(self, groups: Sequence[Sequence[Operator]], most: float) -> tuple[list[Detour], str]:
        """The detours of a model, by the factors of its parts, that change its output by at most `most`, relative, each
        alone; and, where text is too short to say what they do, that it is."""
        timed, judges = self.workload.timed, (self.workload.choose, self.workload.state)
        if not most or timed.alone: return [], ""
        paying = [each for each in unseeing(groups, sentence_lengths(timed))
                  if each.first in self.steps and self.saved(each) * len(self.steps) >= REPAID * self.seconds]
        known = [each for each in paying
                 if min(self.left_out(each, batch) for batch in judges) >= ALIKE * self.left_out(each, timed)]
        if not known: return [], self.unknown() if paying else ""
        return [*self.tolled(known[:max(len(self.steps), self.passes)], most)], ""

    @cached_property
    def steps(self) -> dict[int, int]:
        """Of each part that has one attention whose kernel takes any pattern: the number of its step."""
        found: dict[int, list[int]] = {}
        for at, step in enumerate(self.program.steps):
            if "mask0" in self.call(at).kernel.operands and step.output in self.parts:
                found.setdefault(self.parts[step.output], []).append(at)
        return {part: every[0] for part, every in found.items() if len(every) == 1}

    def call(self, at: int) -> Call:
        """A step of the program."""
        return self.program.schedule.calls[self.program.schedule.first + at]

    def instead(self, each: Detour) -> Call:
        """The step of a detour's part with its pattern."""
        at, schedule, where = self.steps[each.first], self.program.schedule, each.where
        step, shapes = self.program.steps[at], schedule.calls[:schedule.first + at]
        names = [*(port.name for port in schedule.ports), *(one.output for one in self.program.steps[:at])]
        assert where is not None
        return call(replace(step, attributes={**step.attributes, "where": where.form}),
                    dict(zip(names, (one.shape for one in shapes), strict=True)),
                    {name: i for i, name in enumerate(names)}, self.program.constants)

    # ---- what it saves

    @cached_property
    def seconds(self) -> float:
        """Predicted, of the program."""
        return self.prices.spent(self.program.schedule.cost)

    def saved(self, each: Detour) -> float:
        """Predicted seconds that a detour's pattern saves."""
        dense, sparse = (self.prices.spent(partial(one.kernel.cost, one.bound, one.shape))
                         for one in (self.call(self.steps[each.first]), self.instead(each)))
        return dense - sparse

    def left_out(self, each: Detour, batch: Batch) -> float:
        """The share of scores that a detour leaves out of those of a batch."""
        whole = pattern(self.call(self.steps[each.first]).bound)
        assert each.where is not None
        return 1 - count_scores(each.where, sentence_lengths(batch)) / count_scores(whole, sentence_lengths(batch))

    def unknown(self) -> str:
        """Why nothing is known of errors."""
        judged, timed = (int(sentence_lengths(batch).max()) for batch in (self.workload.state, self.workload.timed))
        return (f"attention sees all keys: texts that errors are stated of have {judged} tokens at most, which does "
                f"not say what fewer keys change in {timed}: give --text with longer lines, or with more of them")

    # ---- what it costs

    @property
    def passes(self) -> int:
        """How many trials there may be."""
        return int(WORK / (self.sample.rows * half_pass(self.program)))

    @cached_property
    def sample(self) -> Batch:
        """The longest of the sentences that choose; one for a large model."""
        count = SENTENCES if self.program.stored_bytes <= LARGE else 1
        return joined(sorted(self.workload.choose, key=lambda row: -row.rows)[:count])

    def tolled(self, tried: Sequence[Detour], most: float) -> Iterator[Detour]:
        """Those that change the output by at most so much, with the squares of what they change; the steps before are
        done once."""
        batch, schedule = self.sample, self.program.schedule
        wanted, found = self.program.run(batch), list[NDArray[np.float32] | None]()
        for each in sorted(tried, key=lambda one: self.steps[one.first]):
            for _ in schedule.walk(batch, found, self.steps[each.first]): pass
            own = self.instead(each)
            out = np.empty(own.shape.at(schedule.extents(batch)), np.float32)
            own.kernel.function(out, **own.arguments(Walked(schedule.entered(batch), found), batch))
            off = difference(schedule.resumed([*found, out], batch), wanted)
            if off <= most: yield replace(each, error=max(LEAST, off) ** 2)


def sentence_lengths(batch: Batch) -> NDArray[np.int64]:
    """Tokens of each sentence."""
    return np.diff(batch.starts)
