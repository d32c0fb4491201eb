"""Kernels that are wrong for some data alone, made from what kernels declare: for rows of one kind, with a threshold
that is drawn, up to where products of two numbers are finite; for an id of a table; for equal scores; for experts of
few and of all rows; for small rows, where eps counts. Each does what the right kernel does, on other operands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from formats.core.stage import TINY
from opmatrix.algebra.batch.batch import FIELDS, Fields
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import Call

FACTOR = np.float32(1.05)
Rows = np.ndarray
Allows = Callable[[Call], bool]
Change = Callable[[Callable[..., None], np.random.Generator, Any, dict[str, Any]], None]


# ---- rows of a kind: (rows, numbers) to which are of it, for a threshold between 0 and 1


def largest(x: Rows) -> Rows:
    return abs(x).max(1)


def spread(x: Rows) -> Rows:
    return x.std(1) / np.maximum(abs(x.mean(1)), 1e-30)


KINDS: dict[str, Callable[[Rows, float], Rows]] = {
    "zero": lambda x, drawn: largest(x) == 0,
    "equal": lambda x, drawn: (x == x[:, :1]).all(1) & (largest(x) > 0),
    "nearly equal": lambda x, drawn: (spread(x) < 10 ** (-0.7 - 4 * drawn)) & (spread(x) > 0),
    "tiny": lambda x, drawn: (largest(x) < 10 ** (-3 - 27 * drawn)) & (largest(x) > 0),
    "huge": lambda x, drawn: largest(x) > 10 ** (3 + 13 * drawn),
    "of a size": lambda x, drawn: abs(np.log10(largest(x) + 1e-45) - (40 * drawn - 24)) < 0.7,
    "one number": lambda x, drawn: np.count_nonzero(x, axis=1) == 1,
    "one far beyond": lambda x, drawn: largest(x) > 10 ** (1.5 + 2 * drawn) * np.median(abs(x), 1),
    "negative": lambda x, drawn: x.max(1) < 0,
    "positive": lambda x, drawn: x.min(1) > 0,
    "whole": lambda x, drawn: (x == np.rint(x)).all(1) & (largest(x) > 0) & (largest(x) < 10),
}


def flat(x: Rows) -> Rows:
    return x.reshape(len(x), -1).astype(np.float64)


def of_kind(kind: str) -> Change:
    """Rows of a kind come out otherwise: as of other rows, or too large, which of zeros would be no fault."""

    def change(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
        values = [
            name
            for name, each in given.items()
            if isinstance(each, np.ndarray) and len(each) == len(out) and each.dtype == np.float32 and each.ndim > 1
        ]
        drawn, way = rng.random(), rng.integers(2)
        name = values[rng.integers(len(values))] if values else ""
        right(out, **given)
        if not values or not (wrong := KINDS[kind](flat(given[name]), drawn)).any():
            return
        other = given | {each: given[each].copy() for each in values}
        other[name][wrong] = 1 + np.arange(other[name][0].size).reshape(other[name].shape[1:]) % 7
        if way and out[wrong].any():
            out[wrong] *= FACTOR
        else:
            instead = np.empty_like(out)
            right(instead, **other)
            out[wrong] = instead[wrong]

    return change


def forgotten_eps(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """Norms forget eps."""
    right(out, **given | {"eps": TINY} if given.get("eps") is not None else given)


def lost_bias(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """A vector that is added is zero in one column."""
    names = [name for name in ("bias", "shift") if given.get(name) is not None]
    other = dict(given)
    for name in names:
        other[name] = given[name].copy()
        other[name][rng.integers(len(other[name]))] = 0
    right(out, **other)


def lost_column(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """The last column comes out too large."""
    right(out, **given)
    out[..., -1] *= FACTOR


def unmet_tile(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """Columns behind the last whole tile of eight come out too large; where none are left over, those of the last."""
    right(out, **given)
    width = out.shape[-1]
    out[..., (width - 1) // 8 * 8 :] *= FACTOR


# ---- ids


def wrong_id(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """An id of a field, the first, the last or a drawn one, is read as its neighbour."""
    batch, fields = given["batch"], given.get("fields", "positions").split(",")
    field = fields[rng.integers(len(fields))]
    tables = given.get("tables") or [given["cos"]]
    table, turned = fields.index(field), [*filter(None, given.get("turned", "").split(","))]
    count = tables[table].shape[1 if str(table) in turned else 0]
    number = [0, count - 1, int(rng.integers(count))][rng.integers(3)]
    numbers = getattr(batch, field)
    wrong = np.where(numbers == number, number - 1 if number else min(1, count - 1), numbers)
    known = {name: getattr(batch, name) for name in FIELDS}
    other = Fields(batch.whole, batch.rows, **known | {field: wrong})
    if hasattr(batch, "starts"):
        other.starts = batch.starts
    right(out, **given | {"batch": other})


# ---- gates and experts


def last_of_equal(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """Of equal scores the higher column is kept."""
    turned = {name: np.ascontiguousarray(given[name][..., ::-1]) for name in ("x", "by") if given.get(name) is not None}
    instead = np.empty_like(out)
    right(instead, **given | turned)
    out[...] = instead[..., ::-1]


def of_experts(few: Callable[[int, int], bool]) -> Change:
    """A drawn expert that has so many rows of so many changes the rows that it has, or the last."""

    def change(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
        right(out, **given)
        gate = given["gate"].reshape(len(out), -1)
        named = gate[:, rng.integers(gate.shape[1])] != 0
        if few(int(named.sum()), len(named)):
            out[named if named.any() else slice(-1, None)] *= FACTOR

    return change


# ---- sequences


def of_one_row(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
    """Sequences of one row come out too large."""
    right(out, **given)
    lengths = np.diff(given["batch"].starts)
    out[(lengths if len(out) == len(lengths) else np.repeat(lengths, lengths)) == 1] *= FACTOR


def of_operand(name: str, kind: str) -> Change:
    """Attention where a row of an operand is of a kind comes out too large."""

    def change(right: Callable[..., None], rng: np.random.Generator, out: Any, given: dict[str, Any]) -> None:
        right(out, **given)
        if len(given[name]) == len(out):
            out[KINDS[kind](flat(given[name]), rng.random())] *= FACTOR

    return change


# ---- faults, and the kernels whose declarations allow them


def with_operands(*names: str) -> Allows:
    return lambda call: any(getattr(call.bound, name, None) is not None for name in names)


def by_values(call: Call) -> bool:
    return call.kernel.by_rows and bool(call.values)


FAULTS: dict[str, tuple[Allows, Change]] = {
    **{f"rows that are {kind}": (by_values, of_kind(kind)) for kind in KINDS},
    "forgotten eps": (with_operands("eps"), forgotten_eps),
    "lost bias of a column": (with_operands("bias", "shift"), lost_bias),
    "last column": (lambda call: True, lost_column),
    "columns behind a tile": (lambda call: True, unmet_tile),
    "an id": (with_operands("tables", "cos"), wrong_id),
    "ties": (lambda call: call.kernel.keeps(call.bound) and call.kernel.launches, last_of_equal),
    "an expert without rows": (with_operands("gate"), of_experts(lambda few, of: few == 0)),
    "an expert of one row": (with_operands("gate"), of_experts(lambda few, of: few == 1)),
    "an expert of all rows": (with_operands("gate"), of_experts(lambda few, of: few == of)),
    "sequences of one row": (lambda call: call.kernel.pads_sequences, of_one_row),
    **{
        f"{name} that is {kind}": (lambda call: {*"qkv"} <= call.values.keys(), of_operand(name, kind))
        for name in "qkv"
        for kind in ("zero", "tiny", "huge")
    },
}


class Fault(NamedTuple):
    """Of a kind, in a kernel; what it draws follows from its seed."""

    kind: str
    kernel: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}, of {self.kernel}, seed {self.seed}"

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Programs that are bound inside meet it. It is called, as what it makes cannot be recorded."""
        declared, (_, wrong) = KERNELS[self.kernel], FAULTS[self.kind]
        right = declared.function

        def function(out: Any, **given: Any) -> None:
            wrong(right, np.random.default_rng(self.seed), out, given)

        with mock.patch.object(declared, "function", function), mock.patch.object(declared, "launches", False):
            yield


def drawn(rng: np.random.Generator, count: int, programs: list[Program]) -> Iterator[Fault]:
    """Draw `count` faults, every kind in turn, in kernels that the programs have and whose declarations allow them."""
    calls = [
        call
        for program in programs
        for call in program.schedule.calls[program.schedule.first :]
        if not call.kernel.view
    ]
    homes = {kind: sorted({call.kernel.name for call in calls if allows(call)}) for kind, (allows, _) in FAULTS.items()}
    kinds = [kind for kind, names in homes.items() if names]
    for at in range(count):
        names = homes[kind := kinds[at % len(kinds)]]
        yield Fault(kind, names[rng.integers(len(names))], int(rng.integers(1 << 16)))


def meets(program: Program, fault: Fault) -> bool:
    """Tell whether a program has a step in which the fault can show."""
    return any(
        call.kernel.name == fault.kernel and FAULTS[fault.kind][0](call)
        for call in program.schedule.calls[program.schedule.first :]
    )
