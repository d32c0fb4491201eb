"""A decoder as a graph: new rows of sequences, and the caches and states of the rows before them as inputs and outputs.

The steps are those of the program's sessions (opmatrix/inference/cached.py), so what a session computes over caches of
keys and values, and from states, is exported, for any family. One graph serves the prompt, before which no row is, and
each step."""

from collections import Counter
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
from opmatrix.runtime.declarations.operands import States
from opmatrix.runtime.declarations.padded import CachedBatch
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program

OPERAND_NAMES = {"k": "key", "v": "value"}  # operands of attention, by their names in other libraries
PAST_NAME, PRESENT_NAME = "past_key_values", "present"
STATE_KINDS = {"last rows": ("conv", "x"), "sums": ("ssm", "v")}  # parts that write states: their names in other
# libraries, and the operands with the columns of their rows
SCANNING, SCAN_STATE = "merging", "ssm"  # the part of a scan, and the name of a state that is its last result


@dataclass(frozen=True)
class ExportedCache:
    """A cache of an export, or a state, which has the same rows at any length: its input and its output, its heads,
    rows (PAST for those of a cache) and columns."""

    past: str
    present: str
    heads: int
    rows: int | str
    columns: int

    def zeros(self, sequences: int, past: int = 0) -> Numeric:
        """Return a cache of so many rows of sequences, (sequences, heads, past, columns): by default before any; or a
        state before any."""
        rows = past if isinstance(self.rows, str) else self.rows
        return np.zeros((sequences, self.heads, rows, self.columns), np.float32)


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


def find_states(decoder: Program) -> dict[str, ExportedCache]:
    """Return the states of a program with state by their ports: last rows of a value that is shifted (`conv`), the last
    result of a scan or the sums of a recurrence (`ssm`), each kind numbered from 0."""
    ports = {after: port for port, after in decoder.state.items()}
    makers = {step.output: KERNELS[step.kernel].part for step in decoder.steps}
    states, counts = dict[str, ExportedCache](), Counter[str]()
    for step, call in zip(decoder.steps, decoder.schedule.calls[decoder.schedule.first :], strict=True):
        if call.kernel.part not in STATE_KINDS or not isinstance(call.shape, States):
            continue
        kind, operand = STATE_KINDS[call.kernel.part]
        if makers.get(step.operands[operand]) == SCANNING:
            kind = SCAN_STATE
        heads, numbers = call.shape.heads, call.shape.cols
        columns = getattr(call.bound, operand).cols
        past, present = (f"{when}_{kind}.{counts[kind]}" for when in ("past", PRESENT_NAME))
        states[ports[step.output]] = ExportedCache(past, present, heads, numbers // columns, columns)
        counts[kind] += 1
    return states


def find_caches(program: Program) -> dict[str, ExportedCache]:
    """Return the caches and states that the export of a program has, by their ports. Raises InputError for a program
    without an equivalent over these."""
    decoder, caches = program.decode_with(FLOAT), dict[str, ExportedCache]()
    names, states = name_caches(decoder), find_states(decoder)
    for port in decoder.inputs:
        if port.name in states:
            caches[port.name] = states[port.name]
            continue
        past, present = (f"{when}.{names[port.name]}" for when in (PAST_NAME, PRESENT_NAME))
        caches[port.name] = ExportedCache(past, present, port.heads, PAST, port.columns)
    return caches


def read_cached(program: Program, spelling: WeightSpelling = WIDENED) -> ProgramGraph:
    """Return the graph of a language model over caches: `input_ids` (batch, length) of new rows, `attention_mask`
    (batch, past + length) of all rows, and for each attention `past_key_values.N.key` and `.value` (batch, heads, past,
    columns), to `logits` and `present.N.key` and `.value`; states are `past_conv.N` and `past_ssm.N` (batch, heads,
    rows, columns), to `present_conv.N` and `present_ssm.N`. All are in float32. Raises InputError for a program that
    gives no logits, and as `cached` and `read_program` do."""
    if not speaks(program):
        raise InputError("--caches: this program gives no logits of next tokens: caches are those of language models")
    decoder, graph, caches = program.decode_with(FLOAT), ArrayGraph(), find_caches(program)
    inputs = {IDS: graph.enter(IDS), MASK: graph.enter(MASK, (BATCH, TOTAL))}
    kinds = graph.enter(TYPE_IDS)
    pasts = {
        cache.past: graph.enter(cache.past, (BATCH, cache.heads, cache.rows, cache.columns), FLOAT)
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
