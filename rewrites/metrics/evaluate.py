"""Programs and checkpoints compared: by how well they rank pairs of sentences, or foresee a text."""
from collections.abc import Callable, Sequence
from os.path import exists
from pathlib import Path

from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.files.loading import PROGRAM
from opmatrix.runtime.program import Program
from rewrites.lowering.lower import plainly
from rewrites.metrics import perplexity
from rewrites.metrics.pairs import Evaluated, SentencePairs, score_pairs
from rewrites.metrics.perplexity import Foreseen
from rewrites.search.search import search
from rewrites.workload.phases import Report
from rewrites.workload.resolve import calibrated, source

LENGTHS = [16] * 256                                        # of the sentences that an imported program is made for


def open_program(where: str, progress: Callable[..., None] = lambda *_: None, own: Path | None = None) -> Program:
    """The program that a directory holds, with the file of what it has of one's own, or the imported one of a
    checkpoint: one kernel for each operator, nothing rounded."""
    if exists(Path(where) / PROGRAM): return Program.load(where, laws=own)
    checkpoint = open_model(where)
    model = checkpoint.operator()
    found = search(model, (), calibrated(progress), counted(LENGTHS, patterns(model)), methods=plainly, fusion=False)
    return found.program(source(checkpoint))[0]


def evaluate_all(places: Sequence[str], pairs: SentencePairs, report: Report,
                 truncate: bool | None = None, own: Path | None = None) -> list[Evaluated]:
    """Every program in turn."""
    found = []
    for place in places:
        with report.phase(place) as progress:
            found.append(score_pairs(place, open_program(place, progress, own), pairs, progress, truncate))
    return found


def foreseen(places: Sequence[str], file: Path, tokens: int | None, report: Report,
             own: Path | None = None) -> list[Foreseen]:
    """The perplexity of every program in turn."""
    found = []
    for place in places:
        with report.phase(place) as progress:
            found.append(perplexity.score_text(place, open_program(place, progress, own), file, tokens, progress))
    return found


def format_scores(found: Sequence[Evaluated], pairs: SentencePairs) -> str:
    """A row for each program; differences are from the first."""
    lines = [[each.name, f"{each.spearman:.2f}", f"{each.spearman - found[0].spearman:+.2f}" if at else "",
              f"{each.seconds:.2f}", f"{each.rate:.0f}"] for at, each in enumerate(found)]
    return table(lines, [f"{len(pairs)} pairs", "Spearman x 100", "difference", "seconds", "texts/s"])


def told_foreseen(found: Sequence[Foreseen]) -> str:
    """A row for each program; ratios are to the first."""
    lines = [[each.name, f"{each.perplexity:.4f}", f"{each.perplexity / found[0].perplexity:.4f}" if at else "",
              f"{each.nats_a_byte:.4f}", f"{each.seconds:.2f}", f"{each.rate:.0f}"] for at, each in enumerate(found)]
    return table(lines, [f"{found[0].count} tokens", "perplexity", "ratio", "nats/byte", "seconds", "tokens/s"])


def foreseen_json(found: Sequence[Foreseen], file: Path) -> dict[str, object]:
    """Perplexities of programs as JSON."""
    return {"text": str(file.absolute()), "window": perplexity.WINDOW, "programs": [
        {"name": each.name, "perplexity": each.perplexity, "nats_per_byte": each.nats_a_byte, "tokens": each.count,
         "seconds": each.seconds, "tokens_per_s": each.rate} for each in found]}


def scores_as_json(found: Sequence[Evaluated], file: Path, pairs: SentencePairs) -> dict[str, object]:
    """Rank correlations of programs as JSON."""
    return {"pairs": str(file.absolute()), "count": len(pairs), "programs": [
        {"name": each.name, "spearman": each.spearman, "difference": each.spearman - found[0].spearman,
         "seconds": each.seconds, "texts_per_s": each.rate} for each in found]}
