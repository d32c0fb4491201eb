"""Chat templates in Jinja's language, rendered as transformers renders them (`render_jinja_template` of version 5).
This module is the program of a process that can be ended: a request comes as JSON on the standard input, and a
text, or the reason why there is none, goes to the standard output. Only that process imports jinja2."""

import json
import re
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias, TypedDict

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from opmatrix.inference.chat.control_marks import mark_controls

REASONING = "reasoning_content", "thinking", "reasoning"  # the names under which messages give reasoning
MOST_ERROR = 300  # letters of an error text
Pairs: TypeAlias = Iterable[tuple[object, object]]


class RenderRequest(TypedDict):
    """A template, the variables that it sees, and limits. `tokens`: the special ones by their names; `added`: tokens
    that are marked in the variables, each with whether it is special, None to mark none."""

    template: str
    messages: list[dict[str, object]]
    variables: dict[str, object]
    tokens: dict[str, str]
    added: list[tuple[str, bool]] | None
    seconds: int
    letters: int
    bytes: int


class RefusedMessages(TemplateError):
    """Messages that the template itself refuses, by `raise_exception`."""


class GenerationTag(Extension):
    """The tag `generation` around what a model says: it writes its block, which has a scope of its own."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse a block up to `endgeneration`."""
        line = next(parser.stream).lineno
        block = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("write_block"), [], [], block).set_lineno(line)

    def write_block(self, caller: Callable[[], str]) -> str:
        """Return the text of the block."""
        return caller()


class PlainNamespace(Namespace):
    """The `namespace` of templates, without attributes that begin with an underscore."""

    def __init__(self, /, *args: Pairs, **entries: object) -> None:  # an entry may be called self
        held = PlainDictionary()(*args, **entries)
        for name in held:
            refuse_hidden(name)
        Namespace.__init__(self, held)

    def __setitem__(self, name: str, value: object) -> None:
        refuse_hidden(name)
        Namespace.__setitem__(self, name, value)


class PlainDictionary:
    """The `dict` of templates: a call, and `fromkeys`, without the attributes of the type."""

    def __call__(self, /, *args: Pairs, **entries: object) -> dict[object, object]:
        made = dict[object, object]()
        for pairs in args:
            made.update(pairs)
        return made | entries

    def fromkeys(self, keys: Iterable[object], value: object = None) -> dict[object, object]:
        """Return a dictionary of these keys with one value."""
        return dict.fromkeys(keys, value)


def refuse_hidden(name: object) -> None:
    """Raise SecurityError for a name that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def raise_refusal(message: object) -> None:
    """Raise RefusedMessages: `raise_exception` of templates."""
    raise RefusedMessages(str(message))


def plain_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is, without Jinja's escapes for HTML: the filter `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def template_environment() -> ImmutableSandboxedEnvironment:
    """Return the environment of templates: nothing outside of the request can be read or changed."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = plain_json
    made.globals |= {
        "raise_exception": raise_refusal,
        "strftime_now": lambda layout: datetime.now().strftime(layout),
        "dict": PlainDictionary(),
        "namespace": PlainNamespace,
    }
    return made


def with_reasoning(message: Mapping[str, object]) -> dict[str, object]:
    """Return a message whose reasoning, under whatever name, has the names that templates read."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return {**message}
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def literal_text(made: ImmutableSandboxedEnvironment, template: str) -> str:
    """Return the texts that a template spells itself, apart from one another."""
    tree = made.parse(template)
    plain = {node.data for node in tree.find_all(nodes.TemplateData)}
    quoted = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return "\0".join(plain | quoted)


def find_controls(added: Iterable[tuple[str, bool]], literals: str) -> list[str]:
    """Return the added tokens that control: the special ones, and those that a template spells, but no white space."""
    return [token for token, special in added if special or (token in literals and not token.isspace())]


def render_request(request: RenderRequest) -> str:
    """Return the text of a request. Raises whatever a template raises, and RefusedMessages for a longer text."""
    made, variables, messages = template_environment(), request["variables"], request["messages"]
    if request["added"] is not None:
        controls = find_controls(request["added"], literal_text(made, request["template"]))
        variables, messages = mark_controls(variables, controls), mark_controls(messages, controls)
    messages = [with_reasoning(message) for message in messages]
    pieces, letters = list[str](), 0
    seen = request["tokens"] | variables | {"messages": messages}
    for piece in made.from_string(request["template"]).generate(seen):
        pieces.append(piece)
        if (letters := letters + len(piece)) > request["letters"]:
            raise RefusedMessages(f"its text is longer than {request['letters']:,} letters")
    return "".join(pieces)


def one_line(error: Exception) -> str:
    """Return an error of a template as one line."""
    if isinstance(error, RefusedMessages):
        words = str(error)
    elif isinstance(error, TemplateSyntaxError):
        words = f"line {error.lineno}: {error.message}"
    else:
        words = f"{type(error).__name__}: {error}"
    return re.sub(r"\s+", " ", words).strip()[:MOST_ERROR]


def answer_request() -> None:
    """Answer one request, within its limits of memory and of seconds on a processor."""
    request: RenderRequest = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (request["bytes"], request["bytes"]))
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 1))
    try:
        answer = {"text": render_request(request)}
    except Exception as error:
        answer = {"error": one_line(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    answer_request()
