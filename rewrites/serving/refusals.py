"""Requests that are refused: a status of HTTP, and the error object of OpenAI's API."""

import json
from collections.abc import Mapping
from http import HTTPStatus

INVALID = "invalid_request_error"
RETRY_SECONDS = 1  # seconds after which a client may ask a busy server again
ERROR_TYPES: Mapping[int, str] = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "timeout"}


class Refused(Exception):
    """A request that is not answered: `status` of HTTP, a line for the client, the parameter at fault, and a code that
    programs read."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> bytes:
        """The error object as JSON."""
        error = {
            "message": self.message,
            "type": ERROR_TYPES.get(self.status, INVALID),
            "param": self.param,
            "code": self.code or HTTPStatus(self.status).phrase.lower().replace(" ", "_"),
        }
        return json.dumps({"error": error}).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the reply: when to ask again, and the end of a connection whose body is not read."""
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_SECONDS)}
        return {"connection": "close"} if self.status == 408 else {}


def invalid(message: str, param: str | None = None, code: str | None = None) -> Refused:
    """Return the refusal of a request that cannot be understood."""
    return Refused(400, message, param, code or "invalid_value")
