"""Replies that keep to a grammar: of the tokens that may come next the likeliest, or one that is drawn. JSON schemas
and Lark's rules are read by llguidance, which walks the trie of the vocabulary beside the grammar's parser, as Willard
and Louf (2023, section 4) do for regular languages."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from formats.core.errors import InputError
from opmatrix.inference.chat.chat_messages import as_json
from opmatrix.inference.sampling import ScoreRow
from opmatrix.inference.text import Tokenizer, unpanicked

if TYPE_CHECKING:
    import tokenizers
    from llguidance import LLMatcher, LLTokenizer

    from opmatrix.runtime.program import Program

Grammar: TypeAlias = str | Mapping[str, object]
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # JSON on one line, as Python's
LONGEST_RULES = 1 << 20  # letters of a grammar
END_OF_REPLY = "<|opmatrix: end of reply|>"  # text of a token that no model writes


class ReplyGrammar:
    """The grammar of a reply, and its place there: `rules` in llguidance's own form."""

    def __init__(self, rules: str) -> None:
        self.rules = rules
        self.matcher: LLMatcher | None = None
        self.unspoken: int | None = None

    @classmethod
    def of(cls, grammar: Grammar | None) -> "ReplyGrammar | None":
        """Return the grammar of an object, a JSON schema, or of a text, rules in Lark's notation that begin at `start`;
        None for None. Raises InputError for what is neither, is too long, or is wrong by itself."""
        if grammar is None:
            return None
        if find_spec("llguidance") is None:
            raise InputError("grammar: it needs llguidance: pip install opmatrix[grammar]")
        from llguidance import LLMatcher

        if not isinstance(grammar, str | Mapping):
            raise InputError(
                f"grammar: {grammar!r:.40} is {type(grammar).__name__}: give a JSON schema, a dict, or a text in "
                "Lark's notation"
            )
        try:
            if isinstance(grammar, str):
                rules = LLMatcher.grammar_from_lark(grammar)
            else:
                rules = LLMatcher.grammar_from_json_schema({"x-guidance": SPACED} | as_json(grammar, "grammar"))
        except InputError:
            raise
        except ValueError as error:  # halves of characters, which are no text
            raise InputError(f"grammar: {message_line(str(error))}") from error
        if len(rules) > LONGEST_RULES:
            raise InputError(f"grammar: it has {len(rules)} letters: give {LONGEST_RULES} at most")
        if why := LLMatcher.validate_grammar(rules):
            raise InputError(f"grammar: {message_line(why)}")
        return cls(rules)

    def allowed(self, scores: ScoreRow, program: "Program", ends: frozenset[int]) -> ScoreRow:
        """Return the scores (vocabulary,) of the tokens that may come next, and minus infinity for others. Raises
        InputError where no token may, or the grammar is more than its parser takes."""
        matcher = self.matcher or self.begin(program, len(scores), ends)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        check_parser(matcher)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little", count=len(scores)))
        allowed = allowed[allowed != self.unspoken]
        if not allowed.size:
            raise InputError("grammar: no token of the model's vocabulary may come next: allow more letters")
        masked = np.full_like(scores, -np.inf)
        masked[allowed] = scores[allowed]
        return masked

    def take(self, token: int) -> bool:
        """Add a token that was allowed; return True if the text is whole and cannot go on."""
        if self.matcher is None:
            return False
        self.matcher.consume_token(token)
        check_parser(self.matcher)
        return bool(self.matcher.is_stopped())

    def begin(self, program: "Program", width: int, ends: frozenset[int]) -> "LLMatcher":
        """Return a parser at the grammar's beginning, over the tokens of a program. Raises InputError as
        `TokenTrie.of`, and where the grammar is more than the parser takes."""
        from llguidance import LLMatcher

        tries: dict[int, TokenTrie] = vars(program).setdefault("token_tries", {})
        if width not in tries:
            tries[width] = TokenTrie.of(program.tokenizer, width, ends)
        trie = tries[width]
        self.matcher, self.unspoken = LLMatcher(trie.tokens, self.rules, log_level=0), trie.unspoken
        check_parser(self.matcher)
        return self.matcher


class TokenTrie(NamedTuple):
    """The tokens of a model for parsers, and the one that ends texts there but that the model cannot write; None where
    it writes one that does."""

    tokens: "LLTokenizer"
    unspoken: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, width: int, ends: frozenset[int]) -> "TokenTrie":
        """Return the trie of a tokenizer's tokens for a model with scores of `width`, where a text ends by a token of
        `ends`; without any, one is added, since parsers ask for it. Raises InputError for a tokenizer that llguidance
        does not read."""
        from llguidance import LLTokenizer

        known, unspoken = tokenizer.tokenizer, None
        endings = sorted(token for token in ends if 0 <= token < known.get_vocab_size())
        try:
            with unpanicked():
                if not endings:
                    known, unspoken = with_token(known), known.get_vocab_size()
                    endings = [unspoken]
                columns = max(width, known.get_vocab_size())
                return cls(LLTokenizer(known.to_str(), n_vocab=columns, eos_token=endings), unspoken)
        except ValueError as error:
            raise InputError(
                f"grammar: llguidance does not read this model's tokenizer: {message_line(str(error))}"
            ) from error


def with_token(tokenizer: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Return a copy of a tokenizer with one token more, END_OF_REPLY, behind all others."""
    more = type(tokenizer).from_str(tokenizer.to_str())
    more.add_special_tokens([END_OF_REPLY])
    return more


def check_parser(matcher: "LLMatcher") -> None:
    """Raise InputError if a parser has come to an error."""
    if matcher.is_error():
        raise InputError(f"grammar: {message_line(matcher.get_error())}")


def message_line(message: str) -> str:
    """Return a message of a parser on one line, shortened and without the parser's state."""
    return " ".join(message.partition("<state>")[0].split())[:160]
