"""The search for an encoder's exact program. A process that runs a kept program imports none of this module."""

import sys

from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.runtime.program import Program
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened
from rewrites.workload.phases import Report, silence_stdout
from rewrites.workload.resolve import calibrated, source
from rewrites.workload.workload import draw_workload

SEARCHED_TEXTS, SEARCHED_TOKENS = 8, 128  # texts of a batch, and tokens of each, that a program is made cheapest for


def find_exact(checkpoint: Checkpoint) -> Program:
    """Return the cheapest program that equals an encoder, as the search predicts it for a batch of texts, from tokens
    to embeddings or scores. It is not approximated, measured or compared."""
    report = Report(quiet=not sys.stderr.isatty())
    with report.phase("weights"):
        operator = checkpoint.operator(pooled=True)
    length = min(SEARCHED_TOKENS, checkpoint.positions)
    workload = draw_workload(Batch([[0] * length] * SEARCHED_TEXTS), operator)
    meta = source(checkpoint)
    with report.phase("machine") as progress:
        machine = calibrated(progress, workload.timed)
    with report.phase("search"), silence_stdout():
        return Opened(operator, workload, machine, EXACT_LAWS, meta).structure(EXACT_LAWS).program(meta)[0]
