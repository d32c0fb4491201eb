"""Spectra against their definitions, predictions against what is measured, solvers against LAPACK."""

import itertools
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from children import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import FORMATS, BlockInt8, LowRankInt8, NMInt8
from formats.core.errors import InputError
from opmatrix.display import draw
from opmatrix.spectra import (
    Gram,
    Limits,
    Spectrum,
    elbow,
    leverage,
    low_rank,
    low_rank_errors,
    mask_errors,
    power_law,
    predicted_error,
    propose,
    prune_scores,
    whitened,
)
from opmatrix.spectra.factored import product_singular_values
from opmatrix.spectra.propose import Weighed

PAIRS = BlockInt8, LowRankInt8, NMInt8  # which are predicted without a fit
untimed = settings(deadline=None)


@st.composite
def matrices(draw_, rows=st.integers(2, 9), columns=st.integers(2, 9)):
    """Random matrices of every rank, with columns of unequal size."""
    n, p, seed = draw_(rows), draw_(columns), draw_(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    rank = draw_(st.integers(1, min(n, p)))
    return random.standard_normal((n, rank)) @ random.standard_normal((rank, p)) * 10.0 ** random.uniform(-2, 2, p)


def activations(n, rows=40, seed=0):
    """Correlated columns with means, of very unequal size."""
    random = np.random.default_rng(seed)
    return random.standard_normal((rows, n)) * 10.0 ** random.uniform(-2, 1, n) @ random.standard_normal((n, n)) + 1


def relative(x, w, a):
    return np.linalg.norm(x @ (w - a)) / np.linalg.norm(x @ w)


# ---- measures


@untimed
@given(matrices())
def test_measures_follow_their_definitions(w):
    found, values = Spectrum.of(w, "w"), np.linalg.svd(w)[1]
    share = values[values > 0] / values.sum()
    assert found.stable_rank == pytest.approx(np.linalg.norm(w) ** 2 / np.linalg.norm(w, 2) ** 2)
    assert found.effective_rank == pytest.approx(np.prod(share**-share))
    assert 1 <= found.stable_rank <= found.effective_rank**2 + 1e-9 and found.effective_rank <= len(values) + 1e-9
    assert found.rank == np.linalg.matrix_rank(w)
    assert found.condition == pytest.approx(np.linalg.cond(w), rel=1e-3) or found.condition > 1e10


@untimed
@given(matrices())
def test_tail_energy_is_the_error_of_the_truncated_decomposition(w):
    left, values, right = np.linalg.svd(w, full_matrices=False)
    for rank, tail in enumerate(Spectrum.of(w).tail):
        truncated = left[:, :rank] * values[:rank] @ right[:rank]
        assert np.linalg.norm(w - truncated) == pytest.approx(np.sqrt(tail) * np.linalg.norm(w), abs=1e-12 * values[0])


@untimed
@given(matrices(), st.floats(0.001, 0.9))
def test_a_knee_is_the_first_rank_within_its_level(w, level):
    found = Spectrum.of(w)
    rank = found.knees([level])[level]
    assert found.tail[rank] <= level < found.tail[rank - 1]


def test_known_spectra():
    orthogonal = Spectrum.of(np.linalg.qr(np.random.default_rng(0).standard_normal((7, 7)))[0] * 3)
    assert orthogonal.stable_rank == pytest.approx(7) and orthogonal.effective_rank == pytest.approx(7)
    assert orthogonal.condition == pytest.approx(1)
    single = Spectrum.of(np.outer([1, 2, 3], [1.0, -1.0]))
    assert single.stable_rank == pytest.approx(1) and single.rank == 1 and single.knee == 1
    nothing = Spectrum.of(np.zeros((3, 2)))
    assert (nothing.stable_rank, nothing.effective_rank, nothing.rank, nothing.knee) == (0, 0, 0, 0)
    assert "nan" in repr(nothing)


def test_the_elbow_is_where_two_lines_meet():
    assert elbow(np.concatenate([np.linspace(10, 1, 4), np.linspace(0.9, 0, 10)])) == 3


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("exponent", [2.0, 3.5])
@pytest.mark.parametrize("cutoff, least", [(1.0, 90), (None, 85)])
def test_power_law_samples_give_their_exponent_within_the_stated_error(exponent, cutoff, least):
    """Two standard errors should hold 95 of 100 samples, fewer where the cutoff is chosen too."""
    uniform = np.random.default_rng(5).random((100, 300))
    found = [power_law((1 - sample) ** (-1 / (exponent - 1)), cutoff) for sample in uniform]
    assert sum(abs(law.exponent - exponent) < 2 * law.error for law in found) >= least


def test_a_distance_rejects_one_power_law_in_twenty_and_what_is_none():
    """Above a known cutoff the distance of true samples exceeds the 5 % point in 5 of 100; uniform values, mostly."""
    random = np.random.default_rng(7)
    true = [power_law((1 - random.random(60)) ** (-1 / 1.5), 1.0) for _ in range(600)]
    rejected = np.mean([not law.fits for law in true])
    assert 0.02 < rejected < 0.08
    assert np.mean([power_law(random.uniform(1, 2, 200), 1.0).fits for _ in range(50)]) < 0.05
    assert not power_law([1.0, 2.0]).fits, "too few values fit nothing"


def test_the_largest_values_and_the_energy_of_the_others_give_what_they_can():
    whole = Spectrum.of(np.diag(np.arange(12.0, 0, -1)))
    part = Spectrum(whole.values[:4], whole.shape, beyond=float(whole.energy[4:].sum()))
    assert part.stable_rank == pytest.approx(whole.stable_rank) and not part.whole and whole.whole
    assert part.tail == pytest.approx(whole.tail[:5])
    assert part.rank_at(0.5) == whole.rank_at(0.5) and part.rank_at(0.01) == 5
    assert np.isnan([part.effective_rank, part.condition]).all()
    cells = draw.spectrum_row(part)
    assert cells[5] == cells[8] == "-" and cells[7] == ">4"


def test_products_are_decomposed_by_their_factors():
    random = np.random.default_rng(8)
    a, b = random.standard_normal((3, 9, 4)), random.standard_normal((3, 7, 4))
    for values, left, right in zip(product_singular_values(a, b), a, b, strict=True):
        assert values == pytest.approx(np.linalg.svd(left @ right.T, compute_uv=False)[:4])
    wide = product_singular_values(a.swapaxes(1, 2), random.standard_normal((3, 7, 9)))
    assert wide.shape == (3, 4)
    with pytest.raises(InputError, match=r"factors \(3, 9, 4\) and \(3, 7, 9\) have no product"):
        product_singular_values(a, random.standard_normal((3, 7, 9)))
    b[1, 2, 3] = np.inf
    with pytest.raises(InputError, match="right factor has entries that are not finite"):
        product_singular_values(a, b)


def test_the_cutoff_leaves_out_what_is_no_power_law():
    random = np.random.default_rng(1)
    found = power_law(np.concatenate([random.uniform(0, 1, 500), (1 - random.random(500)) ** (-1 / 1.5)]))
    assert 0.7 < found.cutoff < 2 and abs(found.exponent - 2.5) < 3 * found.error


@untimed
@given(matrices(), st.data())
def test_leverage_is_the_diagonal_of_the_projection(w, data):
    whole = leverage(w)
    assert whole == pytest.approx(np.diag(w @ np.linalg.pinv(w)), abs=1e-7)
    rank = data.draw(st.integers(0, round(whole.sum())))
    assert leverage(w, rank).sum() == pytest.approx(rank) and (leverage(w, rank) <= whole + 1e-9).all()


def test_spectra_refuse_what_is_no_matrix_of_numbers():
    broken = np.ones((4, 3))
    broken[2, 1] = np.nan
    with pytest.raises(InputError, match=r"w3: 1 entries are not finite, the first at row 2, column 1"):
        Spectrum.of(broken, "w3")
    with pytest.raises(InputError, match=r"w4: .* shape \(3,\)"):
        Spectrum.of(np.ones(3), "w4")
    with pytest.raises(InputError, match="rank 5"):
        leverage(np.eye(4), 5)


def test_the_report_says_every_measure():
    found = Spectrum.of(np.diag([4.0, 2.0, 1.0]), "w <1>")
    for measure in ("3 x 3", "stable rank", "effective rank", "knee", "spectral exponent", "numerical rank"):
        assert measure in repr(found)
    assert "w &lt;1&gt;" in found._repr_html_() and "<td>3 x 3</td>" in found._repr_html_()


# ---- activations


def test_grams_of_parts_add_up():
    x = activations(5, 30)
    whole, parts = Gram.of(x), Gram.of(x[:11]) + Gram.of(x[11:])
    assert np.asarray(parts) == pytest.approx(np.asarray(whole)) and parts.rows == 30
    assert parts.covariance == pytest.approx(np.cov(x.T, bias=True))
    assert parts.spectrum().values == pytest.approx(np.linalg.svd(x - x.mean(0))[1] / np.sqrt(30), rel=1e-6)
    with pytest.raises(InputError, match="widths differ"):
        whole + Gram.of(np.ones((2, 4)))


@untimed
@given(matrices(), st.integers(0, 99))
def test_predicted_error_is_the_relative_change_of_the_output(w, seed):
    x = activations(len(w), seed=seed)
    a = w * (np.random.default_rng(seed).random(w.shape) < 0.6)
    assert predicted_error(w, a, Gram.of(x)) == pytest.approx(relative(x, w, a), rel=1e-6, abs=1e-9)
    assert predicted_error(w, a) == pytest.approx(relative(np.eye(len(w)), w, a))
    sizes = np.arange(1, len(w) + 1)
    assert predicted_error(w, a, sizes**2) == pytest.approx(relative(np.diag(sizes), w, a))


def test_predicted_error_of_rounding_is_not_lost_in_rounding():
    x, w = activations(20, 60), np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    half = w.astype(np.float16).astype(np.float32)
    assert predicted_error(w, half, Gram.of(x)) == pytest.approx(relative(x, w.astype(float), half), rel=1e-7)


@untimed
@given(matrices(), st.integers(0, 99))
def test_whitened_low_rank_errs_as_predicted_and_never_more_than_plain(w, seed):
    x = activations(len(w), seed=seed)
    gram, (left, values, right) = Gram.of(x), np.linalg.svd(w, full_matrices=False)
    for rank, error in enumerate(low_rank_errors(w, gram)):
        u, v = low_rank(w, rank, gram)
        assert u.shape == (len(w), rank) and relative(x, w, u @ v) == pytest.approx(error, abs=1e-6)
        assert error <= relative(x, w, left[:, :rank] * values[:rank] @ right[:rank]) + 1e-7


def test_whitened_low_rank_of_fewer_rows_than_columns():
    """A Gram of rank 4 leaves nothing to lose beyond rank 4."""
    x, w = activations(9, 4), np.random.default_rng(1).standard_normal((9, 12))
    assert whitened(w, Gram.of(x))[0][4:].max() < 1e-6 * whitened(w, Gram.of(x))[0][0]
    assert low_rank_errors(w, Gram.of(x))[4] < 1e-6


def test_the_lowrank_format_attains_the_whitened_error():
    x, w = activations(12), np.random.default_rng(1).standard_normal((12, 17))
    fitted = FORMATS["lowrank"].fit(w, rank=5, weight=np.asarray(Gram.of(x)))
    assert predicted_error(w, fitted, Gram.of(x)) == pytest.approx(low_rank_errors(w, Gram.of(x))[5], rel=1e-5)


@untimed
@given(matrices(), st.integers(0, 99), st.booleans(), st.booleans())
def test_mask_errors_are_measured_ones_at_every_density(w, seed, full, magnitude):
    x = activations(len(w), seed=seed)
    gram = Gram.of(x) if full else (x**2).sum(0)
    score = abs(w) if magnitude else prune_scores(w, gram)
    order = np.argsort(score, axis=None, kind="stable")
    for dropped, error in enumerate(mask_errors(w, gram, score)):
        a = w.copy()
        a.ravel()[order[:dropped]] = 0
        assert error == pytest.approx(predicted_error(w, a, gram), rel=1e-6, abs=1e-6)


def test_wanda_masks_are_the_best_there_are_for_uncorrelated_columns():
    w, gram = np.random.default_rng(3).standard_normal((2, 4)), np.array([9.0, 0.25])
    errors = mask_errors(w, gram)
    for dropped in range(w.size + 1):
        best = min(
            predicted_error(w, np.where(np.isin(np.arange(w.size), gone), 0, w.ravel()).reshape(w.shape), gram)
            for gone in itertools.combinations(range(w.size), dropped)
        )
        assert errors[dropped] == pytest.approx(best)


def test_metrics_of_the_wrong_size_are_refused():
    with pytest.raises(InputError, match=r"gram: shape \(3, 3\); a weight of 4 rows"):
        predicted_error(np.ones((4, 2)), np.ones((4, 2)), np.eye(3))
    with pytest.raises(InputError, match=r"weight \(4, 2\) against approximated \(2, 4\)"):
        predicted_error(np.ones((4, 2)), np.ones((2, 4)))
    with pytest.raises(InputError, match="low_rank: rank 3"):
        low_rank(np.ones((4, 2)), 3)


# ---- proposals


def decaying(n, p, seed=0):
    """A weight with a falling spectrum and a Gram of correlated activations."""
    random = np.random.default_rng(seed)
    values = np.exp(-np.arange(min(n, p)) / 6)
    left, right = (np.linalg.qr(random.standard_normal((size, size)))[0][:, : min(n, p)] for size in (n, p))
    return (left * values @ right.T).astype(np.float32), Gram.of(activations(n, 3 * n, seed))


def test_proposals_err_as_predicted_and_store_what_they_say():
    w, gram = decaying(48, 64)
    found = propose(w, gram)
    assert found.kept and found == propose(w, gram) and len(found) <= Limits().most
    assert {each.method for each in found} >= {"half", "lowrank"}
    for each in found:
        packed = each.approximate(w, gram)
        assert packed.name == each.method and packed.nbytes == each.stored_bytes
        exactly = not issubclass(FORMATS[each.method], PAIRS)
        assert predicted_error(w, packed.unpack(), gram) == pytest.approx(
            each.predicted_error, rel=1e-3 if exactly else 0.1, abs=0.005
        )


@pytest.mark.parametrize("name", [F.name for F in PAIRS])
def test_what_a_structure_of_bytes_is_predicted_to_lose_is_about_what_it_loses(name):
    """Without a fit, in the metric of the inputs' norms."""
    random = np.random.default_rng(3)
    w, gram = (
        random.standard_normal((128, 96)) * np.exp(random.standard_normal((128, 1))),
        np.diag(random.uniform(0.1, 9, 128)),
    )
    found = propose(w, gram, Limits(most=99, error=2.0))
    mine = [each for each in (*found.kept, *found.rejected) if each.method == name]
    assert mine
    for each in mine:
        lost = predicted_error(w, each.approximate(w, gram).unpack(), gram)
        known = FORMATS[name].predicted(Weighed(w, gram, low_rank_errors(w, gram), 1.0, Limits()), **each.parameters)
        assert known == pytest.approx(lost, rel=0.02, abs=0.01) and lost > 0.005


def test_no_proposal_beats_another():
    worth = [(each.predicted_error, *each.price) for each in propose(*decaying(64, 48))]
    assert len(worth) > 3
    for each, other in itertools.permutations(worth, 2):
        assert not all(a <= b for a, b in zip(each, other, strict=True))


def test_what_the_cost_cannot_repay_is_never_fitted_and_the_reason_says_so():
    def price(method, parameters, n, p):
        return {"dense": (1.0, 100), "lowrank": (0.5, 50)}.get(method, (2.0, 120))

    w, gram = decaying(48, 64)
    w[0, 0] = 1e6  # float16 cannot hold it: fitting would say that instead
    found = propose(w, gram, price=price)
    assert {each.method for each in found} == {"lowrank"}
    reasons = {each.method: each.reason for each in found.rejected if each.method != "lowrank"}
    assert set(reasons) == {name for name, format in FORMATS.items() if format.proposed} - {"dense", "lowrank"}
    assert all(reason == "not repaid: against dense 2.00 x its effort, 1.20 x its bytes" for reason in reasons.values())
    overflow = next(each for each in propose(w, gram).rejected if each.method == "half")
    assert "65504" in overflow.reason


def test_limits_hold_and_every_candidate_is_accounted_for():
    w, gram = decaying(48, 64)
    few, all_ = propose(w, gram, Limits(most=2)), propose(w, gram, Limits(most=99, error=9.0))
    assert len(few) == 2 and len(few.kept + few.rejected) == len(all_.kept + all_.rejected)
    assert any("2 are kept" in each.reason for each in few.rejected)
    strict = propose(w, gram, Limits(error=0.01))
    assert all(each.predicted_error <= 0.01 for each in strict)
    assert any(each.reason.endswith("is over the limit 1 %") for each in strict.rejected)
    for each in all_.kept:
        assert str(each) in repr(all_) and str(each) in all_._repr_html_()


def test_activations_change_what_is_proposed():
    """A weight whose outputs have rank 8 on the activations seen is proposed at rank 8, though its own rank is full."""
    random = np.random.default_rng(2)
    w = random.standard_normal((48, 64)).astype(np.float32)
    x = random.standard_normal((200, 8)) @ random.standard_normal((8, 48))
    seen, blind = propose(w, Gram.of(x)), propose(w)
    assert {"rank": 8} in [each.parameters for each in seen if each.predicted_error < 1e-5]
    assert all(each.predicted_error > 0.1 for each in blind if each.method == "lowrank")
    assert {each.fit for each in blind} == {"plain"}


def test_masks_of_uncorrelated_columns_are_proposed_at_their_best_and_near_the_levels():
    w, gram = decaying(48, 64)[0], 10.0 ** np.linspace(-2, 2, 48)
    best, seen = mask_errors(w, gram), []
    for each in propose(w, gram, Limits(most=99, levels=(0.1, 0.3))):
        if each.method == "csr":
            seen.append(each.predicted_error)
            assert each.predicted_error == pytest.approx(best[w.size - round(each.parameters["density"] * w.size)])
    assert any(0.08 < error <= 0.1 for error in seen) and any(0.25 < error <= 0.3 for error in seen)


def test_a_price_that_is_no_price_is_refused():
    with pytest.raises(InputError, match=r"price of .* is \(nan, 1\)"):
        propose(np.eye(8), price=lambda method, *_: (1, 1) if method == "dense" else (float("nan"), 1))


# ---- drawings


def layers():
    random = np.random.default_rng(0)
    names = [f"encoder.layer.{layer}.{kind}.weight" for layer in range(3) for kind in ("query", "output.dense")]
    weights = [Spectrum.of(random.standard_normal((12, 16)) * 0.7 ** np.arange(16), name) for name in names]
    return [*weights, Gram.of(activations(12)).spectrum("encoder.layer.0.input")]


POINTS = [
    {"measured_s": 0.01, "measured_bytes": 9e6, "measured_error": 0.0},
    {"measured_s": 0.008, "measured_bytes": 4e6, "measured_error": 0.01},
    {"measured_s": None, "predicted_s": 0.007, "measured_bytes": 3e6, "predicted_error": 0.3},
]


def test_the_text_has_a_line_for_each_matrix():
    lines = draw.spectrum_text(layers()).splitlines()
    table, said = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert len(table) == 2 + 7 and table[0].split()[:3] == ["layer", "matrix", "shape"]
    assert table[3].split()[:3] == ["0", "output.dense", "12×16"] and "█" in table[3]
    assert [line.split(": ")[0] for line in said] == [*draw.SPECTRUM_COLUMNS][3:]


def test_bars_fall_with_the_values_on_a_logarithmic_scale():
    assert draw.sparkline([1, 0.1, 0.01, 0.001, 1e-9], decades=3) == "█▆▃▁▁"
    assert draw.parse_weight_name("bert.encoder.layer.10.output.dense.weight") == (10, "output.dense")
    assert draw.parse_weight_name("embeddings.weight") == (None, "embeddings")


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "figure",
    [
        lambda path: draw.spectrum_figure(layers(), path),
        lambda path: draw.front_figure(POINTS, path, chosen=1, baseline=POINTS[0]),
        lambda path: draw.front_figure(POINTS[:1], path),
    ],
    ids=["spectra", "front", "front of one"],
)
def test_figures_are_written_or_say_what_is_missing(figure, tmp_path):
    if find_spec("matplotlib") is None:
        with pytest.raises(InputError, match="needs matplotlib"):
            figure(tmp_path / "figure.png")
    else:
        assert figure(tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install '\.\[plot\]'"):
        draw.front_figure(POINTS, "figure.png")


def test_points_without_numbers_are_refused(tmp_path):
    with pytest.raises(InputError, match="neither measured_s nor predicted_s"):
        draw.front_figure([{}], tmp_path / "f")
    with pytest.raises(InputError, match="no points"):
        draw.front_figure([], tmp_path / "f")
    with pytest.raises(InputError, match="no spectra"):
        draw.spectrum_figure([], tmp_path / "f")


def test_importing_spectra_imports_neither_scipy_nor_matplotlib():
    code = (
        "import sys, opmatrix.spectra, opmatrix.display.draw; "
        "print({'scipy', 'matplotlib', 'numba', 'rich'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "set()\n"
