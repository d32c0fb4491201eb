"""Limits of a server: how much a request may ask for, how long it may take, how many may wait."""

from dataclasses import dataclass

from formats.core.errors import InputError
from opmatrix.inference.embed import BATCH_ROWS


@dataclass(frozen=True)
class ServingLimits:
    """The limits of each process of a server. Raises InputError for limits that would refuse every request."""

    body: int = 16 << 20  # bytes of a request
    items: int = 2048  # texts or documents of a request
    tokens: int = 8192  # tokens of a text, special ones included, where the model takes as many
    truncate: bool | None = None  # a longer text is truncated; None: if the checkpoint declares a maximum length
    queue: int = 8192  # texts that wait, or are computed
    requests: int = 512  # requests that are read, wait, or are computed
    rows: int = BATCH_ROWS  # tokens of a batch, about
    wait: float = 0.003  # seconds that a busy server waits for requests to join a batch
    seconds: float = 60.0  # seconds until a request is refused: to be read, and then to be answered, or to go on
    context: int = 8192  # rows of keys and values that the replies of a language model have together

    def __post_init__(self) -> None:
        for name in ("body", "items", "tokens", "queue", "requests", "rows", "seconds", "context"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}: give a number above 0")
        if not 0 <= self.wait < self.seconds:
            raise InputError(f"wait {1e3 * self.wait:g} ms: give 0 or more, and less than {self.seconds:g} seconds")
        if self.queue < self.items:
            raise InputError(f"queue {self.queue}: a request of {self.items} texts would never fit: give as many")
