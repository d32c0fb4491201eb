"""Chat templates in the files of models, and in saved programs."""

import json

import ggufs
import pytest
from speakers import gpt2

from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.files.directory.chat_files import read_chat
from opmatrix.runtime.program import Program

TEXT = "{{ messages }}"


def test_keys_of_gguf_files(tmp_path):
    """The default template, named ones, and the special tokens by their ids."""
    assert open_model(ggufs.write(tmp_path / "none.gguf")).chat is None
    keys = {
        "tokenizer.chat_template": TEXT,
        "tokenizer.chat_templates": ["tool_use", "absent"],
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.ggml.bos_token_id": 1,
    }
    chat = open_model(ggufs.write(tmp_path / "some.gguf", keys)).chat
    assert chat.texts == {"default": TEXT, "tool_use": "tools"}
    assert chat.tokens["bos_token"] == ggufs.VOCABULARY["tokenizer.ggml.tokens"][1]
    wrong = open_model(ggufs.write(tmp_path / "wrong.gguf", {"tokenizer.chat_template": 3}))
    with pytest.raises(InputError, match=r"wrong.gguf: tokenizer.chat_template is 3: a template is a text"):
        wrong.chat  # noqa: B018


@pytest.mark.parametrize("entry", [3, [3], [{"name": "default"}], {"template": "x"}])
def test_entries_that_are_no_templates(entry, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
    with pytest.raises(InputError, match=r"tokenizer_config.json: chat_template: .*: a template is a text, or"):
        read_chat(tmp_path)


def test_special_tokens_are_texts_or_objects(tmp_path):
    """The configuration comes before special_tokens_map.json."""
    assert read_chat(tmp_path) is None
    said = {"chat_template": TEXT, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"unk_token": "<unk>", "eos_token": "other"}))
    assert read_chat(tmp_path).tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_without_jinja2_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("opmatrix.inference.chat.chat_templates.find_spec", lambda name: None)
    program = gpt2().program.replace(chat={"templates": {"default": TEXT}, "tokens": {}})
    with pytest.raises(InputError, match=r"^chat: templates need jinja2: pip install opmatrix\[chat\]$"):
        program.chat([{"role": "user", "content": "a"}])


def test_a_saved_program_keeps_its_templates(tmp_path):
    program = gpt2().program.replace(chat={"templates": {"default": TEXT}, "tokens": {"bos_token": "<s>"}})
    program.save(tmp_path / "saved")
    assert Program.load(tmp_path / "saved").meta["chat"] == program.meta["chat"]
