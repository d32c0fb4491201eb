"""Whole numbers as tensors of compressed-tensors and back, and infinities of configs in programs."""

import json

import numpy as np
import pytest

from formats.storage.format import WholeNumbers
from opmatrix.exports.checkpoints.compressed import compress, decompress
from opmatrix.files.checkpoint import infinity as read_infinity
from opmatrix.files.checkpoint import json_object
from opmatrix.models.scans.mamba2 import NOT_CLIPPED


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inputs", [*range(1, 20), 25, 64])
def test_packed_numbers_of_any_width_come_back(bits, inputs):
    """The last word is filled up; its bits are known, not told by the width."""
    rng, half = np.random.default_rng(inputs), 1 << bits - 1
    numbers = rng.integers(-half, half, (inputs, 3)).astype(np.int8)
    whole = WholeNumbers(numbers, rng.uniform(1, 2, (1, 3)).astype(np.float32), inputs, bits, False)
    tensors = compress("layer.weight", whole)
    assert np.array_equal(decompress("layer.weight", tensors, bits), (numbers * whole.scale).T)


def test_an_infinity_of_a_config_can_be_saved(tmp_path):
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "other": -Infinity}')
    config = json_object(tmp_path / "config.json", read_infinity)
    assert json.loads(json.dumps(config, allow_nan=False)) == config and NOT_CLIPPED.holds(config["time_step_limit"])
