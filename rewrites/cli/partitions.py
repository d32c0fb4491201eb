"""The work of the command `partition`: a model on a mesh, printed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.named_sizes import find_names
from opmatrix.algebra.term import Operator
from opmatrix.files.checkpoint import open_model
from opmatrix.models import name_sizes, promised
from opmatrix.models.config import Settings
from opmatrix.models.decoders.next_tokens import NEXT_TOKEN_MODULES, next_token_module
from opmatrix.parallel.cost.overview import Overview
from opmatrix.parallel.cost.step_costs import training_step
from opmatrix.parallel.cost.step_overview import StepOverview
from opmatrix.parallel.cost.step_time import STATES, TrainedPipeline
from opmatrix.parallel.cost.timed_step import RECOMPUTED, cut_batch, mesh_of_chunks
from opmatrix.parallel.launch.dtensor import placements_text
from opmatrix.parallel.launch.workflow import workflow_of
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE, ChunkedSchedule, pipeline_kind
from opmatrix.parallel.sharding.factor_chain import chain, layers
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import WAYS, Partition, partition
from opmatrix.parallel.sharding.weight_storage import PLAIN_NUMBERS, Storage, StoredIn, check_stored
from opmatrix.runtime.pricing import datasheet
from rewrites.cli.option_groups import StoredOptions, TrainedStepOptions, left_out
from rewrites.cli.predict import open_promised
from rewrites.explain.derivations.partitioned import derivation_of
from rewrites.search.planned import configured, weightless

FORMS = "table", "latex", "python", "derivation", "placements", "workflow"
MODULE_FORMS = "table", "latex", "python", "derivation"  # that are printed of modules behind a model, too
VALUES = "bf16", "float16", "float32"


@dataclass(frozen=True)
class PartitionWish:
    """The options of `partition` besides a model and a mesh."""

    sequences: int | None = None  # sequences of the batch
    tokens: int | None = None  # tokens of each sequence
    stages: Sequence[int] | None = None  # layers of each stage
    cuts: Mapping[str, str] | None = None  # pattern of weight names -> their sharding
    number: str = "bf16"  # number type of values
    storage: Storage = "bf16"  # storage of weights
    crossing: Mapping[str, float] = field(default_factory=dict)  # bytes of a sent number, by axis
    training: bool = False  # state of gradients and optimiser, too
    sheet: Datasheet | None = None  # the machine
    form: str = "table"  # form of the output, one of FORMS
    train: "TrainWish | None" = None  # a step of training, if requested


@dataclass(frozen=True)
class TrainWish:
    """The options of a step of training."""

    kind: ChunkedSchedule  # the schedule
    micro_batches: int
    recompute: str  # the part of forward that backward recomputes
    dropout: float  # share that is dropped
    state: str  # bytes a parameter of state
    timeline: Path | None  # the file that it is drawn into


def check_asked(stored: StoredOptions, train: TrainWish | None = None) -> PartitionWish:
    """Check the options and collect them, before any file is opened. Raises InputError for an option with an unknown
    value."""
    check_among("--form", stored.form, FORMS)
    if train is not None and stored.form != "table":
        raise InputError(f"--form {stored.form}: a training step is printed as a table only")
    check_among("--values", stored.values, VALUES)
    if (stored.batch is None) != (stored.tokens is None):
        missing = "--tokens" if stored.tokens is None else "--batch"
        raise InputError(f"{missing} has no number: numbers beside the formulas need --batch and --tokens")
    for number, what in ((stored.batch, "--batch"), (stored.tokens, "--tokens")):
        if number is not None and not 1 <= number <= 10**12:
            raise InputError(f"{what} {number}: from 1 to 10^12")
    return PartitionWish(
        sequences=stored.batch,
        tokens=stored.tokens,
        sheet=None if stored.machine is None else datasheet(stored.machine),
        stages=stages_of(stored.stages),
        cuts=cuts_of(stored.cut or []),
        number=stored.values,
        storage=storage_of(stored.weights),
        crossing=crossing_of(stored.crossing),
        training=stored.training,
        form=stored.form,
        train=train,
    )


def check_among(option: str, given: str, names: Sequence[str]) -> None:
    """Raise InputError unless an option has one of these values; it names the nearest one."""
    if given in names:
        return
    raise InputError(f"{option} {given}: {suggest_name(given, names)}it is one of {', '.join(names)}")


def opened(model: str, symbolic: bool, scores: bool) -> tuple[Operator, Operator | None, dict[str, int]]:
    """Return the operator of a MODEL; the operator with numbers for all sizes, where they are known; and the numbers of
    the named sizes. With `symbolic` all sizes have names, with `scores` the head of its vocabulary is behind it. A
    directory needs no weights. Raises InputError for an unknown model."""
    config = config_of(model)
    if config is None and not (symbolic or scores):
        operator = open_promised(model)
        return operator, operator, {}
    if config is None:
        config = open_model(model).config
    named = name_sizes(config) if symbolic else config
    plain = promised(config, scores)
    if any(True for _ in find_names(plain)):
        return promised(named, scores), None, {}
    numbers = {str(name): int(str(config[key])) for key, name in named.items() if name != config[key]}
    return promised(named, scores), plain, numbers


def config_of(model: str) -> Settings | None:
    """Return the configuration of a MODEL that is a configuration or a directory; None where the MODEL must be opened
    for it."""
    if weightless(model):
        return configured(model)
    file = Path(model) / "config.json"
    return configured(file) if file.is_file() else None


def told(model: str, mesh: Mesh, symbolic: bool, scores: bool, ask: PartitionWish) -> str:
    """Return the formulas of a MODEL on a mesh, as tables, LaTeX or Python, with their values. Raises InputError for
    options that do not fit together."""
    if unknown := sorted(ask.crossing.keys() - {"*", "weights", *(axis.name for axis in mesh)}):
        raise InputError(
            f"--crossing {unknown[0]}: the mesh has no such axis: it has "
            f"{', '.join([*(axis.name for axis in mesh), 'weights'])}"
        )
    live, plain, sizes = opened(model, symbolic, scores)
    if ask.train is not None:
        mesh = mesh_of_chunks(mesh, ask.train.kind, len(layers(chain(live))))
        if ask.sequences is not None:
            ask = replace(ask, sequences=cut_batch(ask.sequences, ask.train.micro_batches))
    shown = [shown_partition(live, plain, sizes, mesh, name_of(model), ask)]
    if ask.form in MODULE_FORMS:
        shown += shown_modules(model, symbolic, sizes, mesh, ask)
    return "\n\n".join(shown)


def shown_modules(
    model: str, symbolic: bool, sizes: Mapping[str, int], mesh: Mesh, ask: PartitionWish
) -> Iterator[str]:
    """Yield the formulas of a module that predicts a token further, where a MODEL has such modules. They stand behind
    its last stage, on that stage's ranks, and are alike."""
    config = config_of(model)
    if config is None or not (count := config.get(NEXT_TOKEN_MODULES)):
        return
    module = next_token_module(config)
    live = next_token_module(name_sizes(config)) if symbolic else module
    name = f"{name_of(model)}, behind its last stage: {count} x a module that predicts a token further"
    train = None if ask.train is None else replace(ask.train, kind=pipeline_kind(USUAL_SCHEDULE.name), timeline=None)
    yield shown_partition(live, module, sizes, mesh.flat, name, replace(ask, stages=None, train=train), tokens=False)


def shown_partition(
    live: Operator,
    plain: Operator | None,
    sizes: Mapping[str, int],
    mesh: Mesh,
    name: str,
    ask: PartitionWish,
    tokens: bool = True,
) -> str:
    """Return the formulas of an operator on a mesh in the form that is asked for. `tokens`: it reads ids of tokens."""
    plan, exact = planned_partitions(live, plain, mesh, name, ask, tokens)
    at = {**sizes} | {name: count for name, count in (("b", ask.sequences), ("s", ask.tokens)) if count is not None}
    view = Overview(plan, ask.number, ask.storage, ask.training, exact, at, ask.sheet, ask.crossing)
    if ask.train is not None:
        return f"{view.text()}\n\n{told_training(plan, exact, ask, ask.train)}"
    if ask.form == "table":
        return view.text()
    if ask.form == "derivation":
        return str(derivation_of(plan))
    if ask.form == "placements":
        return placements_text(exact or plan)
    if ask.form == "workflow":
        return workflow_of(exact or plan).yaml()
    return "\n\n".join(formulas.latex() if ask.form == "latex" else formulas.python() for formulas in view.formulas)


def planned_partitions(
    live: Operator, plain: Operator | None, mesh: Mesh, name: str, ask: PartitionWish, tokens: bool = True
) -> tuple[Partition, Partition | None]:
    """Return a partition whose formulas have the sizes of the batch as symbols, and one at numbers for all sizes, where
    they are given. Where a pattern needs numbers, they are in the formulas, too."""

    def split(model: Operator, sizes: BatchSizes) -> Partition:
        """Partition the model for these sizes on the requested mesh."""
        return partition(model, mesh, sizes, tokens=tokens, name=name, stages=ask.stages, cuts=ask.cuts)

    if ask.sequences is None or ask.tokens is None:
        return split(live, BatchSizes()), None
    numbers = BatchSizes(ask.sequences, ask.tokens)
    exact = None if plain is None else split(plain, numbers)  # raises InputError for unfit numbers
    try:
        return split(live, BatchSizes()), exact
    except InputError:
        return split(live, numbers), exact


def crossing_of(text: str | None) -> dict[str, float]:
    """Parse the bytes of a sent number: KIND for all values, or AXIS=KIND for an axis, separated by commas."""
    sizes = {}
    for part in [] if text is None else text.split(","):
        axis, equals, kind = part.rpartition("=")
        check_among("--crossing" + f" {axis}=" * bool(equals), kind, [*BYTES])
        sizes[axis if equals else "*"] = BYTES[kind]
    return sizes


def stages_of(text: str | None) -> list[int] | None:
    """Parse the layers of each stage, such as "10,12,10"."""
    if text is None:
        return None
    try:
        return [int(count) for count in text.split(",")]
    except ValueError:
        raise InputError(f"--stages {text}: numbers of layers with commas between them, such as 10,12,10") from None


def cuts_of(texts: Sequence[str]) -> dict[str, str]:
    """Parse how weights are sharded by hand, each as "*q_proj*=columns"."""
    ways = {}
    for text in texts:
        pattern, equals, how = text.rpartition("=")
        if not equals:
            raise InputError(f"--cut {text}: a pattern of names, and how they are cut, such as *q_proj*=columns")
        check_among(f"--cut {pattern}=", how, WAYS)
        ways[pattern] = how
    return ways


def storage_of(text: str) -> Storage:
    """Parse the storage of weights: a number type or a format, with its parameters, such as nm:n=2:m=4. PATTERN=KIND is
    for some names alone; items are separated by commas, and the first that fits is used."""
    storage: dict[str, float | str | StoredIn] = {}
    for part in text.split(","):
        first, *parameters = part.split(":")
        where, equals, kind = first.rpartition("=")
        storage[where if equals else "*"] = stored_of(kind, parameters)
    return storage


def stored_of(kind: str, parameters: Sequence[str]) -> float | str | StoredIn:
    """Return a number type, or a format with its parameters."""
    if kind in PLAIN_NUMBERS and not parameters:
        return PLAIN_NUMBERS[kind]
    numbers = {}
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        try:
            numbers[name] = float(value) if "." in value else int(value)
        except ValueError:
            raise InputError(f"--weights {kind}:{parameter}: parameters are numbers, such as nm:n=2:m=4") from None
    stored = StoredIn(kind, numbers)
    try:
        check_stored(stored)
    except InputError as error:
        raise InputError(f"--weights {error}") from None
    return stored


def name_of(model: str) -> str:
    """Return the name of a model in printed text."""
    return Path(model).stem if model.endswith(".json") else Path(model).name


def check_train(step: TrainedStepOptions, batch: int | None) -> TrainWish | None:
    """Check and collect the options of a step of training; None without `--train`. Raises InputError for an option with
    an unknown value, and for an option without a step."""
    if not step.train:
        check_left_out(left_out(step, "train"), "a step of training")
        return None
    check_among("--recompute", step.recompute, [*RECOMPUTED])
    check_among("--state", step.state, [*STATES])
    if step.timeline is not None and batch is None:
        raise InputError("--timeline: it needs numbers: give --batch and --tokens")
    kind = pipeline_kind(step.schedule)
    return TrainWish(kind, step.micro_batches, step.recompute, step.dropout, step.state, step.timeline)


def check_left_out(own: Mapping[str, tuple[object, object]], what: str) -> None:
    """Raise InputError for an option that differs from its default, where the training that it belongs to is not
    requested."""
    for option, (value, usual) in own.items():
        if value != usual:
            raise InputError(f"{option} {value}: it belongs to {what}: give --train, too")


def told_training(plan: Partition, exact: Partition | None, ask: PartitionWish, train: TrainWish) -> str:
    """Return the text of a step of training of a partition; its timeline is drawn if requested."""
    stages = len(plan.stages) // train.kind.chunks
    train.kind.tasks(stages, train.micro_batches)  # raises InputError without an order, before any reading
    keep, state = RECOMPUTED[train.recompute], STATES[train.state]
    at = (
        None
        if exact is None
        else TrainedPipeline(
            training_step(exact, keep, train.dropout),
            train.kind,
            train.micro_batches,
            ask.number,
            ask.storage,
            state,
            ask.crossing,
            sheet=ask.sheet,
        )
    )
    view = StepOverview(
        training_step(plan, keep, train.dropout),
        train.kind,
        train.micro_batches,
        ask.number,
        state,
        train.recompute,
        at,
    )
    text = view.text()
    if train.timeline is not None:
        text += f"\n\ndrawn in {view.draw(train.timeline)}"
    return text
