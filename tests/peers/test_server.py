"""`opmatrix serve` over sockets: bits under load, bodies that are too long, cut short or slow, clients that go, a full
queue, the openai client, processes and how they end."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import checkpoints
import encoders
import numpy as np
import pytest
from children import ROOT
from served import ENDS, serving, until

import opmatrix as om
from rewrites.serving.served_models import ServedEmbedder, open_served

pytest.importorskip("starlette", reason="needs peers: starlette")
pytest.importorskip("uvicorn", reason="needs peers: uvicorn")

TEXTS = ["the bank of a river", "dry", "", "The River runs dry ?", "a bank runs", "the bank " * 8]
EMBED = "/v1/embeddings"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An embedder and a reranker, as directories that `optimize` saved."""
    home = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        encoders.keep_in(patch, home / "cache")
        pooled = checkpoints.pool(checkpoints.write(home / "made"), "mean", True)
        om.SentenceTransformer(str(pooled)).program.save(home / "embedder")
        om.CrossEncoder(str(checkpoints.classify(home / "scores", 1))).program.save(home / "reranker")
    return home


@pytest.fixture(scope="module")
def models(place):
    return open_served([str(place / "embedder"), str(place / "reranker")])


@pytest.fixture(scope="module")
def server(models):
    with serving(models, seconds=ENDS, body=1 << 20, rows=64) as served:
        yield served


def ask(port, path, fields=None, body=None):
    """The status and the reply of a request, as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ENDS)
    try:
        sent = body if fields is None else json.dumps(fields)
        connection.request("GET" if sent is None else "POST", path, sent)
        reply = connection.getresponse()
        content = reply.read().decode()
        return reply.status, json.loads(content) if reply.headers["content-type"] == "application/json" else content
    finally:
        connection.close()


def vectors(reply):
    """The embeddings of a reply in base64."""
    return np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in reply["data"]])


def served_well(port, models, tries=1):
    """Another client's request is answered with the program's bits, in one of these tries."""
    replies = (ask(port, EMBED, {"input": TEXTS, "encoding_format": "base64"}) for _ in range(tries))
    reply = next((reply for status, reply in replies if status == 200), None)
    assert reply
    np.testing.assert_array_equal(vectors(reply), models["embedder"].program.embed(TEXTS))


def head(length, path=EMBED):
    """The head of a request whose body has a length."""
    return f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {length}\r\n\r\n".encode()


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=ENDS)


# ---- load


def test_bits_under_load(server, models):
    """Concurrent clients, each with connections of its own, get the numbers that the program gives alone."""
    program, port = models["embedder"].program, server[0]
    draws = np.random.default_rng(1).integers(0, len(TEXTS), (160, 3))
    alone = np.concatenate([program.embed([text]) for text in TEXTS])
    scores = models["reranker"].program.score([("a bank", text) for text in TEXTS], truncate=True)[:, 0]

    def embed(draw):
        return ask(port, EMBED, {"input": [TEXTS[at] for at in draw], "encoding_format": "base64"})

    def rank(draw):
        return ask(
            port, "/v1/rerank", {"query": "a bank", "documents": [TEXTS[at] for at in draw if at < 5] or ["dry"]}
        )

    with ThreadPoolExecutor(16) as pool:
        embedded, ranked = pool.map(embed, draws), pool.map(rank, draws)
        for draw, (status, reply) in zip(draws, embedded, strict=True):
            assert status == 200
            np.testing.assert_array_equal(vectors(reply), alone[draw])
        for draw, (status, reply) in zip(draws, ranked, strict=True):
            assert status == 200
            asked = [at for at in draw if at < 5] or [1]
            for result in reply["results"]:
                assert np.float32(result["relevance_score"]) == scores[asked[result["index"]]]
    assert server[1].total("batches_total") < server[1].total("texts_total")


def test_models_health_metrics_and_wrong_paths(server):
    port = server[0]
    status, listed = ask(port, "/v1/models")
    assert status == 200 and [entry["id"] for entry in listed["data"]] == ["embedder", "reranker"]
    assert ask(port, "/v1/models/reranker")[1] == listed["data"][1]
    assert ask(port, "/health")[1]["status"] == "ok"
    assert "opmatrix_answered_total" in ask(port, "/metrics")[1]
    for status, reply in (ask(port, "/v1/models/x"), ask(port, "/nothing"), ask(port, EMBED), ask(port, "/health", {})):
        assert status in (404, 405) and {*reply["error"]} == {"message", "type", "param", "code"}


# ---- bodies


def test_a_body_that_is_too_long_is_refused_and_others_are_served(server, models):
    """100 MB whose length is declared, and as many that come piece by piece."""
    port = server[0]
    assert ask(port, EMBED, body=b" " * (100 << 20))[0] == 413
    served_well(port, models)
    with connected(port) as client:
        client.sendall(f"POST {EMBED} HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(100):
                client.sendall(piece)
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    served_well(port, models)


def test_a_body_that_is_cut_short_leaves_nothing(server, models):
    port, counters = server
    before = counters.total("refused_total")
    for _ in range(3):
        with connected(port) as client:
            client.sendall(head(1000) + b'{"input": ')
    until(lambda: counters.total("refused_total") == before + 3)
    served_well(port, models)
    assert counters.total("open_requests") == 0


def test_a_slow_body_is_refused_and_others_are_served(models):
    with serving(models, seconds=1.0) as (port, _), connected(port) as client:
        client.sendall(head(1000) + b"{")
        served_well(port, models)
        reply = http.client.HTTPResponse(client)
        reply.begin()
        assert reply.status == 408 and "did not come" in json.loads(reply.read())["error"]["message"]
        assert client.recv(1) == b""


def test_no_http_at_all(server, models):
    with connected(server[0]) as client:
        client.sendall(os.urandom(1 << 10) + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
    served_well(server[0], models)


# ---- clients that go, and servers that are busy


@pytest.fixture
def held(monkeypatch):
    """The embedder computes nothing until this is set."""
    going, compute = threading.Event(), ServedEmbedder.compute
    monkeypatch.setattr(
        ServedEmbedder, "compute", lambda self, rows, left: going.wait(ENDS) and compute(self, rows, left)
    )
    yield going
    going.set()


def test_a_client_that_is_killed_is_given_up(models, held):
    body = json.dumps({"input": TEXTS}).encode()
    with serving(models, seconds=ENDS) as (port, counters):
        with connected(port) as first, connected(port) as second:
            first.sendall(head(len(body)) + body)
            until(lambda: counters.total("waiting_texts") == len(TEXTS))
            second.sendall(head(len(body)) + body)
            until(lambda: counters.total("waiting_texts") == 2 * len(TEXTS))
        until(lambda: counters.total("open_requests") == 0)
        assert counters.total("waiting_texts") == len(TEXTS), "the first is being computed"
        held.set()
        served_well(port, models)
        assert counters.total("waiting_texts") == 0 and counters.total("texts_total") == 2 * len(TEXTS)


def test_a_full_queue_and_too_many_requests(models, held):
    limits = dict(seconds=ENDS, items=8, queue=8, requests=3)
    with serving(models, **limits) as (port, counters), ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, port, EMBED, {"input": TEXTS})
        until(lambda: counters.total("waiting_texts") == len(TEXTS))
        status, reply = ask(port, EMBED, {"input": TEXTS})
        assert (status, reply["error"]["code"]) == (429, "queue_full")
        second = pool.submit(ask, port, EMBED, {"input": TEXTS[:1]})
        with connected(port) as third:
            third.sendall(head(10))
            until(lambda: counters.total("open_requests") == 3)
            status, reply = ask(port, EMBED, {"input": TEXTS[:1]})
            assert (status, reply["error"]["code"]) == (429, "too_many_requests")
        held.set()
        assert first.result(ENDS)[0] == second.result(ENDS)[0] == 200


def test_a_request_that_takes_too_long(models, held):
    """The next one is answered, unless this machine is too slow for that, too: then one of those that follow."""
    with serving(models, seconds=0.5) as (port, _):
        status, reply = ask(port, EMBED, {"input": "dry"})
        assert status == 504 and reply["error"]["type"] == "timeout"
        held.set()
        served_well(port, models, tries=100)


def test_a_fault_is_an_error_object(models, monkeypatch, caplog):
    with serving(models) as (port, counters):
        monkeypatch.setattr(ServedEmbedder, "compute", lambda *_: 1 / 0)
        status, reply = ask(port, EMBED, {"input": "dry"})
        assert status == 500 and reply["error"]["type"] == "server_error" and "ZeroDivision" in caplog.text
        assert counters.total("failed_total") == 1
        monkeypatch.undo()
        served_well(port, models)


# ---- the openai client


def test_the_openai_client(server, models):
    openai = pytest.importorskip("openai", reason="needs peers: openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server[0]}/v1", api_key="none", max_retries=0, timeout=ENDS)
    program = models["embedder"].program
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        reply = client.embeddings.create(model="embedder", input=TEXTS, **form)
        rows = [entry.embedding for entry in reply.data]
        if form.get("encoding_format") == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row for row in rows]
        np.testing.assert_array_equal(np.float32(rows), program.embed(TEXTS))
        assert reply.usage.total_tokens == reply.usage.prompt_tokens > 0 and reply.model == "embedder"
    assert len(client.embeddings.create(model="embedder", input="dry", dimensions=7).data[0].embedding) == 7
    assert [model.id for model in client.models.list()] == ["embedder", "reranker"]
    assert client.models.retrieve("embedder").id == "embedder"
    with pytest.raises(openai.NotFoundError) as absent:
        client.embeddings.create(model="other", input="dry")
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="embedder", input="dry", dimensions=99)
    assert refused.value.param == "dimensions"


# ---- processes


@contextmanager
def command(place, *words):
    """The command, its port, and what ends it."""
    line = [sys.executable, "-m", "rewrites.cli", "serve", "embedder", "reranker", "--port", "0", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    child = subprocess.Popen(
        line, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        announced = child.stdout.readline()
        assert "serving embedder, reranker on http://127.0.0.1:" in announced, child.stderr.read()
        yield child, int(re.search(r":(\d+)$", announced.strip())[1])
    finally:
        child.kill()
        child.communicate(timeout=ENDS)


def refuses(port):
    """True once nobody listens."""
    try:
        connected(port).close()
    except ConnectionRefusedError:
        return True
    return False


def children_of(process):
    return [int(number) for number in open(f"/proc/{process}/task/{process}/children").read().split()]


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_share_a_port_and_end_at_sigterm(place, models, processes):
    with command(place, "--processes", str(processes)) as (child, port):
        with ThreadPoolExecutor(8) as pool:
            assert not [*filter(None, pool.map(lambda _: served_well(port, models), range(24)))]
        answered = int(re.search(r"^opmatrix_answered_total (\d+)$", ask(port, "/metrics")[1], re.M)[1])
        assert answered == 24
        assert len(children_of(child.pid)) == processes * (processes > 1)
        child.send_signal(signal.SIGTERM)
        assert child.wait(ENDS) == 143
        assert refuses(port) and child.stderr.read() == ""


def test_processes_end_with_the_one_that_began_them(place, models):
    with command(place, "--processes", "2") as (child, port):
        served_well(port, models)
        child.kill()
        until(lambda: refuses(port))


def test_a_process_that_ends_at_once_ends_the_server_in_a_line(place, models):
    with command(place, "--processes", "2") as (child, port):
        served_well(port, models)
        while child.poll() is None:  # one that lived for long is started again
            with suppress(OSError):
                for process in children_of(child.pid)[:1]:
                    os.kill(process, signal.SIGKILL)
        assert child.returncode == 2
        assert re.fullmatch(r"opmatrix: serve: process . of 2 ended with status -9: see above\n", child.stderr.read())
        assert refuses(port)
