"""The work of `chat`: each line of the standard input is a message, its reply is printed as it grows. The program keeps
what it has computed, so a turn computes only its new tokens."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from os.path import exists
from pathlib import Path
from typing import TypeAlias

from formats.disk.files import read_json
from opmatrix.files.loading import PROGRAM, load
from opmatrix.inference.chat.chat_options import ChatRequest
from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.chat.conversation import begin_reply
from opmatrix.inference.generation import decodable
from opmatrix.runtime.program import Program
from rewrites.cli.generate import print_reply_of
from rewrites.cli.outputs import write_results
from rewrites.workload.phases import Report

PROMPT = "> "  # before a line, where a person types it
Turn: TypeAlias = dict[str, object]


@dataclass
class Dialogue:
    """The messages of a chat so far, and the figures of each turn."""

    program: Program
    request: ChatRequest
    messages: list[Turn] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def answer(self, line: str) -> None:
        """Add a message of the user, print the reply, and add it as the assistant's."""
        self.messages.append({"role": "user", "content": line})
        reply, grown = begin_reply(self.program, self.messages, self.request)
        began = time.perf_counter()
        taken = print_reply_of(reply, grown)
        self.messages.append({"role": "assistant", "content": reply.text})
        self.turns.append(
            {
                "text": reply.text,
                "ids": reply.ids,
                "ended": reply.ended,
                "prompt_tokens": len(reply.prompt),
                "reused_tokens": reply.reused,
                "first_token_s": taken[0],
                "turn_s": time.perf_counter() - began,
            }
        )


def hold_chat(
    model: str,
    request: ChatRequest,
    *,
    system: str | None = None,
    tools: Path | None = None,
    results: Path | None = None,
    quiet: bool = False,
    own: Path | None = None,
    began: float | None = None,
) -> None:
    """Run the command: reply to every line of the standard input, and write the turns if requested. `system`: the text
    of a first message of that role; `tools`: a file of JSON objects; `began`: start of the command."""
    if tools is not None:
        request = ChatRequest(**vars(request) | {"tools": read_json(tools)})
    report = Report(quiet=quiet, began=began)
    dialogue = Dialogue(open_program(model, request, report, own), request)
    if system is not None:
        dialogue.messages.append({"role": "system", "content": system})
    for line in typed_lines():
        dialogue.answer(line)
    write_results({"model": str(dialogue.program.meta.get("model", model)), "turns": dialogue.turns}, results)


def open_program(model: str, request: ChatRequest, report: Report, own: Path | None) -> Program:
    """Return the program of a directory, or the exact one of a model. Raises InputError, before a search, if it is no
    language model or has no chat template."""
    request.sampling  # it may raise  # noqa: B018
    if exists(Path(model) / PROGRAM):
        with report.phase("load"):
            program = load(model, tokenizer=True, laws=own)
            decodable(program, request.cache)
            ChatTemplates.parsed(program.meta.get("chat"), model)
        return program
    from rewrites.encoders.language_models import (  # imports all laws; a saved program needs none
        find_exact,
        open_language_model,
    )

    with report.phase("model"):
        checkpoint = open_language_model(model)
        if checkpoint.chat is None:
            ChatTemplates.parsed(None, model)
    return find_exact(checkpoint, report)


def typed_lines() -> Iterator[str]:
    """Yield the lines of the standard input that are not blank, up to its end."""
    while True:
        if sys.stdin.isatty():
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")
