"""Replies of language models as OpenAI's API gives them: whole, or in chunks that are sent as they are written."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from opmatrix.inference.chat.conversation import reply_to_messages
from opmatrix.inference.generation import CUT, Prompt, PromptReader, Reply
from opmatrix.runtime.program import Program
from rewrites.serving.completion_bodies import CompletionRequest, read_chat, read_completion
from rewrites.serving.prepared_requests import reply_json
from rewrites.serving.refusals import invalid
from rewrites.serving.served_models import Served, ServedSpeaker, find_model

ReadCompletion = Callable[[bytes], CompletionRequest]
COMPLETED_BY: Mapping[str, ReadCompletion] = dict(zip(ServedSpeaker.paths, (read_chat, read_completion), strict=True))
DONE = b"data: [DONE]\n\n"  # the end of a stream


@dataclass(frozen=True)
class Completion:
    """A reply to a request, while it is written, and the objects that tell it."""

    model: ServedSpeaker
    request: CompletionRequest
    reply: Reply
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
        return cls(model, request, reply_to_messages(program, request.messages, options))

    @property
    def chats(self) -> bool:
        """True for a reply to messages."""
        return self.request.messages is not None

    @property
    def reason(self) -> str:
        """The reason of its end, in the API's words."""
        return "length" if self.reply.ended == CUT else "stop"

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
            text = {"message": {"role": "assistant", "content": self.reply.text}}
        kind = "chat.completion" if self.chats else "text_completion"
        return reply_json(self.told(kind, text, self.reason) | {"usage": self.usage})

    def begun(self) -> Iterator[bytes]:
        """Yield the chunk that begins a stream of a chat."""
        if self.chats:
            yield self.chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        """Return the chunk of a piece of text."""
        return self.chunk({"content": text} if self.chats else {"text": text})

    def ended(self) -> Iterator[bytes]:
        """Yield the chunks that end a stream."""
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


def check_prompt(program: Program, prompt: Prompt) -> None:
    """Raise Refused for a token that a program has no row for."""
    rows = program.tokenizer.readable.rows
    if not isinstance(prompt, str) and rows is not None and max(prompt) >= rows:
        raise invalid(f"prompt: there is no token {max(prompt)}: the model has {rows}", "prompt")


def in_stream(event: dict[str, object]) -> bytes:
    """Return an object as an event of a stream (server-sent events)."""
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
