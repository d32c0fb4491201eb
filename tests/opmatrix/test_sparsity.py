"""Single entries left out of a weight: which go, and how the rest makes up for them."""

import sys

import numpy as np
import pytest
from children import ROOT

from formats.core.errors import InputError
from opmatrix.spectra.gram import prune_scores
from opmatrix.spectra.removal import DAMPING

sys.path.append(str(ROOT / "benchmarks"))

import spectra as sparsity
from spectra import Sparsity, sparsify


def drawn(n, p, seed=0):
    """Rows of few directions, a weight, and the damped Gram that it is fitted in."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 6)) @ rng.normal(size=(6, n)) + 0.3 * rng.normal(size=(200, n))
    gram = X.T @ X
    return rng.normal(size=(n, p)), gram, gram + DAMPING * np.trace(gram) / n * np.eye(n)


def test_the_entry_goes_that_costs_least_and_later_inputs_make_up_for_it():
    """Against every entry tried, by the normal equations of the inputs behind it."""
    W, gram, damped = drawn(9, 1)
    tried = []
    for i in range(9):
        behind, made = slice(i + 1, None), W.copy()
        made[i] = 0
        made[behind] += np.linalg.solve(damped[behind, behind], damped[behind, i])[:, None] * W[i]
        tried.append((float(np.einsum("ij,ij->", made - W, damped @ (made - W))), i, made))
    least, _, best = min(tried, key=lambda each: each[0])
    assert sorted(tried, key=lambda each: each[0])[1][0] > 1.01 * least
    np.testing.assert_allclose(sparsify(W, Sparsity(1 / 9), gram), best, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [Sparsity(0.5), Sparsity(groups=(2, 4))])
def test_other_metrics_only_choose(rule):
    W, gram, _ = drawn(48, 10)
    for metric in (np.diagonal(gram), None):
        found, scores = sparsify(W, rule, metric), prune_scores(W, metric)
        assert np.array_equal(found[found != 0], W[found != 0]) and np.count_nonzero(found) == W.size // 2
        if rule.groups is None:
            assert scores[found == 0].max() < scores[found != 0].min()
        else:
            left, scores = ((each.reshape(12, 4, 10)) for each in (found != 0, scores))
            assert (left.sum(1) == 2).all()
            assert (np.where(left, np.inf, scores).min(1) < np.where(left, scores, np.inf).min(1)).all()


def test_blocks_are_no_other_result(monkeypatch):
    W, gram, _ = drawn(64, 7)
    whole = sparsify(W, Sparsity(groups=(2, 4)), gram)
    monkeypatch.setattr(sparsity, "COMPARED", 16)
    np.testing.assert_allclose(sparsify(W, Sparsity(groups=(2, 4)), gram), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule, inputs",
    [
        (Sparsity(1.0), 8),
        (Sparsity(-0.1), 8),
        (Sparsity(groups=(0, 4)), 8),
        (Sparsity(groups=(5, 4)), 8),
        (Sparsity(groups=(2, 4)), 10),
    ],
)
def test_what_leaves_nothing_or_does_not_divide_is_refused(rule, inputs):
    with pytest.raises(InputError, match="sparsify: "):
        sparsify(np.ones((inputs, 2)), rule)
