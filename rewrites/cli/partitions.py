"""A model on a mesh, printed: what the command `partition` says."""
from collections.abc import Mapping, Sequence
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
from rewrites.cli.predict import open_promised
from rewrites.explain.derivations.partitioned import derivation_of
from rewrites.search.planned import configured, weightless

FORMS = "table", "latex", "python", "derivation", "placements", "workflow"
VALUES = "bf16", "float16", "float32"


@dataclass(frozen=True)
class PartitionWish:
    """What is asked for beside a model and a mesh."""
    sequences: int | None = None
    tokens: int | None = None
    stages: Sequence[int] | None = None
    cuts: Mapping[str, str] | None = None
    number: str = "bf16"
    storage: Storage = "bf16"
    crossing: Mapping[str, float] = field(default_factory=dict)
    training: bool = False
    sheet: Datasheet | None = None
    form: str = "table"
    train: "TrainWish | None" = None


@dataclass(frozen=True)
class TrainWish:
    """A step of training: its schedule, micro-batches, what is computed again, bytes of state, where it is drawn."""
    kind: ChunkedSchedule
    micro_batches: int
    recompute: str
    dropout: float
    state: str
    timeline: Path | None


def check_asked(batch: int | None, tokens: int | None, stages: str | None, cuts: Sequence[str], values: str,
                weights: str, crossing: str | None, training: bool, machine: str | None,
                form: str, train: TrainWish | None = None) -> PartitionWish:
    """What the options say, before anything is opened. Raises InputError for an option that says nothing that there
    is."""
    check_among("--form", form, FORMS)
    if train is not None and form != "table": raise InputError(f"--form {form}: a step of training is a table alone")
    check_among("--values", values, VALUES)
    if (batch is None) != (tokens is None):
        missing = "--tokens" if tokens is None else "--batch"
        raise InputError(f"{missing} has no number: numbers beside the formulas need --batch and --tokens")
    for given, what in ((batch, "--batch"), (tokens, "--tokens")):
        if given is not None and not 1 <= given <= 10 ** 12: raise InputError(f"{what} {given}: from 1 to 10^12")
    sheet = None if machine is None else datasheet(machine)
    return PartitionWish(batch, tokens, stages_of(stages), cuts_of(cuts), values, storage_of(weights),
                         crossing_of(crossing), training, sheet, form, train)


def check_among(option: str, given: str, names: Sequence[str]) -> None:
    if given in names: return
    raise InputError(f"{option} {given}: {suggest_name(given, names)}it is one of {', '.join(names)}")


def opened(model: str, symbolic: bool, scores: bool) -> tuple[Operator, Operator | None, dict[str, int]]:
    """The operator of a MODEL; that with numbers for all sizes, where they are known; and the numbers of those that
    have names. With `symbolic` all sizes have names, with `scores` the head of its vocabulary is behind it. A directory
    needs no weights. Raises InputError for a model that there is not."""
    config = config_of(model)
    if config is None and not (symbolic or scores):
        found = open_promised(model)
        return found, found, {}
    if config is None: config = open_model(model).config
    named = name_sizes(config) if symbolic else config
    plain = promised(config, scores)
    if any(True for _ in find_names(plain)): return promised(named, scores), None, {}
    numbers = {str(name): int(str(config[key])) for key, name in named.items() if name != config[key]}
    return promised(named, scores), plain, numbers


def config_of(model: str) -> Settings | None:
    """The configuration of a MODEL that is one, or that is a directory; None where it must be opened for it."""
    if weightless(model): return configured(model)
    file = Path(model) / "config.json"
    return configured(file) if file.is_file() else None


def told(model: str, mesh: Mesh, symbolic: bool, scores: bool, ask: PartitionWish) -> str:
    """The formulas of a MODEL on a mesh as tables, as LaTeX or as Python, and what they are at numbers. Raises
    InputError for what does not fit."""
    if unknown := sorted(ask.crossing.keys() - {"*", "weights", *(axis.name for axis in mesh)}):
        raise InputError(f"--crossing {unknown[0]}: the mesh has no such axis: it has "
                         f"{', '.join([*(axis.name for axis in mesh), 'weights'])}")
    live, plain, sizes = opened(model, symbolic, scores)
    if ask.train is not None:
        mesh = mesh_of_chunks(mesh, ask.train.kind, len(layers(chain(live))))
        if ask.sequences is not None:
            ask = replace(ask, sequences=cut_batch(ask.sequences, ask.train.micro_batches))
    plan, exact = planned_partitions(live, plain, mesh, name_of(model), ask)
    at = sizes | {name: count for name, count in (("b", ask.sequences), ("s", ask.tokens)) if count is not None}
    view = Overview(plan, ask.number, ask.storage, ask.training, exact, at, ask.sheet, ask.crossing)
    if ask.train is not None: return f"{view.text()}\n\n{told_training(plan, exact, ask, ask.train)}"
    if ask.form == "table": return view.text()
    if ask.form == "derivation": return str(derivation_of(plan))
    if ask.form == "placements": return placements_text(exact or plan)
    if ask.form == "workflow": return workflow_of(exact or plan).yaml()
    return "\n\n".join(each.latex() if ask.form == "latex" else each.python() for each in view.formulas)


def planned_partitions(live: Operator, plain: Operator | None, mesh: Mesh, name: str,
                       ask: PartitionWish) -> tuple[Partition, Partition | None]:
    """A partition whose formulas have sizes of the batch as symbols, and one at numbers for all sizes, where they are
    given. Where a pattern asks for numbers they stand in the formulas."""
    def split(model: Operator, sizes: BatchSizes) -> Partition:
        return partition(model, mesh, sizes, name=name, stages=ask.stages, cuts=ask.cuts)
    if ask.sequences is None or ask.tokens is None: return split(live, BatchSizes()), None
    numbers = BatchSizes(ask.sequences, ask.tokens)
    exact = None if plain is None else split(plain, numbers)                # refuses what does not fit these numbers
    try: return split(live, BatchSizes()), exact
    except InputError: return split(live, numbers), exact


def crossing_of(text: str | None) -> dict[str, float]:
    """Bytes of a number that crosses: of all values as KIND, or over an axis as AXIS=KIND, with commas between them."""
    found = {}
    for part in [] if text is None else text.split(","):
        axis, equals, kind = part.rpartition("=")
        check_among("--crossing" + f" {axis}=" * bool(equals), kind, [*BYTES])
        found[axis if equals else "*"] = BYTES[kind]
    return found


def stages_of(text: str | None) -> list[int] | None:
    """Layers of each stage, as "10,12,10"."""
    if text is None: return None
    try: return [int(each) for each in text.split(",")]
    except ValueError:
        raise InputError(f"--stages {text}: numbers of layers with commas between them, such as 10,12,10") from None


def cuts_of(texts: Sequence[str]) -> dict[str, str]:
    """How weights are cut by hand, each as "*q_proj*=columns"."""
    found = {}
    for text in texts:
        pattern, equals, how = text.rpartition("=")
        if not equals:
            raise InputError(f"--cut {text}: a pattern of names, and how they are cut, such as *q_proj*=columns")
        check_among(f"--cut {pattern}=", how, WAYS)
        found[pattern] = how
    return found


def storage_of(text: str) -> Storage:
    """How weights are stored: a number type or a format, with its parameters, such as nm:n=2:m=4; of some names alone
    as PATTERN=KIND, with commas between them, the first that fits."""
    found: dict[str, float | str | StoredIn] = {}
    for part in text.split(","):
        first, *parameters = part.split(":")
        where, equals, kind = first.rpartition("=")
        found[where if equals else "*"] = stored_of(kind, parameters)
    return found


def stored_of(kind: str, parameters: Sequence[str]) -> float | str | StoredIn:
    """A number type, or a format with its parameters."""
    if kind in PLAIN_NUMBERS and not parameters: return PLAIN_NUMBERS[kind]
    given = {}
    for each in parameters:
        name, _, value = each.partition("=")
        try: given[name] = float(value) if "." in value else int(value)
        except ValueError:
            raise InputError(f"--weights {kind}:{each}: parameters are numbers, such as nm:n=2:m=4") from None
    found = StoredIn(kind, given)
    try: check_stored(found)
    except InputError as error: raise InputError(f"--weights {error}") from None
    return found


def name_of(model: str) -> str:
    """What a model is called in what is printed."""
    return Path(model).stem if model.endswith(".json") else Path(model).name


def check_train(train: bool, schedule: str, micro_batches: int, recompute: str, dropout: float, state: str,
                timeline: Path | None, batch: int | None) -> TrainWish | None:
    """What the options of a step of training say, where there is one. Raises InputError for an option that says nothing
    that there is, and for one without a step."""
    own = {"--schedule": (schedule, USUAL_SCHEDULE.name), "--micro-batches": (micro_batches, 1),
           "--recompute": (recompute, "none"), "--dropout": (dropout, 0), "--state": (state, "16"),
           "--timeline": (timeline, None)}
    if not train:
        check_left_out(own, "a step of training")
        return None
    check_among("--recompute", recompute, [*RECOMPUTED])
    check_among("--state", state, [*STATES])
    if timeline is not None and batch is None:
        raise InputError("--timeline: it is drawn at numbers: give --batch and --tokens")
    return TrainWish(pipeline_kind(schedule), micro_batches, recompute, dropout, state, timeline)


def check_left_out(own: Mapping[str, tuple[object, object]], what: str) -> None:
    """Raises InputError for an option that is not as usual, where there is no training that it is of."""
    for option, (given, usual) in own.items():
        if given != usual: raise InputError(f"{option} {given}: it is of {what}: give --train, too")


def told_training(plan: Partition, exact: Partition | None, ask: PartitionWish, train: TrainWish) -> str:
    """The text of a step of training of a partition, whose timeline is drawn where that is asked for."""
    stages = len(plan.stages) // train.kind.chunks
    train.kind.tasks(stages, train.micro_batches)           # refuses what there is no order of, before anything is read
    keep, state = RECOMPUTED[train.recompute], STATES[train.state]
    at = None if exact is None else TrainedPipeline(
        training_step(exact, keep, train.dropout), train.kind, train.micro_batches, ask.number, ask.storage, state,
        ask.crossing, sheet=ask.sheet)
    view = StepOverview(training_step(plan, keep, train.dropout), train.kind, train.micro_batches, ask.number, state,
                        train.recompute, at)
    text = view.text()
    if train.timeline is not None: text += f"\n\ndrawn in {view.draw(train.timeline)}"
    return text
