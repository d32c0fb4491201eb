"""Serving without its packages: bodies that are read, limits, batches that requests join, the bits of their numbers,
counters."""

import base64
import json
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import checkpoints
import encoders
import numpy as np
import pytest
from children import LIMIT, ROOT, printed

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.inference.chat.tool_calls import CALL_FORMS, CallReader
from opmatrix.inference.text import LineReading
from rewrites.serving import listening
from rewrites.serving.batcher import Batcher, Lane, QueuedRequest
from rewrites.serving.completion_replies import Completion
from rewrites.serving.prepared_requests import PREPARED_BY
from rewrites.serving.refusals import Refused
from rewrites.serving.request_bodies import read_embedding, read_rerank
from rewrites.serving.served_models import open_served
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits

TEXTS = ["the bank of a river", "dry", "", "The River runs dry ?", "a bank runs", "the " * 15]
LIMITS = ServingLimits(seconds=60)
EMBED, RERANK = "/v1/embeddings", "/v1/rerank"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """An embedder and a reranker, as directories that `optimize` saved."""
    place = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, place / "cache")
        prompts = {"config_sentence_transformers.json": {"prompts": {"query": "the bank: "}}}
        pooled = checkpoints.pool(checkpoints.write(place / "made"), "mean", True, prompts)
        pool = pooled / "1_Pooling/config.json"
        pool.write_text(json.dumps(json.loads(pool.read_text()) | {"include_prompt": False}))
        om.SentenceTransformer(str(pooled)).program.save(place / "embedder")
        om.CrossEncoder(str(checkpoints.classify(place / "scores", 1))).program.save(place / "reranker")
        om.CrossEncoder(str(checkpoints.classify(place / "three", 3))).program.save(place / "several")
    yield open_served([str(place / "embedder"), str(place / "reranker")])


class Rows:
    """A model that gives the number of tokens of each text, and waits before each batch until it is let go."""

    def __init__(self, held=False):
        self.batches, self.going = [], threading.Event()
        if not held:
            self.going.set()

    def compute(self, rows, left):
        self.batches.append([len(ids) for ids, _ in rows])
        self.going.wait(LIMIT)
        if any(ids == [666] for ids, _ in rows):
            raise InputError("no such token")
        return np.array([[len(ids), left] for ids, _ in rows], np.float32)


def queued(batcher, model, lengths, left=0, ids=None):
    """A request of texts of these lengths, and the future of its numbers."""
    future = Future()
    rows = [(ids or [1] * length, []) for length in lengths]
    request = QueuedRequest(
        Lane(model, left), rows, lambda o: (future.set_exception if isinstance(o, Exception) else future.set_result)(o)
    )
    batcher.submit(request)
    return request, future


@pytest.fixture
def batcher_of():
    """Batchers by their limits; they are closed after the test."""
    made = []

    def make(**limits):
        made.append(Batcher(ServingLimits(**{"wait": 0.0} | limits), ServingCounters()))
        return made[-1]

    yield make
    for batcher in made:
        batcher.close()


def begun(model, batches):
    """Wait until so many batches have begun."""
    for _ in range(6000):
        if len(model.batches) >= batches:
            return
        threading.Event().wait(0.01)
    raise AssertionError(model.batches)


# ---- batches


def test_what_waits_is_the_next_batch(batcher_of):
    model, batcher = Rows(held=True), batcher_of(rows=10)
    first = queued(batcher, model, [3])[1]
    begun(model, 1)
    others = [queued(batcher, model, lengths)[1] for lengths in ([2, 2], [5], [1], [40], [1])]
    model.going.set()
    assert first.result(60).tolist() == [[3, 0]]
    assert [future.result(60)[:, 0].tolist() for future in others] == [[2, 2], [5], [1], [40], [1]]
    assert model.batches == [[3], [2, 2, 5, 1], [40], [1]]


def test_a_long_request_takes_turns(batcher_of):
    model, batcher = Rows(held=True), batcher_of(rows=4)
    long = queued(batcher, model, [2] * 6)[1]
    begun(model, 1)
    short = queued(batcher, model, [1])[1]
    model.going.set()
    assert short.result(60).shape == (1, 2) and long.result(60).shape == (6, 2)
    assert model.batches == [[2, 2], [2, 2], [1, 2], [2]]


def test_lanes_do_not_mix(batcher_of):
    model, other, batcher = Rows(held=True), Rows(), batcher_of()
    queued(batcher, model, [1])
    begun(model, 1)
    asked = [(model, 0), (other, 0), (model, 2), (model, 0)]
    futures = [queued(batcher, served, [at + 2], left)[1] for at, (served, left) in enumerate(asked)]
    model.going.set()
    assert [future.result(60).tolist() for future in futures] == [[[2, 0]], [[3, 0]], [[4, 2]], [[5, 0]]]
    assert model.batches == [[1], [2, 5], [4]] and other.batches == [[3]]


def test_a_busy_server_waits_for_as_many_requests_as_it_answered_last(batcher_of):
    model, batcher = Rows(held=True), batcher_of(wait=30.0)
    queued(batcher, model, [1])
    begun(model, 1)
    pair = [queued(batcher, model, [2])[1] for _ in range(2)]
    model.going.set()
    assert [future.result(60)[0, 0] for future in pair] == [2, 2]
    first = queued(batcher, model, [3])[1]
    assert not first.done() and len(model.batches) == 2
    queued(batcher, model, [4])
    assert first.result(60)[0, 0] == 3
    assert model.batches == [[1], [2, 2], [3, 4]]


def test_a_request_that_is_given_up_while_others_are_waited_for(batcher_of):
    """The thread goes on, though nothing is left when the time is over."""
    model, batcher = Rows(held=True), batcher_of(wait=0.5)
    queued(batcher, model, [1])
    begun(model, 1)
    pair = [queued(batcher, model, [2])[1] for _ in range(2)]
    model.going.set()
    assert [future.result(60)[0, 0] for future in pair] == [2, 2]
    request = queued(batcher, model, [3])[0]
    batcher.thread.join(0.1)  # it waits for a second one
    batcher.give_up(request)
    batcher.thread.join(1.0)
    assert queued(batcher, model, [4])[1].result(10)[0, 0] == 4
    assert model.batches == [[1], [2, 2], [4]] and batcher.texts == 0


def test_a_text_that_the_program_refuses_fails_its_own_request_alone(batcher_of):
    model, batcher = Rows(held=True), batcher_of()
    queued(batcher, model, [1])
    begun(model, 1)
    bad, good = queued(batcher, model, [1], ids=[666])[1], queued(batcher, model, [2])[1]
    model.going.set()
    assert good.result(60).tolist() == [[2, 0]]
    with pytest.raises(InputError):
        bad.result(60)
    assert batcher.texts == 0


def test_a_full_queue_and_a_server_that_ends_refuse(batcher_of):
    model, batcher = Rows(held=True), batcher_of(items=3, queue=3)
    queued(batcher, model, [1])
    begun(model, 1)
    request, _ = queued(batcher, model, [1, 1])
    with pytest.raises(Refused) as full:
        queued(batcher, model, [1])
    assert full.value.status == 429 and "retry-after" in full.value.headers
    batcher.give_up(request)
    last = queued(batcher, model, [1, 1])[1]
    model.going.set()
    batcher.close()
    assert last.result(0).shape == (2, 2) and batcher.texts == 0
    assert [1, 1] in model.batches and len(model.batches) == 2
    with pytest.raises(Refused) as ended:
        queued(batcher, model, [1])
    assert ended.value.status == 503


# ---- bits


def ask(models, path, limits=LIMITS, **fields):
    """The reply to a request, computed alone."""
    request = PREPARED_BY[path](models, limits, json.dumps(fields).encode())
    return json.loads(request.write(request.lane.model.compute(request.rows, request.lane.left)))


def test_numbers_are_those_of_the_program_in_any_company(models, batcher_of):
    """Of concurrent requests, whatever the others ask for."""
    program, rng = models["embedder"].program, np.random.default_rng(0)
    batcher, draws = batcher_of(rows=40, wait=0.002), [rng.integers(0, len(TEXTS), 1 + at % 5) for at in range(60)]
    alone = np.concatenate([program.embed([text], truncate=True) for text in TEXTS])
    scores = {t: models["reranker"].program.score([("a bank", TEXTS[t])], truncate=True)[0, 0] for t in range(5)}

    def reply(at):
        path = EMBED if at % 3 else RERANK
        texts = [TEXTS[t] for t in draws[at]]
        fields = {"input": texts, "encoding_format": "base64"} if at % 3 else {"query": "a bank", "documents": texts}
        body = json.dumps(fields).encode()
        request, future = PREPARED_BY[path](models, ServingLimits(truncate=True), body), Future()
        batcher.submit(QueuedRequest(request.lane, request.rows, future.set_result))
        return json.loads(request.write(future.result(60)))

    with ThreadPoolExecutor(12) as pool:
        for at, answer in enumerate(pool.map(reply, range(len(draws)))):
            if at % 3:
                rows = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in answer["data"]]
                np.testing.assert_array_equal(np.stack(rows), alone[draws[at]])
            else:
                for result in answer["results"]:
                    text = draws[at][result["index"]]
                    if text in scores:
                        assert np.float32(result["relevance_score"]) == scores[text]
    assert batcher.counters.total("batches_total") < batcher.counters.total("texts_total")


def test_embeddings_in_every_form(models):
    program = models["embedder"].program
    plain = program.embed(TEXTS[:3])
    answer = ask(models, EMBED, model="embedder", input=TEXTS[:3])
    np.testing.assert_array_equal(np.float32([entry["embedding"] for entry in answer["data"]]), plain)
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2] and answer["object"] == "list"
    rows = program.tokenizer.rows(TEXTS[:3], LineReading())
    assert answer["usage"] == {"prompt_tokens": sum(map(len, rows)), "total_tokens": sum(map(len, rows))}
    assert ask(models, EMBED, input=rows)["data"] == answer["data"]
    assert ask(models, EMBED, input=rows[0])["data"] == ask(models, EMBED, input=TEXTS[0])["data"]
    short = ask(models, EMBED, input=TEXTS[:3], dimensions=5)["data"]
    lengths = np.linalg.norm(plain[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose([entry["embedding"] for entry in short], plain[:, :5] / lengths, rtol=1e-6)
    prompted = ask(models, EMBED, input=TEXTS[:3], prompt_name="query")["data"]
    np.testing.assert_array_equal(
        np.float32([entry["embedding"] for entry in prompted]), program.embed(TEXTS[:3], prompt="query")
    )


def test_ranks_are_sorted_and_cut(models):
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[0]]
    scores = models["reranker"].program.score([("a bank", text) for text in (TEXTS[0], TEXTS[1], TEXTS[0])])[:, 0]
    whole = ask(models, RERANK, query="a bank", documents=documents, return_documents=True)
    order = sorted(range(3), key=lambda at: -scores[at])
    assert [result["index"] for result in whole["results"]] == order
    assert [np.float32(result["relevance_score"]) for result in whole["results"]] == [scores[at] for at in order]
    assert [result["document"]["text"] for result in whole["results"]] == [[*TEXTS[:2], TEXTS[0]][at] for at in order]
    assert whole["usage"]["total_tokens"] > 0
    best = ask(models, RERANK, model="reranker", query="a bank", documents=documents, top_n=1)["results"]
    assert best == [{name: whole["results"][0][name] for name in ("index", "relevance_score")}]


# ---- what is refused

REFUSED = {
    (EMBED, b"{"): (400, "not JSON"),
    (EMBED, b"[1]"): (400, "JSON object"),
    (EMBED, b'{"input": NaN}'): (400, "not JSON"),
    (EMBED, b'{"input": "\xff"}'): (400, "UTF-8"),
    (EMBED, b"[" * 100_000): (400, "nested"),
    (EMBED, b"{}"): (400, "input None"),
    (EMBED, b'{"input": []}'): (400, "input []"),
    (EMBED, b'{"input": [[]]}'): (400, "input 0 is []"),
    (EMBED, b'{"input": ["a", 1]}'): (400, "input 1 is 1"),
    (EMBED, b'{"input": [1, true]}'): (400, "input 0"),
    (EMBED, b'{"input": [1, -1]}'): (400, "input 0"),
    (EMBED, b'{"input": [[1, 2], [99]]}'): (400, "id 99"),
    (EMBED, b'{"input": "\\ud800"}'): (400, "no valid Unicode"),
    (EMBED, b'{"input": ["a", "b", "c", "d"]}'): (413, "at most 3"),
    (EMBED, b'{"input": "' + b"the " * 30 + b'"}'): (400, "positions for 20"),
    (EMBED, b'{"input": "' + b"the " * 15 + b'"}'): (400, "this server takes 12"),
    (EMBED, b'{"input": "a", "encoding_format": "hex"}'): (400, "encoding_format"),
    (EMBED, b'{"input": "a", "dimensions": 25}'): (400, "dimensions 25"),
    (EMBED, b'{"input": "a", "dimensions": 0}'): (400, "dimensions 0"),
    (EMBED, b'{"input": "a", "dimensions": true}'): (400, "dimensions True"),
    (EMBED, b'{"input": "a", "model": 3}'): (400, "model 3"),
    (EMBED, b'{"input": "a", "model": "other"}'): (404, "model 'other'"),
    (EMBED, b'{"input": "a", "model": "reranker"}'): (400, "answers /v1/rerank"),
    (EMBED, b'{"input": "a", "prompt_name": "x"}'): (400, "there are query"),
    (RERANK, b'{"documents": ["a"]}'): (400, "query None"),
    (RERANK, b'{"query": "a"}'): (400, "documents None"),
    (RERANK, b'{"query": "a", "documents": "b"}'): (400, "documents 'b'"),
    (RERANK, b'{"query": "a", "documents": [{"title": "b"}]}'): (400, "document 0"),
    (RERANK, b'{"query": "a", "documents": ["b", "c", "d", "e"]}'): (413, "at most 3"),
    (RERANK, b'{"query": "a", "documents": ["b"], "top_n": 1.5}'): (400, "top_n 1.5"),
    (RERANK, b'{"query": "a", "documents": ["b"], "return_documents": 1}'): (400, "return_documents 1"),
    (RERANK, b'{"query": "a", "documents": ["b"], "model": "embedder"}'): (400, "answers /v1/embeddings"),
}


@pytest.mark.parametrize("path, body", REFUSED, ids=[body[:40] for _, body in REFUSED])
def test_a_bad_request_is_refused_in_one_error_object(models, path, body):
    status, words = REFUSED[path, body]
    with pytest.raises(Refused) as refused:
        PREPARED_BY[path](models, ServingLimits(items=3, tokens=12, truncate=False), body)
    error = json.loads(refused.value.body)["error"]
    assert refused.value.status == status and words in error["message"] and "\n" not in error["message"]
    assert {*error} == {"message", "type", "param", "code"} and error["type"] and error["code"]


def test_long_texts_are_cut_where_the_server_says_so(models):
    cut = ServingLimits(tokens=12, truncate=True)
    answer = ask(models, EMBED, cut, input="the " * 40)
    assert answer["usage"]["total_tokens"] == 12
    assert answer["data"] == ask(models, EMBED, input="the " * 10)["data"]
    ids = [2] + [5] * 30
    assert ask(models, EMBED, cut, input=ids)["data"] == ask(models, EMBED, input=ids[:12])["data"]
    assert ask(models, RERANK, cut, query="a", documents=["the " * 40])["usage"]["total_tokens"] == 12


def test_several_models_of_a_kind_are_named(models):
    two = {**models, "second": SimpleNamespace(name="second", paths=(EMBED,))}
    with pytest.raises(Refused, match="embedder, second"):
        ask(two, EMBED, input="a")


def test_optional_fields_may_be_null():
    body = {"input": "a", "model": None, "dimensions": None, "encoding_format": None, "user": "somebody"}
    assert read_embedding(json.dumps(body).encode(), 3).inputs == ["a"]
    assert read_rerank(b'{"query": "a", "documents": ["b", "c"], "top_n": null}', 3).top_n == 2


@pytest.mark.parametrize(
    "limits", [{"items": 0}, {"queue": 5}, {"wait": -1.0}, {"wait": 60.0}, {"seconds": 0.0}, {"body": 0}], ids=str
)
def test_impossible_limits_are_refused(limits):
    with pytest.raises(InputError, match=next(iter(limits))):
        ServingLimits(**limits)


def test_models_that_cannot_be_served(models, tmp_path):
    place = models["embedder"].program
    place.save(tmp_path / "embedder")
    place.save(tmp_path / "again" / "embedder")
    with pytest.raises(InputError, match="another model is called embedder"):
        open_served([str(tmp_path / "embedder"), str(tmp_path / "again" / "embedder")])
    with pytest.raises(InputError):
        open_served([str(tmp_path / "absent")])


def test_several_labels_order_nothing(models, tmp_path_factory):
    several = next(tmp_path_factory.getbasetemp().glob("serving*/several"))
    with pytest.raises(InputError, match="3 labels"):
        open_served([str(several)])


# ---- processes


def test_addresses_and_packages(monkeypatch):
    with listening.bind_socket("127.0.0.1", 0) as first:
        assert listening.shown_address(first).startswith("http://127.0.0.1:")
        assert first.proto == socket.IPPROTO_TCP  # where it is 0, asyncio sets no TCP_NODELAY
        first.listen()
        with pytest.raises(InputError, match="in use"):
            listening.bind_socket("127.0.0.1", first.getsockname()[1])
    with pytest.raises(InputError, match="--host no"):
        listening.bind_socket("no.such.host.invalid", 0)
    monkeypatch.setattr(listening, "SERVER_PACKAGES", ("json", "no_such_package"))
    with pytest.raises(InputError, match=r"no_such_package is not installed: pip install 'opmatrix\[serve\]'"):
        listening.require_packages()
    with pytest.raises(InputError, match="--processes 0"):
        listening.check_processes(0)


PROCESSES = """
import os, signal, sys, time
from rewrites.serving import listening
from rewrites.serving.serving_counters import ServingCounters

counters, listening.SOON = ServingCounters(2), -1.0

class Watched(listening.ServingProcesses):
    def replace(self, process, status):
        print("process", self.running[process][0], "ended by", status)
        super().replace(process, status)
        while counters.rows[0, 0] < 2:
            time.sleep(0.01)
        sys.exit()

def serve():
    counters.add("answered_total", 1)
    while not counters.rows[:, 0].all():
        time.sleep(0.01)
    if counters.rows[0, 0] == 1 and counters.row.ctypes.data == counters.rows.ctypes.data:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(99)

Watched(2, serve, counters).supervise()
"""


def test_a_process_that_is_killed_is_started_again():
    assert printed(PROCESSES, ROOT) == "process 0 ended by -9\n"


def test_counters_are_sums_over_processes():
    counters = ServingCounters(2)
    counters.add("texts_total", 3)
    counters.set("waiting_texts", 2)
    counters.take_row(1)
    counters.add("texts_total", 4)
    counters.set("waiting_texts", 5)
    assert counters.total("texts_total") == 7 and counters.total("waiting_texts") == 7
    counters.take_row(1)
    assert counters.total("texts_total") == 7 and counters.total("waiting_texts") == 2
    text = counters.text()
    assert "opmatrix_texts_total 7\n" in text and text.count("# TYPE") == text.count("# HELP")


def test_chunks_of_a_stream_are_in_the_order_of_the_text():
    """Also where one piece holds the ends of calls and the words around them."""
    model, request = SimpleNamespace(name="it"), SimpleNamespace(messages=[])
    (tagged,) = (form for form in CALL_FORMS if form.signs == ("<tool_call>",))
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    for length in (1, 7, 1000):
        completion, order = Completion(model, request, None, CallReader(tagged, {"time": {}})), ""
        text = f"one {call} two {call}{call} three"
        for piece in [text[at : at + length] for at in range(0, len(text), length)]:
            for chunk in completion.pieces(piece):
                delta = json.loads(chunk.removeprefix(b"data: "))["choices"][0]["delta"]
                order += delta.get("content", "") + "".join(
                    f"[{told['index']}]" for told in delta.get("tool_calls", ())
                )
        assert order == "one[0]two[1][2]three"
