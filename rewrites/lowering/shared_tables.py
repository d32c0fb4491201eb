"""Tables whose rows are gathered, read from the panels of a product that stores the same numbers: so a head that a file
ties to its table is stored once. A step after a program is chosen: its rows are the same to the bit, and a row takes a
little longer to gather."""

from functools import partial

import numpy as np

from formats import kernels
from formats.kernels.rows.gathering import Columns
from formats.storage.format import Format
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from opmatrix.runtime.schedule import Call
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices

EMBED = KERNELS["embed"]
LONGER = 0.01  # largest increase of a program's seconds, as a share
COMPARED_ROWS = 4096  # rows compared at a time


def with_shared_tables(program: Program, prices: Prices | Mean, seconds: float) -> Program:
    """Return the program with as few tables as its panels allow, while the predicted seconds grow by at most the share
    `LONGER`; the same program if no table is shared."""
    steps, left = list[Step](), LONGER * seconds
    for step, call in zip(program.steps, program.schedule.calls[program.schedule.first :], strict=True):
        for number in range(len(call.bound.tables)) if call.kernel is EMBED else ():
            if (name := find_panels(program, step.operands[f"table{number}"])) is None:
                continue
            other = gather_from(step, number, name)
            if (more := price_turning(program, call, number, other, prices)) <= left:
                step, left = other, left - more
        steps.append(step)
    if steps == list(program.steps):
        return program
    read = {name for step in steps for name in step.operands.values()}
    return program.over(steps, {name: constant for name, constant in program.constants.items() if name in read})


def find_panels(program: Program, name: str) -> str | None:
    """Return the constant whose panels hold the rows of a plain table as columns; None if there is none."""
    table = program.constants[name]
    if not isinstance(table, Format) or not (table.plain and table.rowwise):
        return None
    for other, stored in program.constants.items():
        if (
            isinstance(stored, Format)
            and stored.panelled
            and stored.shape == table.shape[::-1]
            and holds_rows(stored, table)
        ):
            return other
    return None


def holds_rows(stored: Format, table: Format) -> bool:
    """True if the columns of a matrix in panels are the rows of a table, to the bit."""
    rows, columns = next(iter(table.arrays().values())), Columns.of(stored)
    for low in range(0, len(rows), COMPARED_ROWS):
        some = rows[low : low + COMPARED_ROWS]
        gathered = kernels.gather(np.arange(low, low + len(some)), columns, np.empty(some.shape, np.float32))
        if not np.array_equal(gathered.view(np.uint32), some.view(np.uint32)):
            return False
    return True


def gather_from(step: Step, number: int, name: str) -> Step:
    """Return the step with that table read from the columns of a matrix."""
    turned = {*filter(None, str(step.attributes.get("turned", "")).split(",")), str(number)}
    return Step(
        step.kernel,
        {**step.operands, f"table{number}": name},
        {**step.attributes, "turned": ",".join(sorted(turned, key=int))},
        step.output,
    )


def price_turning(program: Program, call: Call, number: int, other: Step, prices: Prices | Mean) -> float:
    """Return the seconds that a step takes more where that table is read from columns."""
    tables = list(call.bound.tables)
    tables[number] = program.constants[other.operands[f"table{number}"]]
    turned = call.kernel.record(**vars(call.bound) | {"tables": (*tables,), "turned": other.attributes["turned"]})
    before, after = (prices.spent(partial(call.kernel.cost, bound, call.shape)) for bound in (call.bound, turned))
    return max(0.0, after - before)
