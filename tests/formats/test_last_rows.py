"""Last rows of sequences: every state beside a loop, and arrays that no state may come from."""

import numpy as np
import pytest

from formats import kernels

STATES = 6


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def begun(rng, lengths, kept, heads=2, columns=5):
    """Arguments for new rows of sequences: the first has no state, each other one of its own; their last rows leave
    states, and so do some rows before."""
    rows = sum(lengths)
    out = rng.standard_normal((STATES + rows, heads, kept * columns), np.float32)
    out[0] = 0
    ages = np.concatenate([np.arange(length) for length in lengths])
    sources = np.repeat(np.arange(len(lengths)), lengths)
    targets = np.where(rng.random(rows) < 0.6, STATES + np.arange(rows), 0)
    targets[np.cumsum(lengths) - 1] = STATES - 1 + np.cumsum(lengths)
    return dict(
        x=rng.standard_normal((rows, heads, columns), np.float32), ages=ages, sources=sources, targets=targets, out=out
    )


def looped(x, ages, sources, targets, out):
    """The states by definition: the rows of the state before, then the new ones, of which the last are kept."""
    columns, wanted = x.shape[2], out.copy()
    for row in np.flatnonzero(targets):
        new = [x[each] for each in range(row - ages[row], row + 1)]
        before = np.split(out[sources[row]], out.shape[2] // columns, axis=1)
        wanted[targets[row]] = np.concatenate([*before, *new][-len(before) :], 1)
    return wanted


@pytest.mark.parametrize("kept", [1, 2, 3, 16])
@pytest.mark.parametrize("lengths", [[1], [3], [1, 1, 1], [1, 2, 20], [17, 2, 65]], ids=str)
@pytest.mark.parametrize("heads, columns", [(1, 5), (2, 5), (2, 17), (3, 16)])
def test_states_are_those_of_a_loop(rng, heads, columns, lengths, kept):
    given = begun(rng, lengths, kept, heads, columns)
    wanted = looped(**given)
    np.testing.assert_array_equal(kernels.keep_last(**given), wanted)


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda given: dict(ages=given["ages"] + 1), ValueError),
        (lambda given: dict(ages=given["ages"] - 1), IndexError),
        (lambda given: dict(sources=given["sources"] + len(given["out"])), IndexError),
        (lambda given: dict(targets=given["targets"] + len(given["out"])), IndexError),
        (lambda given: dict(sources=given["sources"].astype(float)), (TypeError, ValueError)),
        (lambda given: dict(x=given["x"][:, :, :3]), ValueError),
        (lambda given: dict(x=given["out"][: len(given["x"]), :, : given["x"].shape[2]]), ValueError),
        (
            lambda given: dict(ages=given["out"].view(np.int64).reshape(-1)[: len(given["ages"])]),
            (ValueError, IndexError),
        ),
        (lambda given: dict(x=given["x"].astype(np.float64)), (TypeError, ValueError)),
    ],
)
def test_other_arrays_are_refused_and_nothing_is_written(rng, change, error):
    given = begun(rng, [2, 3], 2)
    before = given["out"].copy()
    with pytest.raises(error):
        kernels.keep_last(**given | change(given))
    np.testing.assert_array_equal(given["out"], before)
