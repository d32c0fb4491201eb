"""Prices of products that take another way for few rows than for more."""

import numpy as np
import pytest

from formats.machine import calibration
from formats.machine.features import FAR, weigh_format
from opmatrix.runtime.pricing import catalogue

CATALOGUE = catalogue()


@pytest.mark.parametrize("kernel", ["linear.q4_1", "linear.q8_0"])
def test_few_rows_that_take_a_way_of_their_own_have_prices_of_their_own(kernel):
    """A product as it was timed on one thread: for each tile of 8, 4, 2 or 1 rows words are widened anew, and for more
    rows stored. From the rows that a calibration times it is priced right at every number of rows."""
    price, rng = CATALOGUE[kernel], np.random.default_rng(2)

    def taken(T, n, p, far):
        tiles, each = (bin(T).count("1"), 36.0) if T <= price.few else (1 + T // 256, 190.0)
        return 1e-12 * n * p * (each * tiles + (15.5 if T <= price.few else 11.5) * T + 30 * far) + 1e-6

    def sized(T, n, p, far=1):
        return {"T": T, "n": n, "p": p, FAR: far * weigh_format(price.product, {"n": n, "p": p})[0]}

    rows = []
    for i in range(16):
        n, p = (32 * round(calibration.spread_evenly(i, axis, 64, 4096) / 32) for axis in (0, 1))
        rows += [
            (kernel, sized(T, n, p, far), taken(T, n, p, far) * rng.uniform(0.98, 1.02))
            for T in calibration.rows_of(i, 4, 400, price.few)
            for far in (0, 1)
        ]
    found = calibration.fit_rates(CATALOGUE, rows)
    off = {
        (T, p): found.seconds(kernel, **sized(T, 576, p)) / taken(T, 576, p, 1)
        for p in (3072, 49152)
        for T in (1, 2, 3, 4, 6, 7, 8, 9, 16, 48, 300)
    }
    assert all(0.93 < each < 1.07 for each in off.values()), off
