"""The engines that benchmarks/models.py compares: how each prepares a model, and how it runs what it prepared.

`prepare(job)` and `tune(job)` work in processes that are thrown away; they write into job.place, tune what depends on
the workload and say to what. `serve(job)` imports only what running needs. Every engine gets the settings with which it
was fastest when they were tried in turn."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


# how `opmatrix optimize` is asked
SEARCH = {
    "float32": ("--error", "0"),
    "bf16": ("--number-type", "bf16", "--error", "0.02"),
    "int8": ("--number-type", "int8", "--error", "0.1"),
}
ROWS = "--output", "rows"  # as peers give them: a row a token


class Padded:
    """A peer at work: run(ids, mask) -> (B, L, n). Batches of one length have no mask; others are padded with token
    0."""

    def __init__(self, run, masked):
        self.call, self.masked = run, masked

    def ready(self, rows):
        import numpy as np

        lengths = np.array([len(row) for row in rows])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask == 1] = np.concatenate([np.asarray(row) for row in rows])
        return ids, mask if self.masked else None, lengths

    def run(self, batch):
        return self.call(*batch[:2])

    def rows(self, out, batch):
        """The hidden states of each sentence's real tokens."""
        import numpy as np

        out = out.float().numpy() if hasattr(out, "float") else np.asarray(out)
        return [np.array(found[:length]) for found, length in zip(out, batch[2], strict=True)]


class Streams(Padded):
    """A peer that works on several pieces of a batch at a time; each is padded to its own longest sentence. `begin(ids,
    mask)` starts the next piece and returns what waits for its result."""

    def __init__(self, begin, masked, pieces):
        self.begin, self.masked, self.pieces = begin, masked, pieces

    def ready(self, rows):
        ends = [len(rows) * i // self.pieces for i in range(self.pieces + 1)]
        return [Padded.ready(self, rows[a:b]) for a, b in itertools.pairwise(ends) if b > a]

    def run(self, batch):
        waiting = [self.begin(i, *piece[:2]) for i, piece in enumerate(batch)]
        return [wait() for wait in waiting]

    def rows(self, out, batch):
        return [row for pair in zip(out, batch, strict=True) for row in Padded.rows(self, *pair)]


class Ragged:
    """opmatrix at work: a batch is all rows of its sentences, one after another; nothing is padded."""

    def __init__(self, program):
        try:
            from opmatrix.algebra.batch.batch import Batch
        except ModuleNotFoundError:  # where it was before 0.14
            from opmatrix.algebra.positions.patterns import Batch
        self.program, self.batch = program, Batch

    def ready(self, rows):
        return self.batch(rows)

    def run(self, batch):
        return self.program.run(batch)

    def rows(self, out, batch):
        import numpy as np

        return [np.array(found) for found in np.split(out, batch.starts[1:-1])]


class Engine:
    """`packages` must be there, the first names the version; number types that are not in `types` are refused because
    of `lacks`."""

    packages, types, lacks = (), ("float32", "bf16", "int8"), ""

    def needs(self, number_type):
        """The packages for that number type."""
        return self.packages

    def tune(self, job):
        """Decides what depends on the workload, and says what it decided in a few words."""
        return "nothing to decide"


def fastest(job, works, calls=15):
    """The name of the work that takes least time on the job's largest batch: medians of calls, in turn."""
    from statistics import median
    from time import perf_counter

    largest = max(job.batches, key=lambda batch: sum(len(job.sentences[i]) for i in batch))
    ready = {name: work.ready([job.sentences[i] for i in largest]) for name, work in works.items()}
    taken = {name: [] for name in works}
    for _ in range(calls):
        for name, work in works.items():
            work.run(ready[name])  # the first call after another's finds cold caches
            start = perf_counter()
            work.run(ready[name])
            taken[name].append(perf_counter() - start)
    return min(taken, key=lambda name: median(taken[name]))


class Opmatrix(Engine):
    """A program that `opmatrix optimize` found for this workload, nothing written by hand."""

    name, packages = "opmatrix", ("opmatrix",)

    def prepare(self, job):
        command = [
            sys.executable,
            "-m",
            "rewrites.cli",
            "optimize",
            job.model,
            *SEARCH[job.number_type],
            *ROWS,
            "--out",
            job.place,
        ]
        with tempfile.TemporaryDirectory() as room:
            done = subprocess.run(
                [*command, *self.workload(job, Path(room) / "texts.txt")], cwd=ROOT, capture_output=True, text=True
            )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])

    def workload(self, job, file):
        """One sentence as long as the only one, or a file of a batch."""
        if len(job.sentences) == 1:
            return ["--tokens", str(len(job.sentences[0]))]
        file.write_text(job.text, "utf-8")
        return ["--workload", str(file)]

    def serve(self, job):
        from opmatrix.runtime.program import Program

        return Ragged(Program.load(job.place))


class Torch(Engine):
    """transformers' model with torch's own fused attention; a BERT has no pooler, a decoder fills no cache. bf16 is the
    model in bfloat16, which is saved so; int8 is torch's dynamic quantisation of the linear layers, weights by output
    channel, made when it is loaded, as it cannot be saved without pickle."""

    name, packages = "torch", ("torch", "transformers")
    compiled = False

    def prepare(self, job):
        _, model = self.model(job.model, "bfloat16" if job.number_type == "bf16" else "float32")
        model.save_pretrained(job.place)

    def model(self, directory, number="auto"):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        plain = {"add_pooling_layer": False} if config.model_type == "bert" else {}
        return torch, transformers.AutoModel.from_pretrained(
            directory, config=config, dtype=number, attn_implementation="sdpa", local_files_only=True, **plain
        ).eval()

    def serve(self, job):
        torch, model = self.model(job.place)
        torch.set_num_threads(job.threads)
        if job.number_type == "int8":
            from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

            model = quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})
        return self.padded(torch, lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state, job)

    def padded(self, torch, call, job):
        def run(ids, mask):
            with torch.inference_mode():
                return call(*(None if array is None else torch.from_numpy(array) for array in (ids, mask)))

        return Padded(run, job.masked)


class Compiled(Torch):
    """The same through torch.compile, weights frozen; the second start finds its code in the cache. int8 is torchao's
    quantisation of the exported graph (PT2E) as inductor's quantiser for x86 asks: weights by output channel,
    activations as they come. With activations calibrated beforehand it took 1.06 times as long."""

    name = "torch.compile"

    def needs(self, number_type):
        return (*self.packages, *["torchao"] * (number_type == "int8"))

    def tune(self, job):
        if job.number_type != "int8":
            return "weights frozen"
        import torch
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        model, inputs = module(self.model(job.model, "float32")[1], job.masked)
        sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
        if job.shape:
            inputs, sizes = (torch.ones(job.shape, dtype=torch.int64),), {}
        with torch.no_grad():
            graph = torch.export.export(model, inputs, dynamic_shapes=[sizes] * len(inputs)).module()
            quantizer = x86.X86InductorQuantizer().set_global(
                x86.get_default_x86_inductor_quantization_config(is_dynamic=True)
            )
            prepared = prepare_pt2e(graph, quantizer)
            prepared(*inputs)
            torch.export.save(
                torch.export.export(convert_pt2e(prepared), inputs, dynamic_shapes=[sizes] * len(inputs)),
                self.file(job),
            )
        return "weights frozen, quantised by PT2E: weights by channel, activations as they come"

    def file(self, job):
        return Path(job.place) / f"{job.workload}.pt2"

    def serve(self, job):
        os.environ |= {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(job.place) / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        import torch

        torch.set_num_threads(job.threads)
        torch._inductor.config.freezing = True  # weights in oneDNN's own layout: a fifth faster
        if job.number_type == "int8":
            from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer  # noqa: F401  registers its operators

            model = torch.export.load(self.file(job)).module()
            whole = torch.compile(model, dynamic=job.shape is None)
            return self.padded(torch, lambda ids, mask: whole(ids) if mask is None else whole(ids, mask), job)
        whole = torch.compile(self.model(job.place)[1], dynamic=job.shape is None)
        return self.padded(torch, lambda ids, mask: whole(input_ids=ids, attention_mask=mask).last_hidden_state, job)


def module(model, masked):
    """Token ids, and a mask where some is needed, in; hidden states out: all that is exported. A decoder, whose
    attention is causal, is told whom its rows see, as transformers finds it out by operators that exporters lack;
    padding stands behind all of them. The example is longer than a window of both sides, which a shorter one has not in
    its graph."""
    import torch

    causal = any(getattr(part, "is_causal", False) for part in model.modules())

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask=None):
            if causal:
                mask = torch.full(2 * ids.shape[1:], -torch.inf).triu(1)[None, None]
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones((2, max(16, 2 * getattr(model.config, "local_attention", 0))), dtype=torch.int64)
    return Hidden(), (ids, ids.tril(8)) if masked else (ids,)


NAMES = "ids", "mask"


class OnnxRuntime(Engine):
    """The exported graph as ONNX Runtime itself optimises it, which was as fast as its transformer optimiser's. Threads
    spin while it runs, its default: without, a sentence of 16 tokens takes 1.5 times as long."""

    name, packages, types = "onnxruntime", ("onnxruntime", "onnx", "torch", "transformers"), ("float32", "int8")
    lacks = "its CPU provider has no kernels for bf16"

    def prepare(self, job):
        import torch

        example, inputs = module(Torch().model(job.model, "float32")[1], job.masked)
        axes = {name: {0: "sentences", 1: "tokens"} for name in (*NAMES[: len(inputs)], "hidden")}
        exported, target = Path(job.place) / "exported.onnx", Path(job.place) / "model.onnx"
        with torch.inference_mode():
            torch.onnx.export(
                example,
                inputs,
                str(exported),
                input_names=list(NAMES[: len(inputs)]),
                dynamic_axes=axes,
                dynamo=False,
                output_names=["hidden"],
                opset_version=17,
            )
        if job.number_type == "float32":
            exported.rename(target)
        else:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(exported, target, per_channel=True, weight_type=QuantType.QInt8)
            exported.unlink()

    def serve(self, job):
        import onnxruntime as runtime

        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        session = runtime.InferenceSession(
            str(Path(job.place) / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        return Padded(
            lambda ids, mask: session.run(None, {"ids": ids} if mask is None else {"ids": ids, "mask": mask})[0],
            job.masked,
        )


class OpenVino(Engine):
    """Its own form, saved for the shape where there is one, compiled into its model cache. float32 keeps its weights;
    where numbers are narrower they are stored in float16, which takes less memory. int8 is NNCF's quantisation after
    training, calibrated on texts, and runs the rest in bf16 where that was faster when it was tuned. It runs in latency
    mode or in streams, whichever was faster."""

    name, packages = "openvino", ("openvino", "nncf", "torch", "transformers")

    def prepare(self, job):
        import openvino as runtime
        import torch

        example, inputs = module(Torch().model(job.model, "float32")[1], job.masked)
        with torch.inference_mode():
            model = runtime.convert_model(example, example_input=dict(zip(NAMES, inputs, strict=False)))
        if job.number_type == "int8":
            model = self.quantised(model, job)
        runtime.save_model(model, str(Path(job.place) / "model.xml"), compress_to_fp16=job.number_type != "float32")

    def quantised(self, model, job):
        import nncf
        import numpy as np

        def feed(row):
            ids = np.array([row], np.int64)
            return {"ids": ids, "mask": np.ones_like(ids)} if job.masked else {"ids": ids}

        return nncf.quantize(
            model,
            nncf.Dataset(job.calibration, feed),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(job.calibration),
        )

    def tune(self, job):
        """Precision and streams with which the largest batch takes least time, called in turn; saves the model in the
        shape for them."""
        import openvino as runtime

        core = runtime.Core()
        works = {
            setting: self.work(
                job, core.compile_model(self.shaped(core, job, setting[2]), "CPU", options(job, *setting)), setting[2]
            )
            for setting in self.settings(job)
        }
        chosen = fastest(job, works)
        xml, file = self.files(job)
        runtime.save_model(self.shaped(core, job, chosen[2]), str(xml), compress_to_fp16=False)
        file.write_text(json.dumps(chosen))
        return f"{chosen[0]}, {chosen[1]} streams, batches in {chosen[2]} pieces, of {len(works)} settings tried"

    def settings(self, job):
        """(precision, streams, pieces of a batch) that are tried: one stream is its latency mode."""
        precisions = {"float32": ("f32",), "bf16": ("bf16",)}.get(job.number_type, ("f32", "bf16"))
        least, streams = min(map(len, job.batches)), job.threads
        pieces = (
            [n for n in (streams, 2 * streams) if 1 < n <= least and not (job.shape and least % n)]
            if streams > 1
            else []
        )
        return [(precision, *mode) for precision in precisions for mode in [(1, 1), *((streams, n) for n in pieces)]]

    def shaped(self, core, job, pieces):
        model = core.read_model(Path(job.place) / "model.xml")
        if job.shape:
            model.reshape({port.any_name: [job.shape[0] // pieces, job.shape[1]] for port in model.inputs})
        return model

    def files(self, job):
        """The model for this workload, and the setting to run it with."""
        return [Path(job.place) / f"{job.workload}.{kind}" for kind in ("xml", "json")]

    def serve(self, job):
        import openvino as runtime

        xml, chosen = self.files(job)
        setting = json.loads(chosen.read_text())
        return self.work(job, runtime.Core().compile_model(str(xml), "CPU", options(job, *setting)), setting[2])

    def work(self, job, compiled, pieces):
        requests = [compiled.create_infer_request() for _ in range(pieces)]

        def given(ids, mask):
            return [ids] if mask is None else [ids, mask]

        def begin(i, ids, mask):
            requests[i].start_async(given(ids, mask), share_inputs=True)
            return lambda: requests[i].wait() or requests[i].get_output_tensor(0).data

        if pieces > 1:
            return Streams(begin, job.masked, pieces)
        return Padded(
            lambda ids, mask: requests[0].infer(given(ids, mask), share_inputs=True, share_outputs=True)[0], job.masked
        )


def options(job, precision, streams, pieces):
    """What OpenVINO compiles a model with."""
    return {
        "INFERENCE_NUM_THREADS": job.threads,
        "INFERENCE_PRECISION_HINT": precision,
        "CACHE_DIR": str(Path(job.place) / "cache"),
        **(
            {"PERFORMANCE_HINT": "LATENCY"}
            if streams == 1
            else {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": streams}
        ),
    }


ENGINES = {engine.name: engine for engine in (Opmatrix(), Torch(), Compiled(), OnnxRuntime(), OpenVino())}
