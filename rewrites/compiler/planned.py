"""A model of which only the configuration is there: the cheapest program of its shapes, planned and priced. No weight
is loaded or allocated, so a configuration of 70 billion weights takes seconds and megabytes."""
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import parse_json
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import megabytes
from opmatrix.extents import Extents, counted, patterns
from opmatrix.models import check, promised
from opmatrix.weightless import Planned
from rewrites.compiler.search import search
from rewrites.laws import EXACT_LAWS
from rewrites.lower.price import TimeModel


@dataclass(frozen=True)
class PlannedModel:
    """The cheapest exact program of a configuration for some sentences: `time` predicted seconds, `took` those of the
    search."""

    program: Planned
    extents: Extents
    time: float
    took: float

    @property
    def stored(self) -> int:
        """Bytes of the weights."""
        return self.program.stored_bytes

    @property
    def peak(self) -> int:
        """Bytes of a call's result and buffers."""
        return self.program.peak_bytes(self.extents)

    def __str__(self) -> str:
        return "\n".join([f"# {1e3 * self.time:.4g} ms predicted, {megabytes(self.stored)} MB stored, "
                          f"{megabytes(self.peak)} MB of buffers",
                          str(self.program)])


def planned(config: Mapping[str, object] | str | Path, machine: TimeModel,
            lengths: Sequence[int] = (128,)) -> PlannedModel:
    """The cheapest exact program for sentences of these lengths on a machine: one that was calibrated, or a data sheet
    (`opmatrix.pricing.datasheet("H100")`). The configuration is a mapping or the path of its JSON. Promised
    weights are taken to have no special numbers. The program is priced, planned and printed; to run or save it raises
    InputError, as does a configuration that is none.

        >>> from opmatrix.pricing import datasheet
        >>> print(planned("config.json", datasheet("H100"), [512]))                                # doctest: +SKIP"""
    start = time.perf_counter()
    model = shapes(config)
    extents = counted(lengths, patterns(model))
    found = search(model, EXACT_LAWS, machine, extents)
    program, _ = found.program({"model": "a configuration"})
    assert isinstance(program, Planned)
    return PlannedModel(program, extents, found.time, time.perf_counter() - start)


def shapes(config: Mapping[str, object] | str | Path) -> Operator:
    """The model of a configuration, its weights promised. Raises InputError for a size that has a name."""
    if isinstance(config, Mapping):
        check(config)
        return promised(config)
    try: read = parse_json(Path(config).read_text("utf-8"), str(config))
    except (OSError, UnicodeDecodeError) as error: raise InputError(f"{config}: {error}") from None
    if not isinstance(read, dict):
        raise InputError(f"{config}: it is no configuration, but a JSON {type(read).__name__}")
    check(read)
    return promised(read)
