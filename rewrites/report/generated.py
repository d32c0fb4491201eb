"""What generating text takes at several contexts: the first token, those that follow, and what is cached, as predicted
and as a session of the chosen program does it."""
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opmatrix.display.tables import megabytes, ms, table
from opmatrix.inference.cached import decoder_of
from opmatrix.runtime.program import Program
from rewrites.lowering.phased import Generation, later_step, prefill
from rewrites.lowering.price import TimeModel
from rewrites.workload.decoded import Decoding, TokenIds, predict_step

CONTEXTS = 16, 256, 1024, 4096                              # tokens of a sequence
MOST_SECONDS = 30.0                                         # of prompts that are measured, as predicted
MORE_STEPS = 8                                                   # that are timed at a context
CONTEXT_COLUMNS = ["context", "ms to the first token, predicted", "measured", "ms a step, predicted", "measured",
          "tokens a second", "MB cached"]


def list_contexts(asked: Generation, positions: int | None) -> list[int]:
    """The contexts that a report shows: as far as the model's positions go; of a model of few, its own last one."""
    most = CONTEXTS[-1] if positions is None else positions
    return [each for each in CONTEXTS if each <= most] or [min(most, asked.length)]


def find_generated(program: Program, asked: Generation, tokens: TokenIds, machine: TimeModel,
                   contexts: Iterable[int]) -> list[dict[str, object]] | None:
    """What a program takes at each context, as the report has it; None where no session runs it."""
    if (decoder := decoder_of(program)) is None: return None
    return [describe_context(program, decoder, asked, tokens, machine, each) for each in contexts]


def describe_context(program: Program, decoder: Program, asked: Generation, tokens: TokenIds, machine: TimeModel,
                     context: int) -> dict[str, object]:
    """One context: seconds of the prompts' step and of a step of one row a sequence, and bytes of rows in caches."""
    count = asked.sequences
    first, later = (predict_step(machine, decoder, each(context, count)) for each in (prefill, later_step))
    found: dict[str, object] = {"context": context, "sequences": count, "first_predicted_s": first,
                                "token_predicted_s": later, "first_measured_s": None, "token_measured_s": None,
                                "cache_bytes": decoder.schedule.cached * count * context}
    if first > MOST_SECONDS: return found
    timed = Decoding(program, count, tokens, context)
    timed.step(1)                                           # compiles and records, and is not counted
    return found | {"first_measured_s": timed.first(), "token_measured_s": timed.step(MORE_STEPS)}


def tell_generated(found: list[dict[str, Any]] | None) -> Iterator[str]:
    """The table of the report, where text is generated."""
    if not found: return
    yield (f"generated: {count_sequences(found[0]['sequences'])}, by a session of the chosen program\n"
           + table([context_row(each) for each in found], CONTEXT_COLUMNS))


def context_row(found: Mapping[str, Any]) -> list[str]:
    """What text takes at a context."""
    seconds = found["token_measured_s"] or found["token_predicted_s"] or 1.0        # a file may say 0
    return [f"{found['context']:,}", ms(found["first_predicted_s"]), ms(found["first_measured_s"]),
            ms(found["token_predicted_s"]), ms(found["token_measured_s"]), f"{found['sequences'] / seconds:.1f}",
            megabytes(found["cache_bytes"])]


def count_sequences(count: int) -> str: return "one sequence" if count == 1 else f"{count} sequences at once"
