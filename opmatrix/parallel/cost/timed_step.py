"""`timed_step`: a step of training in time, from a model on a mesh, a batch split into micro-batches, and a
schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import Datasheet
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models import promised
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.step_costs import training_step
from opmatrix.parallel.cost.step_time import STATES, TrainedPipeline
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE, ChunkedSchedule, pipeline_kind
from opmatrix.parallel.sharding.factor_chain import chain, layers
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

RECOMPUTED = {"none": "units", "selective": "selective", "full": "full"}  # recompute -> checkpoint policy


def timed_step(
    model: Operator | Settings,
    mesh: Mesh,
    sizes: BatchSizes,
    schedule: str = USUAL_SCHEDULE.name,
    micro_batches: int = 1,
    *,
    recompute: str = "none",
    dropout: float = 0,
    state: str = "16",
    sheet: Datasheet | None = None,
    stages: Sequence[int] | None = None,
) -> TrainedPipeline:
    """Build a step of training. `sizes`: the batch, as numbers; it is split into micro-batches that go through the
    stages of the mesh by a schedule (`1f1b`, `interleaved:2`, ...; docs/tables.md has all). `recompute`: none,
    selective, full. `state`: bytes a parameter, 16, 18 or 20. `sheet`: a machine, for seconds. Raises InputError for
    values that do not fit together."""
    kind = pipeline_kind(schedule)
    for what, value, names in (("recompute", recompute, RECOMPUTED), ("state", state, STATES)):
        if value not in names:
            raise InputError(f"{what} {value!r}: {suggest_name(value, names)}it is one of {', '.join(names)}")
    model = model if isinstance(model, Operator) else promised(model)
    mesh = mesh_of_chunks(mesh, kind, len(layers(chain(model))))
    micro_batch = sizes._replace(sequences=cut_batch(sizes.sequences, micro_batches))
    plan = partition(model, mesh, micro_batch, stages=stages)
    pipeline = TrainedPipeline(
        training_step(plan, RECOMPUTED[recompute], dropout), kind, micro_batches, state=STATES[state], sheet=sheet
    )
    pipeline.graph  # noqa: B018 - InputError if the schedule has no order
    return pipeline


def mesh_of_chunks(mesh: Mesh, kind: ChunkedSchedule, count: int) -> Mesh:
    """Return a mesh with a stage for each virtual stage of a pipeline; `count` is the number of layers of the model.
    Raises InputError if the layers do not divide into the virtual stages, and for virtual stages on a mesh without
    stages."""
    along = mesh.stages
    if kind.chunks == 1:
        return mesh
    if along is None:
        raise InputError(f"schedule {kind}: virtual stages need a pipeline: give --pp, or an axis of stages")
    kind.check_layers(count, along.count)
    return replace(
        mesh, axes=tuple(replace(axis, ranks=axis.count * kind.chunks) if axis is along else axis for axis in mesh.axes)
    )


def cut_batch(batch: LiveSize, micro_batches: int) -> int:
    """Return the sequences of a micro-batch. Raises InputError for a batch that does not divide into
    `micro_batches`."""
    if not isinstance(batch, int):
        raise InputError(f"micro-batches {micro_batches}: the batch {batch} is a symbol: give a number")
    if micro_batches > batch:
        raise InputError(f"micro-batches {micro_batches}: a batch of {batch} sequences has at most {batch}")
    if micro_batches < 1 or batch % micro_batches:
        raise InputError(
            f"micro-batches {micro_batches}: {batch} sequences do not divide into as many: give a divisor of {batch}"
        )
    return batch // micro_batches
