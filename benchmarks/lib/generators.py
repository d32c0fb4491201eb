"""Engines that generate text from one file, each with a cache of its own: ours, exact and with x rounded as ggml rounds
it, llama.cpp, torch. Each begins with a prompt, takes the ids of further tokens, and gives scores of what follows."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from lib.command import cores

import numpy as np
from transformed import llama_of

from formats import FORMATS
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.generation import decodable
from opmatrix.runtime.program import Program

ROUNDED = {"q4_1": "q4_1int8", "q8_0": "q8_0int8"}
BYTECODE = tempfile.TemporaryDirectory()  # of processes that are timed
PREFILL = "The quick brown fox"  # the prompt of a process that ends after one token
GREEDY = """
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads={0}, n_threads_batch={0}, verbose=False)
print(model(sys.argv[2], max_tokens=1, temperature=0.0)["choices"][0]["text"])
"""


def rounded(program: Program) -> Program:
    """The program on the same blocks, with x rounded in groups of 32 to bytes."""
    made = {
        name: FORMATS[ROUNDED[each.name]](each.shape, tuple(each.arrays().values()))
        if getattr(each, "name", "") in ROUNDED
        else each
        for name, each in program.constants.items()
    }
    return program.over(program.steps, made)


def own_version() -> str:
    """Of what is installed, or nothing where it is run from its sources."""
    try:
        return version("opmatrix")
    except PackageNotFoundError:
        return ""


class Ours:
    """A program in a session, with caches of a number type."""

    version = own_version()

    def __init__(self, name: str, program: Program, number: str | None = None) -> None:
        self.name, self.program = name, decodable(program, number)

    def begin(self, ids: Sequence[int], room: int) -> np.ndarray:
        self.session = self.program.start(len(ids) + room + 16)
        self.held = self.session.join()
        return self.step(ids)

    def step(self, ids: Sequence[int]) -> np.ndarray:
        return self.session.step({self.held: ids})[-1]

    def begin_many(self, prompts: Sequence[Sequence[int]], room: int) -> None:
        self.session = self.program.start(sum(len(ids) + room + 16 for ids in prompts))
        self.many = [self.session.join() for _ in prompts]
        self.session.step(dict(zip(self.many, prompts, strict=True)))

    def step_many(self, ids: Sequence[int]) -> None:
        self.session.step({each: [token] for each, token in zip(self.many, ids, strict=True)})

    @property
    def stored(self) -> int:
        """Bytes that a step reads: every weight but tables, of which a row is read."""
        used = {
            name
            for step in self.program.steps
            for operand, name in step.operands.items()
            if not operand.startswith("table")
        }
        return sum(each.nbytes for name, each in self.program.constants.items() if name in used)

    @property
    def row(self) -> int:
        return self.program.schedule.cached

    def python(self, count: int = 9) -> float:
        """The share of a step that is not in its kernels, as native code times them."""
        inside, whole = [], []
        for _ in range(count):
            self.step([1])
            batch, _ = self.session.kept[0]
            inside.append(sum(self.program.schedule.timed(batch).values()))  # the same rows once more
            began = time.perf_counter()
            self.step([1])
            whole.append(time.perf_counter() - began)
        return max(0.0, 1 - median(inside) / median(whole))

    def process(self, checkpoint: Checkpoint) -> float:
        """Seconds of a process that loads the saved program and writes one token."""
        with tempfile.TemporaryDirectory() as place:
            self.program.save(Path(place) / "saved")
            return ended(
                [sys.executable, "-m", "rewrites.cli", "generate", f"{place}/saved", PREFILL, "--max-tokens", "1"]
            )


class LlamaCpp:
    """llama-cpp-python over the same GGUF file."""

    name, needs = "llama.cpp", ("llama_cpp",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        import llama_cpp

        self.library, self.version, self.file = llama_cpp, llama_cpp.__version__, gguf(checkpoint)
        self.model = llama_cpp.Llama(
            str(self.file), n_ctx=2048, n_threads=cores(), n_threads_batch=cores(), logits_all=False, verbose=False
        )
        said = checkpoint.said  # its keys and values are float16
        self.row = (
            4
            * said["num_hidden_layers"]
            * said["num_key_value_heads"]
            * (said["hidden_size"] // said["num_attention_heads"])
        )
        self.stored = self.file.stat().st_size

    @staticmethod
    def lacks(checkpoint: Checkpoint) -> str:
        return "" if checkpoint.keys is not None else "it reads GGUF files alone"

    def begin(self, ids: Sequence[int], room: int) -> np.ndarray:
        self.model.reset()
        return self.step(ids)

    def step(self, ids: Sequence[int]) -> np.ndarray:
        self.model.eval(list(ids))
        scores = self.library.llama_get_logits_ith(self.model.ctx, -1)
        return np.ctypeslib.as_array(scores, (self.model.n_vocab(),)).copy()

    def process(self, checkpoint: Checkpoint) -> float:
        """Seconds of a process that loads the file and writes one token."""
        return ended([sys.executable, "-c", GREEDY.format(cores()), str(self.file), PREFILL])


class Torch:
    """transformers' model in torch, float32, with its cache."""

    name, needs = "torch", ("torch", "transformers")

    def __init__(self, checkpoint: Checkpoint) -> None:
        import torch

        torch.set_num_threads(cores())
        self.version, self.torch, self.model = torch.__version__, torch, llama_of(checkpoint)
        said = checkpoint.said
        self.row = (
            8
            * said["num_hidden_layers"]
            * said["num_key_value_heads"]
            * (said["hidden_size"] // said["num_attention_heads"])
        )
        self.stored = 4 * sum(each.numel() for each in self.model.parameters())

    @staticmethod
    def lacks(checkpoint: Checkpoint) -> str:
        return "" if checkpoint.config["model_type"] == "llama" else "here it runs LLaMAs alone"

    def begin(self, ids: Sequence[int], room: int) -> np.ndarray:
        self.kept = None
        return self.step(ids)

    def step(self, ids: Sequence[int]) -> np.ndarray:
        return self.ask([list(ids)])[0]

    def begin_many(self, prompts: Sequence[Sequence[int]], room: int) -> None:
        self.kept = None
        self.ask([[*ids] for ids in prompts])

    def step_many(self, ids: Sequence[int]) -> None:
        self.ask([[token] for token in ids])

    def ask(self, rows: list[list[int]]) -> np.ndarray:
        with self.torch.no_grad():
            found = self.model(self.torch.tensor(rows), past_key_values=self.kept, use_cache=True, logits_to_keep=1)
        self.kept = found.past_key_values
        return found.logits[:, -1].numpy()


class Absent:
    """An engine that nobody has brought here yet: its columns stay open."""

    def __init__(self, name: str, package: str) -> None:
        self.name, self.needs = name, (package,)

    def lacks(self, checkpoint: Checkpoint) -> str:
        return "it is installed, and this benchmark does not know it yet"


PEERS = LlamaCpp, Torch, Absent("ONNX Runtime GenAI", "onnxruntime_genai"), Absent("OpenVINO GenAI", "openvino_genai")


def why_absent(peer, checkpoint: Checkpoint) -> str:
    """Why a peer takes no part; nothing where it does."""
    lacking = [name for name in peer.needs if not find_spec(name)]
    return f"{' and '.join(lacking)} not installed" if lacking else peer.lacks(checkpoint)


def gguf(checkpoint: Checkpoint) -> Path:
    """The file of a checkpoint."""
    place = Path(checkpoint.directory)
    return place if place.is_file() else next(place.glob("*.gguf"))


def ended(command: list[str]) -> float:
    """Seconds from the start of a process to its end. Modules are compiled once, as those of an installed package are.
    Raises where it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=kept | {"PYTHONPYCACHEPREFIX": BYTECODE.name})
    return time.perf_counter() - began


def perplexity(engine, ids: Sequence[int]) -> float:
    """Of a text, token by token, in float64."""
    nats, scores = 0.0, engine.begin(ids[:1], len(ids))
    for at, token in enumerate(ids[1:], 1):
        wide = scores.astype(np.float64)
        nats += float(np.log(np.exp(wide - wide.max()).sum()) + wide.max() - wide[token])
        if at < len(ids) - 1:
            scores = engine.step([token])
    return float(np.exp(nats / (len(ids) - 1)))
