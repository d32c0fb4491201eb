"""An engine at work in a process of its own.

    python benchmarks/lib/serve.py prepare JOB      makes what the engine loads, and ends
    python benchmarks/lib/serve.py tune JOB         decides what depends on the workload, fills the engine's caches, and
                                                ends
    python benchmarks/lib/serve.py serve JOB        loads it, runs the first batch, then answers lines of JSON

A job is a file of JSON (see peers.Job). Nothing is imported here that the engine does not need itself, so that the time
to the first result and the resident memory are the engine's own."""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

HERE = str(Path(__file__).parents[1]), str(Path(__file__).parent)  # benchmarks, and this folder
LONG = 0.25  # seconds after which a call needs no other to warm it up
MOST = 200  # calls of a turn


class Server:
    """The batches of a job, ready for its engine. Its answers are what the methods return."""

    def __init__(self, job, engines):
        self.engine = engines.ENGINES[job.engine]
        self.work = self.engine.serve(job)
        self.sentences, self.batches, self.fresh, self.next = job.sentences, job.batches, job.fresh, 1
        self.ready = [self.work.ready([job.sentences[i] for i in batch]) for batch in job.batches]
        if self.ready:
            self.work.run(self.ready[0])
        self.first, self.last = time.monotonic(), 0.0

    def started(self):
        """When the first result was there, by the clock that all processes share."""
        return self.first

    def whole(self):
        """Every batch once."""
        for batch in self.ready:
            self.work.run(batch)

    def turn(self, seconds):
        """The seconds of each call within some time, at least one; short ones are run once before. Of a job with fresh
        batches: those of its next few, which it has never seen."""
        if self.fresh:
            return self.never_seen()
        if self.last < LONG:
            self.whole()
        taken, end = [], time.perf_counter() + seconds
        while not taken or (time.perf_counter() < end and len(taken) < MOST):
            start = time.perf_counter()
            self.whole()
            taken.append(time.perf_counter() - start)
        self.last = min(taken)
        return taken

    def never_seen(self):
        batches = self.ready[self.next : self.next + self.fresh]
        if len(batches) < self.fresh:
            raise IndexError(f"no batch is left that has not run: {len(self.ready)} in all")
        self.next += self.fresh
        start = time.perf_counter()
        for batch in batches:
            self.work.run(batch)
        return [time.perf_counter() - start]

    def once(self, rows):
        """The seconds of one call for rows of token ids."""
        batch = self.work.ready(rows)
        start = time.perf_counter()
        self.work.run(batch)
        return time.perf_counter() - start

    def bits(self):
        """A digest of every number of every batch's result."""
        found = hashlib.blake2b(digest_size=12)
        for batch in self.ready:
            found.update(self.work.run(batch).tobytes())
        return found.hexdigest()

    def origins(self):
        """Where the packages come from that this process has imported."""
        return [
            str(Path(sys.modules[name].__file__).parent)
            for name in ("formats", "opmatrix", "rewrites")
            if name in sys.modules
        ]

    def resident(self):
        """The most bytes that this process ever held in memory. Linux's ru_maxrss would count what the process that
        started it held, if that was more."""
        if (status := Path("/proc/self/status")).exists():
            return 1024 * int(
                next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]
            )
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def resident_by_kind(self):
        """The bytes that this process holds now: what it allocated, and what is mapped from files."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        held = {kind: 1024 * int(status[f"Rss{kind}"].split()[0]) for kind in ("Anon", "File")}
        return {"anonymous": held["Anon"], "file": held["File"]}

    def means(self, rows, file):
        """Writes the mean of the hidden states of each text in a batch of these: (S, n) in float32."""
        import numpy as np

        batch = self.work.ready(rows)
        found = self.work.rows(self.work.run(batch), batch)
        np.save(file, np.stack([states.mean(0) for states in found]))

    def hidden(self, file, upto):
        """Writes the hidden states of the first sentences, one row a token: (T, n) in float32."""
        import numpy as np

        np.save(file, np.concatenate([rows for _, rows in sorted(self.rows(upto), key=lambda found: found[0])]))

    def embedded(self, file):
        """Writes the mean of each sentence's rows: (S, n) in float32."""
        import numpy as np

        np.save(file, np.stack([rows.mean(0) for _, rows in sorted(self.rows(), key=lambda found: found[0])]))

    def rows(self, upto=None):
        """(number, hidden states) of the sentences before `upto`."""
        for numbers, batch in zip(self.batches, self.ready, strict=True):
            if upto is not None and min(numbers) >= upto:
                continue
            for number, rows in zip(numbers, self.work.rows(self.work.run(batch), batch), strict=True):
                if upto is None or number < upto:
                    yield number, rows


def main(what, file):
    """Prepares, or answers until there are no more questions. What libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        job = SimpleNamespace(**json.loads(Path(file).read_text()))
        sys.path[:] = [*filter(None, [job.tree]), *(path for path in sys.path if path not in HERE), HERE[0]]
        from lib import engines

        if what == "prepare":
            return say(replies, answer=engines.ENGINES[job.engine].prepare(job))
        tuned = engines.ENGINES[job.engine].tune(job) if what == "tune" else None
        server = Server(job, engines)
        if what == "tune":
            return say(replies, answer=server.turn(0.0) and tuned)
    except Exception as error:
        return say(replies, absent=said(error))
    say(replies, answer="ready")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            say(replies, answer=getattr(server, name)(**arguments))
        except Exception as error:
            say(replies, absent=said(error))


def say(replies, **words):
    replies.write(json.dumps(words) + "\n")
    replies.flush()


def said(error):
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(*sys.argv[1:3])
