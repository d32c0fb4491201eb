"""A fast path of `generate` for saved programs, without the library that parses command lines: to import it, with its
checks of values, takes a quarter of the time to the first token. All command lines that are not plainly right here are
left to that library, help and errors among them. A test compares these options with the library's."""

import re
from collections.abc import Callable, Mapping, Sequence
from os.path import exists
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

COMMAND, SAVED_AS, TOKENIZER = "generate", "program.json", "tokenizer.json"
ALL_DIGITS, DECIMAL = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


class Options(TypedDict, total=False):
    """The options of `write_reply` besides a model and a prompt."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    cache: str
    schema: Path
    grammar: Path
    results: Path
    own: Path
    quiet: bool


class PlainLine(NamedTuple):
    """A directory, a prompt, and options."""

    model: str
    prompt: str
    options: Options


def read_whole(word: str) -> int:
    """Read a whole number of digits alone."""
    return int(take_fitting(ALL_DIGITS, word))


def read_number(word: str) -> float:
    """Read a decimal number."""
    return float(take_fitting(DECIMAL, word))


def take_fitting(kind: re.Pattern[str], word: str) -> str:
    """Return the word if it matches a pattern; else raise ValueError."""
    if kind.fullmatch(word):
        return word
    raise ValueError(word)


VALUED: Mapping[str, tuple[str, Callable[[str], object]]] = {  # options with a value
    "--max-tokens": ("max_tokens", read_whole),
    "--temperature": ("temperature", read_number),
    "--top-k": ("top_k", read_whole),
    "--top-p": ("top_p", read_number),
    "--seed": ("seed", read_whole),
    "--cache": ("cache", str),
    "--json-schema": ("schema", Path),
    "--grammar": ("grammar", Path),
    "--json": ("results", Path),
    "--laws": ("own", Path),
}
SWITCHES = {"--quiet": "quiet", "-q": "quiet"}


def read_plainly(arguments: Sequence[str]) -> PlainLine | None:
    """Parse a `generate` command for a saved program; None if the line is not plain, or for another command."""
    if arguments[:1] != [COMMAND]:
        return None
    words, options, left = list[str](), dict[str, object](), [*reversed(arguments[1:])]
    while left:
        word = left.pop()
        if word in SWITCHES:
            options[SWITCHES[word]] = True
        elif not word.startswith("-"):
            words.append(word)
        elif word not in VALUED or not left or left[-1].startswith("-"):
            return None
        else:
            name, read = VALUED[word]
            try:
                options[name] = read(left.pop())
            except ValueError:
                return None
    if len(words) != 2 or not exists(Path(words[0]) / SAVED_AS):
        return None
    return PlainLine(words[0], words[1], cast(Options, options))
