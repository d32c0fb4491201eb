"""Errors of methods to first order, from one pullback for all sites. For random signs u over the output of a sentence,
and the cotangent g of a step's result,

    u · (change of the output) ≈ Σ over rows t of (change of the result)_t · g_t ,        E (u · c)² = |c|²

so the mean square of these numbers over directions, added over sentences, is the squared change of the output: rows of
a sentence may cancel, as they do in the model, and no further step runs (Hutchinson 1990 for the estimate)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, sqrt
from typing import cast

import numpy as np

from formats.core.stage import NoPullback
from formats.host.threads import in_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import S, T
from opmatrix.runtime.cotangents import PulledStep, pull_back, random_signs
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.segments import unwritten
from rewrites.approximate.error_cache import Measured
from rewrites.approximate.sites import WeightSite
from rewrites.approximate.trials import TRIAL_BYTES, FloatRows, read_otherwise
from rewrites.approximate.weight_errors import MakeConstant, TriedWeights, measure_weights
from rewrites.lowering.lower import Method

SEED = 1986  # of the directions
PROBES = 192  # directions times sentences, at least
FEWEST_DIRECTIONS, MOST_DIRECTIONS = 4, 32
LEAST_PROBES = 48  # with fewer, errors are measured
MEASURED_BEFORE = "the errors of methods before it are measured"
HALF_PASSES = 48  # passes over half of the weights: values, cotangents, and all methods of each weight, about


@dataclass
class OutputProbe:
    """Directions over the output of a program on a batch, each number 1 or -1."""

    program: Program
    batch: Batch
    probes: int = PROBES  # directions times sentences that are wanted

    @cached_property
    def output(self) -> FloatRows:
        """The rows of the output."""
        return self.program.run(self.batch)

    @property
    def directions(self) -> int:
        """The number K of directions: `probes` over the sentences, as far as the bytes of a trial allow."""
        wanted = -(-self.probes // len(self.batch))
        return max(1, min(max(FEWEST_DIRECTIONS, wanted), MOST_DIRECTIONS, TRIAL_BYTES // self.output.nbytes))

    @property
    def suffices(self) -> bool:
        """True if sentences are apart, and are enough with their directions."""
        return not self.batch.alone and len(self.batch) * self.directions >= LEAST_PROBES

    def signs(self) -> FloatRows:
        """Return the directions, (K, *output)."""
        return random_signs(np.random.default_rng(SEED), self.directions, self.output.shape)

    def numbers(self, pulled: PulledStep, change: FloatRows) -> np.ndarray:
        """Return change · g for each direction and sentence, (K, S), of a step's result."""
        rows = np.stack(
            [
                np.einsum("ij,ij->i", change.reshape(len(change), -1), g.reshape(len(g), -1), dtype=np.float64)
                for g in pulled.cotangents
            ]
        )
        return self.by_sentence(pulled, rows)

    def by_sentence(self, pulled: PulledStep, rows: np.ndarray) -> np.ndarray:
        """Return numbers of the rows of a step (K, rows, ...) added over the rows of each sentence, (K, S, ...)."""
        space = getattr(pulled.call.shape, "space", None)
        if space == S:
            return rows
        return np.add.reduceat(rows, self.batch.starts[:-1] if space == T else [0], axis=1)

    @cached_property
    def size(self) -> float:
        """The sum of the squares of the output."""
        return float(np.square(self.output, dtype=np.float64).sum())

    def relative(self, numbers: np.ndarray) -> float:
        """Return the relative change of the output that numbers (K, S) predict."""
        off = float(np.square(numbers).mean(0).sum())
        return sqrt(off / self.size) if self.size else (inf if off else 0.0)

    def predict(self, pulled: PulledStep, result: FloatRows) -> float:
        """Return the relative change of the output by another result of a step."""
        return self.relative(self.numbers(pulled, result - pulled.result))


def rerun(pulled: PulledStep, step: Call, batch: Batch) -> FloatRows:
    """Return the result of another call in place of a step, on the values that the step read."""
    values = {value: cast(FloatRows, pulled.arguments[name]) for name, value in step.values.items()}
    result = unwritten(pulled.result.shape, np.float32)
    step.kernel.function(result, **step.arguments(values, batch))
    return result


def predict_changes(
    probe: OutputProbe, site: WeightSite, readers: Sequence[PulledStep], stored: Sequence[MakeConstant]
) -> list[float]:
    """Return the relative change of the output by each of these in place of a site's weight: every step that reads it
    runs once with each."""
    changes = list[float]()
    for make in stored:
        constant, numbers = make(), np.zeros(())
        for reader in readers:
            step = read_otherwise(probe.program, reader.step, site, constant)
            numbers = numbers + probe.numbers(reader, rerun(reader, step, probe.batch) - reader.result)
        changes.append(probe.relative(numbers))
    return changes


def predict_weights(tried: TriedWeights, progress: Callable[[int, int], None]) -> Measured:
    """Return the methods of every weight with their predicted errors. Errors without a prediction are measured
    (`measure_weights`), and a note says why: too few sentences, or sentences that are not apart; weights before a step
    without a derivative, or before one that keeps the largest entries of rows, as a cotangent does not see other
    choices."""
    probing, methods = tried.sampled(HALF_PASSES), Measured()
    probe, chooser = OutputProbe(probing.program, probing.batch), last_choosing(tried.program)
    named = {site.name: site for site in reversed(tried.sites)}
    behind = {name: site for name, site in named.items() if site.readers(tried.program)[0] > chooser}
    if not probe.suffices:
        tried.notes.append(f"{probe.batch}: too few, or not apart, to predict errors of methods: they are measured")
        behind = {}
    elif chooser >= 0:
        step = tried.program.steps[chooser]
        tried.notes.append(f"step {step.output} = {step.kernel} chooses entries: {MEASURED_BEFORE}")

    def calls() -> Iterator[Callable[[], tuple[str, list[Method]]]]:
        """Yield a call for each site, which returns its name and its methods."""
        try:
            for done, (site, readers) in enumerate(sites_with_cotangents(probe, behind)):
                progress(done, len(named))
                yield partial(predict_site, probing, probe, site, readers)
        except NoPullback as error:
            tried.notes.append(f"{error}: {MEASURED_BEFORE}")

    methods |= in_threads(calls())
    rest = [site for name, site in named.items() if name not in methods]
    if rest:
        methods |= measure_weights(replace(tried, sites=rest), progress)
    progress(len(named), len(named))
    return methods


def predict_site(
    tried: TriedWeights, probe: OutputProbe, site: WeightSite, readers: Sequence[PulledStep]
) -> tuple[str, list[Method]]:
    """Return a site's name, and its methods with their predicted errors."""
    return site.name, tried.methods(site, partial(predict_changes, probe, site, readers))


def last_choosing(program: Program) -> int:
    """Return the number of the last step that keeps the largest entries of rows; -1 if no step does."""
    calls = program.schedule.calls[program.schedule.first :]
    return max((step for step, call in enumerate(calls) if call.kernel.keeps(call.bound)), default=-1)


def sites_with_cotangents(
    probe: OutputProbe, named: Mapping[str, WeightSite]
) -> Iterator[tuple[WeightSite, list[PulledStep]]]:
    """Yield each site with the steps that read it, once all of them have their cotangents: the last sites first. Sites
    that the output does not depend on are left out."""
    if not named:
        return
    reading = {name: site.readers(probe.program) for name, site in named.items()}
    readers: dict[str, list[PulledStep]] = {name: [] for name in named}
    steps = {step for numbers in reading.values() for step in numbers}
    for pulled in pull_back(probe.program, probe.batch, probe.signs(), steps):
        for name, numbers in reading.items():
            if pulled.step in numbers:
                readers[name].append(pulled)
            if pulled.step == numbers[0]:
                yield named[name], readers.pop(name)
