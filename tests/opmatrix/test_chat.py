"""Chats: a turn computes only its new tokens, by count; what is kept is given back when room is needed; templates that
loop, import or raise, and messages without roles, are one line each."""

import re
from threading import Thread

import numpy as np
import pytest
from speakers import gpt2

from formats.core.errors import InputError
from opmatrix.inference.chat import chat_templates
from opmatrix.inference.chat.chat_templates import RenderLimits
from opmatrix.inference.chat.held_prefixes import HeldPrefixes, count_common
from opmatrix.inference.generation import PromptReader, ReplyBounds
from opmatrix.inference.sampling import Sampling
from opmatrix.inference.session import Session

pytest.importorskip("jinja2", reason="needs peers: jinja2")
LINES = (
    "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}a: {% endif %}"
)


def speaking(template=LINES, **meta):
    """A program of its own: what it keeps is no other's."""
    return gpt2().program.replace(chat={"templates": {"default": template}, "tokens": {}}, **meta)


@pytest.fixture
def computed(monkeypatch):
    """Counts of the rows that each step of a session computes."""
    counts, step = [], Session.step

    def counted(self, new):
        counts.append(sum(map(len, new.values())))
        return step(self, new)

    monkeypatch.setattr(Session, "step", counted)
    return counts


def user(text):
    return {"role": "user", "content": text}


def test_a_second_turn_computes_only_its_new_tokens(computed):
    """The prompt of a turn is the text of the turns before, and a line: all rows before that line are held."""
    program, messages = speaking(), [user("In ")]
    first = program.chat(messages, max_tokens=6)
    assert (first.reused, computed[0]) == (0, len("u: In a: ")) and computed[1:] == [1] * 6
    messages += [{"role": "assistant", "content": first.text}, user("and ")]
    del computed[:]
    second = program.chat(messages, max_tokens=5)
    assert bytes(second.prompt).decode() == f"u: In a: {first.text}u: and a: "
    assert second.reused == len("u: In a: ") + 6 and computed == [len("u: and a: ")] + [1] * 5


def test_replies_are_those_of_whole_prompts():
    """Whatever is held, the tokens are those of the same prompt alone."""
    program, messages = speaking(), [user("The history ")]
    for line in ("of ", "In 19", "He was "):
        reply = program.chat(messages, max_tokens=7)
        fresh = speaking().generate([[*reply.prompt]], max_tokens=7)[0]
        assert (reply.ids, reply.text) == (fresh.ids, fresh.text)
        messages += [{"role": "a", "content": reply.text}, user(line)]
    assert reply.reused > 30
    again = program.chat(messages[:1], max_tokens=7)
    assert again.reused == len(again.prompt) - 1  # all but the row of the first scores
    assert "".join(program.stream_chat(messages[:1], max_tokens=7)) == again.text


def prefixes(rows):
    return HeldPrefixes(gpt2().program.decoder, 128, rows)


def taken(held, ids, most=1):
    """Compute a prompt and a token as a chat does, and keep them."""
    reply = PromptReader.of(gpt2().program).begin(ids, 0, ReplyBounds(most))
    sequence = held.take(reply)
    row = held.session.step({sequence: reply.rest})
    reply.ids.append(Sampling().choose(row[-1], sequence.length))
    held.keep(sequence, reply)
    return reply, row[-1]


def test_the_least_recently_used_are_given_back():
    """A session of eight pages holds three prompts of two, and one that is worked on."""
    held = prefixes(128)
    texts = [[at] * 30 for at in range(1, 5)]
    assert [taken(held, ids)[0].reused for ids in texts] == [0] * 4
    assert [taken(held, ids)[0].reused for ids in texts[1:]] == [29] * 3  # in the order of their use
    taken(held, [9] * 30)
    reused = [taken(held, ids)[0].reused for ids in texts[2:]]
    assert reused == [29, 29] and taken(held, texts[0])[0].reused == 0
    assert len(held.session.sequences) == len(held.tokens)


def test_beginnings_share_pages():
    """Prompts that part are forks; each scores as it does alone."""
    held, rng = prefixes(128), np.random.default_rng(0)
    common = rng.integers(1, 250, 40).tolist()
    for tail in ([1, 2, 3], [1, 2, 4], [7] * 20, []):
        reply, row = taken(held, [*common, *tail])
        alone = taken(prefixes(128), [*common, *tail])[1]
        np.testing.assert_allclose(row, alone, atol=1e-4)
        assert reply.reused >= (39 if tail != [1, 2, 3] else 0)
    assert held.session.capacity == 128


def test_a_longer_prompt_gets_a_larger_session():
    held = prefixes(32)
    taken(held, [1] * 20)
    assert taken(held, [1] * 100)[0].reused == 0 and held.session.capacity >= 101
    assert taken(held, [1] * 101)[0].reused == 100


def test_an_interrupted_reply_keeps_what_was_computed():
    program = speaking()
    pieces = program.stream_chat([user("The ")], max_tokens=20)
    next(pieces), next(pieces)
    pieces.close()
    (held,) = vars(program)["held_prefixes"].values()
    ((sequence, ids),) = held.tokens.items()
    assert sequence.length == len(ids) >= len("u: The a: ") and program.chat([user("The ")], max_tokens=4).reused > 5


def test_threads_share_what_is_kept():
    program, texts = speaking(), {}

    def ask(number):
        texts[number] = program.chat([user("In 19"[: 2 + number % 3])], max_tokens=6).text

    threads = [Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts[0] == texts[3] == speaking().chat([user("In")], max_tokens=6).text and len(texts) == 4


def test_common_beginnings():
    assert [count_common([1, 2, 3], each) for each in ([], [1], [1, 2, 4], [2], [1, 2, 3, 4])] == [0, 1, 2, 0, 3]


@pytest.mark.parametrize(
    "template, said",
    [
        ("{{ raise_exception('only\nusers') }}", "only users"),
        ("{% import 'os' as os %}", "TypeError: no loader"),
        ("{% include '/etc/passwd' %}", "TypeError: no loader"),
        ("{{ messages.append(1) }}", "SecurityError: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError: access to attribute '__class__'"),
        ("{% for m in messages %}", "line 1: Unexpected end of template"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
        ("{{ 'a' * 9999999999999 }}", "MemoryError"),
        ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "its text is longer than 8,388,608 letters"),
    ],
)
def test_templates_that_raise_are_one_line(template, said):
    with pytest.raises(InputError, match="^gpt2_bytes: chat template: " + re.escape(said)) as error:
        speaking(template).chat([user("a")])
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_template_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(chat_templates, "LIMITS", RenderLimits(seconds=1))
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match=r"gpt2_bytes: chat template: (it has no end within 1 s|its process ended)"):
        speaking(endless).chat([user("a")])


@pytest.mark.parametrize(
    "messages, options, said",
    [
        ("hello", {}, "messages are 'hello', str: give"),
        ([], {}, "no message: give one at least"),
        (["hello"], {}, "message 0: 'hello' is str: give"),
        ([user("a"), {"content": "b"}], {}, "message 1 has the role None: name one"),
        ([{"role": 3}], {}, "message 0 has the role 3: name one"),
        ([{"role": "user", "content": {1, 2}}], {}, "message 0: .* is no JSON"),
        ([user("a")], {"tools": "x"}, "tools are 'x': give a list of JSON objects"),
        ([user("a")], {"template": "other"}, "gpt2_bytes has no template 'other': there are default"),
        ([user("a")], {"variables": {"x": object()}}, "variables: .* is no JSON"),
        ([user("\ud800")], {}, "the rendered text, .* is no valid Unicode"),
    ],
)
def test_bad_messages_are_one_line(messages, options, said):
    with pytest.raises(InputError, match=f"^chat: {said}"):
        speaking().chat(messages, **options)


def test_a_token_that_the_model_has_no_row_for_is_one_line():
    """It was added to the tokenizer alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(gpt2().program.meta["tokenizer"])
    tokenizer.add_special_tokens(["<far>"])
    with pytest.raises(InputError, match=r"^chat: the prompt, 'a', has the token '<far>' of tokenizer.json, id \d+, "):
        speaking("<far>", tokenizer=tokenizer.to_str()).chat([user("a")])


def test_programs_without_a_template_are_refused():
    with pytest.raises(InputError, match=r"^chat: gpt2_bytes has no chat template: take a model"):
        gpt2().program.chat([user("a")])
    with pytest.raises(InputError, match=r"^gpt2_bytes: chat: 3 is no record of templates"):
        gpt2().program.replace(chat=3).chat([user("a")])
    with pytest.raises(InputError, match=r"^prompt 0 has 204 tokens, and the model has positions for 128"):
        speaking().chat([user("x" * 198)])
    with pytest.raises(TypeError, match="max_token"):
        speaking().chat([user("a")], max_token=3)
