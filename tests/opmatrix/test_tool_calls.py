"""Calls of tools in replies, in every form, in pieces of any length; what is no call stays text to the letter."""

import json
from types import SimpleNamespace

import pytest

from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.chat.tool_calls import CALL_FORMS, CallReader, ToolCall, find_form, names_of
from opmatrix.inference.pieces import Pieces

TAGGED, LISTED, BARE = CALL_FORMS
NAMES = frozenset({"weather", "time"})
BERN, NOW = ToolCall("weather", '{"place": "Z\\u00fcrich"}'), ToolCall("time", "{}")
ONE = '{"name": "weather", "arguments": {"place": "Zürich"}}'
TWO = '{"name": "time", "arguments": {}}'


def read(form, text, length=None):
    """The text beside calls, and the calls, of a reply in pieces of a length."""
    reader, parts = CallReader(form, NAMES), []
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
    "{",
    '{"name": "Bern", "population": 5}',
    f"{ONE} is a call",
    f"Then {ONE}",
    "<|python",
    "<|python_tag|>print(1)",
]


@pytest.mark.parametrize("form", CALL_FORMS, ids=lambda form: form.opens[0])
def test_what_is_no_call_stays_text(form):
    """Malformed calls, those of tools that were not offered, and those of other forms."""
    for text in MALFORMED:
        for length in (None, 1, 5) if len(text) < 1000 else (None,):
            assert read(form, text, length) == (text, []), text[:60]


def test_text_is_passed_on_at_once():
    """Only what may begin a call is held back."""
    assert CallReader(TAGGED, NAMES).add("so a <b") == ["so a <b"]
    assert CallReader(TAGGED, NAMES).add("so a <tool") == ["so a"]
    assert CallReader(BARE, NAMES).add("so {") == ["so {"]


@pytest.mark.parametrize(
    "template, form",
    [
        ("return a json object within <tool_call></tool_call> tags", TAGGED),
        ("{{ '[TOOL_CALLS] ' + calls }}", LISTED),
        ("{{ 'Environment: ipython' }}", BARE),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_form(template, form):
    """That for tools, where there are two."""
    other = "{{ '[TOOL_CALLS]' }}<tool_call>"
    assert find_form(ChatTemplates({"default": template}, {}, "it"), None) is form
    assert find_form(ChatTemplates({"default": other, "tool_use": template}, {}, "it"), None) is form


def test_names_are_those_of_functions():
    tools = [{"type": "function", "function": {"name": "a"}}, {"name": "b"}, {"function": 3}, {"name": ["c"]}, {}]
    assert names_of(tools) == {"a", "b"}


def test_special_tokens_of_calls_are_text_where_asked_for():
    tokens = {0: "a", 1: "[TOOL_CALLS]", 2: "[INST]"}
    added = {
        1: SimpleNamespace(content="[TOOL_CALLS]", special=True),
        2: SimpleNamespace(content="[INST]", special=True),
    }
    tokenizer = SimpleNamespace(
        get_added_tokens_decoder=lambda: added,
        decode=lambda ids, skip_special_tokens: "".join(tokens[each] for each in ids if each not in added),
    )
    for texts, wanted in (((), "aaa"), (LISTED.marks, "a[TOOL_CALLS]aa")):
        pieces = Pieces(tokenizer, [0])
        pieces.show(texts)
        assert "".join(map(pieces.add, [0, 1, 2, 0, 0])) + pieces.rest() == wanted
