"""Tokenizers written as keys of GGUF files: read back they are the tokenizers that they were written of."""

import json

import ggufs
import pytest
from ggufs import WORDS, write

from formats.core.errors import InputError
from opmatrix.exports.checkpoints.gguf_tokens import check_read_alike, describe_tokens
from opmatrix.files.checkpoint import open_model
from opmatrix.files.directory import gguf_words
from opmatrix.files.directory.merges import KEY, RULES
from rewrites.workload.resolve import source

BYTES = [f"<0x{byte:02X}>" for byte in range(12)]
PIECES = ["\u2581", *"theo", "th", "he", "the", "\u2581the", "\u2581t", "\u2581th", "oo", "ot", "eo", "thoo", "oth"]
SPELT = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
SPELT += [f"x{at}" for at in range(WORDS - len(SPELT))]
SCORED = {
    "model": "llama",
    "pre": None,
    "merges": None,
    "tokens": SPELT,
    "token_type": [2, 3, 3] + [6] * len(BYTES) + [1] * (WORDS - 15),
    "scores": [0.0] * 15 + [-float(at) for at in range(WORDS - 15)],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "add_bos_token": True,
}


def around(first, last):
    """A vocabulary whose texts begin, or end, with a token."""
    return {"add_bos_token": first, "add_eos_token": last, "eos_token_id": 1}


FILES = (
    {f"pre {rule}": {"pre": rule} for rule in RULES}
    | {f"begins {first}, ends {last}": around(first, last) for first in (True, False) for last in (True, False)}
    | {"pieces": SCORED, "pieces without a space": SCORED | {"add_space_prefix": False}}
    | {"tokens of users": {"token_type": [3, 3, 1, 1, 4] + [1] * (WORDS - 5)}}
)
TEMPLATES = {
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.chat_templates": ["rag"],
    "tokenizer.chat_template.rag": "x",
}


def meta_of(tmp_path, said):
    return source(open_model(write(tmp_path / "it.gguf", {KEY + name: value for name, value in said.items()})))


@pytest.mark.parametrize("case", FILES)
def test_keys_are_read_as_the_tokenizer_that_they_describe(tmp_path, case):
    meta = meta_of(tmp_path, FILES[case])
    keys, notes = describe_tokens(meta, WORDS)
    again = gguf_words.tokenizer(keys, WORDS, tmp_path / "again.gguf")
    assert json.loads(again) == json.loads(meta["tokenizer"]) and notes == []
    said = {**ggufs.VOCABULARY, **{KEY + name: value for name, value in FILES[case].items()}}
    for name in ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id"):
        if name != "bos_token_id" or FILES[case].get("add_bos_token"):
            assert keys.get(KEY + name) == said.get(KEY + name)


def test_rows_that_no_token_has_are_unused(tmp_path):
    keys = describe_tokens(meta_of(tmp_path, {}), WORDS + 2).keys
    assert keys[f"{KEY}tokens"][WORDS:] == ["[PAD40]", "[PAD41]"] and keys[f"{KEY}token_type"][WORDS:] == [5, 5]


def test_ends_and_templates_are_keys(tmp_path):
    file = write(tmp_path / "it.gguf", TEMPLATES | {f"{KEY}eos_token_id": 1, f"{KEY}eot_token_id": 0})
    keys = describe_tokens(source(open_model(file)), WORDS).keys
    assert (keys[f"{KEY}eos_token_id"], keys[f"{KEY}eot_token_id"]) == (1, 0)
    assert {name: keys[name] for name in TEMPLATES} == TEMPLATES


def changed(meta, **entries):
    described = json.loads(meta["tokenizer"])
    for name, value in entries.items():
        described[name] = described["model"] | value if name == "model" else value
    return {**meta, "tokenizer": json.dumps(described)}


SPLIT_AT_A = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}
REFUSED = {
    "none": (lambda meta: {**meta, "tokenizer": None}, "the program has no tokenizer"),
    "another rule": (
        lambda meta: changed(meta, pre_tokenizer=SPLIT_AT_A),
        r"the rule by which its tokenizer splits words \(Split\) has no name in GGUF files",
    ),
    "small letters": (
        lambda meta: changed(meta, normalizer={"type": "Lowercase"}),
        r"its tokenizer changes texts \(Lowercase\) before words",
    ),
    "four ends": (lambda meta: {**meta, "ends": [1, 2, 3, 4]}, "4 tokens end its texts, and a GGUF file has"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_file_describes_is_refused_in_a_line(tmp_path, case):
    change, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        describe_tokens(change(meta_of(tmp_path, {})), WORDS)
    assert "\n" not in str(caught.value)


def test_merges_that_follow_no_scores_are_refused(tmp_path):
    meta = meta_of(tmp_path, SCORED)
    merges = json.loads(meta["tokenizer"])["model"]["merges"]
    with pytest.raises(InputError, match="the merges of its tokenizer follow no scores of pieces"):
        describe_tokens(changed(meta, model={"merges": merges[:-1]}), WORDS)


def test_tokens_beyond_the_table_are_named(tmp_path):
    with pytest.raises(InputError, match="token 39 of its tokenizer is beyond the 39 rows of its table"):
        describe_tokens(meta_of(tmp_path, {}), WORDS - 1)


def test_a_form_of_letters_is_left_out_and_noted(tmp_path):
    notes = describe_tokens(changed(meta_of(tmp_path, {}), normalizer={"type": "NFC"}), WORDS).notes
    assert notes == ["texts are not brought to the form NFC, which GGUF files cannot ask for"]


def test_a_text_that_would_be_read_as_other_tokens_is_named(tmp_path):
    meta = meta_of(tmp_path, {})
    check_read_alike(meta["tokenizer"], meta["tokenizer"])
    with pytest.raises(InputError, match=r"a GGUF file would read 'the quick .*' as other tokens, from token 0 on"):
        check_read_alike(meta["tokenizer"], changed(meta, model={"merges": []})["tokenizer"])
