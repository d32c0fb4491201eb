"""Padded batches of ragged sentences, and programs read at them by numpy."""

import numpy as np

from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix.exports.program_graph import IDS, MASK, TYPE_IDS, read_step
from opmatrix.runtime.declarations.padded import PaddedBatch


class Numbers:
    """Constants in float64, in the place of a graph's."""

    def of(self, constant):
        return constant.wide() if isinstance(constant, Format | Stacked) else np.asarray(constant, np.float64)


def padded(sentences, left=False):
    """Token ids and a mask, (batch, length), with padding behind the sentences or before them."""
    longest = max(map(len, sentences))
    ids, mask = np.zeros((2, len(sentences), longest), np.int64)
    for row, valid, sentence in zip(ids, mask, sentences, strict=True):
        at = slice(longest - len(sentence), None) if left else slice(len(sentence))
        row[at], valid[at] = sentence, 1
    return ids, mask


def feed(read, sentences, left=False):
    """The inputs of an export by name."""
    ids, mask = padded(sentences, left)
    every = {IDS: ids, MASK: mask, TYPE_IDS: 0 * ids}
    return {name: every[name] for name in read.inputs}


def ragged(rows, mask):
    """Rows without padding, one sentence behind another; rows of sequences as they are."""
    return rows[mask > 0] if rows.shape[:2] == mask.shape and rows.ndim > 2 else rows


def run_padded(program, sentences, left=False):
    """The output of a program by the padded readings of its steps, in float64."""
    ids, mask = padded(sentences, left)
    batch, values = PaddedBatch(ids, mask > 0, 0 * ids), []
    for call in program.schedule.calls:
        values.append(read_step(call, values, Numbers(), batch))
    return ragged(np.asarray(values[program.schedule.result]), mask)
