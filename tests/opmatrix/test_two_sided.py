"""The metric of both sides against brute force: its quadratic form as one matrix over all entries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.core.errors import InputError
from opmatrix.spectra.gram import low_rank, low_rank_errors
from opmatrix.spectra.two_sided import (
    damped,
    entry_losses,
    refitted,
    two_sided,
    two_sided_energy,
    two_sided_errors,
    two_sided_values,
)

untimed = settings(deadline=None, max_examples=40)
KINDS = "full", "diagonal", "none"


def positive(random, size, kind, rows=None):
    """A metric of one side: full, its diagonal, or none; of unequal directions."""
    if kind == "none":
        return None
    x = random.standard_normal((rows or 3 * size, size)) * 10.0 ** random.uniform(-1, 1, size)
    return x.T @ x if kind == "full" else np.square(x).sum(0)


def full(metric, size):
    """The same as a matrix."""
    return np.eye(size) if metric is None else np.diag(metric) if np.ndim(metric) == 1 else metric


@st.composite
def weighed(draw):
    """A weight, and the metrics of its two sides."""
    n, p, seed = draw(st.integers(2, 6)), draw(st.integers(2, 6)), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((n, p)),
        positive(random, n, draw(st.sampled_from(KINDS))),
        positive(random, p, draw(st.sampled_from(KINDS))),
    )


def whole(w, g, s):
    """The quadratic form over the entries of a change, row after row, as one matrix."""
    return np.kron(full(g, w.shape[0]), full(s, w.shape[1]))


@untimed
@given(weighed())
def test_energy_is_the_quadratic_form_over_all_entries(made):
    w, g, s = made
    assert two_sided_energy(w, g, s) == pytest.approx(w.ravel() @ whole(w, g, s) @ w.ravel())


@untimed
@given(weighed())
def test_factors_have_the_error_of_the_spectrum_at_every_rank(made):
    w, g, s = made
    factors, errors, energy = two_sided(w, g, s), two_sided_errors(w, g, s), two_sided_energy(w, g, s)
    np.testing.assert_allclose(two_sided_values(w, g, s), factors.values, rtol=1e-5, atol=1e-6 * factors.values[0])
    for rank in range(min(w.shape) + 1):
        u, v = factors.rank(rank)
        assert u.shape == (len(w), rank) and v.shape == (rank, w.shape[1])
        lost = two_sided_energy(w - u @ v, g, s)
        assert lost == pytest.approx(np.square(factors.values[rank:]).sum(), rel=1e-5, abs=1e-9 * energy)
        assert np.sqrt(lost / energy) == pytest.approx(errors[rank], rel=1e-4, abs=1e-6)


@untimed
@given(weighed(), st.integers(0, 2**32 - 1))
def test_no_other_factors_of_a_rank_are_better(made, seed):
    """Against alternating least squares from random factors, each half solved exactly over all entries."""
    w, g, s = made
    rank = min(w.shape) // 2 or 1
    random, form = np.random.default_rng(seed), whole(w, g, s)
    u, v = random.standard_normal((len(w), rank)), random.standard_normal((rank, w.shape[1]))
    for _ in range(5):
        for _ in range(2):
            reads = np.kron(np.eye(len(w)), v.T)  # entries of u to entries of u v
            u = np.linalg.lstsq(reads.T @ form @ reads, reads.T @ form @ w.ravel(), rcond=None)[0].reshape(u.shape)
            writes = np.kron(u, np.eye(w.shape[1]))
            v = np.linalg.lstsq(writes.T @ form @ writes, writes.T @ form @ w.ravel(), rcond=None)[0].reshape(v.shape)
    best = np.square(two_sided(w, g, s).values[rank:]).sum()
    assert two_sided_energy(w - u @ v, g, s) >= best * (1 - 1e-6) - 1e-9 * two_sided_energy(w, g, s)


@untimed
@given(weighed())
def test_without_cotangents_it_is_low_rank_by_inputs(made):
    w, g, _ = made
    np.testing.assert_allclose(two_sided_errors(w, g), low_rank_errors(w, g), rtol=1e-6, atol=1e-6)
    u, v = two_sided(w, g).rank(1)
    left, right = low_rank(w, 1, g)
    np.testing.assert_allclose(u @ v, left @ right, rtol=1e-6, atol=1e-9)


def test_both_sides_are_better_where_outputs_differ():
    """One output matters a thousand times as much as the others: a rank that looks at inputs alone leaves it out."""
    random = np.random.default_rng(1)
    w, g = random.standard_normal((8, 8)), positive(random, 8, "full")
    s = np.array([1e6, *np.ones(7)])
    one, both = (w - left @ right for left, right in (low_rank(w, 1, g), two_sided(w, g, s).rank(1)))
    assert two_sided_energy(both, g, s) < 0.01 * two_sided_energy(one, g, s)


@untimed
@given(weighed())
def test_losses_are_those_of_each_entry_alone(made):
    w, g, s = made
    for (i, j), lost in np.ndenumerate(entry_losses(w, g, s)):
        alone = np.zeros(w.shape)
        alone[i, j] = w[i, j]
        assert lost == pytest.approx(two_sided_energy(alone, g, s))


@untimed
@given(weighed(), st.integers(0, 2**32 - 1))
def test_what_is_kept_makes_up_for_what_goes(made, seed):
    """Against the normal equations of the entries that are kept, all at once."""
    w, g, s = made
    kept = np.random.default_rng(seed).random(w.shape) < 0.6
    kept[0, 0] = True
    at = np.nonzero(kept.ravel())[0]
    form, least = whole(w, g, s), np.zeros(w.size)
    least[at] = np.linalg.solve(form[np.ix_(at, at)], (form @ w.ravel())[at])
    fitted = refitted(w, kept, g, s, steps=200)
    assert not fitted[~kept].any()
    off = two_sided_energy(w - least.reshape(w.shape), g, s)
    assert two_sided_energy(w - fitted, g, s) == pytest.approx(off, rel=1e-4, abs=1e-8 * two_sided_energy(w, g, s))


@untimed
@given(weighed(), st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_each_step_lowers_the_error(made, seed, steps):
    w, g, s = made
    kept = np.random.default_rng(seed).random(w.shape) < 0.5
    before, after = (two_sided_energy(w - refitted(w, kept, g, s, count), g, s) for count in (steps, steps + 1))
    assert after <= before * (1 + 1e-9) + 1e-12


def test_optimal_brain_surgeon_for_one_entry():
    """Hassibi and Stork's closed form: the change along the column of the inverse, at w² / (2 H⁻¹) of loss."""
    random = np.random.default_rng(2)
    w, g, s = random.standard_normal((4, 3)), positive(random, 4, "full"), positive(random, 3, "full")
    inverse, kept = np.linalg.inv(whole(w, g, s)), np.ones((4, 3), bool)
    kept[1, 2] = False
    at = 1 * 3 + 2
    fitted = refitted(w, kept, g, s, steps=100)
    np.testing.assert_allclose(fitted.ravel(), w.ravel() - w[1, 2] / inverse[at, at] * inverse[:, at], atol=1e-6)
    assert two_sided_energy(w - fitted, g, s) == pytest.approx(w[1, 2] ** 2 / inverse[at, at])


def test_directions_that_no_cotangent_sees_are_left_out():
    random = np.random.default_rng(3)
    w, g, s = random.standard_normal((6, 5)), positive(random, 6, "full"), positive(random, 5, "full", rows=2)
    u, v = two_sided(w, g, s).rank(2)
    assert np.isfinite(v).all() and two_sided_energy(w - u @ v, g, s) < 1e-9 * two_sided_energy(w, g, s)
    nothing = two_sided(w, g, np.zeros((5, 5)))
    assert not nothing.values.any() and not nothing.right.any()
    assert two_sided_energy(w - np.matmul(*two_sided(w, g, damped(s)).rank(5)), g, damped(s)) < 1e-9


def test_damping_keeps_the_diagonal_in_proportion():
    s = positive(np.random.default_rng(4), 5, "full", rows=2)
    made = damped(s)
    assert np.linalg.eigvalsh(made)[0] > 0 and np.allclose(made, made.T)
    np.testing.assert_allclose(made.diagonal(), damped(s.diagonal()))
    assert not damped(np.zeros((3, 3))).any()


@pytest.mark.parametrize("shape", [(3,), (3, 3), (4, 3), (4, 4, 4)])
def test_metrics_of_other_shapes_are_refused(shape):
    with pytest.raises(InputError, match="cotangents: shape"):
        two_sided(np.ones((2, 4)), None, np.ones(shape))
    with pytest.raises(InputError, match="kept"):
        refitted(np.ones((2, 4)), np.ones((4, 2), bool))
