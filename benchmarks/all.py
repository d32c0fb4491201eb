"""The benchmarks that say what this project is worth, one after another, and a page of what they come to.

    python benchmarks/all.py [--quick | --publish] [--only gain,search] [--list] [--out DIR]

--quick takes ten minutes at most on two cores: a benchmark that is over its time is ended, and one that would begin too
late is left out. DIR (benchmark-results) has page.md, and beside it NAME.csv, NAME.json with all figures and NAME.txt
with what was printed. What fails, is over its time or was left out is named there, and the status is 1; a missed bar is
no failure.

--publish runs those that README.md and docs/results.md show, half an hour, keeps what they measured in
docs/measured, with version and machine, and writes both pages of it. What fails leaves all as it was."""

import argparse
import json
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

from lib import command
from lib.command import DATA, HERE, Figure, InputError, Parser, listed, named, say, takes

from formats.disk.files import read_json, replacing
from formats.host.quiet import watched

WHOLE = 600.0  # seconds of a quick run
PATIENCE, START = 2.0, 20.0  # a benchmark may take so many times its own seconds, and so
# many more
ROWS = 4  # of the page, for each benchmark
PAGE, BUSY = "page.md", "busy machine: "


class Benchmark(NamedTuple):
    """Its arguments, quick and in full, with the seconds that they take on two quiet cores; the question that it
    answers; what it reads. `{data}` is the directory of OPMATRIX_DATA."""

    quick: str
    seconds: float
    full: str
    at_length: float
    answers: str
    reads: str = ""


BENCHMARKS = {
    "gain": Benchmark(
        "--workloads 1x128 --rounds 15 --no-peers", 40, "", 300, "What do fusion, laws, approximations save?"
    ),
    "models": Benchmark(
        "--models minilm --types float32 --workloads 1x128 --engines opmatrix,torch,openvino --rounds 5 --no-spearman",
        110,
        "",
        7200,
        "How fast is a whole model beside torch, ONNX Runtime and OpenVINO?",
    ),
    "whole ranking": Benchmark("--rounds 7", 35, "", 60, "Do prices order programs as the clock does?"),
    "whole": Benchmark(
        "--models minilm --workloads 1x128 --rounds 9",
        45,
        "",
        900,
        "How far off are predicted seconds of whole programs?",
    ),
    "selection prediction": Benchmark(
        "--matrices 2", 30, "--full", 180, "How far off are predicted seconds of products?"
    ),
    "products crossovers": Benchmark(
        "--quick --rounds 5 --threads 1", 40, "", 1800, "Which format is fastest, from which density on?"
    ),
    "selection": Benchmark(
        "{data}/dlmc --quick --processes 1 --rows 16", 40, "", 1500, "Is the chosen format the fastest?", "{data}/dlmc"
    ),
    "whole sparse": Benchmark("--densities 0.1 --pattern csr --rounds 4", 20, "", 120, "What gains a pruned model?"),
    "products": Benchmark(
        "--shapes 384x1536 --rows 1,128 --rounds 9", 10, "", 60, "How fast are products, on one core?"
    ),
    "products structured": Benchmark(
        "--shapes 384x1536 --rows 128 --rounds 15", 8, "", 20, "What do blocks, N:M and low rank of int8 save?"
    ),
    "errors rounding": Benchmark(
        "--rounds 3 --workload 1x128", 6, "", 20, "How far off are weights that are all int8?"
    ),
    "attention": Benchmark("--rounds 5 --widths 32", 8, "", 60, "How near is attention to a product?"),
    "attention masks": Benchmark(
        "--lengths 1024 --rounds 5", 10, "", 45, "What do masks save, and are they priced so?"
    ),
    "search": Benchmark(
        "--layers 12 48 --rounds 3 --brief", 12, "", 90, "How long is the search, and how does it grow?"
    ),
    "extraction": Benchmark(
        "{data}/extraction_gym --time-limit 1",
        5,
        "{data}/extraction_gym --generated",
        400,
        "Is the extraction exact?",
        "{data}/extraction_gym",
    ),
    "gain ablation": Benchmark(
        "{data}/extraction_gym --time-limit 1",
        15,
        "{data}/extraction_gym --generated --time-limit 2",
        700,
        "What is each part of extraction worth?",
        "{data}/extraction_gym",
    ),
    "extraction peer_laws": Benchmark(
        "{data}/peer_laws/rules.csv",
        6,
        "{data}/peer_laws/rules.csv",
        60,
        "What do the laws of values prove?",
        "{data}/peer_laws/rules.csv",
    ),
    "terms segments": Benchmark("--rows 512 --rounds 9", 5, "", 15, "What does a step cost that no kernel computes?"),
    "memory planned": Benchmark("", 5, "", 5, "What does a configuration of 70 billion weights take to plan?"),
    "attention last_row": Benchmark(
        "--layers 4 --words 0 --rounds 5", 20, "", 240, "What is saved where one token alone is read?"
    ),
    "terms graph": Benchmark(
        "--nodes 2000 --edges 20000 --rounds 9", 5, "", 40, "How fast is a product with a relation?"
    ),
    "terms scans": Benchmark(
        "--lengths 512 1024 --rounds 5", 4, "", 30, "Does a scan take time in rows, or in their square?"
    ),
    "stated budgets": Benchmark("--models 2", 15, "", 800, "Do planned memory and stated errors hold?"),
    "memory": Benchmark("--megabytes 32", 30, "", 120, "How much memory does a process with a program take?"),
    "stated": Benchmark(
        "minilm.opmatrix --fresh 50",
        20,
        "minilm.opmatrix",
        90,
        "Do stated errors hold for texts that nobody saw?",
        "minilm.opmatrix",
    ),
    "widths berts": Benchmark("--models 1", 9, "", 240, "Are programs what transformers computes?"),
    "fuzz mutants": Benchmark("--every 80", 15, "", 270, "Which wrong laws do the checks see?"),
    "fuzz proofs": Benchmark("--count 20", 2, "", 900, "Is what is proved true, and what is refuted false?"),
    "faults guards": Benchmark("--share 0.002", 6, "", 900, "Do kernels stay within their arrays?"),
    "spoilt_files hostile": Benchmark("--files 400", 8, "", 1200, "What does a spoilt file do?"),
    "faults interrupts": Benchmark("--count 18", 9, "", 200, "Is a run right after it was interrupted?"),
    "spectra": Benchmark("--seeds 2", 5, "", 20, "How fast are singular values found?"),
}
PUBLISHED = {
    "report": Benchmark("", 0, "--models minilm --keep {kept}", 240, "What does `opmatrix optimize` print?"),
    "models": Benchmark(
        "",
        0,
        "--models minilm --workloads 1x16,1x128,file,sorted --sentences 256 "
        "--rounds 5 --no-spearman --engines opmatrix,onnxruntime,openvino",
        1200,
        "How fast is a whole model beside ONNX Runtime and OpenVINO?",
    ),
}
MEASURED, PAGES = command.ROOT / "docs" / "measured", command.ROOT / "docs" / "make_results.py"
APART = {
    "neighbours": "embeds ten thousand clauses by five programs, for minutes",
    "faults kills": "kills each of fifteen commands thirty times, and runs it again each time",
    "exports": "needs onnx, onnxruntime and torch, and a saved program",
    "exports uniform": "needs torch and sentence-transformers, and a text",
    "exports students": "trains students, each for a quarter of an hour, by torch",
    "exports spelled": "needs onnxruntime, openvino, torch and transformers, and two saved programs",
    "report": "runs `opmatrix optimize` twice, for what --publish shows",
    "paired": "holds two commits against each other",
    "spoilt_files changed": "opens thousands of changed models beside transformers, which takes half an hour",
    "composition": "fits smaller models for minutes, before it measures anything",
    "errors quality": "fits twelve compressed models, each for a minute",
    "composition interactions": "fits two dozen compressed models",
    "spectra sparsity": "runs a model for each of twenty methods of every weight",
    "partitions": "runs random models on random meshes, a thousand in a quarter of an hour",
    "tensor_parallel": "predicts models of hundreds of billions of weights, for minutes",
    "planner": "holds predictions against a file of published steps, which it is given",
    "partitions pipelines": "trains by six pipelines on four processes, each several times",
    "partitions local_plans": "runs six plans on four processes, each several times",
    "serving memory": "embeds ten thousand texts by each of four engines",
    "serving": "needs starlette and uvicorn, and a server in a process of its own",
    "serving replies": "needs starlette and uvicorn, a saved language model, and a server in a process of its own",
    "fuzz laws_left_out": "searches random models anew without each law, for minutes",
    "partitions launched": "runs steps of four processes, a hundred times each",
    "terms rules": "passes texts of 65,536 rows by each rule, several times",
    "terms linear": "compiles a kernel for each length and pattern before it times any",
    "terms": "compiles a kernel for each of its terms before it times any",
    "planner strategies": "predicts ten million strategies, some of models of hundreds of billions of weights",
    "fuzz own_laws": "searches hundreds of operators with each of twenty laws, fifteen seconds each",
    "fuzz drawn": "sends hundreds of operators through all of optimize, a second each",
    "models families": "optimises a model of every family, one of 135 million weights among them",
    "widths": "writes every family at real widths by transformers, and optimises each for up to a minute",
    "extraction search_laws": "runs rounds of discovery for minutes, and times nothing",
    "extraction payoff": "runs rounds of discovery for minutes before it measures programs",
    "fuzz false_equalities": "judges laws for minutes, and times nothing",
    "extraction xla_rules": "proves and refutes 242 equations, which tests do too, and times nothing",
    "experts": "makes stacks of weights beyond the caches, and asks peers for the same",
    "generation": "finds a program of 135 million weights, and writes text by it and by peers",
    "stated mixtures": "optimises six mixtures of experts, and runs 300 texts by every program of their fronts",
    "errors": "measures every method of a model twice, to hold one against the other",
    "phases": "optimises two models whole, each on a terminal of its own",
    "faults planted": "makes a front with each of dozens of wrong kernels",
    "attention sparser": "reads attention of 4096 tokens in float64 for minutes, to verify what it measures",
}


@dataclass
class Outcome:
    """What became of one: `wrong` says what kept it from its end, `busy` what it saw of a busy machine."""

    name: str
    seconds: float = 0.0
    wrong: str = ""
    busy: str = ""
    absent: str = ""
    figures: list[Figure] = field(default_factory=list)

    def rows(self) -> Iterator[list[str]]:
        """Of the page: bars come first. Each has a benchmark's name, a figure's cells, seconds."""
        figures = sorted(self.figures, key=lambda each: not each.bar)[:ROWS]
        name = f"**{self.name}**: {BENCHMARKS[self.name].answers}"
        took = f"{self.seconds:.0f} s{', busy' * bool(self.busy)}"
        said = f"**failed**: {self.wrong}" if self.wrong else f"not measured here: {self.absent}" if self.absent else ""
        if said or not figures:
            yield [name, "", "", "", "", said or "no figures", took]
        for at, each in enumerate(figures):
            first = not at and not said
            yield [name if first else "", *each.cells(), took if first else ""]


def main() -> int:
    given = options()
    if given.list:
        return listing(given.only)
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it runs is ended with it
    if given.publish:
        return publish(given.out)
    chosen = {name: BENCHMARKS[name] for name in given.only}
    takes(sum(each.seconds if given.quick else each.at_length for each in chosen.values()))
    machine, begun = prepared(), time.monotonic()
    found: list[Outcome] = []
    for name, each in chosen.items():
        left = WHOLE - (time.monotonic() - begun) if given.quick else inf
        found.append(measured(name, each, given.quick, left, given.out))
        say(f"{name}: {found[-1].wrong or found[-1].absent or 'done'}")
        written(given.out / PAGE, page(found, machine, given, time.monotonic() - begun))
    print((given.out / PAGE).read_text())
    return int(any(each.wrong for each in found))


def options() -> argparse.Namespace:
    parser = Parser(__doc__ or "", table=False)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="ten minutes at most, on two cores")
    extent.add_argument("--publish", action="store_true", help="what README.md and docs/results.md show, anew")
    parser.add_argument("--only", type=listed, default=[*BENCHMARKS], help="some of them, between commas")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--out", "--csv", type=Path, default=Path("benchmark-results"), metavar="DIR")
    given = parser.parse_args()
    named("only", given.only, BENCHMARKS)
    if given.out.exists() and not given.out.is_dir():
        raise InputError(f"--out {given.out}: it is no directory")
    return given


def listing(names: list[str]) -> int:
    from opmatrix.display.tables import table

    chosen = [(name, BENCHMARKS[name]) for name in names]
    rows = [[name, f"{each.seconds:.0f} s", f"{each.at_length:.0f} s", each.answers] for name, each in chosen]
    print(table(rows, ["", "quick", "in full", ""]))
    for name, why in APART.items():
        script, *part = name.split()
        print(" ".join([f"{script}.py", *part, "stands apart: it", why]))
    return 0


def publish(out: Path) -> int:
    """Measures what the pages show, keeps it in docs/measured once all is there, and writes the pages."""
    takes(sum(each.at_length for each in PUBLISHED.values()))
    about = prepared() | {"version": version()}
    (kept := out / "measured").mkdir(exist_ok=True)
    for name, each in PUBLISHED.items():
        outcome = measured(name, each._replace(full=each.full.replace("{kept}", str(kept.resolve()))), False, inf, out)
        say(f"{name}: {outcome.wrong or outcome.busy or 'done'}")
        if outcome.wrong:
            return 1
        shutil.copy(out / f"{name}.csv", kept)
        if outcome.busy:
            about["busy"] = outcome.busy
    written(kept / "about.json", json.dumps(about, indent=1) + "\n")
    pages = runpy.run_path(str(PAGES))["pages"](kept)  # before anything is changed: it may lack figures
    shutil.copytree(kept, MEASURED, dirs_exist_ok=True)
    for page, text in pages.items():
        written(command.ROOT / page, text)
    return 0


def version() -> str:
    """The version of this tree."""
    return str(tomllib.loads((command.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def prepared() -> dict[str, str]:
    """What the page says of the machine, once its kernels, its calibration and the model are there."""
    from formats import kernels
    from opmatrix.files.checkpoint import open_model
    from opmatrix.runtime.pricing import this_machine
    from rewrites.cli.examine import examined

    say("kernels, calibration, model")
    kernels.warm()
    this_machine()
    open_model("minilm")
    facts = examined()
    versions = {**facts.versions, **facts.providers}
    return {
        "processor": f"{facts.processor}: {', '.join(facts.features)}",
        "threads": str(facts.threads),
        "load before": "unknown" if facts.host.load is None else f"{facts.host.load:.1f}",
        "versions": ", ".join(f"{name} {found}" for name, found in versions.items() if found),
    }


def measured(name: str, each: Benchmark, quick: bool, left: float, out: Path) -> Outcome:
    """Runs one in a process of its own, which is ended with all that it started when its time is over."""
    fill = lambda text: text.replace("{data}", str(DATA))
    if (reads := fill(each.reads)) and not Path(reads).exists():
        return Outcome(name, absent=f"{reads} is not there")
    if left < (each.seconds if quick else 0):
        return Outcome(name, wrong="left out: the ten minutes are over")
    limit = min(left, PATIENCE * (each.seconds if quick else each.at_length) + START)
    script, *part = name.split()
    files = {kind: out / f"{'_'.join([script, *part])}.{kind}" for kind in ("csv", "json", "txt", "err")}
    for file in files.values():
        file.unlink(missing_ok=True)
    words = [
        sys.executable,
        str(HERE / f"{script}.py"),
        *part,
        *map(fill, shlex.split(each.quick if quick else each.full)),
        "--figures",
        str(files["json"].resolve()),
        "--csv",
        str(files["csv"].resolve()),
    ]
    begun = time.monotonic()
    with files["txt"].open("w") as printed, files["err"].open("w") as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, start_new_session=True
        )  # a group, so that all that it starts can be ended
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            ended(process)
    said = files["err"].read_text(errors="replace").strip().splitlines()
    files["err"].unlink()
    busy = next((line.split(": ")[1] for line in said if line.startswith(BUSY)), "")
    return Outcome(name, time.monotonic() - begun, wrong(status, limit, said), busy, figures=judged(files["json"]))


def ended(process: subprocess.Popen) -> None:
    """Ends a process and all that it started and left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wrong(status: int | None, limit: float, said: list[str]) -> str:
    if status is None:
        return f"over its {limit:.0f} s"
    last = next((line for line in reversed(said) if not line.startswith(BUSY)), "")
    return f"ended with status {status}: {last[:160]}" if status else ""


def judged(file: Path) -> list[Figure]:
    """The figures that a benchmark wrote before it ended."""
    return [Figure(**each) for each in read_json(file)] if file.exists() else []


def page(found: list[Outcome], machine: dict[str, str], given: argparse.Namespace, seconds: float) -> str:
    """In Markdown."""
    how = "quick" if given.quick else "in full"
    verdicts = [each.verdict for one in found for each in one.figures if each.bar]
    met, missed = verdicts.count("met"), verdicts.count("missed")
    lines = [
        f"# Benchmarks, {how}",
        "",
        *(f"- {what}: {said}" for what, said in machine.items()),
        f"- {len(found)} of {len(given.only)} benchmarks, {seconds:.0f} s",
        f"- bars: {met} met, {missed} missed, {len(verdicts) - met - missed} not measured",
        "",
        "| benchmark | figure | here | spread | bar | | took |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for one in found for row in one.rows()]
    if bad := [one.name for one in found if one.wrong]:
        lines += ["", f"**Failed: {', '.join(bad)}.**"]
    if busy := [said for said in (watched().seen(), *(one.busy for one in found)) if said]:
        lines += ["", f"Busy machine, so that times are too long where the last column says so: {busy[0]}."]
    return (
        "\n".join([*lines, "", "All figures are in NAME.json, what was printed in NAME.txt, rows in NAME.csv."]) + "\n"
    )


def written(file: Path, text: str) -> None:
    with replacing(file) as raw:
        raw.write(text.encode())


if __name__ == "__main__":
    command.run(main)
