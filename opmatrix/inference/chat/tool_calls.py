"""Calls of tools in the text of a reply, by the form that its chat template teaches: Hermes and Qwen (JSON in tags),
Qwen3-Coder (marked parameters in tags), Mistral (a list behind a control token, or a name and its arguments behind one
each), and Llama 3 (a reply that is JSON alone)."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeAlias

from opmatrix.inference.chat.chat_templates import ChatTemplates

TAG, TAG_END, LISTED, BARE = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"  # behind the name of a call, each a control token
PARAMETER = "<parameter="
SEPARATOR = ";"  # between calls of Llama 3


class ToolCall(NamedTuple):
    """A call: the name of a function, and its arguments as JSON."""

    name: str
    arguments: str


ReplyPart: TypeAlias = str | ToolCall
ToolSchemas: TypeAlias = Mapping[str, Mapping[str, object]]  # by the name of a function, the schema of each parameter
ReadCalls = Callable[[str, ToolSchemas], object]


class CallForm(NamedTuple):
    """The form of calls in a reply: the texts that may begin them, `anywhere` or as the first text of a reply; the text
    that ends them, empty for the end of the reply; and the function that reads what stands there as JSON. `signs`:
    texts of templates that teach it; `inner`: control tokens within calls."""

    signs: tuple[str, ...]
    opens: tuple[str, ...]
    anywhere: bool
    closes: str
    read: ReadCalls
    inner: tuple[str, ...] = ()

    @property
    def marks(self) -> frozenset[str]:
        """The texts around and within calls that some vocabularies have as control tokens."""
        return frozenset({*self.opens, *self.inner, self.closes})

    def find(self, text: str, begun: bool) -> int | None:
        """Return the place in a text where calls begin; None without any. `begun`: other text stands before it."""
        if self.anywhere:
            places = [at for opening in self.opens if (at := text.find(opening)) >= 0]
            return min(places, default=None)
        stripped = text.lstrip()
        return len(text) - len(stripped) if not begun and stripped.startswith(self.opens) else None

    def count_settled(self, text: str, begun: bool) -> int:
        """Return the letters of a text in which no calls begin, whatever follows: all but spaces and part of a
        beginning at its end."""
        if begun and not self.anywhere:
            return len(text)
        longest = max(map(len, self.opens)) - 1
        ends = (text[-length:] for length in range(longest, 0, -1))
        part = next((end for end in ends if any(opening.startswith(end) for opening in self.opens)), "")
        settled = len(text.removesuffix(part).rstrip())
        return settled if self.anywhere or not settled else len(text)


def read_tagged(text: str, tools: ToolSchemas) -> object:
    """Return the JSON within tags. Raises ValueError for no JSON."""
    return parse(text.removeprefix(TAG).removesuffix(TAG_END))


def read_listed(text: str, tools: ToolSchemas) -> object:
    """Return the JSON behind a control token. Raises ValueError for no JSON."""
    return parse(text.removeprefix(LISTED))


def read_bare(text: str, tools: ToolSchemas) -> object:
    """Return the JSON objects of a reply, one after another. Raises ValueError for other text."""
    rest, objects = text.strip().removeprefix(BARE).strip(), list[object]()
    while rest:
        read, end = DECODER.raw_decode(rest)
        objects.append(read)
        rest = rest[end:].lstrip().removeprefix(SEPARATOR).lstrip()
    return objects


FUNCTION_BEGINS = re.compile(r"<function=([^<>\n]+)>")
FUNCTION_ENDS = re.compile(r"\s*</function>\s*")
# a value ends where another parameter or the end of the function follows: texts of programs may hold such tags
MARKED_VALUE = re.compile(rf"\s*{PARAMETER}([^<>\n]+)>(.*?)</parameter>(?=\s*(?:{PARAMETER}|</function>))", re.DOTALL)
NAMED_ARGUMENTS = re.compile(rf"\s*{re.escape(LISTED)}([^\[\]\s]+)(?:{re.escape(CALL_ID)}\w+)?{re.escape(ARGS)}\s*")


def read_marked(text: str, tools: ToolSchemas) -> object:
    """Return the calls within tags, each a function with its parameters one by one, as Qwen3-Coder writes them. Raises
    ValueError for other text."""
    rest, calls = text.removeprefix(TAG).removesuffix(TAG_END).strip(), list[object]()
    while rest:
        begins = FUNCTION_BEGINS.match(rest)
        if begins is None:
            raise ValueError("a function must begin here")
        name, at, arguments = begins[1], begins.end(), dict[str, object]()
        while marked := MARKED_VALUE.match(rest, at):
            parameter, value = marked.groups()
            arguments[parameter] = parameter_value(value, tools.get(name, {}).get(parameter))
            at = marked.end()
        ends = FUNCTION_ENDS.match(rest, at)
        if ends is None:
            raise ValueError("the function must end here")
        calls.append({"name": name, "arguments": arguments})
        rest = rest[ends.end() :]
    return calls


def parameter_value(text: str, schema: object) -> object:
    """Return the value that the text of a parameter stands for: the text without the line ends around it where its
    schema allows texts or names no type; JSON otherwise, and the text where it is none, as Qwen's own reader does."""
    text = text.removeprefix("\n").removesuffix("\n")
    types = types_of(schema)
    if not types or "string" in types:
        return text
    if types == {"boolean"}:
        text = text.lower()  # some templates write them as Python does
    try:
        return parse(text)
    except (ValueError, RecursionError):
        return text


def types_of(schema: object) -> set[str]:
    """Return the JSON types that a schema names, by itself or by a choice of several schemas; empty for none."""
    match schema:
        case {"type": str(name)}:
            return {name}
        case {"type": list(names)}:
            return {name for name in names if isinstance(name, str)}
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return {
                choice["type"] for choice in choices if isinstance(choice, dict) and isinstance(choice.get("type"), str)
            }
    return set()


def read_named(text: str, tools: ToolSchemas) -> object:
    """Return calls of which each is a name and its arguments behind control tokens, as Mistral's later models write
    them. Raises ValueError for other text."""
    rest, calls = text.strip(), list[object]()
    while rest:
        begins = NAMED_ARGUMENTS.match(rest)
        if begins is None:
            raise ValueError("a name with arguments must stand here")
        arguments, end = DECODER.raw_decode(rest, begins.end())
        calls.append({"name": begins[1], "arguments": arguments})
        rest = rest[end:].strip()
    return calls


def refuse_constant(word: str) -> NoReturn:
    """Raise ValueError for a number that JSON has no word for."""
    raise ValueError(f"{word} is no JSON")


DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def parse(text: str) -> object:
    """Return the value of a JSON text. Raises ValueError."""
    return json.loads(text, parse_constant=refuse_constant)


CALL_FORMS = (
    CallForm((PARAMETER,), (TAG,), True, TAG_END, read_marked),
    CallForm((ARGS,), (LISTED,), True, "", read_named, (CALL_ID, ARGS)),
    CallForm((TAG,), (TAG,), True, TAG_END, read_tagged),
    CallForm((LISTED,), (LISTED,), True, "", read_listed),
    CallForm((BARE, "Environment: ipython"), (BARE, "{"), False, "", read_bare),
)


def find_form(templates: ChatTemplates, name: str | None) -> CallForm | None:
    """Return the first form that the template for tools teaches; None where it teaches none of these."""
    text = templates.choose(name, tools=True)
    return next((form for form in CALL_FORMS if any(sign in text for sign in form.signs)), None)


def schemas_of(tools: Sequence[Mapping[str, object]]) -> ToolSchemas:
    """Return the schemas of the parameters of the functions that tools are, empty where a function tells none."""
    schemas = dict[str, Mapping[str, object]]()
    for tool in tools:
        match tool.get("function", tool):
            case {"name": str(name), "parameters": {"properties": dict(parameters)}}:
                schemas[name] = parameters
            case {"name": str(name)}:
                schemas[name] = {}
    return schemas


def calls_of(read: object, tools: ToolSchemas) -> list[ToolCall] | None:
    """Return the calls that a JSON value, or a list of several, stands for; None unless each is an object with the name
    of one of these tools and arguments that are an object. Raises ValueError for arguments that are no JSON."""
    calls = list[ToolCall]()
    for entry in read if isinstance(read, list) else [read]:
        match entry:
            case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
                if name not in tools:
                    return None
                calls.append(ToolCall(name, json.dumps(arguments, allow_nan=False)))
            case _:
                return None
    return calls or None


class CallReader:
    """A reader of calls in a reply that comes in pieces. Text that is no call of these tools is passed on letter by
    letter, but for spaces beside calls."""

    def __init__(self, form: CallForm, tools: ToolSchemas) -> None:
        self.form, self.tools = form, tools
        self.held = ""  # text in which a call begins, or may begin
        self.begun = False  # some text was passed on
        self.behind_call = False
        self.inside: int | None = None  # the place in `held` where a call begins

    def add(self, piece: str, last: bool = False) -> list[ReplyPart]:
        """Add a piece, which may be the `last`; return the texts and the calls that are whole with it."""
        self.held += piece
        parts = list[ReplyPart]()
        while self.held:
            if self.behind_call:
                self.held = self.held.lstrip()
            if self.inside is None:
                self.inside = self.form.find(self.held, self.begun)
            size = self.count_outside(last) if self.inside is None else self.count_inside(self.inside, last)
            if not size:
                break
            text, self.held = self.held[:size], self.held[size:]
            calls = None if self.inside is None else self.read(text)
            if calls is None:
                calls, self.begun, self.behind_call = [text], True, False
            parts += calls
        return parts

    def count_outside(self, last: bool) -> int:
        """Return the letters of what is held that are text."""
        return len(self.held) if last else self.form.count_settled(self.held, self.begun)

    def count_inside(self, start: int, last: bool) -> int:
        """Return the letters up to the end of calls that begin at a place; 0 as long as they have none."""
        end = self.held.find(self.form.closes, start) if self.form.closes else -1
        if end >= 0:
            return end + len(self.form.closes)
        return len(self.held) if last else 0

    def read(self, text: str) -> list[ReplyPart] | None:
        """Return the calls of a text, which may begin with spaces; None where it is malformed. Whatever follows is
        outside again."""
        start, self.inside = self.inside or 0, None
        before = text[:start].rstrip()
        try:
            calls = calls_of(self.form.read(text[start:], self.tools), self.tools)
        except (ValueError, RecursionError):
            calls = None
        self.behind_call = calls is not None
        if calls is None:
            return None
        return [before, *calls] if before else [*calls]
