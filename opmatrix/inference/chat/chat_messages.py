"""Messages of a chat, checked: JSON, each with a role."""

import json
from collections.abc import Mapping, Sequence

from formats.core.errors import InputError

ONE_MESSAGE = '[{"role": "user", "content": "text"}]'


def check_messages(messages: object) -> list[dict[str, object]]:
    """Return messages as JSON has them; entries that are None are left out, as templates take them for text. Raises
    InputError for none, for one without a role, and for one that is no JSON."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InputError(f"chat: messages are {messages!r:.40}, {type(messages).__name__}: give {ONE_MESSAGE}")
    if not messages:
        raise InputError(f"chat: no message: give one at least, {ONE_MESSAGE}")
    return [check_message(message, place) for place, message in enumerate(messages)]


def check_message(message: object, place: int) -> dict[str, object]:
    """Return a message. Raises as `check_messages`."""
    if not isinstance(message, Mapping):
        raise InputError(f"chat: message {place}: {message!r:.40} is {type(message).__name__}: give {ONE_MESSAGE}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InputError(f"chat: message {place} has the role {role!r:.40}: name one: system, user, assistant or tool")
    return as_json({name: entry for name, entry in message.items() if entry is not None}, f"message {place}")


def check_objects(objects: object, name: str) -> list[dict[str, object]] | None:
    """Return tools or documents, a list of JSON objects; None for None. Raises InputError for anything else."""
    if objects is None:
        return None
    listed = objects if isinstance(objects, Sequence) and not isinstance(objects, str | bytes) else [objects]
    checked = [as_json(entry, name) for entry in listed if isinstance(entry, Mapping)]
    if len(checked) != len(listed):
        raise InputError(f"chat: {name} are {objects!r:.40}: give a list of JSON objects")
    return checked


def as_json(entries: Mapping[str, object], name: str) -> dict[str, object]:
    """Return an object as JSON has it. Raises InputError for one that JSON has no form for."""
    try:
        stored: dict[str, object] = json.loads(json.dumps({**entries}, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"chat: {name}: {entries!r:.40} is no JSON ({error!s:.80}): give text and lists") from error
    return stored
