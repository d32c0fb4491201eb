"""The one error for bad input: a file, a tensor, an option."""

from collections.abc import Iterable

MAX_MESSAGE_LETTERS = 800  # letters of a message, which may quote a file


class InputError(ValueError):
    """Bad input: one line that names the file, tensor or option, its value, and the remedy, in printable letters. The
    middle of a long message is left out. The command line prints it and exits with status 2."""

    def __init__(self, message: str):
        words = " ".join(message.splitlines())
        if len(words) > MAX_MESSAGE_LETTERS:
            words = f"{words[: MAX_MESSAGE_LETTERS - 200]} … {words[-197:]}"
        super().__init__(words if words.isprintable() else "".join(map(escape_letter, words)))


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that an unknown one was probably meant to be, as a question for an error line; empty where
    none is near."""
    from difflib import get_close_matches

    return "".join(f"did you mean {near}? " for near in get_close_matches(name, [*known], 1))


def escape_letter(letter: str) -> str:
    r"""Return a printable letter as it is, and any other as its Python escape, such as \x1b."""
    return letter if letter.isprintable() else ascii(letter)[1:-1]
