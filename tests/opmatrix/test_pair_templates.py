"""Templates by which language models read pairs: what is read of Jinja's language, what is refused, and rows of tokens
that are too long."""

import json

import pytest

from formats.core.errors import InputError
from opmatrix.files.directory.pair_templates import parse_template, read_template
from opmatrix.inference.scores.pair_template import PairTemplate, common_end
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.scores.text_pairs import cut_before_end

CONTENT = 'messages | selectattr("role", "eq", "{}") | map(attribute="content") | first'
QUERY, DOCUMENT = CONTENT.format("query"), CONTENT.format("document")
PLAIN = f"Q: {{{{ {QUERY} }}}}\nD: {{{{ {DOCUMENT} }}}}\n"


@pytest.mark.parametrize(
    "text, wanted",
    [
        (PLAIN, "Q: one\nD: two"),
        (f"{{% set q = {QUERY} %}}\n{{{{ q }}}}/{{{{ {DOCUMENT} }}}}/{{{{ q }}}}", "one/two/one"),
        (f"a \n{{%- set q = {QUERY} -%}}\n b {{{{- q -}}}} c {{{{ {DOCUMENT} }}}}", "abonec two"),
        (f"{{# {{{{ x }}}} #}}\n{{{{ {QUERY} }}}} {{{{ '\\n\"' }}}}{{{{ {DOCUMENT} }}}}", 'one \n"two'),
    ],
)
def test_a_template_places_both_texts(text, wanted):
    assert parse_template(text, "here").render("", "one", "two") == wanted


def test_an_instruction_goes_before_the_default_one():
    text = "{{ " + CONTENT.format("system") + ' | default("usual") }}: ' + PLAIN
    template = parse_template(text, "here")
    assert template.render("", "a", "b") == "usual: Q: a\nD: b"
    assert template.render("other", "a", "b") == "other: Q: a\nD: b"


def test_a_text_that_looks_like_a_tag_stays_as_it_is():
    assert parse_template(PLAIN, "here").render("", "{{ x }}", "{% set %}") == "Q: {{ x }}\nD: {% set %}"


UNSUPPORTED = [
    (PLAIN + "{% if tools %}x{% endif %}", "'{% if tools %}'"),
    (PLAIN + "{{ messages[0].content }}", r"'{{ messages\[0\]"),
    (PLAIN + "{{ other }}", "'{{ other }}'"),
    (PLAIN + "{{ " + CONTENT.format("assistant") + " }}", "assistant"),
    (PLAIN + "{{ ''.__class__ }}", "__class__"),
    (PLAIN.replace("document", "query"), "no place for messages of the roles query and document"),
    ("", "no place"),
]


@pytest.mark.parametrize("text, words", UNSUPPORTED)
def test_anything_else_is_refused_and_never_run(text, words):
    with pytest.raises(InputError, match=words) as error:
        parse_template(text, "here")
    assert "\n" not in str(error.value)


def test_the_file_of_a_template_goes_before_the_entry(tmp_path):
    assert read_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "entry " + PLAIN}))
    assert read_template(tmp_path).render("", "a", "b") == "entry Q: a\nD: b"
    (tmp_path / "chat_template.jinja").write_text("file " + PLAIN)
    assert read_template(tmp_path).render("", "a", "b") == "file Q: a\nD: b"


def test_a_scoring_is_its_json():
    for template in (None, parse_template(PLAIN, "here")):
        scoring = Scoring(("yes",), "sigmoid", template=template)
        assert Scoring.parsed(json.loads(json.dumps(scoring.described())), "meta") == scoring
    assert "template" not in Scoring(("yes",)).described()


@pytest.mark.parametrize("value", ["x", [["role", "text"]], [["query"]], [None], [["query", "\ud800"]], {}])
def test_another_value_is_no_template(value):
    with pytest.raises(InputError, match="meta"):
        PairTemplate.parsed(value, "meta")


def test_long_rows_end_as_every_row_does():
    assert common_end([5, 1, 2], [1, 2]) == [1, 2] and common_end([1], [2]) == [] == common_end([], [1])
    with pytest.raises(InputError, match="leaves no room for a pair: its text ends with 2 tokens"):
        cut_before_end([1, 2, 3], [2, 3], 2)
