"""How far one output is from another, and how that varies from sentence to sentence."""
import numpy as np

DRAWS = 1000                                                # of sentences, to say how an error varies


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative change of a whole output: the Frobenius norm of the difference over that of the output."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted))


def surely(found: np.ndarray, wanted: np.ndarray, starts: np.ndarray) -> float:
    """What such a change of the output stays below, but for one time in a thousand, on as many sentences drawn again
    from these (bootstrap: Efron 1979). `starts` are the offsets of sentences."""
    off, size = squares(found, wanted, starts)
    again = np.random.default_rng(0).integers(0, len(off), (DRAWS, len(off)))
    return float(np.quantile(np.sqrt(off[again].sum(1) / size[again].sum(1)), 0.999))


def squares(found: np.ndarray, wanted: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared Frobenius norms of the change and of the output, (S,) each: of every sentence by itself."""
    wanted = np.asarray(wanted, np.float64)
    off, size = (np.add.reduceat(np.square(rows.reshape(len(rows), -1)).sum(1), starts[:-1])
                 for rows in (found - wanted, wanted))
    return off, size
