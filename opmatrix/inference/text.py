"""Texts: a tokenizer without padding, and the lines that approximations are fitted to, chosen by, and judged on."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from formats.core.errors import InputError
from formats.disk.files import read_bytes, read_text
from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.parsed_ahead import ParsedAhead
from opmatrix.inference.pooling import MEAN, Pooling
from opmatrix.inference.tokenizer_limits import check_limits

if TYPE_CHECKING:
    import tokenizers

LINES = 3  # least lines of a file: one for each part


@dataclass
class LineReading:
    """The options of reading texts, one after another, and its results. `name` gives the name in errors of the text at
    a place, `advice` the remedy for one that is too long; `prompt` comes before every text, None: the default one;
    `most`: the number of tokens that texts are truncated to, None: the declared one."""

    name: Callable[[int], str] = "text {}".format
    truncate: bool | None = None  # None: if the checkpoint declares a maximum length
    skip_bad: bool = False
    advice: str = "shorten or split it"
    prompt: str | None = None
    most: int | None = None
    texts: int = 0  # number of texts read
    truncated: int = 0  # number of texts truncated
    cut_places: list[int] | None = None  # their places, where they are asked for by an empty list
    skipped: list[int] = field(default_factory=list)  # places of the texts that cannot be read
    fault: str = ""  # the fault of the first of these


@contextmanager
def unpanicked() -> Generator[None]:
    """Turn errors about an inconsistent tokenizer into InputError: its library raises a plain Exception, or panics with
    a BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise InputError(f"tokenizer.json contradicts itself ({error}): get it again") from error


class ReadableIds(NamedTuple):
    """The ids that a model reads: those below `rows`, if that is known, except `unplaced`, the id of a token that takes
    no position, if there is one."""

    rows: int | None = None
    unplaced: int | None = None


class Tokenizer:
    """A tokenizer.json with its padding and truncation switched off, as a batch is ragged. `limit`: the number of
    tokens that the model has positions for, None without a limit. `pooling`: gives the prompt before every text and the
    length that texts are truncated to. `readable`: the ids that the model reads. Raises InputError if `pooling` leaves
    no room for text."""

    def __init__(
        self,
        tokenizer: "tokenizers.Tokenizer",
        limit: int | None = None,
        pooling: Pooling = MEAN,
        readable: ReadableIds = ReadableIds(),
    ):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if pooling.lower:
            from tokenizers.normalizers import Lowercase, Sequence

            tokenizer.normalizer = Sequence([Lowercase(), *filter(None, [tokenizer.normalizer])])
        self.tokenizer, self.limit, self.pooling = tokenizer, limit, pooling
        self.readable = readable
        self.most = min(filter(None, [pooling.max_seq_length, limit]), default=None)
        self.special = tokenizer.num_special_tokens_to_add(False)
        if self.most is not None and self.most <= self.special:
            raise InputError(f"max_seq_length {self.most} leaves no room for text: {self.special} tokens are special")

    @classmethod
    def from_file(cls, path: str | Path, limit: int | None = None, pooling: Pooling = MEAN) -> "Tokenizer":
        """Read a tokenizer from a file. Raises InputError if the file is missing or no tokenizer."""
        try:
            text = read_text(path)
        except InputError as error:
            raise InputError(f"{error}: texts need a tokenizer") from error
        return cls.from_text(text, str(path), limit, pooling)

    @classmethod
    @unpanicked()
    def from_text(
        cls,
        text: str,
        where: str,
        limit: int | None = None,
        pooling: Pooling = MEAN,
        ahead: ParsedAhead | None = None,
        readable: ReadableIds = ReadableIds(),
    ) -> "Tokenizer":
        """Return the tokenizer that the text of a tokenizer.json describes, which may be parsed already. Raises
        InputError, which names its source `where`, for any other text."""
        import tokenizers

        try:
            tokenizer = (ahead and ahead.parsed(text)) or tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise InputError(f"{where}: no tokenizer ({error}): get it again") from error
        check_limits(tokenizer, where)
        return cls(tokenizer, limit, pooling, readable)

    def encode(self, texts: str | Iterable[str], truncate: bool | None = None) -> Batch:
        """Return the ragged batch of the texts' tokens, special tokens included (an empty text has only these). Raises
        InputError if there is no text, or one is no string, has no tokens, or more than the model can take."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise InputError("no text: give at least one")
        return Batch(self.rows(texts, LineReading(truncate=truncate)))

    def prompt(self, reading: LineReading) -> str:
        """Return the prompt that is put before every text."""
        return self.pooling.prompt if reading.prompt is None else reading.prompt

    def left_out(self, reading: LineReading) -> int:
        """Return the number of tokens of a text that are not pooled: those of its prompt, with special ones before it,
        if the checkpoint leaves them out."""
        prompt = self.prompt(reading)
        if self.pooling.include_prompt or not prompt:
            return 0
        encoded = self.tokenizer.encode(prompt)
        return len(encoded.ids) - bool(encoded.special_tokens_mask[-1])

    @unpanicked()
    def rows(self, texts: Sequence[str], reading: LineReading) -> list[list[int]]:
        """Return the tokens of each text, an empty list for one that is skipped. Raises InputError for one that cannot
        be read."""
        faults = [fault(text) for text in texts]
        prompt = self.prompt(reading)
        whole = [prompt + text if why is None else "" for text, why in zip(texts, faults, strict=True)]
        return [
            self.row(text, row.ids, why, reading)
            for text, row, why in zip(whole, self.tokenizer.encode_batch(whole), faults, strict=True)
        ]

    def row(
        self,
        text: str,
        row: list[int],
        why: str | None,
        reading: LineReading,
        truncated: Callable[[int], list[int]] | None = None,
    ) -> list[int]:
        """Return the tokens of one text as they enter the model: truncated if that is requested, empty if it is
        skipped. `why`: the reason why it cannot be read, if that is known; `truncated` gives so many tokens of it, by
        default its first ones."""
        place, cut = reading.texts, reading.truncate
        reading.texts += 1
        if cut is None:
            cut = self.pooling.max_seq_length is not None
        if why is None and not row:
            why = f", {shortened(text)}, has no tokens: leave it out"
        if why is None:
            why = self.unknown(text, row)
        most = min(filter(None, [reading.most, self.most]), default=None)
        if why is None and cut and most and len(row) > most:
            reading.truncated += 1
            if reading.cut_places is not None:
                reading.cut_places.append(place)
            return truncated(most) if truncated else self.cut(text, most)
        if why is None and self.limit and len(row) > self.limit:
            why = (
                f", {shortened(text)}, has {len(row)} tokens, and the model has positions for {self.limit} "
                f"(max_position_embeddings): {reading.advice}"
            )
        if why is None:
            return row
        if not reading.skip_bad:
            raise InputError(reading.name(place) + why)
        reading.fault = reading.fault or reading.name(place) + why
        reading.skipped.append(place)
        return []

    def unknown(self, text: str, row: Sequence[int]) -> str | None:
        """Return the reason why the model cannot read a row of ids: the first id that it has no row for, of a token
        that was added to the tokenizer alone, or one that it gives no position. None if it can."""
        rows, unplaced = self.readable
        if unplaced is not None and unplaced in row:
            return (
                f", {shortened(text)}, has the token {self.tokenizer.id_to_token(unplaced)!r:.40}, id {unplaced}, "
                "which the model pads with and gives no position (pad_token_id): leave it out"
            )
        if rows is None or max(row, default=0) < rows:
            return None
        beyond = next(token_id for token_id in row if token_id >= rows)
        token = self.tokenizer.id_to_token(beyond)
        return (
            f", {shortened(text)}, has the token {token!r:.40} of tokenizer.json, id {beyond}, and the model has "
            f"rows for {rows} (vocab_size): leave it out, or take the model's own tokenizer"
        )

    def cut(self, text: str, most: int) -> list[int]:
        """Return the first tokens of a text, and all special ones, `most` in all."""
        first = self.tokenizer.encode(text, add_special_tokens=False)
        first.truncate(most - self.special)
        ids: list[int] = self.tokenizer.post_process(first).ids
        return ids

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, with padding and truncation switched off."""
        self.tokenizer.save(str(path))


def read_tokenizer(meta: Mapping[str, Any], ahead: ParsedAhead | None = None) -> Tokenizer:
    """Return the tokenizer whose text is in a program's meta. Raises InputError if there is none, or the text is no
    tokenizer."""
    if not (text := meta.get("tokenizer")):
        raise InputError("this program has no tokenizer: run it on token ids, or save it with tokenizer.json")
    config = meta.get("config", {})
    return Tokenizer.from_text(
        text,
        "tokenizer.json of this program",
        config.get("max_position_embeddings"),
        Pooling.parsed(meta.get("pooling"), "meta: pooling"),
        ahead,
        ReadableIds(whole_number(config.get("vocab_size")), whole_number(meta.get("unplaced"))),
    )


def whole_number(said: object) -> int | None:
    """Return a number that is whole; None for anything else."""
    return said if type(said) is int else None


def sentences() -> list[str]:
    """Return the 128 short sentences that come with the package."""
    from importlib.resources import files

    return (files("opmatrix") / "sentences.txt").read_text("utf-8").splitlines()


Line = TypeVar("Line")


class Parts(NamedTuple, Generic[Line]):
    """Lines, or other forms of texts, in three disjoint parts: methods are `fit` to the first, programs `choose`n by
    the second, errors `state`d of the third. A text that a file has twice may be in two of them, as it may occur
    again."""

    fit: Sequence[Line]
    choose: Sequence[Line]
    state: Sequence[Line]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> "Parts[Line]":
        """Split lines. Counted from 0, the odd lines state; of the even ones every other fits. Fewer than LINES lines
        leave a part empty."""
        return cls(lines[0::4], lines[2::4], lines[1::2])


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file that are not blank. Raises InputError if it is missing, is not UTF-8, or has
    fewer lines than one for each part."""
    try:
        lines = [line.strip() for line in read_bytes(path).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    if len(lines := [line for line in lines if line]) < LINES:
        raise InputError(
            f"{path}: too few lines with text ({len(lines)}): give {LINES} or more: to fit, to choose, to "
            "state an error"
        )
    return lines


def fault(text: object) -> str | None:
    """Return the reason why this is no text, as the end of a sentence; None for a text. Invalid Unicode may come from a
    file or an argument, where stray bytes become surrogates (PEP 383)."""
    if not isinstance(text, str):
        return f" is {text!r}, no string: give strings"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if not "\udc80" <= text[error.start] <= "\udcff":
            return f", {shortened(text)}, is no valid Unicode: mend it"
        return f", byte {len(text[: error.start].encode())} is not UTF-8: save it as UTF-8"
    return None


def shortened(text: str) -> str:
    """Quote a text for an error line, cut after 39 letters."""
    return repr(text if len(text) <= 40 else text[:39] + "…")
