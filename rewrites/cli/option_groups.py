"""Groups of options as records: a command takes the record, and its line has an option for each field."""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from opmatrix.inference.embed import BATCH_ROWS
from opmatrix.parallel.axes.known_axes import mesh_options
from opmatrix.parallel.axes.parallel_axis import AxisOption, MeshChoices
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE
from rewrites.cli import options

if TYPE_CHECKING:
    from opmatrix.parallel.sharding.mesh import Mesh
    from rewrites.serving.serving_limits import ServingLimits

Command = TypeVar("Command", bound=Callable[..., None])


def with_groups(command: Command) -> Command:
    """Decorate a command whose parameters may be records: its signature, which typer reads, has a parameter for each
    field in place of the record, with the field's annotation and default."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }

    @wraps(command)
    def line(**values: Any) -> None:
        """Collect the options of each group into its record, and run the command."""
        records = {name: take(group, values) for name, group in groups.items()}
        command(**values, **records)

    flat = [
        parameter
        for name, each in signature.parameters.items()
        for parameter in (options_of(groups[name]) if name in groups else [each])
    ]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in flat]
    line.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]
    line.__annotations__ = {each.name: each.annotation for each in flat}
    return line  # type: ignore[return-value]


def options_of(group: Any) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a group, whose help is under the group's heading: the options that axes declare, or its
    fields."""
    options = (
        [(option.name, option.usual, annotation_of(option)) for option in group.declared()]
        if issubclass(group, MeshOptions)
        else [(field.name, field.default, field.type) for field in fields(group)]
    )
    for name, usual, annotation in options:
        shown = under_heading(annotation, group.HEADING)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=shown)


def annotation_of(option: AxisOption) -> object:
    """Return the annotation of an option that an axis declares."""
    return Annotated[option.kind, typer.Option(option.flag, min=option.least, help=option.help)]


def under_heading(annotation: Any, heading: str) -> object:
    """Return the annotation of an option whose help is under a heading."""
    shown = copy(annotation.__metadata__[0])
    shown.rich_help_panel = heading
    return Annotated[annotation.__origin__, shown]


def take(group: Any, values: dict[str, Any]) -> Any:
    """Return the record of a group, whose values are taken out of all values."""
    taken = {parameter.name: values.pop(parameter.name) for parameter in options_of(group)}
    return group(taken) if issubclass(group, MeshOptions) else group(**taken)


@dataclass(frozen=True)
class PlanAskedOptions:
    """The options of `plan` that restrict strategies, judge one, or scale predictions."""

    HEADING: ClassVar[str] = "strategies"

    precision: options.ProductType = None
    stack: options.TrainingStack = None
    schedule: options.PlannedSchedule = None
    max_tp: options.MostTensorRanks = None
    only: options.OnlyLayout = None
    against: options.AgainstLayout = None
    calibrate: options.MeasuredSteps = None
    no_ring: options.NoRing = False
    headroom: options.Headroom = 0
    load: options.ExpertLoad = None
    even: options.EvenLoad = False
    fewest: options.Fewest = False
    within: options.Within = None
    constraints: options.FindConstraints = False
    settings: options.StackSettingsFile = None
    write_settings: options.WrittenSettings = None


@dataclass(frozen=True)
class PlanScaleOptions:
    """The options of `plan` that divide devices between two phases, or vary the shape of the model."""

    HEADING: ClassVar[str] = "pools and shapes"

    pools: options.DevicePools = None
    reply: options.ReplyTokens = None
    ttft: options.FirstTokenLimit = None
    tpot: options.LaterTokenLimit = None
    pool_link: options.PoolLink = None
    vary: options.VariedSizes = None
    parameters: options.StatedBudget = None


@dataclass(frozen=True)
class MeshOptions:
    """The ranks of a mesh by axis, and how each axis shards a model, as the records of axes declare it."""

    HEADING: ClassVar[str] = "Mesh"
    chosen: MeshChoices

    @classmethod
    def declared(cls) -> list[AxisOption]:
        """Return the options of a mesh that ranks run."""
        return [option for option in mesh_options() if option.run]

    def mesh(self) -> "Mesh":
        """Build the mesh of these options. Raises InputError for numbers of ranks that do not fit together."""
        from opmatrix.parallel.sharding.mesh import usual_mesh

        return usual_mesh(**self.chosen)


class PlannedMeshOptions(MeshOptions):
    """A mesh whose ranks are not run: also the load of experts and where state is stored."""

    @classmethod
    def declared(cls) -> list[AxisOption]:
        """Return all options of a mesh."""
        return mesh_options()


@dataclass(frozen=True)
class StoredOptions:
    """The numbers that a partition is printed for: sizes of the batch, number types, a machine, a form."""

    HEADING: ClassVar[str] = "Sizes, numbers and form"
    stages: options.Stages = None
    cut: options.Cuts = None
    batch: Annotated[int | None, typer.Option(help="sequences, for numbers beside the formulas")] = None
    tokens: Annotated[int | None, typer.Option(help="tokens of a sequence, for numbers beside the formulas")] = None
    values: options.NumberType = "bf16"
    weights: options.WeightType = "bf16"
    crossing: options.CrossingType = None
    training: Annotated[bool, typer.Option("--training", help="add gradients and optimiser state")] = False
    machine: options.Elsewhere = None
    form: options.Form = "table"


@dataclass(frozen=True)
class TrainedStepOptions:
    """A step of training in time."""

    HEADING: ClassVar[str] = "A step of training"
    train: options.Train = False
    schedule: options.PipelineOrder = USUAL_SCHEDULE.name
    micro_batches: options.MicroBatches = 1
    recompute: options.Recompute = "none"
    dropout: options.Dropout = 0
    state: options.StateBytes = "16"
    timeline: options.Timeline = None


@dataclass(frozen=True)
class RunStepsOptions:
    """Steps of training that ranks run."""

    HEADING: ClassVar[str] = "Steps of training"
    train: Annotated[bool, typer.Option("--train", help="train by Adam to predict the next of drawn tokens")] = False
    rate: Annotated[float, typer.Option(help="learning rate of Adam")] = 1e-3
    schedule: options.RankOrder = USUAL_SCHEDULE.name
    micro_batches: options.MicroBatches = 1
    recompute: options.Recompute = "none"
    dropout: Annotated[float, typer.Option(help="dropout rate in training")] = 0
    seed: Annotated[int, typer.Option(min=0, help="seed of tokens, of weights of a configuration, and of dropout")] = 0


@dataclass(frozen=True)
class WatchOptions:
    """The processes: how they are watched, compared and traced."""

    HEADING: ClassVar[str] = "Processes"
    deadline: Annotated[float, typer.Option(help="seconds within which some rank must make progress")] = 8.0
    port: Annotated[int, typer.Option(help="port of this machine where ranks meet; 0: a free port")] = 0
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="compare with a single rank")] = True
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json|.svg", help="what each rank did in the last step, for Chrome's tracing, or drawn"
        ),
    ] = None


@dataclass(frozen=True)
class AddressOptions:
    """The address of a server, and its processes."""

    HEADING: ClassVar[str] = "Address"
    host: Annotated[str, typer.Option(help="address to listen on; by default this machine alone can connect")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0: a free one, which is printed")] = 8000
    processes: Annotated[
        int, typer.Option(help="processes that share the port, the mapped weights, and the threads")
    ] = 1


@dataclass(frozen=True)
class ServingOptions:
    """The limits of each process of a server."""

    HEADING: ClassVar[str] = "Limits"
    truncate: options.Truncate = None
    max_tokens: Annotated[int, typer.Option(help="tokens of a text; a longer one is cut or refused")] = 8192
    max_texts: Annotated[int, typer.Option(help="texts of a request")] = 2048
    max_body: Annotated[int, typer.Option(metavar="MB", help="size of a request")] = 16
    queue: Annotated[int, typer.Option(help="texts that may wait; a request beyond them gets status 429")] = 8192
    requests: Annotated[int, typer.Option(help="requests that may be open; one beyond them gets status 429")] = 512
    timeout: Annotated[
        float, typer.Option(metavar="S", help="seconds to read a request, to answer it, and between pieces of a reply")
    ] = 60.0
    rows: Annotated[int, typer.Option(help="approximate number of tokens of a batch")] = BATCH_ROWS
    wait: Annotated[
        float, typer.Option(metavar="MS", help="milliseconds that a busy server waits for a batch to fill")
    ] = 3.0
    context: Annotated[
        int, typer.Option(help="rows of keys and values that the replies of a language model have together")
    ] = 8192

    def limits(self) -> "ServingLimits":
        """Return them as the server takes them. Raises InputError for impossible ones."""
        from rewrites.serving.serving_limits import ServingLimits

        return ServingLimits(
            body=self.max_body << 20,
            items=self.max_texts,
            tokens=self.max_tokens,
            truncate=self.truncate,
            queue=self.queue,
            requests=self.requests,
            rows=self.rows,
            wait=self.wait / 1e3,
            seconds=self.timeout,
            context=self.context,
        )


def left_out(record: Any, *but: str) -> dict[str, tuple[object, object]]:
    """Return each option of a group, but for some fields, with its value and its default."""
    return {
        f"--{field.name.replace('_', '-')}": (getattr(record, field.name), field.default)
        for field in fields(record)
        if field.name not in but
    }
