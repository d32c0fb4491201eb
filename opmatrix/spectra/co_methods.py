"""Unite and conquer as processes: co-methods of several subspaces send each other Ritz vectors when they have them.

Each co-method is a forked process of one thread, which inherits the operator (nothing is pickled). It keeps a basis B
with its images A B, extends it from its own last Krylov vector, and at each restart unites it with the newest Schur
vectors of the others by a Rayleigh-Ritz step, which needs no product. Messages lie in shared memory, one place for each
process, with a checksum: a message that is being written is read at the next restart. A process waits for a message
of another at most half as long as its last cycle took, so a process that is slow or dead delays no other for long.
Emad and Petiton (2016); the exchange of whole invariant subspaces instead of one vector is that of `unite.py`."""

import json
import mmap
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.host.threads import single_blas
from opmatrix.spectra.krylov_schur import drawn_size, leading, orthogonalise, random_direction
from opmatrix.spectra.unite import (
    Counted,
    DType,
    Eigenpairs,
    Matrix,
    SquareOperator,
    checked,
    confirmed,
    project,
    rayleigh_ritz,
    relative,
)

STRENGTH = 1e-4  # directions of a message that are new to a smaller share carry rounding
CYCLES_WAITED = 0.5  # longest wait for a message of another, over the time of its own cycle
POLL_SECONDS = 1e-4
PIPE_BYTES = 1 << 16
HEAD = 4  # numbers before a message: serial number, columns, checksum, products of its process


class Mailbox:
    """Shared memory of `places` messages, each of at most `most` vectors of n numbers and their images."""

    def __init__(self, places: int, n: int, most: int, dtype: DType) -> None:
        head_bytes = 8 * HEAD * places
        self.memory = mmap.mmap(-1, head_bytes + 2 * places * most * n * dtype.itemsize)
        self.heads = np.frombuffer(self.memory, np.int64, HEAD * places).reshape(places, HEAD)
        self.bodies = np.frombuffer(self.memory, dtype, 2 * places * most * n, head_bytes).reshape(places, 2, most, n)

    def put(self, place: int, vectors: Matrix, images: Matrix) -> None:
        """Write a message: vectors (n, p) and their images."""
        size = vectors.shape[1]
        body = self.bodies[place, :, :size]
        body[0], body[1] = vectors.T, images.T
        self.heads[place, :3] = self.heads[place, 0] + 1, size, crc32(np.ascontiguousarray(body).data)

    def take(self, place: int) -> tuple[int, Matrix, Matrix]:
        """Return serial number, vectors and images of a message; no vectors where it is being written."""
        serial, size, checksum, _ = (int(number) for number in self.heads[place])
        body = self.bodies[place, :, :size].copy()
        if not size or crc32(body.data) != checksum:
            body = body[:, :0]
        return serial, body[0].T, body[1].T

    def wait(self, place: int, serial: int, seconds: float) -> bool:
        """Wait at most these seconds for a message after the one of that serial number; True if there is one."""
        end = time.monotonic() + seconds
        while self.heads[place, 0] == serial:
            if time.monotonic() >= end:
                return False
            time.sleep(min(POLL_SECONDS, seconds))
        return True


@dataclass
class CoMethod:
    """One process of uniting: an orthonormal basis, its images, and the projection of A on it. It extends the basis by
    the residual of a wanted Ritz pair, the `place`-th that has not converged. Without messages all residuals of a basis
    are parallel, and this is Krylov-Schur."""

    operator: Counted
    count: int
    size: int
    symmetric: bool
    place: int
    tolerance: float
    random: np.random.Generator  # of directions
    draws: np.random.Generator  # of sizes, alike in all processes, which then restart at about the same time
    basis: Matrix
    images: Matrix
    inner: Matrix

    def extend(self) -> None:
        """Extend the basis to its whole size."""
        while self.basis.shape[1] < min(self.size, len(self.basis)):
            vector = self.direction()
            image = self.operator @ vector
            column, row = self.basis.conj().T @ image, vector.conj() @ self.images
            self.inner = np.block([[self.inner, column[:, None]], [row[None], np.vdot(vector, image)]])
            self.basis = np.column_stack([self.basis, vector])
            self.images = np.column_stack([self.images, image])

    def direction(self) -> Matrix:
        """Return the next basis vector: a residual, or a random vector where residuals are rounding."""
        if not self.basis.shape[1]:
            return random_direction(self.basis, self.random)
        _, residuals, left = self.residuals()
        open_pairs = np.flatnonzero(left > self.tolerance / 2)
        if not len(open_pairs):
            return random_direction(self.basis, self.random)
        vector = residuals[:, open_pairs[self.place % len(open_pairs)]]
        if not np.iscomplexobj(self.basis) and np.iscomplexobj(vector):
            vector = max(vector.real, vector.imag, key=np.linalg.norm)
        vector = orthogonalise(vector / np.linalg.norm(vector), self.basis)[0]
        length = np.linalg.norm(vector)
        if length <= STRENGTH:
            return random_direction(self.basis, self.random)
        vector = orthogonalise(vector / length, self.basis)[0]
        return np.asarray(vector / np.linalg.norm(vector))

    def residuals(self) -> tuple[Matrix, Matrix, NDArray[np.float64]]:
        """Return the wanted Ritz values, their residuals (n, count), and the relative norms of these."""
        values, inside = project(self.inner, self.count, self.symmetric)
        vectors, images = self.basis @ inside, self.images @ inside
        return values, images - vectors * values, relative(values, vectors, images)

    def unite(self, vectors: Matrix, images: Matrix) -> None:
        """Add the directions of a message that are new to the basis."""
        for _ in range(2):
            along = self.basis.conj().T @ vectors
            vectors, images = vectors - self.basis @ along, images - self.images @ along
        frame, strength, turn = np.linalg.svd(vectors, full_matrices=False)
        strong = strength > STRENGTH
        change = turn[strong].conj().T / strength[strong]
        self.basis = np.hstack([self.basis, frame[:, strong]])
        self.images = np.hstack([self.images, images @ change])
        self.inner = self.basis.conj().T @ self.images

    def reduce(self, keep: int) -> None:
        """Restart from about `keep` Schur vectors."""
        frame = leading(self.inner, keep, self.symmetric)
        self.basis, self.images = self.basis @ frame, self.images @ frame
        self.inner = frame.conj().T @ self.inner @ frame

    def refresh(self) -> None:
        """Compute the images of the basis again, without the rounding of restarts."""
        self.basis = np.linalg.qr(self.basis)[0]
        self.images = self.operator @ self.basis
        self.inner = self.basis.conj().T @ self.images

    def worst(self) -> float:
        """Return the worst relative residual of the wanted pairs."""
        return float(self.residuals()[2].max())


def run_co_method(method: CoMethod, box: Mailbox, restarts: int) -> Iterator[float]:
    """Run a co-method to the end: yield its worst residual at each restart. Its last message is its result."""
    read = [0] * len(box.heads)
    for _ in range(restarts):
        begun = time.monotonic()
        method.extend()
        box.put(method.place, method.basis, method.images)
        box.heads[method.place, 3] = method.operator.products
        patience = CYCLES_WAITED * (time.monotonic() - begun)
        for other in range(len(read)):
            if other != method.place and box.wait(other, read[other], patience):
                serial, vectors, images = box.take(other)
                if vectors.shape[1]:
                    read[other] = serial
                    method.unite(vectors, images)
        left = method.worst()
        if left <= method.tolerance:
            method.reduce(method.count)
            method.refresh()
            left = method.worst()
            box.put(method.place, method.basis, method.images)
            box.heads[method.place, 3] = method.operator.products
        else:
            method.reduce(drawn_size(method.count, method.size, method.draws))
        yield left
        if left <= method.tolerance:
            return


@dataclass
class CoProcess:
    """A forked process, the pipe of its lines, the sizes of its subspace, and its residuals so far."""

    process: int
    pipe: int
    size: int
    history: list[float] = field(default_factory=list)
    rest: bytes = b""
    failure: str = ""

    def read(self) -> bool:
        """Read the lines that have come; False at their end."""
        data = os.read(self.pipe, PIPE_BYTES)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in map(json.loads, lines):
            if isinstance(line, str):
                self.failure = line
            else:
                self.history.append(float(line))
        return bool(data)

    def ended(self) -> bool:
        """Read all that is ready, so that an end is seen with the lines before it; True at the end."""
        while select.select([self.pipe], [], [], 0)[0]:
            if not self.read():
                return True
        return False

    def converged(self, tolerance: float) -> bool:
        """True if the last residual is within the tolerance."""
        return bool(self.history) and self.history[-1] <= tolerance

    def end(self) -> int:
        """End the process, and return its status: negative for a signal."""
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def begin(method: CoMethod, box: Mailbox, restarts: int) -> CoProcess:
    """Fork a process that runs a co-method and writes a line for each restart."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return CoProcess(process, reading, method.size)
    with suppress(BaseException), os.fdopen(writing, "w") as lines, single_blas():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            for left in run_co_method(method, box, restarts):
                print(json.dumps(left), file=lines, flush=True)
        except BaseException as error:
            print(json.dumps(f"{type(error).__name__}: {error}"), file=lines, flush=True)
    os._exit(0)


def unite_processes(
    operator: SquareOperator,
    count: int,
    subspaces: Sequence[int] = (20, 20),
    tolerance: float = 1e-8,
    restarts: int = 1000,
    symmetric: bool = False,
    seed: int = 0,
) -> Eigenpairs:
    """Compute the `count` eigenpairs of largest magnitude by a process of one thread for each subspace size.

    The first process whose pairs converge ends the others. A process that dies leaves a line in `lost`; the others go
    on. Eigenvalues are the same for a seed to the tolerance; restarts and products depend on who was faster. Raises
    InputError for sizes that do not fit, if every process died, and where processes cannot be forked."""
    dtype, n = checked(operator, count, subspaces), operator.shape[0]
    sizes = [min(size, n) for size in subspaces]
    if min(sizes) < min(count + 2, n):
        raise InputError(f"eigenpairs: subspaces {tuple(subspaces)} for {count}: at least {count + 2} each are needed")
    if not hasattr(os, "fork"):
        raise InputError("eigenpairs: this system cannot fork processes; take unite_and_conquer")
    box = Mailbox(len(sizes), n, max(sizes), dtype)
    workers: list[CoProcess] = []
    lost: list[str] = []
    try:
        for place, size in enumerate(sizes):
            random, empty = np.random.default_rng([seed, place]), np.zeros((n, 0), dtype)
            method = CoMethod(
                operator=Counted(operator),
                count=count,
                size=size,
                symmetric=symmetric,
                place=place,
                tolerance=tolerance,
                random=random,
                draws=np.random.default_rng(seed),
                basis=empty,
                images=empty,
                inner=np.zeros((0, 0), dtype),
            )
            workers.append(begin(method, box, restarts))
        best = await_first(workers, tolerance, restarts, lost)
    finally:
        for worker in workers:
            with suppress(OSError):
                worker.end()
    shares = tuple(int(products) for products in box.heads[:, 3])
    _, vectors, images = box.take(best)
    ritz = rayleigh_ritz(vectors, images, count, symmetric)
    pairs = confirmed(Counted(operator, sum(shares)), ritz, count, workers[best].history, tolerance)
    return Eigenpairs(
        pairs.values,
        pairs.vectors,
        pairs.residuals,
        pairs.restarts,
        pairs.products,
        pairs.history,
        pairs.converged,
        shares,
        tuple(lost),
    )


def await_first(workers: Sequence[CoProcess], tolerance: float, restarts: int, lost: list[str]) -> int:
    """Wait until a process has converged or all have ended; return its place, or that of the best one. Adds a line to
    `lost` for each that died. Raises InputError if all died."""
    running = dict(enumerate(workers))
    best = None
    while running and best is None:
        select.select([worker.pipe for worker in running.values()], [], [])
        for place in [place for place, worker in running.items() if worker.ended()]:
            worker = running.pop(place)
            restarted = len(worker.history)
            if restarted < restarts and not worker.converged(tolerance):
                why = worker.failure or "it died"
                lost.append(f"process {place} (subspace {worker.size}) ended after {restarted} restarts: {why}")
        best = next((place for place, worker in enumerate(workers) if worker.converged(tolerance)), None)
    if best is not None:
        return best
    whole = [place for place, worker in enumerate(workers) if len(worker.history) >= restarts]
    if not whole:
        raise InputError(f"eigenpairs: every process died; {'; '.join(lost)}")
    return min(whole, key=lambda place: workers[place].history[-1])
