"""Text that is generated: tokens a second at several contexts, of a prompt, of several sequences, the first token of a
process, bytes read a token, Python's share; beside llama.cpp and torch where they are installed.

    python benchmarks/generation.py [--model smollm2] [--contexts 16 256 1024] [--tokens 16] [--rounds 5] [--at-once 8]
                                   [--prompt 512] [--foresee 256] [--program DIR] [--no-peers] [--csv OUT]
                                   [--long TOKENS] [--greedy] [--states LAYERS [--behind 64 4096]] [--latent ROWS]

The exact program for a request of `--prompt` tokens, the same with x rounded to bytes as ggml rounds it and caches in
whichever number type is priced lower at the longest context (llama.cpp's are float16), and the peers take turns,
context by context, on all cores. Each has a cache of so many tokens before it writes `--tokens` more, greedily. Bytes a
token are those of the weights that a step reads and of the cache at that context, counted, not
measured; their share is of the bandwidth that reading memory on all threads has here. Python's share is what a step
takes beyond its kernels, as native code times them. `predicted` is what the search prices a step and a prompt at.
Perplexity is of the first `--foresee` tokens of the text that ships, token by token, as a step computes them.

In place of all that: `--long 10000` writes so many tokens over `--at-once` sequences, and says whether memory stays
flat and a step grows by the caches that it reads; `--greedy` holds 64 tokens of 20 prompts against transformers';
`--states 24` times Mamba, or with `--family mamba2` Mamba 2, of 130M's shape, random weights: a prompt beside
transformers', and steps behind 64 and 4,096 rows (`--behind`), which read as many bytes, with their share of
bandwidth; of `--family qwen3_next`, a layer in four
has caches, too; `--latent 4096` times the attention of a step behind so many rows, one layer of DeepSeek-V2-Lite's
widths: over latent rows, and over expanded keys and values; with the form that the search finds for steps and for a
prompt of as many rows."""

import time
from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, folder, say, spread, tabled, takes
from lib.generated_texts import beside_transformers, long_texts
from lib.generators import PEERS, Ours, Torch, perplexity, rounded, why_absent
from lib.latent_steps import latent_steps
from lib.state_steps import SHAPES, state_steps

import numpy as np

from formats.host.threads import threads
from formats.machine.peaks import bandwidth, memory_levels
from opmatrix.algebra.batch.signature import HELD_NUMBERS
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.generation import decodable
from opmatrix.inference.text import sentences
from opmatrix.runtime.measure import seconds
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from rewrites.encoders.language_models import find_exact
from rewrites.lowering.phased import Generation, later_step, prefill
from rewrites.workload.decoded import predict_step
from rewrites.workload.phases import Report

COLUMNS = (
    "engine",
    "version",
    "sequences",
    "context",
    "first_ms",
    "predicted",
    "token_ms",
    "predicted",
    "tokens_s",
    "mb_token",
    "share_of_bandwidth",
    "python",
    "perplexity",
    "process_s",
)
BARS = {"llama.cpp": (1.25, 1.5), "torch": (1.0, 1.2)}  # over ours exact, and with x rounded
OFF = 0.15  # that a step may be priced off


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--contexts", type=count, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--tokens", type=count, default=16)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--at-once", type=count, default=8, help="sequences")
    parser.add_argument("--prompt", type=count, default=512)
    parser.add_argument("--foresee", type=count, default=256, help="tokens of a text whose perplexity is asked")
    parser.add_argument("--program", type=folder, help="a saved program of the model, in place of a search")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--long", type=count, help="tokens over several sequences, in place of the race")
    parser.add_argument("--greedy", action="store_true", help="beside transformers' tokens, in place of the race")
    parser.add_argument("--states", type=count, help="layers of a Mamba, in place of the race")
    parser.add_argument("--behind", type=count, nargs="+", default=[64, 4096], help="rows behind the steps of --states")
    parser.add_argument("--family", choices=[*SHAPES], default="mamba", help="of the model that --states times")
    parser.add_argument("--latent", type=count, help="rows behind a step of latent attention, in place of the race")
    given = parser.parse_args()
    if given.latent:
        takes(60 + 0.1 * given.rounds)
        return concluded(given, [*latent_steps(given.latent, given.rounds, given.csv)])
    if given.states:
        takes(60 + 10 * given.states)
        return concluded(given, [*state_steps(given.family, given.states, given.rounds, given.behind)])
    if given.long or given.greedy:
        return beyond_seconds(given)
    takes(60 + given.rounds * sum(3 + 0.002 * context + 0.1 * given.tokens for context in given.contexts))
    checkpoint, figures = open_model(given.model), list[Figure]()
    exact = exact_program(given, checkpoint)
    narrow = rounded(exact)
    engines = [
        Ours("opmatrix, exact", exact),
        Ours("opmatrix, x rounded", narrow, quicker_caches(narrow, max(given.contexts))),
    ]
    for peer in PEERS:
        if why := "left out" if given.no_peers else why_absent(peer, checkpoint):
            say(f"{peer.name}: {why}: its columns stay open")
            figures.append(Figure(f"{peer.name}: ms a token", None, "ms", why=why))
        else:
            engines.append(peer(checkpoint))
    table, later = raced(given, checkpoint, engines)
    figures += compared(given, engines, later)
    figures += many(given, checkpoint, engines, table)
    beside(given, checkpoint, engines, table)
    for line in table:
        print(" ".join(cell(each, 18) for each in line))
    tabled(given.csv, table)
    concluded(given, figures)


def exact_program(given, checkpoint):
    """The saved one, or what a search finds for the request."""
    if given.program:
        return Program.load(given.program)
    return find_exact(checkpoint, Report(quiet=True), Generation(given.prompt, 128))


def quicker_caches(program, context):
    """The number type of caches in which a step at a context is priced lower: a search chooses so behind products that
    round."""
    return min(
        HELD_NUMBERS,
        key=lambda number: predict_step(this_machine(), decodable(program, number), later_step(context, 1)),
    )


def beyond_seconds(given):
    """Long texts, and transformers' tokens, by the exact program."""
    checkpoint, figures = open_model(given.model), list[Figure]()
    takes(60 + 0.012 * (given.long or 0) + 60 * given.greedy)
    exact = exact_program(given, checkpoint)
    if given.long:
        figures += long_texts(exact, given.long, given.at_once)
    if given.greedy:
        if why := why_absent(Torch, checkpoint):
            figures.append(Figure("greedy tokens", None, why=why))
        else:
            figures += beside_transformers(checkpoint, exact)
    concluded(given, figures)


def raced(given, checkpoint, engines):
    """The table of all engines at all contexts, in turns; and seconds, by context and engine, of a token and of a
    prompt."""
    rng, words, machine = np.random.default_rng(0), checkpoint.said["vocab_size"], this_machine()
    reads, table, found = bandwidth(dict(memory_levels())["memory"]).all, [COLUMNS], {}
    for context in dict.fromkeys((*given.contexts, given.prompt)):
        ids = rng.integers(0, words, context).tolist()
        first, later = {each: [] for each in engines}, {each: [] for each in engines}
        for turn in range(given.rounds + 1):  # the first is not counted: recordings, caches
            for each in engines:
                began, *tokens = times(each, ids, given.tokens)
                if turn:
                    first[each].append(began)
                    later[each].append(median(tokens))
        for each in engines:
            found[context, each] = first[each], later[each]
            table.append(
                row(
                    each,
                    1,
                    context,
                    first[each],
                    later[each],
                    reads,
                    machine,
                    context + given.tokens // 2,
                    isinstance(each, Ours) and each.python(),
                )
            )
        say(f"context {context}: {1 / median(later[engines[0]]):.1f} tokens a second on {threads()} threads")
    return table, found


def times(each, ids, tokens):
    """Seconds of a prompt, and of every token behind it, the likeliest each."""
    taken, before = [], time.perf_counter()
    scores = each.begin(ids, tokens)
    for _ in range(tokens):
        token = int(scores.argmax())
        taken.append((now := time.perf_counter()) - before)
        before, scores = now, each.step([token])
    return [*taken, time.perf_counter() - before]


def row(each, sequences, context, first, later, reads, machine, seen, python=None):
    """A row of the table: what was measured, and of ours what was predicted."""
    taken, moved, own = median(later), each.stored + sequences * seen * each.row, isinstance(each, Ours)
    ahead = (
        [
            1e3 * predict_step(machine, each.program, of(length, sequences))
            for of, length in ((prefill, context), (later_step, seen))
        ]
        if own
        else (None, None)
    )
    return [
        each.name,
        each.version,
        sequences,
        context,
        1e3 * median(first) if first else None,
        ahead[0],
        1e3 * taken,
        ahead[1],
        sequences / taken,
        moved / 1e6,
        moved / taken / reads,
        python if own else None,
        None,
        None,
    ]


def compared(given, engines, found):
    """What peers take over ours, a token and a prompt, and how far ours is from its price."""
    exact, narrow, *peers = engines
    for context in given.contexts:
        for own, at in ((exact, 0), (narrow, 1)):
            later = found[context, own][1]
            yield Figure(f"{own.name}: ms a token at {context}", 1e3 * median(later), "ms", spread(later))
            for each in peers:
                ratios = [theirs / we for theirs, we in zip(found[context, each][1], later, strict=True)]
                yield Figure(
                    f"{each.name} over {own.name}, a token at {context}",
                    median(ratios),
                    "x",
                    spread(ratios),
                    least=BARS[each.name][at],
                )
    for each in peers:
        ratios = [
            theirs / we for theirs, we in zip(found[given.prompt, each][0], found[given.prompt, exact][0], strict=True)
        ]
        yield Figure(
            f"{each.name} over ours, a prompt of {given.prompt}", median(ratios), "x", spread(ratios), least=1.1
        )
    machine = this_machine()
    for context in given.contexts:
        later, seen = found[context, exact][1], context + given.tokens // 2
        yield Figure(
            f"predicted over measured, a token at {context}",
            predict_step(machine, exact.program, later_step(seen, 1)) / median(later),
            "x",
            spread(later),
            least=1 - OFF,
            most=1 + OFF,
        )


def many(given, checkpoint, engines, table):
    """Several sequences at once: tokens a second over those of one, and the price."""
    rng, words, machine = np.random.default_rng(1), checkpoint.said["vocab_size"], this_machine()
    reads, context = bandwidth(dict(memory_levels())["memory"]).all, 16
    for each in engines:
        if not hasattr(each, "begin_many"):
            continue
        taken = {1: [], given.at_once: []}
        for turn in range(given.rounds + 1):
            for some, later in taken.items():
                each.begin_many(rng.integers(0, words, (some, context)).tolist(), given.tokens)
                every = [seconds(each.step_many, [1] * some) for _ in range(given.tokens)]
                if turn:
                    later.append(median(every))
        table.append(
            row(each, given.at_once, context, [], taken[given.at_once], reads, machine, context + given.tokens // 2)
        )
        ratios = [given.at_once * one / more for one, more in zip(*taken.values(), strict=True)]
        least = 5.0 if each is engines[0] else None
        yield Figure(
            f"{each.name}: {given.at_once} sequences over one, tokens a second",
            median(ratios),
            "x",
            spread(ratios),
            least=least,
        )
        if each is engines[0]:
            ahead = predict_step(machine, each.program, later_step(context + given.tokens // 2, given.at_once))
            yield Figure(
                f"predicted over measured, {given.at_once} sequences",
                ahead / median(taken[given.at_once]),
                "x",
                spread(taken[given.at_once]),
                least=1 - OFF,
                most=1 + OFF,
            )


def beside(given, checkpoint, engines, table):
    """Perplexity, and the first token of a process, in the first row of each engine."""
    ids = checkpoint.tokenizer().tokenizer.encode("\n".join(sentences()), add_special_tokens=False).ids[: given.foresee]
    for each in engines:
        line = next(line for line in table if line[0] == each.name)
        line[COLUMNS.index("perplexity")] = perplexity(each, ids)
        if hasattr(each, "process"):
            line[COLUMNS.index("process_s")] = min(each.process(checkpoint) for _ in range(3))
        say(f"{each.name}: perplexity {line[-2]:.3f} of {len(ids)} tokens")


if __name__ == "__main__":
    command.run(main)
