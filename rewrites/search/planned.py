"""The cheapest program of a model that has only a configuration: planned and priced for its shapes. No weight is loaded
or allocated, so a configuration of 70 billion weights takes seconds and megabytes."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from os.path import exists
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.algebra.batch.extents import Extents, counted, patterns
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import megabytes
from opmatrix.files.checkpoint import Config
from opmatrix.models import check, known, normalise_config, promised
from opmatrix.models.config import Settings
from opmatrix.models.encoders.encoder_decoders import has_halves, read_halves
from opmatrix.models.encoders.towers import decoder_settings
from opmatrix.runtime.weightless import Planned
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.price import TimeModel
from rewrites.search.search import search


@dataclass(frozen=True)
class PlannedModel:
    """The cheapest exact program of a configuration for some sentences: `time` is its predicted seconds, `took` the
    seconds of the search."""

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
        return "\n".join(
            [
                f"# {1e3 * self.time:.4g} ms predicted, {megabytes(self.stored)} MB stored, "
                f"{megabytes(self.peak)} MB of buffers",
                str(self.program),
            ]
        )


def planned(
    config: Mapping[str, object] | str | Path, machine: TimeModel, lengths: Sequence[int] = (128,)
) -> PlannedModel:
    """Return the cheapest exact program for sentences of these lengths on a machine, calibrated or from a data sheet
    (`opmatrix.runtime.pricing.datasheet("H100")`). The configuration is a mapping, the path of its JSON, or the name
    of a well-known model (`opmatrix.models.known.names()`). Promised weights are taken to have no special numbers. The
    program is priced, planned and printed; to run or save it raises InputError, as does a configuration that is none.

        >>> from opmatrix.runtime.pricing import datasheet
        >>> print(planned("llama2-70b", datasheet("H100"), [512]))                                 # doctest: +SKIP"""
    start = time.perf_counter()
    model = shapes(config)
    extents = counted(lengths, patterns(model))
    structure = search(model, EXACT_LAWS, machine, extents)
    program, _ = structure.program({"model": "a configuration"})
    assert isinstance(program, Planned)
    return PlannedModel(program, extents, structure.time, time.perf_counter() - start)


def weightless(model: str) -> bool:
    """True if a model's name is that of a configuration alone: a JSON file, or a well-known model where no file or
    directory has that name."""
    return model.endswith(".json") or (known.is_known(model) and not exists(model))


def shapes(config: Mapping[str, object] | str | Path) -> Operator:
    """Return the model of a configuration, its weights promised. Raises InputError for a named size."""
    settings = configured(config)
    with settings.named() if isinstance(settings, Config) else nullcontext():
        check(settings)
        return promised(settings)


def configured(config: Mapping[str, object] | str | Path) -> Settings:
    """Return a configuration: the mapping itself, that of a well-known model, or the content of a file. An existing
    file is preferred to a well-known model of its name. Raises InputError, which names the file, for a setting that its
    family lacks."""
    if isinstance(config, Mapping):
        return config
    if known.is_known(str(config)) and not exists(config):
        return known.configuration(str(config))
    read = read_json(config)
    if not isinstance(read, dict):
        raise InputError(f"{config}: it is not a configuration, but a JSON {type(read).__name__}")
    settings = Config(Path(config), read)
    with settings.named():
        if has_halves(settings):
            read_halves(settings)
        else:
            normalise_config(decoder_settings(settings))
    return settings
