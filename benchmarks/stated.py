"""The stated error on texts that nobody has seen: of eight kinds, each the workload in turn.

    python benchmarks/stated.py [minilm.opmatrix] [--point N] [--workload 100] [--fresh 200] [--seed 0] [--csv OUT]

Takes a saved program with many int8 weights from the front of what `optimize minilm` saved, or point N of it, and the
exact one beside it. Of each kind of text lines are drawn; those of the workload are parted as `optimize` parts them,
and a third part states the worst sentence. Counted is how many fresh lines exceed it, and by how much at most. The last
columns hold the same lines against what the shipped sentences state, and say whether they count as covered by those,
and by their own workload."""

import sys
from pathlib import Path

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes, whole, within

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.display.tables import table
from opmatrix.files.loading import FRONT
from opmatrix.files.saving import REPORT
from opmatrix.inference.embed import batches
from opmatrix.inference.text import LineReading, Parts, sentences
from opmatrix.runtime.program import Program
from rewrites.verify.differences import Change
from rewrites.workload.samples import TEXT_KINDS, make_lines
from rewrites.workload.stated import MIN_SENTENCES, Stated, change_cosines, uncovered

COLUMNS = (
    "kind",
    "tokens",
    "seen",
    "largest seen",
    "stated of all",
    "found of all",
    "stated worst",
    "fresh above",
    "largest ratio",
    "cosine, mean",
    "cosine, most",
    "shipped: above",
    "largest ratio",
    "covered",
    "own",
)
ALLOWED, MOST = 0.01, 1.5  # share of fresh lines above what is stated, times by which
# one may be


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("program", type=Path, nargs="?", default=Path("minilm.opmatrix"))
    parser.add_argument("--point", type=count, help="of the front; by itself the one with most int8 weights")
    parser.add_argument("--workload", type=count, default=100, help="lines")
    parser.add_argument("--fresh", type=count, default=200, help="lines")
    parser.add_argument("--seed", type=whole, default=0)
    given = parser.parse_args()
    within("workload", given.workload, 100_000, 2 * MIN_SENTENCES)
    within("fresh", given.fresh, 100_000)
    name, program, exact = taken(given.program, given.point)
    takes(3 + 0.025 * len(TEXT_KINDS) * (given.workload / 2 + given.fresh))
    shipped, fitted = Parts.of(sentences()), rows(program, [*Parts.of(sentences()).fit, *Parts.of(sentences()).choose])
    said = statement(program, exact, shipped.state)
    lacking = uncovered(program.tokenizer, fitted, rows(program, shipped.state))
    found = []
    for kind in TEXT_KINDS:
        found.append(judged(kind, given, program, exact, said, lacking))
        say(kind)
    print(
        f"{given.program}, {name}: stated of the shipped sentences {said.error:.3g}, worst sentence "
        f"{said.sentence:.3g}, cosines change by {said.cosine_mean:.2g} on average, {said.cosine_most:.2g} at most "
        f"of {said.pairs} pairs"
    )
    print(table([[shown(cell) for cell in row] for row in found], [*COLUMNS]))
    tabled(given.csv, [COLUMNS, *found])
    broken = [
        row[0]
        for row in found
        if row[COLUMNS.index("fresh above")] > ALLOWED or row[COLUMNS.index("largest ratio")] > MOST
    ]
    print(f"more than {100 * ALLOWED:g} % above, or one by more than {MOST:g} x: {', '.join(broken) or 'none'}")
    above, times = (max(row[COLUMNS.index(name)] for row in found) for name in ("fresh above", "largest ratio"))
    what = f"fresh lines above the stated worst, of {given.fresh}, in the worst kind"
    concluded(
        given,
        [
            Figure(what, 100 * above, "%", most=100 * ALLOWED),
            Figure("the farthest, over what is stated", times, "x", most=MOST),
        ],
    )
    return bool(broken)


def taken(directory: Path, point: int | None) -> tuple[str, Program, Program]:
    """The name of a point, its program, and the exact one of the same front."""
    front = read_json(directory / REPORT)["front"]
    counts = [sum(count for method, count in each["methods"].items() if method == "int8") for each in front]
    if point is None:
        point = int(
            np.argmax([count - (each["measured_error"] or 0) for count, each in zip(counts, front, strict=True)])
        )
    if not 0 < point < len(front):
        raise InputError(f"--point {point}: {directory} has approximate programs 1 to {len(front) - 1}")
    return front[point]["name"], *(Program.load(directory / FRONT / str(number)) for number in (point, 0))


def rows(program, texts):
    """The texts as one batch, cut where the model has no more positions."""
    return next(batches(program.tokenizer, texts, sys.maxsize, LineReading(truncate=True)))


def outputs(program, exact, texts):
    """What both make of the texts, some thousand rows at a time, and where each text's rows begin."""
    made = [*batches(program.tokenizer, texts, reading=LineReading(truncate=True))]
    found, wanted = (
        np.concatenate([np.asarray(each.run(batch), np.float64) for batch in made]) for each in (program, exact)
    )
    return found, wanted, np.cumsum([0, *(length for batch in made for length in np.diff(program.starts(batch)))])


def statement(program, exact, texts):
    return stated(program, *outputs(program, exact, texts))


def stated(program, found, wanted, starts):
    """What is stated of outputs."""
    vectors = (program.pooling(rows, starts) for rows in (wanted, found))
    return Stated.of(Change.of(found, wanted, starts), change_cosines(*vectors))


def judged(kind, given, program, exact, shipped, lacking):
    """A row of the table."""
    drawn = make_lines(kind, given.workload + given.fresh, given.seed)
    (fit, choose, state), fresh = Parts.of(drawn[: given.workload]), drawn[given.workload :]
    seen, new = outputs(program, exact, state), outputs(program, exact, fresh)
    said, errors = stated(program, *seen), Change.of(*new).each
    together = float(np.linalg.norm(new[0] - new[1]) / np.linalg.norm(new[1]))
    lengths, own = (
        np.diff(rows(program, fresh).starts),
        uncovered(program.tokenizer, rows(program, [*fit, *choose]), rows(program, state)),
    )
    covered = ["no" if kind in lists else "yes" for lists in (lacking, own)]
    return [
        kind,
        f"{lengths.min()} to {lengths.max()}",
        len(state),
        Change.of(*seen).each.max(),
        said.error,
        together,
        said.sentence,
        float(np.mean(errors > said.sentence)),
        errors.max() / said.sentence,
        said.cosine_mean,
        said.cosine_most,
        float(np.mean(errors > shipped.sentence)),
        errors.max() / shipped.sentence,
        *covered,
    ]


def shown(cell):
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    command.run(main)
