"""The engines that benchmarks/models.py compares: how each prepares a model, and how it runs what it prepared.

`prepare(job)` and `tune(job)` work in processes that are thrown away; they write into job.place, tune what depends on the
workload. `serve(job)` imports only what running needs. Every engine gets the settings with which it was fastest when they were
tried in turn; each says which."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


SEARCH = {"float32": ("--error", "0"), "bf16": ("--number-type", "bf16", "--error", "0.02"),      # how `opmatrix optimize` is asked
          "int8": ("--number-type", "int8", "--error", "0.1")}


class Padded:
    """A peer at work: run(ids, mask) -> (B, L, n). Batches of one length have no mask; others are padded with token 0."""

    def __init__(self, run, masked): self.call, self.masked = run, masked

    def ready(self, rows):
        import numpy as np
        lengths = np.array([len(row) for row in rows])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask == 1] = np.concatenate([np.asarray(row) for row in rows])
        return ids, mask if self.masked else None, lengths

    def run(self, batch): return self.call(*batch[:2])

    def rows(self, out, batch):
        """The hidden states of each sentence's real tokens."""
        import numpy as np
        out = out.float().numpy() if hasattr(out, "float") else np.asarray(out)
        return [np.array(found[:length]) for found, length in zip(out, batch[2], strict=True)]


class Ragged:
    """opmatrix at work: a batch is all rows of its sentences, one after another; nothing is padded."""

    def __init__(self, program):
        from opmatrix.patterns import Batch
        self.program, self.batch = program, Batch

    def ready(self, rows): return self.batch(rows)
    def run(self, batch): return self.program.run(batch)

    def rows(self, out, batch):
        import numpy as np
        return [np.array(found) for found in np.split(out, batch.starts[1:-1])]


class Engine:
    """`packages` must be there, the first names the version; number types that are not in `types` are refused because of `lacks`."""
    packages, types, lacks = (), ("float32", "bf16", "int8"), ""

    def tune(self, job): pass


class Opmatrix(Engine):
    """A program that `opmatrix optimize` found for this workload, nothing written by hand."""
    name, packages = "opmatrix", ("opmatrix",)

    def prepare(self, job):
        command = [sys.executable, "-m", "rewrites.cli", "optimize", job.model, *SEARCH[job.number_type], "--out", job.place]
        with tempfile.TemporaryDirectory() as room:
            done = subprocess.run([*command, *self.workload(job, Path(room) / "texts.txt")], cwd=ROOT, capture_output=True, text=True)
        if done.returncode: raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])

    def workload(self, job, file):
        """One sentence as long as the only one, or a file of a batch."""
        if len(job.sentences) == 1: return ["--tokens", str(len(job.sentences[0]))]
        file.write_text(job.text, "utf-8")
        return ["--workload", str(file)]

    def serve(self, job):
        from opmatrix.program import Program
        return Ragged(Program.load(job.place))


class Torch(Engine):
    """transformers' BertModel with torch's own fused attention. bf16 is the model in bfloat16, which is saved so; int8 is
    torch's dynamic quantisation of the linear layers, made when it is loaded, as it cannot be saved without pickle."""
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
        return torch, transformers.BertModel.from_pretrained(
            directory, dtype=number, attn_implementation="sdpa", add_pooling_layer=False, local_files_only=True).eval()

    def serve(self, job):
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(Path(job.place) / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        torch, model = self.model(job.place)
        torch.set_num_threads(job.threads)
        if job.number_type == "int8":
            model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        if self.compiled:
            torch._inductor.config.freezing = True          # weights in oneDNN's own layout: a fifth faster
            model = torch.compile(model, dynamic=job.shape is None)

        def run(ids, mask):
            ids, mask = (None if array is None else torch.from_numpy(array) for array in (ids, mask))
            with torch.inference_mode(): return model(input_ids=ids, attention_mask=mask).last_hidden_state
        return Padded(run, job.masked)


class Compiled(Torch):
    """The same through torch.compile, weights frozen; the second start finds its code in the cache."""
    name, compiled = "torch.compile", True


def module(model, masked):
    """Token ids, and a mask where some is needed, in; hidden states out: all that is exported."""
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask=None): return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones((2, 16), dtype=torch.int64)
    return Hidden(), (ids, ids.tril(8)) if masked else (ids,)


NAMES = "ids", "mask"


class OnnxRuntime(Engine):
    """The exported graph as ONNX Runtime itself optimises it, which was as fast as its transformer optimiser's. Threads spin
    while it runs, its default: without, a sentence of 16 tokens takes 1.5 times as long."""
    name, packages, types = "onnxruntime", ("onnxruntime", "onnx", "torch", "transformers"), ("float32", "int8")
    lacks = "its CPU provider has no kernels for bf16"

    def prepare(self, job):
        import torch
        example, inputs = module(Torch().model(job.model, "float32")[1], job.masked)
        axes = {name: {0: "sentences", 1: "tokens"} for name in (*NAMES[:len(inputs)], "hidden")}
        exported, target = Path(job.place) / "exported.onnx", Path(job.place) / "model.onnx"
        with torch.inference_mode():
            torch.onnx.export(example, inputs, str(exported), input_names=list(NAMES[:len(inputs)]), dynamic_axes=axes, dynamo=False,
                              output_names=["hidden"], opset_version=17)
        if job.number_type == "float32": exported.rename(target)
        else:
            from onnxruntime.quantization import QuantType, quantize_dynamic
            quantize_dynamic(exported, target, per_channel=True, weight_type=QuantType.QInt8)
            exported.unlink()

    def serve(self, job):
        import onnxruntime as runtime
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        session = runtime.InferenceSession(str(Path(job.place) / "model.onnx"), options, providers=["CPUExecutionProvider"])
        return Padded(lambda ids, mask: session.run(None, {"ids": ids} if mask is None else {"ids": ids, "mask": mask})[0], job.masked)


class OpenVino(Engine):
    """Its own form, saved for the shape where there is one, compiled into its model cache. float32 keeps its weights; where numbers
    are narrower they are stored in float16, which takes less memory. int8 is NNCF's quantisation after training, calibrated on texts,
    and runs the rest in bf16 where that was faster when it was prepared."""
    name, packages = "openvino", ("openvino", "nncf", "torch", "transformers")

    def prepare(self, job):
        import openvino as runtime
        import torch
        example, inputs = module(Torch().model(job.model, "float32")[1], job.masked)
        with torch.inference_mode():
            model = runtime.convert_model(example, example_input=dict(zip(NAMES, inputs, strict=False)))
        if job.number_type == "int8": model = self.quantised(model, job)
        runtime.save_model(model, str(Path(job.place) / "model.xml"), compress_to_fp16=job.number_type != "float32")

    def quantised(self, model, job):
        import nncf
        import numpy as np

        def feed(row):
            ids = np.array([row], np.int64)
            return {"ids": ids, "mask": np.ones_like(ids)} if job.masked else {"ids": ids}
        return nncf.quantize(model, nncf.Dataset(job.calibration, feed), model_type=nncf.ModelType.TRANSFORMER,
                             subset_size=len(job.calibration))

    def tune(self, job):
        import openvino as runtime
        model, (xml, chosen) = runtime.Core().read_model(Path(job.place) / "model.xml"), self.files(job)
        if job.shape: model.reshape({port.any_name: job.shape for port in model.inputs})
        runtime.save_model(model, str(xml), compress_to_fp16=False)
        chosen.write_text(json.dumps({"float32": "f32", "bf16": "bf16"}.get(job.number_type) or self.faster(job)))

    def files(self, job):
        """The model for this workload, and the precision to run it in."""
        return [Path(job.place) / f"{job.workload}.{kind}" for kind in ("xml", "json")]

    def faster(self, job):
        """f32 or bf16, whatever the first batch takes less time in, called in turn."""
        from statistics import median
        from time import perf_counter
        works = {precision: self.work(job, precision) for precision in ("f32", "bf16")}
        batch = next(iter(works.values())).ready([job.sentences[i] for i in job.batches[0]])
        taken = {precision: [] for precision in works}
        for _ in range(15):
            for precision, work in works.items():
                work.run(batch)
                start = perf_counter()
                work.run(batch)
                taken[precision].append(perf_counter() - start)
        return min(taken, key=lambda precision: median(taken[precision]))

    def serve(self, job): return self.work(job, json.loads(self.files(job)[1].read_text()))

    def work(self, job, precision):
        import openvino as runtime
        compiled = runtime.Core().compile_model(str(self.files(job)[0]), "CPU", {
            "INFERENCE_NUM_THREADS": job.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision,
            "CACHE_DIR": str(Path(job.place) / "cache")})
        request = compiled.create_infer_request()
        return Padded(lambda ids, mask: request.infer([ids] if mask is None else [ids, mask], share_inputs=True, share_outputs=True)[0],
                      job.masked)


ENGINES = {engine.name: engine for engine in (Opmatrix(), Torch(), Compiled(), OnnxRuntime(), OpenVino())}
