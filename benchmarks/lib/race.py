"""A race of providers: each runs in a process of its own, for idle pools of threads spin and slow each other, and the
processes take turns, so that what else the machine does meets all of them. A process is asked in lines of JSON:

    python benchmarks/lib/race.py PROVIDER"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from lib import command  # noqa: F401

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
LINGER = {"OPENBLAS_THREAD_TIMEOUT": "22", "KMP_BLOCKTIME": "2"}  # idle pools stop spinning within two
# milliseconds
SETTLE = 0.003
MOST, LEAST = 200, 3  # calls of a turn


class Rider:
    """A provider on so many threads, in its own process. Its answers are what Server's methods return."""

    def __init__(self, provider, threads, environment):
        self.provider, self.threads = provider, threads
        own = os.environ | LINGER | environment | {name: str(threads) for name in POOLS}
        self.process = subprocess.Popen(
            [sys.executable, __file__, provider], env=own, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, name, /, **arguments):
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()

    def receive(self):
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.provider} on {self.threads} threads ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(f"{self.provider}: {answer['failed']}")
        return answer["answer"]

    def ask(self, name, /, **arguments):
        self.send(name, **arguments)
        return self.receive()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    """What runs in the process: candidates for one matrix, timed when it is their turn."""

    def __init__(self, provider):
        from lib import providers

        self.providers, self.provider = providers, provider

    def versions(self):
        return self.providers.VERSIONS[self.provider]()

    def load(self, shape, structure, density, only):
        """The candidates for this matrix: format, bytes, error. Of ours `only` those whose names begin so, or all."""
        from lib.matrices import matrix

        self.candidates = []  # before the next ones are made
        self.candidates = [*self.providers.PROVIDERS[self.provider](matrix(*shape, structure, density), only)]
        return [candidate[:3] for candidate in self.candidates]

    def rows(self, rows):
        """Take so many rows from now on."""
        self.calls = [make(rows) for *_, make in self.candidates]

    def turn(self, index, seconds):
        """The median and the least seconds of one candidate's calls within some time, after one that warms it up; of
        calls that lost the processor only if all did."""
        call, taken, clean = self.calls[index], [], []
        call()
        end = time.perf_counter() + seconds
        while len(taken) < LEAST or (time.perf_counter() < end and len(taken) < MOST):
            worked, start = time.thread_time(), time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
            if taken[-1] < 1.1 * (time.thread_time() - worked):
                clean.append(taken[-1])
        taken = sorted(clean or taken)
        return taken[len(taken) // 2], taken[0]

    def decode(self, name, size):
        """One row times a matrix of more than so many bytes, and reading as many, in turn: bytes, bytes a second of
        each."""
        return self.providers.decode(name, size)

    def answers(self):
        """Until there are no more questions. What libraries print goes to stderr."""
        replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                answer = {"answer": getattr(self, name)(**arguments)}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(answer) + "\n")
            replies.flush()


def race(riders, case, all_rows, rounds, seconds, slowest=12.0):
    """For each number of rows: {(rider's number, candidate): ((format, bytes, error), medians, minima)}, one of each a
    round. What took so many times the best after one round is out."""
    for rider in riders:
        rider.send("load", **case)
    loaded = [rider.receive() for rider in riders]
    entries = [(i, j) for i, found in enumerate(loaded) for j in range(len(found))]
    for rows in all_rows:
        for rider in riders:
            rider.ask("rows", rows=rows)
        times = {entry: [] for entry in entries}
        for turn in range(rounds):
            best = min((min(taken)[0] for taken in times.values() if taken), default=float("inf"))
            for at in range(len(entries)):
                i, j = entry = entries[(at + turn) % len(entries)]
                if turn and min(times[entry])[0] > slowest * best:
                    continue
                times[entry].append(riders[i].ask("turn", index=j, seconds=seconds))
                if riders[i].threads > 1:
                    time.sleep(SETTLE)
        yield rows, {(i, j): (loaded[i][j], *map(list, zip(*taken, strict=True))) for (i, j), taken in times.items()}


if __name__ == "__main__":
    Server(sys.argv[1]).answers()
