"""A model on a mesh, printed: what the command `partition` says."""
from collections.abc import Mapping, Sequence
from pathlib import Path

from formats.core.errors import InputError
from opmatrix.algebra.term import Operator
from opmatrix.models import name_sizes, promised
from opmatrix.partitions.overview import Overview
from opmatrix.partitions.plan import Partition, partition
from opmatrix.pricing import datasheet
from opmatrix.split.mesh import Mesh
from opmatrix.split.moving import BatchSizes
from rewrites.cli.predict import open_promised
from rewrites.compiler.planned import configured, weightless

FORMS = "table", "latex", "python"


def opened(model: str, symbolic: bool, scores: bool) -> Operator:
    """The operator of a MODEL, its sizes as names if that is asked for, with the head of its vocabulary if that is.
    Raises InputError for a model that there is not."""
    if not weightless(model) and not (symbolic or scores): return open_promised(model)
    config = configured(model if weightless(model) else Path(model) / "config.json")
    return promised(name_sizes(config) if symbolic else config, scores)


def planned_partition(model: Operator, mesh: Mesh, name: str, sequences: int | None, tokens: int | None,
                      stages: Sequence[int] | None) -> tuple[Partition, dict[str, float]]:
    """A partition whose formulas have sizes of the batch as symbols, and the numbers that are given for them. Where a
    pattern asks for numbers they stand in the formulas."""
    for given, what in ((sequences, "--batch"), (tokens, "--tokens")):
        if given is not None and given < 1: raise InputError(f"{what} {given}: at least 1")
    at = {symbol: float(number) for symbol, number in (("b", sequences), ("s", tokens)) if number is not None}
    symbols = BatchSizes()
    numbers = BatchSizes(sequences or symbols.sequences, tokens or symbols.tokens)
    exact = partition(model, mesh, numbers, name=name, stages=stages)       # refuses what does not fit these numbers
    try: return partition(model, mesh, symbols, name=name, stages=stages), at
    except InputError: return exact, at


def told(plan: Partition, at: Mapping[str, float], number: str, weights: str, training: bool, machine: str | None,
         form: str) -> str:
    """The formulas as tables, as LaTeX or as Python. Raises InputError for a machine that there is not."""
    if form not in FORMS: raise InputError(f"--form {form}: it is one of {', '.join(FORMS)}")
    view = Overview(plan, number, weights, training, at)
    if form != "table":
        texts = (each.latex() if form == "latex" else each.python() for each in view.formulas)
        return "\n\n".join(texts)
    try: sheet = None if machine is None else datasheet(machine)
    except ValueError as error: raise InputError(f"--machine {machine}: {error}") from None
    return Overview(plan, number, weights, training, at, sheet).text()


def stages_of(text: str | None) -> list[int] | None:
    """Layers of each stage, as "10,12,10"."""
    if text is None: return None
    try: return [int(each) for each in text.split(",")]
    except ValueError:
        raise InputError(f"--stages {text}: numbers of layers with commas between them, such as 10,12,10") from None


def name_of(model: str) -> str:
    """What a model is called in what is printed."""
    return Path(model).stem if model.endswith(".json") else Path(model).name


