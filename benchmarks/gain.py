"""What fusion and laws gain over the import with one kernel for each operator, and how the fastest peer does.

    python benchmarks/gain.py [--model minilm] [--workloads 1x16 1x128 8x128] [--rounds 25] [--error 0.02]
                              [--no-peers] [--csv OUT]

All programs and all peers run once in every round, in an order that turns; figures are medians of rounds, ratios medians
of the rounds' ratios. `chosen` is what `opmatrix optimize --error` would return. Peers run in processes of their own,
with as many threads (benchmarks/peers.py)."""
import argparse
import csv
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

import numpy as np  # noqa: E402

from formats.machine import this_machine  # noqa: E402
from formats.quiet import watched  # noqa: E402
from opmatrix.checkpoint import open_model  # noqa: E402
from opmatrix.measure import seconds, turned, undisturbed  # noqa: E402
from opmatrix.patterns import Batch  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.report import Report, table  # noqa: E402
from rewrites.run import Run  # noqa: E402
from rewrites.workload import Workload  # noqa: E402

COLUMNS = "workload", "program", "ms", "share_saved", "times_baseline", "predicted_ms", "error"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--workloads", nargs="+", default=["1x16", "1x128", "8x128"], help="sentences x tokens")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--error", type=float, default=0.02)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
    watched()
    checkpoint, machine, rows = open_model(given.model), this_machine(), []
    peers = [] if given.no_peers else the_peers(checkpoint.directory)
    for name in given.workloads:
        rows += measured(name, checkpoint, machine, peers, given)
    for peer in peers: peer.close()
    if given.csv:
        with given.csv.open("w", newline="") as file: csv.writer(file).writerows([COLUMNS, *rows])


def the_peers(directory):
    """Started once for all workloads."""
    import importlib.util
    spec = importlib.util.spec_from_file_location("peers", Path(__file__).with_name("peers.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.started(directory)


def measured(name, checkpoint, machine, peers, given):
    """Prints a workload's table, and gives its rows."""
    sentences, tokens = map(int, name.split("x"))
    workload = Workload.of(checkpoint, tokens=tokens)
    timed = Batch([np.resize(workload.calibrate.tokens, tokens)] * sentences)
    run = Run(checkpoint.operator(), replace(workload, timed=timed), machine, EXACT_LAWS,
              Report(quiet=True))
    best = chosen(run, given.error)
    programs = {"baseline": run.programs["imported"], "+ fusion": run.programs["fused"],
                "+ laws": run.programs["exact"], f"chosen: {best.name}": best.program}
    predicted = dict(zip(programs, (run.structures["imported"].time, run.structures["fused"].time,
                                    run.structures["exact"].time, best.predicted_s), strict=True))
    peers = [peer for peer in peers if works(peer, sentences, tokens)]
    times = rounds(programs, peers, timed, given.rounds)
    lines = [(name, who, 1e3 * median(taken), 1 - ratio(times, who), ratio(times, who),
              1e3 * predicted.get(who, np.nan), best.measured_error if who.startswith("chosen") else "") for who, taken in times.items()]
    print(f"\n{name} tokens, {given.rounds} rounds\n" + table([
        [who, f"{ms:.3f}", f"{100 * share:.1f} %", f"{times_base:.3f}", f"{ahead:.3f}" if ahead == ahead else "",
         f"{error:.2g}" if error else ""]
        for _, who, ms, share, times_base, ahead, error in lines],
        ["", "ms", "saved", "× baseline (paired)", "ms predicted", "error"]))
    if peers:
        fastest = min(peers, key=lambda peer: median(times[peer.name])).name
        times_ours = median(times[fastest]) / median(times["+ laws"])
        print(f"fastest peer: {fastest}, {times_ours:.2f} times as long as + laws")
    return lines


def works(peer, sentences, tokens):
    """Whether a peer takes batches of this shape; why not is printed."""
    try: return peer.seconds([[101] * tokens] * sentences) > 0
    except (RuntimeError, BrokenPipeError) as error: return print(f"absent  {error}")


def chosen(run, error):
    """The point that a whole run returns; where no error is allowed that is the exact one."""
    run.explore()
    run.compile()
    if not error: return run.point("exact", run.programs["exact"], run.structures["exact"].time, 0.0, 0.0)
    run.approximate(error, lambda *_: None)
    run.front(error, None)
    run.verify()
    run.measure(10, lambda *_: None)
    return run.result(error, None, []).best


def rounds(programs, peers, batch, count, warm=3):
    """Seconds of each program and peer, round by round."""
    sentences = [part.tolist() for part in np.split(batch.tokens, batch.starts[1:-1])]
    calls = {name: lambda program=program: seconds(program.run, batch) for name, program in programs.items()}
    calls |= {peer.name: lambda peer=peer: peer.seconds(sentences) for peer in peers}
    taken = {name: [] for name in calls}
    with undisturbed():
        for turn in range(-warm, count):
            for name in turned(list(calls), turn):
                calls[name]()                               # once for the caches, which another has filled
                second = calls[name]()
                if turn >= 0: taken[name].append(second)
    return taken


def ratio(times, name):
    """The median of the rounds' ratios to the baseline."""
    return median(a / b for a, b in zip(times[name], times["baseline"], strict=True))


if __name__ == "__main__": main()
