"""A program as a graph: every step read at padded values, constants as its weights store them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from formats.core.errors import InputError
from formats.storage.format import Format, WholeNumbers
from formats.storage.stacked import Stacked
from opmatrix.algebra.shapes import ShapeError
from opmatrix.exports.graph import ArrayGraph, SymbolicArray
from opmatrix.exports.spelled_weights import (
    SUMMED,
    WIDE,
    WIDENED,
    SpelledWay,
    WeightSpelling,
    spell_narrow,
    spell_weight,
)
from opmatrix.inference.generation import speaks
from opmatrix.runtime.declarations.operands import Tables
from opmatrix.runtime.declarations.padded import Padded, PaddedBatch, Unpadded
from opmatrix.runtime.program import Constant, Program
from opmatrix.runtime.schedule import Call

IDS, MASK, TYPE_IDS = "input_ids", "attention_mask", "token_type_ids"
SENTENCE_ROW, TOKEN_ROWS, LOGITS = "sentence_embedding", "last_hidden_state", "logits"
NARROW_BITS = 16
STEP_FAULTS = ShapeError, TypeError, ValueError, AttributeError, KeyError, IndexError


class FactorPair:
    """Two constants whose product is a matrix: x @ W is (x @ u) @ v."""

    __array_ufunc__ = None

    def __init__(self, u: Padded, v: Padded) -> None:
        self.u, self.v, self.shape = u, v, (u.shape[0], v.shape[1])

    def __rmatmul__(self, x: Padded) -> Padded:
        return (x @ self.u) @ self.v


@dataclass(frozen=True)
class ProgramGraph:
    """The graph of a program; its inputs by name, its outputs by name, and how many weights of each format are widened
    to float32, stored in 16 bits, stored as whole numbers that products widen, and multiplied as integers."""

    graph: ArrayGraph
    inputs: Mapping[str, SymbolicArray]
    outputs: Mapping[str, SymbolicArray]
    widened: Mapping[str, int] = field(default_factory=dict)
    narrow: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)
    multiplied: Mapping[str, int] = field(default_factory=dict)


class GraphConstants:
    """The matrices of a program as constants of a graph, each made when it is read; arrays are named in the graph."""

    def __init__(self, program: Program, graph: ArrayGraph, spelling: WeightSpelling) -> None:
        self.graph, self.spelling = graph, spelling
        self.widened, self.narrow = Counter[str](), Counter[str]()
        self.stored, self.multiplied = Counter[str](), Counter[str]()
        self.names = {id(constant): name for name, constant in program.constants.items()}
        self.made: dict[int, Padded] = {}
        for name, constant in program.constants.items():
            if isinstance(constant, np.ndarray):
                graph.name(constant, name)

    def of(self, constant: Constant) -> Padded:
        """Return an array as it is, a matrix as a symbol, one of low rank as its factors."""
        if isinstance(constant, np.ndarray):
            return constant
        if id(constant) not in self.made:
            self.made[id(constant)] = self.make(constant, self.names[id(constant)])
        return self.made[id(constant)]

    def make(self, constant: Format | Stacked, name: str) -> Padded:
        """Add a matrix to the graph. A format whose product has two factors keeps them."""
        if isinstance(constant, Format) and self.spelling is not WIDENED:
            parts = [(part, self.spelling.way(part)) for part in constant.integers()]
            if parts and all(way != WIDE for _, way in parts):
                return self.spell(constant, parts, name)
        if self.spelling.narrow and isinstance(constant, Format) and constant.narrowest() == NARROW_BITS:
            if (matrix := spell_narrow(self.graph, np.asarray(constant.wide(), np.float32), name)) is not None:
                self.narrow[constant.name] += 1
                return matrix
        form = constant.form if isinstance(constant, Stacked) else type(constant)
        factors = constant.factored() if isinstance(constant, Format) else None
        if form.rounds or not (form.plain or factors):
            self.widened[constant.name] += 1
        if factors:
            u, v = (self.graph.constant(part, f"{name}.{k}") for k, part in zip("uv", factors, strict=True))
            return FactorPair(u, v)
        return self.graph.constant(np.asarray(constant.wide(), np.float32), name)

    def spell(self, constant: Format, parts: list[tuple[WholeNumbers, SpelledWay]], name: str) -> Padded:
        """Add a matrix of whole numbers, or its two factors, each in its way."""
        counted = self.multiplied if all(way == SUMMED for _, way in parts) else self.stored
        counted[f"{constant.name}, dense," if constant.prunes else constant.name] += 1
        if len(parts) == 1:
            [(part, way)] = parts
            return spell_weight(self.graph, part, name, way)
        u, v = (spell_weight(self.graph, part, f"{name}.{k}", way) for k, (part, way) in zip("uv", parts, strict=True))
        return FactorPair(u, v)


def read_program(program: Program, spelling: WeightSpelling = WIDENED) -> ProgramGraph:
    """Return the graph of a program, its weights in that spelling. Raises InputError, which names the step, for a
    kernel or a term without a reading, and for an input that other runtimes do not have."""
    if program.inputs:
        raise InputError(
            f"input {program.inputs[0]}: an export takes token ids alone: this program reads a matrix that a batch of "
            "this project gives"
        )
    graph = ArrayGraph()
    constants, inputs = GraphConstants(program, graph, spelling), {name: graph.enter(name) for name in (IDS, MASK)}
    kinds = graph.enter(TYPE_IDS)
    batch = PaddedBatch(inputs[IDS], inputs[MASK] != 0, kinds)
    values = read_steps(program, constants, batch, [])
    outputs = name_outputs(program, [values[at] for at in program.schedule.results])
    if depends_on(graph, outputs, kinds):
        inputs[TYPE_IDS] = kinds
    return ProgramGraph(
        graph, inputs, outputs, constants.widened, constants.narrow, constants.stored, constants.multiplied
    )


def read_steps(
    program: Program, constants: GraphConstants, batch: PaddedBatch, entered: Sequence[Padded]
) -> list[Padded]:
    """Return the values of a program: its inputs, which have entered a graph, then the result of each step. Raises
    InputError, which names the step, for one without a reading."""
    values = [*entered]
    for step, call in zip(program.steps, program.schedule.calls[program.schedule.first :], strict=True):
        try:
            values.append(read_step(call, values, constants, batch))
        except Unpadded as error:
            raise InputError(f"step {step.output} = {step.kernel}: {error}: it cannot be exported") from None
        except STEP_FAULTS as error:
            fault = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"step {step.output} = {step.kernel}: no graph can record it: {fault}") from error
    return values


def read_step(call: Call, values: list[Padded], constants: GraphConstants, batch: PaddedBatch) -> Padded:
    """Return the result of one step. Raises Unpadded for a kernel without a reading."""
    kernel = call.kernel
    if kernel.padded is None:
        raise Unpadded("this kernel declares no padded reading")
    bound, arguments = vars(call.bound), dict[str, Padded]()
    for name, value in bound.items():
        wanted = kernel.wanted(name)
        if name in call.values:
            arguments[name] = values[call.values[name]]
        elif wanted is Tables and isinstance(value, tuple):
            arguments[name] = tuple(map(constants.of, value))
        elif isinstance(value, Format | Stacked):
            arguments[name] = constants.of(value)
        else:
            arguments[name] = value
    return kernel.padded(kernel.record(**arguments, batch=batch, shapes=call.bound))


def name_outputs(program: Program, values: list[Padded]) -> dict[str, SymbolicArray]:
    """Return the outputs by the names that other runtimes know: of one output by what it is, of several by their
    own."""
    if len(values) > 1:
        return dict(zip(program.outputs, values, strict=True))
    [value] = values
    if program.scoring or speaks(program):
        return {LOGITS: value}
    return {SENTENCE_ROW if program.pooled else TOKEN_ROWS: value}


def depends_on(graph: ArrayGraph, outputs: Mapping[str, SymbolicArray], entered: SymbolicArray) -> bool:
    """True if an output depends on an input."""
    return entered.number in live_nodes(graph, outputs)


def live_nodes(graph: ArrayGraph, outputs: Mapping[str, SymbolicArray]) -> set[int]:
    """Return the nodes that outputs depend on."""
    live, todo = set[int](), [x.number for x in outputs.values()]
    while todo:
        if (number := todo.pop()) not in live:
            live.add(number)
            todo += graph.nodes[number].operands
    return live
