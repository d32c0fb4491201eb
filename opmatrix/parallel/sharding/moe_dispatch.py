"""Rows that are routed to experts: each row is sent to the ranks of the experts of its gate, answered there and sent
back, and its answers are summed in ascending order of experts. On an axis of experts each rank has some experts, for
the rows of its whole group. If the mesh has nodes a row visits each node once: it goes to the rank with the same
position in that node, which sends it on to the experts of the node and returns the sum of their answers."""

from __future__ import annotations

from collections.abc import Sequence

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.batch.mixtures import Mixture
from opmatrix.algebra.data import Data
from opmatrix.parallel.sharding.axis_states import AxisState, Cut
from opmatrix.parallel.sharding.mesh import Axis, nearest_divisor
from opmatrix.parallel.sharding.moe_layers import BodyStates, cut_body, stacks
from opmatrix.parallel.sharding.placement import Placement, pass_rule, role_of
from opmatrix.parallel.sharding.redistribute import Ground, RankStep

# rows to nodes, to experts, through them, and back
ASKED = "visit", "dispatch", "answer", "combine", "leave"
TO, AT, BACK, CUT = "rows to their experts", "experts of a rank", "answers of all ranks", "units of experts"


def ask_experts(split: Ground, mixture: Mixture, dims: Dims, rows: int, gate: int) -> int:
    """Add the steps of a mixture, and return that of its sum. `rows` and `gate` are the steps of its operands, `dims`
    the sizes of its sum."""
    axis = experts_axis(split, mixture)
    number = None if axis is None else split.mesh.index(axis.name)
    bodies: dict[int, BodyStates] = {}
    for k, mesh_axis in enumerate(split.mesh.axes):
        state = split.merged_on(k, rows)
        if role_of(state) not in ("batch", "rows"):
            state = split.home(k, rows)
        if mesh_axis.strategy.weights:
            if axis is not None and k in split.mesh.folded:
                if state is None:
                    state = split.shared(k, Cut("rows", split.steps[rows].dims.rows))
            elif (cut := cut_body(mixture.body)) is not None:
                bodies[k], state = cut, None
                check_units(mesh_axis, mixture, cut)
        rows, gate = split.want(rows, k, state), split.want(gate, k, state)
    source = split.steps[rows]
    passed = tuple((k, pass_rule(state)) for k, state in source.placement.cuts)

    def add(
        op: str, args: tuple[int, ...], more: tuple[object, ...], dims: Dims, placement: Placement, rule: str
    ) -> int:
        """Add a step of the mixture, with the rules of the axes that route, share or pass its rows."""
        named = tuple((k, CUT) for k in bodies if placement.on(k) is not None)
        of_experts = () if number is None else ((number, rule),)
        return split.add(RankStep(op, args, more, dims, placement, why=rule, rules=(*passed, *named, *of_experts)))

    answered = source.placement
    for k, cut in bodies.items():
        answered = answered.but(k, cut.values[-1])
    more = mixture.experts, mixture.asked, number
    taken: tuple[int, ...] = rows, gate
    visits = axis is not None and split.mesh.nodes > 1
    split.mesh.visited(mixture.asked)  # raises if rows do not visit nodes evenly
    if visits:
        taken = (add("visit", taken, more, source.dims, source.placement, TO),)
    sent = add("dispatch", taken, more, source.dims, source.placement, TO)
    body = tuple(body_steps(mixture, bodies, number))
    answers = add("answer", (sent,), (body,), dims, answered, AT)
    total = add("combine", (answers, taken[-1]), more, dims, answered, BACK)
    return add("leave", (total, gate), more, dims, answered, BACK) if visits else total


def mixture_steps(steps: Sequence[RankStep], at: int) -> tuple[int, int]:
    """Return the step of the rows of a mixture and the step of its answers, given its last step."""
    answer = at
    while steps[answer].op != "answer":
        answer = steps[answer].args[0]
    rows = answer
    while steps[rows].op in ASKED:
        rows = steps[rows].args[0]
    return rows, answer


def experts_axis(split: Ground, mixture: Mixture) -> Axis | None:
    """Return the axis of experts if it has more than one rank, else None. Raises InputError for ranks among which
    experts cannot be shared evenly."""
    axis = split.mesh.experts
    if axis is None or axis.ranks == 1:
        return None
    if isinstance(mixture.experts, int) and isinstance(axis.ranks, int) and mixture.experts % axis.ranks:
        raise InputError(
            f"mesh: {axis.name} has {axis.ranks} ranks and there are {mixture.experts} experts: the "
            f"nearest that divides is {nearest_divisor(mixture.experts, axis.ranks)}"
        )
    return axis


def check_units(axis: Axis, mixture: Mixture, cut: BodyStates) -> None:
    """Raise InputError for more ranks than an expert has hidden units."""
    for line, state in zip(mixture.body, cut.stored, strict=True):
        if not (isinstance(state, Cut) and isinstance(state.units, int) and isinstance(axis.ranks, int)):
            continue
        if state.units < axis.ranks:
            raise InputError(
                f"mesh: {axis.name} has {axis.ranks} ranks, and {line.more[0]} has {state.units} hidden "
                f"units of each expert: the nearest that divides is {state.units}"
            )


def body_steps(mixture: Mixture, bodies: dict[int, BodyStates], number: int | None) -> list[RankStep]:
    """Return the steps of an expert for one row: value sizes are those of a row, and stored numbers are those of all
    experts."""
    steps = []
    for at, line in enumerate(mixture.body):
        placement, stored = Placement(), Placement()
        if number is not None and line.op == "act" and stacks(line.more[0]):
            stored = stored.but(number, Cut("heads", mixture.experts))
        for k, cut in bodies.items():
            placement = placement.but(k, cut.values[at])
            if line.op == "act" and any(isinstance(argument, Data) for argument in line.more[0].args):
                stored = stored.but(k, stored_state(line.more[0].args[0], cut.stored[at]))
        steps.append(RankStep(line.op, line.args, line.more, Dims(cols=line.shape.cols), placement, stored))
    return steps


def stored_state(data: Data, state: AxisState) -> AxisState:
    """Return the placement of an array whose matrix is sharded by columns or rows; a single column is not sharded by
    columns."""
    return None if data.shape[-1] == 1 and role_of(state) == "cols" else state
