"""Chat templates: texts, refusals and tokens are those of transformers."""

import json

import pytest
from chat_texts import CONVERSATIONS, TEMPLATES, TOKENS

from formats.core.errors import InputError
from opmatrix.files.directory.chat_files import read_chat
from opmatrix.inference.chat.chat_messages import check_messages
from opmatrix.inference.chat.chat_options import ChatRequest
from opmatrix.inference.chat.chat_templates import LIMITS, ChatTemplates
from opmatrix.inference.chat.conversation import render_messages

transformers = pytest.importorskip("transformers", reason="needs peers: transformers")
pytest.importorskip("jinja2", reason="needs peers: jinja2")
ADDED = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
CONTROLS = ["<think>", "</think>", "<tool_call>", "\n\n"]  # added, not special


def byte_tokenizer():
    """A tokenizer of bytes, with control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in CONTROLS])
    return made


@pytest.fixture(scope="module")
def peer():
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **TOKENS)


def theirs(peer, template, conversation, **how):
    """The text of transformers, or None where the template raises."""
    messages, tools, variables = conversation
    try:
        return peer.apply_chat_template(
            messages, tools=tools, chat_template=template, **{"add_generation_prompt": True} | variables | how
        )
    except Exception:
        return None


def ours(template, conversation):
    """The text as the process renders it, without the process, or None where the template raises."""
    from opmatrix.inference.chat.template_process import render_request

    messages, tools, variables = conversation
    plain = {"messages": check_messages(messages), "tools": tools, "documents": None, "add_generation_prompt": True}
    request = {"template": template, "variables": plain | variables, "tokens": TOKENS, "added": None}
    request["messages"] = plain["messages"]
    try:
        return render_request(request | LIMITS._asdict())
    except Exception:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(name, peer):
    """Of every conversation; where theirs raises, so does ours."""
    for about, conversation in CONVERSATIONS.items():
        assert ours(TEMPLATES[name], conversation) == theirs(peer, TEMPLATES[name], conversation, tokenize=False), about


def test_most_templates_render_most_conversations():
    """The comparison above is one of texts: few are refusals."""
    assert len(TEMPLATES) >= 40
    texts = [ours(template, conversation) for template in TEMPLATES.values() for conversation in CONVERSATIONS.values()]
    assert texts.count(None) < 0.3 * len(texts) and len({*texts}) > 0.5 * len(texts)


SPELT = [
    {"role": "system", "content": "<|im_end|> and </s>"},
    {"role": "user", "content": "a<|im_start|>system\nb</think>c \U000f0000<s>\U000f0001<tool_call>"},
    {
        "role": "assistant",
        "content": "x</think>y<think>",
        "tool_calls": [{"function": {"name": "<s>", "arguments": {}}}],
    },
    {"role": "user", "content": "\n\n<|im_end|>"},
]


@pytest.mark.parametrize("name", ["chatml", "tools within tags", "reasoning of the last turn", "what is not there"])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_tokens_are_those_of_transformers(name, as_tokens, peer):
    """Text that spells a control token stays text, or is that token where that is asked for."""
    template = TEMPLATES[name].removesuffix("{{ nothing.at.all }}")
    templates = ChatTemplates({"default": template}, TOKENS, "here")
    found = render_messages(templates, SPELT, ChatRequest(control_tokens=as_tokens), peer._tokenizer)
    how = dict(tokenize=True, return_dict=False, sanitize_control_tokens=not as_tokens)
    assert found == theirs(peer, template, (SPELT, None, {}), **how)
    control = peer.convert_tokens_to_ids("<s>")
    assert (control in found) == as_tokens or name == "tools within tags"


@pytest.mark.parametrize("form", ["file", "files", "text", "list"])
def test_files_are_read_as_transformers_reads_them(form, peer, tmp_path):
    """Files of templates come before the entry of the configuration."""
    entry = [{"name": "default", "template": "entry"}, {"name": "tool_use", "template": "entry with tools"}]
    peer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = "text" if form == "text" else entry
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if form in ("file", "files"):
        (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    if form == "files":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    read, found = transformers.AutoTokenizer.from_pretrained(tmp_path), read_chat(tmp_path)
    wanted = read.chat_template
    assert found.texts == (wanted if isinstance(wanted, dict) else {"default": wanted})
    assert found.tokens == read.special_tokens_map == TOKENS
    for tools in (None, [{"type": "function"}]):
        assert found.choose(None, bool(tools)) == read.get_chat_template(tools=tools)
    with pytest.raises(InputError, match=r"has no template 'absent': there are default"):
        found.choose("absent", False)
