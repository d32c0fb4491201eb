"""Peers: other runtimes for the same model, each in a process of its own on the same processors with as many threads.

    python benchmarks/peers.py NAME MODEL       serves: a line of JSON with rows of token ids in, a line with seconds out

`Peer(name, directory)` starts such a process; `Peer.seconds(rows)` is one forward pass, timed inside the process. All
rows of a batch have equal length, so that no peer computes on padding. A peer that cannot be had says why: `Absent`."""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Absent(RuntimeError):
    """A peer that does not run here, and why."""


def torch_model(directory):
    """transformers' BertModel with its own fast attention."""
    import torch
    import transformers
    torch.set_num_threads(cores())
    transformers.logging.set_verbosity_error()
    model = transformers.BertModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa",
                                                   add_pooling_layer=False, local_files_only=True)
    return torch, model.eval()


def torch_eager(directory):
    torch, model = torch_model(directory)

    def run(rows):
        with torch.inference_mode(): return model(torch.from_numpy(rows)).last_hidden_state.numpy()
    return run


def torch_compile(directory):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()                # what another process left half written
    torch, model = torch_model(directory)
    compiled = torch.compile(model, dynamic=False)

    def run(rows):
        with torch.inference_mode(): return compiled(torch.from_numpy(rows)).last_hidden_state.numpy()
    return run


def onnxruntime(directory):
    import onnxruntime as runtime
    torch, model = torch_model(directory)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")    # others use these processors, too

    class Hidden(torch.nn.Module):
        """Token ids in, hidden states out: all that is exported."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids): return self.model(input_ids=ids).last_hidden_state

    sample, axes = torch.ones((2, 16), dtype=torch.int64), {"ids": {0: "sentences", 1: "tokens"}}
    with tempfile.TemporaryDirectory() as place, torch.inference_mode():
        file = str(Path(place) / "model.onnx")
        torch.onnx.export(Hidden(), (sample,), file, input_names=["ids"], dynamic_axes=axes, dynamo=False,
                          output_names=["hidden"], opset_version=17)
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(["hidden"], {"ids": rows})[0]


def openvino(directory):
    import openvino as runtime
    torch, model = torch_model(directory)
    sample = torch.ones((2, 16), dtype=torch.int64)
    with torch.inference_mode():
        converted = runtime.convert_model(model, example_input={"input_ids": sample})
    wanted = {"INFERENCE_NUM_THREADS": cores(), "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = runtime.compile_model(converted, "CPU", wanted)
    return lambda rows: next(iter(compiled([rows]).values()))


PEERS = {"torch eager": torch_eager, "torch.compile": torch_compile, "onnxruntime": onnxruntime, "openvino": openvino}


def cores():
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Peer:
    """A peer at work in its own process. Raises Absent where it does not start."""

    def __init__(self, name, directory, patience=120.0):
        self.name, self.patience = name, patience
        threads = dict.fromkeys(THREADS, str(cores()))
        command = [sys.executable, str(Path(__file__).resolve()), name, str(directory)]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env=os.environ | threads | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"})
        self.answer()

    def answer(self):
        """The next line, as JSON."""
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {"absent": self.last_words()}
        if "absent" in found: raise Absent(f"{self.name}: {found['absent']}")
        return found

    def last_words(self):
        self.process.wait()
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"ended with status {self.process.returncode}"])[-1][:160]

    def ask(self, rows, numbers=False):
        print(json.dumps({"rows": rows, "numbers": numbers}), file=self.process.stdin, flush=True)
        return self.answer()

    def seconds(self, rows): return self.ask(rows)["seconds"]

    def numbers(self, rows):
        """What it computes: nested lists, sentences x tokens x columns."""
        return self.ask(rows, numbers=True)["numbers"]

    def close(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


def started(directory, names=PEERS, say=print):
    """The peers that run here; of each other one it is said why not."""
    found = []
    for name in names:
        try:
            peer = Peer(name, directory)
            peer.seconds([[101, 102] * 4])                  # what only fails at work is absent, too
            found.append(peer)
        except (Absent, BrokenPipeError) as error: say(f"absent  {error}")
    return found


def serve(name, directory):
    """The process of a peer: once it is ready it says so, then answers."""
    import numpy as np
    speak, sys.stdout = sys.stdout, sys.stderr               # what libraries print is no answer
    try: run = PEERS[name](directory)
    except Exception as error: return print(json.dumps({"absent": said(error)}), file=speak, flush=True)
    print(json.dumps({"ready": name}), file=speak, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        rows = np.array(asked["rows"], np.int64)
        try:
            begun = time.perf_counter()
            out = run(rows)
            taken = time.perf_counter() - begun
            found = {"seconds": taken} | ({"numbers": out.tolist()} if asked["numbers"] else {})
        except Exception as error: found = {"absent": said(error)}
        print(json.dumps(found), file=speak, flush=True)


def said(error):
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


if __name__ == "__main__": serve(*sys.argv[1:3])
