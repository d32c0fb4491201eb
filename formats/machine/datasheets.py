"""Machines that are not at hand, from their data sheets (formats/machine/datasheets.json): a call takes at least the
time of its slowest unit (the roofline: Williams et al. 2009, Communications of the ACM 52, eq. 1), and a product pays
for full tiles.

The result is a lower bound, never a measurement: where a machine is at hand, calibrate it
(formats/machine/model.py)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import inf
from pathlib import Path

import sympy

from formats import FORMATS
from formats.core.errors import InputError, suggest_name
from formats.core.sizes import Array, Term, nnz
from formats.disk.files import read_json
from formats.machine.features import T, n, p
from formats.machine.links import Link, check_links, check_rates, read_host, read_links
from formats.machine.prices import FORMAT_CATALOGUE, TIMES, Catalogue, Price, Tile, Work, up
from formats.storage.format import Format

BYTES = {"float32": 4.0, "float16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
EIGHT_BITS = "fp8", "mxfp8"  # products of weights are in eight bits, all else is in sixteen
EIGHT_BIT_FLOAT = "fp8"  # floating numbers of eight bits, in products alone
# the next wider type, which holds every number of a type
WIDER = {"int4": "int8", "int8": "bf16", "bf16": "float16", "float16": "float32"}
LARGEST_NUMBER = 1e24  # the largest number of a data sheet: beyond any machine
FILE = Path(__file__).with_suffix(".json")
CLUSTERS = FILE.with_name("clusters.json")


@dataclass(frozen=True)
class Datasheet:
    """Operations a second of the matrix unit and of the vector unit by number type, the matrix unit's tile (rows,
    inputs, outputs), (N, M) of patterns that it can skip by, memory levels (name, bytes, bytes a second), the nearest
    first. `activations` is the number type of values that are no weights; `launch`: seconds of a call, which data
    sheets do not state; `links`: the links between devices, the nearest level first; `host`: the link of a device to
    the memory of its host. `cores`: the number of cores with a matrix unit each. `watts` of a device under load and
    `hourly` dollars of one, None where they are unknown, `costs` their source. `family`: chips that take alike many
    joules an operation; empty if nobody measured it. `processors`: the throughput of all
    devices over that of one, where they are processes of one machine. `catalogue` declares the kernels."""

    name: str
    source: str
    matrix: Mapping[str, float]
    vector: Mapping[str, float]
    tile: Tile
    memory: tuple[tuple[str, float, float], ...]
    sparse: tuple[int, int] | None = None
    activations: str = "float32"
    launch: float = 0.0
    links: tuple[Link, ...] = ()
    host: Link | None = None
    cores: int = 1
    watts: float | None = None
    hourly: float | None = None
    costs: str = ""
    family: str = ""
    processors: float = inf
    catalogue: Catalogue = field(default=FORMAT_CATALOGUE, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.activations not in BYTES:
            raise ValueError(f"{self.name}: activations {self.activations!r}: give one of {', '.join(BYTES)}")
        rates = [
            *self.matrix.values(),
            *self.vector.values(),
            *self.tile,
            *(x for _, *level in self.memory for x in level),
        ]
        if (
            "float32" not in self.vector
            or not self.memory
            or len(self.tile) != 3
            or not all(0 < rate < inf for rate in rates)
        ):
            raise ValueError(
                f"{self.name}: a vector unit with float32, a tile of three sizes, a memory, and only positive numbers"
            )
        if [*self.memory] != sorted(self.memory, key=lambda level: (level[1], -level[2])):
            raise ValueError(f"{self.name}: memory levels must grow, and slow down, from the nearest on")
        check_links(self.name, self.links)
        if self.host is not None:
            check_rates(self.name, self.host)
        if not (isinstance(self.cores, int) and self.cores > 0):
            raise ValueError(f"{self.name}: cores {self.cores!r}: give a whole number from 1 on, or leave it out")
        if not 0 <= self.launch < inf:
            raise ValueError(f"{self.name}: launch {self.launch}: give seconds from 0 on")
        if not self.processors >= 1:
            raise ValueError(f"{self.name}: processors {self.processors}: give a number from 1 on, or leave it out")
        for what, number in (("watts", self.watts), ("hourly", self.hourly)):
            if number is not None and not 0 < number < inf:
                raise ValueError(f"{self.name}: {what} {number}: give a positive number, or leave it out")

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Return the least seconds that one call can take; ValueError as for a calibrated machine."""
        parts = self.roofline(kernel, **sizes)
        return max(parts.values()) + (0.0 if self.catalogue[kernel].rides else self.launch)

    def roofline(self, kernel: str, **sizes: float) -> dict[str, float]:
        """Return the seconds of the matrix unit, of the vector unit and of memory, which work at the same time."""
        rate, unit, tile = self.dense(kernel)
        matrix, vector, numbers, stored = (sizes.get(TIMES, 1) * part for part in self.count_work(kernel, tile, sizes))
        size = numbers * BYTES[self.activations] + stored
        seconds = {
            "matrix": 0.0,
            "vector": vector / self.vector_rate(self.activations),
            "memory": size / self.bandwidth(size),
        }
        seconds[unit] += matrix / rate
        return seconds

    def count_work(self, kernel: str, tile: Tile, sizes: Mapping[str, float]) -> tuple[float, ...]:
        """Count a kernel's work at these sizes; ValueError names a size that is missing."""
        names, function = compiled(self.catalogue[kernel], tile, self.sparse)
        if missing := [name for name in names if name not in sizes]:
            raise ValueError(f"the price of {kernel} needs {', '.join(missing)}, got {', '.join(sizes)}")
        return tuple(map(float, function(*(sizes[name] for name in names))))

    def between(self, kernel: str, **sizes: float) -> tuple[float, float]:
        """Return a lower bound, and infinity as the upper one."""
        return self.seconds(kernel, **sizes), inf

    def dense(self, kernel: str) -> tuple[float, str, Tile]:
        """Return operations a second, unit and tile of a kernel's dense products: for its number type, or the next
        wider one that the matrix unit has; if there is none, for the vector unit, which has no tiles."""
        return self.product_rate(number_type(self.catalogue[kernel].product, self.activations))

    def peak(self, precision: str) -> float:
        """Return the data sheet's rate of products of a precision, which may be of eight bits."""
        return self.eight_bit_rate if precision in EIGHT_BITS else self.product_rate(precision)[0]

    def product_rate(self, own: str) -> tuple[float, str, Tile]:
        """Return the rate, unit and tile of dense products of a number type."""
        number = own
        while number not in self.matrix and number in WIDER:
            number = WIDER[number]
        return (
            (self.matrix[number], "matrix", self.tile)
            if number in self.matrix
            else (self.vector_rate(own), "vector", (1, 1, 1))
        )

    @property
    def eight_bit_rate(self) -> float:
        """The rate of products of floating numbers of eight bits. Raises InputError for a machine without them."""
        if EIGHT_BIT_FLOAT not in self.matrix:
            raise InputError(
                f"{self.name}: its data sheet has no rate of {EIGHT_BIT_FLOAT} products: "
                "give a precision of sixteen bits"
            )
        return self.matrix[EIGHT_BIT_FLOAT]

    def vector_rate(self, kind: str) -> float:
        """Return the operations a second of the vector unit in this type or the next wider one that it has."""
        while kind not in self.vector:
            kind = WIDER[kind]
        return self.vector[kind]

    def bandwidth(self, size: float) -> float:
        """Return the bytes a second of the nearest level that holds `size` bytes; beyond all of them, of the last."""
        return next((rate for _, room, rate in self.memory if size <= room), self.memory[-1][2])

    def expression(self, kernel: str) -> sympy.Expr:
        """Return `seconds` from the last level of memory, as an expression in the sizes."""
        rate, unit, tile = self.dense(kernel)
        matrix, vector, numbers, stored = work(self.catalogue[kernel], tile, self.sparse)
        on_vector = vector / self.vector_rate(self.activations)
        units = [matrix / rate + on_vector] if unit == "vector" else [matrix / rate, on_vector]
        memory = (numbers * BYTES[self.activations] + stored) / self.memory[-1][2]
        return sympy.Max(*units, memory) + (0.0 if self.catalogue[kernel].rides else self.launch)


NUMBER_FIELDS = "launch", "cores", "processors", "watts", "hourly"


def check_types(sheet: object) -> None:
    """Raise TypeError for a data sheet in JSON whose fields have other types than these."""
    if not isinstance(sheet, dict):
        raise TypeError(f"{sheet!r:.40} is not an object of fields")
    for name in ("source", "costs", "activations", "family"):
        if not isinstance(sheet.get(name, ""), str):
            raise TypeError(f"{name} {sheet[name]!r:.40} is not a string")
    for name in NUMBER_FIELDS:
        if sheet.get(name) is not None:
            check_number(name, sheet[name])
    for name in ("matrix", "vector"):
        if not isinstance(sheet[name], dict):
            raise TypeError(f"{name} {sheet[name]!r:.40}: give rates by number type")
        for kind, rate in sheet[name].items():
            check_number(f"{name} {kind:.40}", rate)
    for name in ("tile", "sparse"):
        for size in sheet.get(name) or ():
            if type(size) is not int:
                raise TypeError(f"{name} has {size!r:.40}, which is not a whole number")
    for level in [*sheet["memory"], *(sheet.get("links") or ()), *filter(None, [sheet.get("host")])]:
        if not isinstance(level, list) or not isinstance(level[0], str):
            raise TypeError(f"{level!r:.60}: give a list that begins with a name")
    if sheet.get("sparse") is not None and len(sheet["sparse"]) != 2:
        raise TypeError("sparse: give [N, M]")


def check_number(name: str, value: object) -> None:
    """Raise TypeError for a value that is no number, or beyond LARGEST_NUMBER."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} {value!r:.40}: not a number")
    if not value < LARGEST_NUMBER:
        raise TypeError(f"{name} {value!r:.40}: give a number below {LARGEST_NUMBER:g}")


def datasheets(file: Path = FILE) -> dict[str, Datasheet]:
    """Read the machines of a table, by name. Raise InputError for a file that is no JSON, and ValueError, which names
    the faulty entry."""
    machines = {}
    table = read_json(file)
    if not isinstance(table, dict):
        raise InputError(f"{file}: {table!r:.40} is not an object: give {{NAME: data sheet}}")
    for name, fields in table.items():
        try:
            check_types(fields)
            fields["tile"], fields["memory"] = tuple(fields["tile"]), tuple(map(tuple, fields["memory"]))
            fields["links"] = read_links(fields.get("links", ()))
            if fields.get("host") is not None:
                fields["host"] = read_host(*fields["host"])
            machines[name] = Datasheet(
                name=name,
                **fields
                | {"sparse": tuple(fields["sparse"]) if fields.get("sparse") else None, "catalogue": FORMAT_CATALOGUE},
            )
        except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"{file}: {name}: {error}") from None
    return machines


@cache
def load_bundled() -> dict[str, Datasheet]:
    """Read the machines that are part of this package."""
    return datasheets()


@cache
def load_clusters() -> dict[str, Datasheet]:
    """Read machines connected as they were built somewhere, by name, each as the data sheet of one of its devices with
    links or memory of its own."""
    clusters: dict[str, Datasheet] = {}
    for name, fields in json.loads(CLUSTERS.read_text("utf-8")).items():
        sheet = load_bundled()[fields["machine"]]
        links = fields.get("links")
        clusters[name] = replace(
            sheet,
            name=name,
            source=f"{fields['source']}; {fields['topology']}; {sheet.source}",
            links=read_links(links) if links else sheet.links,
            memory=tuple(map(tuple, fields.get("memory", sheet.memory))),
            watts=fields.get("watts", sheet.watts),
        )
    return clusters


def datasheet(name: str, catalogue: Catalogue = FORMAT_CATALOGUE) -> Datasheet:
    """Return a machine or a cluster by name, in any case of letters, for the kernels of a catalogue. Raise InputError,
    which lists the known names."""
    every = load_bundled() | load_clusters()
    for known_name, machine in every.items():
        if known_name.lower() == name.lower():
            return replace(machine, catalogue=catalogue)
    raise InputError(
        f"machine {name!r}: there is no data sheet of this name: {suggest_name(name, every)}there are "
        f"{', '.join(every)}"
    )


def number_type(form: str, activations: str) -> str:
    """Return the number type that a format's product runs in; without a format, that of activations."""
    unit = FORMATS[form].unit if form else ""
    return activations if unit in ("", "float32") else unit


# ---- the work of a kernel


@lru_cache(1024)
def work(price: Price, tile: Tile, sparse: tuple[int, int] | None) -> Work:
    """Return operations on the matrix unit in full tiles, on the vector unit, activations moved, stored bytes."""
    parts = product_work(FORMATS[price.product], tile, sparse) if price.product else price.work(tile)
    return Work(*map(sympy.sympify, parts))


def pad_to_tiles(rows: Term, inputs: Term, outputs: Term, tile: Tile) -> sympy.Expr:
    """Return rows inputs outputs, each rounded up to full tiles."""
    return sympy.Mul(*(up(size, side) for size, side in zip((rows, inputs, outputs), tile, strict=True)))


def product_work(form: type[Format], tile: Tile, sparse: tuple[int, int] | None) -> Work:
    """Return the work of a format's product: numbers with an index of their own go to the vector unit, unless the
    matrix unit can skip by such a pattern."""
    arrays = [array for array in form.fields.values() if array.number.name.startswith("f")]
    rounded = form.flops.subs({size: up(size, side) for size, side in zip((T, n, p), tile, strict=True)})
    scattered = sympy.expand(form.flops).coeff(nnz) * nnz
    if scattered != 0:
        matrix, vector = sympy.expand(rounded).subs(nnz, 0), scattered
    elif indexed(form, arrays):
        skips = skipped(form, sparse)
        matrix, vector = skips * rounded, (1 - skips) * form.flops
    elif sympy.expand(2 * T * sympy.Add(*(array.count for array in arrays)) - form.flops) != 0:
        matrix, vector = rounded, sympy.Integer(0)
    else:
        tiles = (
            2 * sympy.Mul(*array.shape[:-2]) * pad_to_tiles(T, array.shape[-2], array.shape[-1], tile)
            for array in arrays
        )
        matrix, vector = sympy.Add(*tiles), sympy.Integer(0)
    return Work(matrix, vector, T * (n + p), form.bytes)


def skipped(form: type[Format], sparse: tuple[int, int] | None) -> sympy.Expr:
    """Return 1 for the N:M patterns that the matrix unit skips by, else 0."""
    pattern = form.named.get("n"), form.named.get("m")
    if sparse is None or None in pattern:
        return sympy.Integer(0)
    return sympy.Piecewise((1, sympy.And(*map(sympy.Eq, pattern, sparse))), (0, True))


def indexed(form: type[Format], arrays: list[Array]) -> bool:
    """True if every number has an index of its own."""
    indices = [array.count for array in form.fields.values() if array not in arrays]
    return any(sympy.expand(count - array.count) == 0 for count in indices for array in arrays)


@lru_cache(1024)
def compiled(
    price: Price, tile: Tile, sparse: tuple[int, int] | None
) -> tuple[tuple[str, ...], Callable[..., tuple[float, ...]]]:
    """Return the names of the sizes of a kernel's work, and a function of them."""
    expressions = tuple(map(sympy.sympify, work(price, tile, sparse)))
    symbols = sorted({symbol for expression in expressions for symbol in expression.free_symbols}, key=str)
    return tuple(map(str, symbols)), sympy.lambdify(symbols, expressions, "math")
