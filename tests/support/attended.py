"""What tests of a kind of attention share: operators to start from, their sessions beside whole texts,
and the gradients of their step."""

import numpy as np
import pytest
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import heads, repeat, weight
from opmatrix.algebra.oracles import dense
from opmatrix.inference.cached import cached

WORDS, N, H = 30, 24, 4
BATCH = Batch([[3, 4, 5, 6, 7, 9, 20, 2, 11], [8], [9, 2, 10, 11, 4, 4, 0, 2, 3, 1, 1, 1, 5, 6, 7]])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def projected(shared=2, seed=0):
    """Queries, keys and values by heads, of which keys and values have `shared`, repeated."""
    Q, K, V = (weight(drawn(N, columns, seed=seed + s) / 3) for s, columns in enumerate((N, 6 * shared, 6 * shared), 1))
    return Q @ heads(H), *(W @ heads(shared) @ repeat(H) for W in (K, V))


def steps_as_whole_texts(operator):
    """The rows of a text in three steps have the bits of one step, and are right."""
    text = np.random.default_rng(3).integers(0, WORDS, 40)
    program, _ = structure(operator, batch=BATCH).program({})
    session = cached(program).start(capacity=64)
    one = session.join()
    rows = [session.step({one: text[lo:hi]}) for lo, hi in ((0, 17), (17, 18), (18, 40))]
    again = cached(program).start(capacity=64)
    whole = again.step({again.join(): text})
    assert np.array_equal(np.concatenate(rows), whole)
    np.testing.assert_allclose(whole, dense(operator, Batch([text])), rtol=1e-4, atol=1e-5)


def pulls_as_differences(operator):
    """Cotangents of the step of attention are those of differences."""
    program, _ = structure(operator, batch=BATCH).program({})
    calls = program.schedule.calls[program.schedule.first :]
    [call] = [call for call in calls if call.kernel.name == "attention"]
    rng, bound = np.random.default_rng(2), vars(call.bound)
    given = {name: rng.normal(size=(BATCH.rows, bound[name].heads, bound[name].cols)) for name in "qkv"}
    record = lambda given: call.kernel.record(**{**bound, **given, "batch": BATCH})
    y = call.kernel.reference(record(given))
    g = rng.normal(size=y.shape)
    pulled = call.kernel.pullback(record(given), g[None])
    for name in "qkv":
        way = rng.normal(size=given[name].shape)
        ends = [call.kernel.reference(record(given | {name: given[name] + s * 1e-6 * way})) for s in (1, -1)]
        assert (pulled[name][0] * way).sum() == pytest.approx(((ends[0] - ends[1]) * g).sum() / 2e-6, rel=1e-5)
