"""Serving: `opmatrix serve` under clients, and memory of a process that embeds text after text."""

import base64
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lib import command, workloads
from lib.command import (
    ROOT,
    Figure,
    Parser,
    cell,
    concluded,
    cores,
    count,
    listed,
    named,
    positive,
    say,
    spread,
    tabled,
    takes,
    within,
)
from lib.engines import ENGINES
from lib.peers import Absent, Job, Process, made

import numpy as np

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.files.loading import PROGRAM
from opmatrix.inference.text import LineReading, sentences
from opmatrix.runtime.program import Program
from rewrites.encoders.encoder import open_encoder
from rewrites.encoders.refused import EMBEDDINGS

# ---- serving

SERVING_COLUMNS = "round", "texts", "tokens", "program_s", "server_s", "clients_s", "ratio", "p50_ms", "p99_ms"
SERVING_SHORTEST, SERVING_LONGEST = 8, 512  # tokens of a text
ALONE = 40  # requests of one client
STARTS = 900  # seconds until a server must have begun: a program may be searched for


class Load(NamedTuple):
    """Requests as they are sent, and the vectors that answer them."""

    texts: list[str]
    bodies: list[bytes]
    vectors: np.ndarray


class Answered(NamedTuple):
    """Seconds of requests by the clock, of the clients' CPU, and of each request."""

    wall: float
    clients: float
    each: list[float]


def measure_serving() -> None:
    """Measure `opmatrix serve` under concurrent clients, beside the same program in this process.

        python benchmarks/serving.py [MODEL] [--clients 32] [--texts 1] [--seconds 20] [--rounds 5] [--csv OUT]

    MODEL: minilm, base (BERT-base's sizes, random weights), or a directory that `optimize` saved. Each client keeps
    a connection and sends texts of 8 to 512 tokens, one request after another; vectors come in base64, and their
    bits are compared with the program's. Rounds alternate: the program embeds the texts of all requests in ragged
    batches, then the clients send them. The clients are threads of one process; its CPU seconds, shared by the
    processors, are taken off the seconds of the server. `added`: median milliseconds of one client's requests
    beyond those of the program."""
    parser = Parser(measure_serving)
    parser.add_argument("model", nargs="?", default="minilm")
    parser.add_argument("--clients", type=count, default=32)
    parser.add_argument("--texts", type=count, default=1, help="texts of a request")
    parser.add_argument("--seconds", type=positive, default=20.0, help="of a round, about")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--processes", type=count, default=1)
    given = parser.parse_args()
    takes(60 + 2.2 * given.seconds * given.rounds)
    name = given.model if Path(given.model, PROGRAM).exists() else str(workloads.model(given.model).directory)
    program = open_encoder(name, EMBEDDINGS)
    load = serving_drawn(program, given)
    say(f"{len(load.bodies)} requests")
    with served(name, ["--truncate", "--processes", str(given.processes)]) as (process, port):
        rows = [raced(number, program, load, port, given) for number in range(given.rounds)]
        alone = added(program, load, port)
        peak = peak_bytes(process)
    print(" ".join(f"{column:>10}" for column in SERVING_COLUMNS))
    for row in rows:
        print(" ".join(cell(value, 10) for value in row))
    tabled(given.csv, [SERVING_COLUMNS, *rows])
    concluded(given, serving_figures(rows, alone, peak, given))


def serving_figures(rows: Sequence[tuple], alone: list[float], peak: float | None, given) -> list[Figure]:
    """Throughput as a share of the program's, times of requests, memory."""
    ratios, p50, p99 = ([row[SERVING_COLUMNS.index(name)] for row in rows] for name in ("ratio", "p50_ms", "p99_ms"))
    return [
        Figure(f"throughput of {given.clients} clients over the program's", median(ratios), "", spread(ratios), 0.95),
        Figure("p50 of a request", median(p50), "ms", spread(p50)),
        Figure("p99 of a request", median(p99), "ms", spread(p99)),
        Figure("added to the program's time, one client", median(alone), "ms", most=1.0),
        Figure("peak memory of the server", peak, "MB", why="/proc says nothing of it"),
    ]


# ---- requests


def serving_drawn(program: Program, given) -> Load:
    """Requests that take about `seconds` of the program: texts of lengths evenly spread on a scale of ratios."""
    rng, tokenizer = np.random.default_rng(0), program.tokenizer
    longest = min(SERVING_LONGEST, tokenizer.most or SERVING_LONGEST)
    parts = [sample(program, rng, given.clients * given.texts, longest)]
    program.embed(parts[0], progress=False, truncate=True)  # compiles
    began = time.perf_counter()
    program.embed(parts[0], progress=False, truncate=True)
    often = max(1, round(given.seconds / (time.perf_counter() - began)))
    texts = parts[0] + sample(program, rng, (often - 1) * len(parts[0]), longest)
    groups = [texts[first : first + given.texts] for first in range(0, len(texts), given.texts)]
    bodies = [json.dumps({"input": group, "encoding_format": "base64"}).encode() for group in groups]
    return Load(texts, bodies, program.embed(texts, progress=False, truncate=True))


def sample(program: Program, rng: np.random.Generator, number: int, longest: int) -> list[str]:
    """So many texts, cut out of the text that ships."""
    lengths = np.exp(rng.uniform(np.log(SERVING_SHORTEST), np.log(longest), number)).astype(int)
    inner = [token for row in program.tokenizer.rows(sentences(), LineReading()) for token in row[1:-1]]
    places = rng.integers(0, len(inner), number)
    rows = (np.resize(inner[place:] + inner[:place], length) for place, length in zip(places, lengths, strict=True))
    return [" ".join(program.tokenizer.tokenizer.decode(row.tolist()).split()) for row in rows]


@contextmanager
def served(name: str, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The command in a process of its own: its number and its port."""
    words = ["serve", name, "--port", "0", *options]
    child = subprocess.Popen(
        [sys.executable, "-m", "rewrites.cli", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        announced = re.search(r":(\d+)$", child.stdout.readline().strip())
        if announced is None:
            raise InputError(f"{name}: it is not served: see above")
        yield child.pid, int(announced[1])
    finally:
        child.terminate()
        child.wait(STARTS)


def send(port: int, load: Load, requests: Sequence[int], given) -> list[float]:
    """Send requests one after another over one connection, compare bits, and return the seconds of each."""
    connection, taken = http.client.HTTPConnection("127.0.0.1", port), []
    for at in requests:
        began = time.perf_counter()
        connection.request("POST", "/v1/embeddings", load.bodies[at])
        reply = connection.getresponse()
        content = json.loads(reply.read())
        taken.append(time.perf_counter() - began)
        if reply.status != 200:
            raise InputError(f"request {at}: status {reply.status}: {content['error']['message']}")
        rows = b"".join(base64.b64decode(entry["embedding"]) for entry in content["data"])
        first = at * given.texts
        if rows != load.vectors[first : first + len(content["data"])].tobytes():
            raise InputError(f"request {at}: other bits than the program's alone")
    connection.close()
    return taken


def sent(port: int, load: Load, given) -> Answered:
    """Send all requests by all clients."""
    shares = [range(client, len(load.bodies), given.clients) for client in range(given.clients)]
    wall, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(given.clients) as pool:
        taken = [*pool.map(lambda share: send(port, load, share, given), shares)]
    return Answered(
        time.perf_counter() - wall, time.process_time() - cpu, [seconds for client in taken for seconds in client]
    )


def raced(number: int, program: Program, load: Load, port: int, given) -> tuple:
    """One row: the program, then the server."""
    began = time.perf_counter()
    program.embed(load.texts, progress=False, truncate=True)
    alone = time.perf_counter() - began
    answered = sent(port, load, given)
    seconds = answered.wall - answered.clients / cores()
    tokens = sum(map(len, program.tokenizer.rows(load.texts, LineReading(truncate=True))))
    p50, p99 = (1e3 * float(np.percentile(answered.each, percent)) for percent in (50, 99))
    say(f"round {number + 1} of {given.rounds}")
    ratio = alone / seconds
    return number + 1, len(load.texts), tokens, alone, answered.wall, answered.clients, ratio, p50, p99


def added(program: Program, load: Load, port: int) -> list[float]:
    """Milliseconds of one client's requests beyond those of the program, one text each."""
    connection, beyond = http.client.HTTPConnection("127.0.0.1", port), []
    for text in load.texts[:ALONE]:
        body = json.dumps({"input": text, "encoding_format": "base64"})
        began = time.perf_counter()
        connection.request("POST", "/v1/embeddings", body)
        connection.getresponse().read()
        ended = time.perf_counter()
        program.embed(text, progress=False, truncate=True)
        beyond.append(1e3 * (2 * ended - began - time.perf_counter()))
    connection.close()
    return beyond


def peak_bytes(process: int) -> float | None:
    """The most memory, in MB, that a process had resident; None where the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1e3


# ---- replies

REPLY_COLUMNS = "round", "clients", "tokens", "program_s", "server_s", "ratio", "first_ms"
PROMPT = "the capital of country number {} is"


def measure_replies() -> None:
    """Measure replies of `opmatrix serve` to concurrent clients, beside the same program in this process.

        python benchmarks/serving.py replies PROGRAM [--clients 1 8 16] [--tokens 64] [--rounds 5] [--csv OUT]

    PROGRAM: a language model, a directory that `optimize` saved. Each client asks for one completion, of at most so
    many tokens, greedily; texts are compared with the program's. Rounds alternate: the program generates the replies to
    all prompts at once, then the clients send them; every prompt is a new one. `first`: median milliseconds to the
    first piece of a stream, where one client asks."""
    parser = Parser(measure_replies)
    parser.add_argument("model", metavar="PROGRAM")
    parser.add_argument("--clients", type=count, nargs="+", default=[1, 8, 16])
    parser.add_argument("--tokens", type=count, default=64)
    parser.add_argument("--rounds", type=count, default=5)
    given = parser.parse_args()
    takes(30 + given.rounds * given.tokens * len(given.clients) / 2)
    program = Program.load(given.model)
    with served(given.model, ["--context", str(16 * (given.tokens + 64))]) as (process, port):
        reply_race(program, port, 0, given.clients[0], given)  # compiles
        rows = [
            reply_race(program, port, 1 + number, clients, given)
            for number in range(given.rounds)
            for clients in given.clients
        ]
        peak = peak_bytes(process)
    print(" ".join(f"{column:>10}" for column in REPLY_COLUMNS))
    for row in rows:
        print(" ".join(cell(value, 10) for value in row))
    tabled(given.csv, [REPLY_COLUMNS, *rows])
    concluded(given, reply_figures(rows, peak, given))


def reply_race(program: Program, port: int, number: int, clients: int, given) -> tuple:
    """One row: the program, then the server."""
    prompts = [PROMPT.format(f"{number}, {clients}, {client}") for client in range(clients)]
    began = time.perf_counter()
    wanted = program.generate(prompts, max_tokens=given.tokens)
    alone = time.perf_counter() - began
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        texts = [*pool.map(lambda prompt: asked_reply(port, prompt, given.tokens), prompts)]
    together = time.perf_counter() - began
    if differing := sum(text != reply.text for text, reply in zip(texts, wanted, strict=True)):
        say(f"{differing} of {clients} texts differ")
    tokens = sum(len(reply.ids) for reply in wanted)
    first = 1e3 * first_piece(port, PROMPT.format(f"first {number}, {clients}"))
    return number, clients, tokens, alone, together, alone / together, first


def asked_reply(port: int, prompt: str, tokens: int) -> str:
    """Return the text that a server continues a prompt with."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    fields = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(fields))
    reply = connection.getresponse()
    content = json.loads(reply.read())
    connection.close()
    if reply.status != 200:
        raise InputError(f"a reply: status {reply.status}: {content['error']['message']}")
    return content["choices"][0]["text"]


def first_piece(port: int, prompt: str) -> float:
    """Return the seconds to the first piece of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    fields = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(fields))
    reply = connection.getresponse()
    reply.readline()
    taken = time.perf_counter() - began
    reply.read()
    connection.close()
    return taken


def reply_figures(rows: Sequence[tuple], peak: float | None, given) -> Iterator[Figure]:
    """Tokens a second as a share of the program's, by clients; of the most clients over one."""
    by_clients = {clients: [row for row in rows if row[1] == clients] for clients in given.clients}
    for clients, some in by_clients.items():
        ratios = [row[REPLY_COLUMNS.index("ratio")] for row in some]
        yield Figure(f"tokens a second for {clients} clients over the program's", median(ratios), "", spread(ratios))
    most, least = max(by_clients), min(by_clients)
    tokens_at, seconds_at = map(REPLY_COLUMNS.index, ("tokens", "server_s"))
    rates = {
        clients: median([row[tokens_at] / row[seconds_at] for row in by_clients[clients]]) for clients in (least, most)
    }
    yield Figure(f"tokens a second for {most} clients over {least}", rates[most] / rates[least], "x")
    firsts = [row[REPLY_COLUMNS.index("first_ms")] for row in rows]
    yield Figure("first piece of a stream", median(firsts), "ms", spread(firsts))
    yield Figure("peak memory of the server", peak, "MB", why="/proc says nothing of it")


# ---- memory

MEMORY_SHORTEST, MEMORY_LONGEST = 4, 256  # tokens of a text
TENTHS = 10
COMPARED = 24  # texts that are embedded alone and in a batch
FLAT, SMALLER = 1.02, 0.8  # bars: of the bytes after a tenth of the texts; of the smallest peer's peak
SEED = 1986
MEMORY_COLUMNS = "engine", "texts", "anonymous_mb", "file_mb"
Texts = list[list[int]]


class Reading(NamedTuple):
    """Resident megabytes after so many texts."""

    texts: int
    anonymous: float
    file: float

    @property
    def whole(self) -> float:
        """Both kinds together."""
        return self.anonymous + self.file


class Alone(NamedTuple):
    """Texts alone against the same in a batch: the least cosine of their mean rows, and how many have other bits."""

    cosine: float
    other: int


class Kept(NamedTuple):
    """What an engine held: readings, and the peak in megabytes; and its texts alone against the same in a batch."""

    engine: str
    readings: list[Reading]
    peak: float
    alone: Alone

    @property
    def grown(self) -> float:
        """The last reading over the first."""
        return self.readings[-1].whole / self.readings[0].whole


def measure_memory() -> None:
    """Measure memory of a process that embeds text after text, ours beside torch, ONNX Runtime and OpenVINO.

        python benchmarks/serving.py memory [MODEL] [--texts 10000] [--batch 16] [--type float32] [--engines ...]

    Each engine runs in a process of its own, on equally many threads, and gets the same batches: 1 to `--batch`
    texts of 4 to 256 tokens, of which few have the sizes of an earlier one. Peers get them padded. Resident bytes
    are read after each tenth of the texts: `anonymous` is what the process allocated, `file` what is mapped from
    files and may be shared or dropped. The mean rows of some texts, each alone and in a batch, are compared: by
    cosines, and to the bit."""
    parser = Parser(measure_memory)
    parser.add_argument("model", nargs="?", default="minilm", help="minilm, base, modernbert, or a checkpoint")
    parser.add_argument("--texts", type=count, default=10_000)
    parser.add_argument("--batch", type=count, default=16, help="most texts of a batch")
    parser.add_argument("--type", default="float32", choices=("float32", "bf16", "int8"))
    parser.add_argument("--engines", type=listed, default=["opmatrix", "torch", "onnxruntime", "openvino"])
    parser.add_argument("--threads", type=int, default=cores())
    given = parser.parse_args()
    named("engines", given.engines, ENGINES)
    within("threads", given.threads, cores())
    within("texts", given.texts, 10**7, TENTHS)
    takes(60 + 0.02 * given.texts * len(given.engines))
    checkpoint = workloads.model(given.model)
    most = min(MEMORY_LONGEST, checkpoint.positions)
    texts = memory_drawn(checkpoint, given.texts, most)
    kept = [held for engine in given.engines if (held := run(engine, checkpoint, texts, given))]
    rows = [(held.engine, *reading) for held in kept for reading in held.readings]
    print(
        table([[name, str(n), f"{anonymous:.1f}", f"{file:.1f}"] for name, n, anonymous, file in rows], MEMORY_COLUMNS)
    )
    tabled(given.csv, [MEMORY_COLUMNS, *rows])
    concluded(given, memory_figures(kept))


def memory_drawn(checkpoint: Any, texts: int, most: int) -> Texts:
    """Tokens of texts that ship, cut to lengths of which short ones are more frequent."""
    rng = np.random.default_rng(SEED)
    [row] = workloads.cut(checkpoint.tokenizer(), 1, 4 * most)
    lengths = np.exp(rng.uniform(np.log(MEMORY_SHORTEST), np.log(most + 1), texts)).astype(int)
    starts = rng.integers(1, len(row) - most, texts)
    return [[row[0], *row[start : start + length - 2], row[-1]] for start, length in zip(starts, lengths, strict=True)]


def batches(texts: Texts, most: int) -> Iterator[Texts]:
    """The texts in batches of 1 to `most`."""
    rng, at = np.random.default_rng(SEED + 1), 0
    while at < len(texts):
        size = int(rng.integers(1, most + 1))
        yield texts[at : at + size]
        at += size


def run(engine: str, checkpoint: Any, texts: Texts, given: Any) -> Kept | None:
    """What an engine holds over all batches; None where it is absent, and it is said why."""
    say(f"{given.model}: {engine} {given.type}")
    first = texts[: given.batch]
    job = Job(
        engine,
        given.type,
        str(checkpoint.directory),
        "mixed",
        first,
        [[*range(len(first))]],
        masked=True,
        calibration=workloads.calibration(checkpoint),
        text=workloads.text(workloads.Workload("mixed", first, [[*range(len(first))]]), checkpoint),
        threads=given.threads,
    )
    try:
        process = Process(made(job))
        readings = list[Reading](follow(process, texts, given.batch))
        held = Kept(engine, readings, process.ask("resident") / 1e6, compare(process, texts, given.batch))
        process.close()
    except Absent as error:
        say(f"absent  {engine} {given.type}: {error}")
        return None
    return held


def follow(process: Process, texts: Texts, most: int) -> Iterator[Reading]:
    """Run all batches, and read the bytes after each tenth of the texts."""
    done, due = 0, len(texts) / TENTHS
    for batch in batches(texts, most):
        process.ask("once", rows=batch)
        done += len(batch)
        if done >= due:
            sizes = process.ask("resident_by_kind")
            yield Reading(done, sizes["anonymous"] / 1e6, sizes["file"] / 1e6)
            due += len(texts) / TENTHS


def compare(process: Process, texts: Texts, most: int) -> Alone:
    """Compare the mean rows of texts alone and in a batch with others."""
    some, least, other = texts[:COMPARED], 1.0, 0
    for at in range(0, len(some), most):
        together = vectors(process, some[at : at + most])
        for text, vector in zip(some[at : at + most], together, strict=True):
            [alone] = vectors(process, [text])
            least = min(least, float(alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector)))
            other += not np.array_equal(alone, vector)
    return Alone(least, other)


def vectors(process: Process, rows: Sequence[list[int]]) -> np.ndarray:
    """The mean row of each text, in float64."""
    with tempfile.TemporaryDirectory() as room:
        process.ask("means", rows=rows, file=str(file := Path(room) / "means.npy"))
        return np.load(file).astype(np.float64)


def memory_figures(kept: Sequence[Kept]) -> Iterator[Figure]:
    """Growth, peaks and cosines of each engine, and ours beside the smallest peer's."""
    for held in kept:
        bar = FLAT if held.engine == "opmatrix" else None
        yield Figure(f"{held.engine}: bytes after all texts over those after a tenth", held.grown, "x", most=bar)
        yield Figure(f"{held.engine}: peak", held.peak, "MB")
        yield Figure(f"{held.engine}: 1 - least cosine of a text alone and in a batch", max(0.0, 1 - held.alone.cosine))
        yield Figure(f"{held.engine}: texts of {COMPARED} that have other bits alone", held.alone.other)
    peaks = [held.peak for held in kept if held.engine != "opmatrix"]
    for held in kept:
        if held.engine == "opmatrix":
            ratio = held.peak / min(peaks) if peaks else None
            yield Figure("opmatrix: peak over the smallest peer's", ratio, "x", most=SMALLER, why="no peer is here")


if __name__ == "__main__":
    command.run_parts(measure_serving, measure_memory, measure_replies)
