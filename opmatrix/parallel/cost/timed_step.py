"""`timed_step`: a model on a mesh, a batch cut into micro-batches, a schedule; from them a step of training in time."""
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

RECOMPUTED = {"none": "units", "selective": "selective", "full": "full"}      # what is kept, by what is computed again


def timed_step(model: Operator | Settings, mesh: Mesh, sizes: BatchSizes, schedule: str = USUAL_SCHEDULE.name,
               micro_batches: int = 1, *, recompute: str = "none", dropout: float = 0, state: str = "16",
               sheet: Datasheet | None = None, stages: Sequence[int] | None = None) -> TrainedPipeline:
    """A step of training: a batch of those sizes, numbers, cut into micro-batches that go through the stages of a mesh
    by a schedule (`1f1b`, `interleaved:2`, ...; docs/tables.md has all). `recompute`: none, selective, full. `state`:
    bytes a parameter, 16, 18 or 20. `sheet`: a machine, for seconds. Raises InputError for what does not fit."""
    kind = pipeline_kind(schedule)
    for what, given, names in (("recompute", recompute, RECOMPUTED), ("state", state, STATES)):
        if given not in names:
            raise InputError(f"{what} {given!r}: {suggest_name(given, names)}it is one of {', '.join(names)}")
    model = model if isinstance(model, Operator) else promised(model)
    mesh = mesh_of_chunks(mesh, kind, len(layers(chain(model))))
    own = sizes._replace(sequences=cut_batch(sizes.sequences, micro_batches))
    plan = partition(model, mesh, own, stages=stages)
    found = TrainedPipeline(training_step(plan, RECOMPUTED[recompute], dropout), kind, micro_batches,
                            state=STATES[state], sheet=sheet)
    found.graph                                             # noqa: B018 - refuses what there is no order of
    return found


def mesh_of_chunks(mesh: Mesh, kind: ChunkedSchedule, count: int) -> Mesh:
    """A mesh with a stage for each chunk of a pipeline, of a model of so many layers. Raises InputError for chunks that
    layers do not divide into, and for chunks without stages."""
    along = mesh.stages
    if kind.chunks == 1: return mesh
    if along is None:
        raise InputError(f"schedule {kind}: chunks are of stages, of which there is one: give --pp, or an axis of them")
    kind.check_layers(count, along.count)
    return replace(mesh, axes=tuple(replace(axis, ranks=axis.count * kind.chunks) if axis is along else axis
                                    for axis in mesh.axes))


def cut_batch(batch: LiveSize, micro_batches: int) -> int:
    """The sequences of a micro-batch. Raises InputError for a batch that is not cut into as many."""
    if not isinstance(batch, int): raise InputError(f"micro-batches {micro_batches}: a batch of {batch}: give a number")
    if micro_batches > batch:
        raise InputError(f"micro-batches {micro_batches}: a batch of {batch} sequences has at most {batch}")
    if micro_batches < 1 or batch % micro_batches:
        raise InputError(f"micro-batches {micro_batches}: {batch} sequences are not cut into as many: give a divisor "
                         f"of {batch}")
    return batch // micro_batches
