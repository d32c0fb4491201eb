"""The work of `generate`: the program of a model or a directory, and its reply to a prompt as it grows."""

import sys
import time
from collections.abc import Iterable
from os.path import exists
from pathlib import Path

from formats.disk.files import writable
from opmatrix.algebra.batch.signature import check_cache
from opmatrix.files.loading import PROGRAM, load
from opmatrix.inference.generation import (
    END,
    PromptReader,
    Reply,
    ReplyBounds,
    cache_number,
    decodable,
    find_ends,
    grow,
)
from opmatrix.inference.parsed_ahead import ParsedAhead
from opmatrix.inference.sampling import Sampling
from opmatrix.runtime.program import Program
from rewrites.cli.chatting.grammar_files import read_grammar
from rewrites.cli.outputs import possible, printable, write_results
from rewrites.workload.phases import Report


def write_reply(
    model: str,
    prompt: str,
    *,
    max_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    cache: str | None = None,
    schema: Path | None = None,
    grammar: Path | None = None,
    results: Path | None = None,
    quiet: bool = False,
    own: Path | None = None,
    began: float | None = None,
    ahead: ParsedAhead | None = None,
) -> None:
    """Run the command: print the reply to a prompt, and write its figures if requested. `began`: start of the command;
    `ahead`: the tokenizer of a saved program; `schema`, `grammar`: files of what the reply keeps to."""
    possible({"--json": (results, writable)}, model, own, schema, grammar)
    bounds = ReplyBounds(max_tokens, grammar=read_grammar(schema, grammar))
    sampling, report = Sampling(temperature, top_k, top_p, seed), Report(quiet=quiet, began=began)
    write_results(generate(model, prompt, bounds, sampling, cache, report, own, ahead), results)


def generate(
    model: str,
    prompt: str,
    bounds: ReplyBounds,
    sampling: Sampling,
    cache: str | None,
    report: Report,
    own: Path | None = None,
    ahead: ParsedAhead | None = None,
) -> dict[str, object]:
    """Print the reply to a prompt, and return it with its figures, as for JSON. `own`: the user's file of functions
    that a saved program has. An invalid prompt is refused before a program is searched for."""
    if cache is not None:
        check_cache(cache)
    if exists(Path(model) / PROGRAM):
        with report.phase("load"):
            program = load(model, tokenizer=ahead or True, laws=own)
            decodable(program, cache)
        reply = PromptReader.of(program).begin(prompt, 0, bounds)
    else:
        # imports all laws; a saved program needs none
        from rewrites.encoders.language_models import find_exact, open_language_model

        with report.phase("model"):
            checkpoint = open_language_model(model)
            reply = PromptReader(checkpoint.tokenizer(), checkpoint.positions).begin(prompt, 0, bounds)
        program = find_exact(checkpoint, report)
    if not find_ends(program):
        report.say(f"no end token in the files: {reply.most} tokens are written (--max-tokens)")
    taken = print_reply(program, reply, sampling, cache)
    report.say(figures(reply, taken))
    return {
        "model": str(program.meta.get("model", model)),
        "prompt": prompt,
        "text": reply.text,
        "ids": reply.ids,
        "ended": reply.ended,
        "prompt_tokens": len(reply.prompt),
        "first_token_s": taken[0],
        "token_s": taken[1:],
        "sampling": vars(sampling),
        "cache": cache_number(decodable(program, cache)),
    }


def print_reply(program: Program, reply: Reply, sampling: Sampling, cache: str | None) -> list[float]:
    """Print a reply in a session of its own; see print_reply_of."""
    return print_reply_of(reply, grow(program, [reply], sampling, cache))


def print_reply_of(reply: Reply, grown: Iterable[tuple[Reply, str]]) -> list[float]:
    """Print a reply as it grows; return the seconds that each token took. After an interruption the printed text stays,
    on a line of its own."""
    taken, began = list[float](), time.perf_counter()
    try:
        for _, piece in grown:
            taken.append((now := time.perf_counter()) - began)
            began = now
            sys.stdout.write(printable(piece))
            sys.stdout.flush()
    finally:
        if reply.ids:
            print(flush=True)
    return taken


def figures(reply: Reply, taken: list[float]) -> str:
    """Return the count of tokens, seconds to the first, tokens a second after it, and the reason for the end."""
    rate = f", then {(len(taken) - 1) / sum(taken[1:]):.1f} a second" if len(taken) > 1 else ""
    why = "the text ended" if reply.ended == END else "the limit"
    return f"{len(reply.ids)} tokens behind {len(reply.prompt)}: the first after {taken[0]:.2f} s{rate}; {why}"
