"""Text that is generated: tokens a second at several contexts, the first token, bytes read a token, Python's share;
beside llama.cpp and torch where they are installed.

    python benchmarks/generation.py [--model smollm2] [--contexts 16 256 1024] [--tokens 16] [--rounds 5] [--at-once 8]
                                   [--program DIR] [--no-peers] [--csv OUT]

The exact program, found as `opmatrix generate` finds it, and the peers take turns, context by context, on all cores.
Each has a cache of so many tokens before it writes `--tokens` more, greedily. Bytes a token are those of the weights
that a step reads and of the cache at that context, counted, not measured; their share is of the bandwidth that reading
memory on all threads has here. Python's share is what a step takes beyond its kernels, as native code times them."""
import time
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, cores, count, folder, say, spread, tabled, takes

import numpy as np
from transformed import llama_of

from formats.machine.peaks import bandwidth, memory_levels
from formats.machine.threads import threads
from opmatrix.files.checkpoint import open_model
from opmatrix.pipelines.generation import decodable
from opmatrix.pipelines.sampling import Sampling
from opmatrix.program import Program
from rewrites.cli.generate import find_exact
from rewrites.phases import Report

COLUMNS = "engine", "version", "context", "first_ms", "token_ms", "tokens_s", "mb_token", "share_of_bandwidth", "python"


class Ours:
    """The exact program in a session."""
    name, version = "opmatrix", version("opmatrix")

    def __init__(self, checkpoint, saved):
        self.program = decodable(Program.load(saved) if saved else find_exact(checkpoint, Report()))
        self.sampling = Sampling()

    def begin(self, ids, room):
        self.session = self.program.start(len(ids) + room + 16)
        self.held = self.session.join()
        return self.step(ids)

    def step(self, ids):
        row = self.session.step({self.held: ids})[-1]
        return self.sampling.choose(row, self.held.length)

    def bytes(self, context):
        """Of a step: every weight but tables, of which a row is read; keys and values up to the context."""
        used = {name for step in self.program.steps for operand, name in step.operands.items()
                if not operand.startswith("table")}
        stored = sum(each.nbytes for name, each in self.program.constants.items() if name in used)
        return stored + context * self.program.schedule.cached

    def python(self):
        """The share of a step that is not in its kernels."""
        schedule, inside, whole = self.program.schedule, [], []
        run = schedule.run
        try:
            def timed(batch):
                inside.append(sum(schedule.timed(batch).values()))
                return run(batch)
            schedule.run = timed
            for _ in range(5): self.step([1])
        finally: del schedule.run
        for _ in range(5):
            began = time.perf_counter()
            self.step([1])
            whole.append(time.perf_counter() - began)
        return max(0.0, 1 - median(inside) / median(whole))


class LlamaCpp:
    """llama-cpp-python over the same GGUF file."""
    name = "llama.cpp"

    def __init__(self, checkpoint):
        import llama_cpp
        self.version = llama_cpp.__version__
        self.model = llama_cpp.Llama(str(checkpoint.directory), n_ctx=2048, n_threads=cores(), n_threads_batch=cores(),
                                     logits_all=False, verbose=False)

    def begin(self, ids, room):
        self.model.reset()
        return self.step(ids)

    def step(self, ids):
        self.model.eval(list(ids))
        return self.model.sample(temp=0.0)


class Torch:
    """transformers' model in torch, float32, with its cache."""
    name = "torch"

    def __init__(self, checkpoint):
        import torch
        torch.set_num_threads(cores())
        self.version, self.torch, self.model = torch.__version__, torch, llama_of(checkpoint)

    def begin(self, ids, room):
        self.kept = None
        return self.step(ids)

    def step(self, ids):
        with self.torch.no_grad():
            found = self.model(self.torch.tensor([list(ids)]), past_key_values=self.kept, use_cache=True,
                               logits_to_keep=1)
        self.kept = found.past_key_values
        return int(found.logits[0, -1].argmax())


PEERS = {LlamaCpp: ("llama_cpp",), Torch: ("torch", "transformers")}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--contexts", type=count, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--tokens", type=count, default=16)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--at-once", type=count, default=8, help="sequences")
    parser.add_argument("--program", type=folder, help="a saved program of the model, in place of a search")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    takes(60 + given.rounds * sum(3 + 0.002 * context + 0.1 * given.tokens for context in given.contexts))
    checkpoint, figures = open_model(given.model), list[Figure]()
    engines = [ours := Ours(checkpoint, given.program)]
    for peer, needs in PEERS.items():
        if given.no_peers: why = "left out"
        elif lacking := [name for name in needs if not find_spec(name)]:
            why = f"{' and '.join(lacking)} not installed"
        elif peer is Torch and checkpoint.config["model_type"] != "llama": why = "here it runs LLaMAs alone"
        elif peer is LlamaCpp and checkpoint.keys is None: why = "it reads GGUF files alone"
        else:
            engines.append(peer(checkpoint))
            continue
        say(f"{peer.name}: {why}: its columns stay open")
        figures.append(Figure(f"{peer.name}: ms a token", None, "ms", why=why))
    table, figures = raced(given, checkpoint, engines, figures)
    figures.append(at_once(ours, checkpoint, given))
    for line in table: print(" ".join(cell(each, 18) for each in line))
    tabled(given.csv, table)
    concluded(given, figures)


def raced(given, checkpoint, engines, figures):
    """The table of all engines at all contexts, and figures: what we take over each peer."""
    rng, words = np.random.default_rng(0), checkpoint.said["vocab_size"]
    reads = bandwidth(dict(memory_levels())["memory"]).all
    table, ours = [COLUMNS], engines[0]
    for context in given.contexts:
        ids = rng.integers(0, words, context).tolist()
        first, later = {each: [] for each in engines}, {each: [] for each in engines}
        for turn in range(given.rounds + 1):                # the first is not counted: recordings, caches
            for each in engines:
                began = time.perf_counter()
                token = each.begin(ids, given.tokens)
                prefilled = time.perf_counter()
                for _ in range(given.tokens): token = each.step([token])
                if turn:
                    first[each].append(prefilled - began)
                    later[each].append((time.perf_counter() - prefilled) / given.tokens)
        for each in engines:
            taken, own = median(later[each]), each is ours
            moved = ours.bytes(context + given.tokens / 2) if own else None
            read = (moved / 1e6, moved / taken / reads, ours.python()) if moved else (None, None, None)
            table.append((each.name, each.version, context, 1e3 * median(first[each]), 1e3 * taken, 1 / taken, *read))
            if own: continue
            ratios = [theirs / we for theirs, we in zip(later[each], later[ours], strict=True)]
            figures.append(Figure(f"{each.name} over ours, a token at {context}", median(ratios), "x", spread(ratios)))
        own = table[-len(engines)]
        figures.append(Figure(f"ms a token at {context}", own[4], "ms", spread(later[ours])))
        say(f"context {context}: {own[5]:.1f} tokens a second on {threads()} threads")
    return table, figures


def at_once(ours, checkpoint, given):
    """Tokens a second of several sequences at once over those of one."""
    rng, words, many = np.random.default_rng(1), checkpoint.said["vocab_size"], given.at_once

    def rate(count):
        session = ours.program.start(count * (16 * 2 + given.tokens))
        held = {session.join(): rng.integers(0, words, 16).tolist() for _ in range(count)}
        session.step(held)
        new = {each: [1] for each in held}
        session.step(new)
        began = time.perf_counter()
        for _ in range(given.tokens - 1): session.step(new)
        return count * (given.tokens - 1) / (time.perf_counter() - began)
    ratios = [rate(many) / rate(1) for _ in range(given.rounds)]
    return Figure(f"{many} sequences over one, tokens a second", median(ratios), "x", spread(ratios), least=5.0)


if __name__ == "__main__": command.run(main)
