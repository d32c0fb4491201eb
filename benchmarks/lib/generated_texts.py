"""What generated text is held against beside seconds: memory and steps over many tokens, transformers' text."""

import gc
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from lib.command import Figure, say

import numpy as np
from transformed import EQUAL, PROMPTS, TOKENS, replies_beside

from formats.machine.peaks import bandwidth, memory_levels
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.generation import decodable
from opmatrix.parallel.launch.worker import resident
from opmatrix.runtime.measure import seconds
from opmatrix.runtime.program import Program

FLAT = 0.01  # that memory may grow by, as a share
PARTS = 10  # of all steps, of each of which the median counts


def long_texts(program: Program, tokens: int, sequences: int) -> Iterator[Figure]:
    """So many tokens over several sequences, a row of each a step: how memory grows from the first tenth on, and how
    a step's seconds grow with the rows that it reads of caches. Caches are written to before, so that all of their
    pages are there."""
    decoder, length = decodable(program), -(-tokens // sequences)
    session = decoder.start(sequences * (length + 32))
    for cache in session.caches.values():
        cache.fill(0)
    held = [session.join() for _ in range(sequences)]
    session.step({each: [1 + i] for i, each in enumerate(held)})
    taken, memory = list[float](), list[int]()
    for at in range(length - 1):
        taken.append(seconds(session.step, {each: [(7 * at + i) % 1000] for i, each in enumerate(held)}))
        if at % (length // PARTS) == length // PARTS - 1:
            gc.collect()
            memory.append(resident())
            say(
                f"{sequences * (at + 2)} tokens: {1e3 * median(taken[-length // PARTS :]):.2f} ms a step, "
                f"{memory[-1] / 1e6:.1f} MB resident"
            )
    named = f"{tokens} tokens over {sequences} sequences"
    yield Figure(f"memory after {named} over that after a tenth", memory[-1] / memory[0], "x", most=1 + FLAT)
    steps = [median(part) for part in np.array_split(taken, PARTS)]
    reading = sequences * (length / PARTS) * decoder.schedule.cached / bandwidth(dict(memory_levels())["memory"]).all
    growth = [after - before for before, after in pairwise(steps)]
    yield Figure(
        f"growth of a step over {named}, over reading what was cached",
        sum(growth) / len(growth) / reading,
        "x",
        most=2.0,
    )
    first, second = (sum(part) for part in np.array_split(growth[: PARTS // 2 * 2], 2))
    yield Figure("growth in the second half over the first", float(second / first), "x", least=0.5, most=1.5)


def beside_transformers(checkpoint: Checkpoint, program: Program) -> Iterator[Figure]:
    """Greedy replies beside transformers' scores of the same tokens: where a token is not their likeliest, and they
    have one by more than what float32 rounds. Each prompt is told, with the first tie."""
    wrong = compared = 0
    for reply, likeliest in replies_beside(checkpoint, program):
        off = [at for at, token in enumerate(likeliest) if reply.ids[at] != token]
        wrong, compared = wrong + len(off), compared + len(likeliest)
        tie = f", then two scores within {EQUAL:g}" if len(likeliest) < TOKENS else ""
        said = f"token {off[0]} differs" if off else f"{len(likeliest)} tokens equal{tie}"
        say(f"{PROMPTS[reply.number]!r}: {said}")
    yield Figure(f"of {compared} greedy tokens, that are not transformers'", float(wrong), "", most=0)
