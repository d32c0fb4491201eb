"""Products over monoids that no kernel was written for, timed beside numpy by hand
(tests/support/terms_of_folds.py)."""

from statistics import median

import numpy as np
from terms_of_folds import cases

import opmatrix as om
from formats.host.threads import limit
from formats.kernels.engine.compiled import provide
from formats.machine.peaks import vector_rate
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.kernels.fold_term import find_fold
from opmatrix.runtime.measure import measure

PRODUCT_COLUMNS = "product", "ms", "numpy_ms", "ratio", "of_vector_rate", "bits"
HEADS, EDGES = 12, 16  # of attention; entries of a row


def time_products(rows, columns, rounds, rng):
    """A line for each: seconds, those of numpy, which share of the vector units' rate is reached by operations that are
    counted, and whether bits on one thread are the same."""
    made, batch = cases(rng, [rows], n=columns // HEADS * HEADS, p=columns, h=HEADS, edges=EDGES)
    kernels = {name: find_fold(case.operands | {"term": case.text}).kernel for name, case in made.items()}
    provide([each.function for each in kernels.values()])
    for name, case in made.items():
        kernel, declared = kernels[name], KERNELS[case.kernel]
        plan, given = kernel.plan, [batch] if declared.batched else []
        shape = (rows, plan.heads, plan.cols) if plan.heads > 1 else (rows, plan.cols)

        def call(out):
            declared.function(out, *given, **case.operands, term=case.text)  # noqa: B023

        out, one = np.empty(shape, np.float32), np.empty(shape, np.float32)
        call(out)
        with limit(1):
            call(one)
        np.testing.assert_allclose(out, case.by_hand(), rtol=1e-3, atol=1e-3)
        taken = measure(
            {"ours": lambda _, out=out: call(out), "numpy": lambda _: case.by_hand()},  # noqa: B023
            [om.Batch([[0]])],
            rounds,
        )
        ours, theirs = median(taken["ours"]), median(taken["numpy"])
        scores = rows * (EDGES if plan.sparse else plan.keys or rows)
        share = scores * plan.heads * (kernel.counts.simple + kernel.counts.slow) / ours / vector_rate().all
        bits = "same" if out.tobytes() == one.tobytes() else "DIFFER"
        yield name, 1e3 * ours, 1e3 * theirs, ours / theirs, share, bits
