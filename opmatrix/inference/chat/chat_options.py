"""The options of a reply, and of one in a chat, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from opmatrix.inference.chat.reply_grammars import Grammar
from opmatrix.inference.generation import ReplyBounds
from opmatrix.inference.sampling import Sampling

Messages: TypeAlias = Sequence[Mapping[str, object]]


class ReplyOptions(TypedDict, total=False):
    """The keywords of a reply; see `Program.generate`."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    seed: int
    stop: str | Sequence[str]
    grammar: Grammar | None


class ChatOptions(ReplyOptions, total=False):
    """The keywords of `program.chat`; see there."""

    tools: Sequence[Mapping[str, object]] | None
    documents: Sequence[Mapping[str, object]] | None
    template: str | None
    variables: Mapping[str, object] | None
    control_tokens: bool
    cache: str | None


@dataclass(frozen=True)
class ReplyRequest:
    """The options of a reply with their defaults. Raises TypeError for an unknown one."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    stop: str | Sequence[str] = ()
    grammar: Grammar | None = None

    @property
    def bounds(self) -> ReplyBounds:
        """The bounds of the reply."""
        return ReplyBounds(self.max_tokens, self.stop, self.grammar)

    @property
    def sampling(self) -> Sampling:
        """The way its tokens are chosen."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)


@dataclass(frozen=True)
class ChatRequest(ReplyRequest):
    """The options of a reply in a chat with their defaults. Raises TypeError for an unknown one."""

    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    template: str | None = None
    variables: Mapping[str, object] | None = None
    control_tokens: bool = False
    cache: str | None = None
