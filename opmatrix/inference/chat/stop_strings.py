"""Texts that end at a stop string, however many tokens spell it."""

from collections.abc import Sequence

from formats.core.errors import InputError

MOST_STOPS = 64  # stop strings of a reply


class StopStrings:
    """Text piece by piece, up to the first of some strings. The end of a text that may still begin one is kept back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held = tuple(stops), ""

    @classmethod
    def of(cls, stops: str | Sequence[str]) -> "StopStrings | None":
        """Return the check of one string or several; None for none. Raises InputError for what is no text."""
        listed = [stops] if isinstance(stops, str) else [*stops]
        if len(listed) > MOST_STOPS:
            raise InputError(f"stop: {len(listed)} strings: give {MOST_STOPS} at most")
        for stop in listed:
            if not isinstance(stop, str) or not stop:
                raise InputError(f"stop: {stop!r:.40}: give text, one letter or more")
        return cls(listed) if listed else None

    def add(self, piece: str, last: bool) -> tuple[str, bool]:
        """Add a piece; return the text that is sure to come before any stop string, and whether one has ended it. The
        last piece keeps nothing back."""
        text = self.held + piece
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.held = ""
            return text[: min(places)], True
        kept = 0 if last else max(self.begun(text, stop) for stop in self.stops)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def begun(self, text: str, stop: str) -> int:
        """Return how many letters at the end of a text begin a stop string."""
        longest = min(len(text), len(stop) - 1)
        return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
