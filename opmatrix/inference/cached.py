"""From a program for whole sequences to one for their new rows, step by step: keys and values of earlier rows are
stored in caches; the last rows that shifts and scans read, and the sums of linear attention, in states. Running a saved
program imports no terms for it (cached_terms.py does the same for a model).

Every other operator computes a row from that row alone, and its position, or from the last row of each sequence, which
is new. So attention reads its keys and values from caches, to which those of the new rows are appended just before,
already rotated by RoPE. A shift reads rows before new ones from a state, a scan goes on from its last result, linear
attention from its sums; the next state is written once all steps have read it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import HELD
from opmatrix.algebra.batch.signature import FLOAT, STATE_SPACE, Port, check_cache
from opmatrix.algebra.positions.patterns import FAR, Pattern, parse
from opmatrix.runtime.declarations.arguments import Arguments
from opmatrix.runtime.declarations.operands import C, Heads, Rows
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.schedule import Call
from opmatrix.runtime.seen import pattern

CAUSAL = "sequence & causal"  # the rows that a row sees through caches, at most
ELSEWHERE = (
    f"it reads other rows; from new rows alone only attention where {CAUSAL!r}, with a window or without, shifts, "
    "scans and linear attention up to each row can be computed"
)


def cached(program: Program, number: str | None = None) -> Program:
    """Return a program with state whose session computes, for new rows, the same as `program` for whole sequences. It
    has the same steps, but attention in float32 over caches, and shifts, scans and linear attention that go on from
    states. The caches hold numbers of type `number`: float32, or bf16, to which keys and values are rounded; None means
    bf16 for the keys and values that the program rounds to it, else float32. Raises InputError for another type, for a
    program that reads inputs, and if a step reads other rows in any other way than as causal attention within
    sequences, of all rows or of a window of them, as a shift, or as a scan or linear attention up to each row."""
    if number is not None:
        check_cache(number)
    if program.schedule.spaced:
        port = program.schedule.spaced[0]
        raise InputError(f"cached: the program reads input {port.name}: a session is given tokens alone")
    steps: list[Step] = []
    bound = [*zip(program.steps, program.schedule.calls[program.schedule.first :], strict=True)]
    forms = CacheForms.of(bound, number)
    ports: dict[str, Port] = {}
    kept = find_kept(program, bound)
    for i, (step, call) in enumerate(bound):
        if of_new_rows(call):
            steps.append(step)
        elif call.kernel.state is not None or call.kernel.carried(call.bound):
            steps.append(carried_step(step, call))
        elif causal(call):
            of_caches = attention_of_caches(step, call, forms.shared_columns(step))
            for name in {step.operands[operand]: None for operand in "kv"}:
                if name not in ports and behind(name) in of_caches.operands.values():
                    ports[name] = forms.port(name)
                    steps.append(forms.appending(name))
            steps.append(of_caches)
        else:
            raise InputError(f"step {i}, {step.output} = {step.kernel}: {ELSEWHERE}")
        steps += [each.writing for each in kept.values() if each.reader == i]
    if not (ports or kept):
        raise InputError(
            "cached: no step of this program is attention, a recurrence, a shift or a scan: there is nothing to cache"
        )
    read = {name for step in steps for name in step.operands.values()}
    steps = [step for step in steps if step.output in read or step.output not in forms.rounding]
    meta = {name: entry for name, entry in program.meta.items() if name != "certificate"}
    state = {port.name: behind(name) for name, port in ports.items()}
    state |= {each.port.name: each.after for each in kept.values()}
    inputs = [*program.inputs, *ports.values(), *(each.port for each in kept.values())]
    return Program(steps, program.constants, program.outputs, meta, inputs=inputs, state=state)


class KeptState(NamedTuple):
    """A state of sequences: its port, the number of the last step that reads it, and the kernel that writes the next
    from these operands."""

    port: Port
    reader: int
    kernel: str
    operands: Mapping[str, str]

    @property
    def after(self) -> str:
        """The name of the state with the last new rows."""
        return f"next {self.port.name}"

    @property
    def writing(self) -> Step:
        """The step that writes the next state."""
        return Step(self.kernel, {**self.operands, "state": self.port.name}, {}, self.after)


def find_kept(program: Program, bound: Sequence[tuple[Step, Call]]) -> dict[str, KeptState]:
    """Return the states that a session keeps, by name: last rows of values, and what recurrences leave; `bound`: the
    steps with their calls. Raises InputError for a scan that needs more."""
    values = [*(port.name for port in program.inputs), *(step.output for step in program.steps)]
    shapes = dict(zip(values, (call.shape for call in program.schedule.calls), strict=True))
    kept: dict[str, KeptState] = {}
    for i, (step, call) in enumerate(bound):
        try:
            wanted = call.kernel.carried(call.bound)
            state = None if call.kernel.state is None else call.kernel.state(call.bound)
        except ValueError as error:
            raise InputError(f"step {i}, {step.output} = {step.kernel}: {ELSEWHERE}: {error}") from None
        for operand, count in wanted.items():
            name = step.operands.get(operand, step.output)
            shape = shapes[name]
            assert isinstance(shape, Rows | Heads)
            held = kept[of_rows(name)].port.columns if of_rows(name) in kept else 0
            port = Port(of_rows(name), STATE_SPACE, max(held, count * shape.cols), getattr(shape, "heads", 1))
            kept[port.name] = KeptState(port, i, "keep_rows", {"x": name})
        if state is not None:
            port = Port(of_sums(step), STATE_SPACE, state.cols, state.heads)
            kept[port.name] = KeptState(port, i, call.kernel.kept_variant, kept_operands(step, call))
    return kept


of_rows: Callable[[str], str] = "state {}".format  # the name of the state that holds the last rows of a value


def of_sums(step: Step) -> str:
    """Return the name of the state that a recurrence leaves."""
    return f"sums {step.output}"


def kept_operands(step: Step, call: Call) -> dict[str, str]:
    """Return the operands of a step that the kernel of its next state has."""
    writer = KERNELS[call.kernel.kept_variant]
    return {name: value for name, value in step.operands.items() if name in writer.operands}


def carried_step(step: Step, call: Call) -> Step:
    """Return the step that computes a step for new rows, from states."""
    if call.kernel.state is not None:
        states = {"s0": of_sums(step)}
    else:
        states = {
            f"s{operand[1:] if operand in step.operands else 0}": of_rows(step.operands.get(operand, step.output))
            for operand in call.kernel.carried(call.bound)
        }
    return Step(call.kernel.carried_variant, {**step.operands, **states}, step.attributes, step.output)


class CacheForms(NamedTuple):
    """The forms in which the keys and values of a program are stored in caches."""

    shapes: Mapping[str, Heads]  # shape of each value by heads
    rounding: Mapping[str, tuple[str, str]]  # rounded value -> the value before, the number type
    number: str | None  # number type of all caches; None for those of the program
    leading: Mapping[str, str]  # value -> the value that its first columns are

    @classmethod
    def of(cls, bound: Sequence[tuple[Step, Call]], number: str | None) -> "CacheForms":
        """Return the forms for a program of these steps, each with its call."""
        return cls(
            {step.output: call.shape for step, call in bound if isinstance(call.shape, Heads)},
            {step.output: (step.operands["x"], call.kernel.held_as) for step, call in bound if call.kernel.held_as},
            number,
            {step.output: step.operands[call.kernel.leading] for step, call in bound if call.kernel.leading},
        )

    def shared_columns(self, step: Step) -> int:
        """Return the number of columns of the keys of an attention that are its values, which need no cache; 0 for
        values of their own."""
        k, v = (step.operands[operand] for operand in "kv")
        return self.shapes[v].cols if self.leading.get(k) == v else 0

    def unrounded(self, name: str) -> tuple[str, str]:
        """Return the value that a value is rounded from, and the number type of the rounding."""
        return self.rounding.get(name, (name, FLOAT))

    def port(self, name: str) -> Port:
        """Return the port of a value's cache."""
        _, rounded_to = self.unrounded(name)
        shape, number = self.shapes[name], rounded_to if self.number is None else self.number
        return Port(f"cache {name}", str(C), shape.cols, shape.heads, number)

    def appending(self, name: str) -> Step:
        """Return the step that appends the new rows of a value to its cache, which rounds them to its number type."""
        source, rounded_to = self.unrounded(name)
        port = self.port(name)
        operands = {"x": source if port.number == rounded_to else name, "cache": port.name}
        return Step("append", operands, {} if port.number == FLOAT else {"number": port.number}, behind(name))


def attention_of_caches(step: Step, call: Call, shared: int = 0) -> Step:
    """Return the step that computes the attention of a step for new rows, over caches; `shared`: columns of its keys
    that are its values, 0 for none."""
    of_cache = {operand: behind(step.operands["k" if shared else operand]) for operand in "kv"}
    operands = {"q": step.operands["q"], **of_cache}
    operands |= {name: value for name, value in step.operands.items() if name in ("bias", "margin")}
    attributes = {"scale": step.attributes.get("scale", 1.0)}
    if shared:
        attributes["values"] = shared
    if cap := step.attributes.get("cap"):
        attributes["cap"] = cap
    if hasattr(call.bound, "query"):
        attributes["rows"] = "last"
    return Step(call.kernel.cached_variant, operands, attributes | window_attribute(call.bound), step.output)


def decoder_of(program: Program) -> Program | None:
    """Return the program that sessions run: itself if it has state; None if it has no equivalent with state."""
    if program.state:
        return program
    try:
        return program.decoder
    except InputError:
        return None


behind: Callable[[str], str] = "cached {}".format  # the name of a cache with the new rows of a value


def of_new_rows(call: Call) -> bool:
    """True if a step computes each row from one that is new: itself, or the last of its sequence."""
    moved = getattr(call.bound, "how", getattr(call.bound, "rows", ""))
    return not call.kernel.row_mixing and (not call.kernel.changes_space or moved in ("all", "last"))


def causal(call: Call) -> bool:
    """True if a step is attention of rows to rows up to themselves, to all of them or to a window; the last row of a
    sequence is followed by no other."""
    if not call.kernel.cached_variant:
        return False
    seen, query = pattern(call.bound), getattr(call.bound, "query", "")
    if query:
        return query == "last" and seen.within and looks_back(seen & parse(CAUSAL))
    return seen.within and looks_back(seen)


def looks_back(seen: Pattern) -> bool:
    """True if a row sees itself and, of the rows before it, all or a window."""
    return seen.reach is not None and seen.reach[0] >= 0 and seen.reach[1] == 0


def window_attribute(bound: Arguments) -> dict[str, int]:
    """Return the attribute that gives a step over caches the window of the attention that it replaces."""
    reach = pattern(bound).reach
    return {"behind": reach[0]} if reach is not None and reach[0] < FAR else {}


def rows_behind(program: Program) -> int:
    """Return the number of rows behind a new one that some step of a program with state reads from caches: FAR if one
    reads all."""
    if all(port.space == STATE_SPACE for port in program.inputs if port.name in program.state):
        return 0
    reading = [call.bound for call in program.schedule.calls if HELD in call.kernel.relations(call.bound)]
    return max((min(FAR, getattr(bound, "behind", FAR)) for bound in reading), default=FAR)
