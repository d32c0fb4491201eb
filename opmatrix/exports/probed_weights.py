"""Probes of ONNX Runtime: the way in which it multiplies a weight of whole numbers the quickest, on this machine."""

from time import perf_counter
from typing import NamedTuple

import numpy as np

from formats.storage.format import WholeNumbers
from opmatrix.algebra.data import Numeric
from opmatrix.exports.graph import ArrayGraph
from opmatrix.exports.onnx_file import make_onnx
from opmatrix.exports.program_graph import IDS, ProgramGraph
from opmatrix.exports.runtimes import onnx_session
from opmatrix.exports.spelled_weights import (
    NARROW_SPELLING,
    STORED_WAY,
    SUMMED,
    WIDE,
    SpelledWay,
    WeightSpelling,
    spell_weight,
)
from opmatrix.runtime.declarations.padded import take_rows

PROBE_CALLS = 9
TABLE_ROWS = 64  # rows of numbers that a probe multiplies
PRODUCT = "product"


class WeightSignature(NamedTuple):
    """The properties of a weight that decide how long its product takes."""

    shape: tuple[int, ...]
    groups: int
    turned: bool

    @classmethod
    def of(cls, weight: WholeNumbers) -> "WeightSignature":
        """Return the signature of a weight."""
        return cls(weight.whole.shape, len(weight.scale), weight.turn is not None)


def probing(rows: int, threads: int) -> WeightSpelling:
    """Return the spelling in which every weight is multiplied in the way that is quickest for so many rows. Weights of
    one signature are probed once."""
    known: dict[WeightSignature, SpelledWay] = {}

    def choose(weight: WholeNumbers) -> SpelledWay:
        """Return the quickest way of a weight."""
        signature = WeightSignature.of(weight)
        if signature not in known:
            known[signature] = probe_weight(weight, rows, threads)
        return known[signature]

    return NARROW_SPELLING._replace(choose=choose)


def probe_weight(weight: WholeNumbers, rows: int, threads: int) -> SpelledWay:
    """Return the way whose least time of several calls, in turn, is least."""
    ids = np.random.default_rng(0).integers(0, TABLE_ROWS, (1, rows))
    models = {way: make_onnx(one_product(weight, way), "weights") for way in (WIDE, STORED_WAY, SUMMED)}
    sessions = {way: onnx_session(model.SerializeToString(), threads) for way, model in models.items()}
    times: dict[SpelledWay, list[float]] = {way: [] for way in sessions}
    for _ in range(PROBE_CALLS):
        for way, session in sessions.items():
            session.run(None, {IDS: ids})
            begun = perf_counter()
            session.run(None, {IDS: ids})
            times[way].append(perf_counter() - begun)
    return min(times, key=lambda way: min(times[way]))


def one_product(weight: WholeNumbers, way: SpelledWay) -> ProgramGraph:
    """Return the graph of rows of a small table times a weight."""
    graph = ArrayGraph()
    ids, inputs = graph.enter(IDS), len(weight.turn.factor if weight.turn else weight.whole)
    numbers = np.random.default_rng(1).standard_normal((TABLE_ROWS, inputs)).astype(np.float32)
    wide: Numeric = np.zeros((inputs, weight.whole.shape[1]), np.float32)
    matrix = graph.constant(wide) if way == WIDE else spell_weight(graph, weight, "weight", way)
    return ProgramGraph(graph, {IDS: ids}, {PRODUCT: take_rows(ids, graph.constant(numbers)) @ matrix})
