"""Steps of a session whose sequences have states: Mamba and Mamba 2 of 130M's shape, Qwen3-Next of that width with few
experts, random weights, beside transformers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from lib.command import Figure, say

import numpy as np

from formats.machine.peaks import bandwidth, memory_levels
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.generation import decodable
from opmatrix.runtime.measure import seconds
from opmatrix.runtime.program import Program
from rewrites.encoders.language_models import find_exact
from rewrites.lowering.phased import Generation
from rewrites.workload.phases import Report

PROMPT, SHORT, LONG, STEPS = 1024, 64, 4096, 64
WIDTH, WORDS = 768, 50280
SHAPES: dict[str, dict[str, Any]] = {
    "mamba": {},
    "mamba2": dict(num_heads=24, n_groups=1, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0),
    "qwen3_next": dict(head_dim=256, num_attention_heads=8, num_key_value_heads=2, intermediate_size=2048)
    | dict(linear_num_key_heads=8, linear_num_value_heads=16, max_position_embeddings=2 * LONG)
    | dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=256, shared_expert_intermediate_size=256),
}


def saved_model(place: Path, family: str, layers: int) -> Any:
    """The model, saved there as transformers does."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=layers, **SHAPES[family]
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(place)
    return model


def state_steps(family: str, layers: int, rounds: int, behind: Sequence[int] = (SHORT, LONG)) -> Iterator[Figure]:
    """A prompt beside transformers' eager path, in turns; a step behind 64 rows and behind 4,096, interleaved; the
    bytes of a sequence's states."""
    import torch

    with TemporaryDirectory() as folder:
        model = saved_model(Path(folder), family, layers)
        program = find_exact(open_model(Path(folder)), Report(quiet=True), Generation(PROMPT, 128))
    session = decodable(program).start(sum(behind) + 4 * LONG)
    tokens = np.random.default_rng(0).integers(0, WORDS, PROMPT)
    ours, theirs = list[float](), list[float]()
    with torch.no_grad():
        ids = torch.from_numpy(tokens)[None]
        wanted = model(ids, logits_to_keep=1).logits[0, -1].numpy()
        for _ in range(rounds + 1):
            held = session.join()
            ours.append(seconds(session.step, {held: tokens}))
            session.leave(held)
            theirs.append(seconds(lambda asked: model(asked, logits_to_keep=1), ids))
    off = abs(session.step({session.join(): tokens})[-1] - wanted).max() / abs(wanted).max()
    yield Figure(f"logits behind {PROMPT} rows, off transformers'", float(off), "", most=1e-4)
    ours, theirs = ours[1:], theirs[1:]
    say(f"a prompt of {PROMPT} rows, {layers} layers: ours {median(ours):.3f} s, transformers {median(theirs):.3f} s")
    yield Figure("a prompt over transformers' eager path", median(ours) / median(theirs), "x", most=0.25)
    yield from steps_behind(session, tokens, read_bytes(program), behind)


def read_bytes(program: Program) -> int:
    """Bytes that a step of one row reads of weights: all but tables, of which a row is read."""
    used = {
        name for step in program.steps for operand, name in step.operands.items() if not operand.startswith("table")
    }
    return sum(numbers.nbytes for name, numbers in program.constants.items() if name in used)


def steps_behind(session: Any, tokens: Any, weights: int, behind: Sequence[int]) -> Iterator[Figure]:
    """One-row steps behind so many rows, each undone; of a model that has caches beside states they may differ. A step
    reads the weights and the states of its sequence, and writes states."""
    held = {length: session.join() for length in behind}
    for length, sequence in held.items():
        for at in range(0, length, PROMPT):
            session.step({sequence: tokens[: min(PROMPT, length - at)]})
    taken: dict[int, list[float]] = {length: [] for length in held}
    for _ in range(STEPS):
        for length, sequence in held.items():
            taken[length].append(seconds(session.step, {sequence: tokens[:1]}))
            session.rewind(sequence, length)
    for length, times in taken.items():
        say(f"a step behind {length} rows: {', '.join(f'{1e3 * part:.2f}' for part in quantiles(times))} ms, quartiles")
    say(f"{session!r}")
    alike = {} if session.caches else dict(least=0.95, most=1.05)
    first, *others = behind
    for length in others:
        apart = median(taken[length]) / median(taken[first])
        yield Figure(f"a step behind {length} rows over one behind {first}", apart, "x", **alike)
    moved = weights + 2 * session.state_bytes
    rate = bandwidth(dict(memory_levels())["memory"]).all
    share = moved / median(taken[first]) / rate
    say(f"a step moves {moved:,} bytes: {weights:,} of weights; memory is read at {rate / 1e9:.1f} GB/s")
    yield Figure("a step, of measured bandwidth", share, "", least=0.7)
