"""Experts on disk, one by one and fused: equal leaves and one model; what is missing or does not fit is a line."""

import json
from os import stat

import checkpoints
import numpy as np
import pytest
from checkpoints import fused

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.files.quantised import STORED
from opmatrix.files.tensors import ExpertTensors, Tensor
from opmatrix.models import tensors

BATCH = Batch([[3, 4, 5, 6, 7, 9, 30, 2, 11], [8]])
SIZES = dict(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    max_position_embeddings=20,
    rms_norm_eps=1e-5,
    rope_theta=300.0,
)
MIXTRAL = SIZES | dict(model_type="mixtral", intermediate_size=20, num_local_experts=4, num_experts_per_tok=2)
QWEN = SIZES | dict(
    model_type="qwen2_moe",
    intermediate_size=20,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=12,
)
PR_MOE = dict(model_type="pr_moe", vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_positions=20, num_experts=[3])
OLD = dict(gate_proj="w1", up_proj="w3", down_proj="w2")
UP = "layers.1.mlp.experts.up_proj"


def arrays(config, seed=0):
    """Numbers of float16 for what a model is made of, by its own names."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=shape).astype(np.float16).astype(np.float32) * (3 * shape[-1] ** -0.5 if shape[1:] else 1)
        for name, shape in tensors(config).items()
    }


def apart(found, config):
    """One by one, as files of that family have always had it."""
    mixtral, made = config["model_type"] == "mixtral", {}
    for name, array in found.items():
        stem, experts, part = name.partition(".mlp.experts.")
        if experts and mixtral:
            made |= {f"{stem}.block_sparse_moe.experts.{e}.{OLD[part]}.weight": one for e, one in enumerate(array)}
        elif experts:
            made |= {f"{name.removesuffix(part)}{e}.{part}.weight": one for e, one in enumerate(array)}
        else:
            made[name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if mixtral else name] = array
    return made


def write(directory, config, made, number="F32"):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    checkpoints.safetensors(directory / "model.safetensors", made, number)
    return directory


@pytest.mark.parametrize("config", [MIXTRAL, QWEN], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("number", ["F32", "BF16"])
def test_either_way_gives_the_same_model(tmp_path, config, number):
    """Leaves are equal, so terms are one node; the prefix of a head's file may stand before all names."""
    found = arrays(config)
    ways = [apart(found, config), fused(found), {f"model.{n}": a for n, a in fused(found).items()}]
    read = [Checkpoint.open(write(tmp_path / str(i), config, way, number)) for i, way in enumerate(ways)]
    models = [each.operator() for each in read]
    assert models[0] is models[1] is models[2]
    keys = {each.at(UP, *found[UP].shape).key for each in read}
    assert len(keys) == 1 and np.isfinite(dense(models[0], BATCH)).all()
    if number == "F32":
        assert np.array_equal(read[1].at(UP, *found[UP].shape).array, found[UP])


def test_rows_of_experts_lie_as_vectors(tmp_path):
    found, made = arrays(PR_MOE), {}
    for name, array in found.items():
        stem, experts, part = name.partition("deepspeed_experts.")
        if experts:
            made |= {
                f"{stem}{experts}{e}.{part}": one.reshape(-1) if part.endswith("bias") else one
                for e, one in enumerate(array)
            }
        else:
            made[name] = array
    checkpoint = Checkpoint.open(write(tmp_path, PR_MOE, made))
    name = "h.1.mlp.deepspeed_moe.experts.deepspeed_experts.c_fc.bias"
    assert np.array_equal(checkpoint.at(name, 3, 1, 96).array, found[name]) and checkpoint.operator().out.cols == 24


def test_experts_are_held_once(tmp_path):
    """Each matrix is read into its place: a weight takes its own bytes, and one expert's while they are read."""
    import tracemalloc

    big = MIXTRAL | dict(hidden_size=96, intermediate_size=512, num_local_experts=16)
    made = {f"layers.0.block_sparse_moe.experts.{e}.w3.weight": np.ones((512, 96), np.float32) for e in range(16)}
    checkpoint = Checkpoint.open(write(tmp_path, big, made))
    tracemalloc.start()
    held = checkpoint.at("layers.0.mlp.experts.up_proj", 16, 512, 96)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held.array.nbytes == 16 * 512 * 96 * 4 < peak < 1.3 * held.array.nbytes
    assert stat(tmp_path / "model.safetensors").st_size > held.array.nbytes


def stacked(found, config):
    return fused(found)


def without(name):
    return lambda made: {n: a for n, a in made.items() if n != name}


def with_(name, array):
    return lambda made: made | {name: array}


W3, ROUTER = "layers.1.block_sparse_moe.experts.2.w3.weight", "layers.0.block_sparse_moe.gate.weight"
FUSED = "layers.1.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(
    "way, change, words",
    [
        (apart, without(W3), f"tensor '{W3}' is missing from the weights: check .*config.json"),
        (apart, with_(W3, np.ones((24, 20))), f"tensor '{W3}' is 24 × 20, but .*config.json leads to 20 × 24: check "),
        (
            apart,
            with_(ROUTER, np.ones((5, 24))),
            f"tensor '{ROUTER}' is 5 × 24, but .* leads to 4 × 24: check num_local_experts$",
        ),
        (
            apart,
            with_(W3.replace(".2.", ".4."), np.ones((20, 24))),
            r"'layers.1.block_sparse_moe.experts.4.w3.weight', "
            "which .*config.json leaves out: check its number of layers and of experts$",
        ),
        (apart, with_(W3, np.full((20, 24), np.nan)), f"tensor '{W3}' has nan at \\[0, 0\\]"),
        (stacked, with_(FUSED, np.ones((4, 20, 24))), f"tensor '{FUSED}' is 4 × 20 × 24, but .* leads to 4 × 40 × 24"),
        (stacked, with_(FUSED, np.full((4, 40, 24), np.inf)), r"gate_up_proj\[0, 0:20\]' has inf at \[0, 0\]"),
        (stacked, without(FUSED), "tensor 'layers.1.block_sparse_moe.experts.0.w1.weight' is missing from the weights"),
    ],
    ids=["missing", "turned", "router", "too many", "nan", "fused shape", "fused inf", "none"],
)
def test_what_does_not_fit_is_named(tmp_path, way, change, words):
    directory = write(tmp_path, MIXTRAL, change(way(arrays(MIXTRAL), MIXTRAL)))
    with pytest.raises(InputError, match=words) as caught:
        Checkpoint.open(directory).operator()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_experts_of_several_types_are_refused(tmp_path):
    """Two shards, of which one holds an expert in float16."""
    made = apart(arrays(MIXTRAL), MIXTRAL)
    write(tmp_path, MIXTRAL, made)
    (tmp_path / "model.safetensors").unlink()
    checkpoints.safetensors(tmp_path / "a.safetensors", without(W3)(made))
    checkpoints.safetensors(tmp_path / "b.safetensors", {W3: made[W3]}, "F16")
    shards = {name: "b.safetensors" if name == W3 else "a.safetensors" for name in made}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(
        InputError,
        match=f"b.safetensors: tensor '{W3}' is of F16, but 'layers.1.block_sparse_moe."
        "experts.0.w3.weight' of F32: experts of a layer are one weight",
    ):
        Checkpoint.open(tmp_path).operator()


NOMIC = dict(
    model_type="nomic_bert",
    vocab_size=50,
    n_embd=24,
    n_inner=20,
    n_layer=2,
    n_head=3,
    n_positions=20,
    type_vocab_size=1,
    layer_norm_epsilon=1e-5,
    activation_function="gelu",
    mlp_fc1_bias=True,
    moe_every_n_layers=2,
    num_experts=4,
    moe_top_k=2,
)


def test_matrices_one_below_another_are_those_of_experts(tmp_path):
    """As NomicBert v2 stores them: (experts · units, columns)."""
    numbers, stem = arrays(NOMIC), "encoder.layers.1.mlp.experts.mlp"
    assert numbers[f"{stem}.w1"].shape == (4, 20, 24)
    below = {name: array.reshape(-1, 24) if name.startswith(stem) else array for name, array in numbers.items()}
    stacked, flat = (
        Checkpoint.open(write(tmp_path / name, NOMIC, made)) for name, made in (("stacked", numbers), ("flat", below))
    )
    assert np.array_equal(flat.at(f"{stem}.w2", 4, 20, 24).array, numbers[f"{stem}.w2"])
    assert np.array_equal(dense(flat.operator(), BATCH), dense(stacked.operator(), BATCH))
    write(tmp_path / "flat", NOMIC, below | {f"{stem}.w1": below[f"{stem}.w1"][:-1]})
    with pytest.raises(InputError, match=r"w1' is 79 × 24, but .* leads to 4 × 20 × 24"):
        Checkpoint.open(tmp_path / "flat").operator()


@pytest.mark.parametrize("number", ["F32", "Q8_0"])
def test_matrices_of_one_maker_are_made_once(rng, number):
    """Of a stack that is made whole; those that are made apart are made one by one, and none is held."""
    stored, made = STORED[number], []
    blocks = rng.integers(0, 60, 3 * 64 * 32 // stored.numbers * stored.block.itemsize, np.uint8).view(stored.block)

    def make():
        made.append(1)
        return blocks

    stack = Tensor(None, "a", number, (3, 64, 32), 0, made=make)
    experts = ExpertTensors([stack.matrix(e, 0, 64) for e in range(3)], [stack])
    wanted = stored.widen(blocks).reshape(3, 64, 32)
    assert np.array_equal(experts.read()[0], wanted) and len(made) == 1
    if stored.kept:
        assert np.array_equal(experts.read_filed().reshape(-1), blocks) and len(made) == 2
    single = [stack.matrix(e, 0, 64)._replace(made=lambda: make()) for e in range(3)]
    made.clear()
    assert np.array_equal(ExpertTensors(single, [stack]).read()[0], wanted) and len(made) == 3
