"""`opmatrix serve` of a language model: replies whole and in streams, many at once, and what is refused."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import ENDS, until
from served import serving as serving_models
from speakers import gpt2

from rewrites.serving.completion_bodies import read_chat
from rewrites.serving.served_models import ServedSpeaker
from rewrites.serving.speaker import Speaker

for package in ("starlette", "uvicorn", "jinja2"):
    pytest.importorskip(package, reason=f"needs peers: {package}")
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}{% endfor %}a: "
CHAT, TEXT = ServedSpeaker.paths
PROMPTS = ["The history of ", "In", "England and ", "x" * 100, "and the"]


def speaking():
    return gpt2().program.replace(chat={"templates": {"default": TEMPLATE}, "tokens": {}})


def serving(**limits):
    """A server of one language model in a thread: its port and its counters."""
    models = {"speaker": ServedSpeaker("speaker", speaking())}
    return serving_models(models, **{"seconds": ENDS, "context": 1024} | limits)


@pytest.fixture(scope="module")
def server():
    with serving() as served:
        yield served


def ask(port, path, **fields):
    """The status and the content of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ENDS)
    try:
        connection.request("POST", path, json.dumps(fields))
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def answered(port, path, **fields):
    """The object of a reply without an error."""
    status, content = ask(port, path, **fields)
    assert status == 200, content
    return json.loads(content)


def events(content):
    """The objects of a stream, which is whole."""
    *lines, done, last = content.split("\n\n")
    assert (done, last) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_texts_are_those_of_the_program(server):
    """Alone and among others; prompts longer than a piece, and equal ones. Rows of the one before are kept; among many,
    those that others need room for are not."""
    port = server[0]
    wanted = [gpt2().program.generate(prompt, max_tokens=12)[0] for prompt in PROMPTS]
    with ThreadPoolExecutor(20) as pool:
        replies = list(
            pool.map(lambda at: answered(port, TEXT, prompt=PROMPTS[at % 5], max_tokens=12, temperature=0), range(20))
        )
    for at, reply in enumerate(replies):
        (choice,) = reply["choices"]
        assert choice["text"] == wanted[at % 5].text and choice["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] == 12 and reply["object"] == "text_completion"
        assert reply["usage"]["prompt_tokens"] == len(PROMPTS[at % 5])
    _, again = (answered(port, TEXT, prompt=PROMPTS[0], max_tokens=12, temperature=0) for _ in range(2))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPTS[0]) - 1
    assert again["choices"] == replies[0]["choices"]


def test_tokens_for_a_prompt_and_one_text_in_a_list(server):
    plain = answered(server[0], TEXT, prompt="In ", temperature=0)["choices"][0]["text"]
    assert len(plain) == 16
    for prompt in ([73, 110, 32], ["In "]):
        assert answered(server[0], TEXT, prompt=prompt, temperature=0)["choices"][0]["text"] == plain


def test_messages_have_a_reply(server):
    messages = [{"role": "user", "content": "In "}]
    reply = answered(server[0], CHAT, model="speaker", messages=messages, max_tokens=9, temperature=0)
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": speaking().chat(messages, max_tokens=9).text,
    }
    parts = [{"role": "user", "content": [{"type": "text", "text": "I"}, {"type": "text", "text": "n "}]}]
    again = answered(server[0], CHAT, messages=parts, max_completion_tokens=9, temperature=0)
    assert again["choices"] == reply["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    "path, prompt", [(CHAT, {"messages": [{"role": "user", "content": "In "}]}), (TEXT, {"prompt": "In "})]
)
def test_a_stream_has_the_pieces_of_the_whole(server, path, prompt):
    asked = {"max_tokens": 9, "temperature": 0, **prompt}
    (choice,) = answered(server[0], path, **asked)["choices"]
    told = events(ask(server[0], path, stream=True, stream_options={"include_usage": True}, **asked)[1])
    *chunks, usage = told
    texts = [chunk["choices"][0].get("delta", chunk["choices"][0]) for chunk in chunks]
    text = "".join(part.get("content", part.get("text", "")) for part in texts)
    assert text == (choice["message"]["content"] if path == CHAT else choice["text"])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 9
    assert len({chunk["id"] for chunk in told}) == 1 and len(chunks) > 9


def test_stop_strings_seeds_and_forms(server):
    whole = answered(server[0], TEXT, prompt="In ", temperature=0)["choices"][0]["text"]
    (stopped,) = answered(server[0], TEXT, prompt="In ", temperature=0, stop=[whole[4:6]])["choices"]
    assert stopped["text"] == whole[: whole.find(whole[4:6])] and stopped["finish_reason"] == "stop"
    drawn = [answered(server[0], TEXT, prompt="In ", temperature=1.5, seed=7)["choices"] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0][0]["text"] == gpt2().program.generate("In ", max_tokens=16, temperature=1.5, seed=7)[0].text
    free = {answered(server[0], TEXT, prompt="In ")["choices"][0]["text"] for _ in range(4)}
    assert len(free) > 1, "without a seed each draws by its own"


def test_json_of_a_schema(server):
    pytest.importorskip("llguidance", reason="needs peers: llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "land", "schema": {"enum": ["England", "France"]}}}
    messages = [{"role": "user", "content": "In "}]
    (choice,) = answered(server[0], CHAT, messages=messages, response_format=form)["choices"]
    assert json.loads(choice["message"]["content"]) in ("England", "France") and choice["finish_reason"] == "stop"
    assert ask(server[0], CHAT, messages=messages, response_format={"type": "other"})[0] == 400


@pytest.mark.parametrize(
    "path, fields, param",
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [3]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "role"),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": [5000]}, "prompt"),
        (TEXT, {"prompt": "x" * 200}, "prompt"),
        (TEXT, {"prompt": "x", "n": 2}, "n"),
        (TEXT, {"prompt": "x", "logprobs": 3}, "logprobs"),
        (TEXT, {"prompt": "x", "presence_penalty": 0.5}, "presence_penalty"),
        (TEXT, {"prompt": "x", "temperature": -1}, "temperature"),
        (TEXT, {"prompt": "x", "temperature": "hot"}, "temperature"),
        (TEXT, {"prompt": "x", "top_p": 0}, "top_p"),
        (TEXT, {"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
        (TEXT, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": "x", "min_p": 0.1}, "min_p"),
        (TEXT, {"prompt": "x", "grammar": "start: /a/", "response_format": {"type": "json_object"}}, "grammar"),
        (TEXT, {"prompt": "x", "seed": -1}, "seed"),
        (TEXT, {"prompt": "x", "stop": 3}, "stop"),
        (TEXT, {"prompt": "x", "stop": [3]}, "stop"),
        (TEXT, {"prompt": "x", "stream": "yes"}, "stream"),
        ("/v1/embeddings", {"input": "x", "model": "speaker"}, "model"),
    ],
)
def test_bad_input_is_an_error_object(server, path, fields, param):
    """In a stream, too: its status tells what can be told before the first piece."""
    for streamed in ({}, {"stream": True}):
        status, content = ask(server[0], path, **{**streamed, **fields})
        error = json.loads(content)["error"]
        assert status == 400 and param in (error["param"] or error["message"]) and "\n" not in error["message"]
    assert answered(server[0], TEXT, prompt="In ", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_reply_without_room_waits_and_one_that_never_has_is_refused():
    """Sixteen replies of 64 rows in a session of 96: one after another."""
    with serving(context=96) as (port, _):
        status, content = ask(port, TEXT, prompt="x" * 100, max_tokens=9)
        assert status == 400 and "--context" in content
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda at: answered(port, TEXT, prompt="x" * (at + 1), max_tokens=40), range(16)))
        assert [reply["usage"]["completion_tokens"] for reply in replies] == [40] * 16


def test_a_client_that_goes_is_given_up(server, monkeypatch):
    """Its reply is written no further, streamed or not, and others are written."""
    port, counters = server
    going, chosen = threading.Event(), []
    monkeypatch.setattr("rewrites.serving.speaker.Speaker.extend", held_extend(going, chosen))
    for streamed in (False, True):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ENDS)
        connection.request("POST", TEXT, json.dumps({"prompt": "In ", "max_tokens": 100, "stream": streamed}))
        connection.close()
    going.set()
    assert answered(port, TEXT, prompt="In ", max_tokens=3)["usage"]["completion_tokens"] == 3
    until(lambda: counters.total("open_requests") == 0)
    assert len(chosen) < 203, "both were written to their ends"


def held_extend(going, chosen):
    """`Speaker.extend`, which waits for an event, and then a little: the loop hears of connections that end."""
    extend = Speaker.extend

    def waiting(self, request, scores):
        going.wait(ENDS)
        time.sleep(0.01)
        chosen.append(request)
        extend(self, request, scores)

    return waiting


def test_a_fault_ends_what_was_written_and_not_the_server(server, monkeypatch, caplog):
    from opmatrix.inference.session import Session

    monkeypatch.setattr(Session, "step", lambda *_: 1 / 0)
    status, content = ask(server[0], TEXT, prompt="In ")
    assert status == 500 and "ZeroDivisionError" in content and "ZeroDivision" in caplog.text
    monkeypatch.undo()
    assert answered(server[0], TEXT, prompt="In ", max_tokens=3)["usage"]["completion_tokens"] == 3


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
FORMED = TEMPLATE + "{# calls are within <tool_call> tags #}"
CALLED = 'Look: <tool_call>{"name": "weather", "arguments": {"place": "In"}}</tool_call>'


@pytest.fixture
def writing(monkeypatch):
    """A server whose model teaches a form of calls, and a function that sets the text of its replies, a letter a
    token."""
    program = gpt2().program.replace(chat={"templates": {"default": FORMED}, "tokens": {}})
    letters = []

    def choose(self, scores, length, number=0):
        return ord(letters.pop(0))

    def write(text):
        letters[:] = text
        return len(text)

    monkeypatch.setattr("opmatrix.inference.sampling.Sampling.choose", choose)
    with serving_models({"speaker": ServedSpeaker("speaker", program)}, seconds=ENDS, context=1024) as (port, _):
        yield port, write


def test_calls_of_tools_are_told_apart(writing):
    """Whole and in a stream; their arguments are those of templates in the next request."""
    port, write = writing
    asked = {"messages": [{"role": "user", "content": "In "}], "tools": TOOLS}
    (whole,) = answered(port, CHAT, **asked, max_tokens=write(CALLED), stop=["\n"])["choices"]
    chunks = events(ask(port, CHAT, stream=True, max_tokens=write(CALLED), **asked)[1])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    (call,), (told,) = (
        whole["message"]["tool_calls"],
        *[delta["tool_calls"] for delta in deltas if "tool_calls" in delta],
    )
    assert "".join(delta.get("content", "") for delta in deltas) == whole["message"]["content"] == "Look:"
    assert call["function"] == told["function"] == {"name": "weather", "arguments": '{"place": "In"}'}
    assert told["index"] == 0 and call["type"] == told["type"] == "function"
    assert call["id"] != told["id"] and len(call["id"]) == 9 and call["id"].isalnum()


def test_the_reason_of_an_end_by_calls(writing):
    port, write = writing
    asked = {"messages": [{"role": "user", "content": "In "}], "tools": TOOLS, "stop": ["\n"]}
    for text, reason in ((CALLED + "\n", "tool_calls"), ("Look:\n", "stop"), (CALLED, "length")):
        most = write(text) + (text[-1] == "\n")
        (choice,) = answered(port, CHAT, **asked, max_tokens=most)["choices"]
        write(text)
        *_, last = events(ask(port, CHAT, stream=True, max_tokens=most, **asked)[1])
        assert choice["finish_reason"] == last["choices"][0]["finish_reason"] == reason
    call_alone = CALLED.removeprefix("Look: ")
    write(call_alone)
    assert answered(port, CHAT, **asked, max_tokens=len(call_alone))["choices"][0]["message"]["content"] is None


def test_text_stays_text_where_no_tools_are_offered(writing):
    """And a call that is malformed, or of another tool."""
    port, write = writing
    messages = [{"role": "user", "content": "In "}]
    other = CALLED.replace("weather", "time")
    for text, asked in (
        (CALLED, {}),
        (CALLED, {"tools": TOOLS, "tool_choice": "none"}),
        (other, {"tools": TOOLS}),
        (CALLED[:-14], {"tools": TOOLS}),
    ):
        (choice,) = answered(port, CHAT, messages=messages, max_tokens=write(text), **asked)["choices"]
        assert choice["message"] == {"role": "assistant", "content": text} and choice["finish_reason"] == "length"
        chunks = events(ask(port, CHAT, stream=True, messages=messages, max_tokens=write(text), **asked)[1])
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


def test_arguments_of_earlier_calls_are_objects_in_templates():
    """As OpenAI's clients send them back; what is no text of an object is left as it is."""
    for sent, wanted in (('{"a": 1}', {"a": 1}), ("[1]", "[1]"), ("{", "{"), ({"a": 1}, {"a": 1})):
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": sent}}
        body = json.dumps({"messages": [{"role": "assistant", "content": None, "tool_calls": [call, 3]}]})
        ((message,), first) = read_chat(body.encode()).messages, call["function"] | {"arguments": wanted}
        assert message["tool_calls"] == [call | {"function": first}, 3]


def test_the_openai_client(server):
    openai = pytest.importorskip("openai", reason="needs peers: openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server[0]}/v1", api_key="none", max_retries=0, timeout=ENDS)
    messages = [{"role": "user", "content": "In "}]
    asked = dict(model="speaker", messages=messages, max_tokens=9, temperature=0)
    whole = client.chat.completions.create(**asked)
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **asked)]
    assert "".join(pieces) == whole.choices[0].message.content == speaking().chat(messages, max_tokens=9).text
    assert client.completions.create(model="speaker", prompt="In ", max_tokens=3).usage.completion_tokens == 3
    assert [model.id for model in client.models.list()] == ["speaker"]
