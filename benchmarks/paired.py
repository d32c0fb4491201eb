"""The programs that README names, found and run by a commit and by this tree: bits, seconds, first results, memory.

    python benchmarks/paired.py COMMIT [OTHER] [--only exact,bf16,int8,default,schedule]
                                [--workloads 1x16,1x128,8x128,texts,fresh] [--rounds 30] [--quick] [--startup]
                                [--models minilm,base] [--threads N] [--isolated] [--patience SECONDS]
                                [--keep DIR] [--csv OUT]

Each tree (OTHER, a commit, takes the place of the files as they are) is copied, and has an environment and a cache of
its own; both search with one calibration and one measurement of errors, so that what differs is the code. In a round
each side runs before and after the other, in processes that are started anew ten times. A ratio is the median over
rounds of the second tree's seconds over the first's, with a bootstrap interval of 95 %. *same*: it reaches into
1.00 ± 0.02; *wide*: it does, but is wider than 0.1. What lies wholly outside is raced once more, and the rounds of both
count. A commit against itself shows what noise does.

*fresh*: batches that a process has not run, of lengths that no other has, so that what is recorded for sizes counts.
*bits* are those of the results; where they differ, by how much relative to the largest number. *saved* says what the
second tree does with the program as the first saved it. *others* is the share of the processors' time that something
else took. Exit status: 1 where bits differ, where an interval lies wholly outside, or where a program is not found any
more; 2 for bad input."""

import difflib
import shutil
import tempfile
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from lib import command, workloads
from lib.command import Figure, Parser, concluded, cores, listed, named, pinned, say, tabled, takes, within
from lib.paired_rows import COLUMNS, EQUAL, REFUSED, Row, told
from lib.pairing import Others, apart, calm, rounds
from lib.peers import Absent, Job, Process
from lib.trees import PACKAGES, PROGRAMS, Fault, Tree, commit, git, priced_alike, shared_errors

import numpy as np

from formats.core.errors import InputError
from opmatrix.runtime.measure import undisturbed

TEXTS = "texts"
WORKLOADS = ["1x16", "1x128", "8x128", TEXTS]
QUICK = "exact", "int8"
STARTS, LINES = 10, 12  # pairs of processes of a row; lines shown of a difference
TRIES = 2  # of a row that lies wholly outside; the rounds of both
# count
FIND, ROW, START = 40, 10, 1  # seconds, about: a search, 30 rounds, a pair of starts


def main():
    given = options()
    first, second = commit(given.commit), given.other and commit(given.other)
    models = [
        (one := workloads.model(name), [worked(word, one, given.rounds) for word in given.workloads])
        for name in given.models
    ]
    pinned(given.threads)
    rows = []
    with nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory(prefix="paired-") as room:
        trees = [Tree(each, room, given.threads, given.isolated) for each in (first, second)]
        takes(expected(given))
        say("two minutes more for each tree without compiled kernels")
        for tree in trees:
            tree.made().ask("origins")
        print(introduced(trees, given, priced_alike(*trees, say)), flush=True)
        for checkpoint, works in models:
            for program in given.only:
                rows += compared(program, checkpoint, works, trees, given)
                tabled(given.csv, [COLUMNS, *(row.csv() for row in rows)])
    if not rows:
        raise Fault("nothing was compared")
    words, changed = told(rows, *(tree.name for tree in trees))
    print(f"\n{words}")
    others = sum(bool(row.changed) for row in rows)
    concluded(given, [Figure(f"rows of {len(rows)} that are not the same", others, most=0)])
    return int(changed)


def options():
    parser = Parser(__doc__)
    parser.add_argument("commit", metavar="COMMIT", help="what this tree is held against")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="a commit in the place of this tree")
    parser.add_argument("--only", type=listed, default=[*PROGRAMS], help=", ".join(PROGRAMS))
    parser.add_argument(
        "--workloads", type=listed, default=WORKLOADS, help="SENTENCESxTOKENS, 64 texts that ship, or fresh ones"
    )
    parser.add_argument("--models", type=listed, default=["minilm"], help="minilm, base, or directories of checkpoints")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="5 rounds of exact and int8")
    parser.add_argument("--startup", action="store_true", help="also first results, and resident memory")
    parser.add_argument("--threads", type=int, default=cores(), help="and so many processors")
    parser.add_argument("--isolated", action="store_true", help="pip installs each tree with what it asks for")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds that a row may wait for others to rest")
    parser.add_argument("--keep", type=Path, help="keep environments, caches, programs there, or take them")
    given = parser.parse_args()
    for option in ("only", "workloads", "models"):
        if not getattr(given, option):
            raise InputError(f"--{option}: it names nothing: leave it out, or name some")
    named("only", given.only, PROGRAMS)
    if given.quick:
        given.rounds = min(5, given.rounds)
        given.only = [name for name in given.only if name in QUICK] or given.only[:2]
    for option, least, most in (("rounds", 3, 10**4), ("threads", 1, cores()), ("patience", 0, 10**5)):
        within(option, getattr(given, option), most, least)
    if given.keep and given.keep.exists() and not given.keep.is_dir():
        raise InputError(f"--keep {given.keep}: it is no directory")
    return given


def expected(given):
    """Seconds, about, from figures of a quiet machine of two cores."""
    rows = len(given.workloads) * (ROW * given.rounds / 30 + STARTS * START) + given.startup * starts(given) * START
    return len(given.models) * len(given.only) * (2 * FIND + rows)


def starts(given):
    """How many rounds `--startup` takes."""
    return max(5, given.rounds // 3)


def introduced(trees, given, prices):
    """What is compared, on what, in lines."""
    from rewrites.cli.examine import examined

    facts, subject = examined(), lambda tree: git("log", "-1", "--format=%h %s", tree.commit or "HEAD").decode().strip()
    changed = len(git("status", "--porcelain", "--", *PACKAGES).decode().splitlines()) if not trees[1].commit else 0
    load = f"{given.threads} threads, load {facts.host.load or 0:.1f}"
    lines = {
        "machine": f"{facts.processor}: {', '.join(facts.features)}; {load}",
        "first": subject(trees[0]),
        "second": subject(trees[1]) + f", and {changed} files changed since" * bool(changed),
        "prices": prices,
        "packages": "installed by pip for each" if given.isolated else "those of this interpreter, for both",
    }
    return "\n".join(f"{name:<10}{words}" for name, words in lines.items())


def worked(word, checkpoint, rounds):
    """A workload by name; fresh batches for the turns of a process in so many rounds."""
    if word == TEXTS:
        return workloads.shipped(checkpoint)
    if word == workloads.FRESH:
        return workloads.made(word, checkpoint, None, 0, 2 * -(-rounds // STARTS))
    if "x" not in word:
        raise InputError(f"--workloads {word}: SENTENCESxTOKENS or {TEXTS}")
    return workloads.made(word, checkpoint, None, 0)


def compared(program, checkpoint, works, trees, given):
    """The rows of a program: both trees find it, then run it on every workload. Where they find different ones, the
    second tree also runs what the first found, so that what the search changed is told from what a run changed."""
    model, found = str(checkpoint.directory), []
    for tree in trees:
        say(f"{checkpoint.name} {program}: {tree.name} searches")
        try:
            found.append(tree.find(program, model))
        except Fault as error:
            say(f"{checkpoint.name} {program}: not found: {error}")
            return [Row(checkpoint.name, program, "", bits=f"not found any more: {error}")] if found else []
        shared_errors(*trees)
    rows, same = [], alike(program, found, trees)
    sides = {program: (found[0], same)} if same else {program: found, f"{program} of {trees[0].name}": found[:1] * 2}
    for name, places in sides.items():
        rows += served(name, checkpoint, works, places, trees, given)
    return rows


def served(program, checkpoint, works, found, trees, given):
    """The rows of what each tree runs: saved programs, on every workload."""
    rows, model = [], str(checkpoint.directory)
    with tempfile.TemporaryDirectory(dir=trees[0].place.parent) as room:
        places = [copied(place, Path(room) / f"{side}") for side, place in enumerate(found)]
        job = lambda tree, place, work: Job(
            "opmatrix",
            program,
            model,
            work.name,
            work.sentences,
            work.batches,
            work.shape,
            fresh=work.fresh,
            place=place,
            threads=given.threads,
            python=tree.python,
            tree="",
            environment=tree.environment,
        )
        each = lambda work: [job(tree, place, work) for tree, place in zip(trees, places, strict=True)]
        for work in works:
            say(f"{checkpoint.name} {program} {work.name}: {given.rounds} rounds")
            rows.append(row := Row(checkpoint.name, program, work.name))
            for _ in range(TRIES):
                raced(row, each(work), trees, given, job(trees[1], places[0], work))
                if row.verdict not in ("slower", "faster"):
                    break
                say(f"{row.name}: {row.verdict}: {row.found[0]:.3f} ({row.found[1]:.3f} to {row.found[2]:.3f})")
        if given.startup:
            rows += started(rows[0], each(works[0]), trees, starts(given))
    return rows


def copied(place, target):
    """A copy of a program's files. Both sides' are written alike, for how a file was written decides how many of its
    pages are resident where it is mapped."""
    target.mkdir()
    for file in place.iterdir():
        if file.is_file():
            shutil.copyfile(file, target / file.name)
    return str(target)


def alike(program, found, trees):
    """Where the second tree has the program that the first chose: its choice, or a point of its front, as which of two
    that are nearly as fast is chosen is a matter of noise. Otherwise what differs is printed."""
    [chosen] = trees[0].ask("shown", directories=[str(found[0])])
    places = [found[1], *sorted((found[1] / "front").glob("*"))]
    own, *front = trees[1].ask("shown", directories=[*map(str, places)])
    if chosen == own:
        return found[1]
    if chosen in front:
        say(f"{program}: {trees[1].name} chose another point of the same front; run is what {trees[0].name} chose")
        return places[1 + front.index(chosen)]
    lines = [*difflib.unified_diff(chosen["steps"], own["steps"], trees[0].name, trees[1].name, lineterm="", n=0)]
    more = [f"… {len(lines) - LINES} lines more"] * (len(lines) > LINES)
    what = "other steps" if lines else "the same steps, other numbers"
    print("\n".join([f"{program}: {what}", *lines[:LINES], *more]), flush=True)
    return None


def opened(job, tree):
    """A process that serves a job out of its own tree. Raises Absent, Fault."""
    process = Process(job)
    try:
        tree.checked(process.ask("origins"))
    except Fault:
        process.close()
        raise
    return process


def raced(row, jobs, trees, given, saved):
    """Writes rounds, bits and load into the row."""
    shares, patience = [], given.patience
    for start in range(min(STARTS, given.rounds)):
        with ExitStack() as stack, undisturbed():
            try:
                pair = [stack.enter_context(closing(opened(*each))) for each in zip(jobs, trees, strict=True)]
                if not start:
                    row.bits, row.saved = differing(pair), resaved(saved, trees[1], pair[0])
                patience = calm(patience)
                others = Others([process.process.pid for process in pair])
                row.taken.append([*rounds(pair, len(range(start, given.rounds, STARTS)), start)])
            except Absent as error:
                row.bits = f"no result: {error}"
                return
            shares.append(others.shares())
    row.shares = None if None in shares else tuple(map(float, np.mean(shares, 0)))


def differing(pair):
    """Whether the results of both have the same bits, or how far apart they are."""
    if pair[0].ask("bits") == pair[1].ask("bits"):
        return EQUAL
    with tempfile.TemporaryDirectory() as room:
        files = [Path(room) / f"{side}.npy" for side in (0, 1)]
        for process, file in zip(pair, files, strict=True):
            process.ask("hidden", file=str(file), upto=None)
        return f"{apart(*map(np.load, files)):.1e}"


def resaved(job, tree, first):
    """What the second tree does with the program that the first saved; it may refuse it in a line, by an InputError."""
    try:
        with closing(opened(job, tree)) as process:
            return differing([first, process])
    except Absent as error:
        kind, _, words = str(error).partition(": ")
        return f"{REFUSED}{words}" if kind == "InputError" else f"fails: {error}"


def started(like, jobs, trees, count):
    """Rows of the seconds from the start of a process to its first result, and of the most memory that it held."""
    rows = [Row(like.model, like.program, like.workload, quantity) for quantity in ("first", "resident")]
    say(f"{like.name}: {count} starts of each")
    for turn in range(count):
        figures = [(), ()]
        for side in ((0, 1), (1, 0))[turn % 2]:
            with closing(opened(jobs[side], trees[side])) as process:
                figures[side] = process.first, process.ask("resident")
        for row, taken in zip(rows, zip(*figures, strict=True), strict=True):
            row.taken.append([taken])
    return rows


if __name__ == "__main__":
    command.run(main, Fault)
