"""Bodies of requests for replies, in the names of OpenAI's chat completions and completions. A field that would change
a reply and that is not read is refused unless it asks for nothing; others are ignored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import randbits
from typing import cast

from opmatrix.inference.chat.chat_options import ChatRequest, Messages
from opmatrix.inference.chat.reply_grammars import Grammar
from opmatrix.inference.generation import Prompt
from rewrites.serving.refusals import invalid
from rewrites.serving.request_bodies import BodyFields, are_ids, optional_flag, optional_text, read_fields

CHAT_TOKENS, TEXT_TOKENS = 512, 16  # of a reply, where a request names no number; OpenAI's for texts
NOT_READ: Mapping[
    str, tuple[object, ...]
] = {  # fields that are not read, and what they hold where they ask for nothing
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


@dataclass(frozen=True)
class CompletionRequest:
    """A request of a reply, to `messages` or, without them, to a `prompt`: its options, whether it is streamed, and
    whether the tokens that were used are told at the stream's end."""

    model: str | None
    messages: Messages | None
    prompt: Prompt
    options: ChatRequest
    streamed: bool
    usage: bool


def read_chat(body: bytes) -> CompletionRequest:
    """Parse a request of a reply to messages. Raises Refused, which names the field."""
    fields = read_fields(body)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid(f"messages {messages!r:.60}: give a list of messages, each with a role and a content", "messages")
    flat = [flat_message(message, at) for at, message in enumerate(messages)]
    most = entry_or(fields, "max_completion_tokens", entry_or(fields, "max_tokens", CHAT_TOKENS))
    return read_options(fields, flat, "", most)


def read_completion(body: bytes) -> CompletionRequest:
    """Parse a request of a text that continues a prompt, a text or tokens. Raises Refused, which names the field."""
    fields = read_fields(body)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not are_ids(prompt):
        (prompt,) = prompt
    if not (isinstance(prompt, str) and prompt) and not are_ids(prompt):
        raise invalid(f"prompt {prompt!r:.60}: give one text, or its tokens", "prompt")
    return read_options(fields, None, cast(Prompt, prompt), entry_or(fields, "max_tokens", TEXT_TOKENS))


def flat_message(message: object, at: int) -> Mapping[str, object]:
    """Return a message whose content in parts is one text, as templates take it. Raises Refused for parts that are no
    text."""
    if not isinstance(message, dict):
        raise invalid(f"message {at} is {message!r:.60}: give an object with a role and a content", "messages")
    if isinstance(calls := message.get("tool_calls"), list):
        message = message | {"tool_calls": [opened_call(call) for call in calls]}
    if not isinstance(content := message.get("content"), list):
        return message
    parts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(part, str) for part in parts):
        raise invalid(f"message {at} has parts that are no text: {content!r:.60}: give text alone", "messages")
    return message | {"content": "".join(map(str, parts))}


def opened_call(call: object) -> object:
    """Return a call of an earlier reply with its arguments as an object, as templates take them, where they are the
    text of one; any other as it is."""
    match call:
        case {"function": {"arguments": str(text), **function}, **rest}:
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):
                return call
            if isinstance(arguments, dict):
                return {**rest, "function": {**function, "arguments": arguments}}
    return call


def read_options(
    fields: BodyFields, messages: Sequence[Mapping[str, object]] | None, prompt: Prompt, most: object
) -> CompletionRequest:
    """Return a request with the fields that both kinds have. Numbers are checked where they are used."""
    for name, empty in NOT_READ.items():
        if fields.get(name) is not None and fields[name] not in empty:
            raise invalid(f"{name} {fields[name]!r:.40}: it is not read here: leave it out", name)
    seed, stop = fields.get("seed"), fields.get("stop") or ()
    if not isinstance(stop, str | list | tuple):
        raise invalid(f"stop {stop!r:.40}: give a text, or a list of texts", "stop")
    options: dict[str, object] = {
        "tools": None if fields.get("tool_choice") == "none" else fields.get("tools") or None,
        "variables": fields.get("chat_template_kwargs"),
        "max_tokens": most,
        "temperature": entry_or(fields, "temperature", 1.0),
        "top_k": fields.get("top_k"),
        "top_p": entry_or(fields, "top_p", 1.0),
        "seed": randbits(63) if seed is None else seed,
        "stop": stop,
        "grammar": read_form(fields),
    }
    stream_options = fields.get("stream_options")
    usage = isinstance(stream_options, dict) and stream_options.get("include_usage") is True
    request = ChatRequest(**options)  # type: ignore[arg-type]
    return CompletionRequest(
        optional_text(fields, "model"), messages, prompt, request, optional_flag(fields, "stream"), usage
    )


def entry_or(fields: BodyFields, name: str, usual: object) -> object:
    """Return the entry of a field; the usual one where there is none."""
    value = fields.get(name)
    return usual if value is None else value


def read_form(fields: BodyFields) -> Grammar | None:
    """Return what a reply keeps to: the JSON schema of `response_format`, any object, or the rules of `grammar`. Raises
    Refused for another form."""
    form, grammar = fields.get("response_format"), cast("Grammar | None", fields.get("grammar"))
    if grammar is not None and form not in (None, {"type": "text"}):
        raise invalid("grammar: a reply keeps to it or to response_format: leave one out", "grammar")
    match form:
        case None | {"type": "text"}:
            return grammar
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise invalid(
        f"response_format {form!r:.80}: its type is text, json_object, or json_schema with a schema", "response_format"
    )
