"""What a calibration times of generated kernels says what each part of their price takes."""

from dataclasses import replace

import numpy as np
import pytest

from formats.machine.calibration import GRID, REPLAYED, Numbers, fit
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels.row_term import find_kernel, time_terms
from opmatrix.runtime.pricing import catalogue
from tests.support.terms_of_rows import random_term

PRICE, CATALOGUE = "row_term", catalogue()
WIDTHS, ROWS = (64, 250, 768), (1, 60, 2048)


@pytest.fixture(scope="module")
def unseen():
    """Sizes of calls of terms that no calibration times."""
    rng, made = np.random.default_rng(3), []
    for number in range(12):
        term, values = random_term(rng, WIDTHS[number % len(WIDTHS)])
        text, arrays = write_term(term, {each: k for k, each in enumerate(values)})
        shapes = [np.empty((0, int(each.out.cols))) for each in values]
        kernel = find_kernel(text, (shapes, [np.atleast_1d(np.asarray(each.array)) for each in arrays]))
        assert kernel.counts.operands == 2 * len(values) + len(arrays)
        made += [{"T": rows, **kernel.counts._asdict()} for rows in ROWS]
    return made


@pytest.mark.parametrize("grid, count", [(GRID, 1 << 22), (REPLAYED, 1 << 20)], ids=["called", "in runs"])
def test_what_each_part_takes_is_known_of_terms_that_were_not_timed(grid, count, unseen):
    """On a machine that takes exactly what a price says, the fit finds it, whatever the coefficients are."""
    timed = [sizes for sizes, _ in time_terms(replace(grid, widths=grid.widths[:1]), Numbers(count))]
    features = np.array([CATALOGUE.evaluate_features(PRICE, each) for each in timed])
    assert max(each["T"] for each in timed) == max(ROWS)
    others = np.array([CATALOGUE.evaluate_features(PRICE, each) for each in unseen])
    rng = np.random.default_rng(0)
    for _ in range(4):
        taken = rng.uniform(0.5, 2, features.shape[1]) / features.mean(0)
        found = fit(
            CATALOGUE, PRICE, [(PRICE, sizes, float(row @ taken)) for sizes, row in zip(timed, features, strict=True)]
        )
        np.testing.assert_allclose(others @ found, others @ taken, rtol=1e-3)
