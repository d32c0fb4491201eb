"""Checkpoints that a quantisation method stores: their numbers to the bit, and what is wrong in one line."""

import json
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import quantised_files
import standin
from quantised_files import SCHEMES

from formats import FORMATS
from formats.core.errors import InputError
from formats.storage.block_layouts import LAYOUTS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.files.filed_data import BlockSource, FiledData
from opmatrix.files.methods.bitsandbytes import CodedRuns
from opmatrix.files.methods.plain_weights import QUANT_METHODS, plain_weights
from opmatrix.files.tensors import find_experts, header
from opmatrix.models.config import StackNames
from opmatrix.runtime.program import Program
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.representations import Representable
from rewrites.search.search import search

NAME = "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize("name", SCHEMES)
def test_numbers_are_those_of_the_method(tmp_path, name):
    """To the bit, in blocks of the format that holds them exactly; plain tensors beside them stay as they are."""
    scheme = SCHEMES[name]
    plain = quantised_files.write(tmp_path, scheme)
    checkpoint = open_model(tmp_path)
    assert {*checkpoint.tensors} == {*plain}
    for tensor, numbers in plain.items():
        data = checkpoint.at(tensor, *numbers.shape)
        assert np.array_equal(data.array, numbers), tensor
        kept = scheme.format != "dense" and tensor.split(".")[-2].endswith("_proj")
        assert isinstance(data, FiledData) == kept
        if kept:
            assert data.block_type == FORMATS[scheme.format].filed
            stored = FORMATS[scheme.format].of_blocks(data.blocks)
            assert np.array_equal(stored.unpack(), numbers.T)
    checkpoint.operator()


def experts(file, change=lambda tensors: None):
    """The tensors of a stack of matrices as gpt-oss stores them, in a file; and the stack."""
    codes, exponents, numbers = quantised_files.float4_groups(np.random.default_rng(2), 3, 48, 64)
    tensors = {"up_blocks": ("U8", codes.reshape(3, 48, 2, 16)), "up_scales": ("U8", exponents)}
    change(tensors)
    quantised_files.safetensors(file, tensors)
    return plain_weights({"quant_method": "mxfp4"}, file.with_name("config.json"), header(file)), numbers


def test_experts_of_float4(tmp_path):
    """Inputs by outputs, as a plain gpt-oss has them, whole and matrix by matrix."""
    tensors, numbers = experts(tmp_path / "a.safetensors")
    assert {*tensors} == {"up"} and tensors["up"].shape == (3, 64, 48)
    assert np.array_equal(tensors["up"].read(), numbers.swapaxes(1, 2))
    assert np.array_equal(tensors["up"].matrix(2, 5, 7).read(), numbers[2].T[5:12])


def test_an_exponent_that_is_no_number_is_a_line(tmp_path):
    def spoil(tensors):
        tensors["up_scales"][1][1, 2, 0] = 255

    with pytest.raises(InputError, match=r"a.safetensors: tensor 'up_scales' has nan at \[1, 2, 0\]: scales must"):
        experts(tmp_path / "a.safetensors", spoil)[0]["up"].read()
    with pytest.raises(InputError, match="tensor 'up_scales' is missing beside its others"):
        experts(tmp_path / "a.safetensors", lambda tensors: tensors.pop("up_scales"))


def test_experts_of_float8_are_a_stack_of_blocks(tmp_path):
    """As DeepSeek-V3 stores them, one by one; of inputs that no block divides, of float32."""
    rng = np.random.default_rng(4)
    for inputs, number in ((256, "E4M3_128"), (192, "F32")):
        packed = [quantised_files.float8_blocks(rng, 48, inputs) for _ in range(3)]
        parts = {
            f"experts.{e}.up_proj.{end}": part for e, each in enumerate(packed) for end, part in each.parts.items()
        }
        quantised_files.safetensors(file := tmp_path / f"{number}.safetensors", parts)
        settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        tensors = plain_weights(settings, file.with_name("config.json"), header(file))
        names = StackNames(("experts.#.up_proj.weight",), "experts.up_proj")
        experts = find_experts(tensors.get, "", names, (3, 48, inputs), lambda *_: None)
        assert {tensor.number for tensor in experts.matrices} == {number}
        wanted = np.stack([each.numbers for each in packed])
        assert np.array_equal(experts.read()[0], wanted)
        if (source := BlockSource.of(experts)) is not None:
            assert np.array_equal(FiledData(source, "up").array, wanted)
        assert (source is None) == (number == "F32")


def test_every_method_has_a_file():
    assert {scheme.settings["quant_method"] for scheme in SCHEMES.values()} | {"mxfp4"} == {*QUANT_METHODS}


def test_modules_that_no_method_stores_are_read_as_they_are(tmp_path):
    """As modules_to_not_convert and ignore leave some."""
    kept = np.random.default_rng(1).standard_normal((128, 256), np.float32)

    def leave(tensors, settings):
        for ending in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{NAME}.{ending}"]
        tensors[f"{NAME}.weight"] = "F32", kept

    quantised_files.write(tmp_path, SCHEMES["gptq"], leave)
    assert np.array_equal(open_model(tmp_path).at(f"{NAME}.weight", 128, 256).array, kept)


def test_layers_are_stored_alike(tmp_path):
    """A level of zero in one layer gives all layers one; a scale that float16 lacks widens all."""

    def one_zero(tensors, settings):
        tensors[f"{NAME}.qzeros"][1][0, 0] ^= 5

    def one_scale(tensors, settings):
        tensors[f"{NAME}.scales"] = "F32", tensors[f"{NAME}.scales"][1].astype(np.float32) * np.float32(1.00001)

    for change, number in ((one_zero, "Z4_128"), (one_scale, "F32")):
        quantised_files.write(tmp_path / number, SCHEMES["gptq"], change)
        tensors = open_model(tmp_path / number).tensors
        assert {tensors[f"model.layers.{layer}.self_attn.k_proj.weight"].number for layer in (0, 1)} == {number}
        assert tensors["model.layers.0.self_attn.q_proj.weight"].number == "W4_128"


def test_one_layer_alone_may_have_levels_of_zero(tmp_path):
    """Groups of the other have the middle one."""

    def without(tensors, settings):
        del tensors[f"{NAME}.weight_zero_point"]

    quantised_files.write(tmp_path, SCHEMES["int4 with zeros"], without)
    parts = quantised_files.drawn(SCHEMES["int4 with zeros"])[0]
    words, stored = (parts[f"{NAME}.{ending}"][1] for ending in ("weight_packed", "weight_scale"))
    levels = (words.view(np.uint32)[:, :, None] >> 4 * np.arange(8, dtype=np.uint32) & 15).reshape(128, 256)
    scales = np.repeat(stored.astype(np.float32), 128, 1)
    wanted = (levels.astype(np.float32) - 8) * scales
    assert np.array_equal(open_model(tmp_path).at(f"{NAME}.weight", 128, 256).array, wanted)


def test_zeros_of_the_first_version_borrow_from_the_next(tmp_path):
    """A level of zero that is 0 is stored as -1, of which the word keeps four bits and what it borrows."""
    zeros = np.array([0, 8, 1, 0, 15, 0, 0, 8])

    def borrow(tensors, settings):
        word = sum(int(level) << 4 * place for place, level in enumerate(zeros)) - 0x11111111
        tensors[f"{NAME}.qzeros"][1][0, 0] = np.array(word % (1 << 32), np.uint32).view(np.int32)

    plain = quantised_files.write(tmp_path, SCHEMES["gptq"], borrow)
    wanted = plain[f"{NAME}.weight"][:8, :128]
    scales = quantised_files.drawn(SCHEMES["gptq"])[0][f"{NAME}.scales"][1][0, :8].astype(np.float32)
    found = open_model(tmp_path).at(f"{NAME}.weight", 128, 256).array[:8, :128]
    assert np.array_equal(found, wanted + (scales * (8 - zeros).astype(np.float32))[:, None])


def matrices_of(program):
    """The formats of the matrices of a program, with their bytes."""
    return [(each.name, each.nbytes) for each in program.constants.values() if hasattr(each, "unpack")]


@pytest.mark.parametrize(
    "name",
    [
        "gptq",
        "gptq in groups of 64",
        "gptq with zeros",
        "gptq with zeros, 32",
        "gptq of 8 bits",
        "gptq of 8 bits with zeros",
        "awq",
        "awq in groups of 64",
        "int8 by channel",
        "float8 by channel",
        "fp8 in blocks",
        "nf4",
        "fp4",
        "gptq of float32",
    ],
)
def test_a_program_keeps_what_a_format_holds(tmp_path, name):
    """At no more than 1.03 times the bytes of the file, 1.032 where outputs share a scale; saved and opened again
    without it."""
    scheme, batch = SCHEMES[name], Batch([np.arange(7) * 3])
    quantised_files.write(tmp_path / "model", scheme)
    model = open_model(tmp_path / "model").operator()
    extents, methods = counted([7, 1], patterns(model)), Representable(in_blocks=True)
    program = search(model, EXACT_LAWS, standin.machine(), extents, methods=methods).program({})[0]
    kept = [size for format, size in matrices_of(program) if format == scheme.format]
    if scheme.format == "dense":
        assert {format for format, _ in matrices_of(program)} <= {"dense", "packed"}
    else:
        stored = quantised_files.drawn(scheme)[0].items()
        filed = sum(
            np.array(array).astype(quantised_files.WIDER[number]).nbytes
            for each, (number, array) in stored
            if "_proj" in each
        )
        assert sum(kept) <= (1.032 if name == "fp8 in blocks" else 1.03) * filed
    wanted = dense(model, batch)
    assert np.linalg.norm(program.run(batch) - wanted) < 2e-6 * np.linalg.norm(wanted)
    program.save(tmp_path / "p")
    (tmp_path / "model" / "model.safetensors").unlink()
    again = Program.load(tmp_path / "p")
    assert np.array_equal(again.run(batch), program.run(batch)) and matrices_of(again) == matrices_of(program)


# ---- what is wrong


def sets(key, value):
    def change(tensors, settings):
        place = settings
        *path, last = key.split(".")
        for part in path:
            place = place[part]
        place[last] = value

    return change


def replaces(ending, make):
    def change(tensors, settings):
        number, array = tensors[f"{NAME}.{ending}"]
        made = make(array)
        tensors[f"{NAME}.{ending}"] = made if isinstance(made, tuple) else (number, made)

    return change


def drops(ending):
    return lambda tensors, settings: tensors.pop(f"{NAME}.{ending}")


def at_first(value):
    def put(array):
        array = array.copy()
        array[(0,) * array.ndim] = value
        return array

    return put


def as_bytes(state):
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"
WEIGHTS = "config_groups.group_0.weights"
WRONG = {
    "an unknown method": ("gptq", sets("quant_method", "hqq"), r"quant_method is 'hqq': it must be one of gptq, awq, "),
    "a method of no name": ("gptq", sets("quant_method", 4), r"quant_method is 4: it must be one of"),
    "three bits": ("gptq", sets("bits", 3), r"quantization_config\.bits is 3: it must be 4 or 8: take another"),
    "bits as text": ("gptq", sets("bits", "4"), r"bits is '4': it must be 4 or 8"),
    "a group of nothing": ("gptq", sets("group_size", 0), "group_size is 0: it must be a positive whole number"),
    "a group that does not divide": ("gptq", sets("group_size", 96), "group_size is 96: it does not divide the 256"),
    "groups of another size": ("gptq", sets("group_size", 64), r"scales' is 2 × 256, but .*leads to 4 × 256"),
    "a packing of kernels": ("gptq", sets("checkpoint_format", "marlin"), "checkpoint_format is 'marlin': it must be"),
    "modules of other bits": ("gptq", sets("dynamic", {"+:.*down.*": {"bits": 8}}), "dynamic is .*left out, or"),
    "scales that are infinite": ("gptq", replaces("scales", at_first(np.inf)), r"k_proj.scales' has inf at \[0, 0\]"),
    "scales that are no numbers": ("awq", replaces("scales", at_first(np.nan)), r"k_proj.scales' has nan at \[0, 0\]"),
    "no scales": ("gptq", drops("scales"), "k_proj.scales' is missing beside its others"),
    "no zeros": ("awq", drops("qzeros"), "k_proj.qzeros' is missing beside its others"),
    "zeros of another shape": ("awq", replaces("qzeros", lambda a: a[:, 1:]), r"qzeros' is 2 × 15, .*leads to 2 × 16"),
    "levels of another type": ("gptq", replaces("qweight", lambda a: ("F32", a)), "number type F32, not I32"),
    "levels of three axes": ("gptq", replaces("qweight", lambda a: a[None]), r"qweight' is 1 × 32 × 128, but"),
    "fewer levels": ("gptq", replaces("qweight", lambda a: a[:16]), r"scales' is 2 × 128, but .* leads to 1 × 128"),
    "a group that is not there": ("gptq", replaces("g_idx", at_first(2)), "puts input 0 into group 2, of 2 groups"),
    "a group before the first": ("gptq", replaces("g_idx", at_first(-1)), "puts input 0 into group -1, of 2 groups"),
    "an order of other inputs": ("gptq", replaces("g_idx", lambda a: a[1:]), r"g_idx' is 255, .* leads to 256"),
    "another order of kernels": ("awq", sets("version", "gemv"), "version is 'gemv': it must be 'gemm' or 'GEMM'"),
    "no level of zero": ("awq", sets("zero_point", False), "zero_point is False: it must be True"),
    "an unknown format": ("int4", sets("format", "marlin-24"), "format is 'marlin-24': it must be 'pack-quantized' or"),
    "not compressed": ("int4", sets("quantization_status", "frozen"), "quantization_status is 'frozen': it must be"),
    "bits of int4": ("int4", sets(f"{WEIGHTS}.num_bits", 5), r"group_0\.weights\.num_bits is 5: it must be 4 or 8"),
    "blocks of int8": ("int8 by channel", sets(f"{WEIGHTS}.strategy", "block"), "strategy is 'block': it must be"),
    "no groups": ("int4", sets("config_groups", {}), "config_groups is {}: it must be settings of some modules"),
    "two kinds of weights": (
        "int4",
        sets("config_groups.group_1", {"weights": {"num_bits": 8}}),
        r"config_groups has weights of several kinds \(group_0, group_1\)",
    ),
    "groups that are no object": ("int4", sets("config_groups", 3), "config_groups is 3: it must be an object"),
    "a shape of other numbers": ("int4", replaces("weight_shape", at_first(120)), r"weight_packed' is 128 × 32, .*120"),
    "scales by channel": ("int8 in groups", replaces("weight_scale", lambda a: a[:, :1]), r"is 128 × 1, .*to 128 × 2"),
    "another float8": ("fp8 in blocks", sets("fmt", "e5m2"), "fmt is 'e5m2': it must be 'e4m3'"),
    "blocks of three sides": ("fp8 in blocks", sets("weight_block_size", [1, 2, 3]), "weight_block_size is .*it must"),
    "blocks of other sides": ("fp8 in blocks", sets("weight_block_size", [64, 64]), r"inv' is 2 × 2, .*to 4 × 4"),
    "no matrix": ("fp8 in blocks", drops("weight"), "k_proj.weight' is missing beside its others"),
    "a byte that is no number": ("fp8 in blocks", replaces("weight", at_first(0xFF)), r"has nan at \[0, 0\]: weights"),
    "a scale of float8": ("fbgemm", replaces("weight_scale", at_first(np.inf)), r"weight_scale' has inf at \[0, 0\]"),
    "8 bits of bitsandbytes": ("nf4", sets("load_in_8bit", True), "load_in_8bit is True: it must be False"),
    "a table of another kind": ("nf4", sets("bnb_4bit_quant_type", "nf3"), "bnb_4bit_quant_type is 'nf3': it must be"),
    "another kind of codes": ("nf4", sets("bnb_4bit_quant_type", "fp4"), "bitsandbytes__fp4' is missing beside its"),
    "a state that is no JSON": ("nf4", replaces(STATE, at_first(0)), "bitsandbytes__nf4': not JSON: "),
    "a state without a shape": ("nf4", replaces(STATE, lambda a: as_bytes({"blocksize": 64})), "it must have a shape"),
    "a table of eight": ("nf4", replaces("weight.quant_map", lambda a: a[:8]), r"quant_map' is 8, .*leads to 16"),
    "scales of runs": ("nf4", replaces("weight.absmax", at_first(np.nan)), r"weight.absmax' has nan at \[0\]"),
    "levels of no rows": ("gptq", replaces("qweight", lambda a: a[:0]), r"qweight' is 0 × 128: it holds no numbers"),
    "a scale beyond float32": ("fbgemm", replaces("weight_scale", at_first(3e38)), r"weight' has -?inf at \[0, \d+\]"),
    "float8 of no rows": ("fp8 in blocks", replaces("weight", lambda a: a[:0]), r"weight' is 0 × 256: it holds no"),
    "words of no rows": ("int4", replaces("weight_packed", lambda a: a[:0]), r"weight_packed' is 0 × 32: it holds no"),
    "a shape of truth values": (
        "nf4",
        replaces(STATE, lambda a: as_bytes({"shape": [True, 256], "blocksize": 64})),
        r"weight' is 16384 × 1, .*leads to 128 × 1",
    ),
    "runs beyond memory": (
        "nf4",
        replaces(STATE, lambda a: as_bytes({"shape": [128, 256], "blocksize": 1 << 60})),
        r"absmax' is 512, .*leads to 1:",
    ),
    "fewer codes": ("nf4", replaces("weight", lambda a: a[1:]), r"weight' is 16383 × 1, .*leads to 16384 × 1"),
    "a group of float4": ("mxfp4 in words", sets(f"{WEIGHTS}.group_size", 16), "group_size is 16: it must be 32"),
    "scales of inputs": ("fbgemm", replaces("weight_scale", lambda a: a.T), r"weight_scale' is 1 × 128, .*to 128 × 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_a_line(tmp_path, case):
    """With the key or the tensor, its value, and the file."""
    name, change, words = WRONG[case]
    quantised_files.write(tmp_path, SCHEMES[name], change)
    with pytest.raises(InputError, match=words) as caught:
        open_model(tmp_path).operator()
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_matrix_has_scales_of_one_name(tmp_path):
    """Two of fp8's at once are two answers to one question; one is read, and the other is a tensor too many."""

    def both(tensors, settings):
        tensors[f"{NAME}.weight_scale"] = tensors[f"{NAME}.weight_scale_inv"]

    plain = quantised_files.write(tmp_path, SCHEMES["fp8 in blocks"], both)
    assert np.array_equal(open_model(tmp_path).at(f"{NAME}.weight", 128, 256).array, plain[f"{NAME}.weight"])


@pytest.mark.parametrize("size", [1, 2, 9, 35, 64])
def test_bytes_of_odd_matrices_end_in_half_a_code(size):
    """bitsandbytes fills the last byte up."""
    rng = np.random.default_rng(0)
    codes, table = rng.integers(0, 16, size), rng.standard_normal(16).astype(np.float32)
    pairs = np.append(codes, 0)[: size + size % 2].reshape(-1, 2)
    held = np.uint8(pairs[:, 0] << 4 | pairs[:, 1])
    runs = rng.uniform(1, 2, -(-size // 4)).astype(np.float32)
    packed = SimpleNamespace(number="U8", shape=held.shape, read_blocks=lambda block, count: held)
    coded = CodedRuns(packed, SimpleNamespace(read=lambda: table), lambda: runs, 4, (1, size))
    assert np.array_equal(coded.widen(), table[codes] * np.repeat(runs, 4)[:size])


def test_tables_of_bitsandbytes_are_as_defined():
    """nf4: quantiles of a normal distribution at equal steps from an offset to the middle, seven of them negative and
    eight positive, and zero, over the largest. fp4: a sign, then 0, 1/192, and 2/3, 1/3 and 1/6 once and half as much
    again."""
    quantiles = np.vectorize(NormalDist().inv_cdf)
    positive, negative = (quantiles(np.linspace(0.9677083, 0.5, count)[:-1]) for count in (9, 8))
    normal = np.sort([*positive, 0.0, *-negative]) / positive.max()
    assert abs(normal - LAYOUTS["nf4_64"].table).max() < 2e-7
    halves = [0, 1 / 192, *(number * more for number in (2 / 3, 1 / 3, 1 / 6) for more in (1, 1.5))]
    assert LAYOUTS["fp4_64"].table == (*halves, *(-number for number in halves))


def test_no_method_at_all_is_refused_as_before(tmp_path):
    quantised_files.write(tmp_path, SCHEMES["gptq"], lambda tensors, settings: settings.pop("quant_method"))
    with pytest.raises(InputError, match=r"quantization_config is .*left out: weights are read as plain numbers"):
        open_model(tmp_path)
