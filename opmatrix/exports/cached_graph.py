"""A decoder as a graph: new rows of sequences, and the keys and values of the rows before them as inputs and outputs.

The steps are those of the program's sessions (opmatrix/inference/cached.py), so what a session computes over caches of
keys and values is exported, for any family. One graph serves the prompt, before which no row is, and each step."""

from dataclasses import dataclass

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import HELD
from opmatrix.algebra.batch.signature import FLOAT
from opmatrix.algebra.data import Numeric
from opmatrix.exports.graph import BATCH, PAST, TOTAL, ArrayGraph
from opmatrix.exports.program_graph import (
    IDS,
    MASK,
    TYPE_IDS,
    GraphConstants,
    ProgramGraph,
    depends_on,
    name_outputs,
    read_steps,
)
from opmatrix.exports.spelled_weights import WIDENED, WeightSpelling
from opmatrix.inference.generation import speaks
from opmatrix.runtime.declarations.padded import CachedBatch
from opmatrix.runtime.program import Program

OPERAND_NAMES = {"k": "key", "v": "value"}  # operands of attention, by their names in other libraries
PAST_NAME, PRESENT_NAME = "past_key_values", "present"


@dataclass(frozen=True)
class ExportedCache:
    """A cache of an export: its input and its output, and its heads and columns."""

    past: str
    present: str
    heads: int
    columns: int

    def zeros(self, sequences: int, past: int = 0) -> Numeric:
        """Return a cache of so many rows of sequences, (sequences, heads, past, columns): by default before any."""
        return np.zeros((sequences, self.heads, past, self.columns), np.float32)


def name_caches(decoder: Program) -> dict[str, str]:
    """Return the names of the caches of a program with state by their ports: the number of the first attention that
    reads each, and what it is there. Keys that are the values, too, are a cache of keys."""
    ports = {after: port for port, after in decoder.state.items()}
    names, layer = dict[str, str](), 0
    for step, call in zip(decoder.steps, decoder.schedule.calls[decoder.schedule.first :], strict=True):
        if HELD not in call.kernel.relations(call.bound):
            continue
        for operand, name in OPERAND_NAMES.items():
            names.setdefault(ports[step.operands[operand]], f"{layer}.{name}")
        layer += 1
    return names


def find_caches(program: Program) -> dict[str, ExportedCache]:
    """Return the caches that the export of a program has, by their ports. Raises InputError for a program without an
    equivalent over caches of keys and values alone."""
    decoder, caches = program.decode_with(FLOAT), dict[str, ExportedCache]()
    names = name_caches(decoder)
    for port in decoder.inputs:
        if port.name not in names:
            raise InputError(f"{port.name}: it is no cache of keys or values: --caches exports these alone")
        name = names[port.name]
        caches[port.name] = ExportedCache(f"{PAST_NAME}.{name}", f"{PRESENT_NAME}.{name}", port.heads, port.columns)
    return caches


def read_cached(program: Program, spelling: WeightSpelling = WIDENED) -> ProgramGraph:
    """Return the graph of a language model over caches: `input_ids` (batch, length) of new rows, `attention_mask`
    (batch, past + length) of all rows, and for each attention `past_key_values.N.key` and `.value` (batch, heads, past,
    columns), to `logits` and `present.N.key` and `.value`. Caches are in float32. Raises InputError for a program that
    gives no logits, and as `cached` and `read_program` do."""
    if not speaks(program):
        raise InputError("--caches: this program gives no logits of next tokens: caches are those of language models")
    decoder, graph, caches = program.decode_with(FLOAT), ArrayGraph(), find_caches(program)
    inputs = {IDS: graph.enter(IDS), MASK: graph.enter(MASK, (BATCH, TOTAL))}
    kinds = graph.enter(TYPE_IDS)
    pasts = {
        cache.past: graph.enter(cache.past, (BATCH, cache.heads, PAST, cache.columns), FLOAT)
        for cache in caches.values()
    }
    constants = GraphConstants(decoder, graph, spelling)
    batch = CachedBatch(inputs[IDS], inputs[MASK] != 0, kinds)
    values = read_steps(decoder, constants, batch, [pasts[caches[port.name].past] for port in decoder.inputs])
    results = dict(zip([step.output for step in decoder.steps], values[decoder.schedule.first :], strict=True))
    outputs = name_outputs(program, [values[at] for at in decoder.schedule.results])
    outputs |= {cache.present: results[decoder.state[name]] for name, cache in caches.items()}
    if depends_on(graph, outputs, kinds):
        inputs[TYPE_IDS] = kinds
    return ProgramGraph(
        graph, inputs | pasts, outputs, constants.widened, constants.narrow, constants.stored, constants.multiplied
    )
