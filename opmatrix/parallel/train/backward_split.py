"""Forward and backward on a mesh: backward lines are split by the rules of forward lines, so the communication of
backward follows, without a table of duals. Weights are placed as in forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch_sizes import BatchSizes, Dims
from opmatrix.algebra.batch.mixtures import Mixture, contracts
from opmatrix.algebra.batch.traced import Operation, renumber
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import Shape
from opmatrix.autodiff.forward_lines import is_product
from opmatrix.autodiff.line_readings import COTANGENT
from opmatrix.autodiff.pullback import PassPhase, Pulled
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Partial
from opmatrix.parallel.sharding.carrying import Cuttable, asked_of
from opmatrix.parallel.sharding.cost_formulas import stored_arrays
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_dispatch import ask_experts
from opmatrix.parallel.sharding.placement import Placement, pass_rule, role_of
from opmatrix.parallel.sharding.redistribute import TURNED_ROLES, Ground, Ruling, WaitingScores
from opmatrix.parallel.sharding.spreading import Split, patterns_of_scores
from opmatrix.parallel.train.moe_gradients import BACK, MIXTURE, PART, split_mixture, split_part


class BackwardSplit(Split):
    """The steps of a pullback on a mesh. `places`: the step of each line; `step_phases`: the phase of each step.
    Attention in a ring, and over keys that stay, gathers its keys. Raises InputError as a split does."""

    def __init__(
        self,
        pulled: Pulled,
        mesh: Mesh,
        sizes: BatchSizes,
        *,
        selects: bool = False,
        cuts: Mapping[str, str] | None = None,
        last: bool = True,
    ) -> None:
        check_experts(pulled, mesh)
        self.pulled, self.selects, self.last, self.cuts = pulled, selects, last, dict(cuts or {})
        self.every, self.result = pulled.lines, pulled.result
        forward = self.every[: len(pulled.forward.values)]
        self.x: Shape = forward[0].shape
        carried = Cuttable(forward)
        Ground.__init__(
            self,
            mesh,
            sizes,
            carried,
            carried.spread(
                {
                    at: how
                    for at, line in enumerate(forward)
                    if line.op == "act"
                    and contracts(line.more[0])
                    and (how := asked_of(line.more[0].args[0], self.cuts))
                }
            ),
        )
        more = len(self.every) - len(forward)
        carried.carry += [False] * more
        carried.units += [None] * more
        carried.grain += [carried.grain[self.scores()]] * more
        self.place: dict[int, int | WaitingScores] = {}
        self.scored = patterns_of_scores(self.every)
        self.stored_as: dict[str, Placement] = {}
        self.combined: dict[Mixture, int] = {}
        self.step_phases: list[PassPhase] = []
        self.phase: PassPhase = "forward"
        for at, line in enumerate(self.every):
            self.phase = pulled.phases[at]
            self.place[at] = self.split(at, line, selects)
            self.note_phases()
        self.places = self.finish()

    @property
    def lines(self) -> Sequence[Operation]:
        """The lines of forward and backward."""
        return self.every

    def scores(self) -> int:
        """Return a line of forward that has as many heads as attention; the input if there is no attention."""
        candidates = (
            at for at, line in enumerate(self.every[: len(self.pulled.forward.values)]) if line.op == "shares"
        )
        return next(candidates, 0)

    def note_phases(self) -> None:
        """Assign the steps that were added since the last call to the present phase."""
        self.step_phases += [self.phase] * (len(self.steps) - len(self.step_phases))

    def finish(self) -> dict[int, int]:
        """Return the step of each line that is requested: the result, the cotangent of x, gradients, saved values. The
        first two are placed like forward's values between operators."""
        pulled, step_of = self.pulled, {at: self.settled(value) for at, value in self.place.items()}
        for at, phase in ((pulled.result, "forward"), (pulled.x, "backward")):
            if at is None:
                continue
            self.phase = "forward" if phase == "forward" else "backward"
            for k in range(len(self.mesh)):
                if not self.last or isinstance(self.steps[step_of[at]].placement.on(k), Partial):
                    step_of[at] = self.want(step_of[at], k, self.home(k, step_of[at]))
            self.note_phases()
        asked = [
            pulled.result,
            *([] if pulled.x is None else [pulled.x]),
            *pulled.gradients.values(),
            *pulled.pull.kept.values(),
            *pulled.masks,
        ]
        self.phase = "backward"
        live = [self.steps[at] for at in renumber(self.steps, {step_of[at] for at in asked})]
        self.stored_as = {key: lies for (key, lies), _, _ in stored_arrays(live)}
        for data, at in pulled.gradients.items():
            step_of[at] = self.as_stored(data, step_of[at])
        self.note_phases()
        place = renumber(self.steps, {step_of[at] for at in asked})
        steps = [self.steps[at]._replace(args=tuple(place[a] for a in self.steps[at].args)) for at in place]
        self.step_phases = [self.step_phases[at] for at in place]
        self.steps, self.out = steps, place[step_of[pulled.result]]
        return {at: place[step_of[at]] for at in asked}

    def as_stored(self, data: Data, at: int) -> int:
        """Return the gradient of an array, placed like the array, except for sums that stay partial."""
        lies = self.stored_as.get(stored_once(data).key)
        if lies is None:
            return at
        for k in range(len(self.mesh)):
            current, wanted = self.steps[at].placement.on(k), in_base(data, lies).on(k)
            if current == wanted or (isinstance(current, Partial) and wanted is None):
                continue
            if wanted is None and gives_to_one(current):
                step = self.steps[at]
                at = self.add(step._replace(placement=step.placement.but(k, Partial(monoids.sum))))
            else:
                at = self.want(at, k, wanted)
        return at

    def split(self, at: int, line: Operation, selects: bool) -> int | WaitingScores:
        """Add the step of a line. Ids of tokens are saved by the batch: they are no value of their own."""
        if line.op == "kept":
            source = self.settled(self.place[line.args[0]])
            if self.steps[source].selects:
                return source
        if line.op in (MIXTURE, BACK, PART):
            return self.asking(line)
        added = super().split(at, line, selects)
        if line.op == "entered" and line.more[0].name == COTANGENT and self.last:
            return self.as_result(added)
        return added

    def as_result(self, found: int | WaitingScores) -> int:
        """Place the cotangent of a last result like the result, so that scores of a vocabulary sharded by columns stay
        so. Sharded by rows, it would be redistributed with every score, and the gradient of the whole table summed over
        ranks."""
        step = self.steps[self.settled(found)]
        lies = self.steps[self.settled(self.place[self.result])].placement
        for k in range(len(self.mesh)):
            if not isinstance(lies.on(k), Cut):
                lies = lies.but(k, step.placement.on(k))
        return self.add(step._replace(placement=lies, rules=tuple((k, "slice") for k, _ in lies.cuts)))

    def asking(self, line: Operation) -> int:
        """Add the steps of a mixture, forward and backward."""
        args = [self.settled(self.place[a]) for a in line.args]
        if line.op == BACK:
            return split_mixture(self, line, args)
        if line.op == PART:
            return split_part(self, line, args[0])
        [mixture] = line.more
        self.combined[mixture] = ask_experts(self, mixture, self.sizes.dims(line.shape, line.level), *args)
        return self.combined[mixture]

    def ruled(self, at: int, line: Operation, dims: Dims, args: list[int]) -> int:
        """Split a line as in forward; a stored matrix that forward has read is placed as it is there."""
        added = super().ruled(at, line, dims, args)
        step = self.steps[added]
        if line.op == "act" and self.phase == "forward":
            for data in line.more[0].args:
                if isinstance(data, Data):
                    self.stored_as[stored_once(data).key] = in_base(data, step.stored)
        return added

    def ruling(self, k: int, at: int, line: Operation, args: Sequence[int]) -> Ruling:
        """Return the ruling of a line; backward products with a weight follow the placement that forward gave it."""
        matrix = line.more[0] if line.op == "act" else None
        if matrix is not None and self.phase != "forward" and is_product(line):
            data = matrix.args[0]
            if len(data.shape) == 2 and not self.steps[args[0]].selects:
                return self.lying(k, in_base(data, self.stored_as[stored_once(data).key]).on(k), args)
        return super().ruling(k, at, line, args)

    def lying(self, k: int, stored: AxisState, args: Sequence[int]) -> Ruling:
        """Return the ruling of x @ W for a W of a given placement."""
        state = self.merged_on(k, args[0])
        if isinstance(stored, Cut) and stored.role == "rows":
            return [stored._replace(role="cols")], Partial(monoids.sum), stored, "rows of a matrix"
        if isinstance(stored, Cut):
            return [None], stored, stored, "columns of a matrix"
        if self.phase == "backward" and gives_to_one(state):
            return [state], Partial(monoids.sum), None, "rows of a matrix"
        if role_of(state) == "cols":
            state = self.home(k, args[0])
        return [state], state, None, pass_rule(state)


def check_experts(pulled: Pulled, mesh: Mesh) -> None:
    """Raise InputError for experts on an axis of their own, if lines do not route rows to them."""
    axis = mesh.experts
    if axis is None or axis.ranks == 1:
        return
    if not pulled.routed:
        raise InputError(f"mesh: {axis.name}: rows must be routed to experts here: pullback(.., routed=True)")


def gives_to_one(state: AxisState) -> bool:
    """True if a cotangent is each rank's contribution to one head that all ranks copy: a part of a sum for replicated
    weights."""
    return isinstance(state, Cut) and state.copied and state.units == 1


def stored_once(data: Data) -> Data:
    """Return the array that is stored: of a transpose, its base."""
    return data.base or data


def in_base(data: Data, stored: Placement) -> Placement:
    """Return the placement of an array as it is stored from that as it is read, or the other way round; they differ if
    it is read transposed."""
    return stored if data.base is None else stored.turned(TURNED_ROLES)
