"""Selection: what holds a matrix within an error is offered, the cheapest by the machine first, the same on every
run."""

from dataclasses import replace

import numpy as np
import pytest
import standin

from formats import FORMATS, FormatError
from formats.storage import select
from formats.storage.select import Candidate, DecomposedMatrix, candidates, choose, deviation, race_candidates, sampled

MACHINE = standin.machine()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sparse(n, p, density, seed=1):
    return normal(n, p) * (np.random.default_rng(seed).random((n, p)) < density)


def names(found):
    return {each.format for each in found}


TWO_OF_FOUR = normal(128, 96) * (np.random.default_rng(2).random((32, 4, 96)).argsort(1) < 2).reshape(128, 96)
SHARED = normal(128, 96) * np.repeat(
    (np.random.default_rng(3).random((32, 4, 3)).argsort(1) < 2).reshape(128, 3), 32, 1
)
TILES = np.kron(np.eye(8, 6), normal(16, 16)).astype(np.float32)


@pytest.mark.parametrize(
    "W, inside, outside",
    [
        (normal(128, 96), {"dense", "packed", "csr"}, {"half", "bf16", "int8", "int4", "nm", "vectorwise", "lowrank"}),
        (TWO_OF_FOUR, {"packed", "nm", "csr"}, {"vectorwise", "bf16"}),
        (SHARED, {"packed", "nm", "vectorwise", "csr"}, {"half"}),
        (TILES, {"packed", "block", "csr"}, {"bf16", "int8"}),
        (normal(128, 96).astype(np.float16), {"half", "packed"}, {"bf16", "int8"}),
        (np.zeros((128, 96), np.float32), {"csr", "nm", "block", "half"}, {"bf16"}),
    ],
)
def test_what_holds_a_matrix_exactly_is_offered(W, inside, outside):
    found = names(candidates(DecomposedMatrix(np.asarray(W, np.float32)), 16, 0.0, MACHINE))
    assert inside <= found and not found & outside


def test_what_is_chosen_holds_the_matrix_and_costs_what_it_says():
    for W in (normal(128, 96), TWO_OF_FOUR, SHARED, TILES, sparse(200, 60, 0.1), np.zeros((64, 48), np.float32)):
        for each in select.select(W, 8, machine=MACHINE):
            packed = each.pack(W)
            assert np.array_equal(packed.unpack(), W) and packed.nbytes == pytest.approx(each.nbytes, abs=1)
            assert each.low < each.seconds < each.high and each.error == 0


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "error, inside, outside",
    [
        (0.0, set(), {"bf16", "int8", "int4"}),
        (4e-3, {"bf16"}, {"int8", "int4"}),
        (1.5e-2, {"bf16", "int8"}, {"int4"}),
        (0.2, {"bf16", "int8", "int4"}, set()),
    ],
)
def test_an_allowed_error_lets_number_types_in_and_is_kept(error, inside, outside):
    W = normal(512, 256)
    found = candidates(DecomposedMatrix(W), 16, error, MACHINE)
    assert inside <= names(found) and not names(found) & outside
    for each in found:
        assert deviation(each.pack(W), W) <= 1.1 * error + 1e-6


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("decay, error", [(0.93, 4e-3), (0.95, 2e-2), (0.97, 5e-2), (0.999, 0.3), (0.0, 1e-3)])
def test_errors_are_of_the_whole_matrix_and_rank_is_the_least_that_will_do(decay, error):
    """Factors hold a sample with fewer columns than their rank, whatever the rest is."""
    U, V = (np.linalg.qr(normal(side, 256, seed=side))[0] for side in (256, 768))
    W = ((U * decay ** np.arange(256)) @ V.T).astype(np.float32)
    found = select.select(W, 128, error, MACHINE)
    for each in found:
        off = np.linalg.norm(each.pack(W).unpack() - W.astype(np.float64)) / np.linalg.norm(W)
        assert off <= error and (FORMATS[each.format].rounds or each.error == pytest.approx(off, rel=1e-5))
    squares = decay ** (2.0 * np.arange(256))
    least = next(rank for rank in range(257) if squares[rank:].sum() <= error**2 * squares.sum())
    ranks = [dict(each.options)["rank"] for each in found if each.format == "lowrank"]
    assert (min(ranks) - least) in range(8) if least < 184 else not ranks  # 192 factors store as much as W


def test_the_same_question_has_the_same_answer_and_the_cheapest_comes_first():
    W = sparse(320, 256, 0.15)
    first, again = (select.select(W, 24, machine=MACHINE) for _ in range(2))
    assert first == again and [each.cost for each in first] == sorted(each.cost for each in first)
    assert choose(W, 24, machine=MACHINE, measured=False) == first[0] and len(set(map(str, first))) == len(first)


def test_sparse_numbers_are_worth_it_only_where_there_are_few():
    """The stand-in's csr takes four times as long for a number as dense: it wins where fewer than about a quarter are
    left."""
    for density, best in ((0.02, "csr"), (0.1, "csr"), (0.5, "packed"), (0.9, "packed")):
        assert (
            select.select(sparse(512, 512, density), 128, machine=MACHINE, formats=("packed", "csr"))[0].format == best
        )
    prices = [
        select.candidates(DecomposedMatrix(sparse(256, 256, density)), 64, 0.0, MACHINE, ("csr",))[0].seconds
        for density in (0.02, 0.1, 0.3, 0.6, 0.9)
    ]
    assert prices == sorted(prices)


def test_a_pattern_alone_is_enough():
    W = sparse(192, 128, 0.1)
    assert (
        choose(W != 0, 32, machine=MACHINE, measured=False).format
        == choose(W, 32, machine=MACHINE, measured=False).format
    )


def test_a_sample_is_whole_tiles_of_the_matrix():
    W = np.arange(2000 * 700, dtype=np.float32).reshape(2000, 700)
    part = sampled(W)
    assert part.shape == (512, 128) and np.array_equal(part[:64, :64], W[:64, :64])
    rows = (part[::64, 0] // 700).astype(int)
    assert (rows % 64 == 0).all() and rows[-1] > 1900 - 64 and np.array_equal(sampled(W[:100, :50]), W[:100, :50])


def test_what_holds_the_sample_but_not_the_rest_is_not_chosen():
    W = np.zeros((2048, 512), np.float32)
    W[:64, :64] = W[640:704, 256:320] = 1.0
    W[300:304, 100] = 1 / 3  # outside the sample: no two of four, no
    # float16
    found = select.select(W, 16, machine=MACHINE)
    assert not names(found) & {"half", "nm"} and names(found) & {"csr", "block"}
    assert np.array_equal(found[0].pack(W).unpack(), W)


def test_nothing_holds_it():
    with pytest.raises(FormatError, match=r"no format of half, nm stores this matrix within an error of 0"):
        select.select(normal(64, 48), 1, machine=MACHINE, formats=("half", "nm"))
    with pytest.raises(FormatError, match="give an array of real numbers"):
        select.select([["a"]], 1, machine=MACHINE)


def test_a_conversion_is_shared_by_products():
    W = sparse(128, 96, 0.1)
    for each in select.select(W, 16, machine=MACHINE, products=10):
        assert each.conversion > 0 and each.cost == each.seconds + each.conversion
    assert all(each.conversion == 0 for each in select.select(W, 16, machine=MACHINE))


def test_those_that_lie_near_are_timed(monkeypatch):
    """A clock that runs ten times as fast for one of them, which is believed for the most part; what is surely slower
    is not even packed."""
    W, packed = sparse(128, 96, 0.2), []
    near = [
        Candidate(name, (), seconds, 0.8 * seconds, 1.2 * seconds, 1)
        for name, seconds in (("csr", 1.0), ("packed", 1.1), ("dense", 1.3), ("sell", 2.0))
    ]
    held = Candidate.pack
    monkeypatch.setattr(Candidate, "pack", lambda each, W: packed.append(each.format) or held(each, W))
    kinds = []
    monkeypatch.setattr(select, "burst", lambda call: kinds.append(call()) or [0.1 if len(kinds) % 3 == 2 else 1.0])
    best = race_candidates(DecomposedMatrix(W), 4, near)
    assert packed == ["csr", "packed", "dense"] and best.format == "packed" and 0.1 < best.seconds < 0.5
    assert race_candidates(DecomposedMatrix(W), 4, near[:1]).format == "csr"


def test_who_was_predicted_too_fast_is_found_out(monkeypatch):
    W = sparse(128, 96, 0.2)
    found = [
        Candidate(name, (), seconds, 0.8 * seconds, 1.2 * seconds, 1)
        for name, seconds in (("csr", 0.1), ("packed", 1.0))
    ]
    turns = iter([5.0, 5.0, 1.0] + [5.0] * 30)
    monkeypatch.setattr(select, "burst", lambda call: [next(turns)])
    assert race_candidates(DecomposedMatrix(W), 4, found).format == "packed"


def believed(*candidates):
    """Seconds as predicted with half the width of their interval, and those of the turns: what is believed of each."""
    given = {
        Candidate(str(i), (), seconds, seconds / wide, seconds * wide, 1): [np.log(each) for each in turns]
        for i, (seconds, wide, turns) in enumerate(candidates)
    }
    return [belief.seconds for belief in select.believed(given).values()]


def test_quiet_timings_outweigh_predictions():
    slow, fast = believed((1.0, 1.2, [1.1, 1.101, 1.1]), (1.05, 1.2, [0.99, 0.991, 0.99]))
    assert slow > 1.08 * fast, "which says that it is 11 % slower, against the prediction"


def test_timings_that_are_far_apart_leave_it_to_the_prediction():
    first, second = believed((1.0, 1.05, [1.0, 2.0, 1.5]), (1.2, 1.05, [1.9, 0.9, 1.4]))
    assert second > 1.1 * first, "though its middle turn was faster"


def test_a_busy_machine_slows_all_alike():
    quiet, busy = (
        believed((1.0, 1.1, [factor, factor]), (1.1, 1.1, [1.2 * factor, 1.2 * factor])) for factor in (1.0, 1.5)
    )
    assert busy == pytest.approx(quiet, rel=0.12) and busy[1] / busy[0] == pytest.approx(quiet[1] / quiet[0], rel=1e-6)


def test_time_is_measured():
    W = sparse(64, 48, 0.3)
    best = choose(W, 2, machine=MACHINE, measured=True, seconds=0.01)
    assert best.format in FORMATS and 0 < best.seconds < 1


def test_blas_is_in_the_race_where_it_was_calibrated():
    W, dense = normal(128, 96), MACHINE.coefficients["linear.dense"]

    def blas(factor):
        return replace(MACHINE, coefficients=MACHINE.coefficients | {"linear.blas": [factor * each for each in dense]})

    fast, slow = (select.select(W, 16, machine=blas(factor)) for factor in (0.01, 3.0))
    assert fast[0].format == "blas" and slow[0].format != "blas"
    assert "blas" not in names(select.select(W, 16, machine=MACHINE))
    x = normal(4, 128)
    assert np.array_equal(fast[0].pack(W).matmul(x), x @ W) and fast[0].nbytes == W.nbytes == fast[0].pack(W).nbytes


@pytest.mark.parametrize("shape", [(96, 160), (128, 128), (160, 96)], ids=str)
def test_one_decomposition_does_for_all_ranks(monkeypatch, shape):
    """Of ranking and racing together; what it packs is what a candidate packs alone."""
    inner = np.diag(0.8 ** np.arange(96.0)).astype(np.float32)
    W = normal(shape[0], 96) @ inner @ normal(96, shape[1], seed=1)
    taken = dict.fromkeys(("eigh", "eigvalsh", "svd"), 0)
    for name in taken:

        def counted(*given, name=name, inner=getattr(np.linalg, name), **options):
            taken[name] += 1
            return inner(*given, **options)

        monkeypatch.setattr(np.linalg, name, counted)
    choose(W, 128, 0.02, MACHINE, seconds=0.0)
    assert taken == {"eigh": 1, "eigvalsh": 1, "svd": 0}
    weights = DecomposedMatrix(W)
    low = [each for each in select.rank_candidates(weights, 128, 0.02, MACHINE) if FORMATS[each.format].projected]
    assert len(low) > 2
    for each in low:
        alone, shared = (packed.unpack() for packed in (each.pack(W), weights.pack(each)))
        assert np.linalg.norm(alone - shared) < 1e-4 * np.linalg.norm(W)


def test_no_vectors_are_worked_out_where_no_rank_is_low(monkeypatch):
    monkeypatch.setattr(np.linalg, "eigh", None)
    assert "int8" in names(select.select(normal(128, 96), 128, 0.02, MACHINE))


def test_what_is_measured_first_is_announced(monkeypatch):
    lines = []
    monkeypatch.setattr(select, "say", lines.append)

    def learning(ask, progress):
        progress(1, 3)
        return ask()

    monkeypatch.setattr(select, "learning", learning)
    select.select(normal(32, 32), 8, machine=MACHINE, formats=["csr"])
    assert lines and all(line.startswith("select: linear.csr is measured here") for line in lines)


@pytest.mark.parametrize(
    "asked", ({"rows": -1}, {"rows": 0}, {"rows": 1.5}, {"rows": 8, "error": -1}, {"rows": 8, "error": float("nan")})
)
def test_rows_and_errors_that_are_none(asked):
    name = [*asked][-1]
    with pytest.raises(ValueError, match=f"select: {name}={asked[name]}: give a (whole number|relative error)"):
        choose(normal(32, 32), machine=MACHINE, **asked)


def test_a_format_that_is_not_there():
    with pytest.raises(FormatError, match="select: there is no format 'csrr'; there are dense, packed"):
        select.select(np.eye(4), 1, machine=MACHINE, formats=["csrr"])
