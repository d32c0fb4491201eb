"""Text generation: a step of a session for each token, the next token chosen from its scores and entered in the next
step. Sequences end at different times, and others take their place."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from formats.core.errors import InputError
from formats.kernels.attentions.chunks import PAGE
from opmatrix.algebra.batch.batch import Ids
from opmatrix.algebra.batch.signature import FLOAT, STATE_SPACE, check_cache
from opmatrix.algebra.positions.patterns import FAR
from opmatrix.inference.cached import rows_behind
from opmatrix.inference.chat.reply_grammars import Grammar, ReplyGrammar
from opmatrix.inference.chat.stop_strings import StopStrings
from opmatrix.inference.pages import pages_of
from opmatrix.inference.pieces import Pieces
from opmatrix.inference.pooling import LAST
from opmatrix.inference.sampling import Sampling, is_whole
from opmatrix.inference.text import Tokenizer, fault, unpanicked

if TYPE_CHECKING:
    from opmatrix.inference.session import HeldSequence, Session
    from opmatrix.runtime.program import Program

AT_ONCE = 16  # sequences at once
PROMPT_PIECE = 512  # tokens of a prompt that enter at once, with windows
END, CUT, STOPPED = "end", "limit", "stop"  # reason of the end: a token that ends texts; the limit; a stop string

Prompt: TypeAlias = str | Ids


class ReplyBounds(NamedTuple):
    """The bounds of a reply: its most tokens, the strings that it ends before, and the grammar that it keeps to."""

    max_tokens: int
    stop: str | Sequence[str] = ()
    grammar: Grammar | None = None


@dataclass
class Reply:
    """The continuation of a prompt: its token ids, including the one that ended it, their text, and the reason of its
    end: "end", a token that ends texts, or a grammar that goes no further; "limit", it has as many tokens as it may;
    "stop", a stop string, which the text comes before. `number` is its place among prompts, `entered` the number of
    tokens of its prompt that a session has, `reused` how many of these it had before."""

    number: int
    prompt: Sequence[int]
    most: int
    pieces: Pieces | None
    ids: list[int] = field(default_factory=list)
    text: str = ""
    ended: str = ""
    entered: int = 0
    stops: StopStrings | None = None
    reused: int = 0
    grammar: ReplyGrammar | None = None

    @property
    def rest(self) -> Sequence[int]:
        """The tokens of its prompt that are still to enter a session."""
        return self.prompt[self.entered :]

    @property
    def left(self) -> int:
        """The number of tokens that it may still have."""
        return self.most - len(self.ids)

    def take(self, token: int, ends: frozenset[int]) -> str:
        """Add a token; return the piece of text that it completes."""
        self.ids.append(token)
        whole = token in ends or (self.grammar is not None and self.grammar.take(token))
        self.ended = END if whole else CUT if len(self.ids) == self.most else ""
        piece = ""
        if self.pieces:
            piece = self.pieces.add(token) + (self.pieces.rest() if self.ended else "")
        if self.stops:
            piece, stopped = self.stops.add(piece, last=bool(self.ended))
            self.ended = STOPPED if stopped else self.ended
        self.text += piece
        return piece


# ---- abilities of a program


def speaks(program: "Program") -> bool:
    """True if its rows are scores of the vocabulary of its tokenizer's model, and the pooling of a text is its last
    row."""
    words, shape = (
        program.meta.get("config", {}).get("vocab_size"),
        program.schedule.calls[program.schedule.result].shape,
    )
    return program.pooling == LAST and type(words) is int and getattr(shape, "cols", None) == words


def find_ends(program: "Program") -> frozenset[int]:
    """Return the tokens that end a text: those that its files named when it was made, or that its config names; none if
    neither does."""
    entry = program.meta.get("ends", program.meta.get("config", {}).get("eos_token_id"))
    return frozenset(token for token in (entry if isinstance(entry, list) else [entry]) if type(token) is int)


def decodable(program: "Program", cache: str | None = None) -> "Program":
    """Return the program that decodes token by token: itself if it has state, else one whose caches hold numbers of
    type `cache`. Raises InputError if its rows are no scores of a vocabulary, if it reads rows in any other way than
    causal attention does, and for caches of another type than its own, or of an unknown one."""
    if not speaks(program):
        name = program.meta.get("model", "this program")
        raise InputError(f"generate: {name!s:.80} is not a language model: its rows are not scores of a vocabulary")
    if cache is not None:
        check_cache(cache)
    if not program.state:
        return program.decode_with(cache)
    if cache not in (None, number := cache_number(program)):
        raise InputError(f"cache {cache!r}: this program already has caches, of {number}: leave it out")
    return program


def cache_number(program: "Program") -> str:
    """Return the number type of the caches of a program with state; float32 if it has states alone."""
    numbers = (port.number for port in program.inputs if port.name in program.state and port.space != STATE_SPACE)
    return next(numbers, FLOAT)


# ---- prompts


class PromptReader(NamedTuple):
    """A reader of prompts: a tokenizer, None if prompts are token ids, and the limit on the tokens of prompt and reply
    together, None without a limit."""

    tokenizer: Tokenizer | None
    limit: int | None

    @classmethod
    def of(cls, program: "Program") -> "PromptReader":
        """Return the reader of a program."""
        limit = program.meta.get("config", {}).get("max_position_embeddings")
        return cls(program.tokenizer if program.meta.get("tokenizer") else None, limit if type(limit) is int else None)

    def ids(self, prompt: Prompt, place: int, begun: int = 0) -> list[int]:
        """Return the ids of a prompt; without special tokens if it continues a sequence that has rows. Raises
        InputError if it is empty, or is no text."""
        if not isinstance(prompt, str | Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray | memoryview):
            raise InputError(
                f"prompt {place}: {prompt!r:.40} is {type(prompt).__name__}: give text, or a row of token ids"
            )
        if len(prompt) == 0:
            raise InputError(f"prompt {place} is empty: give text, or one token at least")
        if not isinstance(prompt, str):
            return whole_ids(prompt, place)
        if self.tokenizer is None:
            raise InputError("generate: this program has no tokenizer: give token ids, or save it with tokenizer.json")
        if why := fault(prompt):
            raise InputError(f"prompt {place}{why}")
        with unpanicked():
            tokens = list(self.tokenizer.tokenizer.encode(prompt, add_special_tokens=not begun).ids)
        if why := self.tokenizer.unknown(prompt, tokens):
            raise InputError(f"prompt {place}{why}")
        return tokens

    def begin(self, prompt: Prompt, place: int, bounds: ReplyBounds, begun: int = 0) -> Reply:
        """Return the reply to a prompt, without tokens yet, behind the `begun` rows that a sequence has. Raises
        InputError for an invalid prompt, or one that leaves no room for a token, and for stop strings and a grammar
        that are wrong, or that a program without a tokenizer cannot look for."""
        max_tokens, stops, grammar = bounds.max_tokens, StopStrings.of(bounds.stop), ReplyGrammar.of(bounds.grammar)
        if stops and self.tokenizer is None:
            raise InputError(f"stop {stops.stops[0]!r:.40}: this program has no tokenizer, so its replies are no text")
        if grammar and self.tokenizer is None:
            raise InputError("grammar: this program has no tokenizer, so its replies are no text")
        if not (is_whole(max_tokens) and max_tokens >= 1):
            raise InputError(f"max_tokens {max_tokens!r:.40}: give a whole number, 1 or more")
        ids = self.ids(prompt, place, begun)
        room = max_tokens if self.limit is None else self.limit - begun - len(ids)
        if not ids or room < 1:
            before = f" behind {begun} of its sequence" if begun else ""
            what = (
                "has no tokens: give text"
                if not ids
                else (
                    f"has {len(ids)} tokens{before}, and the model has positions for {self.limit}, prompt and reply "
                    "(max_position_embeddings): shorten it"
                )
            )
            raise InputError(f"prompt {place} {what}")
        pieces = Pieces(self.tokenizer.tokenizer, ids) if self.tokenizer else None
        return Reply(place, ids, int(min(room, max_tokens)), pieces, stops=stops, grammar=grammar)


def whole_ids(prompt: Iterable[object], place: int) -> list[int]:
    """Return the token ids of a prompt. Raises InputError for the first that is no whole number: 1.7 is not rounded,
    and "1" is text."""
    ids = []
    for token in prompt:
        if not is_whole(token):
            raise InputError(f"prompt {place}: {token!r:.40} is not a token id: give whole numbers, or text alone")
        ids.append(int(cast(int, token)))
    return ids


def prompts_of(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Return prompts, each text or token ids. Raises InputError if there is none."""
    prompt_list = [prompts] if isinstance(prompts, str | bytes | bytearray) else list(prompts)
    if not prompt_list:
        raise InputError("generate: no prompt: give one, at least")
    return cast(list[Prompt], [prompt_list] if is_whole(prompt_list[0]) else prompt_list)


# ---- generating


def generate(
    program: "Program",
    prompts: Prompt | Iterable[Prompt],
    bounds: ReplyBounds,
    sampling: Sampling,
    cache: str | None = None,
) -> list[Reply]:
    """Return the replies to prompts, in order; see Program.generate."""
    decodable(program, cache)
    reader = PromptReader.of(program)
    replies = [reader.begin(prompt, i, bounds) for i, prompt in enumerate(prompts_of(prompts))]
    for _ in grow(program, replies, sampling, cache):
        pass
    return replies


def stream_reply(
    program: "Program", prompt: Prompt, bounds: ReplyBounds, sampling: Sampling, cache: str | None = None
) -> Iterator[str]:
    """Yield the reply to a prompt in pieces; see Program.stream_text."""
    decodable(program, cache)
    return spoken(grow(program, [PromptReader.of(program).begin(prompt, 0, bounds)], sampling, cache))


def spoken(grown: Iterable[tuple[Reply, str]]) -> Iterator[str]:
    """Yield the pieces that are not empty."""
    return (piece for _, piece in grown if piece)


def grow(
    program: "Program", replies: Sequence[Reply], sampling: Sampling, cache: str | None = None
) -> Iterator[tuple[Reply, str]]:
    """Yield replies as they grow, in a session of their own. Its caches have room for the longest AT_ONCE replies, in
    this number type."""
    decoder = decodable(program, cache)
    pages = sorted(
        (pages_held(rows_behind(decoder), len(reply.prompt) + reply.most) for reply in replies), reverse=True
    )
    return write(decoder.start(PAGE * sum(pages[:AT_ONCE]), rewinds=0), {}, replies, sampling)


def pages_held(behind: int, rows: int) -> int:
    """Return the most pages of a sequence of `rows` rows: for the rows that a row sees, and for a piece of a prompt, as
    other pages are given back."""
    return pages_of(min(rows, behind + PROMPT_PIECE + 2 * PAGE), PAGE)


def carry_on(
    session: "Session", prompts: Mapping["HeldSequence", Prompt], bounds: ReplyBounds, sampling: Sampling
) -> tuple[list[Reply], Iterator[tuple[Reply, str]]]:
    """Return the replies to prompts that sequences of a session continue with, and an iterator of these as they grow;
    see Session.generate."""
    decodable(session.program)
    if not prompts:
        raise InputError("generate: no prompt: give one, at least")
    begun, reader = (
        [session.rows(sequence, "generate").length for sequence in prompts],
        PromptReader.of(session.program),
    )
    replies = [
        reader.begin(prompt, i, bounds, rows)
        for i, (prompt, rows) in enumerate(zip(prompts.values(), begun, strict=True))
    ]
    check_room(session, [*prompts], replies)
    return replies, write(session, dict(zip(prompts, replies, strict=True)), (), sampling)


def check_room(session: "Session", sequences: Sequence["HeldSequence"], replies: Sequence[Reply]) -> None:
    """Raise InputError if the caches have no room for prompts and replies of their full length."""
    need, free = pages_needed(session, sequences, replies), len(session.usage.free)
    if need > free:
        wanted = session.capacity + PAGE * (need - free)
        raise InputError(
            f"generate: space C is full: prompts and replies of {len(replies)} sequences need {need} "
            f"pages of {PAGE} rows, and {free} are free: start(capacity={wanted}), lower max_tokens, or "
            "let sequences leave"
        )


def pages_needed(session: "Session", sequences: Sequence["HeldSequence"], replies: Sequence[Reply]) -> int:
    """Return how many pages sequences need for what is left of their prompts, and for replies of their full length."""
    usage, need = session.usage, 0
    for sequence, reply in zip(sequences, replies, strict=True):
        has, page, _ = session.rows(sequence, "generate")
        most, begun = (
            pages_held(session.behind + session.kept_behind, rows) for rows in (has + len(reply.rest) + reply.left, has)
        )
        need += most - begun
        need += bool(has % PAGE and usage.users[page] > 1)  # a shared page is copied before it is written
    return need


def enter_pieces(session: "Session", sequence: "HeldSequence", reply: Reply) -> None:
    """Enter all but the last piece of a prompt into a session with windows: pages behind a window are given back, so
    the prompt needs no more rows than the window and a piece."""
    while session.behind < FAR and len(reply.rest) > PROMPT_PIECE:
        session.step({sequence: reply.rest[:PROMPT_PIECE]})
        reply.entered += PROMPT_PIECE


def write(
    session: "Session", kept: Mapping["HeldSequence", Reply], waiting: Iterable[Reply], sampling: Sampling
) -> Iterator[tuple[Reply, str]]:
    """Yield replies as they grow: the one that has another token, and the piece of text that is complete with it.
    Sequences in `kept` hold prompt and reply in the end; those that join for a waiting one leave when it ends."""
    ends, by_sequence, queue, live = find_ends(session.program), session.program.pooled, deque(waiting), {**kept}
    while live or queue:
        while queue and len(live) < AT_ONCE:
            live[session.join()] = queue.popleft()
        for sequence, reply in live.items():
            if not reply.ids:
                enter_pieces(session, sequence, reply)
        new = {sequence: reply.ids[-1:] or reply.rest for sequence, reply in live.items()}
        rows = session.step(new)
        for reply in live.values():
            reply.entered = len(reply.prompt)
        if not by_sequence:
            rows = rows[np.cumsum([len(ids) for ids in new.values()]) - 1]
        for sequence, row in zip(new, rows, strict=True):
            reply = live[sequence]
            if reply.ended:  # before this step, in which its last token entered
                del live[sequence]
                continue
            scores = reply.grammar.allowed(row, session.program, ends) if reply.grammar else row
            piece = reply.take(sampling.choose(scores, sequence.length, reply.number), ends)
            if reply.ended and sequence not in kept:
                del live[sequence]
                session.leave(sequence)
            yield reply, piece
