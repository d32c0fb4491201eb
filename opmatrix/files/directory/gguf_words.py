"""Tokenizers of GGUF files: byte pairs (see `merges`), the word pieces of BERT (Schuster, Nakajima 2012), the unigrams
of XLM-RoBERTa (Kudo 2018), and pieces that merge by their scores (SentencePiece, Kudo and Richardson 2018)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from formats.core.errors import InputError
from opmatrix.files.directory import merges
from opmatrix.files.directory.merges import CONTROL, KEY, OWN, listed, switch
from opmatrix.inference.text import unpanicked

if TYPE_CHECKING:
    import tokenizers

NORMAL = 1  # a type of tokens
PIECES = NORMAL, OWN  # types of tokens that merges make
SPACE, INNER_MARK = "\u2581", "##"  # marks of a word's first piece, and of pieces inside it
PAIR_ENDS = {"bert": (1, 1), "t5": (2, 0)}  # model -> last tokens between the texts of a pair, the second one's kind


class Vocabulary(NamedTuple):
    """The tokens of a GGUF file, with their types; `said`: the keys of the file."""

    said: Mapping[str, object]
    file: Path
    tokens: list[str]
    kinds: list[int]

    @classmethod
    def read(cls, said: Mapping[str, object], rows: int, file: Path) -> "Vocabulary":
        """Read the tokens of a model with this many `rows` of tokens. Raises InputError where they do not fit."""
        tokens, kinds = (listed(said, name, file) for name in ("tokens", "token_type"))
        if len(tokens) != rows or len(kinds) != rows:
            raise InputError(
                f"{file}: {len(tokens)} tokens and {len(kinds)} types, but the model has {rows}: take another file"
            )
        return cls(said, file, tokens, kinds)

    def place(self, names: Iterable[str], usual: str) -> int:
        """Return the id of a token by the first of these keys that the file has, or else by its usual text. Raises
        InputError where there is none."""
        for name in names:
            if (at := self.said.get(f"{KEY}{name}_token_id")) is None:
                continue
            if type(at) is int and 0 <= at < len(self.tokens):
                return at
            raise InputError(f"{self.file}: {KEY}{name}_token_id is {at!r:.40}: it must be below {len(self.tokens)}")
        if usual in self.tokens:
            return self.tokens.index(usual)
        raise InputError(f"{self.file}: its vocabulary holds no {usual}: take another file")

    def flag(self, name: str) -> bool | None:
        """Return a flag of the tokenizer; None where the file has none."""
        return switch(self.said, name, False, self.file) if KEY + name in self.said else None

    def unmarked(self) -> list[str]:
        """Return word pieces as BERT's files have them: a piece inside a word begins with ##."""
        return [unmarked(token) for token in self.tokens]


def unmarked(token: str) -> str:
    """Return a word piece without the mark of a word's first piece, or with the mark of others."""
    if token.startswith(SPACE) and len(token) > 1:
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else INNER_MARK + token


@unpanicked()
def tokenizer(said: Mapping[str, object], rows: int, file: Path) -> str:
    """Return the text of a tokenizer.json that is equal to the tokenizer of a GGUF file's keys, for a model with this
    many `rows` of tokens. Raises InputError for another kind of tokenizer, and for a vocabulary that does not fit."""
    build = BUILDERS.get(str(said.get(f"{KEY}model")))
    if build is None:
        return merges.tokenizer(said, rows, file)
    words = Vocabulary.read(said, rows, file)
    try:
        return str(build(words).to_str())
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file}: its vocabulary is no tokenizer ({error!s:.200}): get it again") from error


def word_pieces(words: Vocabulary) -> "tokenizers.Tokenizer":
    """Build the tokenizer of BERT. Files that do not say so keep capitals if a piece has some, which no text in small
    letters could reach."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = words.unmarked()
    first, last = words.place(("cls", "bos"), "[CLS]"), words.place(("seperator",), "[SEP]")
    unknown = pieces[words.place(("unknown",), "[UNK]")]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise InputError(f"{words.file}: a token is in the vocabulary twice: take another file")
    lower = words.flag("normalizer.lowercase")
    if lower is None:
        plain = (piece for piece, kind in zip(pieces, words.kinds, strict=True) if kind == NORMAL and piece[0] != "[")
        lower = all(piece == piece.lower() for piece in plain)
    built = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    built.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=words.flag("normalizer.strip_accents"))
    built.pre_tokenizer, built.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return put_between(built, words, pieces, (first, last))


def unigrams(words: Vocabulary) -> "tokenizers.Tokenizer":
    """Build the tokenizer of XLM-RoBERTa. Only plain tokens have scores: those of others would change the score of what
    is unknown."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.normalizers import Precompiled

    scores = read_scores(words)
    weighed = [
        (token, score if kind == NORMAL else 0.0)
        for token, score, kind in zip(words.tokens, scores, words.kinds, strict=True)
    ]
    first, last = words.place(("bos",), "<s>"), words.place(("eos",), "</s>")
    built = Tokenizer(models.Unigram(weighed, words.place(("unknown",), "<unk>"), byte_fallback=False))
    if isinstance(table := words.said.get(f"{KEY}precompiled_charsmap"), list) and table:
        built.normalizer = normalizers.Sequence([Precompiled(bytes(table))])
    mark = pre_tokenizers.Metaspace(SPACE, "never" if words.flag("add_space_prefix") is False else "always")
    built.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    built.decoder = decoders.Metaspace(SPACE, mark.prepend_scheme)
    return put_between(built, words, words.tokens, (first, last))


def scored_pieces(words: Vocabulary) -> "tokenizers.Tokenizer":
    """Build the tokenizer of LLaMA 2 and Mistral: those neighbours merge first whose piece has the highest score; what
    has no piece is spelt in bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    scores = read_scores(words)
    unknown = words.tokens[words.place(("unknown",), "<unk>")]
    vocabulary = {token: at for at, token in enumerate(words.tokens)}
    if len(vocabulary) != len(words.tokens):
        raise InputError(f"{words.file}: a token is in the vocabulary twice: take another file")
    ranked = zip(words.tokens, scores, words.kinds, strict=True)
    mergeable = {token: score for token, score, kind in ranked if kind in PIECES}
    pairs = merged_pairs(vocabulary, mergeable)
    built = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = words.flag("add_space_prefix") is not False
    marked = normalizers.Replace(" ", SPACE)
    built.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marked]) if prefixed else marked
    spelt = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*spelt, decoders.Strip(" ", 1, 0)] if prefixed else spelt)
    for wanted in (CONTROL, OWN):
        added = [
            AddedToken(token, special=wanted == CONTROL, normalized=False)
            for token, kind in zip(words.tokens, words.kinds, strict=True)
            if kind == wanted
        ]
        (built.add_special_tokens if wanted == CONTROL else built.add_tokens)(added)
    first = merges.special(words.said, "bos_token", True, words.tokens, words.file)
    last = merges.special(words.said, "eos_token", False, words.tokens, words.file)
    if first or last:
        built.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            special_tokens=[(token, vocabulary[token]) for token in dict.fromkeys(first + last)],
        )
    return built


def read_scores(words: Vocabulary) -> list[float]:
    """Return the score of each token. Raises InputError for any other list."""
    scores = words.said.get(f"{KEY}scores")
    if not isinstance(scores, list) or len(scores) != len(words.tokens) or any(type(s) is not float for s in scores):
        raise InputError(f"{words.file}: {KEY}scores is {scores!r:.40}: a number for each token is needed")
    return scores


def merged_pairs(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make up another one, in the order in which they merge: by its score."""
    pairs = [
        (score, left, right)
        for token, score in scores.items()
        for left, right in sorted(
            ((token[:cut], token[cut:]) for cut in range(1, len(token)) if {token[:cut], token[cut:]} <= scores.keys()),
            key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]),
        )
    ]
    pairs.sort(key=lambda pair: (-pair[0], -len(pair[1]), -len(pair[2])))
    return [(left, right) for _, left, right in pairs]


def put_between(
    built: "tokenizers.Tokenizer", words: Vocabulary, tokens: list[str], ends: tuple[int, int]
) -> "tokenizers.Tokenizer":
    """Add the tokens that are never split, and those between which texts and pairs of texts stand."""
    from tokenizers import AddedToken, processors

    for wanted in (CONTROL, OWN):
        added = [
            AddedToken(token, special=wanted == CONTROL, normalized=False)
            for token, kind in zip(tokens, words.kinds, strict=True)
            if kind == wanted
        ]
        (built.add_special_tokens if wanted == CONTROL else built.add_tokens)(added)
    first, last = (tokens[at] for at in ends)
    repeated, second = PAIR_ENDS[str(words.said[f"{KEY}model"])]
    built.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", *[last] * repeated, f"$B:{second}", f"{last}:{second}"],
        special_tokens=[(tokens[at], at) for at in dict.fromkeys(ends)],
    )
    return built


BUILDERS = {"bert": word_pieces, "t5": unigrams, "llama": scored_pieces}  # by tokenizer.ggml.model
