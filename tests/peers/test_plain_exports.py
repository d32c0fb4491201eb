"""Programs written as checkpoints again (`opmatrix export --hf`): opened by transformers and sentence-transformers,
with the program's numbers; number types, fewer units and layers; and programs that their class cannot hold."""

import json
import sys
from dataclasses import replace

import checkpoints
import numpy as np
import pytest
import standin
from children import ROOT
from safetensors import safe_open
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS, Dense
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.exports.checkpoints.plain_files import export_plain
from opmatrix.files.checkpoint import open_model
from opmatrix.models import FAMILIES
from opmatrix.runtime.program import Step
from rewrites.approximate.removing import Level, remove_groups
from rewrites.cli.commands import app
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened
from rewrites.workload.resolve import source
from rewrites.workload.workload import draw_workload

sys.path.append(str(ROOT / "benchmarks"))

import widths

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

WORDS = 41  # those of the small tokenizer
SIZES = dict(vocab_size=WORDS, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
BERT = SIZES | dict(max_position_embeddings=64)
PADDED = SIZES | dict(max_position_embeddings=66, pad_token_id=1)
LLAMA = BERT | dict(num_key_value_heads=2, bos_token_id=None, eos_token_id=None)
DISTIL = dict(vocab_size=WORDS, dim=48, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64)
TIED = dict(tie_word_embeddings=True)
MODELS = {  # models by name: the words of the class, of the config, its entries
    "bert": ("BertModel", "Bert", BERT),
    "roberta": ("RobertaModel", "Roberta", PADDED),
    "xlm-roberta": ("XLMRobertaModel", "XLMRoberta", PADDED),
    "camembert": ("CamembertModel", "Camembert", PADDED),
    "distilbert": ("DistilBertModel", "DistilBert", DISTIL),
    "nomic_bert": ("NomicBertModel", "NomicBert", BERT | dict(hidden_size=256)),
    "llama": ("LlamaForCausalLM", "Llama", LLAMA),
    "llama, tied": ("LlamaForCausalLM", "Llama", LLAMA | TIED | dict(head_dim=16)),
    "llama, hidden": ("LlamaModel", "Llama", LLAMA),
    "mistral": ("MistralForCausalLM", "Mistral", LLAMA | dict(sliding_window=7)),
    "qwen2": ("Qwen2Model", "Qwen2", LLAMA),
    "qwen2, tied": ("Qwen2ForCausalLM", "Qwen2", LLAMA | TIED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3", LLAMA | dict(head_dim=16)),
}
TOKENS = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
IDS = np.arange(2, 11)


def drawn(name, **more):
    kind, config, said = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**said | more)).eval()
    widths.draw(model.named_parameters())
    return model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    checkpoints.write_tokenizer(file)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **TOKENS)


def searched(operator, meta):
    """The exact program of an operator."""
    workload = draw_workload(Batch([IDS]), operator)
    opened = Opened(operator, workload, standin.machine(), EXACT_LAWS, meta)
    return opened.explore(EXACT_LAWS)[1].program(meta)[0]


def exact_program(model, tokenizer=None, pooled=False):
    checkpoint = om.from_torch(model, tokenizer)
    return searched(checkpoint.operator(pooled), source(checkpoint))


def rows_of(model, ids=IDS):
    with torch.no_grad():
        found = model(torch.from_numpy(ids)[None])
    return (found.logits if hasattr(found, "logits") else found.last_hidden_state)[0].numpy()


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_opens_a_program_as_its_class(tmp_path, name):
    model = drawn(name)
    program = exact_program(model)
    export_plain(program, tmp_path / "again")
    again = transformers.AutoConfig.from_pretrained(tmp_path / "again")
    assert again.architectures == [type(model).__name__]
    assert again.tie_word_embeddings == model.config.tie_word_embeddings
    opened = type(model).from_pretrained(tmp_path / "again").eval()
    assert relative(rows_of(opened), program.run([IDS])) < 1e-5
    assert relative(rows_of(opened), rows_of(model)) < 1e-5


def summed_apart(program):
    """The program with a step of its own for each sum of a product and its stream, and its norm, as some machines have
    them; the stream is either operand."""
    steps = []
    for at, step in enumerate(program.steps):
        if step.kernel == "linear" and "residual" in step.operands:
            behind = {name: value for name, value in step.operands.items() if name in ("gain", "shift")}
            product = {name: step.operands[name] for name in step.operands.keys() - behind.keys() - {"residual"}}
            steps.append(Step("linear", product, {}, f"product{at}"))
            both = step.operands["residual"], f"product{at}"
            sides = dict(zip(("x", "residual"), both[:: 1 if at % 2 else -1], strict=True))
            step = Step("pointwise", sides | behind, step.attributes, step.output)
        steps.append(step)
    return type(program)(steps, program.constants, program.outputs, program.meta)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_sums_may_be_steps_of_their_own(tmp_path, name):
    program = exact_program(drawn(name))
    apart = summed_apart(program)
    assert len(apart.steps) == len(program.steps) + 4
    export_plain(apart, tmp_path / "again")
    opened = getattr(transformers, MODELS[name][0]).from_pretrained(tmp_path / "again").eval()
    assert relative(rows_of(opened), program.exact([IDS], rounded=False)) < 1e-5


def test_every_family_is_written_or_refused_by_name(tmp_path):
    program = exact_program(drawn("bert"))
    for family in FAMILIES.keys() - {name.split(",")[0] for name in MODELS}:
        with pytest.raises(InputError, match=rf"--hf: a program of {family}: only bert, .* are written"):
            export_plain(program.replace(config={**program.meta["config"], "model_type": family}), tmp_path / "again")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_sentence_transformers_embeds_as_the_program(tmp_path, tokenizer, name):
    peers = pytest.importorskip("sentence_transformers", reason="needs peers: sentence-transformers")
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    drawn(name, pad_token_id=tokenizer.pad_token_id).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    parts = [Transformer(str(tmp_path / "plain"), max_seq_length=12), Pooling(48, ["cls", "mean"]), Normalize()]
    model = peers.SentenceTransformer(modules=parts, device="cpu", prompts={"q": "the bank "}, default_prompt_name="q")
    checkpoint = om.from_torch(model)
    program = searched(checkpoint.operator(True), source(checkpoint))
    export_plain(program, tmp_path / "again")
    texts = ["the bank", "The River runs dry.", "rivers runs dry ? " * 9]
    again = peers.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_allclose(again.encode(texts), program.embed(texts), atol=1e-5)
    np.testing.assert_allclose(again.encode(texts), model.encode(texts), atol=1e-5)
    assert again.max_seq_length == 12 and again.prompts["q"] == "the bank "


def test_tokenizers_and_ends_travel_with_a_language_model(tmp_path, tokenizer):
    program = exact_program(drawn("llama", eos_token_id=3), tokenizer)
    export_plain(program, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again("The river runs dry.").input_ids == tokenizer("The river runs dry.").input_ids
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "again").eos_token_id == [3]


@pytest.mark.parametrize("number, dtype", [("bf16", "BF16"), ("half", "F16")])
def test_number_types_are_written_as_they_are(tmp_path, number, dtype):
    from safetensors import safe_open

    program = exact_program(drawn("bert"))
    narrow = {
        name: FORMATS[number].approximate(weight.unpack()) if name in used_by_products(program) else weight
        for name, weight in program.constants.items()
    }
    rounded = type(program)(program.steps, narrow, program.outputs, program.meta)
    export_plain(rounded, tmp_path / "again")
    with safe_open(tmp_path / "again" / "model.safetensors", "np") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}
    assert {kind for name, kind in kinds.items() if "dense.weight" in name} == {dtype}
    opened = transformers.BertModel.from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
    assert relative(rows_of(opened), rounded.exact([IDS], rounded=False)) < 1e-5


def used_by_products(program):
    return {step.operands["weight"] for step in program.steps if step.kernel == "linear"}


def smaller(name, level):
    """The exact program of a model with fewer units or heads."""
    checkpoint = om.from_torch(drawn(name))
    rng = np.random.default_rng(0)
    fit = Batch([rng.integers(2, WORDS, 32) for _ in range(8)])
    return searched(remove_groups(checkpoint.operator(), level, fit).model, source(checkpoint))


def quantised(program, name, **options):
    """A program whose products have weights in a format."""
    used = used_by_products(program)
    weights = {
        name_: FORMATS[name].approximate(weight.unpack(), **options) if name_ in used else weight
        for name_, weight in program.constants.items()
    }
    return type(program)(program.steps, weights, program.outputs, program.meta)


COMPRESSED = {  # formats: options, the format of compressed-tensors, its strategy, inputs of a group, bits
    "int8": ({}, "int-quantized", "channel", None, 8),
    "int8, groups": ({"group": 64}, "pack-quantized", "group", 64, 8),
    "int4": ({"group": 64}, "pack-quantized", "group", 64, 4),
    "int4, groups": ({"group": 128}, "pack-quantized", "group", 128, 4),
    "q8_0": ({}, "pack-quantized", "group", 32, 8),
}
WIDE = dict(hidden_size=256, intermediate_size=512)


def widened(tensors, scheme, module):
    """The weight of a module by the specification: numbers, or words of them from the lowest bits."""
    scale = tensors[f"{module}.weight_scale"].astype(np.float64)
    if scheme["format"] == "int-quantized":
        return tensors[f"{module}.weight"] * scale
    bits, (rows, columns) = scheme["weights"]["num_bits"], tensors[f"{module}.weight_shape"]
    numbers = np.empty((rows, columns), np.int64)
    for at in range(columns):
        word = tensors[f"{module}.weight_packed"][:, at * bits // 32].astype(np.int64) & 0xFFFFFFFF
        numbers[:, at] = (word >> at * bits % 32 & (1 << bits) - 1) - (1 << bits - 1)
    return numbers * np.repeat(scale, columns // scale.shape[1], 1)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("case", COMPRESSED)
def test_whole_numbers_are_written_as_compressed_tensors(tmp_path, case):
    """Read by the words of the specification, with no code of ours, into the plain class."""
    from safetensors.numpy import load_file

    options, kind, strategy, group, bits = COMPRESSED[case]
    program = quantised(exact_program(drawn("llama", **WIDE)), case.split(",")[0], **options)
    words = export_plain(program, tmp_path / "again")
    assert f"15 weights {kind}, {bits} bits" in words
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    said, tensors = config.pop("quantization_config"), load_file(tmp_path / "again" / "model.safetensors")
    [scheme] = said["config_groups"].values()
    assert (said["quant_method"], said["quantization_status"]) == ("compressed-tensors", "compressed")
    assert said["format"] == scheme["format"] == kind and len(scheme["targets"]) == 15
    assert {name: scheme["weights"][name] for name in ("num_bits", "type", "symmetric", "strategy", "group_size")} == {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": group,
    }
    if case == "int8":
        rows = scheme["input_activations"]
        assert (rows["num_bits"], rows["strategy"], rows["dynamic"]) == (8, "token", True)
    else:
        assert scheme["input_activations"] is None
    state = {name: torch.tensor(array) for name, array in tensors.items() if "weight_" not in name}
    state |= {f"{module}.weight": torch.tensor(widened(tensors, scheme, module)) for module in scheme["targets"]}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**config)).double().eval()
    model.load_state_dict(state)
    assert relative(rows_of(model), program.exact([IDS], rounded=False)) < 1e-6


def test_several_schemes_and_weights_without_one(tmp_path):
    program = exact_program(drawn("bert"))
    first, second, *_ = sorted(used_by_products(program))
    weights = dict(program.constants)
    weights |= {first: FORMATS["int8"].approximate(weights[first].unpack())}
    weights |= {second: FORMATS["int4"].approximate(weights[second].unpack())}
    export_plain(type(program)(program.steps, weights, program.outputs, program.meta), tmp_path / "again")
    said = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    groups = [*said["config_groups"].values()]
    assert said["format"] == "mixed-precision" and len(groups) == 2
    assert {group["format"] for group in groups} == {"int-quantized", "pack-quantized"}
    assert sum(len(group["targets"]) for group in groups) < 12


@pytest.mark.parametrize("case", ["int8", "int4"])
def test_transformers_widens_whole_numbers_by_the_package(tmp_path, case):
    pytest.importorskip("compressed_tensors", reason="needs peers: compressed-tensors")
    program = quantised(exact_program(drawn("llama", **WIDE)), case)
    export_plain(program, tmp_path / "again")
    dense = transformers.CompressedTensorsConfig(dequantize=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "again", dtype=torch.float32, quantization_config=dense
    ).eval()
    assert relative(rows_of(again), program.exact([IDS], rounded=False)) < 1e-5


@pytest.mark.parametrize("name, key", [("bert", "intermediate_size"), ("llama", "intermediate_size")])
def test_fewer_units_in_every_layer(tmp_path, name, key):
    program = smaller(name, Level(units=0.5))
    export_plain(program, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())[key] == 32
    opened = getattr(transformers, MODELS[name][0]).from_pretrained(tmp_path / "again").eval()
    assert relative(rows_of(opened), program.run([IDS])) < 1e-5


def test_units_that_differ_by_layer_are_refused_by_the_layer(tmp_path):
    program = smaller("bert", Level(kept=(4, 64, 4, 48)))
    with pytest.raises(
        InputError, match="--hf: layer 1 has 48 units, layer 0 64: a class of transformers has one size"
    ):
        export_plain(program, tmp_path / "again")
    assert [*tmp_path.iterdir()] == []


def test_fewer_heads_have_a_place_where_the_class_gives_heads_a_size(tmp_path):
    with pytest.raises(InputError, match="--hf: 2 heads of 12 are fewer columns than the model has"):
        export_plain(smaller("bert", Level(heads=0.5)), tmp_path / "again")
    program = smaller("llama", Level(heads=0.5))
    export_plain(program, tmp_path / "again")
    again = transformers.AutoConfig.from_pretrained(tmp_path / "again")
    assert (again.num_attention_heads, again.num_key_value_heads, again.head_dim) == (2, 1, 12)
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert relative(rows_of(opened), program.run([IDS])) < 1e-5


def test_layers_that_are_left_out(tmp_path):
    shallow = om.from_torch(drawn("bert", num_hidden_layers=1))
    program = searched(shallow.operator(), source(om.from_torch(drawn("bert"))))
    export_plain(program, tmp_path / "again")
    opened = transformers.BertModel.from_pretrained(tmp_path / "again").eval()
    assert opened.config.num_hidden_layers == 1
    assert relative(rows_of(opened), program.run([IDS])) < 1e-5


# ---- what is refused


def with_format(program, name):
    first = sorted(used_by_products(program))[0]
    weights = dict(program.constants) | {first: FORMATS[name].approximate(program.constants[first].unpack())}
    return type(program)(program.steps, weights, program.outputs, program.meta)


def test_whole_numbers_of_a_class_that_packs_its_products_are_refused(tmp_path):
    with pytest.raises(InputError, match="is stored as int8, which is not written there"):
        export_plain(with_format(exact_program(drawn("nomic_bert")), "int8"), tmp_path / "again")


REFUSED = {
    "sparse int8": (lambda program: with_format(program, "nmint8"), "is stored as nmint8, which is not written there"),
    "int8 of factors": (lambda program: with_format(program, "lowrankint8"), "is stored as lowrankint8"),
    "low rank": (lambda program: with_format(program, "lowrank"), "is stored as lowrank, which is not written"),
    "no configuration": (
        lambda program: type(program)(program.steps, program.constants, program.outputs, {}),
        "names no",
    ),
    "scores": (
        lambda program: program.replace(scoring={"labels": ["a"], "activation": "sigmoid"}),
        "the program scores texts",
    ),
    "another activation": (
        lambda program: program.replace(config={**program.meta["config"], "hidden_act": "relu"}),
        r"the plain class would be off by .* of the program, above 1e-05",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_class_cannot_hold_is_refused_and_nothing_is_written(tmp_path, case):
    change, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        export_plain(change(exact_program(drawn("bert"))), tmp_path / "again")
    assert "\n" not in str(caught.value) and [*tmp_path.iterdir()] == []


def test_the_command_writes_a_directory_and_replaces_none(tmp_path, tokenizer):
    program = exact_program(drawn("bert"), tokenizer, pooled=True)
    program.save(tmp_path / "program")
    target = tmp_path / "again"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "program"), "--hf", str(target)])
    assert done.exit_code == 0, done.output
    assert "2 layers of 4 heads of 12 and 64 hidden units" in done.output and open_model(target).operator(pooled=True)
    again = CliRunner().invoke(app, ["export", str(tmp_path / "program"), "--hf", str(target)])
    assert again.exit_code and "it exists" in f"{again.output}{again.exception}"


# ---- low-rank corrections


def corrected(program, behind, rank=3):
    """A program with a thin product beside each product of attention that nothing is added to, added before the product
    or `behind` it."""
    rng, steps, constants = np.random.default_rng(0), [], dict(program.constants)
    attended = {step.operands["x"] for step in program.steps if step.kernel in ("columns", "heads", "rotate")}
    for at, step in enumerate(program.steps):
        weight = step.operands.get("weight")
        if step.output not in attended or weight is None or "residual" in step.operands:
            steps.append(step)
            continue
        n, p = program.constants[weight].shape
        for name, shape in (("A", (n, rank)), ("B", (rank, p))):
            constants[f"{name}{at}"] = Dense.pack(rng.normal(size=shape).astype(np.float32) * 0.3)
        thin = Step("linear", {"x": step.operands["x"], "weight": f"A{at}"}, {}, f"thin{at}")
        last = {"x": thin.output, "weight": f"B{at}"}
        if behind:
            steps += [thin, replace(step, output=f"whole{at}")]
            steps.append(Step("linear", last | {"residual": f"whole{at}"}, {}, step.output))
        else:
            steps += [thin, Step("linear", last, {}, f"added{at}")]
            steps.append(replace(step, operands={**step.operands, "residual": f"added{at}"}))
    return type(program)(steps, constants, program.outputs, program.meta)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_low_rank_correction_leaves_as_an_adapter(name, behind, tmp_path):
    """The directory is the model without it; with the adapter, which has PEFT's names, it is the program."""
    exact = exact_program(drawn(name))
    program = corrected(exact, behind)
    assert "low-rank corrections, of rank 3 at most, in adapter" in export_plain(program, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == config["lora_alpha"] == 3
    module = "encoder.layer.0.attention.self.query" if name == "bert" else "model.layers.0.self_attn.q_proj"
    assert module in config["target_modules"]
    with safe_open(tmp_path / "out" / "adapter" / "adapter_model.safetensors", "np") as written:
        assert written.get_slice(f"base_model.model.{module}.lora_A.weight").get_shape() == [3, 48]
    batch = Batch([IDS])
    plain, whole = (open_model(tmp_path / "out", *more) for more in ((), (tmp_path / "out" / "adapter",)))
    assert relative(dense(plain.operator(), batch), exact.exact(batch, rounded=False)) < 1e-6
    assert relative(dense(whole.operator(), batch), program.exact(batch, rounded=False)) < 1e-6
