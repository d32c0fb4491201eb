"""Replies of language models as OpenAI's API gives them: whole, or in chunks that are sent as they are written."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from uuid import uuid4

from opmatrix.inference.chat.chat_options import ChatRequest
from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.chat.conversation import reply_to_messages
from opmatrix.inference.chat.tool_calls import CallReader, ReplyPart, ToolCall, find_form, schemas_of
from opmatrix.inference.generation import CUT, Prompt, PromptReader, Reply
from opmatrix.runtime.program import Program
from rewrites.serving.completion_bodies import CompletionRequest, read_chat, read_completion
from rewrites.serving.prepared_requests import reply_json
from rewrites.serving.refusals import invalid
from rewrites.serving.served_models import Served, ServedSpeaker, find_model

ReadCompletion = Callable[[bytes], CompletionRequest]
COMPLETED_BY: Mapping[str, ReadCompletion] = dict(zip(ServedSpeaker.paths, (read_chat, read_completion), strict=True))
CALL_ID_LETTERS = 9  # of the name of a call: Mistral's templates take no other number
DONE = b"data: [DONE]\n\n"  # the end of a stream


@dataclass(frozen=True)
class Completion:
    """A reply to a request, while it is written, and the objects that tell it."""

    model: ServedSpeaker
    request: CompletionRequest
    reply: Reply
    reader: CallReader | None = None  # of calls of tools; None where none are offered
    calls: list[dict[str, object]] = field(default_factory=list)  # the calls of the reply so far
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, models: Served, request: CompletionRequest) -> "Completion":
        """Return the reply to a request, without tokens yet. Raises InputError for messages, a prompt or options that
        cannot be read, and Refused for a model that there is not."""
        chat, text = ServedSpeaker.paths
        model = find_model(models, request.model, text if request.messages is None else chat)
        assert isinstance(model, ServedSpeaker)
        program, options = model.program, request.options
        options.sampling  # it may raise  # noqa: B018
        if request.messages is None:
            check_prompt(program, request.prompt)
            return cls(model, request, PromptReader.of(program).begin(request.prompt, 0, options.bounds))
        reply, reader = reply_to_messages(program, request.messages, options), call_reader(program, options)
        if reader and reply.pieces:
            reply.pieces.show(reader.form.marks)
        return cls(model, request, reply, reader)

    @property
    def chats(self) -> bool:
        """True for a reply to messages."""
        return self.request.messages is not None

    @property
    def reason(self) -> str:
        """The reason of its end, in the API's words."""
        if self.reply.ended == CUT:
            return "length"
        return "tool_calls" if self.calls else "stop"

    @property
    def usage(self) -> dict[str, object]:
        """The tokens of prompt and reply, and of those how many the session had."""
        prompt, written = len(self.reply.prompt), len(self.reply.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": self.reply.reused},
        }

    def whole(self) -> bytes:
        """Return the reply at its end."""
        text: dict[str, object] = {"text": self.reply.text}
        if self.chats:
            parts = self.read(self.reply.text, last=True)
            content = "".join(part for part in parts if isinstance(part, str))
            message: dict[str, object] = {
                "role": "assistant",
                "content": content if content or not self.calls else None,
            }
            text = {"message": message | ({"tool_calls": self.calls} if self.calls else {})}
        kind = "chat.completion" if self.chats else "text_completion"
        return reply_json(self.told(kind, text, self.reason) | {"usage": self.usage})

    def begun(self) -> Iterator[bytes]:
        """Yield the chunk that begins a stream of a chat."""
        if self.chats:
            yield self.chunk({"role": "assistant", "content": ""})

    def read(self, text: str, last: bool = False) -> list[ReplyPart]:
        """Return the texts and the calls that are whole with a piece of text, and note the calls."""
        if self.reader is None:
            return [text] if text else []
        parts = self.reader.add(text, last)
        self.calls.extend(described_call(part) for part in parts if isinstance(part, ToolCall))
        return parts

    def pieces(self, text: str, last: bool = False) -> Iterator[bytes]:
        """Yield the chunks of a piece of text: of text, and of calls that are whole with it, as they follow in it."""
        place = len(self.calls)
        for part in self.read(text, last):
            if isinstance(part, str):
                yield self.chunk({"content": part} if self.chats else {"text": part})
            else:
                yield self.chunk({"tool_calls": [{"index": place, **self.calls[place]}]})
                place += 1

    def ended(self) -> Iterator[bytes]:
        """Yield the chunks that end a stream."""
        yield from self.pieces("", last=True)
        yield self.chunk({} if self.chats else {"text": ""}, self.reason)
        if self.request.usage:
            yield in_stream(self.told(self.chunk_kind, {}) | {"choices": [], "usage": self.usage})
        yield DONE

    @property
    def chunk_kind(self) -> str:
        """The kind of object that a chunk is."""
        return "chat.completion.chunk" if self.chats else "text_completion"

    def chunk(self, text: dict[str, object], reason: str | None = None) -> bytes:
        """Return a chunk: of a chat what it adds to the message."""
        return in_stream(self.told(self.chunk_kind, {"delta": text} if self.chats else text, reason))

    def told(self, kind: str, text: dict[str, object], reason: str | None = None) -> dict[str, object]:
        """Return an object of the API with one choice."""
        prefix = "chatcmpl" if self.chats else "cmpl"
        choice = {"index": 0, **text, "finish_reason": reason, "logprobs": None}
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "choices": [choice],
        }


def call_reader(program: Program, options: ChatRequest) -> CallReader | None:
    """Return the reader of calls of the tools of a request; None where it offers none, or where the model's template
    teaches no form that is read."""
    if not (tools := schemas_of(options.tools or ())):
        return None
    templates = ChatTemplates.parsed(program.meta.get("chat"), str(program.meta.get("model", "this program")))
    form = find_form(templates, options.template)
    return form and CallReader(form, tools)


def described_call(call: ToolCall) -> dict[str, object]:
    """Return a call as the API tells it, under a name of its own."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": token_hex(CALL_ID_LETTERS)[:CALL_ID_LETTERS], "type": "function", "function": function}


def check_prompt(program: Program, prompt: Prompt) -> None:
    """Raise Refused for a token that a program has no row for."""
    rows = program.tokenizer.readable.rows
    if not isinstance(prompt, str) and rows is not None and max(prompt) >= rows:
        raise invalid(f"prompt: there is no token {max(prompt)}: the model has {rows}", "prompt")


def in_stream(event: dict[str, object]) -> bytes:
    """Return an object as an event of a stream (server-sent events)."""
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
