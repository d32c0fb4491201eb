"""The one error for what comes from outside: a file, a tensor, an option."""
from formats.errors import InputError

__all__ = ["InputError"]
