"""Engines in processes of their own, on the same processors with as many threads (what runs there: serve.py,
engines.py).

`made(job)` prepares what a job needs and warms the engine's caches, in processes that are thrown away; `Process(job)`
starts the engine once more. An engine that cannot be had says why: `Absent`."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lib.command import LIB, ROOT, cores
from lib.engines import ENGINES

from formats.disk.cache import cache_directory
from opmatrix.files.loading import VERSION

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "OPENBLAS_THREAD_TIMEOUT": "4",
    "PYTHONDONTWRITEBYTECODE": "",
}  # byte code is kept of all: installed peers come with it
SILENT = 3600  # seconds after which a process is taken to hang
SETTLE = 0.04  # seconds after which no engine spins any more (ONNX
# Runtime: 0.025)


class Absent(RuntimeError):
    """An engine that does not run here, and why."""


@dataclass(frozen=True)
class Job:
    """What a process is to do: an engine with a model (a checkpoint's directory) in a number type, as prepared in
    `place`. `batches` are numbers of `sentences` (rows of token ids); `shape` is that of all batches, if they have one,
    and `masked` says whether some are padded. It runs with that `python`, and what `environment` adds."""

    engine: str
    number_type: str
    model: str
    workload: str = "any"
    sentences: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    shape: list | None = None
    masked: bool = False
    fresh: int = 0  # batches of a turn, each run once; 0: all of them, again
    # and again
    calibration: list = field(default_factory=list)
    text: str = ""
    tuned: str = ""  # what the engine was tuned to, in a few words
    place: str | None = None
    threads: int = 1
    python: str = sys.executable
    tree: str = str(ROOT)  # where opmatrix is imported from; "": as `python` finds it
    environment: dict = field(default_factory=dict)


class Process:
    """An engine at work. `said` is its first answer, `first` how many seconds it took from its start to its first
    result. Raises Absent."""

    def __init__(self, job, what="serve"):
        self.job, self.errors = job, tempfile.TemporaryFile("w+")
        self.room = tempfile.TemporaryDirectory()
        file = Path(self.room.name) / "job.json"
        file.write_text(json.dumps(asdict(job)))
        own = os.environ | dict.fromkeys(THREADS, str(job.threads)) | QUIET | job.environment
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [job.python, str(LIB / "serve.py"), what, str(file)],
            text=True,
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        try:
            self.said = self.answer()
            self.first = self.ask("started") - begun if what == "serve" else None
        except Absent:
            self.close()
            raise

    def answer(self):
        """What the process says next. One that says nothing for very long is ended, as if it had ended by itself."""
        watch = threading.Timer(SILENT, self.process.kill)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        found = json.loads(line) if line else {"absent": self.last_words()}
        if "absent" in found:
            raise Absent(found["absent"])
        return found["answer"]

    def last_words(self):
        self.process.wait()
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"ended with status {self.process.returncode}"])[-1][:300]

    def ask(self, name, /, **arguments):
        """What the Server's method of that name returns."""
        try:
            print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise Absent(self.last_words()) from None
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.room.cleanup()


def version_of(engine, number_type="float32"):
    """The engine's version; Absent where a package that it needs is not installed."""
    try:
        own, *_ = [version(package) for package in ENGINES[engine].needs(number_type)]
    except PackageNotFoundError as error:
        raise Absent(f"{error.name} is not installed: pip install '.[peers]'") from None
    return own


def made(job, programs=None):
    """The job with its place: prepared there unless it was before, and the engine's caches filled. Raises Absent."""
    release = version_of(job.engine, job.number_type)
    if job.number_type not in ENGINES[job.engine].types:
        raise Absent(ENGINES[job.engine].lacks)
    place = home(job, release, programs)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
        try:
            if job.engine != "opmatrix":
                fresh.mkdir()
            Process(replaced(job, place=str(fresh)), "prepare").close()
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    tuning = Process(job := replaced(job, place=str(place)), "tune")
    tuning.close()
    return replaced(job, tuned=tuning.said)


def home(job, release, programs):
    """Where what a job needs is kept: a program for its workload, in the directory that the user names; for a peer one
    model for all shapes, and one that knows padding."""
    model = Path(job.model).name
    if job.engine == "opmatrix" and programs:
        return Path(programs) / f"{model}-{job.number_type}-{job.workload}"
    kind, form = (
        ("programs", job.workload) if job.engine == "opmatrix" else ("peers", "masked" if job.masked else "plain")
    )
    release = f"{release}-{VERSION}" if job.engine == "opmatrix" else release
    return (
        cache_directory() / kind / f"{job.engine}-{release}-{digest(job.model)}" / f"{model}-{job.number_type}-{form}"
    )


def replaced(job, **changed):
    return Job(**(vars(job) | changed))


def digest(directory):
    """What tells weights apart."""
    with open(Path(directory) / "model.safetensors", "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:12]


class Peer(Process):
    """An engine in float32 for batches of any shape, without padding."""

    @property
    def name(self):
        return self.job.engine

    def seconds(self, rows):
        """Of one call; on return its threads have come to rest."""
        taken = self.ask("once", rows=rows)
        time.sleep(SETTLE)
        return taken


def started(directory, names=tuple(name for name in ENGINES if name != "opmatrix"), say=print):
    """The peers that run here; of each other one it is said why not."""
    found = []
    for name in names:
        try:
            found.append(Peer(made(Job(name, "float32", str(directory), threads=cores()))))
        except Absent as error:
            say(f"absent  {name}: {error}")
    return found
