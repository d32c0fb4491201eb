"""Mixtures of experts: beside the products alone, the bandwidth of memory, many experts beside few, and others'.

    python benchmarks/experts.py [--formats packed,bf16,int8] [--rounds 11] [--csv OUT]

Layers of 8 experts, best two, 512 x 1792, gated; of one format so many that all are beyond the caches. Calls are those
of a recorded program on one processor, the last that is allowed; candidates take turns, shares are medians of the
shares within a round. The products alone are those of as many rows, by the formats' own kernels. Skewed: one expert has
three times the mean."""

import os
from statistics import median

from lib import command, expert_peers
from lib.command import Figure, Parser, cell, concluded, count, listed, named, say, spread, tabled, takes

import numpy as np
from products import F4, recorded, rounds_of

from formats import FORMATS, Epilogue, Stacked, kernels
from formats.host.threads import limit
from formats.machine.peaks import bandwidth

N, F, E, K, LAYERS, MANY = 512, 1792, 8, 2, 4, 64
COLUMNS = "format", "what", "milliseconds", "share", "spread"
KINDS = {"packed": "float32", "bf16": "bf16", "int8": "int8"}
READ = 256 << 20  # bytes of which the bandwidth is measured
NARROW_PEER = "int8"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--formats", type=listed, default=[*KINDS])
    parser.add_argument("--rounds", type=count, default=11)
    given = parser.parse_args()
    named("formats", given.formats, KINDS)
    takes(30 + 45 * len(given.formats) + 6 * given.rounds * len(given.formats))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table, figures = [], []
    with limit(1):
        for name in given.formats:
            say(KINDS[name])
            for line, figure in measured(name, given.rounds):
                table.append((KINDS[name], *line))
                figures.append(figure)
    for line in (COLUMNS, *table):
        print(" ".join(cell(each, 24) for each in line))
    tabled(given.csv, [COLUMNS, *table])
    concluded(given, figures)


def weights(rng, count):
    """up, beside, down of a layer."""
    return [rng.standard_normal((count, *shape), np.float32) / 20 for shape in ((N, F), (N, F), (F, N))]


def routed(rng, rows, count, skewed=False):
    """A gate: K numbers a row; skewed, the first expert is asked three times as often as the mean."""
    gate = np.zeros((rows, count), np.float32)
    for row in gate:
        chosen = rng.permutation(count - skewed)[:K] + skewed
        if skewed and rng.random() < 3 * K / count:
            chosen[0] = 0
        row[chosen] = 0.25, 0.75
    return gate


class Layers:
    """Layers of stacks in a format, and calls of them."""

    def __init__(self, name, arrays):
        self.stacks = [[Stacked.approximate(FORMATS[name], each) for each in layer] for layer in arrays]
        self.alive = []

    def mixed(self, x, gates):
        """A call of all layers, each of the same rows."""
        out = np.empty_like(x)
        calls = [
            recorded(
                lambda up=up, beside=beside, down=down, gate=gate: kernels.experts(
                    x, gate, up, down, out, beside, "silu", K
                ),
                (x, gate, out),
                self.alive,
            )
            for (up, beside, down), gate in zip(self.stacks, gates, strict=True)
        ]
        return lambda: [call() for call in calls]

    def alone(self, x, gates):
        """The same products: of as many rows by each matrix, and nothing else."""
        calls = []
        for (up, beside, down), gate in zip(self.stacks, gates, strict=True):
            for e, rows in enumerate(np.count_nonzero(gate, 0)):
                if not rows:
                    continue
                given, a, b, y = x[:rows], *(np.empty((rows, width), F4) for width in (F, F, N))
                calls.append(
                    recorded(
                        lambda u=up[e], v=beside[e], w=down[e], given=given, a=a, b=b, y=y: (
                            v.matmul(given, a),
                            u.matmul(given, b, Epilogue(activation="silu", times=a)),
                            w.matmul(b, y),
                        ),
                        (given, a, b, y),
                        self.alive,
                    )
                )
        return lambda: [call() for call in calls]

    def bytes(self, gates):
        """What a call reads of weights."""
        return sum(
            each[e].nbytes
            for layer, gate in zip(self.stacks, gates, strict=True)
            for each in layer
            for e in np.flatnonzero(gate.any(0))
        )


def measured(name, rounds):
    """Lines of the table, each with its figure."""
    rng, kind = np.random.default_rng(0), KINDS[name]
    arrays = [weights(rng, E) for _ in range(LAYERS)]
    layers, peak = Layers(name, arrays), bandwidth(READ).one
    for skewed in (False, True):
        x, gates = rng.standard_normal((512, N), np.float32), [routed(rng, 512, E, skewed) for _ in arrays]
        taken = rounds_of({"mixed": layers.mixed(x, gates), "alone": layers.alone(x, gates)}, rounds)
        yield compared(f"512 rows{', skewed' * skewed}", taken, "alone", 1.15, kind)
    x, gates = rng.standard_normal((1, N), np.float32), [routed(rng, 1, E) for _ in arrays]
    taken = rounds_of({"mixed": layers.mixed(x, gates)}, 3 * rounds)["mixed"]
    shares = [layers.bytes(gates) / seconds / peak for seconds in taken]
    yield (
        ("1 row: bandwidth", 1e3 * median(taken), median(shares), spread(taken) or 0.0),
        Figure(f"{kind}: one row, of measured bandwidth", median(shares), "", spread(taken), least=0.7, ceiling=1.0),
    )
    yield many(name, rng, layers, x, gates, rounds)
    yield from peers(name, rng, arrays, layers, rounds)


def compared(what, taken, other, most, kind):
    """A line, and the share that a mixture takes of another candidate."""
    shares = [mine / theirs for mine, theirs in zip(taken["mixed"], taken[other], strict=True)]
    return (
        (f"{what}: x {other}", 1e3 * median(taken["mixed"]), median(shares), spread(shares) or 0.0),
        Figure(f"{kind}: {what}, x {other}", median(shares), "x", spread(shares), most=most),
    )


def many(name, rng, layers, x, gates, rounds):
    """One row of MANY experts beside one of E: as many products. Gates differ from layer to layer of one stack."""
    some = [rng.standard_normal((MANY, *each.shape[1:]), np.float32) / 20 for each in weights(rng, 1)]
    wide = Layers(name, [some])
    wide.stacks *= LAYERS
    order = rng.permutation(MANY)[: K * LAYERS].reshape(LAYERS, K)  # each once, so none is in cache
    own = [np.zeros((1, MANY), np.float32) for _ in range(LAYERS)]
    for gate, names in zip(own, order, strict=True):
        gate[0, names] = 0.25, 0.75
    taken = rounds_of({"mixed": wide.mixed(x, own), "8 experts": layers.mixed(x, gates)}, 3 * rounds)
    return compared("1 row of 64 experts", taken, "8 experts", 1.15, KINDS[name])


def peers(name, rng, arrays, layers, rounds):
    """The fastest of others at 512 rows and at one, in the same numbers: those that cannot be made here say why."""
    kind = KINDS[name]
    calls, why = {}, {}

    def add(what, make):
        try:
            calls[what] = make()
        except Exception as error:
            why[what] = f"{type(error).__name__}: {str(error).splitlines()[0]:.60}"

    if kind == "float32":

        def ways():
            made = [dict(expert_peers.torch_ways(*layer, K)) for layer in arrays]
            return {way: [each[way] for each in made] for way in made[0]}

        try:
            found = ways()
        except ImportError as error:
            found, why["transformers"] = {}, str(error)
        for way, each in found.items():
            add(
                f"transformers {way}",
                lambda each=each: (
                    lambda x, gates: [
                        expert_peers.torch_call(one, x, gate, K) for one, gate in zip(each, gates, strict=True)
                    ]
                ),
            )
    if kind == "bf16":

        def layers_of_kt():
            made = [expert_peers.KtExperts(*layer, K) for layer in arrays]
            return lambda x, gates: [one.call(x, gate) for one, gate in zip(made, gates, strict=True)]

        add("kt-kernel", layers_of_kt)

    def sessions():
        made = [expert_peers.onnx_session(*layer, K, kind == NARROW_PEER) for layer in arrays]
        return lambda x, gates: [expert_peers.onnx_call(one, x, gate) for one, gate in zip(made, gates, strict=True)]

    if kind != "bf16":
        add("ONNX Runtime", sessions)
    for rows in (512, 1):
        x, gates = rng.standard_normal((rows, N), np.float32), [routed(rng, rows, E) for _ in arrays]
        runs = {"mixed": layers.mixed(x, gates)}
        for what, make in calls.items():
            try:
                each = make(x, gates)
                run = lambda each=each: [one() for one in each]
                run()
                runs[what] = run
            except Exception as error:
                why[what] = f"{type(error).__name__}: {str(error).splitlines()[0]:.60}"
        taken = rounds_of(runs, rounds)
        if len(taken) > 1:
            best = min((median(taken[what]), what) for what in taken if what != "mixed")[1]
            line, figure = compared(f"{rows} rows", taken, best, 0.8, kind)
            yield line, figure
            for what in taken:
                if what not in ("mixed", best):
                    yield compared(f"{rows} rows", taken, what, None, kind)
        for what, reason in why.items():
            yield (
                (f"{rows} rows: x {what}", None, None, None),
                Figure(f"{kind}: {rows} rows, x {what}", None, why=reason),
            )


if __name__ == "__main__":
    command.run(main)
