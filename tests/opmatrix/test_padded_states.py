"""Padded readings of sessions: new rows from caches and states have the rows of whole texts, in float64."""

import numpy as np
import pytest
from padded import Numbers
from test_session_states import MODELS, WORDS, programs

from opmatrix.algebra.batch.signature import FLOAT
from opmatrix.exports.cached_graph import find_caches
from opmatrix.exports.program_graph import read_step
from opmatrix.runtime.declarations.padded import CachedBatch

COUNTS = 9, 4  # tokens of two texts, of which the second ends before
PARTS = (1, 2, 4, 9), (5, 9), (9,)  # places behind which a part of new rows ends


def numbered(caches, decoder):
    """The places of caches among values, and of what replaces them."""
    names = [port.name for port in decoder.inputs] + [step.output for step in decoder.steps]
    return [(name, names.index(decoder.state[name])) for name in caches]


@pytest.mark.parametrize("ends", PARTS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_new_rows_in_parts_are_those_of_whole_texts(name, ends):
    program, _ = programs(name)
    decoder, caches = program.decode_with(FLOAT), find_caches(program)
    texts = [np.random.default_rng(seed).integers(0, WORDS, count) for seed, count in enumerate(COUNTS)]
    ids = np.stack([np.pad(text, (0, max(COUNTS) - len(text))) for text in texts])
    valid = np.arange(max(COUNTS)) < np.array(COUNTS)[:, None]
    held, rows = {port: cache.zeros(2).astype(np.float64) for port, cache in caches.items()}, []
    for begun, end in zip((0, *ends), ends, strict=False):
        new = ids[:, begun:end]
        batch = CachedBatch(new, valid[:, :end], 0 * new)
        values = [held[port.name] for port in decoder.inputs]
        for call in decoder.schedule.calls[decoder.schedule.first :]:
            values.append(read_step(call, values, Numbers(), batch))
        held = {port: values[at] for port, at in numbered(caches, decoder)}
        rows.append(values[decoder.schedule.result])
    for text, found in zip(texts, np.concatenate(rows, 1), strict=True):
        wanted = program.exact([text], rounded=False)
        np.testing.assert_allclose(found[: len(text)], wanted, rtol=1e-8, atol=1e-8 * abs(wanted).max())
