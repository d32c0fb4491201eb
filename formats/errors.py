"""The one error for what comes from outside: a file, a tensor, an option."""


class InputError(ValueError):
    """Bad input: one line that names the file, tensor or option, its value, and what to do. The command line prints it
    and exits with status 2."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))
