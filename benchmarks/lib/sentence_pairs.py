"""Scored pairs of sentences, parted into those that are fitted to, that choose, and that judge."""

import csv
from pathlib import Path

from lib import command  # noqa: F401

from rewrites.metrics.pairs import SentencePairs


def halves(file: Path, place: Path) -> tuple[Path, Path, SentencePairs]:
    """A file of lines from every other pair, but for sentences that the others have; one of pairs that choose; and
    those that judge."""
    with open(file, newline="", encoding="utf-8") as opened:
        rows = [*csv.reader(opened)]
    others = {sentence for row in rows[1::2] for sentence in row[:2]}
    lines = dict.fromkeys(sentence for row in rows[0::2] for sentence in row[:2] if sentence not in others)
    text, made = place / "text.txt", []
    text.write_text("\n".join(lines), "utf-8")
    for at in (1, 3):
        made.append(place / f"pairs{at}.csv")
        with open(made[-1], "w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows(rows[at::4])
    return text, made[0], SentencePairs.read(made[1])
