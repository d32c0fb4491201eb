"""The output of a saved program for texts that are passed one by one: embeddings and their cosines, the tokens that a
language model predicts to follow, or the scores of pairs."""

from collections.abc import Sequence

from opmatrix.display.tables import table
from opmatrix.inference.generation import speaks
from opmatrix.inference.pooling import normalise_rows
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.runtime.program import Program
from rewrites.metrics.perplexity import find_likeliest

SHOWN_NUMBERS = 6  # numbers of a vector that are printed


def run_texts(program: Program, texts: Sequence[str], truncate: bool | None) -> tuple[str, dict[str, object]]:
    """Return the answer as text and as figures: a vector for each text and all cosines; for a language model the
    likeliest next tokens of each text, with their shares; for a model that scores, its scores."""
    if scoring := program.scoring:
        return run_pairs(program, scoring, texts, truncate)
    rows = program.embed(texts, truncate=truncate)
    if speaks(program):
        following = [find_likeliest(program, scores) for scores in rows]
        lines = [
            f"{text[-60:]!r}: " + "  ".join(f"{token!r} {100 * share:.1f} %" for token, share in tokens)
            for text, tokens in zip(texts, following, strict=True)
        ]
        return "\n".join(lines), {
            "texts": [
                {"text": text, "next": [{"token": token, "share": share} for token, share in tokens]}
                for text, tokens in zip(texts, following, strict=True)
            ]
        }
    shown = [
        f"{text[:60]!r}: [{', '.join(f'{v:.4f}' for v in row[:SHOWN_NUMBERS])}, …] ({len(row)} numbers)"
        for text, row in zip(texts, rows, strict=True)
    ]
    figures: dict[str, object] = {
        "texts": [{"text": text, "vector": row.tolist()} for text, row in zip(texts, rows, strict=True)]
    }
    unit = rows if program.pooling.normalise else normalise_rows(rows)
    alike = unit @ unit.T
    if len(texts) > 1:
        shown.append(
            table(
                [[str(i + 1), *(f"{a:.3f}" for a in row)] for i, row in enumerate(alike)],
                ["cosine", *(str(i + 1) for i in range(len(texts)))],
            )
        )
    return "\n".join(shown), figures | {"cosines": alike.tolist()}


def run_pairs(
    program: Program, scoring: Scoring, texts: Sequence[str], truncate: bool | None
) -> tuple[str, dict[str, object]]:
    """Return the scores of every text behind the first, as a pair with it, or of one text alone: as a table and as
    figures."""
    first, *others = texts
    rows = program.score([(first, other) for other in others] or [first], truncate=truncate)
    scored = others or [first]
    lines = [[repr(text[:60]), *(f"{score:.4f}" for score in row)] for text, row in zip(scored, rows, strict=True)]
    heading = f"{first[:60]!r} with" if others else "text"
    figures = [{"text": text, "scores": row.tolist()} for text, row in zip(scored, rows, strict=True)]
    return table(lines, [heading, *scoring.labels]), {"first": first, "labels": [*scoring.labels], "texts": figures}
