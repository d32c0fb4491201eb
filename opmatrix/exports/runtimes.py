"""Runtimes that exported files are for: how each opens a file, and the kernels that it computes products with."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.exports.fx_module import as_identifier
from opmatrix.exports.program_graph import IDS, MASK
from opmatrix.exports.spelled_weights import INTEGERS, NARROW_SPELLING, STORED_SPELLING, WIDENED, WeightSpelling
from opmatrix.runtime.declarations.padded import Padded

ExportFeed = Mapping[str, Numeric]
Run = Callable[[ExportFeed], Sequence[Numeric]]  # inputs by name, to the outputs
NO_CACHES: ExportFeed = MappingProxyType({})
ONNX_ENDING, TORCH_ENDING = ".onnx", ".pt2"
PRODUCT_OPERATORS = frozenset({"MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})


class Runtime(NamedTuple):
    """A runtime: its package, the ending of its files, the spellings of weights that are tried in it, and two functions
    of a file and a number of threads: to a run of it, and, with a feed, to the counts of its kernels of products."""

    name: str
    ending: str
    spellings: Mapping[str, WeightSpelling]
    open: Callable[[Path, int], Run]
    products: Callable[[Path, int, ExportFeed], Mapping[str, int]]
    probed: bool = False  # a probe chooses the spelling of each weight, too

    @property
    def version(self) -> str:
        """The version that is installed. Raises InputError if none is."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            raise InputError(f"{self.name} is not installed: pip install {self.name}") from None


def open_onnxruntime(file: Path, threads: int, profile: str = "") -> Run:
    """Open an ONNX file in ONNX Runtime's CPU provider; `profile` begins the name of a file of times."""
    session = onnx_session(file, threads, profile)
    return lambda feed: session.run(None, dict(feed))


def onnx_session(model: Path | bytes, threads: int, profile: str = "") -> Padded:
    """Return a session of ONNX Runtime, of a file or of a model's bytes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    opened = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(opened, options, providers=["CPUExecutionProvider"])


def onnxruntime_products(file: Path, threads: int, feed: ExportFeed) -> dict[str, int]:
    """Count the operators of products that ONNX Runtime runs, by its profile of a run."""
    with TemporaryDirectory() as room:
        session = onnx_session(file, threads, str(Path(room) / "profile"))
        session.run(None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = {event["name"]: event["args"].get("op_name") for event in events if event.get("cat") == "Node"}
    return Counter(name for name in nodes.values() if name in PRODUCT_OPERATORS)


def compile_openvino(file: Path, threads: int) -> Padded:
    """Compile an ONNX file for OpenVINO's CPU plugin, float32 kept as it is."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    return core.compile_model(core.read_model(str(file)), "CPU", settings)


def open_openvino(file: Path, threads: int) -> Run:
    """Open an ONNX file in OpenVINO."""
    compiled = compile_openvino(file, threads)
    return lambda feed: [np.array(output) for output in compiled(dict(feed)).values()]


def openvino_products(file: Path, threads: int, feed: ExportFeed) -> dict[str, int]:
    """Count the kernels of products that OpenVINO compiled, by the number type of their weights, and the inputs that
    share a scale of a row that it rounds itself."""
    compiled = compile_openvino(file, threads)
    counts = Counter[str]()
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        if facts["layerType"].astype(str) in ("FullyConnected", "MatMul"):
            counts[f"{facts['layerType'].astype(str)} {facts['runtimePrecision'].astype(str)}"] += 1
    if counts.get("FullyConnected i8"):
        group = compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")
        counts = Counter({name.replace(" i8", f" i8, rows in groups of {group}"): n for name, n in counts.items()})
    return counts


def open_torch(file: Path, threads: int) -> Run:
    """Open a file of torch.export."""
    import torch

    torch.set_num_threads(threads)
    exported = torch.export.load(str(file))
    module, names = exported.module(), exported.graph_signature.user_inputs

    def run(feed: ExportFeed) -> list[Numeric]:
        """Run the module."""
        tensors = {as_identifier(name): torch.from_numpy(array) for name, array in feed.items()}
        with torch.no_grad():
            result = module(*map(tensors.__getitem__, names))
        return [np.asarray(x.numpy()) for x in (result.values() if isinstance(result, dict) else [result])]

    return run


def torch_products(file: Path, threads: int, feed: ExportFeed) -> dict[str, int]:
    """Count the products of a file of torch.export, all of them in float32."""
    import torch

    nodes = torch.export.load(str(file)).graph.nodes
    return {"matmul float32": sum("matmul" in str(node.target) for node in nodes)}


RUNTIMES = {
    runtime.name: runtime
    for runtime in [
        Runtime(
            "onnxruntime",
            ONNX_ENDING,
            {"float32": NARROW_SPELLING, "stored": STORED_SPELLING, "integers": INTEGERS},
            open_onnxruntime,
            onnxruntime_products,
            probed=True,
        ),
        Runtime(
            "openvino",
            ONNX_ENDING,
            {"float32": NARROW_SPELLING, "stored": STORED_SPELLING},
            open_openvino,
            openvino_products,
        ),
        Runtime("torch", TORCH_ENDING, {"float32": WIDENED}, open_torch, torch_products),
    ]
}


def runtime_of(name: str) -> Runtime:
    """Return a runtime by its name, which is installed. Raises InputError for another one."""
    if name not in RUNTIMES:
        raise InputError(f"--for {name}: it is no runtime that exports are timed in: give {', '.join(RUNTIMES)}")
    if not find_spec(name):
        raise InputError(f"--for {name}: {name} is not installed: pip install {name}")
    return RUNTIMES[name]


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[Numeric, Numeric]:
    """Return texts as ids and mask, (texts, longest) each, int64, padded behind."""
    ids, mask = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    return ids, mask


def make_feed(names: Sequence[str], ids: Numeric, mask: Numeric, caches: ExportFeed = NO_CACHES) -> dict[str, Numeric]:
    """Return the inputs of an export by name: token ids, their mask, token types 0, caches."""
    given = {IDS: ids, MASK: mask, **caches}
    return {name: given[name] if name in given else np.zeros_like(ids) for name in names}
