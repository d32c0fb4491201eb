"""Shapes of a model within a budget of parameters: heads, hidden columns, layers and experts are varied, and the same
search finds the fastest strategy of each. Time is predicted, quality is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.display.progress import unheard
from opmatrix.display.tables import table
from opmatrix.models import normalise_config, parameters, spelling
from opmatrix.models.config import Settings
from opmatrix.models.encoders.encoder_decoders import has_halves
from opmatrix.models.encoders.towers import has_tower
from opmatrix.parallel.cost.expert_work import EXPERT_COUNTS, count_experts
from opmatrix.parallel.questions.fewest_devices import COUNT_FACTORS, fastest_on
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.plan_text import GIGA, asked_sizes, in_percent, rows_csv
from opmatrix.parallel.search.plans import PlanChoice, model_operations
from opmatrix.parallel.search.strategy_search import PlanQuestion

USUAL_TOLERANCE = 0.05  # of the budget
BUDGET = re.compile(r"(?P<count>[\d.]+(?:e\d+)?)(?:(?:±|\+-)(?P<percent>[\d.]+)%)?", re.IGNORECASE)
WIDEST_TIMES = 2  # hidden columns, and columns of a head, from 1/2 to 2 times those of the model
MOST_TIMES = 4  # heads, experts and layers, from 1/4 to 4 times those of the model
HIDDEN_STEPS = 8  # steps of hidden columns in those of the model
WHOLE_COLUMNS = 8  # numbers of a head's column that matrix units read at once
HIDDEN_KEYS = "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"


@dataclass(frozen=True)
class ParameterBudget:
    """Numbers of a model's weights, with a tolerance as a share of them."""

    count: float
    tolerance: float = USUAL_TOLERANCE

    def holds(self, count: float) -> bool:
        """True if a number of parameters is within the tolerance."""
        return abs(count - self.count) <= self.tolerance * self.count

    def __str__(self) -> str:
        return f"{self.count:.4g} ± {100 * self.tolerance:g} % parameters"


def read_budget(text: str) -> ParameterBudget:
    """Read a budget, such as 7e9 or 7e9±2%. Raises InputError for anything else."""
    match = BUDGET.fullmatch(text.replace(" ", ""))
    try:
        count = float(match["count"]) if match else 0.0
        tolerance = float(match["percent"]) / 100 if match and match["percent"] else USUAL_TOLERANCE
    except ValueError:
        count, tolerance = 0.0, 0.0
    if 1 <= count < inf and 0 <= tolerance < 1:
        return ParameterBudget(count, tolerance)
    raise InputError(f"--parameters {text}: give a number, such as 7e9, or one with a tolerance, such as 7e9±2%")


def resize(config: Settings, name: str, size: int) -> Settings:
    """Return a configuration with another size, by its common name."""
    return {**config, spelling(config, name): size}


def near_counts(count: int, factor: int) -> list[int]:
    """Return powers of two, and these times 3, from a count over a factor to the count times it.

    >>> near_counts(8, 2)
    [4, 6, 8, 12, 16]"""
    most = count * factor
    numbers = {step << power for step in COUNT_FACTORS for power in range(most.bit_length())}
    return sorted(number for number in {count, *numbers} if count <= number * factor and number <= most)


def vary_hidden(config: Settings) -> Iterator[Settings]:
    """Yield configurations with other hidden columns; those between the layers of a perceptron grow with them."""
    sizes = normalise_config(config)
    hidden = sizes["hidden_size"]
    step = max(hidden // HIDDEN_STEPS, 1)
    for columns in range(step * HIDDEN_STEPS // WIDEST_TIMES, WIDEST_TIMES * hidden + 1, step):
        varied = resize(config, "hidden_size", columns)
        for key in HIDDEN_KEYS:
            if isinstance(wide := sizes.get(key), int) and config.get(spelling(config, key)) is not None:
                varied = resize(varied, key, max(round(wide * columns / hidden / step) * step, step))
        yield varied


def vary_heads(config: Settings) -> Iterator[Settings]:
    """Yield configurations with other numbers of heads, whose columns are a multiple of 8 where those of the model are,
    between half and twice as many. Heads of keys keep their share."""
    sizes = normalise_config(config)
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    keys = sizes.get("num_key_value_heads") or heads
    usual = sizes.get("head_dim")
    of_model = usual or hidden // heads
    whole = WHOLE_COLUMNS if of_model % WHOLE_COLUMNS == 0 else 2
    for count in near_counts(heads, MOST_TIMES):
        columns = usual or hidden / count
        if (
            columns % whole
            or not of_model <= WIDEST_TIMES * columns <= WIDEST_TIMES**2 * of_model
            or count * keys % heads
        ):
            continue
        varied = resize(config, "num_attention_heads", count)
        if config.get(spelling(config, "num_key_value_heads")) is not None:
            varied = resize(varied, "num_key_value_heads", count * keys // heads)
        yield varied


def vary_experts(config: Settings) -> Iterator[Settings]:
    """Yield configurations with other numbers of experts, of which a row asks as many as before. Raises InputError for
    a model without experts."""
    key = next((name for name in EXPERT_COUNTS if isinstance(config.get(name), int) and config[name]), None)
    if key is None:
        raise InputError("--vary experts: the model has none, or layers of different numbers")
    for count in near_counts(config[key], MOST_TIMES):
        yield {**config, key: count}


VARIED: Mapping[str, Callable[[Settings], Iterator[Settings]]] = {  # heads follow hidden columns, which they divide
    "hidden": vary_hidden,
    "heads": vary_heads,
    "experts": vary_experts,
}
LAYER_COUNT = "layers"  # as many as come nearest to the budget


def read_varied(text: str) -> list[str]:
    """Read the names of varied sizes. Raises InputError for an unknown one."""
    known = [*VARIED, LAYER_COUNT]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise InputError(f"--vary {name}: {suggest_name(name, known)}there are {', '.join(known)}")
    return [name for name in known if name in names]


@dataclass(frozen=True)
class ModelShape:
    """A shape of a model."""

    config: Settings
    count: int  # parameters

    def __str__(self) -> str:
        sizes = normalise_config(self.config)
        heads = sizes["num_attention_heads"]
        keys = sizes.get("num_key_value_heads") or heads
        words = [
            f"{sizes['num_hidden_layers']} layers",
            f"hidden {sizes['hidden_size']}",
            f"{heads} heads" + (f" ({keys} of keys)" if keys != heads else ""),
        ]
        if experts := count_experts(sizes):
            words.append(f"{experts} experts")
        return ", ".join(words)


def shapes_within(config: Settings, varied: Iterable[str], budget: ParameterBudget) -> list[ModelShape]:
    """Return the shapes within a budget, each once. Shapes that the family of the model refuses are left out."""
    names, configs = [*varied], [config]
    for name in names:
        if name in VARIED:
            configs = [other for one in configs for other in VARIED[name](one)]
    shapes: dict[str, ModelShape] = {}
    for one in configs:
        try:
            other = nearest_layers(one, budget) if LAYER_COUNT in names else one
            shape = ModelShape(other, parameters(other))
        except InputError:
            continue
        if budget.holds(shape.count):
            shapes.setdefault(str(sorted(other.items(), key=str)), shape)
    return [*shapes.values()]


def nearest_layers(config: Settings, budget: ParameterBudget) -> Settings:
    """Return a configuration with the number of layers that comes nearest to a budget. Parameters grow with layers
    by as many each."""
    layers = normalise_config(config)["num_hidden_layers"]
    here, more = (parameters(resize(config, "num_hidden_layers", count)) for count in (layers, layers + 1))
    nearest = round(layers + (budget.count - here) / (more - here))
    return resize(config, "num_hidden_layers", min(max(nearest, -(-layers // MOST_TIMES)), MOST_TIMES * layers))


class PlannedShape(NamedTuple):
    """A shape with its fastest strategy."""

    shape: ModelShape
    question: PlanQuestion
    choice: PlanChoice
    operations: float  # of a step, without recomputation

    @property
    def token_seconds(self) -> float:
        """Seconds of all devices for one token."""
        return self.choice.seconds / (self.question.batch * self.question.seq)

    @property
    def operations_a_parameter(self) -> float:
        """Model operations of a token for each parameter."""
        return self.operations / (self.question.batch * self.question.seq) / self.shape.count

    @property
    def utilisation(self) -> float:
        """The share of the devices' rate that is spent on the model's own operations."""
        question = self.question
        rate = question.devices * question.machine.peak(question.precision)
        return self.operations / (self.choice.seconds * rate)


@dataclass(frozen=True)
class ShapesPlan:
    """The fastest shapes within a budget."""

    name: str
    question: PlanQuestion
    budget: ParameterBudget
    varied: tuple[str, ...]
    best: tuple[PlannedShape, ...]
    usual: PlannedShape | None  # the model as it is, where it is within the budget and fits
    searched: int  # shapes whose strategies were searched
    count: int  # shapes within the budget


def least_seconds(question: PlanQuestion) -> tuple[float, float]:
    """Return the seconds that no strategy undercuts, all operations at the full rate of the machine, and the
    operations."""
    work = question.work(StrategyForm())
    count = model_operations(work, question.batch, question.seq, question.infer, question.flash)
    return count / (question.devices * question.machine.peak(question.precision)), count


def plan_shape(shape: ModelShape, question: PlanQuestion, operations: float) -> PlannedShape | None:
    """Return a shape with its fastest strategy; None where none fits."""
    choice = fastest_on(question)
    return None if choice is None else PlannedShape(shape, question, choice, operations)


def plan_shapes(
    question: PlanQuestion,
    vary: str,
    budget: ParameterBudget | None = None,
    *,
    keep: int = 10,
    name: str | None = None,
    heard: Callable[..., None] = unheard,
) -> ShapesPlan:
    """Plan the shapes of the model of a question within a budget, by default that of the model. `vary`: names of sizes
    with commas. Shapes are searched in the order of their bound, and the search stops where the bound is no less than
    the seconds of the last that is kept. Raises InputError for a model of two stacks, where no shape is within the
    budget, and where none fits."""
    varied, config = read_varied(vary), question.config
    if has_tower(config) or has_halves(config):
        raise InputError(f"--vary {vary}: shapes are of one stack of layers, and {config['model_type']} is two")
    budget = budget or ParameterBudget(parameters(config))
    shapes = shapes_within(config, varied, budget)
    if not shapes:
        raise InputError(
            f"--parameters {budget.count:g}: no shape of {', '.join(varied)} is within {100 * budget.tolerance:g} % "
            f"of them; the model has {parameters(config):.4g}: vary {LAYER_COUNT}, too, or give a wider tolerance"
        )
    asked = [replace(question, config=shape.config) for shape in shapes]
    bounds = [least_seconds(one) for one in asked]
    best, usual, searched = list[PlannedShape](), None, 0
    for at in sorted(range(len(shapes)), key=lambda at: bounds[at]):
        is_usual = shapes[at].config == config
        if len(best) == keep and bounds[at][0] >= best[-1].choice.seconds and not is_usual:
            continue
        searched += 1
        heard(searched, len(shapes))
        if (planned := plan_shape(shapes[at], asked[at], bounds[at][1])) is not None:
            usual = planned if is_usual else usual
            best = sorted([*best, planned], key=lambda one: one.choice.seconds)[:keep]
    if not best:
        raise InputError(f"--vary {vary}: none of {len(shapes)} shapes fits {question.devices} devices: give more")
    default = str(config.get("model_type", "model"))
    return ShapesPlan(name or default, question, budget, tuple(varied), tuple(best), usual, searched, len(shapes))


def shape_row(one: PlannedShape) -> dict[str, object]:
    """Return all figures of a shape, by name."""
    choice = one.choice
    return {
        "shape": str(one.shape),
        "parameters": one.shape.count,
        "strategy": str(choice),
        "seconds": choice.seconds,
        "seconds a token": one.token_seconds,
        "driver bytes": choice.bytes,
        "utilisation": one.utilisation,
        "model operations a token and parameter": one.operations_a_parameter,
    }


def shapes_text(plan: ShapesPlan) -> str:
    """Return the printed text of a plan of shapes."""
    question = plan.question
    rows = [shape_cells(str(number), one) for number, one in enumerate(plan.best, 1)]
    if plan.usual is not None and plan.usual not in plan.best:
        rows.append(shape_cells("as it is", plan.usual))
    heads = ["", "shape", "parameters", "strategy", "s a step", "us a token", "GB", "MFU %", "flops a token/parameter"]
    what = "a pass" if question.infer else "a step"
    return (
        f"{plan.name} on {question.devices} x {question.machine.name}, {', '.join(plan.varied)} varied within "
        f"{plan.budget}: {question.batch} sequences of {question.seq} tokens {what}, {question.precision}\n"
        f"{plan.count} shapes, {plan.searched} searched, which have the fastest by a bound; time and memory are "
        f"predicted, the quality of a shape is not: fewer, wider layers are faster, and may learn less\n\n"
        f"{table(rows, heads, (0, 1, 3))}"
    )


def shape_cells(label: str, one: PlannedShape) -> list[str]:
    """Return the cells of a shape."""
    return [
        label,
        str(one.shape),
        f"{one.shape.count:.4g}",
        str(one.choice),
        f"{one.choice.seconds:.4g}",
        f"{1e6 * one.token_seconds:.4g}",
        f"{one.choice.bytes / GIGA:.1f}",
        in_percent(one.utilisation, 1),
        f"{one.operations_a_parameter:.3g}",
    ]


def shapes_json(plan: ShapesPlan) -> dict[str, object]:
    """Return a plan of shapes as JSON."""
    return {
        **asked_sizes(plan.name, plan.question),
        "budget": asdict(plan.budget),
        "varied": [*plan.varied],
        "shapes within the budget": plan.count,
        "shapes that were searched": plan.searched,
        "quality": "not predicted",
        "shapes": [shape_row(one) | {"config": one.shape.config} for one in plan.best],
        "as it is": None if plan.usual is None else shape_row(plan.usual),
    }


def shapes_csv(plan: ShapesPlan) -> str:
    """Return the shapes as CSV, a row each."""
    return rows_csv([shape_row(one) for one in plan.best])
