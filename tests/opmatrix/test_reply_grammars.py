"""Replies that keep to a JSON schema or to rules: every text that ends is of the grammar."""

import json

import numpy as np
import pytest
from speakers import gpt2, llama

from formats.core.errors import InputError
from opmatrix.inference.chat import reply_grammars

pytest.importorskip("llguidance", reason="needs peers: llguidance")
NUMBER = {"type": "integer", "minimum": 0, "maximum": 150}
SCHEMAS = [
    ({"type": "object", "properties": {"age": NUMBER}, "required": ["age"], "additionalProperties": False}, dict),
    ({"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 4}, list),
    ({"enum": ["England", "France"]}, str),
    ({"const": None}, type(None)),
    ({"type": "string", "pattern": "^[a-z]{1,3}$"}, str),
    ({}, (dict, list, str, int, float, bool, type(None))),
]


def right(text, schema, kind):
    """True for JSON of a kind that SCHEMAS have, judged without the library."""
    entry = json.loads(text)
    numbers = [*entry.values()] if isinstance(entry, dict) else entry if isinstance(entry, list) else []
    within = not schema or all(type(number) is int and 0 <= number <= 150 for number in numbers)
    choices = schema.get("enum", [entry])
    return isinstance(entry, kind) and within and entry in choices


@pytest.mark.parametrize("schema, kind", SCHEMAS, ids=[json.dumps(schema)[:30] for schema, _ in SCHEMAS])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_replies_are_json_of_the_schema(schema, kind, temperature):
    prompts = ["The history of ", "In", "and the"]
    replies = gpt2().program.generate(prompts, max_tokens=60, temperature=temperature, seed=5, grammar=schema)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.ended in ("end", "limit") and (reply.ended == "limit" or right(reply.text, schema, kind))
        if not temperature:
            (alone,) = gpt2().program.generate([prompt], max_tokens=60, grammar=schema)
            assert alone.ids == reply.ids
    assert not schema or all(reply.ended == "end" for reply in replies)


def test_the_likeliest_of_the_tokens_that_are_allowed():
    """Tokens are bytes: the first is the better of the two that begin an answer, and the answer's end ends the text."""
    (reply,) = gpt2().program.generate("The history of ", max_tokens=9, grammar='start: "yes" | "no"')
    scores = gpt2().scores(list(b"The history of "))[-1]
    wanted = max(("yes", "no"), key=lambda answer: scores[ord(answer[0])])
    assert (reply.text, reply.ended) == (wanted, "end") and reply.ids == list(wanted.encode())


def test_a_grammar_of_all_texts_changes_nothing():
    (plain,) = gpt2().program.generate("The history of ", max_tokens=30)
    (free,) = gpt2().program.generate("The history of ", max_tokens=30, grammar=r"start: /(.|\n)*/")
    assert (free.ids, free.text, free.ended) == (plain.ids, plain.text, plain.ended)


def test_a_grammar_without_an_end_is_cut_at_the_limit():
    (reply,) = gpt2().program.generate("In ", max_tokens=7, grammar='start: ("a" | "b") start')
    assert set(reply.text) <= {*"ab"} and (len(reply.text), reply.ended) == (7, "limit")
    with pytest.raises(InputError, match="grammar: parser error: Too many items"):  # it can be written in one way alone
        gpt2().program.generate("In ", max_tokens=7, grammar='start: "a" start')


def test_a_token_that_ends_texts_ends_what_is_whole():
    """Of `a` once or more, the text ends where the end's score is the better one, and not before the first."""
    program = gpt2().program.replace(ends=[ord("z")])
    (reply,) = program.generate("In ", max_tokens=7, temperature=50.0, seed=3, grammar='start: "a"+')
    assert set(reply.text.removesuffix("z")) == {"a"} and reply.ended in ("end", "limit")
    (all_ends,) = program.generate("In ", max_tokens=7, temperature=50.0, seed=3, grammar=r"start: /z/")
    assert all_ends.ended == "end"


def test_sessions_and_streams_keep_to_it_too():
    program = gpt2().program
    (reply,) = program.generate("In ", max_tokens=20, grammar={"enum": ["England", "France"]})
    assert "".join(program.stream_text("In ", max_tokens=20, grammar={"enum": ["England", "France"]})) == reply.text
    session = program.decoder.start(128)
    sequence = session.join()
    (held,) = session.generate({sequence: "In "}, max_tokens=20, grammar={"enum": ["England", "France"]})
    assert held.text == reply.text
    (stopped,) = session.generate({session.join(): "In "}, max_tokens=20, stop=[reply.text[1:3]])
    assert reply.text[1:3] not in stopped.text


@pytest.mark.parametrize(
    "grammar, said",
    [
        (7, "grammar: 7 is int: give a JSON schema"),
        ({"type": "nothing"}, "Invalid type: nothing"),
        ({"enum": []}, "Unsatisfiable schema"),
        ({"not": {}}, "not"),
        ({"a": float("nan")}, "grammar"),
        ({"a": {1, 2}}, "is no JSON"),
        ({"$ref": "http://example.com/x.json"}, "does not fetch"),
        ({"type": "string", "pattern": "(a+"}, "unclosed group"),
        ({"enum": ["\ud800"]}, "serializable"),
        ('start: "\ud800"', "surrogates"),
        ("", "Empty grammar"),
        ("start: word", 'unknown name: "word"'),
        ("start: " + "(" * 5000, "too deeply nested"),
        ('start: "' + "a" * (1 << 20) + '"', "letters: give"),
    ],
)
def test_a_wrong_grammar_is_one_line_before_any_token(grammar, said):
    with pytest.raises(InputError) as error:
        gpt2().program.stream_text("In ", grammar=grammar)
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 260


def test_a_program_without_a_tokenizer_has_no_texts():
    with pytest.raises(InputError, match="grammar: this program has no tokenizer"):
        llama().program.generate([[3, 4]], grammar={})


def test_a_grammar_that_no_token_continues():
    """A model of fewer scores than its tokenizer has tokens may have none for a letter."""
    (grammar, program) = (reply_grammars.ReplyGrammar.of('start: "z"'), gpt2().program)
    with pytest.raises(InputError, match="no token of the model's vocabulary"):
        grammar.allowed(np.zeros(60, np.float32), program, frozenset())


def test_without_the_library_one_line_names_the_extra(monkeypatch):
    monkeypatch.setattr(reply_grammars, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install opmatrix\[grammar\]"):
        gpt2().program.generate("In ", grammar={})
