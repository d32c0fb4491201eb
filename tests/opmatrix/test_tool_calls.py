"""Calls of tools in replies, in every form, in pieces of any length; what is no call stays text to the letter."""

import json
from types import SimpleNamespace

import pytest

from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.chat.tool_calls import CALL_FORMS, CallReader, ToolCall, find_form, schemas_of
from opmatrix.inference.pieces import Pieces

MARKED, NAMED, TAGGED, LISTED, BARE = CALL_FORMS
TOOLS = {
    "weather": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "hourly": {"type": "boolean"},
        "at": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "code": {"type": ["string", "null"]},
        "more": {},
    },
    "time": {},
}
BERN, NOW = ToolCall("weather", '{"place": "Z\\u00fcrich"}'), ToolCall("time", "{}")
ONE = '{"name": "weather", "arguments": {"place": "Zürich"}}'
TWO = '{"name": "time", "arguments": {}}'


def marked(name, **values):
    """A call as Qwen3-Coder writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def read(form, text, length=None):
    """The text beside calls, and the calls, of a reply in pieces of a length."""
    reader, parts = CallReader(form, TOOLS), []
    for at in range(0, len(text), length or max(1, len(text))):
        parts += reader.add(text[at : at + (length or len(text))])
    parts += reader.add("", last=True)
    texts = [part for part in parts if isinstance(part, str)]
    assert all(texts), "no piece is empty"
    return "".join(texts), [part for part in parts if not isinstance(part, str)]


CALLED = {
    "tags": (TAGGED, f"<tool_call>\n{ONE}\n</tool_call>", "", [BERN]),
    "several, with words": (
        TAGGED,
        f"Let me look. \n<tool_call>{ONE}</tool_call>\n <tool_call>\n{TWO}</tool_call> \n",
        "Let me look.",
        [BERN, NOW],
    ),
    "words behind": (TAGGED, f"<tool_call>{TWO}</tool_call>\n\nThere.", "There.", [NOW]),
    "a call that ends with the reply": (TAGGED, f"x <tool_call>{TWO}", "x", [NOW]),
    "a list": (LISTED, f" [TOOL_CALLS] [{ONE}, {TWO}]", "", [BERN, NOW]),
    "a list behind words": (LISTED, f"Yes: [TOOL_CALLS][{TWO}]\n", "Yes:", [NOW]),
    "an object alone": (BARE, "\n" + ONE.replace("arguments", "parameters"), "", [BERN]),
    "objects behind a token": (BARE, f"<|python_tag|>{ONE}; {TWO}", "", [BERN, NOW]),
    "marked parameters": (MARKED, marked("weather", place="Zürich"), "", [BERN]),
    "marked, with words": (
        MARKED,
        f"Let me look.\n{marked('weather', place='Zürich')}\n{marked('time')}\n",
        "Let me look.",
        [BERN, NOW],
    ),
    "marked in a line": (
        MARKED,
        "<tool_call><function=weather><parameter=place>Zürich</parameter></function><function=time></function></tool_call>",
        "",
        [BERN, NOW],
    ),
    "names with arguments": (
        NAMED,
        '[TOOL_CALLS]weather[ARGS]{"place": "Zürich"}[TOOL_CALLS]time[ARGS]{}',
        "",
        [BERN, NOW],
    ),
    "names with numbers of calls": (NAMED, "Yes:\n[TOOL_CALLS]time[CALL_ID]a1b2c3d4e[ARGS] {}\n", "Yes:", [NOW]),
    "one good, one not": (
        TAGGED,
        f"<tool_call>{TWO}</tool_call> <tool_call>{{}}</tool_call>",
        "<tool_call>{}</tool_call>",
        [NOW],
    ),
}


@pytest.mark.parametrize("case", CALLED)
def test_calls_are_read_in_pieces_of_any_length(case):
    form, text, beside, calls = CALLED[case]
    for length in (None, 1, 2, 3, 7, 11):
        assert read(form, text, length) == (beside, calls)
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


DEEP = '{"name": "time", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
MALFORMED = [
    "",
    "  \n",
    "a < b, and so on <tool_cal",
    "<tool_call>\n{'name': 'time'}\n</tool_call>",
    f"x <tool_call>{ONE[:-1]}",
    f"x  <tool_call>{ONE} and more</tool_call>  y",
    "<tool_call>{}</tool_call>",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "time", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "time", "arguments": {"x": NaN}}</tool_call>',
    '<tool_call>{"name": "time", "arguments": {"x": 1e999}}</tool_call>',
    "<tool_call>[]</tool_call>",
    f"<tool_call>{DEEP}</tool_call>",
    f"[TOOL_CALLS] [{ONE}, 3]",
    f"[TOOL_CALLS] [{ONE}] and",
    "[TOOL_CALLS]",
    "[TOOL [TOOL_CALL",
    "[TOOL_CALLS]unknown[ARGS]{}",
    "[TOOL_CALLS]time[ARGS]",
    "[TOOL_CALLS]time[ARGS]{} and",
    "[TOOL_CALLS]time[ARGS][]",
    "[TOOL_CALLS]time[CALL_ID][ARGS]{}",
    f"[TOOL_CALLS]time[ARGS]{'[' * 100_000}",
    marked("unknown"),
    "<tool_call>\n<function=time>\n</tool_call>",
    "<tool_call>\n<function=time>\nnow\n</function>\n</tool_call>",
    "<tool_call>\n<function=time>\n<parameter=a>\n1\n</function>\n</tool_call>",
    "<tool_call>\n<function=time>\n</function> and\n</tool_call>",
    "{",
    '{"name": "Bern", "population": 5}',
    f"{ONE} is a call",
    f"Then {ONE}",
    "<|python",
    "<|python_tag|>print(1)",
]


@pytest.mark.parametrize("form", CALL_FORMS, ids=lambda form: form.signs[0])
def test_what_is_no_call_stays_text(form):
    """Malformed calls, those of tools that were not offered, and those of other forms."""
    for text in MALFORMED:
        for length in (None, 1, 5) if len(text) < 1000 else (None,):
            assert read(form, text, length) == (text, []), text[:60]


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("place", "12", "12"),
        ("place", "\n two lines\n\n", "\n two lines\n\n"),
        ("place", "null", "null"),
        ("days", "12", 12),
        ("days", "[1, 2]", [1, 2]),
        ("days", "some", "some"),
        ("days", "NaN", "NaN"),
        ("days", "[" * 100_000, "[" * 100_000),
        ("hourly", "True", True),
        ("hourly", "false", False),
        ("at", "null", None),
        ("at", "1.5", 1.5),
        ("code", "3", "3"),
        ("code", "a <parameter=b> </parameter> and </function>", "a <parameter=b> </parameter> and </function>"),
        ("more", "3", "3"),
        ("other", "{}", "{}"),
    ],
)
def test_marked_values_are_of_the_types_of_their_schemas(name, text, value):
    """Texts stay to the letter but for a line's end around them, as do values without a type, and what is no JSON."""
    (call,) = read(MARKED, marked("weather", **{name: text}))[1]
    assert json.loads(call.arguments) == {name: value}


def test_text_is_passed_on_at_once():
    """Only what may begin a call is held back."""
    assert CallReader(TAGGED, TOOLS).add("so a <b") == ["so a <b"]
    assert CallReader(TAGGED, TOOLS).add("so a <tool") == ["so a"]
    assert CallReader(BARE, TOOLS).add("so {") == ["so {"]


@pytest.mark.parametrize(
    "template, form",
    [
        ("return a json object within <tool_call></tool_call> tags", TAGGED),
        ("{{ '[TOOL_CALLS] ' + calls }}", LISTED),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", NAMED),
        ("<tool_call>\n<function=example>\n<parameter=one>", MARKED),
        ("{{ 'Environment: ipython' }}", BARE),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_form(template, form):
    """That for tools, where there are two."""
    other = "{{ '[TOOL_CALLS]' }}<tool_call>"
    assert find_form(ChatTemplates({"default": template}, {}, "it"), None) is form
    assert find_form(ChatTemplates({"default": other, "tool_use": template}, {}, "it"), None) is form


def test_schemas_are_those_of_functions():
    place = {"place": {"type": "string"}}
    tools = [
        {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": place}}},
        {"name": "b", "parameters": {"properties": [3]}},
        {"function": 3},
        {"name": ["c"]},
        {},
    ]
    assert schemas_of(tools) == {"a": place, "b": {}}


def test_special_tokens_of_calls_are_text_where_asked_for():
    tokens = {0: "a", 1: "[TOOL_CALLS]", 2: "[INST]", 3: "[ARGS]"}
    added = {id: SimpleNamespace(content=tokens[id], special=True) for id in (1, 2, 3)}
    tokenizer = SimpleNamespace(
        get_added_tokens_decoder=lambda: added,
        decode=lambda ids, skip_special_tokens: "".join(tokens[each] for each in ids if each not in added),
    )
    shown = ((), "aaa"), (LISTED.marks, "a[TOOL_CALLS]aa"), (NAMED.marks, "a[TOOL_CALLS]a[ARGS]a")
    for texts, wanted in shown:
        pieces = Pieces(tokenizer, [0])
        pieces.show(texts)
        assert "".join(map(pieces.add, [0, 1, 2, 0, 3, 0])) + pieces.rest() == wanted
