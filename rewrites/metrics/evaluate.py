"""Programs and checkpoints compared: by their ranking of pairs of sentences, or by their perplexity on a text."""

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

LENGTHS = [16] * 256  # lengths of the sentences for an imported program


def open_program(where: str, progress: Callable[..., None] = lambda *_: None, own: Path | None = None) -> Program:
    """Return the program that a directory holds, with the file of the user's own definitions; or the imported program
    of a checkpoint, with the head that scores texts if it has one: a kernel for each operator, no number rounded."""
    if exists(Path(where) / PROGRAM):
        return Program.load(where, laws=own)
    checkpoint = open_model(where)
    model = checkpoint.operator(pooled=checkpoint.scoring is not None)
    result = search(model, (), calibrated(progress), counted(LENGTHS, patterns(model)), methods=plainly, fusion=False)
    return result.program(source(checkpoint))[0]


def evaluate_all(
    places: Sequence[str], pairs: SentencePairs, report: Report, truncate: bool | None = None, own: Path | None = None
) -> list[Evaluated]:
    """Score every program in turn."""
    scores = []
    for place in places:
        with report.phase(place) as progress:
            scores.append(score_pairs(place, open_program(place, progress, own), pairs, progress, truncate))
    return scores


def foreseen(
    places: Sequence[str], file: Path, tokens: int | None, report: Report, own: Path | None = None
) -> list[Foreseen]:
    """Return the perplexity of every program in turn."""
    scores = []
    for place in places:
        with report.phase(place) as progress:
            scores.append(perplexity.score_text(place, open_program(place, progress, own), file, tokens, progress))
    return scores


def format_scores(found: Sequence[Evaluated], pairs: SentencePairs) -> str:
    """Return a table with a row for each program; differences are from the first."""
    lines = [
        [
            score.name,
            f"{score.spearman:.2f}",
            f"{score.spearman - found[0].spearman:+.2f}" if at else "",
            f"{score.seconds:.2f}",
            f"{score.rate:.0f}",
        ]
        for at, score in enumerate(found)
    ]
    return table(lines, [f"{len(pairs)} pairs", "Spearman x 100", "difference", "seconds", "texts/s"])


def told_foreseen(found: Sequence[Foreseen]) -> str:
    """Return a table with a row for each program; ratios are to the first."""
    lines = [
        [
            score.name,
            f"{score.perplexity:.4f}",
            f"{score.perplexity / found[0].perplexity:.4f}" if at else "",
            f"{score.nats_a_byte:.4f}",
            f"{score.seconds:.2f}",
            f"{score.rate:.0f}",
        ]
        for at, score in enumerate(found)
    ]
    return table(lines, [f"{found[0].count} tokens", "perplexity", "ratio", "nats/byte", "seconds", "tokens/s"])


def foreseen_json(found: Sequence[Foreseen], file: Path) -> dict[str, object]:
    """Return perplexities of programs as JSON."""
    return {
        "text": str(file.absolute()),
        "window": perplexity.WINDOW,
        "programs": [
            {
                "name": score.name,
                "perplexity": score.perplexity,
                "nats_per_byte": score.nats_a_byte,
                "tokens": score.count,
                "seconds": score.seconds,
                "tokens_per_s": score.rate,
            }
            for score in found
        ],
    }


def scores_as_json(found: Sequence[Evaluated], file: Path, pairs: SentencePairs) -> dict[str, object]:
    """Return rank correlations of programs as JSON."""
    return {
        "pairs": str(file.absolute()),
        "count": len(pairs),
        "programs": [
            {
                "name": score.name,
                "spearman": score.spearman,
                "difference": score.spearman - found[0].spearman,
                "seconds": score.seconds,
                "texts_per_s": score.rate,
            }
            for score in found
        ],
    }
