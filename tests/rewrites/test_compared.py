"""Programs compared with the model and with the import: the same whatever the groups in which they run."""

from functools import partial

import numpy as np
import pytest
from searched import RAGGED, found, relative

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import DenseReading, dense, dense_each
from opmatrix.algebra.routes import noted
from opmatrix.inference.pooling import normalise_rows
from opmatrix.runtime.program import OUTPUT
from rewrites.metrics import compared


@pytest.fixture(scope="module")
def programs():
    """The model, its import, and its exact program with every weight in int8."""
    operator, made = found()
    _, imported, _ = made["imported"]
    _, exact, _ = made["exact"]
    weights = {name for step in exact.steps for operand, name in step.operands.items() if operand == "weight"}
    narrow = {
        name: FORMATS["int8"].approximate(each.unpack()) if name in weights else each
        for name, each in exact.constants.items()
    }
    return operator, imported, exact.over(exact.steps, narrow)


@pytest.mark.parametrize("state", [RAGGED, Batch(*zip(*((row.tokens, row.kinds) for row in RAGGED), strict=True))])
@pytest.mark.parametrize("rows", [1, 6, 256])
def test_groups_change_nothing(programs, monkeypatch, rows, state):
    operator, imported, narrow = programs
    monkeypatch.setattr(compared, "GROUP_ROWS", rows)
    (base, off), [(change, cosines, _)] = compared.compare([imported, narrow], {OUTPUT: operator}, RAGGED, state)
    wanted = dense(operator, RAGGED)
    assert off.free[OUTPUT] == off.along[OUTPUT] == pytest.approx(relative(narrow.run(RAGGED), wanted), rel=1e-4)
    assert base.free[OUTPUT] < 1e-6 < 1e-3 < off.free[OUTPUT]
    parts = np.split(narrow.run(RAGGED), RAGGED.starts[1:-1]), np.split(imported.run(RAGGED), RAGGED.starts[1:-1])
    assert change.each == pytest.approx([relative(*pair) for pair in zip(*parts, strict=True)], rel=1e-3)
    after, before = (normalise_rows(np.array([rows.mean(0) for rows in each])) for each in parts)
    assert cosines == pytest.approx(abs(after @ after.T - before @ before.T)[np.triu_indices(3, 1)], abs=1e-6)


def test_so_many_embeddings_are_kept_as_there_is_room_for(programs, monkeypatch):
    operator, imported, narrow = programs
    monkeypatch.setattr(compared, "GROUP_ROWS", 1)
    monkeypatch.setattr(compared, "EMBEDDED", imported.run(RAGGED).shape[1] + 1)
    _, [(change, cosines, _)] = compared.compare([imported, narrow], {OUTPUT: operator}, RAGGED, RAGGED)
    assert len(change.off) == 3 and len(cosines) == 1  # of the first two sentences


def test_batches_read_together_widen_each_weight_once(monkeypatch):
    """Several batches are read with the bits of each alone; where routes are listened to, one after the other."""
    operator, _ = found()
    batches, widened = [RAGGED, Batch([[5, 6]]), Batch([[7]])], []
    numbers = DenseReading.numbers

    def counted(reading, data):
        fresh = len(data.shape) == 2 and data not in reading.stored
        array = numbers(reading, data)
        widened.extend([data] * fresh)
        return array

    alone = [dense(operator, batch) for batch in batches]
    monkeypatch.setattr(DenseReading, "numbers", counted)
    dense(operator, batches[0])
    once = len(widened)
    together = dense_each(operator, batches)
    assert once and len(widened) == 2 * once
    one_by_one, routes = noted(partial(dense_each, operator, batches))
    assert len(widened) == 5 * once and routes == []
    for rows in zip(alone, together, one_by_one, strict=True):
        assert rows[0].dtype == np.float64
        np.testing.assert_array_equal(rows[0], rows[1])
        np.testing.assert_array_equal(rows[0], rows[2])


def test_outputs_too_wide_to_hold_are_read_group_by_group(programs, monkeypatch):
    operator, imported, narrow = programs
    monkeypatch.setattr(compared, "GROUP_ROWS", 6)
    comparison = partial(compared.compare, [imported, narrow], {OUTPUT: operator}, RAGGED, RAGGED)
    assert all(compared.read_groups(imported, {OUTPUT: operator}, RAGGED))
    held, _ = comparison()
    monkeypatch.setattr(compared, "OUTPUT_BYTES", 0)
    assert not any(compared.read_groups(imported, {OUTPUT: operator}, RAGGED))
    assert comparison()[0] == held
