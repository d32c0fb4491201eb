"""Others' mixtures of experts: transformers' ways, ONNX Runtime's operators and kt-kernel, on one thread, in float32,
bf16 and bytes.
Each is a function of rows, scores and weights that are there before it is timed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Timed = Callable[[], object]


def torch_ways(up: np.ndarray, beside: np.ndarray, down: np.ndarray, k: int) -> Iterator[tuple[str, Any]]:
    """(name, experts) of transformers: a loop over experts, one grouped product, the loop compiled."""
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    torch.set_num_threads(1)
    for way in ("eager", "grouped_mm", "compiled"):
        (count, n, f), config = up.shape, MixtralConfig(hidden_act="silu")
        config.num_local_experts, config.hidden_size, config.intermediate_size = count, n, f
        config.num_experts_per_tok = k
        config._experts_implementation = "grouped_mm" if way == "grouped_mm" else "eager"
        with torch.device("meta"):
            experts = MixtralExperts(config)
        experts.gate_up_proj = torch.nn.Parameter(
            torch.from_numpy(np.concatenate([up, beside], 2).swapaxes(1, 2).copy()), requires_grad=False
        )
        experts.down_proj = torch.nn.Parameter(torch.from_numpy(down.swapaxes(1, 2).copy()), requires_grad=False)
        yield way, torch.compile(experts) if way == "compiled" else experts


def torch_call(experts: Any, x: np.ndarray, gate: np.ndarray, k: int) -> Timed:
    """A call, which ends with its result."""
    import torch

    order = np.argsort(-abs(gate), 1, kind="stable")[:, :k]
    given = (torch.from_numpy(x), torch.from_numpy(order.copy()), torch.from_numpy(np.take_along_axis(gate, order, 1)))

    def run() -> object:
        with torch.inference_mode():
            return experts(*given).numpy()

    return run


def onnx_session(up: np.ndarray, beside: np.ndarray, down: np.ndarray, k: int, narrow: bool) -> Any:
    """A session of one MoE, or QMoE, node on one thread; of a gate and what it multiplies in turn, as it asks."""
    import onnxruntime
    from onnx import TensorProto, helper, save_model

    (count, n, f), kind = up.shape, TensorProto.FLOAT
    both = np.stack([up, beside], 3).reshape(count, n, 2 * f)  # in turn

    def laid(w: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(w.swapaxes(1, 2))

    arrays: dict[str, np.ndarray] = {}
    for name, w in (("fc1", laid(both)), ("fc2", laid(down))):
        if narrow:
            scale = abs(w).max(2) / 127
            arrays |= {name: (np.rint(w / scale[:, :, None]) + 128).astype(np.uint8), f"{name}_scales": scale}
        else:
            arrays[name] = w
    inputs = ["x", "scores", "fc1", *(["fc1_scales", "", "fc2", "fc2_scales"] if narrow else ["", "fc2"])]
    options: dict[str, Any] = dict(k=k, activation_type="swiglu", swiglu_fusion=1, normalize_routing_weights=1)
    if narrow:
        options["expert_weight_bits"] = 8
    node = helper.make_node("QMoE" if narrow else "MoE", inputs, ["y"], domain="com.microsoft", **options)
    held = [
        helper.make_tensor(
            name, TensorProto.UINT8 if array.dtype == np.uint8 else kind, array.shape, array.tobytes(), raw=True
        )
        for name, array in arrays.items()
    ]
    graph = helper.make_graph(
        [node],
        "experts",
        [
            helper.make_tensor_value_info("x", kind, ["T", n]),
            helper.make_tensor_value_info("scores", kind, ["T", count]),
        ],
        [helper.make_tensor_value_info("y", kind, ["T", n])],
        held,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = chosen.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as home:
        save_model(helper.make_model(graph, opset_imports=opsets, ir_version=9), file := os.path.join(home, "m.onnx"))
        return onnxruntime.InferenceSession(file, chosen, ["CPUExecutionProvider"])


def onnx_call(session: Any, x: np.ndarray, gate: np.ndarray) -> Timed:
    """A call with the gate's numbers as scores: it goes where they are largest."""
    scores = np.where(gate == 0, np.float32(-9), gate)
    return lambda: session.run(None, {"x": x, "scores": scores})


class KtExperts:
    """A layer of kt-kernel (KTransformers) in bf16, by the kernels that it has for this processor."""

    def __init__(self, up: np.ndarray, beside: np.ndarray, down: np.ndarray, k: int) -> None:
        import torch
        from kt_kernel import kt_kernel_ext as native

        kinds = [kind for kind in ("AMXBF16_MOE", "AVX512BF16_MOE", "AVX2BF16_MOE") if hasattr(native.moe, kind)]
        if not kinds:
            raise RuntimeError("no bf16 for this processor")
        self.k, (count, n, f), pool = k, up.shape, native.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [1]
        self.infer, told = native.CPUInfer(pool), native.moe.MOEConfig(count, k, n, f, 0)
        told.pool, told.max_len = self.infer.backend_, 1024
        self.held = [torch.from_numpy(w.swapaxes(1, 2).copy()).to(torch.bfloat16) for w in (up, beside, down)]
        told.gate_projs, told.up_projs, told.down_projs = ([[each.data_ptr() for each in w]] for w in self.held)
        self.moe, order = getattr(native.moe, kinds[0])(told), torch.arange(count)
        self.finish(self.moe.load_weights_task(order.data_ptr()))

    def finish(self, task: object) -> None:
        self.infer.submit(task)
        self.infer.sync()

    def call(self, x: np.ndarray, gate: np.ndarray) -> Timed:
        """A call, which ends with its result in bf16."""
        import torch

        order = np.argsort(-abs(gate), 1, kind="stable")[:, : self.k].copy()
        ids, by = torch.from_numpy(order), torch.from_numpy(np.take_along_axis(gate, order, 1))
        rows, given = torch.tensor([len(x)], dtype=torch.int32), torch.from_numpy(x).to(torch.bfloat16)
        out = torch.empty_like(given)

        def run() -> object:
            self.finish(
                self.moe.forward_task(
                    rows.data_ptr(), self.k, ids.data_ptr(), by.data_ptr(), given.data_ptr(), out.data_ptr(), False
                )
            )
            return out

        return run
