"""The chat templates of a model, by their names, and their texts, rendered in a process of their own within limits."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from formats.core.errors import InputError
from formats.disk.own_python import child_of_module
from opmatrix.inference.text import fault

PROCESS = "opmatrix.inference.chat.template_process"
DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates


class RenderLimits(NamedTuple):
    """The limits of a rendering: seconds, letters of the text, bytes of memory."""

    seconds: int = 10
    letters: int = 1 << 23
    bytes: int = 1 << 30


LIMITS = RenderLimits()


class ChatTemplates(NamedTuple):
    """Templates by name, and the special tokens that they write by names such as `bos_token`. `where` names their file
    in errors."""

    texts: Mapping[str, str]
    tokens: Mapping[str, str]
    where: str

    @classmethod
    def parsed(cls, entry: object, where: str) -> "ChatTemplates":
        """Return the templates that a program's meta describes. Raises InputError if there are none, or the entry is
        none that opmatrix writes."""
        if entry is None:
            raise InputError(
                f"chat: {where} has no chat template: take a model that was trained for chats, or continue a text "
                "(opmatrix generate)"
            )
        match entry:
            case {"templates": dict(texts), "tokens": dict(tokens)} if are_texts(texts) and are_texts(tokens):
                return cls(texts, tokens, where)
        raise InputError(f"{where}: chat: {entry!r:.60} is no record of templates: create the program again")

    def described(self) -> dict[str, object]:
        """Return the templates as JSON."""
        return {"templates": {**self.texts}, "tokens": {**self.tokens}}

    def choose(self, name: str | None, tools: bool) -> str:
        """Return the text of a template: the one of this name, else that for tools where there are some, else the
        default one. Raises InputError, which lists the names, if there is none."""
        if name is None:
            name = TOOL_USE if tools and TOOL_USE in self.texts else DEFAULT
        if name in self.texts:
            return self.texts[name]
        raise InputError(f"chat: {self.where} has no template {name!r:.60}: there are {', '.join(sorted(self.texts))}")

    def render(self, template: str, variables: dict[str, object], added: Sequence[tuple[str, bool]] | None) -> str:
        """Return the text of a template, in a process of its own. `variables`: messages, tools and the like, as JSON;
        `added`: tokens to be marked in them, each with whether it is special (see control_marks), None to mark none.
        Raises InputError for a template that raises, and for one beyond the limits."""
        if find_spec("jinja2") is None:
            raise InputError("chat: templates need jinja2: pip install opmatrix[chat]")
        limits = LIMITS
        request = {
            "template": template,
            "messages": variables["messages"],
            "variables": variables,
            "tokens": dict(self.tokens),
            "added": added,
            **limits._asdict(),
        }
        answer = answered(json.dumps(request), limits, self.where)
        if "error" in answer:
            raise InputError(f"{self.where}: chat template: {answer['error']}")
        text = str(answer["text"])
        if why := fault(text):
            raise InputError(f"chat: the rendered text{why}")
        return text


def are_texts(entries: Mapping[object, object]) -> bool:
    """True if all entries and their names are texts."""
    return all(isinstance(text, str) for text in (*entries, *entries.values()))


def answered(request: str, limits: RenderLimits, where: str) -> dict[str, object]:
    """Return the answer of a process to a request. Raises InputError if it takes too long, or ends without one."""
    child = child_of_module(PROCESS)
    with subprocess.Popen(
        child.command,
        env=child.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            out, _ = process.communicate(request, limits.seconds)
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"{where}: chat template: it has no end within {limits.seconds} s: take another"
            ) from error
        finally:
            process.kill()
    try:
        answer: dict[str, object] = json.loads(out)
    except ValueError as error:
        raise InputError(
            f"{where}: chat template: its process ended with status {process.returncode} and no text: it needs more "
            f"than {limits.seconds} s or {limits.bytes >> 20} MB: take another"
        ) from error
    return answer
