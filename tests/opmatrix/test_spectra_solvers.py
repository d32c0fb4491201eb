"""Solvers of eigenvalues and singular values, alone and united, against dense decompositions."""

import fcntl
import os

import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.spectra import (
    eigenvalues,
    krylov_schur,
    randomised_svd,
    restarted_arnoldi,
    singular_values,
    unite_and_conquer,
    unite_processes,
)
from opmatrix.spectra.co_methods import Mailbox
from opmatrix.spectra.solvers import EIGEN, choose_solver, converged

# ---- solvers


def symmetric(n=120, seed=0):
    frame = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    a = frame * (np.where(np.arange(n) % 3, 1.0, -1.0) / np.sqrt(1 + np.arange(n))) @ frame.T
    return (a + a.T) / 2


def rotating(n=120, seed=0):
    """Not symmetric, its largest eigenvalues are complex pairs."""
    random = np.random.default_rng(seed)
    blocks = np.zeros((n, n))
    for i in range(0, n, 2):
        size, angle = 3 / (1 + i / 4), 0.3 + i
        blocks[i : i + 2, i : i + 2] = size * np.array(
            [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        )
    frame = np.linalg.qr(random.standard_normal((n, n)))[0] @ np.diag(random.uniform(0.7, 1.4, n))
    return frame @ blocks @ np.linalg.inv(frame)


def true(a, count):
    values = np.linalg.eigvals(a)
    return values[np.argsort(-abs(values))][:count]


def alike(found, wanted):
    assert np.sort_complex(found) == pytest.approx(np.sort_complex(wanted), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("solver", ["auto", *EIGEN])
def test_every_eigensolver_finds_the_largest_of_a_symmetric_matrix(solver):
    from scipy.sparse.linalg import aslinearoperator

    a = symmetric()
    for given_ in (a, aslinearoperator(a)):
        found = eigenvalues(given_, 5, solver, symmetric=True)
        assert found == pytest.approx(true(a, 5).real, abs=1e-7)


@pytest.mark.parametrize("solver", ["auto", "lapack", "krylov_schur", "arpack", "unite", "processes"])
def test_every_eigensolver_finds_complex_pairs(solver):
    alike(eigenvalues(rotating(), 6, solver), true(rotating(), 6))


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("shape", [(70, 110), (110, 70)], ids=str)
@pytest.mark.parametrize("solver", ["auto", *EIGEN, "random"])
def test_every_solver_finds_singular_values_of_matrices_and_operators(solver, shape):
    from scipy.sparse.linalg import aslinearoperator

    random = np.random.default_rng(4)
    a = random.standard_normal((shape[0], 70)) * 0.8 ** np.arange(70) @ random.standard_normal((70, shape[1]))
    wanted = np.linalg.svd(a, compute_uv=False)
    for given_ in (a, aslinearoperator(a)):
        assert singular_values(given_, 5, solver) == pytest.approx(wanted[:5], rel=1e-6)
    assert singular_values(aslinearoperator(a)) == pytest.approx(wanted)


def test_sparse_matrices_are_taken_as_they_are():
    from scipy.sparse import random_array

    a = random_array((90, 60), density=0.1, rng=np.random.default_rng(0), format="csr")
    assert singular_values(a, 4, "arpack") == pytest.approx(np.linalg.svd(a.toarray())[1][:4])
    assert eigenvalues((a.T @ a).tocsr(), 4, "arpack").dtype == np.float64  # seen to be symmetric
    assert eigenvalues((a.T @ a).tocsr(), 4) == pytest.approx(np.linalg.svd(a.toarray())[1][:4] ** 2)


def test_a_random_sketch_is_nearly_the_truncated_decomposition():
    a = symmetric(90) + 0.1 * rotating(90)
    u, values, v = randomised_svd(a, 6)
    assert u.T @ u == pytest.approx(np.eye(6), abs=1e-10) and v @ v.T == pytest.approx(np.eye(6), abs=1e-10)
    best = np.linalg.norm(np.linalg.svd(a)[1][6:])
    assert best <= np.linalg.norm(a - u * values @ v) <= 1.01 * best


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: eigenvalues(np.ones((3, 4))), "not square"),
        (lambda: eigenvalues(np.eye(9), 3, "magic"), "no solver 'magic'; there are auto, lapack"),
        (lambda: eigenvalues(rotating(), 3, "lobpcg"), "needs a symmetric operator"),
        (lambda: eigenvalues(np.eye(9), 10), "count 10"),
        (lambda: singular_values(np.eye(9), None, "arpack"), "all were requested"),
        (lambda: unite_and_conquer(np.eye(9), 5, (4, 6)), "5 of an operator of size 9 with subspaces"),
        (lambda: unite_and_conquer(np.ones((3, 4)), 1), "must be square"),
        (lambda: krylov_schur(np.eye(9), 4, 5), "subspace 5 for 4 of 9: at least 6"),
        (lambda: unite_processes(np.eye(9), 4, (5, 8)), r"subspaces \(5, 8\) for 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_solvers_say_what_is_wrong(call, words):
    with pytest.raises(InputError, match=words):
        call()


# ---- unite and conquer


def hermitian():
    return symmetric() + 1j * (np.triu(rotating(), 1) - np.triu(rotating(), 1).T)


def skewed():
    return hermitian() @ hermitian() * (1 + 1j)


@pytest.mark.parametrize(
    "matrix, normal",
    [(symmetric, True), (rotating, False), (hermitian, True)],
    ids=["symmetric", "complex pairs", "hermitian"],
)
@pytest.mark.parametrize("subspaces", [(8, 11, 15), (20,)], ids=str)
def test_united_processes_converge_to_the_dense_eigenpairs(matrix, normal, subspaces):
    matrix = matrix()
    found = unite_and_conquer(matrix, 6, subspaces, symmetric=normal)
    alike(found.values, true(matrix, 6))
    left = np.linalg.norm(matrix @ found.vectors - found.vectors * found.values, axis=0)
    assert found.converged and left.max() < 1e-7 * abs(found.values[0])
    assert left == pytest.approx(found.residuals, abs=1e-12)
    assert found.restarts == len(found.history) and found.products <= found.restarts * (sum(subspaces) + 6)
    assert "converged" in repr(found) and np.array_equal(
        unite_and_conquer(matrix, 6, subspaces, symmetric=normal).values, found.values
    )


def test_united_processes_find_repeated_eigenvalues_that_one_start_cannot():
    a = np.diag([3.0, 3.0, 3.0, 2.0, *np.linspace(0, 1, 40)])
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((44, 44)))[0]
    a = frame @ a @ frame.T
    assert unite_and_conquer(a, 4, (6, 8, 10), symmetric=True).values == pytest.approx([3, 3, 3, 2])
    assert not np.allclose(restarted_arnoldi(a, 4, 10, symmetric=True, restarts=50).values, [3, 3, 3, 2])


def test_uniting_needs_fewer_restarts_than_any_process_alone():
    """The Laplacian of a path: its largest eigenvalues lie close together."""
    a = 2 * np.eye(150) - np.eye(150, k=1) - np.eye(150, k=-1)
    united = unite_and_conquer(a, 3, (10, 14, 18), symmetric=True)
    alone = [restarted_arnoldi(a, 3, size, symmetric=True, restarts=2 * united.restarts) for size in (10, 14, 18)]
    assert united.converged and united.values == pytest.approx(true(a, 3).real)
    assert not any(each.converged for each in alone)


@pytest.mark.parametrize(
    "a", [np.zeros((12, 12)), np.eye(12), np.outer(np.arange(12.0), np.ones(12))], ids=["zero", "identity", "rank one"]
)
def test_invariant_subspaces_end_at_once(a):
    found = unite_and_conquer(a, 3, (4, 6))
    alike(found.values, true(a, 3))
    assert found.converged and found.restarts <= 3


def test_not_converging_is_said():
    a = 2 * np.eye(300) - np.eye(300, k=1) - np.eye(300, k=-1)
    found = unite_and_conquer(a, 3, (4,), restarts=2)
    assert not found.converged and found.restarts == 2 and "not converged" in repr(found)


def test_an_error_of_a_solver_has_the_values_so_far_and_their_residuals():
    a = 2 * np.eye(300) - np.eye(300, k=1) - np.eye(300, k=-1)
    found = krylov_schur(a, 2, 6, restarts=3, symmetric=True)
    assert not found.converged and found.residuals.max() > 1e-6
    with pytest.raises(InputError, match=f"krylov_schur.*3 restarts.*so far: {found.values[0]:.6g} ± "):
        converged("krylov_schur", found)


def test_a_product_that_is_not_finite_is_named():
    for solve in (krylov_schur, unite_and_conquer):
        with pytest.raises(InputError, match="product 1 with the operator is not finite"):
            solve(np.full((30, 30), np.nan), 2)


def test_auto_takes_the_fewest_predicted_products():
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import aslinearoperator

    def chosen(matrix, count, symmetric=True):
        return choose_solver("auto", EIGEN, matrix, count, matrix.shape[0] - 2, symmetric)

    assert chosen(np.eye(200), 4) == "lapack" and chosen(np.eye(200), None) == "lapack"
    assert chosen(aslinearoperator(np.eye(100)), 4) == "lapack"
    assert chosen(aslinearoperator(eye_array(5000)), 4) == "krylov_schur"
    assert chosen(eye_array(5000), 4, False) == "arpack"
    assert chosen(eye_array(5000), 2000) == "lapack"


# ---- Krylov-Schur


@pytest.mark.deep(every=3)
@pytest.mark.parametrize(
    "matrix, normal",
    [(symmetric, True), (rotating, False), (hermitian, True), (skewed, False)],
    ids=["symmetric", "complex pairs", "hermitian", "complex"],
)
@pytest.mark.parametrize("subspace", [9, 20, 500])
def test_krylov_schur_converges_to_the_dense_eigenpairs(matrix, normal, subspace):
    matrix = matrix()
    found = krylov_schur(matrix, 6, subspace, symmetric=normal)
    alike(found.values, true(matrix, 6))
    left = np.linalg.norm(matrix @ found.vectors - found.vectors * found.values, axis=0)
    assert found.converged and left.max() < 1e-7 * abs(found.values[0])
    assert left == pytest.approx(found.residuals, abs=1e-12)


def test_krylov_schur_finds_repeated_eigenvalues():
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    a = frame * np.array([3.0, 3.0, 3.0, 2.0, *np.linspace(0, 1, 60)]) @ frame.T
    assert krylov_schur(a, 4, 12, symmetric=True).values == pytest.approx([3, 3, 3, 2])


@pytest.mark.parametrize("subspace, share", [(20, 1.0), (8, 0.7)])
def test_krylov_schur_needs_fewer_products_than_arpack(subspace, share):
    from scipy.sparse.linalg import LinearOperator, eigsh

    path, products = 2 * np.eye(150) - np.eye(150, k=1) - np.eye(150, k=-1), []
    counted = LinearOperator(path.shape, lambda x: products.append(1) or path @ x, dtype=float)
    start = np.random.default_rng(0).standard_normal(len(path))
    eigsh(counted, 4, ncv=subspace, v0=start, tol=1e-8, maxiter=10_000)
    found = krylov_schur(path, 4, subspace, symmetric=True)
    assert found.values == pytest.approx(2 + 2 * np.cos(np.arange(1, 5) * np.pi / 151), abs=1e-8)
    assert found.products <= share * len(products)


@pytest.mark.parametrize(
    "a", [np.zeros((12, 12)), np.eye(12), np.outer(np.arange(12.0), np.ones(12))], ids=["zero", "identity", "rank one"]
)
@pytest.mark.parametrize("solve", [lambda a: krylov_schur(a, 3, 6), lambda a: unite_processes(a, 3, (6, 7))])
def test_restarts_go_on_from_invariant_subspaces(a, solve):
    alike(solve(a).values, true(a, 3))


# ---- processes


class Fatal:
    """A matrix whose product number `last` in the first process that comes to it calls `end`."""

    def __init__(self, matrix, last, end, claim):
        self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype
        self.last, self.end, self.claim = last, end, claim

    def __matmul__(self, x):
        self.last -= 1
        if not self.last and self.claims():
            self.end()
        return self.matrix @ x

    def claims(self):
        """Mark the file `claim` and keep it locked until this process ends; False if another process has, and has
        ended. Without a file every process claims."""
        if self.claim is None:
            return True
        marks = os.open(self.claim, os.O_CREAT | os.O_RDWR)
        fcntl.flock(marks, fcntl.LOCK_EX)
        if os.fstat(marks).st_size:
            return False
        os.write(marks, b"claimed")
        return True


def test_processes_converge_to_the_dense_eigenpairs_for_every_seed():
    a = symmetric()
    for seed in (0, 1):
        found = unite_processes(a, 4, (10, 12), symmetric=True, seed=seed)
        assert found.converged and found.values == pytest.approx(true(a, 4).real, abs=1e-8)
        assert len(found.shares) == 2 and not found.lost and found.products >= sum(found.shares)


def test_the_others_go_on_when_a_process_dies(tmp_path):
    a = symmetric()
    found = unite_processes(Fatal(a, 12, lambda: os._exit(7), tmp_path / "claim"), 4, (10, 10), symmetric=True)
    assert found.converged and found.values == pytest.approx(true(a, 4).real, abs=1e-8)
    assert len(found.lost) == 1 and "subspace 10" in found.lost[0] and "died" in repr(found)


def test_a_product_that_raises_in_every_process_is_an_error():
    def end():
        raise ValueError("no more products")

    with pytest.raises(InputError, match=r"every process died; process [01] .*ValueError: no more products"):
        unite_processes(Fatal(symmetric(), 3, end, None), 4, (10, 10), symmetric=True)


def test_a_message_that_is_half_written_is_not_read():
    box, vectors = Mailbox(2, 5, 3, np.dtype(float)), np.eye(5)[:, :2]
    assert box.take(0)[0] == 0 and box.take(0)[1].shape[1] == 0
    box.put(0, vectors, 2 * vectors)
    serial, read, images = box.take(0)
    assert serial == 1 and np.array_equal(read, vectors) and np.array_equal(images, 2 * vectors)
    box.bodies[0, 0, 1, 3] = 7
    assert box.take(0)[1].shape[1] == 0
