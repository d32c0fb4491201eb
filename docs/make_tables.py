"""Writes docs/tables.md from the declarations themselves: run `python docs/make_tables.py` after changing one."""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sympy

from formats import FORMATS
from formats.kernels import find_modules
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import MONOIDS
from opmatrix.algebra.term import KINDS, PROPERTIES, Kind
from opmatrix.autodiff import backward_kinds as backward_kinds
from opmatrix.models import FAMILIES, activated, known, normalise_config, parameters
from opmatrix.models.config import TensorNames
from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.known_axes import AXES, STRATEGIES
from opmatrix.parallel.axes.parallel_axis import ParallelAxis
from opmatrix.parallel.schedules.named import SCHEDULES
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.pricing import catalogue
from rewrites.laws import CHOOSING_LAWS, EXACT_LAWS
from rewrites.laws.epilogues import HEADS, STAGES
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.laws.proving.cancelling import CANCELLING_LAWS as NUMBER_LAWS
from rewrites.laws.proving.functions import FUNCTION_LAWS
from rewrites.laws.proving.groups import GROUP_LAWS
from rewrites.laws.proving.values import VALUE_LAWS

FILE = Path(__file__).with_name("tables.md")
STORED = "", "optimiser", "optimiser, gradients", "optimiser, gradients, weights"
FLAGS = [name for name, value in vars(Monoid).items() if isinstance(value, bool) and name != "indexed"]


def table(title: str, head: str, rows: Iterable[Iterable[str]]) -> str:
    """One table in Markdown; the first column is code."""
    names = head.split(", ")
    lines = [[cell(text) for text in row] for row in rows]
    lines = [[f"`{first}`", *rest] for first, *rest in lines]
    return "\n".join([f"## {title}\n", line(names), line(["---"] * len(names)), *map(line, lines)])


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def first(thing: object) -> str:
    """The first sentence or line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


def flags(monoid: type[Monoid]) -> str:
    return ", ".join(name for name in FLAGS if getattr(monoid, name))


def stated(kind: Kind, name: str) -> str:
    """The property where it is declared: always or of all operands, or, with a ?, depending on them."""
    try:
        return name if kind.properties[name]() else ""
    except TypeError:
        return name + "?"


def properties(kind: Kind) -> str:
    return ", ".join(filter(None, (stated(kind, name) for name in PROPERTIES if name in kind.properties)))


def file(kernel: str) -> str:
    return f"{find_modules()[kernel].replace('.', '/')}.py"


def statement(text: str) -> str:
    return code(text.replace("formula(lambda x: ", "(x ↦ "))


def wait_of(schedule: PipelineSchedule) -> str:
    """The closed form of what a stage waits: p stages, m micro-batches, v chunks a stage."""
    return str(schedule.bubble(*sympy.symbols("p m v F B W", positive=True)))


def describe_model(name: str) -> list[str]:
    """A row of the well-known models: sizes by everybody's names."""
    model = known.find_known(name)
    sizes = normalise_config(model.config)
    n, heads = sizes["hidden_size"], sizes.get("num_attention_heads") or "–"
    hidden = sizes.get("moe_intermediate_size") or sizes.get("intermediate_size") or 4 * n
    widths = n, hidden, heads, sizes.get("num_key_value_heads") or heads
    learned, experts = parameters(model.config), describe_experts(sizes)
    published = f"{model.published}, {model.activated} activated" if model.activated else model.published
    return [
        name,
        code(model.config["model_type"]),
        *map(
            str,
            (
                sizes["num_hidden_layers"],
                *widths,
                experts,
                sizes["vocab_size"],
                sizes.get("max_position_embeddings") or "–",
            ),
        ),
        f"{learned:,}",
        f"{activated(model.config) if experts else learned:,}",
        published,
        model.outside,
        model.source,
    ]


def describe_family(name: str) -> list[str]:
    """A row of the families."""
    family: Any = FAMILIES[name]
    trained = getattr(family, "layout", TensorNames()).trained
    keys = [code(key.called or common) for common, key in getattr(family, "keys", {}).items()]
    return [name, code(f"{family.__module__.replace('.', '/')}.py"), ", ".join(map(code, trained)), ", ".join(keys)]


def describe_experts(sizes: Mapping[str, Any]) -> str:
    """How many experts a layer has, and how many of them a token asks; nothing of a model without."""
    counts = sizes.get("num_experts") or sizes.get("num_local_experts")
    if not counts:
        return ""
    few, most = (min(counts), max(counts)) if isinstance(counts, list) else (counts, counts)
    return f"{few if few == most else f'{few} to {most}'}, {sizes.get('num_experts_per_tok', 1)} asked"


def describe_axis(axis: ParallelAxis) -> list[str]:
    """A row of the axes."""
    names = [code(strategy.name) for strategy in axis.strategies]
    options = [code(option.flag) for option in axis.options]
    place = "the ranks of others" if axis.folded else str(axis.place)
    planned = axis.legal if axis.planned else "not tried"
    return [axis.name, axis.title, axis.cuts, *map(", ".join, (names, axis.collectives, options)), place, planned]


def describe_strategy(each: AxisStrategy) -> list[str]:
    """A row of the strategies."""
    weights = "columns and rows in turns" * each.weights + "those that are named" * each.by_hand
    return [
        each.name,
        f"cut along {each.home}" if each.home else "stages of layers" if each.layers else "whole",
        weights or "whole",
        "cut" if each.vocabulary else "whole",
        each.mixing or "",
        STORED[each.stored],
    ]


def tables() -> str:
    prices = catalogue()
    return (
        "\n\n".join(
            [
                "# Tables\n\nGenerated by `docs/make_tables.py` from the declarations; a test holds them so. In laws "
                "and kernels `x_` is a variable, and where a value is multiplied by a value a variable `a` is written "
                "`x @ a`.",
                table(
                    "Laws",
                    "law, statement, guard, why it holds or helps, source",
                    (
                        (law.name, statement(law.row()[2]), code(law.row()[3]), law.doc, law.source)
                        for law in EXACT_LAWS
                    ),
                ),
                table(
                    "Laws of chosen columns, by which units are removed",
                    "law, statement, guard, why it holds or helps, source",
                    (
                        (law.name, statement(law.row()[2]), code(law.row()[3]), law.doc, law.source)
                        for law in CHOOSING_LAWS
                    ),
                ),
                table(
                    "Laws of values, which prove equations",
                    "law, statement, guard, why it holds or helps, source",
                    (
                        (law.name, statement(law.row()[2]), code(law.row()[3]), law.doc, law.source)
                        for law in VALUE_LAWS + NUMBER_LAWS + FUNCTION_LAWS + GROUP_LAWS
                    ),
                ),
                table(
                    "Formats",
                    "format, arrays, bytes, what it is",
                    (form.row().split(" | ") for form in FORMATS.values()),
                ),
                table(
                    "Files of products",
                    "format, kernels, file in formats/kernels",
                    (
                        (
                            form.name,
                            ", ".join(map(code, called)),
                            ", ".join(dict.fromkeys(code(file(name)) for name in called)),
                        )
                        for form in FORMATS.values()
                        for called in [form.called()]
                    ),
                ),
                table(
                    "Monoids",
                    "monoid, unit, flags, what it is",
                    ((m.__name__, str(m.identity), flags(m), first(m)) for m in MONOIDS),
                ),
                table(
                    "Node kinds",
                    "kind, properties (of combinators: where operands have them; ?: it depends), what it is",
                    ((kind.name, properties(kind), kind.doc or "") for kind in KINDS.values()),
                ),
                table(
                    "Kernels of programs",
                    "kernel, operands; attributes, what it computes",
                    ((name, code(repr(kernel)), first(kernel)) for name, kernel in KERNELS.items()),
                ),
                table(
                    "Which kernel computes which term; what begins with _ may follow",
                    "implementation, statement, source",
                    (
                        (name, statement(text), source)
                        for name, _, text, _, source in (each.row() for each in (*IMPLEMENTATIONS, *HEADS, *STAGES))
                    ),
                ),
                table(
                    "What a kernel's seconds are made of",
                    "price, features, each with a fitted coefficient",
                    (
                        (name, code(", ".join(str(each) for each in prices[name].terms if each != 1)))
                        for name in (*prices.common, *prices.lazy)
                    ),
                ),
                table(
                    "Axes of a mesh",
                    "axis, name, its ranks share, strategies, collectives, options besides its ranks, place (the least "
                    "is farthest), ranks that plan tries",
                    map(describe_axis, AXES.values()),
                ),
                table(
                    "Strategies of an axis",
                    "strategy, values between operators, weights, tables and heads of the "
                    "vocabulary, attention over rows that are cut, stored once",
                    map(describe_strategy, STRATEGIES.values()),
                ),
                table(
                    "Schedules of a pipeline",
                    "schedule, what it is, a stage waits, runs on ranks, plan tries it",
                    (
                        [
                            each.spelled,
                            each.help,
                            code(wait_of(each)),
                            "yes" if each.runs else "",
                            "yes" if each.planned else "",
                        ]
                        for each in SCHEDULES.values()
                    ),
                ),
                table(
                    "Families of models",
                    "model_type, file, parts on top that only trained it, keys of its config",
                    map(describe_family, sorted(FAMILIES, key=str.lower)),
                ),
                table(
                    "Well-known models, by their published sizes",
                    "model, family, layers, width, hidden units, heads, key heads, experts, vocabulary, positions, "
                    "parameters by our shapes (with a head of its own), of these a token reads, published, outside of "
                    "the operator, source",
                    map(describe_model, known.names()),
                ),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(tables(), "utf-8")
