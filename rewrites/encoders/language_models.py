"""The program that `generate` makes of a model: exact, neither approximated nor compared. A process that runs a saved
program imports none of this module."""

from dataclasses import replace

from formats.core.errors import InputError
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.runtime.program import Program
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.phased import Generation
from rewrites.lowering.shared_tables import with_shared_tables
from rewrites.opened import Opened
from rewrites.workload.phases import Report, silence_stdout
from rewrites.workload.resolve import calibrated, source
from rewrites.workload.workload import draw_workload

__all__ = ["find_exact", "open_model"]
TIMED = Generation(128, 128)  # the default request that a program is made cheapest for


def open_language_model(model: str) -> Checkpoint:
    """Open a model that `generate` and `chat` take. Raises InputError for one whose rows are no scores of words."""
    checkpoint = open_model(model)
    if not checkpoint.speaks:
        raise InputError(
            f"{model}: not a language model ({checkpoint.architecture or 'its config names none'}): "
            "its rows are not scores of a vocabulary"
        )
    return checkpoint


def find_exact(checkpoint: Checkpoint, report: Report, asked: Generation | None = None) -> Program:
    """Return the cheapest program that equals a language model, as the search predicts it for a request. It is not
    approximated, measured or compared. Weights in blocks stay in them, wherever a program can multiply by those: each
    token reads all weights."""
    with report.phase("weights"):
        operator = checkpoint.operator(pooled=True)
    if asked is None:
        half = max(1, checkpoint.positions // 2)
        asked = Generation(min(TIMED.prompt, half), min(TIMED.answer, half))
    workload, meta = draw_workload(asked, operator), source(checkpoint)
    with report.phase("machine") as progress:
        machine = calibrated(progress, workload.timed)
    with report.phase("search"), silence_stdout():
        opened = Opened(operator, workload, machine, EXACT_LAWS, meta, in_blocks=True)
        try:
            structure = opened.structure(EXACT_LAWS)
        except Infeasible:
            structure = replace(opened, in_blocks=False).structure(EXACT_LAWS)
        return with_shared_tables(structure.program(meta)[0], structure.lowerings[0].prices, structure.cost)
