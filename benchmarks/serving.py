"""`opmatrix serve` under concurrent clients, beside the same program in this process.

    python benchmarks/serving.py [MODEL] [--clients 32] [--texts 1] [--seconds 20] [--rounds 5] [--csv OUT]

MODEL: minilm, base (BERT-base's sizes, random weights), or a directory that `optimize` saved. Each client keeps a
connection and sends texts of 8 to 512 tokens, one request after another; vectors come in base64, and their bits are
compared with the program's. Rounds alternate: the program embeds the texts of all requests in ragged batches, then the
clients send them. The clients are threads of one process; its CPU seconds, shared by the processors, are taken off the
seconds of the server. `added`: median milliseconds of one client's requests beyond those of the program."""

import base64
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib import command, workloads
from lib.command import ROOT, Figure, Parser, cell, concluded, cores, count, positive, say, spread, tabled, takes

import numpy as np

from formats.core.errors import InputError
from opmatrix.files.loading import PROGRAM
from opmatrix.inference.text import LineReading, sentences
from opmatrix.runtime.program import Program
from rewrites.encoders.encoder import open_encoder
from rewrites.encoders.refused import EMBEDDINGS

COLUMNS = "round", "texts", "tokens", "program_s", "server_s", "clients_s", "ratio", "p50_ms", "p99_ms"
SHORTEST, LONGEST = 8, 512  # tokens of a text
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


def main() -> None:
    parser = Parser(__doc__)
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
    load = drawn(program, given)
    say(f"{len(load.bodies)} requests")
    with served(name, given) as (process, port):
        rows = [raced(number, program, load, port, given) for number in range(given.rounds)]
        alone = added(program, load, port)
        peak = peak_bytes(process)
    print(" ".join(f"{column:>10}" for column in COLUMNS))
    for row in rows:
        print(" ".join(cell(value, 10) for value in row))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows, alone, peak, given))


def figures(rows: Sequence[tuple], alone: list[float], peak: float | None, given) -> list[Figure]:
    """Throughput as a share of the program's, times of requests, memory."""
    ratios, p50, p99 = ([row[COLUMNS.index(name)] for row in rows] for name in ("ratio", "p50_ms", "p99_ms"))
    return [
        Figure(f"throughput of {given.clients} clients over the program's", median(ratios), "", spread(ratios), 0.95),
        Figure("p50 of a request", median(p50), "ms", spread(p50)),
        Figure("p99 of a request", median(p99), "ms", spread(p99)),
        Figure("added to the program's time, one client", median(alone), "ms", most=1.0),
        Figure("peak memory of the server", peak, "MB", why="/proc says nothing of it"),
    ]


# ---- requests


def drawn(program: Program, given) -> Load:
    """Requests that take about `seconds` of the program: texts of lengths evenly spread on a scale of ratios."""
    rng, tokenizer = np.random.default_rng(0), program.tokenizer
    longest = min(LONGEST, tokenizer.most or LONGEST)
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
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(longest), number)).astype(int)
    inner = [token for row in program.tokenizer.rows(sentences(), LineReading()) for token in row[1:-1]]
    places = rng.integers(0, len(inner), number)
    rows = (np.resize(inner[place:] + inner[:place], length) for place, length in zip(places, lengths, strict=True))
    return [" ".join(program.tokenizer.tokenizer.decode(row.tolist()).split()) for row in rows]


@contextmanager
def served(name: str, given) -> Iterator[tuple[int, int]]:
    """The command in a process of its own: its number and its port."""
    words = ["serve", name, "--port", "0", "--truncate", "--processes", str(given.processes)]
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


if __name__ == "__main__":
    command.run(main)
