"""Replies to messages: a template gives the prompt, and a session that is kept with the program the rows of what it has
in common with earlier prompts and replies."""

from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Unpack

from formats.core.errors import InputError
from opmatrix.inference.chat.chat_messages import as_json, check_messages, check_objects
from opmatrix.inference.chat.chat_options import ChatOptions, ChatRequest, Messages
from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.chat.control_marks import encode_marked, plainly
from opmatrix.inference.chat.held_prefixes import HeldPrefixes
from opmatrix.inference.generation import PromptReader, Reply, decodable, spoken, write
from opmatrix.inference.text import unpanicked

if TYPE_CHECKING:
    import tokenizers

    from opmatrix.runtime.program import Program

STARTING = Lock()  # a program's session is started once
GrownReply = Iterator[tuple[Reply, str]]


def render_messages(
    templates: ChatTemplates, messages: Messages, request: ChatRequest, tokenizer: "tokenizers.Tokenizer"
) -> list[int]:
    """Return the tokens of messages and of the beginning of a reply. Raises InputError for messages, tools or variables
    that are no JSON, and as templates do."""
    tools = check_objects(request.tools, "tools")
    variables: dict[str, object] = {
        "messages": check_messages(messages),
        "tools": tools,
        "documents": check_objects(request.documents, "documents"),
        "add_generation_prompt": True,
        **as_json(request.variables or {}, "variables"),
    }
    template = templates.choose(request.template, bool(tools))
    added = [(token.content, token.special) for token in tokenizer.get_added_tokens_decoder().values()]
    text = templates.render(template, variables, None if request.control_tokens else added)
    with unpanicked():
        return plainly(tokenizer, text) if request.control_tokens else encode_marked(tokenizer, text)


def reply_to_messages(program: "Program", messages: Messages, request: ChatRequest) -> Reply:
    """Return the reply to messages, without tokens yet. Raises InputError as Program.chat."""
    templates = ChatTemplates.parsed(program.meta.get("chat"), str(program.meta.get("model", "this program")))
    ids = render_messages(templates, messages, request, program.tokenizer.tokenizer)
    if why := program.tokenizer.unknown(str(messages[-1].get("content", "")), ids):
        raise InputError(f"chat: the prompt{why}")
    return PromptReader.of(program).begin(ids, 0, request.bounds)


def begin_reply(program: "Program", messages: Messages, request: ChatRequest) -> tuple[Reply, GrownReply]:
    """Return the reply to messages, without tokens yet, and an iterator of it as it grows. Raises InputError as
    Program.chat."""
    decoder, sampling = decodable(program, request.cache), request.sampling
    reply = reply_to_messages(program, messages, request)

    def grown() -> GrownReply:
        """Write the reply into a sequence that is kept afterwards, whatever ends the writing."""
        prefixes = held_by(program, decoder, PromptReader.of(program).limit)
        sequence = prefixes.take(reply)
        try:
            yield from write(prefixes.session, {sequence: reply}, (), sampling)
        finally:
            prefixes.keep(sequence, reply)

    return reply, grown()


def held_by(program: "Program", decoder: "Program", positions: int | None) -> HeldPrefixes:
    """Return the sequences that a program keeps, in a session of this decoder."""
    with STARTING:
        held: dict[int, HeldPrefixes] = vars(program).setdefault("held_prefixes", {})
        if id(decoder) not in held:
            held[id(decoder)] = HeldPrefixes(decoder, positions)
        return held[id(decoder)]


def reply_to(program: "Program", messages: Messages, **options: Unpack[ChatOptions]) -> Reply:
    """Return the reply to messages; see Program.chat."""
    reply, grown = begin_reply(program, messages, ChatRequest(**options))
    for _ in grown:
        pass
    return reply


def stream_to(program: "Program", messages: Messages, **options: Unpack[ChatOptions]) -> Iterator[str]:
    """Yield the reply to messages in pieces; see Program.stream_chat."""
    return spoken(begin_reply(program, messages, ChatRequest(**options))[1])
