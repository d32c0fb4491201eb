"""The time of generating text at several contexts: of the first token, of those that follow, and the size of caches,
as predicted and as measured in a session of the chosen program."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opmatrix.display.tables import megabytes, ms, table
from opmatrix.inference.cached import decoder_of
from opmatrix.runtime.program import Program
from rewrites.lowering.phased import Generation, later_step, prefill
from rewrites.lowering.price import TimeModel
from rewrites.workload.decoded import Decoding, TokenIds, predict_step

CONTEXTS = 16, 256, 1024, 4096  # tokens of a sequence
MOST_SECONDS = 30.0  # seconds of prompts that are measured, as predicted
MORE_STEPS = 8  # steps that are timed at a context
CONTEXT_COLUMNS = [
    "context",
    "ms to the first token, predicted",
    "measured",
    "ms a step, predicted",
    "measured",
    "tokens a second",
    "MB cached",
]


def list_contexts(asked: Generation, positions: int | None) -> list[int]:
    """Return the contexts that a report shows, up to the model's positions; for a model of few positions its longest
    one."""
    most = CONTEXTS[-1] if positions is None else positions
    return [context for context in CONTEXTS if context <= most] or [min(most, asked.length)]


def find_generated(
    program: Program, asked: Generation, tokens: TokenIds, machine: TimeModel, contexts: Iterable[int]
) -> list[dict[str, object]] | None:
    """Return the figures of a program at each context, as in the report; None if no session can run it."""
    if (decoder := decoder_of(program)) is None:
        return None
    return [describe_context(program, decoder, asked, tokens, machine, context) for context in contexts]


def describe_context(
    program: Program, decoder: Program, asked: Generation, tokens: TokenIds, machine: TimeModel, context: int
) -> dict[str, object]:
    """Return the figures of one context: seconds of the step of the prompts and of a step of one row per sequence, and
    bytes of rows in caches."""
    count = asked.sequences
    first, later = (predict_step(machine, decoder, phase(context, count)) for phase in (prefill, later_step))
    figures: dict[str, object] = {
        "context": context,
        "sequences": count,
        "first_predicted_s": first,
        "token_predicted_s": later,
        "first_measured_s": None,
        "token_measured_s": None,
        "cache_bytes": decoder.schedule.cached * count * context,
    }
    if first > MOST_SECONDS:
        return figures
    timed = Decoding(program, count, tokens, context)
    timed.step(1)  # this step compiles and records, and is not timed
    return figures | {"first_measured_s": timed.first(), "token_measured_s": timed.step(MORE_STEPS)}


def tell_generated(record: list[dict[str, Any]] | None) -> Iterator[str]:
    """Yield the table of the report, if text is generated."""
    if not record:
        return
    yield (
        f"generated: {count_sequences(record[0]['sequences'])}, by a session of the chosen program\n"
        + table([context_row(figures) for figures in record], CONTEXT_COLUMNS)
    )


def context_row(record: Mapping[str, Any]) -> list[str]:
    """Return the cells of a context in the table."""
    seconds = record["token_measured_s"] or record["token_predicted_s"] or 1.0  # a file may hold 0
    return [
        f"{record['context']:,}",
        ms(record["first_predicted_s"]),
        ms(record["first_measured_s"]),
        ms(record["token_predicted_s"]),
        ms(record["token_measured_s"]),
        f"{record['sequences'] / seconds:.1f}",
        megabytes(record["cache_bytes"]),
    ]


def count_sequences(count: int) -> str:
    """Write the number of sequences that are generated at once."""
    return "one sequence" if count == 1 else f"{count} sequences at once"
