"""Causal convolutions beside torch's: depthwise, padded on both sides and cut to the rows of the sequence."""

import numpy as np
import pytest

import opmatrix as om

torch = pytest.importorskip("torch", reason="needs peers: torch")


@pytest.mark.parametrize("taps", (1, 2, 4, 17))
@pytest.mark.parametrize("columns", (1, 5, 16))
def test_a_convolution_is_that_of_torch(taps, columns):
    """In each sequence alone; torch's last tap is the row itself."""
    rng, lengths = np.random.default_rng([taps, columns]), (1, taps, 33)
    w, rows = rng.normal(size=(taps, columns)), rng.normal(size=(sum(lengths), columns))
    layer = torch.nn.Conv1d(columns, columns, taps, groups=columns, padding=taps - 1, bias=False, dtype=torch.float64)
    layer.weight.data = torch.from_numpy(w[::-1].T[:, None].copy())
    with torch.no_grad():
        wanted = [
            layer(torch.from_numpy(part.T.copy())[None])[0, :, : len(part)].T.numpy()
            for part in np.split(rows, np.cumsum(lengths)[:-1])
        ]
    batch = om.Batch([np.zeros(length, int) for length in lengths])
    np.testing.assert_allclose(om.dense(om.conv(w), rows, batch), np.concatenate(wanted), rtol=1e-12, atol=1e-12)
